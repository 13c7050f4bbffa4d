//! `csi`: a volume of a CSI driver. Manifests for FlexVolume keep working when a CSI driver
//! provides the storage.
//!
//! The node's agent is the CSI driver's client: it stages a volume once for the node, counts the
//! targets that show it, and remembers both. So this driver has one step, a request to the agent,
//! and its rollback. Secrets go over the agent's socket and nowhere else.
//!
//! Capabilities: no attach; kubelet applies the fsGroup, unless the side file says otherwise and
//! the CSI driver applies it (`VOLUME_MOUNT_GROUP`).

use super::access;
use crate::agent::{self, HoldAccess};
use crate::csi::name::hash;
use crate::csi::volume::{AccessMode, CsiVolume, RESERVED};
use crate::driver::{Driver, Growth, Request};
use crate::paths::AGENT_SOCKET;
use crate::plan::{Goal, Plan, Source, Step, View};
use crate::schema::{OptionSpec, OptionValue};
use crate::settings::{SIDE_FILE, Settings};
use crate::translate::through;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::mount_options::MountFlags;
use flexvol_protocol::ordered::filled;
use flexvol_protocol::{Access, Capabilities, Options, TargetPath, Verb, VerbSet};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The driver.
pub struct Csi;

/// Name of the driver.
pub(crate) const NAME: &str = "csi";

/// Prefixes of option names: for one attribute, and for one segment of a topology.
const ATTRIBUTE: &str = "attr.";
const TOPOLOGY: &str = "topology.";

crate::options! {
    /// Options of a PV.
    pub struct CsiOptions {
        /// The CSI driver's name, as `kubectl get csidrivers` prints it.
        driver: CsiName = "driver" { example: "smb.csi.example.com" },
        /// ID of the volume for the CSI driver, as `volumeHandle` of a CSI volume.
        volume_handle: Word = "volumeHandle" { example: "share-1" },
        /// `ReadWriteOnce`, `ReadOnlyMany`, `ReadWriteMany` or `ReadWriteOncePod`. The default is
        /// `ReadWriteOnce`, and `ReadOnlyMany` for a read-only volume.
        access_mode: Option<AccessMode> = "accessMode" {},
        /// A JSON object of texts, as `volumeAttributes` of a CSI volume.
        attributes: Option<Attributes> = "attributes" {},
        /// One attribute: `attr.source` for `source`. It wins over the same one in `attributes`.
        attribute: Option<String> = "attr.*" {},
        /// Comma list of mount options for the CSI driver, as `mountOptions` of a PV.
        mount_flags: Option<String> = "mountFlags" { aliases: ["mountOptions"], example: "noatime" },
        /// Tell the CSI driver for which pod it mounts, as `podInfoOnMount` of a CSIDriver.
        pod_info: bool = "podInfo" { default: "false" },
        /// Topology segment of the volume: `topology.topology.example.com/zone`. A node for which
        /// the CSI driver reports another refuses the volume.
        topology: Option<String> = "topology.*" {},
    }
}

/// Name of a CSI driver, checked because it becomes part of a path.
#[derive(Clone, Debug)]
pub struct CsiName(String);

impl OptionValue for CsiName {
    const KIND: &'static str = "name of a CSI driver";

    fn parse(text: &str) -> Result<Self, String> {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
        let ends = text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric());
        let fits = text.len() <= 63 && ends && text.bytes().all(inner);
        if fits { Ok(Self(text.to_owned())) } else { Err(format!("{text:?} is no name of a CSI driver")) }
    }
}

/// Text of one line.
#[derive(Clone, Debug)]
pub struct Word(String);

impl OptionValue for Word {
    const KIND: &'static str = "text";

    fn parse(text: &str) -> Result<Self, String> {
        let control = text.chars().any(char::is_control);
        if control { Err("holds a control character".into()) } else { Ok(Self(text.to_owned())) }
    }
}

impl OptionValue for AccessMode {
    const KIND: &'static str = "access mode";

    fn parse(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| {
            format!("{text:?} is not ReadWriteOnce, ReadOnlyMany, ReadWriteMany or ReadWriteOncePod")
        })
    }
}

/// Names and texts. No error message repeats one.
#[derive(Clone, Debug)]
pub struct Attributes(BTreeMap<String, String>);

impl OptionValue for Attributes {
    const KIND: &'static str = "JSON object of texts";

    fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map(Self).map_err(|_| {
            "it is no JSON object whose values are texts: put each in double quotes, or write attr.NAME"
                .into()
        })
    }
}

impl Driver for Csi {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "a volume of a CSI driver, by the node's agent"
    }

    fn options(&self) -> &'static [OptionSpec] {
        CsiOptions::SPECS
    }

    fn hint(&self) -> Option<String> {
        let text = "The node's agent (flexvold agent) and the CSI driver must run on the node, and the admin must \
            name the CSI driver in the side file .flexvol.json beside the executable: \
            {\"policy\": {\"csiDrivers\": [\"smb.csi.example.com\"]}}";
        Some(text.to_owned())
    }

    fn capabilities(&self, settings: &Settings) -> Capabilities {
        if settings.through_csi.is_some() {
            // Such volumes are file systems of servers: the server determines the owners.
            return Capabilities::NONE;
        }
        Capabilities {
            attach: false,
            selinux_relabel: true,
            supports_metrics: true,
            fs_group: true,
            requires_fs_resize: true,
        }
    }

    fn verbs(&self, _: &Settings) -> VerbSet {
        VerbSet::of(&[Verb::Init, Verb::Mount, Verb::Unmount, Verb::ExpandFs])
    }

    fn check(&self, settings: &Settings) -> Result<()> {
        let Some(to) = &settings.through_csi else { return Ok(()) };
        // Fails, because an admin may have relied on it with the previous driver of these volumes.
        if settings.policy.servers.is_some() {
            let text =
                format!("{SIDE_FILE}: policy.servers has no effect on what a CSI driver mounts: remove it");
            return Err(Failure::options(text));
        }
        through::check(dialect(settings), to)
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let volume = volume(target, request)?;
        let handle = volume.from.as_ref().map_or_else(|| volume.handle.clone(), |from| told(from, &volume));
        let source = Source::Csi { driver: volume.driver.clone(), handle };
        let read_only = volume.access == HoldAccess::ReadOnly;
        let view = View {
            file_system: None,
            source,
            access: access(MountFlags { read_only, ..MountFlags::DEFAULT }),
        };
        let secrets = request.options.secrets.clone();
        if let Some((key, _)) = secrets.iter().find(|(_, secret)| str::from_utf8(secret.expose()).is_err()) {
            let text = format!("secret key {key:?} is not text: CSI has no other, store it in base64");
            return Err(Failure::options(text));
        }
        let socket = socket(request.settings)?;
        let publish = Step::CsiPublish { socket, target: target.clone(), volume: Box::new(volume), secrets };
        Ok(Plan {
            goal: Goal::Mounted { target: target.clone(), view },
            steps: vec![Step::PrepareTarget { target: target.clone() }, publish],
        })
    }

    fn expand_fs(&self, target: &TargetPath, growth: &Growth<'_>, request: &Request<'_>) -> Result<Plan> {
        let volume = Box::new(volume(target, request)?);
        let expand = Step::CsiExpand { socket: socket(request.settings)?, volume, size: growth.new_bytes };
        Ok(Plan { goal: Goal::Performed, steps: vec![expand] })
    }

    fn unmount(&self, target: &TargetPath, settings: &Settings) -> Result<Plan> {
        let unpublish = Step::CsiUnpublish { socket: socket(settings)?, target: target.clone() };
        Ok(Plan {
            goal: Goal::Ended { target: target.clone() },
            steps: vec![unpublish, Step::Unmount { target: target.clone() }],
        })
    }
}

fn socket(settings: &Settings) -> Result<PathBuf> {
    Ok(agent::settings(&settings.agent)?.map_or(AGENT_SOCKET, |agent| agent.socket).into())
}

/// Returns the dialect of volumes that a CSI driver serves in place of another driver.
fn dialect(settings: &Settings) -> &str {
    settings.profile.as_deref().unwrap_or_default()
}

/// Returns what distinguishes two such volumes: only the agent knows their handles.
fn told(from: &str, volume: &CsiVolume) -> String {
    let said = serde_json::to_vec(&volume.attributes).unwrap_or_default();
    format!("{from}:{}", hash(&said))
}

fn volume(target: &TargetPath, request: &Request<'_>) -> Result<CsiVolume> {
    let path = target.as_path().to_str();
    let path = path.ok_or_else(|| Failure::call("target must be UTF-8 for a CSI driver"))?.to_owned();
    let Request { options, settings } = request;
    match &settings.through_csi {
        Some(to) => foreign(path, options, dialect(settings), to),
        None => own(path, options),
    }
}

fn access_of(options: &Options) -> (HoldAccess, AccessMode) {
    match options.access() {
        Access::ReadOnly => (HoldAccess::ReadOnly, AccessMode::ReadOnlyMany),
        Access::ReadWrite => (HoldAccess::ReadWrite, AccessMode::ReadWriteOnce),
    }
}

/// Returns a volume in the dialect of another driver. The agent translates it: the table is large,
/// and the program that kubelet executes is small.
fn foreign(target: String, options: &Options, from: &str, to: &str) -> Result<CsiVolume> {
    through::check(from, to)?;
    refuse_nul(options.own.iter().flat_map(|(key, value)| [key.as_str(), value]), "an option")?;
    let (access, access_mode) = access_of(options);
    Ok(CsiVolume {
        driver: to.to_owned(),
        handle: String::new(),
        target,
        access_mode,
        access,
        fs_type: String::new(),
        mount_flags: Vec::new(),
        attributes: options.own.clone(),
        pod_info: BTreeMap::new(),
        topology: BTreeMap::new(),
        group: options.fs_group.map(|group| group.gid),
        from: Some(from.to_owned()),
    })
}

fn own(target: String, options: &Options) -> Result<CsiVolume> {
    let own = CsiOptions::parse(&options.own)?;
    let (access, mode) = access_of(options);
    let mut attributes = own.attributes.map_or_else(BTreeMap::new, |attributes| attributes.0);
    attributes.extend(beginning(options, ATTRIBUTE));
    if let Some(key) = attributes.keys().find(|key| key.starts_with(RESERVED)) {
        let text =
            format!("attribute {key:?}: names that begin with {RESERVED} are Kubernetes': leave it out");
        return Err(Failure::options(text));
    }
    let topology = beginning(options, TOPOLOGY);
    let fs_type = options.fs_type().unwrap_or_default();
    let texts = attributes.iter().chain(&topology).flat_map(|(key, value)| [key.as_str(), value]);
    refuse_nul(texts.chain([fs_type]), "an attribute, a segment of the topology or fsType")?;
    Ok(CsiVolume {
        driver: own.driver.0,
        handle: own.volume_handle.0,
        target,
        access_mode: own.access_mode.unwrap_or(mode),
        access,
        fs_type: fs_type.to_owned(),
        mount_flags: flags(own.mount_flags.as_deref().unwrap_or_default())?,
        attributes,
        pod_info: if own.pod_info { pod_info(options) } else { BTreeMap::new() },
        topology,
        group: options.fs_group.map(|group| group.gid),
        from: None,
    })
}

fn refuse_nul<'a>(mut texts: impl Iterator<Item = &'a str>, what: &str) -> Result<()> {
    if texts.any(|text| text.contains('\0')) {
        return Err(Failure::options(format!("{what} holds a NUL byte")));
    }
    Ok(())
}

/// Returns the options whose names begin with `start`, by the rest of their names.
fn beginning(options: &Options, start: &str) -> BTreeMap<String, String> {
    let ours = options.own.iter().filter_map(|(key, value)| Some((key.strip_prefix(start)?, value)));
    filled(ours.filter(|(key, _)| !key.is_empty()).map(|(key, value)| (key.to_owned(), value.clone())))
}

fn flags(list: &str) -> Result<Vec<String>> {
    let flags: Vec<_> = list.split(',').map(str::trim).filter(|flag| !flag.is_empty()).collect();
    match flags.iter().find(|flag| flag.chars().any(char::is_control) || matches!(**flag, "ro" | "rw")) {
        Some(flag) => Err(Failure::options(format!(
            "option \"mountFlags\": {flag:?} is no mount option of a CSI driver: set readOnly of the volume"
        ))),
        None => Ok(flags.into_iter().map(str::to_owned).collect()),
    }
}

/// Returns the pod's attributes as kubelet sends them for a CSIDriver with `podInfoOnMount`.
fn pod_info(options: &Options) -> BTreeMap<String, String> {
    let pod = &options.pod;
    let words = [
        ("pod.name", pod.name.as_deref()),
        ("pod.namespace", pod.namespace.as_deref()),
        ("pod.uid", pod.uid.as_deref()),
        ("serviceAccount.name", pod.service_account.as_deref()),
        ("ephemeral", Some("false")),
    ];
    filled(words.map(|(key, word)| (format!("{RESERVED}{key}"), word.unwrap_or_default().to_owned())))
}

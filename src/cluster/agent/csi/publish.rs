//! Publishing of a volume at a target. The volume is staged for the node first, if necessary.

use super::entry::{Entry, Phase, Staged, Target};
use super::plugin::{Able, Plugin};
use super::refused::{LIMIT, Refused};
use super::unpublish::look_at;
use super::{TURN, Volumes, Wanted};
use crate::agent::fault::{Code, Fault};
use crate::csi::target;
use crate::wire::csi::volume_capability::access_mode::Mode;
use crate::wire::csi::volume_capability::{AccessMode as WireMode, AccessType, MountVolume};
use crate::wire::csi::{
    NodeGetInfoRequest, NodePublishVolumeRequest, NodeStageVolumeRequest, VolumeCapability,
};
use flexvol_linux::mount::place::{Look, Place};
use flexvol_linux::proc::clock;
use flexvol_model::agent::HoldAccess;
use flexvol_model::csi::volume::{AccessMode, CsiVolume};
use flexvol_protocol::TargetPath;
use flexvol_protocol::text::one_line;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::Instant;
use tonic::Code as Grpc;

/// Mode of staging directories. kubelet uses the same mode for the directories above.
const MODE: u32 = 0o750;

/// Reason why a volume is not published.
pub(super) enum Why {
    /// The request is not possible.
    Fault(Fault),
    /// The CSI driver has not carried out a call.
    Refused(Refused),
}

impl From<Fault> for Why {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Refused> for Why {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl Volumes {
    /// Publishes a volume. The caller must have the turns of the target and the volume.
    pub(super) async fn show(&self, wanted: &Wanted) -> Result<(), Fault> {
        let volume = &wanted.volume;
        self.refuse_kubelet_s(volume)?;
        refuse_what_is_left(volume)?;
        let plugin = self.plugins.connect(&volume.driver, wanted.until).await?;
        let refused = |refused: Refused| refused.fault(&wanted.masked);
        let able = plugin.able().await.map_err(refused)?;
        check_topology(&plugin, wanted).await?;
        let mode = mode(volume.access_mode, able);
        let mut entry = self.make_room(wanted, mode).await?;
        let shown = self.stage_and_publish(&mut entry, &plugin, able, wanted).await;
        match shown {
            Ok(()) => Ok(()),
            Err(Why::Fault(fault)) => Err(fault),
            Err(Why::Refused(why)) => {
                // The call was not done: roll back the earlier steps as well. If that fails, the
                // sweep or the next call finds them in the journal.
                if why.is_final()
                    && let Err(left) = self.take_away(entry, &volume.target, wanted.until).await
                {
                    tracing::warn!(target = volume.target, reason = left.message, "left in the journal");
                }
                Err(why.fault(&wanted.masked))
            }
        }
    }

    /// Returns the volume's journal entry, ready to be published at the target. First removes any
    /// other volume there, and an unused staging of this volume with other settings.
    async fn make_room(&self, wanted: &Wanted, mode: Mode) -> Result<Entry, Fault> {
        let volume = &wanted.volume;
        if let Some(other) = self.of_target(&volume.target)
            && other.id() != wanted.id
        {
            let _turn = self.turns.take(other.id(), wanted.until.min(Instant::now() + TURN))?;
            // The other volume may have got or lost pods meanwhile.
            if let Some(other) = self.journal.get(other.id()) {
                self.take_away(other, &volume.target, wanted.until).await?;
            }
        }
        let Some(entry) = self.journal.get(&wanted.id) else { return Ok(Entry::new(volume, mode)) };
        let suits = entry.suits(volume, mode, volume.access == HoldAccess::ReadOnly);
        let is_one_pod_s = entry.one_pod || volume.access_mode == AccessMode::ReadWriteOncePod;
        match entry.has_others(&volume.target) {
            true if is_one_pod_s => return Err(only_one(&entry)),
            true if !suits => return Err(otherwise(&entry)),
            true => {}
            false if suits => {}
            false => {
                self.take_away(entry, &volume.target, wanted.until).await?;
                return Ok(Entry::new(volume, mode));
            }
        }
        let was_published = entry
            .targets
            .get(&volume.target)
            .is_some_and(|target| target.boot == self.boot && target.phase != Phase::Publishing);
        if was_published {
            // kubelet asks because nothing is mounted: the volume was unmounted without the driver.
            self.withdraw(&entry, &volume.target, wanted.until).await?;
        }
        Ok(entry)
    }

    async fn stage_and_publish(
        &self,
        entry: &mut Entry,
        plugin: &Plugin,
        able: Able,
        wanted: &Wanted,
    ) -> Result<(), Why> {
        let volume = &wanted.volume;
        let was_asked = entry.targets.contains_key(&volume.target);
        let target = Target {
            phase: Phase::Publishing,
            read_only: volume.access == HoldAccess::ReadOnly,
            boot: self.boot.clone(),
            asked: clock::since_boot(),
        };
        entry.targets.insert(volume.target.clone(), target);
        let stages = able.stages && !entry.is_staged_in(&self.boot);
        if stages {
            self.stage(entry, plugin, able, wanted).await?;
        } else {
            self.write(entry)?;
        }
        let mut published = publish(entry, plugin, able, wanted).await;
        let is_lost = |why: &Refused| why.code() == Grpc::FailedPrecondition && able.stages && !stages;
        if published.as_ref().is_err_and(is_lost) {
            // The CSI driver does not know that the volume is staged: it has lost that state.
            self.stage(entry, plugin, able, wanted).await?;
            published = publish(entry, plugin, able, wanted).await;
        }
        published?;
        if was_asked && matches!(look_at(&volume.target), Some(Look::Plain(_) | Look::Missing)) {
            // The driver's mount was unmounted without the driver, which has not checked it.
            self.withdraw(entry, &volume.target, wanted.until).await?;
            publish(entry, plugin, able, wanted).await?;
        }
        if let Some(target) = entry.targets.get_mut(&volume.target) {
            target.phase = Phase::Published;
        }
        Ok(self.write(entry)?)
    }

    async fn stage(
        &self,
        entry: &mut Entry,
        plugin: &Plugin,
        able: Able,
        wanted: &Wanted,
    ) -> Result<(), Why> {
        let staging = self.staging(&entry.driver, &format!("flex\0{}", entry.handle));
        entry.staging = staging.to_string_lossy().into_owned();
        (entry.staged, entry.boot) = (Staged::Asked, self.boot.clone());
        self.write(entry)?;
        make(&staging)?;
        let request = NodeStageVolumeRequest {
            volume_id: entry.handle.clone(),
            staging_target_path: entry.staging.clone(),
            volume_capability: Some(capability(entry, able, wanted)),
            secrets: wanted.secrets(),
            volume_context: wanted.volume.attributes.clone().into_iter().collect(),
            ..NodeStageVolumeRequest::default()
        };
        plugin
            .call("NodeStageVolume", request, async |mut node, asked| node.node_stage_volume(asked).await)
            .await?;
        // Written after the publish. A restart before that stages again, which is harmless.
        entry.staged = Staged::Yes;
        Ok(())
    }

    /// Refuses a volume that kubelet has staged: CSI has one staging path for each volume and node.
    fn refuse_kubelet_s(&self, volume: &CsiVolume) -> Result<(), Fault> {
        let staging = self.staging(&volume.driver, &volume.handle);
        let found = TargetPath::parse(staging.as_os_str()).map_err(anyhow::Error::from);
        let found = found.and_then(|path| Place::open(&path)?.map(|place| place.look()).transpose());
        match found {
            Ok(Some(Look::Mount(_) | Look::Dead(_))) => {
                let CsiVolume { driver, handle, .. } = volume;
                let text = format!(
                    "{handle} of {driver} is staged by kubelet itself at {}: end the pods that use it as a \
                     CSI volume",
                    staging.display()
                );
                Err(Fault::new(Code::Fenced, text))
            }
            Ok(_) => Ok(()),
            Err(error) => {
                let text =
                    format!("whether kubelet has staged {} itself is not known: {error:#}", volume.handle);
                Err(Fault::new(Code::Failed, text))
            }
        }
    }
}

async fn publish(entry: &Entry, plugin: &Plugin, able: Able, wanted: &Wanted) -> Result<(), Refused> {
    let volume = &wanted.volume;
    let context = volume.attributes.iter().chain(&volume.pod_info);
    let request = NodePublishVolumeRequest {
        volume_id: entry.handle.clone(),
        staging_target_path: if able.stages { entry.staging.clone() } else { String::new() },
        target_path: volume.target.clone(),
        volume_capability: Some(capability(entry, able, wanted)),
        readonly: volume.access == HoldAccess::ReadOnly,
        secrets: wanted.secrets(),
        volume_context: context.map(|(key, value)| (key.clone(), value.clone())).collect(),
        ..NodePublishVolumeRequest::default()
    };
    let call = async |mut node: crate::wire::csi::node_client::NodeClient<_>, asked| {
        node.node_publish_volume(asked).await
    };
    plugin.call("NodePublishVolume", request, call).await.map(drop)
}

/// Returns the capability of a request. As in kubelet, the access mode is that of the staging.
pub(super) fn capability(entry: &Entry, able: Able, wanted: &Wanted) -> VolumeCapability {
    let group = wanted.volume.group.filter(|_| able.groups);
    let mount = MountVolume {
        fs_type: wanted.volume.fs_type.clone(),
        mount_flags: wanted.volume.mount_flags.clone(),
        volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
    };
    VolumeCapability {
        access_type: Some(AccessType::Mount(mount)),
        access_mode: Some(WireMode { mode: entry.mode().into() }),
    }
}

/// Translates an access mode as kubelet does.
pub(super) fn mode(mode: AccessMode, able: Able) -> Mode {
    match (mode, able.tells_writers_apart) {
        (AccessMode::ReadWriteOnce, true) => Mode::SingleNodeMultiWriter,
        (AccessMode::ReadWriteOncePod, true) => Mode::SingleNodeSingleWriter,
        (AccessMode::ReadWriteOnce | AccessMode::ReadWriteOncePod, false) => Mode::SingleNodeWriter,
        (AccessMode::ReadOnlyMany, _) => Mode::MultiNodeReaderOnly,
        (AccessMode::ReadWriteMany, _) => Mode::MultiNodeMultiWriter,
    }
}

/// Refuses a directory that is not empty. A CSI driver removes the directory when the pod ends; if
/// it cannot, the pod never ends.
fn refuse_what_is_left(volume: &CsiVolume) -> Result<(), Fault> {
    let path = TargetPath::parse(volume.target.as_ref()).map_err(|failure| Fault::bad(failure.message()))?;
    let is_plain = matches!(look_at(&volume.target), Some(Look::Plain(_)));
    if is_plain && !target::is_empty(&path).map_err(|error| Fault::new(Code::Failed, format!("{error:#}")))? {
        let text = format!("{path} is not empty, and no CSI driver could remove it: move what is in it");
        return Err(Fault::new(Code::Failed, text));
    }
    Ok(())
}

/// Refuses a volume of another zone, before anything is requested.
async fn check_topology(plugin: &Plugin, wanted: &Wanted) -> Result<(), Fault> {
    let required = &wanted.volume.topology;
    if required.is_empty() {
        return Ok(());
    }
    let call =
        async |mut node: crate::wire::csi::node_client::NodeClient<_>, asked| node.node_get_info(asked).await;
    let info = plugin.call("NodeGetInfo", NodeGetInfoRequest {}, call).await;
    let info = info.map_err(|refused| refused.fault(&wanted.masked))?;
    let here = info.accessible_topology.map(|topology| topology.segments).unwrap_or_default();
    match required.iter().find(|(key, value)| here.get(*key) != Some(*value)) {
        Some((key, value)) => {
            let found = one_line(here.get(key).map_or("nothing", String::as_str), LIMIT);
            let text = format!(
                "the volume is in {key} {value:?}, and this node in {found:?}: give the PV a nodeAffinity"
            );
            Err(Fault::new(Code::Failed, text))
        }
        None => Ok(()),
    }
}

fn only_one(entry: &Entry) -> Fault {
    let (Entry { handle, driver, .. }, at) = (entry, first(entry));
    let text = format!("{handle} of {driver} is ReadWriteOncePod, and published at {at}: end that pod first");
    Fault::new(Code::Fenced, text)
}

fn otherwise(entry: &Entry) -> Fault {
    let (Entry { handle, driver, .. }, at) = (entry, first(entry));
    let text = format!(
        "{handle} of {driver} is already published with other attributes, mount flags or access mode, \
         at {at}: end that pod first"
    );
    Fault::new(Code::Fenced, text)
}

fn first(entry: &Entry) -> &str {
    entry.targets.keys().next().map_or("", String::as_str)
}

fn make(staging: &Path) -> Result<(), Fault> {
    DirBuilder::new().recursive(true).mode(MODE).create(staging).map_err(|error| {
        let text = format!("{} cannot be made: {error}: let the agent write there", staging.display());
        Fault::new(Code::Failed, text)
    })
}

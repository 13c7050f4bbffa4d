//! Common parts of the drivers whose volume is a file system on a block device to attach.
//!
//! Each pod's `mount` attaches the device, or reuses it if it is attached, and mounts it at the
//! pod's own directory: one file system, however many mounts it has. The last unmount detaches the
//! device.
//!
//! With `attach: true`, kubelet attaches such a volume: the controller-manager answers with a name
//! alone, without any tool. kubelet then has it mounted once for the node by `mountdevice`, and
//! `mount` shows that mount to each pod. But kubelet passes secrets to `mount` alone. So
//! `mountdevice` skips a volume that needs a secret, and `mount` mounts it as without `attach`.
//!
//! The verbs are the same with and without `attach`: a kubelet that does not know of a change yet
//! must get usable answers. A volume that it staged before the change is unmounted with the last
//! pod.
//!
//! Capabilities: no attach, unless the admin or the profile enables it. kubelet knows an attached
//! inline volume only by its name in the pod, so two pods with a volume `data` would share one
//! volume. But the controller keeps other nodes away only from an attached volume. A disk file
//! system stores labels and owners, so kubelet may relabel and chown; statfs waits for a dead
//! server no longer than the device waits.

use super::disk::{self, Disk, Said};
use crate::driver::{Driver, Growth, Needs, Request};
use crate::plan::{Attachment, Encryption, FileSystems, Goal, Plan, Source, Step, Store, StoreStep, View};
use crate::schema::{OptionSpec, SecretSpec};
use crate::settings::Settings;
use flexvol_protocol::failure::{Code, Failure, Result};
use flexvol_protocol::secret::Secret;
use flexvol_protocol::volume_dir::VolumeDir;
use flexvol_protocol::{Capabilities, Options, TargetPath, Verb, VerbSet};
use std::collections::BTreeMap;
use std::marker::PhantomData;

/// Declares the options of such a driver: its own, and the options of the file system and the
/// encryption, which are the same for all of them.
macro_rules! block_options {
    ($(#[$outer:meta])* pub struct $name:ident { $($own:tt)* }) => {
        $crate::options! {
            $(#[$outer])*
            pub struct $name {
                $($own)*
                /// The file system: ext4, xfs, btrfs, squashfs, erofs or iso9660. The default is
                /// what the device holds, and ext4 for a new one. The same as flexVolume.fsType.
                fs_type: Option<String> = "fsType" {},
                /// Format the device: never, or ifBlank. A device with anything on it is never
                /// formatted.
                format: $crate::drivers::disk::Format = "format" { default: "ifBlank" },
                /// Further words for mkfs, separated by spaces.
                mkfs_options: Option<String> = "mkfsOptions" { aliases: ["fsOpts"] },
                /// Check and fix the file system before the first mount, unless that is read-only.
                fsck: bool = "fsck" { default: "true" },
                /// Give blocks of deleted files back to the store.
                discard: bool = "discard" { default: "false" },
                /// Encrypt the device with LUKS, by the Secret's `passphrase`.
                luks: bool = "luks" { aliases: ["encrypted"], default: "false" },
                /// Comma list of further flags and options of the file system.
                mount_options: Option<String> = "mountOptions" {
                    aliases: ["mountoptions", "mount_options", "mountOpts"], example: "noatime"
                },
            }
        }

        impl $name {
            fn said(&self) -> $crate::drivers::block::Common<'_> {
                let disk = $crate::drivers::disk::Said {
                    fs_type: self.fs_type.as_deref(),
                    format: self.format,
                    mkfs_options: self.mkfs_options.as_deref(),
                    fsck: self.fsck,
                    discard: self.discard,
                    mount_options: self.mount_options.as_deref(),
                };
                $crate::drivers::block::Common { disk, luks: self.luks }
            }
        }
    };
}
pub(super) use block_options;

/// Settings that every such volume has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common<'a> {
    pub(super) disk: Said<'a>,
    pub(super) luks: bool,
}

/// Key of the Secret that holds the passphrase of an encrypted device.
pub(super) const PASSPHRASE: SecretSpec = SecretSpec {
    keys: &["passphrase", "luksPassphrase"],
    doc: "passphrase of an encrypted device",
    example: false,
};

/// A kind of block device.
pub trait BlockKind: Sync {
    /// The driver's name.
    const NAME: &'static str;
    /// Short description, half a line.
    const SUMMARY: &'static str;
    /// Options, including those of all block devices.
    const OPTIONS: &'static [OptionSpec];
    /// Keys of the Secret that the driver reads.
    const SECRETS: &'static [SecretSpec];
    /// Programs that it may run, besides those of file systems and encryption.
    const PROGRAMS: &'static [&'static str];
    /// Requirements of every volume of this kind.
    const NEEDS: Needs;
    /// Instructions for the node's admin: what to set up first.
    const HINT: Option<&'static str> = None;

    /// Returns the volume that the options describe.
    fn volume(request: &Request<'_>) -> Result<Volume>;
}

/// The driver of a kind of block device.
pub struct Block<K>(PhantomData<K>);

impl<K> Block<K> {
    /// The only instance.
    pub const DRIVER: Self = Self(PhantomData);
}

/// A volume on a block device.
#[derive(Clone, Debug)]
pub struct Volume {
    store: Store,
    credentials: BTreeMap<&'static str, Secret>,
    needs_secret: bool,
    disk: Disk,
    encrypted: bool,
    passphrase: Option<Secret>,
    lacking: Option<&'static str>,
}

impl Volume {
    /// Creates a volume on a store without credentials.
    pub(super) fn new(store: Store, said: &Common<'_>, volume: &Options) -> Result<Self> {
        Ok(Self {
            store,
            credentials: BTreeMap::new(),
            needs_secret: said.luks,
            disk: Disk::new(&said.disk, volume)?,
            encrypted: said.luks,
            passphrase: super::fuse::secret(volume, &PASSPHRASE)?
                .filter(|secret| !secret.line().expose().is_empty())
                .cloned(),
            lacking: None,
        })
    }

    /// Adds a required credential: a line of the Secret, which the store calls `name`. Without it
    /// the volume cannot be mounted, and the error is `lacking`; but the volume still has a name.
    pub(super) fn with_secret(
        mut self,
        (name, spec): (&'static str, &SecretSpec),
        lacking: &'static str,
        volume: &Options,
    ) -> Result<Self> {
        self.needs_secret = true;
        match super::fuse::secret_line(volume, spec)? {
            Some(secret) => drop(self.credentials.insert(name, secret)),
            None => self.lacking = self.lacking.or(Some(lacking)),
        }
        Ok(self)
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.disk.flags.read_only
    }

    /// Adds an optional credential: a line of the Secret.
    pub(super) fn with_optional_secret(
        mut self,
        (name, spec): (&'static str, &SecretSpec),
        volume: &Options,
    ) -> Result<Self> {
        if let Some(secret) = super::fuse::secret_line(volume, spec)? {
            self.credentials.insert(name, secret);
        }
        Ok(self)
    }

    fn attachment(&self) -> Attachment {
        let read_only = self.disk.flags.read_only;
        Attachment { store: self.store.clone(), credentials: self.credentials.clone(), read_only }
    }

    /// Reports whether the volume is mounted once for the node and then shown to the pods.
    fn is_staged(&self, settings: &Settings) -> bool {
        attaches(settings) && !self.needs_secret
    }

    /// Plans to attach the device and to mount it at the target.
    fn mount(&self, target: &TargetPath) -> Result<Plan> {
        if let Some(lacking) = self.lacking {
            return Err(Failure::options(lacking));
        }
        let attach = Step::Store(StoreStep::Attach { target: target.clone(), attachment: self.attachment() });
        let first = [Step::PrepareTarget { target: target.clone() }, attach];
        let steps = first.into_iter().chain(self.decrypt()?).chain(self.disk.steps(target)?);
        Ok(Plan { goal: self.goal(target, Source::Store(self.store.clone())), steps: steps.collect() })
    }

    /// Plans to show what is mounted for the node, provided that it is this volume.
    fn show(&self, target: &TargetPath, staged: TargetPath) -> Plan {
        let source = Source::Store(self.store.clone());
        let steps = vec![
            Step::PrepareTarget { target: target.clone() },
            Step::ExpectStaged { staged: staged.clone(), source: source.clone() },
            Step::ShowStaged { target: target.clone(), staged, flags: self.disk.flags },
        ];
        Plan { goal: self.goal(target, source), steps }
    }

    fn goal(&self, target: &TargetPath, source: Source) -> Goal {
        let view =
            View { file_system: self.disk.name().map(FileSystems::One), source, access: self.disk.access() };
        Goal::Mounted { target: target.clone(), view }
    }

    fn decrypt(&self) -> Result<Option<Step>> {
        match &self.passphrase {
            _ if !self.encrypted => Ok(None),
            Some(passphrase) => Ok(Some(Step::Store(StoreStep::Decrypt(Encryption {
                passphrase: passphrase.clone(),
                format: self.disk.formats(),
            })))),
            None => Err(Failure::options(
                "option \"luks\" needs a Secret with key \"passphrase\": name it in secretRef",
            )),
        }
    }
}

impl<K: BlockKind> Driver for Block<K> {
    fn name(&self) -> &'static str {
        K::NAME
    }

    fn summary(&self) -> &'static str {
        K::SUMMARY
    }

    fn needs(&self) -> Needs {
        K::NEEDS
    }

    fn hint(&self) -> Option<String> {
        K::HINT.map(str::to_owned)
    }

    fn options(&self) -> &'static [OptionSpec] {
        K::OPTIONS
    }

    fn secrets(&self) -> &'static [SecretSpec] {
        K::SECRETS
    }

    /// Omits `isattached`: nothing on the controller's host could know the answer.
    fn verbs(&self, _: &Settings) -> VerbSet {
        const {
            VerbSet::of(&[
                Verb::Init,
                Verb::Attach,
                Verb::Detach,
                Verb::WaitForAttach,
                Verb::MountDevice,
                Verb::UnmountDevice,
                Verb::Mount,
                Verb::Unmount,
                Verb::ExpandFs,
            ])
        }
    }

    fn capabilities(&self, settings: &Settings) -> Capabilities {
        Capabilities {
            attach: attaches(settings),
            selinux_relabel: true,
            supports_metrics: true,
            fs_group: true,
            requires_fs_resize: true,
        }
    }

    fn programs<'a>(&self, _: &'a Settings) -> Vec<&'a str> {
        K::PROGRAMS.iter().copied().chain(["cryptsetup"]).chain(disk::programs()).collect()
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let volume = K::volume(request)?;
        match VolumeDir::of(target).staged() {
            Some(staged) if volume.is_staged(request.settings) => Ok(volume.show(target, staged)),
            _ => volume.mount(target),
        }
    }

    fn unmount(&self, target: &TargetPath, settings: &Settings) -> Result<Plan> {
        let mut plan = Plan::detach_store(target);
        let staged = VolumeDir::of(target).staged().filter(|_| !attaches(settings));
        plan.steps.extend(staged.map(|staged| Step::Store(StoreStep::Unstage { staged })));
        Ok(plan)
    }

    fn expand_fs(&self, target: &TargetPath, growth: &Growth<'_>, request: &Request<'_>) -> Result<Plan> {
        let volume = K::volume(request)?;
        volume.disk.refuse_to_grow()?;
        // kubelet before 1.22 calls this for the node's mount directory, before any `mount`: a
        // failure would keep the pod from starting.
        if !volume.is_staged(request.settings) && VolumeDir::of(target).is_staging() {
            return Ok(Plan::nothing());
        }
        let find = Step::Store(StoreStep::Find { target: target.clone(), store: volume.store });
        let grow = Step::Store(StoreStep::Grow { size: growth.new_bytes });
        let fill = Step::GrowFileSystem { target: target.clone() };
        Ok(Plan { goal: Goal::Performed, steps: vec![find, grow, fill] })
    }

    fn attach(&self, _: &str, request: &Request<'_>) -> Result<Plan> {
        named::<K>("", request)
    }

    /// Does nothing: the node has released the device, whatever it was.
    fn detach(&self, _: &str, _: &str, _: &Settings) -> Result<Plan> {
        Ok(Plan::nothing())
    }

    fn wait_for_attach(&self, device: &str, request: &Request<'_>) -> Result<Plan> {
        named::<K>(device, request)
    }

    fn mount_device(&self, target: &TargetPath, _: &str, request: &Request<'_>) -> Result<Plan> {
        let volume = K::volume(request)?;
        if volume.is_staged(request.settings) { volume.mount(target) } else { Ok(Plan::nothing()) }
    }

    fn unmount_device(&self, target: &TargetPath, _: &Settings) -> Result<Plan> {
        Ok(Plan::detach_store(target))
    }
}

fn attaches(settings: &Settings) -> bool {
    settings.attach.unwrap_or(false)
}

/// Answers with a name for the device, which is on no node yet; kubelet passes the name on.
fn named<K: BlockKind>(device: &str, request: &Request<'_>) -> Result<Plan> {
    let name = || Ok::<_, Failure>(K::volume(request)?.store.name());
    let device = match device {
        "" => name()?,
        device => {
            let name = name()?;
            let kind = |name: &str| name.split_once(':').map(|(kind, _)| kind.to_owned());
            // An answer that another driver gave before this one, such as the path of a device,
            // names no store.
            if device != name && kind(device) == kind(&name) {
                return Err(another(device, &name));
            }
            device.to_owned()
        }
    };
    Ok(Plan { goal: Goal::Performed, steps: vec![Step::Answer { device }] })
}

fn another(device: &str, name: &str) -> Failure {
    let text = format!(
        "{device} is attached to this node under the name of this volume, but its options name {name}: give one of the two volumes another name, kubelet knows them by nothing else; or, if they are one, let the side files of the node and of kube-controller-manager say the same"
    );
    Failure::new(Code::Conflict, text)
}

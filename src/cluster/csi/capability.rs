//! Capability of a volume as CSI requests it, and its meaning for FlexVolume. Pure.

use crate::wire::csi::VolumeCapability;
use crate::wire::csi::volume_capability::access_mode::Mode;
use crate::wire::csi::volume_capability::{AccessType, MountVolume};
use flexvol_protocol::{FsGroup, FsGroupSpelling};
use tonic::Status;

/// Capability of a mounted volume; FlexVolume has no other volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Access mode: the number of nodes and pods, and their right to write.
    pub mode: Mode,
    /// File system; if empty, the driver chooses it.
    pub fs_type: String,
    /// Mount options of the PersistentVolume, without `ro` and `rw`.
    pub mount_flags: Vec<String>,
    /// True if the mount options of the PersistentVolume contain `ro`.
    pub read_only_flag: bool,
    /// fsGroup of the pod, if the driver has to apply it.
    pub group: Option<FsGroup>,
}

impl Capability {
    /// Checks a requested capability.
    pub fn parse(capability: Option<&VolumeCapability>) -> Result<Self, Status> {
        let capability = capability.ok_or_else(|| missing("volume_capability"))?;
        let mount = match &capability.access_type {
            Some(AccessType::Mount(mount)) => mount,
            Some(AccessType::Block(_)) => {
                return Err(invalid("FlexVolume has no block volumes: use a file system"));
            }
            None => return Err(missing("volume_capability.access_type")),
        };
        let mode = capability.access_mode.as_ref().and_then(|mode| Mode::try_from(mode.mode).ok());
        let mode = mode.filter(|mode| *mode != Mode::Unknown).ok_or_else(|| missing("access_mode"))?;
        Self::of_mount(mode, mount)
    }

    fn of_mount(mode: Mode, mount: &MountVolume) -> Result<Self, Status> {
        let (access, others): (Vec<_>, Vec<_>) =
            mount.mount_flags.iter().cloned().partition(|flag| matches!(flag.as_str(), "ro" | "rw"));
        if let Some(flag) = others.iter().find(|flag| flag.is_empty() || flag.chars().any(char::is_control)) {
            return Err(invalid(&format!("mount flag {flag:?} is empty or has a control character")));
        }
        Ok(Self {
            mode,
            fs_type: mount.fs_type.clone(),
            mount_flags: others,
            read_only_flag: access.iter().any(|flag| flag == "ro"),
            group: group(&mount.volume_mount_group)?,
        })
    }

    /// Reports whether writing is forbidden, whatever else the request says.
    pub fn is_read_only(&self) -> bool {
        let reader = matches!(self.mode, Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly);
        reader || self.read_only_flag
    }

    /// Reports whether a single pod has exclusive access.
    pub fn is_exclusive(&self) -> bool {
        self.mode == Mode::SingleNodeSingleWriter
    }
}

fn group(text: &str) -> Result<Option<FsGroup>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse().ok().filter(|gid| digits && *gid != u32::MAX) {
        Some(gid) => Ok(Some(FsGroup { gid, spelling: FsGroupSpelling::Current })),
        None => Err(invalid("volume_mount_group must be a group id from 0 to 4294967294")),
    }
}

/// Returns the error for a required field that is missing.
pub fn missing(field: &str) -> Status {
    invalid(&format!("{field} is missing"))
}

/// Returns the error for a request that can never succeed.
pub fn invalid(message: &str) -> Status {
    Status::invalid_argument(flexvol_protocol::text::one_line(message, 1024))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::wire::csi::volume_capability::{AccessMode, BlockVolume};

    pub(in super::super) fn mounted(mode: Mode, flags: &[&str]) -> VolumeCapability {
        VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume {
                mount_flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
                ..MountVolume::default()
            })),
            access_mode: Some(AccessMode { mode: mode.into() }),
        }
    }

    #[test]
    fn the_access_mode_and_the_flags_make_it_read_only() {
        for (mode, flags, read_only, rest) in [
            (Mode::SingleNodeWriter, &[][..], false, &[][..]),
            (Mode::MultiNodeReaderOnly, &["rw"], true, &[]),
            (Mode::SingleNodeReaderOnly, &[], true, &[]),
            (Mode::MultiNodeMultiWriter, &["noatime", "ro", "sync"], true, &["noatime", "sync"]),
        ] {
            let parsed = Capability::parse(Some(&mounted(mode, flags))).unwrap();
            assert_eq!(
                (parsed.is_read_only(), parsed.mount_flags.as_slice()),
                (read_only, &rest.iter().map(|&flag| flag.to_owned()).collect::<Vec<_>>()[..])
            );
        }
    }

    #[test]
    fn what_flexvolume_lacks_is_refused() {
        let block = VolumeCapability {
            access_type: Some(AccessType::Block(BlockVolume {})),
            ..mounted(Mode::SingleNodeWriter, &[])
        };
        let no_type = VolumeCapability { access_type: None, ..mounted(Mode::SingleNodeWriter, &[]) };
        let odd =
            VolumeCapability { access_mode: Some(AccessMode { mode: 99 }), ..mounted(Mode::Unknown, &[]) };
        for capability in
            [block, no_type, odd, mounted(Mode::Unknown, &[]), mounted(Mode::SingleNodeWriter, &[""])]
        {
            assert!(Capability::parse(Some(&capability)).is_err(), "{capability:?}");
        }
        assert!(Capability::parse(None).is_err());
        for text in ["x", "-1", "+1", "4294967295", "1 "] {
            assert!(group(text).is_err(), "{text}");
        }
        assert_eq!(group("1000").unwrap().unwrap().gid, 1000);
    }
}

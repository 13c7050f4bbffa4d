//! Volume capability that a PersistentVolume requests of its CSI driver, as kubelet and upstream's
//! sidecars request it.

use super::volumes::PersistentVolumeSpec;
use crate::wire::csi::VolumeCapability;
use crate::wire::csi::volume_capability::access_mode::Mode;
use crate::wire::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use std::collections::BTreeSet;

/// Returns the capability that a volume's specification requests.
///
/// # Errors
///
/// Fails if CSI has no access mode for this combination of modes.
pub fn of_volume(
    spec: &PersistentVolumeSpec,
    single_node_multi_writer: bool,
) -> Result<VolumeCapability, String> {
    let source = spec.csi.as_ref();
    let access_type = match spec.volume_mode.as_deref() {
        Some("Block") => AccessType::Block(BlockVolume {}),
        _ => AccessType::Mount(MountVolume {
            fs_type: source.and_then(|csi| csi.fs_type.clone()).unwrap_or_default(),
            mount_flags: spec.mount_options.clone().unwrap_or_default(),
            ..MountVolume::default()
        }),
    };
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let mode = mode(modes, single_node_multi_writer)? as i32;
    Ok(VolumeCapability { access_mode: Some(AccessMode { mode }), access_type: Some(access_type) })
}

/// Sets the file system of a volume that names none.
pub fn by_default(capability: &mut VolumeCapability, fs_type: &str) {
    if let Some(AccessType::Mount(mount)) = &mut capability.access_type
        && mount.fs_type.is_empty()
    {
        fs_type.clone_into(&mut mount.fs_type);
    }
}

fn mode(modes: &[String], single_node_multi_writer: bool) -> Result<Mode, String> {
    let modes: BTreeSet<&str> = modes.iter().map(String::as_str).collect();
    let has = |mode| modes.contains(mode);
    let (one_pod, one_node) = if single_node_multi_writer {
        (Mode::SingleNodeSingleWriter, Mode::SingleNodeMultiWriter)
    } else {
        (Mode::SingleNodeWriter, Mode::SingleNodeWriter)
    };
    if has("ReadWriteOncePod") {
        return match modes.len() {
            1 => Ok(one_pod),
            _ => Err("ReadWriteOncePod goes with no other access mode: leave one".to_owned()),
        };
    }
    match (has("ReadWriteMany"), has("ReadOnlyMany"), has("ReadWriteOnce")) {
        (true, ..) => Ok(Mode::MultiNodeMultiWriter),
        (false, true, true) => {
            Err("CSI has no ReadOnlyMany and ReadWriteOnce on one PersistentVolume: leave one".to_owned())
        }
        (false, true, false) => Ok(Mode::MultiNodeReaderOnly),
        (false, false, true) => Ok(one_node),
        (false, false, false) => Err("the PersistentVolume has no access mode that CSI knows".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers every set of access modes, with and without the capability.
    /// The expected results are those of upstream's library (csi-lib-utils, `accessmodes`).
    #[test]
    fn every_set_of_modes() {
        for (modes, plain, capable) in [
            ("ReadWriteOnce", Some(Mode::SingleNodeWriter), Some(Mode::SingleNodeMultiWriter)),
            ("ReadWriteOncePod", Some(Mode::SingleNodeWriter), Some(Mode::SingleNodeSingleWriter)),
            ("ReadOnlyMany", Some(Mode::MultiNodeReaderOnly), Some(Mode::MultiNodeReaderOnly)),
            ("ReadWriteMany", Some(Mode::MultiNodeMultiWriter), Some(Mode::MultiNodeMultiWriter)),
            (
                "ReadWriteMany ReadOnlyMany",
                Some(Mode::MultiNodeMultiWriter),
                Some(Mode::MultiNodeMultiWriter),
            ),
            (
                "ReadWriteMany ReadWriteOnce",
                Some(Mode::MultiNodeMultiWriter),
                Some(Mode::MultiNodeMultiWriter),
            ),
            ("ReadWriteOnce ReadWriteOnce", Some(Mode::SingleNodeWriter), Some(Mode::SingleNodeMultiWriter)),
            ("ReadOnlyMany ReadWriteOnce", None, None),
            ("ReadWriteOncePod ReadWriteOnce", None, None),
            ("ReadWriteOncePod ReadWriteMany", None, None),
            ("", None, None),
            ("Whatever", None, None),
        ] {
            let modes: Vec<String> = modes.split_whitespace().map(str::to_owned).collect();
            assert_eq!(mode(&modes, false).ok(), plain, "{modes:?}");
            assert_eq!(mode(&modes, true).ok(), capable, "{modes:?}");
        }
    }

    #[test]
    fn a_block_volume_has_neither_file_system_nor_flags() {
        let spec = PersistentVolumeSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            volume_mode: Some("Block".to_owned()),
            mount_options: Some(vec!["noatime".to_owned()]),
            ..PersistentVolumeSpec::default()
        };
        let capability = of_volume(&spec, false).unwrap();
        assert_eq!(capability.access_type, Some(AccessType::Block(BlockVolume {})));
    }
}

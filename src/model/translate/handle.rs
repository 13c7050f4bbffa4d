//! Handles of translated volumes. Each is one volume's: kubelet keys what it stages by the handle
//! alone, so that two volumes of one share, with other credentials, must not have the same.
//!
//! What drivers read in a handle when they delete: csi-driver-nfs wants `server#share#directory` or
//! `server/base/directory`, csi-driver-smb `server/share#directory`, blob-csi-driver
//! `group#account#container`, Ceph CSI hexadecimal fields of its own. Here are no `#` and no `/`,
//! and an own name that is one of Ceph CSI's is refused.

use crate::csi::name::hash;

/// What begins every handle that is made.
const MADE: &str = "flexmig-";
/// CSI's limit is 128 bytes.
const NAME_LIMIT: usize = 100;

/// The handle of a PersistentVolume. No name of one has `~` in it: what is hashed stays apart.
pub fn of_volume(name: &str) -> String {
    if name.len() <= NAME_LIMIT {
        format!("{MADE}{name}")
    } else {
        format!("{MADE}~{}", hash(name.as_bytes()))
    }
}

/// Whether a storage's own name may be a handle: no path to anybody, and none that Ceph CSI would
/// take for a volume of its own making.
pub fn is_safe(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let edge = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    edge && name.len() <= 128 && name.bytes().all(plain) && !name.contains("..") && !is_composed(name)
}

/// `0001-0024-<cluster>-<16 digits of the pool>-<UUID>`: version, length of the cluster's id, and so
/// on.
fn is_composed(name: &str) -> bool {
    let digits =
        |part: &str, length: usize| part.len() == length && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut parts = name.split('-');
    let starts =
        parts.next().is_some_and(|part| digits(part, 4)) && parts.next().is_some_and(|part| digits(part, 4));
    starts || name.starts_with("mig_mons-") || name.starts_with("mig_mons_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_short_plain_and_one_volume_s() {
        let long = |last: char| of_volume(&format!("{}{last}", "x".repeat(252)));
        assert_eq!(of_volume("pv-1"), "flexmig-pv-1");
        assert_ne!(long('a'), long('b'));
        // A volume may have the name of another one's hash.
        assert_ne!(long('a'), of_volume(long('a').trim_start_matches("flexmig-")).replace("~~", "~"));
        for handle in [long('a'), of_volume("a.b"), of_volume(&"x".repeat(100))] {
            assert!(handle.len() <= 128 && !handle.contains(['#', '/']), "{handle}");
        }
    }

    #[test]
    fn an_own_name_is_no_path_and_no_volume_of_a_provisioner() {
        for name in ["pvc-5a2d1b", "ocid1.volume.oc1.phx.abc", "d-bp1j17ifxfasvts3tf40", "r0"] {
            assert!(is_safe(name), "{name}");
        }
        let made = "0001-0009-rook-ceph-0000000000000001-b0285c97-a0ce-11eb-8c66-0242ac110002";
        for name in [
            "",
            "a/b",
            "a#b",
            "-rf",
            "..",
            "a..b",
            ".a",
            "ä",
            "a b",
            made,
            "mig_mons-0_image-1_70",
            &"x".repeat(129),
        ] {
            assert!(!is_safe(name), "{name}");
        }
    }
}

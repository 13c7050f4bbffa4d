//! Handle of a volume. It contains FlexVolume's name of the volume, so detach and validation need
//! no stored state. Pure.
//!
//! | handle | volume | its name for the driver |
//! |---|---|---|
//! | `fx1#<PV name>` | a PersistentVolume | the PV's name |
//! | `fx1~<sha256>` | a PersistentVolume whose name is invalid or too long | `fx1-<sha256>` |
//! | `csi-<sha256>` | inline in a pod; kubelet generates the handle | its name in the pod |

use super::name::hash;

/// CSI's limit for a volume id.
pub const LIMIT: usize = 128;
const NAMED: &str = "fx1#";
const HASHED: &str = "fx1~";
const INLINE: &str = "csi-";
/// Hexadecimal digits of a SHA-256 hash.
const DIGITS: usize = 64;

/// Meaning of a volume id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handle {
    /// A PersistentVolume, with FlexVolume's name for it.
    Persistent(String),
    /// An inline volume of a pod.
    Inline,
}

/// Returns the handle for a name.
pub fn of_name(name: &str) -> String {
    if is_plain(name) && NAMED.len() + name.len() <= LIMIT {
        format!("{NAMED}{name}")
    } else {
        format!("{HASHED}{}", hash(name.as_bytes()))
    }
}

/// Returns the handle of a volume for another vendor's driver. Such drivers put servers, shares and
/// directories into their handles, separated by `#` and `/`, and delete what they read there. So
/// this handle contains neither sign. No two volumes share it, because kubelet mounts once per
/// handle, no matter how else two volumes differ.
pub fn of_foreign(name: &str) -> String {
    // No name of a volume contains a tilde.
    if name.len() <= 100 { format!("flexmig-{name}") } else { format!("flexmig-~{}", hash(name.as_bytes())) }
}

impl Handle {
    /// Parses a handle. `None` if it is not one of ours: there is no such volume.
    pub fn parse(id: &str) -> Option<Self> {
        let digits = |rest: &&str| {
            rest.len() == DIGITS && rest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        if let Some(name) = id.strip_prefix(NAMED) {
            return (id.len() <= LIMIT && is_plain(name)).then(|| Self::Persistent(name.to_owned()));
        }
        if let Some(hash) = id.strip_prefix(HASHED).filter(digits) {
            return Some(Self::Persistent(format!("fx1-{hash}")));
        }
        id.strip_prefix(INLINE).filter(digits).map(|_| Self::Inline)
    }
}

/// Reports whether this is a valid name of a PersistentVolume. Drivers build paths from it, and
/// some validate it.
fn is_plain(name: &str) -> bool {
    let edge =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let inner = |byte: u8| edge(Some(&byte)) || byte == b'-' || byte == b'.';
    let bytes = name.as_bytes();
    edge(bytes.first()) && edge(bytes.last()) && name.bytes().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(id: &str) -> String {
        match Handle::parse(id) {
            Some(Handle::Persistent(name)) => name,
            other => panic!("{id}: {other:?}"),
        }
    }

    #[test]
    fn a_name_is_read_back() {
        for name in ["pv-1", "pvc-0b5a0f2e-1111-4222-8333-444455556666", "a.b", "7"] {
            assert_eq!(name_of(&of_name(name)), name);
        }
        assert!(of_name(&"x".repeat(124)).starts_with(NAMED));
    }

    #[test]
    fn what_kubernetes_would_not_take_is_hashed_and_stays_apart() {
        let long = "x".repeat(125);
        let names = [&*long, "a/b", "../x", "-rf", "a b", "ä", "a\0b", "", "Upper", ".", "a."];
        let mut seen: Vec<_> = names.iter().map(|name| name_of(&of_name(name))).collect();
        for name in &seen {
            assert!(is_plain(name) && of_name(name).len() <= LIMIT, "{name}");
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), names.len());
    }

    #[test]
    fn a_foreign_handle_is_no_path_and_one_volume_s() {
        let long = |last: char| of_foreign(&format!("{}{last}", "x".repeat(252)));
        assert_eq!(of_foreign("pv-1"), "flexmig-pv-1");
        assert!(long('a') != long('b') && long('a') != of_foreign(&hash("x".repeat(253).as_bytes())));
        for handle in [long('a'), of_foreign("a.b"), of_foreign(&"x".repeat(100))] {
            assert!(handle.len() <= 128 && !handle.contains(['#', '/']), "{handle}");
            assert_eq!(Handle::parse(&handle), None);
        }
    }

    #[test]
    fn what_is_not_ours_is_nothing() {
        let short = format!("csi-{}", "a".repeat(63));
        let upper = format!("csi-{}", "A".repeat(64));
        let long = format!("fx1#{}", "a".repeat(125));
        for id in
            ["", "fx1#", "fx1#../x", "fx1#a/b", "fx1#-a", "fx1#A", "fx2#a", "vol-1", &short, &upper, &long]
        {
            assert_eq!(Handle::parse(id), None, "{id}");
        }
        assert_eq!(Handle::parse(&format!("csi-{}", "a".repeat(64))), Some(Handle::Inline));
    }
}

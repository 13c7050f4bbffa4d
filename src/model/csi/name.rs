//! CSI names of drivers. Pure.

use flexvol_protocol::DriverName;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::text::hex;
use sha2::{Digest as _, Sha256};

/// Suffix of the CSI name of every driver that is served here.
const SUFFIX: &str = ".flex.flexvol.dev";
/// The longest name that CSI allows.
const LIMIT: usize = 63;
/// Hexadecimal digits of the hash that makes long names distinct.
const HASH: usize = 8;

/// Returns `<driver>.<vendor>.flex.flexvol.dev`, in the characters that Kubernetes allows.
pub fn of_driver(name: &DriverName) -> String {
    let vendor = name.vendor().map(|vendor| format!(".{vendor}")).unwrap_or_default();
    let stem = labels(&format!("{}{vendor}", name.driver()));
    let room = LIMIT - SUFFIX.len();
    let stem = if stem.len() <= room {
        stem
    } else {
        let kept = stem[..room - HASH - 1].trim_end_matches(['.', '-']);
        format!("{kept}-{}", &hash(name.to_string().as_bytes())[..HASH])
    };
    stem + SUFFIX
}

/// Reduces a text to letters, digits and inner hyphens between dots. The name starts with a letter,
/// because csi-sanity requires it.
fn labels(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { '-' };
    let text: String = text.chars().map(plain).collect();
    let labels: Vec<_> =
        text.split('.').map(|label| label.trim_matches('-')).filter(|label| !label.is_empty()).collect();
    let name = labels.join(".");
    if name.starts_with(|c: char| c.is_ascii_lowercase()) { name } else { format!("d{name}") }
}

/// Fails if CSI or Kubernetes does not allow an admin's own name.
pub fn check(name: &str) -> Result<()> {
    let letter = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase());
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let label = |label: &str| {
        !label.is_empty() && !label.starts_with('-') && !label.ends_with('-') && label.bytes().all(inner)
    };
    let ends = letter(name.chars().next()) && letter(name.chars().next_back());
    if (2..=LIMIT).contains(&name.len()) && ends && name.split('.').all(label) {
        return Ok(());
    }
    let fix = "write 2 to 63 lower-case letters, digits, '-' and '.', a letter first and last";
    Err(Failure::options(format!("CSI driver name {name:?} is not valid: {fix}")))
}

/// Returns the SHA-256 hash in hexadecimal digits.
pub fn hash(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> String {
        let name = of_driver(&DriverName::parse(name).unwrap());
        assert_eq!(check(&name), Ok(()));
        name
    }

    #[test]
    fn every_driver_has_a_valid_name() {
        assert_eq!(named("flexvol/tmpfs"), "tmpfs.flexvol.flex.flexvol.dev");
        assert_eq!(named("ceph.rook.io/rook"), "rook.ceph.rook.io.flex.flexvol.dev");
        assert_eq!(named("k8s/My_Driver.v2"), "my-driver.v2.k8s.flex.flexvol.dev");
        assert_eq!(named("cifs"), "cifs.flex.flexvol.dev");
        assert_eq!(named("9p"), "d9p.flex.flexvol.dev");
        assert_eq!(named("v/a_.b"), "a.b.v.flex.flexvol.dev");
    }

    #[test]
    fn long_names_stay_apart() {
        let long = |last: char| named(&format!("{}.example.com/{}{last}", "v".repeat(60), "d".repeat(50)));
        let (one, other) = (long('a'), long('b'));
        assert!(one != other && one.len() == LIMIT, "{one}");
    }

    #[test]
    fn what_kubernetes_refuses_is_refused() {
        for name in ["", "a", "A.b", "a..b", "a-.b", "1a.b", "a.b1", "a_b", "a/b", &"a".repeat(64)] {
            assert!(check(name).is_err(), "{name}");
        }
    }
}

//! Common parts of the Ceph drivers: the monitors, the protocol, the user's key.

use super::share::Address;
use crate::plan::{Cluster, Monitor};
use crate::schema::{OptionValue, SecretSpec};
use crate::server;

/// Ports of a monitor for the first version of the protocol, and for the second.
const PORTS: (u16, u16) = (6789, 3300);

/// Key of the Secret that holds the Ceph user's key.
pub(super) const KEY: SecretSpec = SecretSpec {
    keys: &["key", "userKey", "adminKey", "mountSecret"],
    doc: "the user's key, as ceph auth get-key prints it",
    example: true,
};

/// Error message if the user's key is missing.
pub(super) const NO_KEY: &str = "secret lacks \"key\": add what ceph auth get-key prints";

/// Monitors of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Monitors(pub(super) Vec<(String, Option<u16>)>);

impl OptionValue for Monitors {
    const KIND: &'static str = "comma list of monitors";

    /// Parses a list. A JSON array of strings is a list as well: volumes of other kinds have such
    /// options.
    fn parse(text: &str) -> Result<Self, String> {
        let bare: String = text.chars().filter(|c| *c != '"').collect();
        let bare =
            bare.strip_prefix('[').and_then(|text| text.strip_suffix(']')).filter(|_| text.contains('"'));
        let monitors = bare.unwrap_or(text).split(',').map(str::trim).filter(|text| !text.is_empty());
        let monitors: Vec<_> = monitors.map(server::host_and_port).collect::<Result<_, _>>()?;
        if monitors.is_empty() { Err("names no monitor".to_owned()) } else { Ok(Self(monitors)) }
    }
}

/// Version of the protocol, as in the kernel's option `ms_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(pub(super) &'static str);

impl OptionValue for Mode {
    const KIND: &'static str = "legacy, crc, secure, prefer-crc or prefer-secure";

    fn parse(text: &str) -> Result<Self, String> {
        let known =
            ["legacy", "crc", "secure", "prefer-crc", "prefer-secure"].into_iter().find(|word| *word == text);
        known.map(Self).ok_or_else(|| format!("{text:?} is not {}", Self::KIND))
    }
}

/// Name in a cluster that cannot split a word or begin another, wherever it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(pub String);

impl OptionValue for Name {
    const KIND: &'static str = "name";

    fn parse(text: &str) -> Result<Self, String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
        if text.len() <= 96 && !text.starts_with('-') && text.chars().all(plain) {
            return Ok(Self(text.to_owned()));
        }
        Err(format!("{text:?} must consist of at most 96 letters, digits and ._-+, and not begin with -"))
    }
}

/// Returns how the kernel finds the cluster, and the version of the protocol that it uses there.
///
/// The kernel uses one version with all monitors. If `mode` does not set it, it is the second
/// version only if every monitor is given with the port of that version, because kernels before
/// 5.11 do not know it.
pub(super) fn cluster(
    Monitors(monitors): &Monitors,
    mode: Option<Mode>,
    nameserver: Option<Address>,
    patience: u32,
) -> (Cluster, Option<&'static str>) {
    let (first, second) = PORTS;
    let all_second = monitors.iter().all(|(_, port)| *port == Some(second));
    let mode = mode.map(|mode| mode.0).or(all_second.then_some("prefer-crc"));
    let (usual, other) = if mode.is_some_and(|mode| mode != "legacy") { (second, first) } else { PORTS };
    let all: Vec<_> = monitors
        .iter()
        .map(|(host, port)| Monitor { host: host.clone(), port: port.unwrap_or(usual) })
        .collect();
    let suited: Vec<_> = all.iter().filter(|monitor| monitor.port != other).cloned().collect();
    let monitors = if suited.is_empty() { all } else { suited };
    (Cluster { monitors, nameserver: nameserver.map(|address| address.0), patience }, mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monitors_are_a_list_of_either_kind() {
        let hosts = |text| Monitors::parse(text).map(|monitors| monitors.0);
        let one = ("10.0.0.1".to_owned(), Some(6789));
        assert_eq!(hosts("10.0.0.1:6789, b").unwrap(), [one.clone(), ("b".into(), None)]);
        assert_eq!(hosts(r#"["10.0.0.1:6789","b"]"#).unwrap(), [one, ("b".into(), None)]);
        assert_eq!(
            hosts("[::1]:3300,fe80::1").unwrap(),
            [("[::1]".into(), Some(3300)), ("[fe80::1]".into(), None)]
        );
        for text in ["", ",", "a b", "-a", "a:0", "a\nb", "a;b", "[\"a"] {
            assert!(hosts(text).is_err(), "{text}");
        }
    }

    #[test]
    fn one_version_is_spoken_with_all_monitors() {
        let cluster = |text, mode: Option<&str>| {
            let mode = mode.map(|mode| Mode::parse(mode).unwrap());
            let (cluster, mode) = cluster(&Monitors::parse(text).unwrap(), mode, None, 5);
            let monitors: Vec<_> = cluster.monitors.iter().map(ToString::to_string).collect();
            (monitors.join(" "), mode.unwrap_or_default())
        };
        assert_eq!(cluster("a,[::1],b:7", None), ("a:6789 [::1]:6789 b:7".into(), ""));
        assert_eq!(cluster("a:3300,b:3300", None), ("a:3300 b:3300".into(), "prefer-crc"));
        assert_eq!(cluster("a:3300,a:6789", None), ("a:6789".into(), ""));
        assert_eq!(cluster("a:3300,a:6789,b", Some("secure")), ("a:3300 b:3300".into(), "secure"));
        assert_eq!(cluster("a:3300", Some("legacy")), ("a:3300".into(), "legacy"));
    }

    #[test]
    fn a_name_is_one_word() {
        for text in ["a b", "a,b", "a/b", "a@b", "-a", "a\nb", "a=b", "é", &"a".repeat(97)] {
            assert!(Name::parse(text).is_err(), "{text:?}");
        }
        assert_eq!(Name::parse("k8s.rbd-pool_1").unwrap().0, "k8s.rbd-pool_1");
    }
}

//! `iscsi`: the file system on a logical unit of an iSCSI target, through the kernel's client and
//! open-iscsi.
//!
//! The options have the names of Kubernetes' own iscsi volumes. iscsid must run on the node; its
//! database is not changed.

use super::block::{self, Block, BlockKind, Volume, block_options};
use super::nbd::Seconds;
use crate::driver::{Needs, Request};
use crate::plan::{Iscsi, Portal, Store};
use crate::schema::{OptionSpec, OptionValue, SecretSpec};
use crate::server;
use flexvol_protocol::failure::{Failure, Result};

/// The driver.
pub type IscsiDriver = Block<IscsiKind>;

/// Kind of block device: a logical unit of an iSCSI target.
pub struct IscsiKind;

block_options! {
    /// Options of a PV.
    pub struct IscsiOptions {
        /// Portal of the target: name or address, and the port unless that is 3260.
        target_portal: Portals = "targetPortal" { aliases: ["portal"], example: "10.0.0.7:3260" },
        /// Further portals of the same target: a comma list, or a list in JSON.
        portals: Option<Portals> = "portals" {},
        /// The target's name.
        iqn: TargetName = "iqn" { aliases: ["targetIQN"], example: "iqn.2020-01.com.example:web" },
        /// Number of the logical unit.
        lun: Lun = "lun" { default: "0" },
        /// Ask the portal for further portals of the target.
        discovery: bool = "discovery" { default: "false" },
        /// The interface of the node's database (iscsiadm -m iface) whose settings are used.
        interface: InterfaceName = "iscsiInterface" { default: "default" },
        /// Name of the initiator, instead of the node's own.
        initiator_name: Option<TargetName> = "initiatorName" {},
        /// Log in with the Secret's `discovery.sendtargets.auth.username` and `…password` to ask
        /// for portals; no effect without `discovery`.
        chap_auth_discovery: bool = "chapAuthDiscovery" { default: "false" },
        /// Log in with the Secret's `node.session.auth.username` and `…password`.
        chap_auth_session: bool = "chapAuthSession" { default: "false" },
        /// Seconds to wait for a portal to accept a connection.
        connect_timeout: Seconds = "connectTimeout" { default: "5" },
        /// Seconds without the target after which reads and writes fail.
        timeout: Seconds = "timeout" { default: "30" },
    }
}

/// Portals at which a target listens.
#[derive(Clone, Debug)]
pub struct Portals(Vec<Portal>);

impl OptionValue for Portals {
    const KIND: &'static str = "list of portals";

    fn parse(text: &str) -> Result<Self, String> {
        let listed: Vec<String> = if text.starts_with('[') && !text.starts_with("[[") && text.contains('"') {
            serde_json::from_str(text).map_err(|error| format!("it is no list in JSON: {error}"))?
        } else {
            text.split(',').map(|word| word.trim().to_owned()).collect()
        };
        let portals = listed.iter().filter(|word| !word.is_empty()).map(|word| portal(word));
        let portals = portals.collect::<Result<Vec<_>, _>>()?;
        if portals.is_empty() { Err("names no portal".to_owned()) } else { Ok(Self(portals)) }
    }
}

/// Parses `host`, `host:port` or `[address]:port`.
fn portal(text: &str) -> Result<Portal, String> {
    let wrong = || format!("{text:?} is not a portal such as 10.0.0.7:3260");
    let (server, port) = server::host_and_port(text).map_err(|_| wrong())?;
    Ok(Portal { server, port: port.unwrap_or(3260) })
}

/// Name of a target or initiator (RFC 3720, 3.2.6.3).
#[derive(Clone, Debug)]
pub struct TargetName(String);

impl OptionValue for TargetName {
    const KIND: &'static str = "iqn., eui. or naa. name";

    fn parse(text: &str) -> Result<Self, String> {
        // Accepts what Kubernetes accepts and iscsiadm can use as a directory name: upper case too,
        // because many NAS devices have such names.
        let is_plain = |rest: &str| {
            let plain = |c: char| c.is_alphanumeric() || c.is_ascii_graphic() && !",;*&$|/\\".contains(c);
            rest.chars().all(plain) && !rest.contains("..")
        };
        let is_hex = |rest: &str, lengths: &[usize]| {
            lengths.contains(&rest.len()) && rest.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let is_dated = |rest: &str| {
            let digits = |range: std::ops::Range<usize>| {
                rest.get(range).is_some_and(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
            };
            digits(0..4) && rest.get(4..5) == Some("-") && digits(5..7) && rest.get(7..8) == Some(".")
        };
        let is_name = match text.split_at_checked(4) {
            Some(("iqn.", rest)) => text.len() <= 223 && is_dated(rest) && is_plain(rest),
            Some(("eui.", rest)) => is_hex(rest, &[16]),
            Some(("naa.", rest)) => is_hex(rest, &[16, 32]),
            _ => false,
        };
        if is_name {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!("{text:?} is not a name such as iqn.2020-01.com.example:web"))
        }
    }
}

/// Number of a logical unit.
#[derive(Clone, Copy, Debug)]
pub struct Lun(u16);

impl OptionValue for Lun {
    const KIND: &'static str = "number";

    fn parse(text: &str) -> Result<Self, String> {
        let number = text.parse().ok().filter(|number| *number < 16384 && !text.starts_with('+'));
        number.map(Self).ok_or_else(|| format!("{text:?} is not a number below 16384"))
    }
}

/// Name of an interface in open-iscsi's database, which is also the name of a file.
#[derive(Clone, Debug)]
pub struct InterfaceName(String);

impl OptionValue for InterfaceName {
    const KIND: &'static str = "name";

    fn parse(text: &str) -> Result<Self, String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
        if text.len() <= 64 && !text.starts_with(['-', '.']) && text.chars().all(plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!("{text:?} is not the name of an interface"))
        }
    }
}

/// Describes a key of the Secret; the key is the iscsid.conf setting that its value belongs to.
const fn key(keys: &'static [&'static str], doc: &'static str) -> SecretSpec {
    SecretSpec { keys, doc, example: false }
}

const SESSION: [SecretSpec; 2] = [
    key(&["node.session.auth.username"], "user name for the target, with chapAuthSession"),
    key(&["node.session.auth.password"], "its password"),
];
const SESSION_IN: [SecretSpec; 2] = [
    key(&["node.session.auth.username_in"], "user name of the target, for mutual CHAP"),
    key(&["node.session.auth.password_in"], "its password"),
];
const DISCOVERY: [SecretSpec; 2] = [
    key(&["discovery.sendtargets.auth.username"], "user name for discovery, with chapAuthDiscovery"),
    key(&["discovery.sendtargets.auth.password"], "its password"),
];
const DISCOVERY_IN: [SecretSpec; 2] = [
    key(&["discovery.sendtargets.auth.username_in"], "user name of the portal, for mutual CHAP"),
    key(&["discovery.sendtargets.auth.password_in"], "its password"),
];

impl BlockKind for IscsiKind {
    const NAME: &'static str = "iscsi";
    const SUMMARY: &'static str = "a file system on a logical unit of an iSCSI target";
    const OPTIONS: &'static [OptionSpec] = IscsiOptions::SPECS;
    const SECRETS: &'static [SecretSpec] = &{
        let [a, b] = SESSION;
        let [c, d] = SESSION_IN;
        let [e, f] = DISCOVERY;
        let [g, h] = DISCOVERY_IN;
        [a, b, c, d, e, f, g, h, block::PASSPHRASE]
    };
    const PROGRAMS: &'static [&'static str] = &["iscsiadm"];
    const NEEDS: Needs = Needs { module: Some("iscsi_tcp"), programs: &["iscsiadm"], ..Needs::NOTHING };

    fn volume(request: &Request<'_>) -> Result<Volume> {
        let options = IscsiOptions::parse(&request.options.own)?;
        let further = options.portals.iter().flat_map(|list| &list.0);
        let portals = options.target_portal.0.iter().chain(further).cloned();
        let portals = portals.fold(Vec::new(), |mut all, portal| {
            if !all.contains(&portal) {
                all.push(portal);
            }
            all
        });
        let store = Store::Iscsi(Iscsi {
            target: options.iqn.0.clone(),
            lun: options.lun.0,
            portals,
            discovery: options.discovery,
            initiator: options.initiator_name.as_ref().map(|name| name.0.clone()),
            interface: Some(options.interface.0.clone()).filter(|name| name != "default"),
            patience: options.connect_timeout.0,
            timeout: options.timeout.0,
        });
        let mut volume = Volume::new(store, &options.said(), request.options)?;
        if options.chap_auth_session {
            let lacking = "option \"chapAuthSession\" needs a Secret with node.session.auth.username and node.session.auth.password: name it in secretRef";
            volume = with(volume, (&SESSION, &SESSION_IN), lacking, request)?;
        }
        if options.chap_auth_discovery && options.discovery {
            let lacking = "option \"chapAuthDiscovery\" needs a Secret with discovery.sendtargets.auth.username and discovery.sendtargets.auth.password: name it in secretRef";
            volume = with(volume, (&DISCOVERY, &DISCOVERY_IN), lacking, request)?;
        }
        Ok(volume)
    }
}

/// Adds a name and a password, and those of the other side if the Secret has them.
fn with(
    volume: Volume,
    (ours, theirs): (&'static [SecretSpec; 2], &'static [SecretSpec; 2]),
    lacking: &'static str,
    request: &Request<'_>,
) -> Result<Volume> {
    let volume = ours.iter().try_fold(volume, |volume, spec| {
        volume.with_secret((spec.keys[0], spec), lacking, request.options)
    })?;
    let volume = theirs.iter().try_fold(volume, |volume, spec| {
        volume.with_optional_secret((spec.keys[0], spec), request.options)
    })?;
    match ours.iter().chain(theirs).find(|spec| !fits(request, spec.keys[0])) {
        Some(spec) => Err(Failure::options(format!(
            "secret key {:?} must not begin or end with a space, or have more than 255 bytes: iscsid cannot read it",
            spec.keys[0]
        ))),
        None => Ok(volume),
    }
}

/// Reports whether iscsid reads the value of a setting back unchanged.
fn fits(request: &Request<'_>, key: &str) -> bool {
    request.options.secrets.get(key).is_none_or(|secret| {
        let line = secret.line();
        let line = line.expose();
        line.trim_ascii().len() == line.len() && line.len() <= 255
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portals_are_hosts_with_ports() {
        let parse = |text| {
            Portals::parse(text)
                .map(|Portals(all)| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(parse("10.0.0.7").unwrap(), "10.0.0.7:3260");
        assert_eq!(parse("a.b:3261, [fd00::7]:1,fd00::7").unwrap(), "a.b:3261 [fd00::7]:1 [fd00::7]:3260");
        assert_eq!(parse(r#"["10.0.0.7:3260","b"]"#).unwrap(), "10.0.0.7:3260 b:3260");
        for text in ["", ",", "a:", "a:0", "a:65536", "a:+1", "-a", "a b", "a/b", "[]", r#"["a\nb"]"#, "[1]"]
        {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn names_are_those_of_the_standard() {
        for name in [
            "iqn.2020-01.com.example:web_1",
            "iqn.2000-01.com.synology:DiskStation.Target-1.1e0c0c7d6c",
            "iqn.2020-01.com.example:a#b=c%(d)@e",
            "eui.02004567A425678D",
            "naa.52004567BA64678D",
        ] {
            assert_eq!(TargetName::parse(name).unwrap().0, name, "unchanged");
        }
        for name in [
            "",
            "iqn.",
            "iqn.2020-1.a",
            "iqn.2020-01.a/../b",
            "iqn.2020-01.a..b",
            "iqn.2020-01.a b",
            "iqn.2020-01.a:b/c",
            "iqn.2020-01.a:b,c",
            "iqn.2020-01.a:b\u{202e}",
            "iqn.2020-01.a\nnode.name = x",
            "eui.02004567A425678",
            "naa.xx004567BA64678D",
            "web",
        ] {
            assert!(TargetName::parse(name).is_err(), "{name:?}");
        }
        assert!(Lun::parse("16383").is_ok() && Lun::parse("16384").is_err() && Lun::parse("-1").is_err());
        assert!(InterfaceName::parse("eth0:x").is_ok() && InterfaceName::parse("../x").is_err());
    }
}

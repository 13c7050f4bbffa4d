//! Common parts of the drivers of network shares: options that name servers, secrets as text, and
//! the order of the steps.

use crate::plan::{DirectoryOnShare, Goal, Ownership, Plan, Reach, Share, Step, View};
use crate::schema::OptionValue;
use crate::server;
use core::net::IpAddr;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::mount_options::MountFlags;
use flexvol_protocol::secret::Secret;
use flexvol_protocol::{Options, TargetPath};
use std::path::{Component, Path, PathBuf};

/// Names or addresses of servers, the preferred one first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Servers(pub Vec<String>);

impl OptionValue for Servers {
    const KIND: &'static str = "comma list of servers";

    fn parse(text: &str) -> Result<Self, String> {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        let names: Vec<_> = names.map(server::host).collect::<Result<_, _>>()?;
        if names.is_empty() { Err("names no server".to_owned()) } else { Ok(Self(names)) }
    }
}

/// Address of a nameserver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub IpAddr);

impl OptionValue for Address {
    const KIND: &'static str = "IP address";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| format!("{text:?} is not an IP address"))
    }
}

/// TCP or UDP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port(pub u16);

impl OptionValue for Port {
    const KIND: &'static str = "port";

    fn parse(text: &str) -> Result<Self, String> {
        server::port(text).map(Self)
    }
}

/// Path below a directory of a server, of plain names only, so that it cannot lead out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubDirectory(pub PathBuf);

impl OptionValue for SubDirectory {
    const KIND: &'static str = "relative path";

    fn parse(text: &str) -> Result<Self, String> {
        let path = Path::new(text.trim_matches('/'));
        let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
        if plain && !path.as_os_str().is_empty() && !text.contains(['\0', '\n']) {
            Ok(Self(path.components().collect()))
        } else {
            Err(format!("{text:?} is not a path of plain names, without . and .."))
        }
    }
}

/// Returns the request to find the servers of a share.
pub(super) fn reach(servers: &Servers, port: u16, nameserver: Option<Address>, patience: u32) -> Reach {
    // The lookup removes the brackets of an IPv6 address.
    Reach { servers: servers.0.clone(), port, nameserver: nameserver.map(|address| address.0), patience }
}

/// Returns the plan of a share's mount: servers are found before anything is created, on the server
/// or on the node.
pub(super) fn mounted(target: &TargetPath, view: View, find: Step, made: Option<Step>, mount: Step) -> Plan {
    let prepare = Step::PrepareTarget { target: target.clone() };
    let steps = [Some(find), made, Some(prepare), Some(mount)];
    Plan {
        goal: Goal::Mounted { target: target.clone(), view },
        steps: steps.into_iter().flatten().collect(),
    }
}

/// Describes a directory to create in a share if it is missing.
pub(super) fn directory(share: Share, SubDirectory(path): &SubDirectory, mode: u32) -> DirectoryOnShare {
    let owner = Ownership { mode, uid: 0, gid: 0 };
    DirectoryOnShare { share: Share { flags: MountFlags::DEFAULT, ..share }, path: path.clone(), owner }
}

/// Returns the value of the first of these keys in the Secret, as [one line](one_line).
pub(super) fn secret_text(options: &Options, keys: &[&str]) -> Result<Option<Secret>> {
    let found = keys.iter().find_map(|key| Some((key, options.secrets.get(*key)?)));
    found.map(|(key, secret)| one_line(key, secret)).transpose()
}

/// Returns the only line of a secret, for programs and protocols that take a line of text. The line
/// break that `echo` leaves at its end is removed.
pub(super) fn one_line(key: &str, secret: &Secret) -> Result<Secret> {
    let line = secret.line();
    if line.expose().iter().any(|byte| b"\r\n\0".contains(byte)) {
        let text = format!("secret key {key:?} must be one line: take the line breaks out of it");
        return Err(Failure::options(text));
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_names_or_addresses() {
        let parse = |text| Servers::parse(text).map(|Servers(names)| names.join(" "));
        assert_eq!(
            parse("nas-1.example.com, 10.0.0.1,[fd00::7],::1"),
            Ok("nas-1.example.com 10.0.0.1 [fd00::7] [::1]".into())
        );
        for text in [",", "-o", "a b", "a/b", "a:b", "a@b", "a\nb", "nas,o=1", "[a]", "..", "ä"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn directories_below_a_share_stay_there() {
        let parse = |text| SubDirectory::parse(text).map(|SubDirectory(path)| path);
        assert_eq!(parse("/a//b/"), Ok("a/b".into()));
        for text in ["", "/", "..", "a/../b", "a/./../..", "a\nb", "a\0"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn ports_and_addresses_are_plain() {
        assert_eq!(Port::parse("2049"), Ok(Port(2049)));
        for text in ["0", "65536", "-1", "+1", "http", ""] {
            assert!(Port::parse(text).is_err(), "{text:?}");
        }
        assert!(Address::parse("10.0.0.10").is_ok() && Address::parse("dns").is_err());
    }

    #[test]
    fn a_secret_is_a_line_of_text() {
        let options = |bytes: &[u8]| Options {
            secrets: [("pass".to_owned(), Secret::new(bytes.to_vec()))].into(),
            ..Options::default()
        };
        let text = |bytes: &[u8]| {
            secret_text(&options(bytes), &["password", "pass"])
                .map(|secret| secret.unwrap().expose().to_vec())
        };
        assert_eq!(text(b" p,a\"s's $w!o\\rd \r\n").unwrap(), b" p,a\"s's $w!o\\rd ");
        assert_eq!(text(b"\n").unwrap(), b"");
        assert!(text(b"a\nb").unwrap_err().message().contains("secret key \"pass\""));
        assert!(secret_text(&Options::default(), &["password"]).unwrap().is_none());
    }
}

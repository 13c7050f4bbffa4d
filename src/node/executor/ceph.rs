//! Common parts of Ceph volumes on a node: a monitor that answers, and the user's key.

use super::context::Reached;
use super::network::allowed;
use crate::hints::to_failure;
use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flexvol_linux::net::network;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_model::plan::{Cluster, Monitor};
use flexvol_model::policy::Policy;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::secret::Secret;
use std::net::SocketAddr;
use std::time::Duration;

/// Size of a decoded key's header, in bytes: its type, its creation time, and the key's length.
const HEAD: usize = 12;

/// Returns the first monitor that answers; if none does, the error says what each of them did. The
/// name is the address and port: the kernel knows a monitor only by these, and learns the others
/// from it.
pub(super) fn reach(cluster: &Cluster, policy: &Policy, deadline: &Deadline) -> Result<Reached> {
    let mut failures: Vec<Failure> = Vec::new();
    for monitor in &cluster.monitors {
        match try_monitor(monitor, cluster, policy, deadline) {
            Ok(reached) => return Ok(reached),
            Err(error) => failures.push(to_failure(error.context(format!("monitor {monitor}")))),
        }
    }
    let code = failures.first().map_or(Code::BadOptions, Failure::code);
    let texts: Vec<_> = failures.iter().map(Failure::message).collect();
    // A denial by the policy already contains the fix.
    let fix = if failures.iter().all(|failure| failure.code() == Code::Denied) {
        ""
    } else {
        ": check that it runs, and the network and firewalls between it and this node"
    };
    Err(Failure::new(code, format!("{}{fix}", texts.join("; "))).into())
}

fn try_monitor(
    monitor: &Monitor,
    cluster: &Cluster,
    policy: &Policy,
    deadline: &Deadline,
) -> Result<Reached> {
    let mut last = None;
    let addresses = network::addresses(&monitor.host, cluster.nameserver, deadline)?;
    for address in allowed(policy, &monitor.host, addresses)? {
        deadline.check("about to connect to a monitor")?;
        let address = SocketAddr::new(address, monitor.port);
        let asked = match cluster.patience {
            0 => network::route_to(address),
            seconds => network::connect(address, Duration::from_secs(seconds.into())),
        };
        match asked {
            Ok(client) => return Ok(Reached::at(address, client)),
            Err(error) => last = Some(error.context(format!("({})", address.ip()))),
        }
    }
    Err(last.context("has no address")?)
}

/// Decodes a key that Ceph has printed into the form that the kernel takes.
pub(super) fn decode(key: &Secret) -> Result<Secret> {
    let malformed = || {
        let text =
            "the key is not what ceph auth get-key prints: store it again without quotes and without name";
        Failure::options(text)
    };
    let bytes = STANDARD.decode(key.expose().trim_ascii()).map(Secret::new).map_err(|_| malformed())?;
    let length = bytes
        .expose()
        .get(HEAD - 2..HEAD)
        .map_or(0, |length| usize::from(length[0]) + usize::from(length[1]) * 256);
    if length == 0 || bytes.expose().len() < HEAD + length {
        return Err(malformed().into());
    }
    Ok(bytes)
}

/// Returns a user's key in a keyring, a file with a section for each user.
pub(super) fn key_of(user: &str, keyring: &str) -> Option<Secret> {
    let head = format!("[client.{user}]");
    let of_user = keyring.lines().map(str::trim).skip_while(|line| *line != head).skip(1);
    let mut lines = of_user.take_while(|line| !line.starts_with('['));
    lines.find_map(|line| {
        let (name, key) = line.split_once('=')?;
        (name.trim() == "key").then(|| Secret::new(key.trim().as_bytes().to_vec()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "AQDdyAFrtLVyMBAAteRHc/aApPHJqfyNVOnkOA==";

    #[test]
    fn a_key_is_taken_whole_or_not_at_all() {
        let decoded = |text: &str| decode(&Secret::new(text.as_bytes().to_vec()));
        assert_eq!(decoded(KEY).unwrap().expose().len(), 28);
        for text in
            ["", "x", "AQDd", "hunter2!", "[client.admin]", "\"AQDdyAFrtLVyMBAAteRHc/aApPHJqfyNVOnkOA==\""]
        {
            let error = decoded(text).unwrap_err().to_string();
            assert!(
                error.contains("ceph auth get-key") && (text.is_empty() || !error.contains(text)),
                "{error}"
            );
        }
    }

    #[test]
    fn a_keyring_has_a_section_for_each_user() {
        let keyring = "# of the node\n[client.web]\n\tkey = a==\n\tcaps mon = \"allow r\"\n[client.admin]\ncaps mds=x\nkey=b\n";
        let key = |user| key_of(user, keyring).map(|key| key.expose().to_vec());
        assert_eq!(key("web"), Some(b"a==".to_vec()));
        assert_eq!(key("admin"), Some(b"b".to_vec()));
        assert_eq!(key("we"), None);
        assert!(key_of("a", "[client.a]\n[client.b]\nkey = c\n").is_none());
    }
}

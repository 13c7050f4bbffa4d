//! Servers of volumes that do not answer: does the name resolve, and does the server listen?

use super::{DoctorRequest, Finding};
use crate::inventory::{self, Volume};
use anyhow::Result;
use flexvol_linux::mount::mount_health::Vitals;
use flexvol_linux::net::network;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_model::diagnostics;
use flexvol_node::hints::to_failure;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// Deadline for a connection to a server.
const CONNECT_WAIT: Duration = Duration::from_secs(3);

/// Maximum number of servers to ask.
const MOST: usize = 6;

pub(super) fn look(request: &DoctorRequest) -> Result<Vec<Finding>> {
    let mut of: BTreeMap<(String, u16), Vec<String>> = BTreeMap::new();
    for volume in inventory::volumes(&request.kubelet_root, inventory::HEALTH_WAIT)? {
        let server = server(&volume).filter(|_| !matches!(volume.vitals, None | Some(Vitals::Alive(_))));
        if let Some(server) = server {
            of.entry(server).or_default().push(volume.name);
        }
    }
    Ok(of.iter().take(MOST).filter_map(|((name, port), volumes)| unreachable(name, *port, volumes)).collect())
}

/// Returns the server's name and its usual port, from the source in the mount table.
fn server(volume: &Volume) -> Option<(String, u16)> {
    let entry = volume.mount.as_ref()?;
    let source = entry.source.to_string_lossy().into_owned();
    let before_colon = || match source.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map(|(name, _)| name.to_owned()),
        None => source.split_once(':').map(|(name, _)| name.to_owned()),
    };
    let (name, port) = match entry.file_system.as_str() {
        "cifs" | "smb3" => {
            (source.trim_start_matches(['/', '\\']).split(['/', '\\']).next().map(str::to_owned), 445)
        }
        "nfs" | "nfs4" => (before_colon(), 2049),
        "fuse.sshfs" => {
            (before_colon().map(|name| name.rsplit('@').next().unwrap_or_default().to_owned()), 22)
        }
        "fuse.glusterfs" => (before_colon(), 24007),
        _ => return None,
    };
    Some((name.filter(|name| !name.is_empty())?, port))
}

fn unreachable(name: &str, port: u16, volumes: &[String]) -> Option<Finding> {
    let reached = network::addresses(name, None, &Deadline::after(CONNECT_WAIT)).and_then(|addresses| {
        let mut tried = addresses
            .into_iter()
            .map(|address| network::connect(SocketAddr::new(address, port), CONNECT_WAIT));
        let first = tried.next().unwrap_or_else(|| anyhow::bail!("has no address"));
        if first.is_ok() || tried.any(|tried| tried.is_ok()) { Ok(()) } else { first.map(drop) }
    });
    let message = to_failure(reached.err()?).message();
    let evidence = format!("server {name} of {}: {message}", volumes.join(", "));
    Some(match diagnostics::explain(&message) {
        Some(explained) => Finding::error("server-unreachable", &evidence, explained.known_error.fix),
        None => Finding::error(
            "server-unreachable",
            &evidence,
            "check that it runs, and the network and firewalls between it and this node",
        ),
    })
}

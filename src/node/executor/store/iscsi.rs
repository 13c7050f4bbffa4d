//! Logical units of iSCSI targets, by the kernel's client and open-iscsi's programs.
//!
//! * A session that existed before us is used, and never ended. Ours have an interface of their
//!   own, which distinguishes them without a record: the last unit of such a session ends it.
//! * A session of ours has only units that volumes have asked for: others may not be meant for this
//!   node.
//! * Of several paths to the same unit the first is used, or multipathd's device above them if it
//!   runs.
//!
//! Only reservations can tell whether another node uses a unit, and few volumes have any. By
//! `attach`, the controller keeps a volume of one node from the others. A session that existed
//! before us is no proof of a pod's identity: every pod that may name its target can use it. In a
//! session of ours, only pods with the Secret that the session was made with get units.

use super::{Backend, Found, Site, TICK, With};
use crate::executor::network::allowed;
use crate::executor::record;
use crate::hints::{after_rollback, to_failure};
use anyhow::{Context as _, Result, bail};
use flexvol_linux::block::iscsi::{self, Login, Session, Unit};
use flexvol_linux::fs::lock::Lock;
use flexvol_linux::net::network;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::Tools;
use flexvol_model::plan::{Iscsi, Portal, Store};
use flexvol_model::policy::Policy;
use flexvol_protocol::failure::{Code, Failure};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Driver of such devices.
pub(super) const DRIVER: &str = "iscsi";

/// Limit for the kernel to make a disk of a unit that it has found.
const DISK: Duration = Duration::from_secs(10);

/// Limit for a unit to appear after a scan: the kernel has asked for it by then.
const UNIT: Duration = Duration::from_secs(1);

/// Limit for multipathd to take over a unit.
const MULTIPATH: Duration = Duration::from_secs(10);

/// Limit for a multipath device to stay in use after its unmount: udev looks into each device that
/// changed.
const LETTING_GO: Duration = Duration::from_secs(5);

/// Pause between two requests to multipath to release it.
const AGAIN: Duration = Duration::from_millis(100);

impl Backend for Iscsi {
    fn find(&self, _: &Site<'_>) -> Result<Option<Found>> {
        Ok(device(&units(self)).map(|path| Found { path, held: None }))
    }

    /// Fails if the unit comes from another server. The owner of a server may give a target any
    /// name: the same name on another server is another target, even if this node has a session
    /// with that server.
    fn recognize(&self, at: &Site<'_>, known: Option<&Store>) -> Result<()> {
        if let Some(Store::Iscsi(known)) = known
            && known.portals.iter().any(|portal| self.portals.contains(portal))
        {
            return Ok(());
        }
        let sessions = Session::with(&self.target);
        for portal in &self.portals {
            for address in network::addresses(&portal.server, None, at.deadline)? {
                let address = SocketAddr::new(address, portal.port);
                if sessions.iter().any(|session| session.goes_to(address)) {
                    return Ok(());
                }
            }
        }
        let at = |portals: &[Portal]| portals.iter().map(Portal::to_string).collect::<Vec<_>>().join(", ");
        let other = match known {
            Some(Store::Iscsi(known)) => at(&known.portals),
            _ => "another portal".to_owned(),
        };
        let (target, lun, wanted) = (&self.target, self.lun, at(&self.portals));
        let text = format!(
            "this node has unit {lun} of {target} from {other}, not from {wanted}: end who uses that one first, or name its portal"
        );
        Err(Failure::new(Code::Conflict, text).into())
    }

    fn is_ours(&self, _: &Site<'_>) -> Result<bool> {
        let sessions = Session::with(&self.target);
        Ok(sessions.iter().any(|session| session.is_ours() && session.unit(self.lun).is_some()))
    }

    fn attach(&self, at: &Site<'_>, with: &With<'_>) -> Result<Found> {
        let _lock = lock(self, at)?;
        match bring(self, at, with) {
            Ok(path) => Ok(Found { path, held: None }),
            Err(error) => Err(after_rollback(
                error,
                release(self, at.tools().until(&Deadline::for_undo(DISK))),
                "a session",
            )),
        }
    }

    fn detach(&self, at: &Site<'_>, _: Option<&Path>) -> Result<()> {
        let _lock = lock(self, at)?;
        release(self, at.tools())
    }

    fn grow(&self, at: &Site<'_>, _: &Path, _: u64) -> Result<()> {
        let units = units(self);
        units.iter().try_for_each(Unit::rescan)?;
        units.first().map_or(Ok(()), |unit| unit.resize_multipath(at.tools()))
    }
}

/// Returns the paths to the unit that the kernel knows.
fn units(disk: &Iscsi) -> Vec<Unit> {
    Session::with(&disk.target).iter().filter_map(|session| session.unit(disk.lun)).collect()
}

/// Takes the target's lock: calls for its other units must not end a session that is just being
/// made.
fn lock(disk: &Iscsi, at: &Site<'_>) -> Result<Lock> {
    let name = format!("iscsi-{}", record::file_name(Path::new(&disk.target)));
    Lock::acquire(record::locks().join(name), at.deadline)
}

fn bring(disk: &Iscsi, at: &Site<'_>, with: &With<'_>) -> Result<PathBuf> {
    let chap: Vec<_> = with.credentials.iter().map(|(key, secret)| (*key, secret)).collect();
    let login = Login {
        chap: &chap,
        initiator: disk.initiator.as_deref(),
        interface: disk.interface.as_deref(),
        patience: disk.timeout,
    };
    log_in_everywhere(disk, &login, with.policy, at.tools())?;
    for session in Session::with(&disk.target).iter().filter(|session| session.is_alive()) {
        session.scan(disk.lun)?;
    }
    wait_for_disk(disk, at.deadline)?;
    let units = units(disk);
    same_disk(&units)?;
    let patience = Deadline::after(MULTIPATH.min(at.deadline.remaining()));
    while units.len() > 1 && iscsi::has_multipathd() && !patience.expired() {
        if units.iter().any(|unit| unit.multipath().is_some()) {
            break;
        }
        std::thread::sleep(TICK);
    }
    device(&units).context("the unit's disk is gone")
}

/// Logs in to all portals. One success is enough; errors are reported only if all portals fail.
fn log_in_everywhere(disk: &Iscsi, login: &Login<'_>, policy: &Policy, tools: Tools<'_>) -> Result<()> {
    let mut failures: Vec<Failure> = Vec::new();
    let mut discovery = disk.discovery;
    for portal in &disk.portals {
        let result = log_in(disk, portal, (login, policy), discovery, tools);
        match result.with_context(|| format!("server {portal}")) {
            // One portal knows all others.
            Ok(()) => discovery = false,
            Err(error) => failures.push(to_failure(error)),
        }
    }
    if Session::with(&disk.target).iter().any(Session::is_alive) {
        return Ok(());
    }
    let code = failures.first().map_or(Code::NotFound, Failure::code);
    let texts: Vec<_> = failures.iter().map(Failure::message).collect();
    Err(Failure::new(code, texts.join("; ")).into())
}

fn log_in(
    disk: &Iscsi,
    at: &Portal,
    (login, policy): (&Login<'_>, &Policy),
    discovery: bool,
    tools: Tools<'_>,
) -> Result<()> {
    let first = reach(disk, at, policy, tools.deadline)?;
    let mut addresses = vec![first];
    if discovery {
        let portal = iscsi::Portal { target: &disk.target, address: first };
        addresses = iscsi::discover(&portal, login, tools)?;
        if addresses.is_empty() {
            bail!(Failure::new(
                Code::NotFound,
                format!("it knows no target {}: correct option iqn", disk.target)
            ));
        }
        // The server may name any other server.
        addresses
            .retain(|found| found.ip() == first.ip() || policy.check_server(&found.ip().to_string()).is_ok());
        if addresses.is_empty() {
            let text = "it names only portals that this node does not allow: let the admin add them to policy.servers";
            bail!(Failure::new(Code::Denied, text));
        }
    }
    let missing =
        |address: &SocketAddr| !Session::with(&disk.target).iter().any(|session| session.goes_to(*address));
    let mut last = Ok(());
    for address in addresses.into_iter().filter(missing) {
        last = iscsi::log_in(&iscsi::Portal { target: &disk.target, address }, login, tools);
    }
    last
}

/// Returns the first address of a portal that answers.
fn reach(disk: &Iscsi, portal: &Portal, policy: &Policy, deadline: &Deadline) -> Result<SocketAddr> {
    let mut last = None;
    let addresses = network::addresses_here(&portal.server, deadline)?;
    for address in allowed(policy, &portal.server, addresses)? {
        deadline.check("about to connect to the target")?;
        let address = SocketAddr::new(address, portal.port);
        let patience = Duration::from_secs(disk.patience.into()).min(deadline.remaining());
        match network::connect(address, patience) {
            Ok(_) => return Ok(address),
            Err(error) => last = Some(error),
        }
    }
    Err(last.context("it has no address")?)
}

fn wait_for_disk(disk: &Iscsi, deadline: &Deadline) -> Result<()> {
    let since = Instant::now();
    loop {
        let units = units(disk);
        if units.iter().any(|unit| unit.disk().is_some_and(|disk| disk.exists())) {
            return Ok(());
        }
        deadline.check("waiting for the target's disk")?;
        if since.elapsed() > if units.is_empty() { UNIT } else { DISK } {
            let text = if units.is_empty() {
                format!(
                    "target {} shows this node no unit {}: correct option lun, or let the target show it to this node",
                    disk.target, disk.lun
                )
            } else {
                "the kernel makes no disk of it: load the module (modprobe sd_mod)".to_owned()
            };
            bail!(Failure::new(Code::NotFound, text));
        }
        std::thread::sleep(TICK);
    }
}

/// Removes the unit. Ends a session of ours with its last unit.
fn release(disk: &Iscsi, tools: Tools<'_>) -> Result<()> {
    if let Some(unit) = units(disk).first() {
        flush_multipath(unit, tools)?;
    }
    let sessions = Session::with(&disk.target);
    for session in &sessions {
        if session.ends_with(disk.lun) {
            session.log_out(tools)?;
        } else if let Some(unit) = session.unit(disk.lun) {
            unit.forget()?;
        }
    }
    while units(disk).iter().any(|unit| unit.disk().is_some()) {
        tools.deadline.check("waiting for the kernel to release the unit")?;
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// Returns the device to mount: the device above the disks, or the first of them.
fn device(units: &[Unit]) -> Option<PathBuf> {
    let above = units.iter().find_map(Unit::multipath);
    above.or_else(|| units.iter().find_map(Unit::disk))
}

/// Flushes the multipath device with retries: multipath gives up at once if the device is open.
fn flush_multipath(unit: &Unit, tools: Tools<'_>) -> Result<()> {
    let patience = Deadline::after(LETTING_GO.min(tools.deadline.remaining()));
    loop {
        match unit.flush_multipath(tools) {
            Err(_) if patience.check("flushing").is_ok() => std::thread::sleep(AGAIN),
            result => return result,
        }
    }
}

/// Fails if two portals of one target lead to two machines that have the same name by mistake.
fn same_disk(units: &[Unit]) -> Result<()> {
    let mut names = units.iter().filter_map(Unit::identity);
    let first = names.next();
    if names.any(|name| Some(name) != first) {
        let text = "the portals lead to different disks: name only those of one target";
        return Err(Failure::new(Code::Conflict, text).into());
    }
    Ok(())
}

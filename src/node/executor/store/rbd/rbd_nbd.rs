//! Images of a Ceph cluster, by rbd-nbd: Ceph's daemon for features that the kernel's client lacks.
//!
//! The daemon stays in the foreground, so that its last words can be read, in a control group of
//! its own, and shows the image as a network block device. The kernel knows that device by the name
//! that the daemon was told to give it, which is made of the store's; the daemon has the same name
//! in its command line. The files that it reads are removed as soon as it serves.
//!
//! If the daemon is killed, every read and write fails from then on, until the volume is unmounted
//! and mounted again.

use super::super::{Site, TICK, With, nbd, qemu};
use super::login::{self, DAEMON, Login, READ_ONLY};
use super::{ABSENT, KEPT, REFUSED, SILENT, kernel, mapping};
use crate::executor::ceph;
use crate::hints::after_rollback;
use anyhow::{Context as _, Result};
use flexvol_linux::block::nbd::{Device, MODULE};
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::{kernel_module, process};
use flexvol_model::plan::RbdImage;
use flexvol_protocol::failure::Code;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Limit for the daemon to write back, release the image, and end.
const UNMAP_WAIT: Duration = Duration::from_secs(10);

/// Limit for the growth of an image to reach the kernel from the cluster.
const NEWS: Duration = Duration::from_secs(3);

/// Message of rbd-nbd about an image that cannot be claimed.
const UNCLAIMABLE: &str = "exclusive-lock feature is not enabled";

/// Returns the store's device, if it is served.
pub(super) fn find(at: &Site<'_>) -> Result<Option<Device>> {
    match nbd::connected(at)? {
        Some(device) if daemons(at).into_iter().any(|pid| qemu::is_ours(pid, at)) => Ok(Some(device)),
        _ => Ok(None),
    }
}

fn daemons(at: &Site<'_>) -> Vec<i32> {
    process::running(DAEMON, &nbd::backend(at))
}

pub(super) fn attach(image: &RbdImage, at: &Site<'_>, with: &With<'_>) -> Result<PathBuf> {
    kernel_module::load("nbd", Path::new(MODULE), at.tools())?;
    flexvol_linux::block::nbd::check()?;
    let login = Login::of(image, at, with)?;
    // rbd-nbd would take an invalid key for a missing one.
    ceph::decode(&login.key)?;
    login.refuse_second_daemon(with.read_only)?;
    kernel::refuse_second_to(&login, with.read_only)?;
    if !with.read_only {
        login.refuse_watched(at)?;
    }
    match map(&login, at, with) {
        Ok(device) => Ok(device.path()),
        Err(error) => Err(after_rollback(error, clear(at), "a device")),
    }
}

pub(super) fn detach(at: &Site<'_>) -> Result<()> {
    clear(at)?;
    nbd::wait_until_gone(at)
}

/// Disconnects every device with the store's name, lets the daemon write back, and ends it with all
/// it had.
pub(super) fn clear(at: &Site<'_>) -> Result<()> {
    let devices = Device::of(&nbd::backend(at))?;
    for device in &devices {
        device.disconnect()?;
    }
    let patience = if devices.is_empty() { Duration::ZERO } else { UNMAP_WAIT.min(at.deadline.remaining()) };
    let patience = Deadline::after(patience);
    while !patience.expired() && !daemons(at).is_empty() {
        std::thread::sleep(TICK);
    }
    qemu::end_scope(&qemu::scope(at), false, at);
    // For a node without control groups.
    process::end(daemons(at));
    login::forget(at)
}

/// Returns the size of the device, after it has reached the wanted size or the wait has ended. The
/// daemon is told that its image has grown, but older daemons cannot tell the kernel. Neither can
/// we, because the new size is unknown: past its end the image answers zeros.
pub(super) fn size_once(at: &Site<'_>, wanted: u64) -> Result<u64> {
    let device = find(at)?.context("it is not mapped any more: mount it again")?;
    let patience = Deadline::after(NEWS.min(at.deadline.remaining()));
    loop {
        match device.size()? {
            size if size < wanted && !patience.expired() => std::thread::sleep(TICK),
            size => return Ok(size),
        }
    }
}

/// Maps the image. For writing it is claimed if the image allows that.
fn map(login: &Login<'_>, at: &Site<'_>, with: &With<'_>) -> Result<Device> {
    let begun = Instant::now();
    let patience = Duration::from_secs(login::patience(at));
    let claim = login.image.exclusive && !with.read_only;
    let mut mapped = serve(login, at, with, claim)?;
    if matches!(&mapped, Err(end) if claim && end.words.contains(UNCLAIMABLE)) {
        mapped = serve(login, at, with, false)?;
    }
    let device = mapped.map_err(|end| {
        let explained = end.explain(begun.elapsed() >= patience);
        mapping(login, &format!("rbd-nbd: {}", or_nothing(&end.words)), explained)
    })?;
    if device.is_called(&nbd::backend(at)) {
        return Ok(device);
    }
    device.disconnect()?;
    Err(Device::nameless())
}

/// End of a daemon.
struct End {
    was_killed: bool,
    words: String,
}

/// Starts the daemon. Returns the device, or the daemon's end.
fn serve(login: &Login<'_>, at: &Site<'_>, with: &With<'_>, claim: bool) -> Result<Result<Device, End>> {
    let (name, spec) = (nbd::backend(at), login.image.spec());
    let patience = login.image.patience.to_string();
    let timeout = (login.image.patience > 0).then_some(["--io-timeout", &patience]);
    login.lend(DAEMON, at, |program| {
        let program = program
            .args(["-f", "map", "--try-netlink", "--reattach-timeout", "0", "--cookie", &name])
            .args(timeout.iter().flatten())
            .args(claim.then_some("--exclusive"))
            .args(with.read_only.then_some(READ_ONLY))
            .args([&spec]);
        let mut daemon = program.launch(&qemu::scope(at))?;
        qemu::note(&daemon, at)?;
        loop {
            let ended = daemon.ended()?;
            let words = daemon.words();
            if let Some(status) = ended {
                return Ok(Err(End { was_killed: status.signal().is_some(), words }));
            }
            if let Some(device) = words.split("; ").find_map(|word| Device::at(Path::new(word))) {
                return Ok(Ok(device));
            }
            at.deadline.check("waiting for rbd-nbd, which waits for the cluster")?;
            std::thread::sleep(TICK);
        }
    })
}

fn or_nothing(words: &str) -> &str {
    if words.is_empty() { "without a word" } else { words }
}

impl End {
    /// Explains the daemon's last words; for an image that does not exist it has none.
    fn explain(&self, is_late: bool) -> (Code, &'static str) {
        let says = |text| self.words.contains(text);
        if self.was_killed {
            (Code::Internal, "it was killed: see the kernel's log (dmesg) for who did, or a lack of memory")
        } else if self.words.is_empty() {
            if is_late { SILENT } else { ABSENT }
        } else if says("failed to fetch mon config") {
            if is_late { SILENT } else { REFUSED }
        } else if says("Operation not permitted") || says("Permission denied") {
            REFUSED
        } else if says("failed to acquire exclusive lock") {
            KEPT
        } else if says("unknown args") {
            (Code::ToolMissing, "it is too old: install that of Ceph 16.2.5 or newer")
        } else {
            (Code::Internal, "check image, cluster and the kernel's log (dmesg)")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_understood() {
        let end = |words: &str| End { was_killed: false, words: words.to_owned() };
        let of = |words| end(words).explain(false);
        assert_eq!(of(""), ABSENT);
        assert_eq!(end("").explain(true), SILENT);
        assert_eq!(End { was_killed: true, ..end("") }.explain(false).0, Code::Internal);
        assert_eq!(of("failed to fetch mon config (--no-mon-config to skip)"), REFUSED);
        assert_eq!(end("failed to fetch mon config").explain(true), SILENT);
        assert_eq!(of("failed to open image: (1) Operation not permitted"), REFUSED);
        assert_eq!(of("rbd-nbd: failed to acquire exclusive lock: (30) Read-only file system"), KEPT);
        assert_eq!(of("rbd-nbd: unknown args: --cookie").0, Code::ToolMissing);
        assert_eq!(of("terminate called").0, Code::Internal);
    }
}

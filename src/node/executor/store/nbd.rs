//! Network block devices: of a server in the network, or of a disk image on the node, which
//! [`qemu`](super::qemu) serves on a socket.
//!
//! The kernel holds the connection, and the device has the store's name, so it is found again
//! without a record. If the connection ends, there is no new one: every read and write fails from
//! then on, until the volume is unmounted everywhere and mounted again. A server that only stops
//! answering counts as gone after the store's timeout, so nothing hangs for longer.
//!
//! An image's daemon cannot make the image larger while it serves it. So the export is removed for
//! a moment, in which the kernel holds reads and writes back.
//!
//! The protocol does not tell whether another node uses the same export. For an image, locks on its
//! file do.

use super::attachment_record::AttachmentRecord;
use super::qemu::{self, ImageDaemon, Shown};
use super::{Backend, Found, Site, TICK, With, is_claimed};
use crate::executor::network::allowed;
use crate::hints::after_rollback;
use anyhow::{Context as _, Result, bail};
use flexvol_linux::block::block_status::Zeros;
use flexvol_linux::block::nbd::{Device, Served, allocation, by_socket, by_tcp};
use flexvol_linux::block::signature;
use flexvol_linux::fs::bytes::read_at;
use flexvol_linux::fs::opened::{self, OFlags};
use flexvol_linux::mount::users;
use flexvol_linux::net::network;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::process;
use flexvol_model::plan::{DiskImage, ImageFormat, Nbd, NbdServer};
use flexvol_model::policy::Policy;
use flexvol_protocol::failure::{Code, Failure};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Driver of such devices.
pub(super) const DRIVER: &str = "nbd";

/// Name of the export of an image's daemon for clients, and its id in the daemon.
const EXPORT: &str = "disk";
const ID: &str = "content";

/// Time for which the kernel waits for a new connection to an image's daemon while the image grows.
const GAP: Duration = Duration::from_secs(20);

/// Number of new connections for the kernel: it accepts none until it has seen the end of the old
/// one, and does not report that. Connections that it does not need are closed.
const ATTEMPTS: usize = 8;

/// Limit for a disconnected device to be in use, for example by a program that examines new
/// devices.
const LETTING_GO: Duration = Duration::from_secs(3);

/// Size of the part that is read at the end of a grown device, in bytes.
const LAST: usize = 4096;

/// Prefix for all names of such devices.
const OURS: &str = "flexvol-";

/// Returns the kernel's name for the device's backend. It has the PID namespace in it, because
/// several nodes, each in its container, may share the kernel.
pub(super) fn backend(at: &Site<'_>) -> String {
    format!("{OURS}{}-{}", at.id.as_str(), process::namespace())
}

/// Returns the device with that name. There may be two: one that lost its server may still be in
/// use somewhere. The record tells which one is current.
pub(super) fn connected(at: &Site<'_>) -> Result<Option<Device>> {
    let devices = Device::of(&backend(at))?;
    let known = AttachmentRecord::read(at.id).and_then(|record| record.device);
    let is_known = |device: &&Device| Some(device.path()) == known;
    Ok(devices.iter().find(is_known).or_else(|| devices.first()).copied())
}

/// Returns the path where an image's daemon listens.
fn socket(home: &ImageDaemon) -> PathBuf {
    home.private.file("socket")
}

impl Backend for Nbd {
    fn find(&self, at: &Site<'_>) -> Result<Option<Found>> {
        if matches!(self.from, NbdServer::Image { .. }) && !ImageDaemon::of(at).is_alive(at) {
            return Ok(None);
        }
        Ok(connected(at)?.map(|device| Found { path: device.path(), held: None }))
    }

    fn is_of_node(&self, _: &Site<'_>) -> Result<bool> {
        Ok(matches!(&self.from, NbdServer::Image { image, .. } if qemu::is_of_node(image)))
    }

    fn attach(&self, at: &Site<'_>, with: &With<'_>) -> Result<Found> {
        clear(at).context("remove what a killed call left")?;
        let brought = bring(self, at, with).and_then(|device| refuse_second(device).map(|()| device));
        match brought {
            Ok(device) => Ok(Found { path: device.path(), held: None }),
            Err(error) => Err(after_rollback(error, clear(at), "a device")),
        }
    }

    fn detach(&self, at: &Site<'_>, _: Option<&Path>) -> Result<()> {
        take_away(at)
    }

    fn zeros(&self, at: &Site<'_>, with: &With<'_>) -> Zeros {
        let patience = at.share();
        let ask = |socket, export: &str| Ok(allocation::zeros(socket, export, &patience));
        with_server(self, at, Some(with.policy), ask).unwrap_or_default()
    }

    fn grow(&self, at: &Site<'_>, path: &Path, size: u64) -> Result<()> {
        let devices = Device::of(&backend(at))?;
        let device =
            devices.into_iter().find(|device| device.path() == path).context("the device is gone")?;
        let before = device.size()?;
        match &self.from {
            NbdServer::Image { image, .. } if before < size => {
                grow_image(self, at, device, size).with_context(|| format!("grow {}", image.file.display()))
            }
            NbdServer::Image { .. } => Ok(()),
            NbdServer::Remote { .. } => look_again(at, device, before, connect(self, at, None)?.size()),
        }
    }
}

/// Refuses a second device of the same content. A device that an admin has connected by hand does
/// not name its export, so the content is compared. This also refuses a copy, but the kernel could
/// not tell the two apart either.
fn refuse_second(device: Device) -> Result<()> {
    let identifier = |device: Device| {
        let opened = opened::open(&device.path(), OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
        signature::identifier(opened.as_fd()).ok().flatten()
    };
    let is_foreign = |other: &Device| {
        *other != device
            && other.size().is_ok_and(|size| size > 0)
            && !other.backend().is_some_and(|name| name.starts_with(OURS))
            && is_claimed(&other.path()).unwrap_or(false)
    };
    let others: Vec<_> = Device::all()?.into_iter().filter(is_foreign).collect();
    let Some(own) = Some(&others).filter(|others| !others.is_empty()).and_then(|_| identifier(device)) else {
        return Ok(());
    };
    match others.into_iter().find(|other| identifier(*other).as_ref() == Some(&own)) {
        None => Ok(()),
        Some(other) => {
            let text = format!(
                "{} of this node holds {} with the same UUID, and was connected by others: unmount that and disconnect it (nbd-client -d), or give a copy a UUID of its own",
                other.path().display(),
                own.0.describe()
            );
            Err(Failure::new(Code::Busy, text).into())
        }
    }
}

/// Tells the kernel the new size, and checks that its connection shows all of it.
fn look_again(at: &Site<'_>, device: Device, before: u64, now: u64) -> Result<()> {
    if now <= before {
        return Ok(());
    }
    device.resize(&backend(at), now)?;
    if ends_well(&device.path(), now) {
        return Ok(());
    }
    device.resize(&backend(at), before)?;
    let text = "the server shows only new connections that its export grew: unmount the volume everywhere and mount it again";
    Err(Failure::new(Code::Conflict, text).into())
}

fn bring(nbd: &Nbd, at: &Site<'_>, with: &With<'_>) -> Result<Device> {
    if let NbdServer::Image { image, format } = &nbd.from {
        serve(image, *format, at, with)?;
    }
    let served = connect(nbd, at, Some(with.policy))?;
    let timeout = Duration::from_secs(nbd.timeout.into());
    let device = Device::connect(&served, &backend(at), timeout, with.read_only)?;
    while !device.path().exists() {
        at.deadline.check(&format!("waiting for {}", device.path().display()))?;
        std::thread::sleep(TICK);
    }
    Ok(device)
}

/// Makes the image larger. It is served again afterwards, even if that failed.
fn grow_image(nbd: &Nbd, at: &Site<'_>, device: Device, size: u64) -> Result<()> {
    let home = ImageDaemon::of(at);
    device.bridge(&backend(at), GAP)?;
    // The export is missing if a call was killed before it added the export again.
    let _ = home.tell("block-export-del", &json!({"id": ID, "mode": "hard"}), at);
    let resized = grow_in_time(&home, size, at);
    home.tell("block-export-add", &export(false), at)?;
    for _ in 0..ATTEMPTS {
        let served = connect(nbd, at, None)?;
        device.reconnect(&backend(at), &served)?;
        std::thread::sleep(TICK);
    }
    device.bridge(&backend(at), Duration::ZERO)?;
    resized
}

/// Connects to the server and selects the export. Only the first time there is a policy, which
/// decides about addresses.
fn connect(nbd: &Nbd, at: &Site<'_>, policy: Option<&Policy>) -> Result<Served> {
    with_server(nbd, at, policy, |socket, export| Served::begin(socket, export, at.deadline))
}

/// Calls `begin` with the first address of the server that answers.
fn with_server<T>(
    nbd: &Nbd,
    at: &Site<'_>,
    policy: Option<&Policy>,
    begin: impl Fn(OwnedFd, &str) -> Result<T>,
) -> Result<T> {
    let NbdServer::Remote { server, port, export, nameserver, patience } = &nbd.from else {
        return by_socket(&socket(&ImageDaemon::of(at))).and_then(|socket| begin(socket, EXPORT));
    };
    let mut last = None;
    let named = || format!("server {server}");
    let mut addresses = network::addresses(server, *nameserver, at.deadline).with_context(named)?;
    if let Some(policy) = policy {
        addresses = allowed(policy, server, addresses)?;
    }
    for address in addresses {
        at.deadline.check("about to connect to the server")?;
        let patience = Duration::from_secs((*patience).into()).min(at.deadline.remaining());
        let socket = by_tcp(SocketAddr::new(address, *port), patience);
        match socket.and_then(|socket| begin(socket, export)) {
            Ok(done) => return Ok(done),
            Err(error) => last = Some(error.context(format!("server {server} ({address})"))),
        }
    }
    Err(last.with_context(|| format!("server {server} has no address"))?)
}

/// Grows the image, with retries: the removal of an export takes a moment.
fn grow_in_time(home: &ImageDaemon, size: u64, at: &Site<'_>) -> Result<()> {
    let patience = Deadline::after(GAP.min(at.deadline.remaining()) / 2);
    loop {
        match home.grow(size, at) {
            Err(_) if !patience.expired() => std::thread::sleep(TICK),
            result => return result,
        }
    }
}

/// Returns the export that the daemon is to serve.
fn export(read_only: bool) -> Value {
    json!({"type": "nbd", "id": ID, "node-name": qemu::NODE, "name": EXPORT, "writable": !read_only})
}

fn serve(image: &DiskImage, format: ImageFormat, at: &Site<'_>, with: &With<'_>) -> Result<()> {
    let file = qemu::open(image, format, at, with)?;
    let home = ImageDaemon::of(at);
    home.private.make()?;
    let address = json!({"addr": {"type": "unix", "path": socket(&home)}}).to_string();
    let server = vec!["--nbd-server".to_owned(), address];
    let shown = Shown { format, read_only: with.read_only, server, export: export(with.read_only) };
    home.serve(&file, shown, at, || socket(&home).exists())
}

pub(super) fn take_away(at: &Site<'_>) -> Result<()> {
    clear(at)?;
    wait_until_gone(at)
}

/// Disconnects every device with the store's name, and ends its daemon. The device comes first:
/// then its writes have been sent before the daemon ends.
fn clear(at: &Site<'_>) -> Result<()> {
    for device in Device::of(&backend(at))? {
        device.disconnect()?;
    }
    ImageDaemon::of(at).end(at)
}

/// Waits for the end of the device: the kernel keeps it as long as it is open.
pub(super) fn wait_until_gone(at: &Site<'_>) -> Result<()> {
    let patience = Deadline::after(LETTING_GO.min(at.deadline.remaining()));
    while let Some(device) = Device::of(&backend(at))?.into_iter().find(|device| device.is_left()) {
        if patience.expired() {
            let path = device.path();
            let text = format!(
                "{} is disconnected and still open{}: end it, kubelet tries again",
                path.display(),
                users::of(&path)
            );
            bail!(Failure::new(Code::Busy, text));
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// Reports whether the end of the device can be read; no cache has it yet.
fn ends_well(path: &Path, size: u64) -> bool {
    let device = opened::open(path, OFlags::RDONLY);
    let mut end = [0; LAST];
    device.is_ok_and(|device| {
        let read = read_at(device.as_fd(), size.saturating_sub(LAST as u64), &mut end);
        read.is_ok_and(|length| length == LAST)
    })
}

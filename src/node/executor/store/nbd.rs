//! Network block devices: of a server in the network, or of a disk image of the node, which
//! [`qemu`](super::qemu) serves on a socket.
//!
//! The kernel holds the connection, and the device has the store's name, so it is found again
//! without a record. If the connection ends, nothing connects again: every read and write fails
//! from then on, until the volume is unmounted everywhere and mounted again. A server that only
//! falls silent counts as gone after the store's timeout, so nothing hangs for longer.
//!
//! The daemon of an image cannot make it larger while it serves it. So the export is removed for a
//! moment, in which the kernel holds reads and writes back.
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

/// The driver of such devices.
pub(super) const DRIVER: &str = "nbd";

/// The export of an image's daemon, for clients and for itself.
const EXPORT: &str = "disk";
const ID: &str = "content";

/// How long the kernel waits for an image's daemon to be connected again while the image grows.
const GAP: Duration = Duration::from_secs(20);

/// How often the kernel is given a new connection: it takes none until it has seen that the old one
/// has ended, and does not say so. Those it has no use for are closed.
const ATTEMPTS: usize = 8;

/// How long a device that was disconnected may be in use: by who looks at each new device, say.
const LETTING_GO: Duration = Duration::from_secs(3);

/// How much is read of the end of a device that grew.
const LAST: usize = 4096;

/// What all their names begin with.
const OURS: &str = "flexvol-";

/// What the kernel calls the device's backend: several nodes, each in its container, may share the
/// kernel.
pub(super) fn backend(at: &Site<'_>) -> String {
    format!("{OURS}{}-{}", at.id.as_str(), process::namespace())
}

/// The device with that name. One that lost its server may still be in use somewhere, and another
/// be there by now: the record knows which.
pub(super) fn connected(at: &Site<'_>) -> Result<Option<Device>> {
    let devices = Device::of(&backend(at))?;
    let known = AttachmentRecord::read(at.id).and_then(|record| record.device);
    let is_known = |device: &&Device| Some(device.path()) == known;
    Ok(devices.iter().find(is_known).or_else(|| devices.first()).copied())
}

/// Where an image's daemon listens.
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

/// One that an admin has connected by hand bears no name of its export: what is on it tells. Of a
/// copy, too, but the kernel could not tell these two apart either.
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

/// Makes the image larger. It is served again afterwards, also if that failed.
fn grow_image(nbd: &Nbd, at: &Site<'_>, device: Device, size: u64) -> Result<()> {
    let home = ImageDaemon::of(at);
    device.bridge(&backend(at), GAP)?;
    // It is missing if a call was killed before it added the export again.
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

/// Connects to the server and selects the export. The first time with the policy, which decides
/// about addresses.
fn connect(nbd: &Nbd, at: &Site<'_>, policy: Option<&Policy>) -> Result<Served> {
    with_server(nbd, at, policy, |socket, export| Served::begin(socket, export, at.deadline))
}

/// Of several addresses of the server the first that answers.
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

/// An export that is going away takes a moment.
fn grow_in_time(home: &ImageDaemon, size: u64, at: &Site<'_>) -> Result<()> {
    let patience = Deadline::after(GAP.min(at.deadline.remaining()) / 2);
    loop {
        match home.grow(size, at) {
            Err(_) if !patience.expired() => std::thread::sleep(TICK),
            result => return result,
        }
    }
}

/// What the daemon is told to serve.
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

/// Disconnects whatever has the store's name, and ends its daemon. First the device: what it has
/// been told to write is on its way by then.
fn clear(at: &Site<'_>) -> Result<()> {
    for device in Device::of(&backend(at))? {
        device.disconnect()?;
    }
    ImageDaemon::of(at).end(at)
}

/// The kernel keeps a device as long as someone has it open.
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

/// Whether the end of the device can be read; it is in no cache yet.
fn ends_well(path: &Path, size: u64) -> bool {
    let device = opened::open(path, OFlags::RDONLY);
    let mut end = [0; LAST];
    device.is_ok_and(|device| {
        let read = read_at(device.as_fd(), size.saturating_sub(LAST as u64), &mut end);
        read.is_ok_and(|length| length == LAST)
    })
}

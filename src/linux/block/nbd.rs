//! Network block devices: the handshake with a server (NBD's own protocol document), and the
//! kernel's side (linux/nbd-netlink.h).
//!
//! The kernel takes over a connection and does the rest alone, so no program has to run on the
//! node. It also chooses and takes the free device in one step: no other process can take it in
//! between. The kernel remembers the purpose of a device (its `backend`, Linux 5.14), so a device
//! is found again even if our process is gone.

pub mod allocation;

use crate::net::generic_netlink::{Attributes, Family};
use crate::proc::deadline::Deadline;
use crate::raw;
use anyhow::{Context, Result, bail};
use flexvol_protocol::failure::{Code, Failure};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout, set_socket_timeout};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The numbers of linux/nbd-netlink.h.
mod number {
    pub(crate) const INDEX: u16 = 1;
    pub(crate) const SIZE: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
    pub(crate) const TIMEOUT: u16 = 4;
    pub(crate) const SERVER_FLAGS: u16 = 5;
    pub(crate) const SOCKETS: u16 = 7;
    pub(crate) const GAP: u16 = 8;
    pub(crate) const BACKEND: u16 = 10;
    pub(crate) const SOCKET: u16 = 1;
    pub(crate) const SOCKET_FD: u16 = 1;
    pub(crate) const CONNECT: u8 = 1;
    pub(crate) const DISCONNECT: u8 = 2;
    pub(crate) const RECONFIGURE: u8 = 3;
}

/// First bytes that a server sends.
const GREETING: &[u8; 16] = b"NBDMAGICIHAVEOPT";

/// Handshake flags: the newer handshake, and no padding after [`EXPORT_NAME`].
const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;

/// Options to begin with an export: the old one and the new one.
const EXPORT_NAME: u32 = 1;
const GO: u32 = 7;

/// Magic number before the answer to an option, and the kinds of answers.
const REPLY: u64 = 0x0003_e889_0455_65a9;
const ACK: u32 = 1;
const INFO: u32 = 3;
const UNSUPPORTED: u32 = (1 << 31) + 1;
const POLICY: u32 = (1 << 31) + 2;
const TLS_REQUIRED: u32 = (1 << 31) + 5;
const UNKNOWN: u32 = (1 << 31) + 6;

/// Kinds of information about an export: its size and flags, its block sizes.
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;

/// Limit for an answer of a server, in bytes.
const LONGEST: u32 = 1 << 16;

/// Transmission flags: flags are present, and the export is read-only.
const HAS_FLAGS: u16 = 1;
const READ_ONLY: u16 = 2;

/// Smallest read of a device, in bytes.
const SECTOR: u32 = 512;

/// Directory of the kernel's devices.
const DEVICES: &str = "/sys/block";

/// Directory that exists if the kernel has such devices, and the name of their netlink family.
pub const MODULE: &str = "/sys/module/nbd";
const FAMILY: &str = "nbd";

/// A server that is connected and serves an export.
pub struct Served {
    socket: OwnedFd,
    export: Export,
}

/// Properties of an export, from its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Export {
    size: u64,
    flags: u16,
    /// Size of the smallest read or write, in bytes.
    block: u32,
}

/// Connects to a server in the network.
pub fn by_tcp(server: SocketAddr, patience: Duration) -> Result<OwnedFd> {
    let socket = crate::net::network::connection(server, patience)?;
    // With keepalive, the kernel notices that a server is gone even without reads.
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    // Data that is unsent when the connection ends must not reach the server later: the device may
    // belong to another connection by then, and old data would overwrite new data.
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    Ok(TcpStream::into(socket))
}

/// Connects to a server on this node.
pub fn by_socket(path: &Path) -> Result<OwnedFd> {
    let socket = UnixStream::connect(path).with_context(|| format!("connect to {}", path.display()))?;
    Ok(socket.into())
}

impl Served {
    /// Begins with the export of this name.
    pub fn begin(socket: OwnedFd, name: &str, deadline: &Deadline) -> Result<Self> {
        let mut talk = Talk { socket: socket.into(), deadline };
        let export = greet(&mut talk, name)?;
        let socket = OwnedFd::from(talk.socket);
        // From now on, the kernel's own timeout applies.
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, direction, None)?;
        }
        Ok(Self { socket, export })
    }

    /// Returns the socket in the kernel's form.
    fn socket(&self) -> Result<Attributes> {
        let fd = u32::try_from(self.socket.as_raw_fd())?;
        let socket = Attributes::default().short(number::SOCKET_FD, fd);
        Ok(Attributes::default().nested(number::SOCKET, &socket))
    }

    /// Returns the size of the export.
    pub fn size(&self) -> u64 {
        self.export.size
    }
}

/// A conversation that ends with the deadline.
struct Talk<'a> {
    socket: File,
    deadline: &'a Deadline,
}

impl Talk<'_> {
    fn limit(&self, direction: Timeout) -> std::io::Result<()> {
        let left = self.deadline.remaining();
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(set_socket_timeout(&self.socket, direction, Some(left))?)
    }
}

impl Read for Talk<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.limit(Timeout::Recv)?;
        self.socket.read(buffer)
    }
}

impl Write for Talk<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.limit(Timeout::Send)?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Does the handshake, until the server serves the export of this name.
pub fn greet(talk: &mut (impl Read + Write), name: &str) -> Result<Export> {
    let ours = begin_options(talk)?;
    if let Some(export) = go(talk, name)? {
        return Ok(export);
    }
    ask(talk, EXPORT_NAME, name.as_bytes())?;
    let size = u64::from_be_bytes(take(talk).map_err(|_| unknown(name))?);
    let flags = u16::from_be_bytes(take(talk)?);
    if ours & NO_ZEROES == 0 {
        take::<124>(talk)?;
    }
    Ok(Export { size, flags, block: SECTOR })
}

/// Does the handshake up to the options. Returns the flags that both sides know.
fn begin_options(talk: &mut (impl Read + Write)) -> Result<u16> {
    let wrong = "the server does not speak the NBD fixed-newstyle protocol: check server and port";
    let mut greeting = [0; GREETING.len()];
    talk.read_exact(&mut greeting).map_err(|error| said_nothing(&error))?;
    let flags = u16::from_be_bytes(take(talk)?);
    if greeting != *GREETING || flags & FIXED_NEWSTYLE == 0 {
        bail!(Failure::new(Code::Conflict, wrong));
    }
    let ours = flags & (FIXED_NEWSTYLE | NO_ZEROES);
    talk.write_all(&u32::from(ours).to_be_bytes())?;
    Ok(ours)
}

fn ask(talk: &mut impl Write, option: u32, data: &[u8]) -> Result<()> {
    let length = u32::try_from(data.len())?;
    let request = [&GREETING[8..], &option.to_be_bytes(), &length.to_be_bytes(), data].concat();
    talk.write_all(&request).context("ask the server for its export")
}

/// Reads one answer to an option: its kind and its data.
fn answer(talk: &mut impl Read, to: u32) -> Result<(u32, Vec<u8>)> {
    let magic = u64::from_be_bytes(take(talk)?);
    let option = u32::from_be_bytes(take(talk)?);
    let kind = u32::from_be_bytes(take(talk)?);
    let length = u32::from_be_bytes(take(talk)?);
    if magic != REPLY || option != to || length > LONGEST {
        let text = "the server does not keep to the protocol: check server and port";
        bail!(Failure::new(Code::Conflict, text));
    }
    let mut data = vec![0; length as usize];
    talk.read_exact(&mut data).map_err(|error| said_nothing(&error))?;
    Ok((kind, data))
}

/// Begins with the export, and reads its properties; `None` if the server only knows the older
/// option.
fn go(talk: &mut (impl Read + Write), name: &str) -> Result<Option<Export>> {
    let length = u32::try_from(name.len())?;
    // One further piece of information is requested.
    let wish = [&length.to_be_bytes(), name.as_bytes(), &[0, 1], &INFO_BLOCK_SIZE.to_be_bytes()].concat();
    ask(talk, GO, &wish)?;
    let mut export = Export { block: SECTOR, ..Export::default() };
    loop {
        match answer(talk, GO)? {
            (ACK, _) => return Ok(Some(export)),
            (INFO, data) => export.learn(&data),
            (UNSUPPORTED, _) => return Ok(None),
            (UNKNOWN, _) => bail!(unknown(name)),
            (TLS_REQUIRED, _) => {
                let text = "the server requires TLS, which the kernel's NBD client does not support: let it serve without TLS, in a network of its own";
                bail!(Failure::new(Code::Denied, text));
            }
            (POLICY, _) => bail!(Failure::new(
                Code::Denied,
                "the server does not serve this node: see its list of allowed clients"
            )),
            (kind, data) => {
                bail!("the server refuses the export with {kind:#x}: {}", String::from_utf8_lossy(&data))
            }
        }
    }
}

impl Export {
    fn learn(&mut self, data: &[u8]) {
        let kind = data.get(..2).and_then(|kind| kind.try_into().ok()).map(u16::from_be_bytes);
        match (kind, data.len()) {
            (Some(INFO_EXPORT), 12..) => {
                self.size = u64::from_be_bytes(data[2..10].try_into().unwrap_or_default());
                self.flags = u16::from_be_bytes([data[10], data[11]]);
            }
            (Some(INFO_BLOCK_SIZE), 14..) => {
                let least = u32::from_be_bytes(data[2..6].try_into().unwrap_or_default());
                self.block = least.max(SECTOR);
            }
            _ => {}
        }
    }
}

fn take<const N: usize>(talk: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    talk.read_exact(&mut bytes).map_err(|error| said_nothing(&error))?;
    Ok(bytes)
}

fn said_nothing(error: &std::io::Error) -> Failure {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            Failure::new(Code::Timeout, "the server took the connection and says nothing")
        }
        ErrorKind::UnexpectedEof => {
            let text = "the server hung up: it may not serve this node, or see its log";
            Failure::new(Code::Denied, text)
        }
        _ => Failure::new(Code::Internal, format!("talk to the server: {error}")),
    }
}

fn unknown(name: &str) -> Failure {
    let text = format!("the server has no export {name:?}: correct option export, or make it there");
    Failure::new(Code::NotFound, text)
}

/// A device of the kernel that is connected, or was connected and is still open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device(u32);

impl Device {
    /// Returns all devices of the kernel, connected or not.
    pub fn all() -> Result<Vec<Self>> {
        let names = std::fs::read_dir(DEVICES).with_context(|| format!("list {DEVICES}"))?;
        let number = |name: &str| name.strip_prefix("nbd")?.parse().ok().map(Self);
        Ok(names.flatten().filter_map(|name| number(name.file_name().to_str()?)).collect())
    }

    /// Returns the devices with this name of their backend.
    pub fn of(backend: &str) -> Result<Vec<Self>> {
        Ok(Self::all()?.into_iter().filter(|device| device.is_called(backend)).collect())
    }

    /// Returns the device of a node.
    pub fn at(node: &Path) -> Option<Self> {
        let number = node.to_str()?.strip_prefix("/dev/nbd")?;
        number.parse().ok().map(Self)
    }

    /// Returns the name of its backend, if any.
    pub fn backend(self) -> Option<String> {
        std::fs::read_to_string(self.attribute("backend")).ok().map(|text| text.trim_end().to_owned())
    }

    /// Reports whether its backend has this name.
    pub fn is_called(self, backend: &str) -> bool {
        self.backend().is_some_and(|name| name == backend)
    }

    /// Makes the kernel serve the export as a free device, with this name of its backend.
    /// A request that the server does not answer within `timeout` is an error.
    pub fn connect(served: &Served, backend: &str, timeout: Duration, read_only: bool) -> Result<Self> {
        let kernel = kernel()?;
        let export = served.export;
        let flags = export.flags | HAS_FLAGS | if read_only { READ_ONLY } else { 0 };
        let wish = Attributes::default()
            .long(number::SIZE, export.size)
            .long(number::BLOCK_SIZE, export.block.into())
            .long(number::TIMEOUT, timeout.as_secs())
            .long(number::SERVER_FLAGS, flags.into())
            .text(number::BACKEND, backend)
            .nested(number::SOCKETS, &served.socket()?);
        let answer = kernel.request(number::CONNECT, &wish).context("connect a network block device")?;
        let index = answer.find(number::INDEX).and_then(|bytes| bytes.try_into().ok());
        let device = Self(u32::from_ne_bytes(index.context("the kernel names no network block device")?));
        if device.attribute("backend").exists() {
            return Ok(device);
        }
        device.disconnect()?;
        Err(Self::nameless())
    }

    /// Returns the error for a kernel that does not keep the name of a device's backend.
    pub fn nameless() -> anyhow::Error {
        let text = "this kernel forgets what a network block device is for: it must be Linux 5.14 or newer";
        Failure::new(Code::ToolMissing, text).into()
    }

    /// Returns its node.
    pub fn path(self) -> PathBuf {
        PathBuf::from(format!("/dev/nbd{}", self.0))
    }

    /// Reports whether it is connected or still in use.
    pub fn is_left(self) -> bool {
        self.attribute("backend").exists()
    }

    /// Returns its size, as the kernel sees it.
    pub fn size(self) -> Result<u64> {
        let path = self.attribute("size");
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(text.trim().parse::<u64>()?.saturating_mul(SECTOR.into()))
    }

    /// Makes the kernel use this size.
    pub fn resize(self, backend: &str, size: u64) -> Result<()> {
        let wish = self.named().text(number::BACKEND, backend).long(number::SIZE, size);
        kernel()?
            .request(number::RECONFIGURE, &wish)
            .map(drop)
            .with_context(|| format!("change the size of {}", self.path().display()))
    }

    /// Sets the time that reads and writes wait for another connection when theirs has ended,
    /// before they fail.
    pub fn bridge(self, backend: &str, gap: Duration) -> Result<()> {
        let wish = self.named().text(number::BACKEND, backend).long(number::GAP, gap.as_secs());
        kernel()?
            .request(number::RECONFIGURE, &wish)
            .map(drop)
            .with_context(|| format!("hold back what {} is told", self.path().display()))
    }

    /// Gives the kernel another connection to the same export, in place of one that has ended.
    /// If none has ended, it is not used. The size becomes the current one of the export.
    pub fn reconnect(self, backend: &str, served: &Served) -> Result<()> {
        let wish = self
            .named()
            .text(number::BACKEND, backend)
            .long(number::SIZE, served.export.size)
            .nested(number::SOCKETS, &served.socket()?);
        kernel()?
            .request(number::RECONFIGURE, &wish)
            .map(drop)
            .with_context(|| format!("connect {} again", self.path().display()))
    }

    /// Ends the connection, and with it all requests that wait for the server.
    /// Succeeds if the device is not connected.
    pub fn disconnect(self) -> Result<()> {
        let Some(family) = Family::find(FAMILY)? else { return self.hang_up() };
        match family.request(number::DISCONNECT, &self.named()) {
            Err(error) if !matches!(error.downcast_ref(), Some(&(Errno::INVAL | Errno::NODEV))) => {
                Err(error).with_context(|| format!("disconnect {}", self.path().display()))
            }
            _ => Ok(()),
        }
    }

    /// Does the same from another network namespace: the kernel listens only in the node's own.
    fn hang_up(self) -> Result<()> {
        let path = self.path();
        let ended = match rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
            Err(Errno::NOENT | Errno::NXIO) => return Ok(()),
            opened => opened.map_err(Into::into).and_then(|device| raw::nbd_end(device.as_fd())),
        };
        ended.with_context(|| format!("disconnect {}", path.display()))
    }

    fn named(self) -> Attributes {
        Attributes::default().short(number::INDEX, self.0)
    }

    fn attribute(self, name: &str) -> PathBuf {
        Path::new(DEVICES).join(format!("nbd{}", self.0)).join(name)
    }
}

/// Fails if the kernel accepts no connections from here.
pub fn check() -> Result<()> {
    kernel().map(drop)
}

fn kernel() -> Result<Family> {
    Family::find(FAMILY)?.ok_or_else(|| {
        let text = if Path::new(MODULE).exists() {
            "the kernel connects network block devices only from the host's network namespace: run kubelet there (hostNetwork: true)"
        } else {
            "the kernel has no network block devices: load them (modprobe nbd), at each boot by /etc/modules-load.d"
        };
        Failure::new(Code::ToolMissing, text).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::to_failure;
    use crate::wording::wording;

    /// Server that sends what it was given, and records what it receives.
    struct Script {
        says: std::io::Cursor<Vec<u8>>,
        heard: Vec<u8>,
    }

    impl Read for Script {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.says.read(buffer)
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.heard.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn reply(kind: u32, data: &[u8]) -> Vec<u8> {
        let length = u32::try_from(data.len()).unwrap();
        [&REPLY.to_be_bytes()[..], &GO.to_be_bytes(), &kind.to_be_bytes(), &length.to_be_bytes(), data]
            .concat()
    }

    fn played(says: &[&[u8]]) -> (Result<Export, Failure>, Vec<u8>) {
        let mut script = Script { says: std::io::Cursor::new(says.concat()), heard: Vec::new() };
        let result = greet(&mut script, "web");
        (result.map_err(to_failure), script.heard)
    }

    fn refused(says: &[&[u8]]) -> String {
        played(says).0.unwrap_err().message()
    }

    const FIXED: &[u8] = &[0, 3];

    #[test]
    fn an_export_is_asked_for_by_name() {
        let export = [&[0, 0][..], &(1_u64 << 30).to_be_bytes(), &[0, 5]].concat();
        let block = [&[0, 3][..], &4096_u32.to_be_bytes(), &[0; 8]].concat();
        let says = [GREETING, FIXED, &reply(INFO, &export), &reply(INFO, &block), &reply(ACK, b"")];
        let (result, heard) = played(&says);
        assert_eq!(result.unwrap(), Export { size: 1 << 30, flags: 5, block: 4096 });
        assert_eq!(heard, b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x0b\0\0\0\x03web\0\x01\0\x03");
    }

    #[test]
    fn the_older_way_will_do() {
        let size = 4096_u64.to_be_bytes();
        let says: [&[u8]; 5] = [GREETING, FIXED, &reply(UNSUPPORTED, b""), &size, &[0, 1]];
        let (result, heard) = played(&says);
        assert_eq!(result.unwrap(), Export { size: 4096, flags: 1, block: SECTOR });
        assert!(heard.ends_with(b"IHAVEOPT\0\0\0\x01\0\0\0\x03web"));
        assert!(refused(&says[..3]).contains("no export \"web\""));
    }

    #[test]
    fn a_refusal_is_explained() {
        let answered = |kind| refused(&[GREETING, FIXED, &reply(kind, b"")]);
        assert!(answered(UNKNOWN).contains("no export \"web\""));
        assert!(answered(TLS_REQUIRED).contains("requires TLS"));
        assert!(answered(POLICY).contains(wording("node-not-served")));
        assert!(answered((1 << 31) + 7).contains("0x80000007"));
        assert!(refused(&[b"SSH-2.0-OpenSSH_9.2", b"xxxxxxxxxx"]).contains("fixed-newstyle"));
        assert!(refused(&[GREETING, &[0, 0]]).contains("fixed-newstyle"));
        assert!(refused(&[GREETING]).contains("hung up"));
        let endless = reply(INFO, b"")[..16].iter().copied().chain([255; 4]).collect::<Vec<_>>();
        assert!(refused(&[GREETING, FIXED, &endless]).contains("protocol"));
    }
}

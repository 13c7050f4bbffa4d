//! Requests to a part of the kernel by generic netlink (netlink(7), linux/genetlink.h).

use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use rustix::net::{recv, send, socket_with};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Limit for an answer. The kernel takes longer only if it waits where it must not.
const NETLINK_WAIT: Duration = Duration::from_secs(20);

/// Control family that knows the others, its command for finding one, and the attributes of that
/// request and its answer.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// `NLM_F_REQUEST | NLM_F_ACK`.
const REQUEST: u16 = 1 | 4;

/// `NLMSG_ERROR`, which also ends an answer.
const ERROR: u16 = 2;

/// `NLA_F_NESTED`.
const NESTED: u16 = 1 << 15;

/// Sizes of `struct nlmsghdr`, `struct genlmsghdr` and `struct nlattr`.
const HEADER: usize = 16;
const COMMAND: usize = 4;
const ATTRIBUTE: usize = 4;

/// A family of the kernel, such as `nbd`.
pub(crate) struct Family {
    socket: OwnedFd,
    id: u16,
}

/// Content of a request or of an answer: numbered values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes(Vec<u8>);

impl Family {
    /// Returns the family of this name; `None` if the kernel does not have it, or not now.
    pub(crate) fn find(name: &str) -> Result<Option<Self>> {
        let kind = Some(netlink::GENERIC);
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, kind)
            .context("make a netlink socket")?;
        set_socket_timeout(&socket, Timeout::Recv, Some(NETLINK_WAIT))?;
        let control = Self { socket, id: CONTROL };
        match control.request(GET_FAMILY, &Attributes::default().text(FAMILY_NAME, name)) {
            Ok(answer) => {
                let id = answer.find(FAMILY_ID).and_then(|bytes| bytes.try_into().ok());
                let id = u16::from_ne_bytes(id.context("netlink: a family has no number")?);
                Ok(Some(Self { id, ..control }))
            }
            Err(error) if error.downcast_ref() == Some(&Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a request and waits for the answer; a refusal of the kernel is an [`Errno`].
    pub(crate) fn request(&self, command: u8, attributes: &Attributes) -> Result<Attributes> {
        let length = u32::try_from(HEADER + COMMAND + attributes.0.len())?;
        let mut message = Vec::new();
        message.extend_from_slice(&length.to_ne_bytes());
        message.extend_from_slice(&self.id.to_ne_bytes());
        message.extend_from_slice(&REQUEST.to_ne_bytes());
        // Number and sender, which the kernel fills in; then version 1 of the command.
        message.extend_from_slice(&[0; 8]);
        message.extend_from_slice(&[command, 1, 0, 0]);
        message.extend_from_slice(&attributes.0);
        send(&self.socket, &message, SendFlags::empty()).context("ask the kernel by netlink")?;
        let mut answer = Attributes::default();
        loop {
            let mut buffer = vec![0; 1 << 14];
            let (_, length) = recv(&self.socket, &mut buffer, RecvFlags::empty())
                .context("wait for the kernel's answer by netlink")?;
            if read_answer(&buffer[..length.min(buffer.len())], &mut answer)? {
                return Ok(answer);
            }
        }
    }
}

/// Reads a part of the answer. Returns true at its end.
fn read_answer(mut bytes: &[u8], answer: &mut Attributes) -> Result<bool> {
    while bytes.len() >= HEADER {
        let length = u32::from_ne_bytes(bytes[..4].try_into()?) as usize;
        ensure!((HEADER..=bytes.len()).contains(&length), "netlink: a message is cut off");
        let content = &bytes[HEADER..length];
        if u16::from_ne_bytes(bytes[4..6].try_into()?) == ERROR {
            return match content.get(..4).map(|number| number.try_into().map(i32::from_ne_bytes)) {
                Some(Ok(0)) => Ok(true),
                Some(Ok(number)) => Err(Errno::from_raw_os_error(number.wrapping_neg()).into()),
                _ => bail!("netlink: an error has no number"),
            };
        }
        answer.0.extend_from_slice(content.get(COMMAND..).unwrap_or_default());
        bytes = &bytes[aligned(length).min(bytes.len())..];
    }
    Ok(false)
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

impl Attributes {
    fn with(mut self, kind: u16, bytes: &[u8]) -> Self {
        // No caller has more than a few hundred bytes.
        let length = u16::try_from(ATTRIBUTE + bytes.len()).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(bytes);
        self.0.resize(aligned(self.0.len()), 0);
        self
    }

    /// Adds a text.
    pub(crate) fn text(self, kind: u16, text: &str) -> Self {
        self.with(kind, format!("{text}\0").as_bytes())
    }

    /// Adds a number of 32 bits.
    pub(crate) fn short(self, kind: u16, number: u32) -> Self {
        self.with(kind, &number.to_ne_bytes())
    }

    /// Adds a number of 64 bits.
    pub(crate) fn long(self, kind: u16, number: u64) -> Self {
        self.with(kind, &number.to_ne_bytes())
    }

    /// Adds nested values.
    pub(crate) fn nested(self, kind: u16, inside: &Self) -> Self {
        self.with(kind | NESTED, &inside.0)
    }

    /// Returns the value with this number.
    pub(crate) fn find(&self, wanted: u16) -> Option<&[u8]> {
        let mut rest = self.0.as_slice();
        loop {
            let length = usize::from(u16::from_ne_bytes(rest.get(..2)?.try_into().ok()?));
            let kind = u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?);
            let value = rest.get(ATTRIBUTE..length)?;
            if kind & !NESTED == wanted {
                return Some(value);
            }
            rest = rest.get(aligned(length)..)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_knows_a_family_or_not() {
        assert_eq!(Family::find("nlctrl").unwrap().map(|family| family.id), Some(CONTROL));
        assert!(Family::find("no such family").unwrap().is_none());
    }

    #[test]
    fn values_are_found_again() {
        let inside = Attributes::default().short(1, 7);
        let all = Attributes::default().text(10, "abcd").long(2, 9).nested(7, &inside);
        assert_eq!(all.0.len() % 4, 0);
        assert_eq!(all.find(10), Some(&b"abcd\0"[..]));
        assert_eq!(all.find(2), Some(&9_u64.to_ne_bytes()[..]));
        assert_eq!(all.find(7), Some(&inside.0[..]));
        assert_eq!(all.find(3), None);
        assert_eq!(Attributes(vec![200, 0, 1, 0]).find(1), None);
    }

    #[test]
    fn what_is_cut_off_is_no_answer() {
        let mut answer = Attributes::default();
        assert!(!read_answer(&[0; 3], &mut answer).unwrap());
        assert!(read_answer(&[255; 20], &mut answer).is_err());
        let refused = [20, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 240, 255, 255, 255];
        let error = read_answer(&refused, &mut answer).unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&Errno::BUSY));
    }
}

//! Meaning of the errno of a failed system call, whichever library reports it.

pub use rustix::io::Errno;

use flexvol_protocol::failure::{Code, Failure};
use std::error::Error;
use std::{fmt, io};

/// Converts an error into the failure to report.
/// A `Failure` in the chain keeps its code; an errno gets the obvious one.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub fn to_failure(error: anyhow::Error) -> Failure {
    told(&error, |_| None)
}

/// Does the same as [`to_failure`], with better texts.
/// If `better` returns a text for a cause, it replaces the cause's own text.
pub fn told(error: &anyhow::Error, better: impl Fn(&(dyn Error + 'static)) -> Option<String>) -> Failure {
    let words = error.chain().map(|cause| better(cause).unwrap_or_else(|| cause.to_string()));
    Failure::new(code_of(error), words.collect::<Vec<_>>().join(": "))
}

/// Returns the failure code of an error.
pub fn code_of(error: &anyhow::Error) -> Code {
    match error.downcast_ref::<Failure>() {
        Some(inner) => inner.code(),
        None if error.is::<Missing>() => Code::ToolMissing,
        None if error.is::<NotAllowed>() => Code::Denied,
        None => errno_of(error).map_or(Code::Internal, code_of_errno),
    }
}

/// Error for a program that is missing on this node.
#[derive(Debug)]
pub struct Missing(pub String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not on this node", self.0)
    }
}

impl Error for Missing {}

/// Error for a mount that the kernel refuses because the process is not permitted to mount at all.
/// Neither the server nor the options are the cause.
#[derive(Debug)]
pub struct NotAllowed(pub Errno);

impl fmt::Display for NotAllowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for NotAllowed {}

/// Reports whether an error is only an errno, without the action that failed.
pub fn is_bare(error: &anyhow::Error) -> bool {
    let is_number = error.is::<io::Error>() || error.is::<Errno>() || error.is::<nix::Error>();
    is_number && error.chain().count() == 1
}

/// Returns the errno, if one of the causes is an errno.
pub fn errno_of(error: &anyhow::Error) -> Option<Errno> {
    let number = |cause: &(dyn Error + 'static)| {
        cause
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error)
            .or_else(|| cause.downcast_ref::<nix::Error>().map(|errno| *errno as i32))
            .or_else(|| cause.downcast_ref::<Errno>().map(|errno| errno.raw_os_error()))
    };
    error.chain().find_map(number).map(Errno::from_raw_os_error)
}

fn code_of_errno(errno: Errno) -> Code {
    match errno {
        Errno::NOENT | Errno::NXIO | Errno::NODEV => Code::NotFound,
        Errno::BUSY => Code::Busy,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => Code::Denied,
        Errno::TIMEDOUT => Code::Timeout,
        _ => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn code_survives_context() {
        let inner: anyhow::Result<()> = Err(Failure::new(Code::Conflict, "in use").into());
        let outer = to_failure(inner.context("mount /a").unwrap_err());
        assert_eq!((outer.code(), outer.message().as_str()), (Code::Conflict, "mount /a: in use"));
        for errno in [
            anyhow::Error::new(nix::Error::EBUSY),
            Errno::BUSY.into(),
            io::Error::from_raw_os_error(nix::Error::EBUSY as i32).into(),
        ] {
            assert_eq!(to_failure(errno.context("umount /a")).code(), Code::Busy);
        }
    }
}

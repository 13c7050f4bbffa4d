//! What a failed system call's number says, in whatever library's words it came.

use crate::failure::{Code, Failure};
use rustix::io::Errno;
use std::error::Error;
use std::{fmt, io};

/// The failure that an error is for the rest of the world: a `Failure` made further down keeps its code, an errno gets the
/// obvious one.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub fn to_failure(error: anyhow::Error) -> Failure {
    let message = format!("{error:#}");
    let code = match error.downcast_ref::<Failure>() {
        Some(inner) => inner.code(),
        None => errno_of(&error).map_or(Code::Internal, code_of),
    };
    Failure::new(code, message)
}

/// The error of something that was then rolled back. If that failed, too, `what` is still there.
pub fn after_rollback(
    error: anyhow::Error,
    undone: anyhow::Result<()>,
    what: impl fmt::Display,
) -> anyhow::Error {
    match undone {
        Ok(()) => error,
        Err(left) => to_failure(error).with_residue(format!("{what} ({left:#})")).into(),
    }
}

/// The number, if one of the causes is one.
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

fn code_of(errno: Errno) -> Code {
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
    fn what_could_not_be_rolled_back_is_named() {
        let failed = || anyhow::Error::from(Failure::new(Code::Busy, "attach failed"));
        assert_eq!(after_rollback(failed(), Ok(()), "a device").to_string(), "attach failed");
        let left = to_failure(after_rollback(failed(), Err(anyhow::anyhow!("it hangs")), "a device"));
        assert_eq!(left.code(), Code::Busy);
        assert_eq!(left.message(), "attach failed; left behind: a device (it hangs)");
    }

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

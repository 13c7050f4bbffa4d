//! The terminal that somebody looks at.

use rustix::termios::tcgetwinsize;
use std::os::fd::AsFd;

/// How many columns it has; `None` of what is no terminal, or does not know.
pub fn columns(fd: impl AsFd) -> Option<usize> {
    let size = tcgetwinsize(fd).ok()?;
    (size.ws_col > 0).then_some(size.ws_col.into())
}

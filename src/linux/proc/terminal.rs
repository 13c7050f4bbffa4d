//! Terminal of a user.

use rustix::termios::tcgetwinsize;
use std::os::fd::AsFd;

/// Returns its number of columns; `None` if it is not a terminal, or does not report its size.
pub fn columns(fd: impl AsFd) -> Option<usize> {
    let size = tcgetwinsize(fd).ok()?;
    (size.ws_col > 0).then_some(size.ws_col.into())
}

//! The cases, one file a group.

mod mount;
mod output;

use super::case::Case;

/// In the order in which they are reported.
pub(super) static ALL: &[&[Case]] = &[output::CASES, mount::CASES];

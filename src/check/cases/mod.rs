//! The cases, one file a group.

mod attach;
mod environment;
mod expand;
mod install;
mod left;
mod mount;
mod output;
mod sequence;

use super::case::Case;

/// In the order in which they are reported.
pub(super) static ALL: &[&[Case]] = &[
    output::CASES,
    environment::CASES,
    mount::CASES,
    attach::CASES,
    attach::DEVICE,
    attach::DISK,
    expand::CASES,
    install::CASES,
    sequence::CASES,
    sequence::NODE,
    left::CASES,
];

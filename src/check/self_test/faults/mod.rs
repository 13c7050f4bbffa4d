//! The faults, one file a group of cases.

mod attach;
mod expand;
mod install;
mod left;
mod mount;
mod output;
mod sequence;
mod storm;

use super::Fault;

/// In the order in which they are reported.
pub(super) static ALL: &[&[Fault]] =
    &[
    output::FAULTS,
    mount::FAULTS,
    left::FAULTS,
    attach::FAULTS,
    expand::FAULTS,
    install::FAULTS,
    sequence::FAULTS,
    storm::FAULTS,
];

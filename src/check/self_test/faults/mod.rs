//! The faults, one file a group of cases.

mod attach;
mod expand;
mod left;
mod mount;
mod nature;
mod output;
mod unmount;

use super::Fault;

/// In the order in which they are reported.
pub(super) static ALL: &[&[Fault]] = &[
    output::FAULTS,
    mount::FAULTS,
    unmount::FAULTS,
    nature::FAULTS,
    left::FAULTS,
    attach::FAULTS,
    expand::FAULTS,
];

//! The faults, one file a group of cases.

mod attach;
mod crash;
mod expand;
mod left;
mod mount;
mod output;

use super::Fault;

/// In the order in which they are reported.
pub(super) static ALL: &[&[Fault]] =
    &[output::FAULTS, mount::FAULTS, left::FAULTS, attach::FAULTS, expand::FAULTS, crash::FAULTS];

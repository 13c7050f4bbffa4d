//! Faults, one file for each group of cases.

mod answers;
mod attach;
mod crash;
mod environment;
mod expand;
mod init;
mod install;
mod left;
mod mount;
mod nature;
mod options;
mod output;
mod secrets;
mod sequence;
mod storm;
mod unmount;
mod verbs;

use super::{Fault, Laid};

/// All faults, in the order in which they are reported.
pub(super) static ALL: &[&[Fault]] = &[
    output::FAULTS,
    answers::FAULTS,
    init::FAULTS,
    verbs::FAULTS,
    environment::FAULTS,
    install::FAULTS,
    options::FAULTS,
    secrets::SECRETS,
    secrets::LOGS,
    mount::FAULTS,
    unmount::FAULTS,
    nature::FAULTS,
    crash::FAULTS,
    storm::FAULTS,
    attach::FAULTS,
    expand::FAULTS,
    sequence::FAULTS,
    left::FAULTS,
];

/// Returns the placement of a driver of this name in the plugin directory.
pub(super) fn laid(name: &str) -> Laid {
    let found = install::LAID.iter().find(|(fault, _)| *fault == name);
    found.map_or(Laid::WELL, |(_, laid)| *laid)
}

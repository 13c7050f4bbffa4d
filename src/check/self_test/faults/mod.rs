//! The faults, one file a group of cases.

mod attach;
mod environment;
mod expand;
mod init;
mod install;
mod left;
mod mount;
mod options;
mod output;
mod verbs;

use super::{Fault, Laid};

/// In the order in which they are reported.
pub(super) static ALL: &[&[Fault]] = &[
    output::FAULTS,
    init::FAULTS,
    verbs::FAULTS,
    environment::FAULTS,
    install::FAULTS,
    options::FAULTS,
    mount::FAULTS,
    attach::FAULTS,
    expand::FAULTS,
    left::FAULTS,
];

/// How a driver of this name lies in the plugin directory.
pub(super) fn laid(name: &str) -> Laid {
    let found = install::LAID.iter().find(|(fault, _)| *fault == name);
    found.map_or(Laid::WELL, |(_, laid)| *laid)
}

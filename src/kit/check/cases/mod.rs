//! Cases, one file for each group.

mod attach;
mod crash;
mod daemon;
mod environment;
mod expand;
mod init;
mod install;
mod left;
mod log;
mod mount;
mod nature;
mod options;
mod output;
mod secrets;
mod sequence;
mod storm;
mod unmount;
mod verbs;

use super::case::Case;

/// All cases, group by group, in the order in which they are reported.
pub static CASES: &[&[Case]] = &[
    output::CASES,
    output::played::CASES,
    init::CASES,
    verbs::CASES,
    environment::CASES,
    options::CASES,
    options::VALUES,
    options::ACCESS,
    mount::CASES,
    crash::CASES,
    unmount::CASES,
    nature::METRICS,
    nature::LABELS,
    secrets::CASES,
    log::CASES,
    attach::CASES,
    attach::DEVICE,
    attach::DISK,
    expand::CASES,
    install::CASES,
    install::EXECUTABLE,
    storm::CASES,
    daemon::CASES,
    sequence::CASES,
    sequence::NODE,
    left::CASES,
];

impl Case {
    /// Returns all cases.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        CASES.iter().copied().flatten()
    }

    /// Returns the case with that id.
    pub fn named(id: &str) -> Option<&'static Self> {
        Self::all().find(|case| case.id == id)
    }
}

//! Shared parts of the programs' command lines: arguments, output, exit statuses.
//!
//! [`program`] runs a program from its command line to its exit status. [`screen`] prints, [`exit`]
//! reports errors, [`progress`] shows at a terminal what a long call is doing, [`emit`] writes
//! objects as YAML, [`rights`] makes accounts and roles, [`image`] checks the images that they
//! name. [`arguments`] parses the arguments of a call; [`plan`], [`report`], [`capabilities`] and
//! [`probing`] show what several commands show.

pub mod arguments;
pub mod capabilities;
pub mod completions;
pub mod driver_dir;
pub mod emit;
pub mod exit;
pub mod image;
pub mod man;
pub mod plan;
pub mod probing;
pub mod program;
pub mod progress;
pub mod report;
pub mod rights;
pub mod screen;

#[cfg(test)]
#[path = "../../tests/support/wording.rs"]
mod wording;

//! What the command lines of the programs share: arguments, output, exit statuses.
//!
//! [`program`] is the way from a command line to an exit status. [`screen`] prints, [`exit`] ends,
//! [`progress`] tells at a terminal what a long call is doing, [`emit`] writes objects as YAML,
//! [`image`] knows the images of those.
//! [`arguments`] parses those of a call; [`plan`], [`report`], [`capabilities`] and [`probing`]
//! show what more than one command shows.

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
pub mod screen;

#[cfg(test)]
#[path = "../../tests/support/wording.rs"]
mod wording;

//! What the programs for people have in common: what they take from a command line, and how they
//! show what they did.
//!
//! [`screen`] prints, [`exit`] ends, [`progress`] says at a terminal what takes so long.
//! [`arguments`] are those of a call, [`plan`], [`report`], [`capabilities`] and [`probing`] what
//! more than one command shows.

pub mod arguments;
pub mod capabilities;
pub mod completions;
pub mod driver_dir;
pub mod exit;
pub mod man;
pub mod plan;
pub mod probing;
pub mod progress;
pub mod report;
pub mod screen;

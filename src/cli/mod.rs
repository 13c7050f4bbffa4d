//! The admin's command line.

use std::ffi::OsString;
use std::process::ExitCode;

/// Stand-in.
pub fn main(_: Vec<OsString>) -> ExitCode {
    ExitCode::SUCCESS
}

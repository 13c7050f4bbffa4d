//! A program for people, from its command line to its exit status.

use crate::exit::{complain, usage, wants_json};
use crate::screen::Screen;
use anyhow::{Error, Result};
use clap::Parser;
use std::ffi::OsString;
use std::process::ExitCode;

/// Differences between the command lines of the programs.
pub trait Program: Parser {
    /// Reports whether output is to be JSON.
    fn json(&self) -> bool;

    /// Does what the command line (`arguments`, the program first) says.
    fn run(self, arguments: &[OsString], screen: &mut Screen) -> Result<ExitCode>;

    /// Returns the message and the exit status for a command that failed.
    fn failed(error: Error) -> (String, u8);

    /// Returns a text that replaces clap's for a command line that cannot be parsed.
    fn explain(_error: &clap::Error) -> Option<String> {
        None
    }
}

/// Reads the command line (`arguments[0]` is the program) and does what it says.
pub fn main<P: Program>(arguments: &[OsString]) -> ExitCode {
    let program = match P::try_parse_from(arguments) {
        Ok(program) => program,
        Err(error) => return usage(&error, P::explain(&error), wants_json(arguments)),
    };
    let json = program.json();
    let done = program.run(arguments, &mut Screen::standard(json));
    done.unwrap_or_else(|error| complain(error, P::failed, json))
}

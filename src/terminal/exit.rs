//! How a command ends: exit statuses, and what is said when it failed.

use anyhow::Error;
use clap::error::ErrorKind;
use flexvol_protocol::text::{is_unprintable, one_line};
use serde_json::json;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// Wrong usage.
pub const USAGE: u8 = 2;
/// The driver does not have the verb.
pub const NOT_SUPPORTED: u8 = 3;

/// Whether an error is wanted as JSON. A line that cannot be parsed may still say so.
pub fn wants_json(arguments: &[OsString]) -> bool {
    arguments.iter().take_while(|word| *word != "--").any(|word| word == "--json")
}

/// Of a command line that cannot be parsed, with clap's words or others. Help and version are no
/// errors, but clap hands them out the same way.
pub fn usage(error: &clap::Error, words: Option<String>, json: bool) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // Nothing to be done about a closed terminal.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = words.unwrap_or_else(|| error.render().to_string());
    // A value that is refused comes with its fix.
    let complete = error.kind() == ErrorKind::ValueValidation;
    let text = text.split("\n\n").next().filter(|_| complete).unwrap_or(&text);
    say(text.strip_prefix("error: ").unwrap_or(text), json);
    ExitCode::from(USAGE)
}

/// Of a command that failed; `failed` makes words and an exit status of it.
pub fn complain(error: Error, failed: impl FnOnce(Error) -> (String, u8), json: bool) -> ExitCode {
    // Whoever reads us has seen enough, as in `flexvol drivers | head -1`.
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    let (message, status) = failed(error);
    say(&one_line(&message, usize::MAX), json);
    ExitCode::from(status)
}

/// Prints an error. Nothing can be done about a closed terminal here either.
pub fn say(message: &str, json: bool) {
    if json {
        let _ = writeln!(io::stdout(), "{}", json!({"error": one_line(message, usize::MAX)}));
    } else {
        to_people(message);
    }
}

/// Prints what whoever reads the output alone would miss.
pub fn warn(message: &str) {
    to_people(&format!("warning: {message}"));
}

/// Names of files and words of others are in it, and this is a terminal.
fn to_people(message: &str) {
    let plain = |c: char| if is_unprintable(c) && c != '\n' { '?' } else { c };
    let plain = message.trim_end().chars().map(plain).collect::<String>();
    let _ = writeln!(io::stderr(), "flexvol: {plain}");
}

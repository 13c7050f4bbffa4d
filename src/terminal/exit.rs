//! Exit statuses and error messages of commands.

use anyhow::Error;
use clap::error::ErrorKind;
use flexvol_protocol::text::{is_unprintable, one_line};
use serde_json::json;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// Exit status for wrong usage.
pub const USAGE: u8 = 2;
/// Exit status if the driver does not have the verb.
pub const NOT_SUPPORTED: u8 = 3;

/// Reports whether errors are to be JSON. A command line that cannot be parsed may still ask for
/// it.
pub fn wants_json(arguments: &[OsString]) -> bool {
    arguments.iter().take_while(|word| *word != "--").any(|word| word == "--json")
}

/// Reports a command line that cannot be parsed, in `words` or clap's own text. Help and version
/// are no errors, but clap returns them the same way.
pub fn usage(error: &clap::Error, words: Option<String>, json: bool) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // Nothing can be done about a closed terminal.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand && !json {
        let _ = error.print();
        return ExitCode::from(USAGE);
    }
    let text = words.unwrap_or_else(|| error.render().to_string());
    // The text of a refused value already contains the fix in its first paragraph.
    let complete = error.kind() == ErrorKind::ValueValidation;
    let text = text.split("\n\n").next().filter(|_| complete).unwrap_or(&text);
    say(text.strip_prefix("error: ").unwrap_or(text), json);
    ExitCode::from(USAGE)
}

/// Reports the error of a command; `failed` turns it into a message and an exit status.
pub fn complain(error: Error, failed: impl FnOnce(Error) -> (String, u8), json: bool) -> ExitCode {
    // The reader has closed the pipe, as in `flexvol drivers | head -1`.
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    let (message, status) = failed(error);
    say(&one_line(&message, usize::MAX), json);
    ExitCode::from(status)
}

/// Prints an error. Ignores a closed terminal, too.
pub fn say(message: &str, json: bool) {
    if json {
        let _ = writeln!(io::stdout(), "{}", json!({"error": one_line(message, usize::MAX)}));
    } else {
        to_people(message);
    }
}

/// Prints a warning that a reader of the output alone would miss.
pub fn warn(message: &str) {
    to_people(&format!("warning: {message}"));
}

/// Prints to standard error. File names and foreign text in the message must not control a
/// terminal.
fn to_people(message: &str) {
    let plain = |c: char| if is_unprintable(c) && c != '\n' { '?' } else { c };
    let plain = message.trim_end().chars().map(plain).collect::<String>();
    let _ = writeln!(io::stderr(), "flexvol: {plain}");
}

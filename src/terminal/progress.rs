//! Progress line at a terminal during long work: a file system is made or checked, an image
//! allocated.

use crate::screen::{Screen, bytes};
use flexvol_linux::proc::progress::{AtWork, ProgressWatch, youngest_of};
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

/// Delay before the progress line: shorter work shows none.
const SHOW_AFTER: Duration = Duration::from_secs(1);

/// Shows on standard error which program works for this process, in a line that is removed when the
/// result is dropped. Shows nothing without a terminal, or if JSON is wanted.
pub fn show(screen: &Screen) -> Option<ProgressWatch> {
    let wanted = io::stderr().is_terminal() && !screen.wants_json();
    wanted.then(|| start(std::process::id())).flatten()
}

fn start(worker: u32) -> Option<ProgressWatch> {
    let mut shown = false;
    ProgressWatch::start(move |after| {
        let wanted = after.filter(|after| *after >= SHOW_AFTER);
        if let Some((after, at_work)) = wanted.zip(youngest_of(worker)) {
            put(&line(after, &at_work));
            shown = true;
        } else if shown && after.is_none() {
            put("");
        }
    })
    .ok()
}

fn line(after: Duration, at_work: &AtWork) -> String {
    let AtWork { name, read, written } = at_work;
    let plain: String = name.chars().filter(|c| !flexvol_protocol::text::is_unprintable(*c)).collect();
    format!("{} s: {plain} is at work, {} read, {} written", after.as_secs(), bytes(*read), bytes(*written))
}

/// Replaces the text of the line.
fn put(text: &str) {
    let _ = write!(io::stderr(), "\r{text}\x1b[K");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_who_works_and_how_much() {
        let at_work = AtWork { name: "mkfs.ext4\x1b[2J".into(), read: 0, written: 3 << 20 };
        assert_eq!(
            line(Duration::from_millis(4200), &at_work),
            "4 s: mkfs.ext4[2J is at work, 0 read, 3Mi written"
        );
    }
}

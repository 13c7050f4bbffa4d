//! Leftovers that must not exist after a volume is gone.
//! They are searched for at the end of every case that ended well.

use crate::check::case::{How, Scene, Seen};
use crate::check::evidence::Evidence;
use crate::check::left::Left;
use flexvol_protocol::text::one_line;

/// Limit for the number of things that are named.
const NAMED: usize = 5;

/// Limit for the description of one thing, in bytes.
const LONGEST: usize = 300;

pub(in crate::check) const SCENES: &[Scene] = &[
    ("left::mounts", How::Watched(mounts)),
    ("left::devices", How::Watched(devices)),
    ("left::processes", How::Watched(processes)),
    ("left::files", How::Watched(files)),
    ("left::own_directory", How::Watched(own_directory)),
];

fn mounts(seen: &Seen<'_>) -> Option<Vec<Evidence>> {
    find(seen, "still mounted", |left| &left.mounts)
}

fn devices(seen: &Seen<'_>) -> Option<Vec<Evidence>> {
    find(seen, "still there", |left| &left.devices)
}

fn processes(seen: &Seen<'_>) -> Option<Vec<Evidence>> {
    find(seen, "still running", |left| &left.processes)
}

fn files(seen: &Seen<'_>) -> Option<Vec<Evidence>> {
    find(seen, "left behind", |left| &left.files)
}

fn own_directory(seen: &Seen<'_>) -> Option<Vec<Evidence>> {
    find(seen, "made or changed in the driver's own directory", |left| &left.own_directory)
}

/// Builds one piece of evidence for all things of a kind.
fn find(seen: &Seen<'_>, what: &str, kind: fn(&Left) -> &Vec<String>) -> Option<Vec<Evidence>> {
    let found = kind(seen.left?);
    if found.is_empty() {
        return Some(Vec::new());
    }
    let named: Vec<_> = found.iter().take(NAMED).map(|each| one_line(&clean(seen, each), LONGEST)).collect();
    let more = match found.len() - named.len() {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let problem = format!("{what}: {}{more}", named.join(", "));
    Some(vec![Evidence::new(problem)])
}

/// Masks secrets, because a command line or a file name may hold one.
fn clean(seen: &Seen<'_>, text: &str) -> String {
    seen.answers.iter().fold(text.to_owned(), |text, answer| answer.asked.redactor().clean(&text))
}

//! One file for all drivers that are the same program: a hard link to what is installed under another name.
//!
//! It takes no room and no memory twice. Nothing is ever written to an executable, so what happens to one
//! driver happens to no other: an upgrade renames a new file over one name, and the others keep theirs.

use super::stage::Labels;
use crate::plugin_dir::fingerprint::Fingerprint;
use crate::plugin_dir::found::PROGRAM_MODE;
use crate::settings::{SIDE_FILE, SIZE_LIMIT, Settings};
use crate::sys::directory::{Directory, Kind};
use std::ffi::OsStr;

/// Links the executable of another driver that is this program to a new name in `home`; whether there is one.
/// Where that is not possible the program is copied, so no failure is an error.
pub(super) fn link(
    plugins: &Directory,
    home: &Directory,
    new: &str,
    program: &Fingerprint,
    labels: &Labels,
) -> bool {
    let names = plugins.names().unwrap_or_default();
    names.iter().any(|name| {
        let linked = linked(plugins, name, home, new, program).is_some();
        let fit = linked && is_fit(home, new, program, labels).unwrap_or_default();
        if linked && !fit {
            // A name that could not be removed is a leftover, and the copy gets another.
            let _ = home.remove(new);
        }
        fit
    })
}

fn linked(
    plugins: &Directory,
    name: &OsStr,
    home: &Directory,
    new: &str,
    program: &Fingerprint,
) -> Option<()> {
    let text = name.to_str().filter(|name| !name.starts_with('.'))?;
    let is_directory = plugins.look(name).ok()??.kind == Kind::Directory;
    let other = plugins.child(name).ok()?.filter(|_| is_directory)?;
    let side_file = String::from_utf8(other.read(SIDE_FILE, SIZE_LIMIT).ok()??).ok()?;
    let claimed = Settings::parse(&side_file).ok()?.hash?;
    let executable = text.rsplit('~').next()?;
    (claimed == program.hash).then(|| other.hard_link(executable, home, new).ok())?
}

/// Whether it is what a copy would be; `None` if that cannot be told.
fn is_fit(home: &Directory, new: &str, program: &Fingerprint, labels: &Labels) -> Option<bool> {
    let entry = home.look(new).ok()??;
    let alike = entry.kind == Kind::File && entry.mode == PROGRAM_MODE && entry.is_own();
    let labelled = labels.program.is_none() || home.label_of(new) == labels.program;
    if !alike || !labelled {
        return Some(false);
    }
    let file = home.file(new).ok()??;
    Some(Fingerprint::of(file).ok()?.hash == program.hash)
}

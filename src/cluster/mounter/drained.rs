//! Volumes that a mount pod serves: once it serves no volume, it may be replaced.
//!
//! A program that serves a volume has the volume's name in its environment, and the driver's note
//! about the volume names the pod. So the volumes can be found in the pod, which sees its own
//! processes, and on the node, which sees the processes of all pods.

use anyhow::{Context as _, Result};
use flexvol_linux::fs::files;
use flexvol_linux::proc::orphans;
use flexvol_model::mounter::{NOTE, NOTE_LIMIT, Note, SERVES, volume};
use flexvol_model::paths;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Pause between two checks.
const TICK: Duration = Duration::from_millis(500);

/// Pod whose volumes are searched.
#[derive(Debug)]
pub struct Whose {
    /// Uid of the pod.
    pub pod: String,
    /// True if this process runs in that pod: volumes without a note are then its own.
    pub is_here: bool,
}

/// Returns the names of the volumes that it serves.
pub fn served(whose: &Whose) -> Result<BTreeSet<String>> {
    let all = orphans::all_with(SERVES).context("look at the programs that serve volumes")?;
    let notes = paths::run(paths::DAEMONS);
    Ok(all.into_iter().map(|(_, name)| name).filter(|name| is_of(whose, name, &notes)).collect())
}

fn is_of(whose: &Whose, name: &str, notes: &Path) -> bool {
    // Any process may have such a word in its environment.
    let Ok(name) = volume(name) else { return false };
    let note = files::read_small(&notes.join(name).join(NOTE), NOTE_LIMIT).ok().flatten();
    note.map_or(whose.is_here, |note| Note::parse(&note).pod.pod_uid == whose.pod)
}

/// Waits, at most for `patience`, until it serves no volume; returns the remaining volumes.
pub fn wait(whose: &Whose, patience: Duration) -> Result<BTreeSet<String>> {
    let begun = Instant::now();
    loop {
        let served = served(whose)?;
        if served.is_empty() || begun.elapsed() >= patience {
            return Ok(served);
        }
        std::thread::sleep(TICK.min(patience));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_volume_is_of_the_pod_that_its_note_names() {
        let notes = tempfile::tempdir().unwrap();
        let put = |name: &str, uid: &str| {
            std::fs::create_dir(notes.path().join(name)).unwrap();
            let mut note = Note::default();
            uid.clone_into(&mut note.pod.pod_uid);
            let mut file = std::fs::File::create(notes.path().join(name).join(NOTE)).unwrap();
            file.write_all(note.text().as_bytes()).unwrap();
        };
        put("a-1", "one");
        put("b-2", "two");
        let of = |is_here: bool| {
            let whose = Whose { pod: "one".to_owned(), is_here };
            let all = ["a-1", "b-2", "c-3", "../x", ""];
            all.into_iter().filter(|name| is_of(&whose, name, notes.path())).collect::<Vec<_>>()
        };
        assert_eq!((of(false), of(true)), (vec!["a-1"], vec!["a-1", "c-3"]));
    }
}

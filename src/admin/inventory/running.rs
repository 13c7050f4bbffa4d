//! Calls of drivers that have not ended, found by the processes of their executables. The arguments
//! hold secrets: only verb and target are reported.

use super::flex_dir;
use anyhow::Result;
use flexvol_linux::proc::process;
use flexvol_linux::proc::process_table::ProcessTable;
use flexvol_protocol::{DriverName, Verb};
use std::path::{Path, PathBuf};

/// One call, of any driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningCall {
    /// Its process.
    pub pid: u32,
    /// Executed program.
    pub executable: String,
    /// Verb that the driver was called with.
    pub verb: String,
    /// Directory where the volume is to be mounted or unmounted, for verbs with such a directory.
    pub target: Option<PathBuf>,
    /// Running time, in seconds.
    pub seconds: u64,
}

/// Returns the calls of executables below `directories`, and of any program with the arguments that
/// kubelet gives a driver. Of a call with several processes, it returns the first.
pub fn calls(directories: &[PathBuf]) -> Result<Vec<RunningCall>> {
    let Some(table) = ProcessTable::open(Path::new("/proc"))? else { return Ok(Vec::new()) };
    let mut found: Vec<RunningCall> = Vec::new();
    for process in table.matching(|words, _| position(words, directories).is_some())? {
        let Some(at) = position(&process.words, directories) else { continue };
        let word = |after: usize| process.words.get(at + after).cloned();
        let verb = word(1).unwrap_or_else(|| "?".to_owned());
        let target =
            word(2).filter(|word| verb.contains("mount") && word.starts_with('/')).map(PathBuf::from);
        let age = i32::try_from(process.pid).ok().and_then(process::age);
        let call = RunningCall {
            pid: process.pid,
            executable: word(0).unwrap_or_default(),
            verb,
            target,
            seconds: age.unwrap_or_default().as_secs(),
        };
        let is_same = |other: &RunningCall| {
            other.target.is_some() && (&other.verb, &other.target) == (&call.verb, &call.target)
        };
        if !found.iter().any(is_same) {
            found.push(call);
        }
    }
    Ok(found)
}

/// Returns the position of the executable among the words: a script's interpreter comes first.
fn position(words: &[String], directories: &[PathBuf]) -> Option<usize> {
    (0..words.len().min(2)).find(|at| {
        let executable = Path::new(&words[*at]);
        directories.iter().any(|directory| executable.starts_with(directory))
            || is_call(executable, &words[at + 1..])
    })
}

/// Reports whether the words are a verb and the directory of a volume of that driver.
fn is_call(executable: &Path, words: &[String]) -> bool {
    let [verb, target, ..] = words else { return false };
    let driver = || flex_dir(Path::new(target))?.driver;
    Verb::parse(verb.as_ref()).is_some()
        && driver()
            .is_some_and(|driver| executable.file_name() == Some(DriverName::executable_in(driver.as_ref())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_known_by_its_words_and_by_where_its_executable_is() {
        let at = |line: &str| {
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            position(&words, &["/plugins".into()])
        };
        let target = "/k/pods/7/volumes/v~d/data";
        for (line, expected) in [
            (format!("/elsewhere/v~d/d mount {target} {{}}"), Some(0)),
            (format!("/bin/sh /elsewhere/v~d/d unmount {target}"), Some(1)),
            ("/plugins/v~d/d waitforattach x {}".to_owned(), Some(0)),
            (format!("mount -t tmpfs mount {target}"), None),
            (format!("sh -c x d mount {target}"), None),
            (format!("vi {target}"), None),
            (format!("/elsewhere/v~e/e mount {target} {{}}"), None),
        ] {
            assert_eq!(at(&line), expected, "{line}");
        }
    }
}

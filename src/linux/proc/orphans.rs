//! Orphans: processes that a killed call has left running.
//!
//! The kernel ends a helper with the process that started it, but not the processes that the helper
//! has started: `rm -rf` of a script, a fetch of git. They would continue while the next call works
//! on the same directory or device.
//!
//! So every helper has the name of its caller in its environment, and its children inherit that.
//! The holder of a [lock](crate::fs::lock) writes its name into the lock's file. If the holder in a
//! file is gone, it was killed. Only then are all processes checked that were started after it. A
//! process whose environment cannot be read without waiting for its mounts counts as foreign: among
//! all processes of the node, that is more likely.

use crate::mount::users;
use crate::proc::deadline::Deadline;
use crate::proc::proc_mem::Reader;
use crate::proc::process;
use anyhow::{Context as _, Result};
use flexvol_protocol::failure::{Code, Failure};
use rustix::process::{Signal, getpid};
use std::collections::BTreeSet;
use std::fs::File;
use std::time::{Duration, Instant};

/// Environment variable of a helper: the process that started it, as named by [`own_name`].
pub(crate) const CALL: &str = "FLEXVOL_CALL";

/// Time from SIGTERM to SIGKILL, in which a file system check can end cleanly.
const GRACE: Duration = Duration::from_secs(1);

/// Limit for ending them: a process that is stuck in the kernel longer is left to a later call.
const KILL_WAIT: Duration = Duration::from_secs(3);

/// Pause between two checks whether they have ended.
const TICK: Duration = Duration::from_millis(5);

/// Limit for an environment, in bytes: more than the kernel gives a new process.
const ENVIRONMENT: u64 = 8 << 20;

/// Returns the name of this process, which no other process has while the node runs.
pub fn own_name() -> String {
    let own = getpid().as_raw_pid();
    format!("{own}-{}", process::started(own).unwrap_or_default())
}

/// Reports whether processes run that a process of this name, which is gone, has left.
/// Returns true if this cannot be determined: a later call checks again.
pub(crate) fn has_left(name: &str) -> bool {
    environments().map_or(true, |mut environments| !left_by(name, &mut environments).is_empty())
}

/// Ends the processes that a process of this name has left. Returns once they have ended.
pub(crate) fn end(name: &str, deadline: &Deadline) -> Result<()> {
    let (mut environments, start, mut asked) = (environments()?, Instant::now(), BTreeSet::new());
    loop {
        let left = left_by(name, &mut environments);
        let Some(first) = left.first() else { return Ok(()) };
        for pid in &left {
            if start.elapsed() >= GRACE {
                process::tell(*pid, Signal::KILL);
            } else if asked.insert(*pid) {
                process::tell(*pid, Signal::TERM);
            }
        }
        if start.elapsed() >= KILL_WAIT {
            let text = format!(
                "{} of a call that was killed cannot be ended: kubelet tries again",
                users::describe(*first)
            );
            return Err(Failure::new(Code::Busy, text).into());
        }
        deadline.check("ending what a killed call has left running")?;
        std::thread::sleep(TICK);
    }
}

/// Returns the process that was started with this variable and leads its group: the first one, if
/// it has started others; `None` if it has ended.
///
/// Only for a process with one thread: it forks.
pub fn started_with(name: &str, value: &str) -> Result<Option<i32>> {
    let word = format!("{name}={value}");
    let mut environments = environments()?;
    let leaders = process::all().filter(|pid| process::group_of(*pid) == Some(*pid));
    let found = leaders.filter(|pid| has_word(*pid, &word, &mut environments));
    Ok(found.min_by_key(|pid| process::started(*pid).unwrap_or(u64::MAX)))
}

/// Returns the processes that were started with a variable of this name, and its value.
/// Any user can start such a process.
///
/// Only for a process with one thread: it forks.
pub fn all_with(name: &str) -> Result<Vec<(i32, String)>> {
    let mut environments = environments()?;
    Ok(process::all().filter_map(|pid| Some((pid, value(pid, name, &mut environments)?))).collect())
}

/// Kills all processes that were started with this variable.
/// Returns those that have not ended soon, because they are stuck in the kernel.
///
/// Only for a process with one thread: it forks.
pub fn end_all_with(name: &str, value: &str) -> Result<Vec<i32>> {
    let word = format!("{name}={value}");
    let (mut environments, start) = (environments()?, Instant::now());
    loop {
        let left: Vec<_> = process::all().filter(|pid| has_word(*pid, &word, &mut environments)).collect();
        if left.is_empty() || start.elapsed() >= KILL_WAIT {
            return Ok(left);
        }
        for pid in &left {
            process::tell(*pid, Signal::KILL);
        }
        std::thread::sleep(TICK);
    }
}

/// Returns the value of a variable that a process was started with; `None` if it cannot be read.
///
/// Only for a process with one thread: it forks.
pub fn variable(pid: i32, name: &str) -> Option<String> {
    value(pid, name, &mut environments().ok()?)
}

fn value(pid: i32, name: &str, environments: &mut Reader) -> Option<String> {
    let words = environments.read(pid.cast_unsigned());
    let words = words.split(|byte| *byte == 0).filter_map(|word| std::str::from_utf8(word).ok());
    words.into_iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
}

fn environments() -> Result<Reader> {
    Reader::start(File::open("/proc").context("open /proc")?.into(), "environ", ENVIRONMENT)
}

fn left_by(name: &str, environments: &mut Reader) -> Vec<i32> {
    let word = format!("{CALL}={name}");
    let since: u64 = name.split_once('-').and_then(|(_, started)| started.parse().ok()).unwrap_or_default();
    let later = process::all().filter(|pid| process::started(*pid).is_some_and(|started| started >= since));
    later.filter(|pid| has_word(*pid, &word, environments) && !process::is_service(*pid)).collect()
}

fn has_word(pid: i32, word: &str, environments: &mut Reader) -> bool {
    let words = environments.read(pid.cast_unsigned());
    words.split(|byte| *byte == 0).any(|each| each == word.as_bytes())
}

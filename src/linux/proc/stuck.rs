//! Processes that no signal ends: they wait in the kernel, mostly for storage that does not answer.

use crate::proc::process;
use rustix::process::{Pid, WaitOptions, waitpid};
use std::fmt;
use std::time::{Duration, Instant};

/// Limit for the depth of a stack that is shown.
const DEEPEST: usize = 8;

/// A stuck process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    pid: i32,
    started: u64,
    name: String,
    stack: Vec<String>,
}

/// Limit for the time that a killed process takes to end.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// Pause between two checks.
const TURN: Duration = Duration::from_millis(10);

/// Returns the processes of a killed process group that do not end.
pub fn in_group(group: i32) -> Vec<Stuck> {
    let start = Instant::now();
    loop {
        let members = process::all().filter(|pid| process::group_of(*pid) == Some(group));
        let left: Vec<_> = members.filter_map(Stuck::of).filter(Stuck::is_there).collect();
        if left.is_empty() || start.elapsed() > LAST_WAIT {
            return left;
        }
        std::thread::sleep(TURN);
    }
}

impl Stuck {
    /// Describes a process; `None` if the PID is unused.
    pub fn of(pid: i32) -> Option<Self> {
        let started = process::started(pid)?;
        let name = process::name(pid).unwrap_or_default();
        // Reading the stack requires CAP_SYS_ADMIN, and not every kernel has it.
        let stack = std::fs::read_to_string(format!("/proc/{pid}/stack")).unwrap_or_default();
        Some(Self { pid, started, name, stack: stack.lines().filter_map(function).take(DEEPEST).collect() })
    }

    /// Reports whether the process has not ended yet. Reaps it if it is a child of ours.
    pub fn is_there(&self) -> bool {
        if process::is_zombie(self.pid) {
            let _ = Pid::from_raw(self.pid).map(|pid| waitpid(Some(pid), WaitOptions::NOHANG));
        }
        process::started(self.pid) == Some(self.started) && !process::is_zombie(self.pid)
    }
}

/// `process 123 (stat) in request_wait_answer < fuse_simple_request < …`
impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)?;
        if self.stack.is_empty() { Ok(()) } else { write!(f, " in {}", self.stack.join(" < ")) }
    }
}

/// Returns the function in a line such as `[<0>] fuse_simple_request+0x1e2/0x2e0 [fuse]`.
fn function(line: &str) -> Option<String> {
    let name = line.split_once("] ")?.1.split(['+', ' ']).next()?;
    Some(name.to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_the_names_of_its_functions() {
        assert_eq!(function("[<0>] request_wait_answer+0x13e/0x230").as_deref(), Some("request_wait_answer"));
        assert_eq!(function("[<0>] fuse_getattr+0x1/0x2 [fuse]").as_deref(), Some("fuse_getattr"));
        assert_eq!(function(""), None);
        let stack = ["a", "b"].map(str::to_owned).to_vec();
        let one = Stuck { pid: 7, started: 1, name: "stat".to_owned(), stack };
        assert_eq!(one.to_string(), "process 7 (stat) in a < b");
        assert!(!Stuck { pid: i32::MAX, ..one }.is_there());
    }

    #[test]
    fn a_process_is_known_until_it_ends() {
        let own = Stuck::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(own.is_there() && own.to_string().contains(&own.name), "{own}");
        assert!(!Stuck { started: own.started + 1, ..own }.is_there());
    }
}

//! A node of its own for each test: mount and process namespace, an empty /run, kubelet's
//! directories, installed drivers.

mod node;
#[path = "../../../support/pace.rs"]
pub(crate) mod pace;
#[path = "../../../support/wording.rs"]
pub(crate) mod wording;

use crate::trust;
pub(crate) use crate::trust::has;
pub use node::{Answer, Node};
use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The longest a test may take on an idle machine, in seconds, before everything it started is
/// killed.
const LIMIT: u32 = 240;

/// Runs `body` in namespaces of its own and looks for leaks afterwards. `name` is the test's full
/// name.
pub fn isolated(name: &str, body: impl FnOnce(&Node)) {
    if !trust::is_inside(name) && (!nix::unistd::geteuid().is_root() || !has("unshare")) {
        return skip(name, "needs root and unshare");
    }
    trust::alone(name, LIMIT, &[], || {
        let node = Node::new();
        body(&node);
        node.assert_clean();
    });
}

/// Says that a test could not run, and why.
pub fn skip(name: &str, reason: &str) {
    println!("SKIP {name}: {reason}");
}

/// Whether the kernel mounts this type.
pub fn kernel_has(file_system: &str) -> bool {
    fs::read_to_string("/proc/filesystems")
        .unwrap()
        .lines()
        .any(|line| line.split_whitespace().last() == Some(file_system))
}

/// Runs a shell script and demands success; what it printed.
pub fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{script}: {}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Runs to the end of the output; what was said, how it ended, how long it took.
pub fn run(command: &mut Command) -> (String, std::process::ExitStatus, Duration) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    command.stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(writer);
    let (start, mut text) = (Instant::now(), String::new());
    let mut child = command.spawn().unwrap();
    command.stdout(Stdio::null()).stderr(Stdio::null());
    reader.read_to_string(&mut text).unwrap();
    (text, child.wait().unwrap(), start.elapsed())
}

/// Waits for something to become true; false where it takes too long on any machine.
pub fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > pace::deadline(20) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    true
}

/// Every mount of this namespace, one text each.
pub fn mounts() -> BTreeSet<String> {
    fs::read_to_string("/proc/self/mountinfo").unwrap().lines().map(str::to_owned).collect()
}

/// The mountinfo lines at exactly this path.
pub fn mounts_at(target: &Path) -> Vec<String> {
    let path = target.to_str().unwrap().replace('\\', "\\134");
    let path = path.replace(' ', "\\040").replace('\t', "\\011");
    mounts().into_iter().filter(|line| line.split(' ').nth(4) == Some(&path)).collect()
}

/// Every living process but this one and the first: number and name.
pub fn processes() -> Vec<(i32, String)> {
    let own = [1, std::process::id().cast_signed()];
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let pids = pids.filter(|pid| !own.contains(pid));
    let living = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (name, state) = stat.rsplit_once(") ")?;
        (!state.starts_with(['Z', 'X'])).then(|| (pid, name.split_once('(').unwrap_or_default().1.to_owned()))
    };
    pids.filter_map(living).collect()
}

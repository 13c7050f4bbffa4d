//! A node with one plugin directory, and the deployments on it.

use crate::support::namespace::enter;
use crate::support::pace::deadline;
use crate::support::{BINARY, release};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const READY: &str = "/run/flexvol/deploy/ready";

/// How long anything may take with a binary that is not optimised: it hashes itself slowly.
pub(crate) fn debug_build_wait() -> Duration {
    deadline(60)
}

/// The release if there is one: what is timed here is the release.
pub(crate) fn program() -> PathBuf {
    release().filter(|path| path.exists()).unwrap_or(BINARY.into())
}

/// What "at once" is where other programs run, too; a binary that is not optimised takes its time
/// to hash itself.
pub(crate) fn is_at_once(took: Duration) -> bool {
    took < if release().is_some() { deadline(5) } else { debug_build_wait() }
}

pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < debug_build_wait(), "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A node with one plugin directory.
pub(crate) struct Node {
    pub(crate) root: TempDir,
    pub(crate) plugins: PathBuf,
}

impl Node {
    /// `None` where a namespace cannot be had.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let root = enter(name).then(|| tempfile::tempdir().unwrap())?;
        Some(Self { plugins: root.path().join("plugins"), root })
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.arg("deploy").args(arguments).arg("--plugin-dir").arg(&self.plugins);
        command.arg("--state-dir").arg(self.root.path().join("state")).stdin(Stdio::null());
        command
    }

    pub(crate) fn deploy(&self, arguments: &[&str]) -> Deployment {
        self.start(self.command(arguments))
    }

    pub(crate) fn start(&self, mut command: Command) -> Deployment {
        let number = fs::read_dir(self.root.path()).unwrap().count();
        let output = self.root.path().join(format!("output-{number}"));
        let child = command.stdout(File::create(&output).unwrap()).spawn().unwrap();
        Deployment { child, output }
    }

    pub(crate) fn driver(&self) -> PathBuf {
        self.plugins.join("example~tmpfs/tmpfs")
    }

    /// Whether kubelet would get an answer.
    pub(crate) fn answers(&self) -> bool {
        let output = Command::new(self.driver()).arg("init").output();
        output.is_ok_and(|output| output.stdout.starts_with(b"{\"status\":\"Success\""))
    }
}

pub(crate) struct Deployment {
    pub(crate) child: Child,
    pub(crate) output: PathBuf,
}

impl Deployment {
    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub(crate) fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.output).unwrap();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn events(&self) -> Vec<String> {
        self.lines().iter().filter_map(|line| Some(line["event"].as_str()?.to_owned())).collect()
    }

    pub(crate) fn says(&self, event: &str) {
        eventually(event, || self.events().iter().any(|said| said == event));
    }

    pub(crate) fn stop(&mut self, signal: Signal) -> (ExitStatus, Duration) {
        let start = Instant::now();
        kill(Pid::from_raw(self.pid()), signal).unwrap();
        (self.child.wait().unwrap(), start.elapsed())
    }
}

impl Drop for Deployment {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

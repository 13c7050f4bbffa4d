//! What the tests with real processes share: a driver as kubelet has it installed, and kubelet's
//! way of running it.
#![allow(dead_code, reason = "each test binary uses its part")]

use flexvol::protocol::{DriverStatus, StatusKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) mod fuse;
pub(crate) mod namespace;
pub(crate) mod pace;
pub(crate) mod scripts;
pub(crate) mod stand_in;
pub(crate) mod wording;

/// No call of these tests may take longer.
pub(crate) fn call_wait() -> Duration {
    pace::deadline(60)
}

/// The binary under test, dynamic and with debug assertions.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_flexvol");

/// The static binary of a release, for what only that can do.
pub(crate) fn release() -> Option<PathBuf> {
    std::env::var_os("FLEXVOL_RELEASE").map(PathBuf::from)
}

/// What is installed as a driver: what people run in the long form, else the one with assertions.
pub(crate) fn program() -> PathBuf {
    release().filter(|_| std::env::var_os("FULL").is_some()).unwrap_or_else(|| BINARY.into())
}

/// Says why a test could not run; CI counts these lines.
pub(crate) fn skip(name: &str, reason: &str) {
    println!("SKIP {name}: {reason}");
}

/// An installed driver.
pub(crate) struct Plugin {
    pub(crate) directory: TempDir,
    pub(crate) executable: PathBuf,
}

/// A side file that allows what the servers of tests are, unless it says itself which servers it
/// allows.
pub(crate) fn with_loopback(side_file: &serde_json::Value) -> serde_json::Value {
    let mut side_file = side_file.clone();
    if side_file["policy"].get("servers").is_none() {
        side_file["policy"]["servers"] = serde_json::json!(["*", "127.0.0.0/8", "::1", "localhost"]);
    }
    side_file
}

impl Plugin {
    /// `directory/name` below a fresh plugin directory, a symlink.
    pub(crate) fn new(directory: impl AsRef<Path>, name: &str, side_file: Option<&str>) -> Self {
        let plugin = Self::empty(directory, name, side_file);
        symlink(program(), &plugin.executable).unwrap();
        plugin
    }

    /// The same as a copy.
    pub(crate) fn copy(of: &Path, directory: impl AsRef<Path>, name: &str) -> Self {
        let plugin = Self::empty(directory, name, None);
        copy(of, &plugin.executable);
        plugin
    }

    fn empty(directory: impl AsRef<Path>, name: &str, side_file: Option<&str>) -> Self {
        let root = tempfile::tempdir().unwrap();
        let home = root.path().join(directory);
        fs::create_dir_all(&home).unwrap();
        if let Some(text) = side_file {
            fs::write(home.join(".flexvol.json"), text).unwrap();
        }
        Self { executable: home.join(name), directory: root }
    }

    /// A call as kubelet makes it.
    pub(crate) fn call<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, arguments: I) -> Call {
        Call::new(&self.executable, arguments)
    }

    /// A call through a program that executes it, such as `env -i`.
    pub(crate) fn through(&self, wrapper: &[&str], arguments: &[&str]) -> Call {
        let words = wrapper[1..].iter().map(OsString::from).chain([self.executable.clone().into()]);
        Call::new(Path::new(wrapper[0]), words.chain(arguments.iter().map(OsString::from)))
    }
}

/// A process about to run with stdout and stderr on one pipe.
pub(crate) struct Call(pub(crate) Command);

impl Call {
    pub(crate) fn new<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(program: &Path, arguments: I) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        Self(command)
    }

    pub(crate) fn start(self) -> Running {
        self.start_on(pipe_with(PipeFlags::CLOEXEC).unwrap())
    }

    /// On a given pipe, which may hold something already.
    pub(crate) fn start_on(mut self, (reader, writer): (OwnedFd, OwnedFd)) -> Running {
        self.0.stdout(writer.try_clone().unwrap()).stderr(writer);
        let started = Instant::now();
        let child = self.0.spawn().unwrap_or_else(|error| panic!("{:?}: {error}", self.0));
        Running { child, reader, started }
    }

    /// To its end.
    pub(crate) fn run(self) -> Run {
        self.start().finish()
    }
}

/// A call under way.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) reader: OwnedFd,
    started: Instant,
}

impl Running {
    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Reads to the end of the pipe, as kubelet does, and then waits for the process.
    pub(crate) fn finish(mut self) -> Run {
        let output = self.read_to_end();
        let took = self.started.elapsed();
        let status = self.child.wait().unwrap();
        let late = self.started.elapsed().saturating_sub(took);
        assert!(late < pace::deadline(5), "the pipe ended {late:?} before the process");
        Run { status, output, took }
    }

    fn read_to_end(&mut self) -> Vec<u8> {
        let mut output = Vec::new();
        let mut file = fs::File::from(self.reader.try_clone().unwrap());
        loop {
            let left = call_wait().saturating_sub(self.started.elapsed());
            let timeout = Timespec::try_from(left).unwrap();
            let ready = poll(&mut [PollFd::new(&self.reader, PollFlags::IN)], Some(&timeout)).unwrap();
            if ready == 0 {
                let _ = self.child.kill();
                panic!("no end after {:?}, only {:?}", call_wait(), String::from_utf8_lossy(&output));
            }
            let mut buffer = [0; 4096];
            match file.read(&mut buffer).unwrap() {
                0 => return output,
                count => output.extend_from_slice(&buffer[..count]),
            }
        }
    }
}

/// How a call ended.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) status: ExitStatus,
    pub(crate) output: Vec<u8>,
    pub(crate) took: Duration,
}

impl Run {
    /// Exactly one JSON object on one line, exit 0: what every call must end with.
    pub(crate) fn reply(&self) -> DriverStatus {
        let text = String::from_utf8(self.output.clone()).expect("UTF-8");
        let status = DriverStatus::parse(&self.output).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert_eq!(self.status.code(), Some(0), "{:?}: {text}", self.status);
        assert!(text.ends_with("}\n") && text.lines().count() == 1, "{text:?}");
        assert!(text.len() <= 4096, "{} bytes", text.len());
        status
    }

    pub(crate) fn outcome(&self) -> StatusKind {
        self.reply().outcome()
    }

    /// The message of a Failure.
    pub(crate) fn failure(&self) -> String {
        let reply = self.reply();
        assert_eq!(reply.outcome(), StatusKind::Failure, "{reply:?}");
        assert!(!reply.message.is_empty() && reply.message.len() <= 1024, "{}", reply.message);
        reply.message
    }

    pub(crate) fn success(&self) {
        let reply = self.reply();
        assert_eq!(reply.outcome(), StatusKind::Success, "{}", reply.message);
    }
}

/// Writes an executable file, and the directories it is in. By another process: a child of this
/// one, forked by another test, could hold it open, and then it is busy when it is executed.
pub(crate) fn write_executable(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let line = "cat > \"$1\" && chmod 755 \"$1\"";
    let mut shell =
        Command::new("sh").args(["-c", line, "sh"]).arg(path).stdin(Stdio::piped()).spawn().unwrap();
    shell.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
}

/// Copies an executable file, by another process for the same reason.
pub(crate) fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}

/// Waits until something is so.
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < pace::deadline(30), "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Every process but this one, alive, whose command line holds the text.
pub(crate) fn processes_with(text: &str) -> Vec<i32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != std::process::id().cast_signed() && is_alive(*pid))
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(text)
        })
        .collect()
}

/// A number of seconds to sleep that no other process sleeps: to find the sleepers again.
pub(crate) fn mark() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("1000.{}{:03}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

fn stat(pid: i32) -> Option<(String, i32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

/// Neither gone nor a zombie.
pub(crate) fn is_alive(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != "Z" && state != "X")
}

/// The children of a process.
pub(crate) fn children(of: i32) -> Vec<i32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| stat(*pid).is_some_and(|(_, parent)| parent == of)).collect()
}

/// Children, their children, and so on.
pub(crate) fn descendants(of: i32) -> Vec<i32> {
    children(of).into_iter().flat_map(|child| std::iter::once(child).chain(descendants(child))).collect()
}

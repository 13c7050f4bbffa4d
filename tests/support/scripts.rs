//! Drivers made of small scripts of the `exec` driver, each in a mount namespace of its own.

use super::namespace::{enter, mounts_at};
use super::pace::{deadline, slow_seconds};
use super::{Plugin, Running, eventually, mark, processes_with};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The deadline of every verb of a driver whose commands end, in seconds.
fn long() -> u64 {
    slow_seconds(30)
}

/// The same where a command hangs, so that the deadline ends it.
pub(crate) fn short() -> u64 {
    slow_seconds(2)
}

/// The command's mount.
pub(crate) const MOUNT: &str = "mount -t tmpfs -o size=1M share \"$1\"";

/// A driver made of scripts, and a pod's volume directory.
pub(crate) struct Node {
    pub(crate) plugin: Plugin,
    pub(crate) target: PathBuf,
    /// What `MARK` in the scripts is; see [`mark`].
    pub(crate) mark: String,
}

impl Node {
    /// `mount` and `unmount` are scripts of sh; `$1` is the target, `$2` a directory to leave files
    /// in, and `MARK` a time to sleep. `None` where a namespace cannot be had.
    pub(crate) fn new(name: &str, mount: &str, unmount: Option<&str>) -> Option<Self> {
        Self::with(name, mount, unmount, "")
    }

    /// `further` are members of the side file's `exec`.
    pub(crate) fn with(name: &str, mount: &str, unmount: Option<&str>, further: &str) -> Option<Self> {
        Self::within(long(), name, mount, unmount, further)
    }

    /// With a script that may hang: the deadline of every verb is [`short`].
    pub(crate) fn hanging(name: &str, mount: &str, unmount: Option<&str>, further: &str) -> Option<Self> {
        Self::within(short(), name, mount, unmount, further)
    }

    fn within(seconds: u64, name: &str, mount: &str, unmount: Option<&str>, further: &str) -> Option<Self> {
        if !enter(name) {
            return None;
        }
        let mark = mark();
        let plugin = Plugin::new("example~share", "share", Some("{}"));
        let root = plugin.directory.path().to_owned();
        let argv = |text: &str| {
            let text = serde_json::to_string(&text.replace("MARK", &mark)).unwrap();
            format!(
                r#"["/bin/sh","-c",{text},"sh","{{target}}","{}","{{secret.password?}}"]"#,
                root.display()
            )
        };
        let unmount = unmount.map_or(String::new(), |text| format!(r#","unmount":{}"#, argv(text)));
        let side_file = format!(
            r#"{{"driver":"exec","deadlines":{{"mount":{seconds},"unmount":{seconds},"other":{seconds}}},
            "exec":{{"commands":{{"mount":{}{unmount}}}{further}}}}}"#,
            argv(mount)
        );
        fs::write(plugin.executable.with_file_name(".flexvol.json"), side_file).unwrap();
        let target = root.join("pods/1/volumes/example~share/v");
        fs::create_dir_all(&target).unwrap();
        Some(Self { plugin, target, mark })
    }

    pub(crate) fn start(&self, json: &str) -> Running {
        self.plugin.call(["mount", self.target.to_str().unwrap(), json]).start()
    }

    pub(crate) fn unmount(&self) -> Running {
        self.plugin.call(["unmount", self.target.to_str().unwrap()]).start()
    }

    pub(crate) fn mounts(&self) -> Vec<String> {
        mounts_at(&self.target)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.plugin.directory.path().join(name)
    }

    /// What a script left in a file, once it has.
    pub(crate) fn left(&self, name: &str) -> String {
        let path = self.file(name);
        eventually(name, || fs::read_to_string(&path).is_ok_and(|text| text.ends_with('\n')));
        fs::read_to_string(path).unwrap().trim().to_owned()
    }

    /// The namespace as before: no mount, the target an empty directory, no process of the scripts.
    pub(crate) fn is_clean(&self) {
        assert_eq!(self.mounts(), [""; 0]);
        assert_eq!(fs::read_dir(&self.target).unwrap().count(), 0);
        self.has_no_process();
    }

    pub(crate) fn has_no_process(&self) {
        // A killed process is there until somebody reaps it.
        let start = Instant::now();
        while !processes_with(&self.mark).is_empty() && start.elapsed() < deadline(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let left = processes_with(&self.mark);
        let lines: Vec<_> =
            left.iter().map(|pid| fs::read_to_string(format!("/proc/{pid}/cmdline"))).collect();
        end(&left);
        assert!(lines.is_empty(), "left: {lines:?}");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        end(&processes_with(&self.mark));
    }
}

/// Ends processes of a script, found by its mark.
pub(crate) fn end(pids: &[i32]) {
    for pid in pids {
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
}

//! Kubelet's side of one node.

use super::pace::slow_seconds;
use super::{eventually, mounts, processes, run, sh};
use flexvol::settings::Settings;
use flexvol::sys::block::loop_device::backing_of;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What kubelet gets of one call.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: String,
    pub message: String,
    pub took: Duration,
}

impl Answer {
    #[track_caller]
    pub fn success(self) -> Self {
        assert_eq!(self.status, "Success", "{self:?}");
        self
    }

    /// A failure whose message holds all of `words`.
    #[track_caller]
    pub fn failure(self, words: &[&str]) -> Self {
        assert_eq!(self.status, "Failure", "{self:?}");
        for word in words {
            assert!(self.message.contains(word), "no {word:?} in {:?}", self.message);
        }
        self
    }
}

/// Kubelet's directories and the drivers of one node.
pub struct Node {
    pub root: PathBuf,
    mounts: BTreeSet<String>,
    device: u64,
}

#[expect(clippy::unused_self, reason = "calls read as what a node does")]
impl Node {
    pub fn new() -> Self {
        sh("mount -t tmpfs -o mode=755,size=4g run /run");
        let node = Self::of(Path::new("/run/k"));
        for dir in ["k", "srv", "img", "plugins"] {
            fs::create_dir(Path::new("/run").join(dir)).unwrap();
        }
        for driver in ["tmpfs", "bind", "image"] {
            node.install(driver, json!({}));
        }
        node
    }

    /// Another kubelet's, with the same drivers; whatever is mounted now is no leak.
    pub fn of(root: &Path) -> Self {
        Self { root: root.into(), mounts: mounts(), device: fs::metadata("/run").unwrap().dev() }
    }

    /// The driver's executable, installed again with what `side` says besides the policy. Its
    /// deadlines are the usual ones, and longer on a slow machine.
    pub fn install(&self, driver: &str, mut side: Value) -> PathBuf {
        let dir = PathBuf::from(format!("/run/plugins/example~{driver}"));
        if side.get("policy").is_none() {
            side["policy"] = json!({ "bindRoots": ["/run/srv"], "imageRoots": ["/run/img"] });
        }
        if side["policy"].get("servers").is_none() {
            side["policy"]["servers"] = json!(["*", "127.0.0.0/8", "::1", "localhost"]);
        }
        if side.get("deadlines").is_none() && slow_seconds(1) > 1 {
            let usual = Settings::default().deadlines;
            let longer = |seconds: u32| slow_seconds(seconds.into());
            side["deadlines"] = json!({"mount": longer(usual.mount), "unmount": longer(usual.unmount),
                "other": longer(usual.other)});
        }
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(".flexvol.json"), side.to_string()).unwrap();
        let program = dir.join(driver);
        if !program.exists() {
            fs::copy(binary(), &program).unwrap();
        }
        program
    }

    pub fn program(&self, driver: &str) -> PathBuf {
        PathBuf::from(format!("/run/plugins/example~{driver}/{driver}"))
    }

    /// A volume's directory, made as kubelet makes it.
    pub fn volume(&self, driver: &str, name: &str) -> PathBuf {
        let dir = self.root.join(format!("pods/{name}/volumes/example~{driver}/vol"));
        DirBuilder::new().recursive(true).mode(0o750).create(&dir).unwrap();
        dir
    }

    pub fn mount(&self, driver: &str, target: &Path, options: &Value) -> Answer {
        self.call(&mut self.command(driver, "mount", target, Some(options)))
    }

    pub fn unmount(&self, driver: &str, target: &Path) -> Answer {
        self.call(&mut self.command(driver, "unmount", target, None))
    }

    pub fn command(&self, driver: &str, verb: &str, target: &Path, options: Option<&Value>) -> Command {
        let mut command = Command::new(self.program(driver));
        command.arg(verb).arg(target).args(options.map(Value::to_string));
        command
    }

    /// Calls as kubelet does, one pipe for both outputs: exactly one well-formed reply, and exit 0.
    pub fn call(&self, command: &mut Command) -> Answer {
        let (text, status, took) = run(command);
        assert!(status.success(), "{command:?}: {status}: {text}");
        let reply: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{command:?}: {error}: {text:?}"));
        let word = |key: &str| reply[key].as_str().unwrap_or_default().to_owned();
        Answer { status: word("status"), message: word("message"), took }
    }

    /// The loop devices that show a file of this node.
    pub fn loops(&self) -> Vec<u64> {
        let numbers = fs::read_dir("/sys/block").unwrap().flatten().filter_map(|entry| {
            entry.path().join("loop").exists().then_some(())?;
            entry.file_name().to_str()?.strip_prefix("loop")?.parse::<u32>().ok()
        });
        let device = |number: u32| rustix::fs::makedev(7, number);
        let ours = |device: &u64| matches!(backing_of(*device), Ok(Some(backing)) if backing.inode.device == self.device);
        numbers.map(device).filter(ours).collect()
    }

    /// Nothing is left of any call: no mount, loop device, process, lock or record.
    #[track_caller]
    pub fn assert_clean(&self) {
        let left = || {
            let mut left: Vec<_> = mounts().difference(&self.mounts).cloned().collect();
            left.extend(self.loops().iter().map(|device| format!("loop device {device:#x}")));
            left.extend(processes().iter().map(|(pid, name)| format!("process {pid} {name}")));
            for dir in ["volumes", "locks", "stores", "images"] {
                let files = fs::read_dir(Path::new("/run/flexvol").join(dir)).into_iter().flatten().flatten();
                left.extend(files.map(|file| file.path().display().to_string()));
            }
            left
        };
        eventually(|| left().is_empty());
        assert_eq!(left(), Vec::<String>::new(), "left behind");
    }
}

/// What people run, in the long form; else the one with assertions.
fn binary() -> PathBuf {
    let release = std::env::var_os("FULL").and_then(|_| std::env::var_os("FLEXVOL_RELEASE"));
    release.map_or_else(|| env!("CARGO_BIN_EXE_flexvol").into(), PathBuf::from)
}

//! A node of its own for each test, its servers, and one driver as kubelet has it installed.

use crate::support::pace::slow_seconds;
use crate::support::{
    Plugin, Run, Running, descendants, eventually, is_alive, processes_with, skip, with_loopback,
};
use crate::trust::{self, groups};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The longest a test may take on an idle machine, in seconds, before all it started is killed.
const LIMIT: u32 = 200;

/// What a driver says of a secret that it shall say to nobody.
pub(crate) const PASSWORD: &str = "p,a\"s's $w!o\\rd";

/// Runs `body` where it has mounts, processes, loopback and /run of its own.
pub(crate) fn alone(name: &str, programs: &[&str], body: impl FnOnce()) {
    alone_for(name, LIMIT, programs, body);
}

/// The same with a limit of its own.
pub(crate) fn alone_for(name: &str, limit: u32, programs: &[&str], body: impl FnOnce()) {
    let lacks = |program: &&&str| !trust::has(program);
    let missing = ["unshare", "ip"].iter().chain(programs).find(lacks);
    if let Some(program) = missing.filter(|_| !trust::is_inside(name)) {
        return skip(name, &format!("{program} is not installed"));
    }
    if !nix::unistd::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return skip(name, "needs root and /dev/fuse");
    }
    trust::alone(name, limit, &["-n"], || {
        sh("ip link set lo up");
        body();
    });
}

/// `deadlines` of a side file, with so many seconds for a mount and an unmount on an idle machine.
pub(crate) fn deadlines(mount: u64, unmount: u64) -> Value {
    json!({"mount": slow_seconds(mount), "unmount": slow_seconds(unmount), "other": slow_seconds(10)})
}

/// Runs a script and demands success; what it printed.
pub(crate) fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{script}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// A server that ends with the test.
pub(crate) struct Server(pub(crate) Child);

impl Server {
    /// Starts a program and waits until its port is open.
    pub(crate) fn start(program: &str, words: &[&str], port: u16) -> Self {
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Self(command.spawn().unwrap());
        eventually(program, || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        server
    }

    /// From now on it accepts connections and says nothing, and those that it has hear nothing
    /// either.
    pub(crate) fn stop(&self) {
        let own = self.0.id().cast_signed();
        for pid in std::iter::once(own).chain(descendants(own)) {
            kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One driver, installed, and the directories of its pods.
pub(crate) struct Node {
    plugin: Plugin,
    driver: &'static str,
    /// Those of another test's, which was killed in a namespace of the same number.
    groups: Vec<PathBuf>,
}

impl Node {
    pub(crate) fn new(driver: &'static str) -> Self {
        Self::within(driver, 30, 40)
    }

    /// With so many seconds for a mount and an unmount, more on a slow machine.
    pub(crate) fn within(driver: &'static str, mount: u64, unmount: u64) -> Self {
        Self::installed(driver, &json!({"deadlines": deadlines(mount, unmount)}))
    }

    /// With a side file of its own.
    pub(crate) fn installed(driver: &'static str, side_file: &Value) -> Self {
        let side_file = &with_loopback(side_file);
        let plugin = Plugin::new(format!("flexvol~{driver}"), driver, Some(&side_file.to_string()));
        fs::set_permissions(plugin.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self { plugin, driver, groups: groups() }
    }

    /// A file or directory of the test.
    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.plugin.directory.path().join(below)
    }

    pub(crate) fn make(&self, below: &str) -> String {
        fs::create_dir_all(self.path(below)).unwrap();
        self.path(below).to_str().unwrap().to_owned()
    }

    /// A pod's volume directory, as kubelet makes it.
    pub(crate) fn pod(&self, uid: &str) -> PathBuf {
        let target = self.place(uid);
        fs::create_dir_all(&target).unwrap();
        target
    }

    /// Where that is.
    pub(crate) fn place(&self, uid: &str) -> PathBuf {
        self.path(&format!("pods/{uid}/volumes/flexvol~{}/v", self.driver))
    }

    pub(crate) fn start(&self, target: &Path, options: &Value) -> Running {
        self.plugin.call(["mount", target.to_str().unwrap(), &options.to_string()]).start()
    }

    /// A call by way of a program that executes it.
    pub(crate) fn through(&self, wrapper: &[&str], arguments: &[&str]) -> Run {
        self.plugin.through(wrapper, arguments).run()
    }

    pub(crate) fn mount(&self, target: &Path, options: &Value) -> Run {
        self.start(target, options).finish()
    }

    pub(crate) fn unmount(&self, target: &Path) -> Run {
        self.start_unmount(target).finish()
    }

    pub(crate) fn start_unmount(&self, target: &Path) -> Running {
        self.plugin.call(["unmount", target.to_str().unwrap()]).start()
    }

    /// A call, not yet made.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        self.plugin.call(words).0
    }

    /// The programs that serve this node's pods.
    pub(crate) fn daemons(&self) -> Vec<i32> {
        let root = self.path("pods/");
        processes_with(root.to_str().unwrap())
    }

    /// No mount, no process of the driver's, no private file, no control group, no scratch; the
    /// directories can be removed.
    #[track_caller]
    pub(crate) fn is_clean(&self, processes: &[&str]) {
        let table = mount_table();
        assert!(!table.contains(self.path("pods").to_str().unwrap()), "{table}");
        assert_eq!(self.daemons(), [0; 0]);
        let left: Vec<_> = processes.iter().flat_map(|text| processes_with(text)).collect();
        assert!(left.is_empty(), "{}", sh("ps axf"));
        for place in ["/run/flexvol/daemons", "/run/flexvol/volumes", "/var/lib/flexvol/scratch"] {
            let names: Vec<_> =
                fs::read_dir(place).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
            assert!(names.is_empty(), "{names:?}");
        }
        let groups: Vec<_> = groups().into_iter().filter(|group| !self.groups.contains(group)).collect();
        assert!(groups.is_empty(), "{groups:?}");
        if self.path("pods").exists() {
            sh(&format!("find {} -depth -type d -exec rmdir {{}} +", self.path("pods").display()));
        }
    }

    /// Nobody but root can find the text: not on a command line, in an environment, in the mount
    /// table or in what we write down.
    #[track_caller]
    pub(crate) fn keeps_secret(secret: &str) {
        let here = std::process::id().cast_signed();
        for pid in processes_with("").into_iter().filter(|pid| *pid != here && is_alive(*pid)) {
            for name in ["cmdline", "environ"] {
                let text = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
                let text = String::from_utf8_lossy(&text);
                assert!(!text.contains(secret), "{name} of {pid}: {text}");
            }
        }
        assert!(!mount_table().contains(secret));
        for place in ["/run/flexvol/volumes", "/run/flexvol/log"] {
            let found = Command::new("grep").args(["-rF", "--", secret, place]).output().unwrap();
            assert!(found.stdout.is_empty(), "{found:?}");
        }
        let open = sh("find /run/flexvol -perm /077");
        assert_eq!(open, "");
    }
}

/// A test that failed must not wait for its volumes when it removes their directories.
impl Drop for Node {
    fn drop(&mut self) {
        for pid in self.daemons() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let below = self.path("pods").display().to_string();
        for line in mount_table().lines() {
            let target = line.split(' ').nth(4).filter(|target| target.starts_with(&below));
            let _ = target.map(|target| umount2(target, MntFlags::MNT_FORCE | MntFlags::MNT_DETACH));
        }
    }
}

pub(crate) fn mount_table() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap()
}

/// How many mounts are there at exactly this path.
pub(crate) fn mounts_at(path: &Path) -> usize {
    mount_table().lines().filter(|line| line.split(' ').nth(4) == path.to_str()).count()
}

pub(crate) fn end(pids: &[i32]) {
    assert!(!pids.is_empty());
    for pid in pids {
        kill(Pid::from_raw(*pid), Signal::SIGKILL).unwrap();
    }
    eventually("the end of them", || pids.iter().all(|pid| !is_alive(*pid)));
}

/// A volume as two pods use it: written, read back, seen by the other, read-only for a third;
/// unmounted in turn.
pub(crate) fn lives(node: &Node, options: &Value) {
    let (one, two, three) = (node.pod("1"), node.pod("2"), node.pod("3"));
    node.mount(&one, options).success();
    node.mount(&one, options).success();
    assert_eq!(mounts_at(&one), 1);
    fs::write(one.join("file"), "written").unwrap();
    fs::create_dir(one.join("directory")).unwrap();
    fs::rename(one.join("file"), one.join("directory/file")).unwrap();
    assert_eq!(fs::read_to_string(one.join("directory/file")).unwrap(), "written");
    assert!(fs::read_dir(&one).unwrap().any(|entry| entry.unwrap().file_name() == "directory"));
    node.mount(&two, options).success();
    eventually("what the other pod wrote", || {
        fs::read_to_string(two.join("directory/file")).is_ok_and(|text| text == "written")
    });
    let mut read_only = options.clone();
    read_only["kubernetes.io/readwrite"] = "ro".into();
    node.mount(&three, &read_only).success();
    assert_eq!(fs::read_to_string(three.join("directory/file")).unwrap(), "written");
    let refused = fs::write(three.join("file"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{refused}");
    let table = mount_table();
    assert!(
        table.lines().filter(|line| line.contains(" - fuse")).all(|line| line.contains("nosuid,nodev")),
        "{table}"
    );
    for target in [&one, &one, &two, &three] {
        node.unmount(target).success();
    }
}

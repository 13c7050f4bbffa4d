//! A node of its own for each test, its servers, and one driver as kubelet has it installed.

use crate::support::{Plugin, Run, Running, descendants, eventually, is_alive, processes_with, skip};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Set in the test's own namespaces.
const INSIDE: &str = "FLEXVOL_TEST_INSIDE";

/// The longest a test may take, in seconds, before all it started is killed.
const LIMIT: u32 = 60;

/// What a driver says of a secret that it shall say to nobody.
pub(crate) const PASSWORD: &str = "p,a\"s's $w!o\\rd";

/// Runs `body` where it has mounts, processes, loopback and /run of its own. The test binary is executed again for
/// exactly this test; when it ends, however it does, the kernel ends all of its processes and mounts.
pub(crate) fn alone(name: &str, programs: &[&str], body: impl FnOnce()) {
    alone_for(name, LIMIT, programs, body);
}

/// The same with a limit of its own.
pub(crate) fn alone_for(name: &str, limit: u32, programs: &[&str], body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some_and(|inside| inside == name) {
        sh(
            "mkdir -p /var/lib/flexvol; for place in /run /var/lib/flexvol; do mount -t tmpfs -o mode=755 test $place; done; ip link set lo up",
        );
        return body();
    }
    let lacks = |program: &&&str| !has(program);
    if let Some(program) = ["unshare", "ip"].iter().chain(programs).find(lacks) {
        return skip(name, &format!("{program} is not installed"));
    }
    if !nix::unistd::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return skip(name, "needs root and /dev/fuse");
    }
    let mut command = Command::new("timeout");
    command.args([
        "-s",
        "KILL",
        &limit.to_string(),
        "unshare",
        "-m",
        "-n",
        "-p",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    // The first process of the namespace is no test: one that waits for a silent volume is not ended by SIGKILL, and
    // the others are only once the first has ended.
    command.args(["--propagation", "private", "sh", "-c", "\"$@\"; exit $?", "init"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(INSIDE, name);
    let output = command.env("RUST_BACKTRACE", "0").stdin(Stdio::null()).output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{name}: {}\n{text}", output.status);
}

fn has(program: &str) -> bool {
    ["/usr/bin", "/usr/sbin", "/bin", "/sbin"]
        .iter()
        .any(|directory| Path::new(directory).join(program).exists())
}

/// Runs a script and demands success; what it printed.
pub(crate) fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{script}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// A server that ends with the test.
pub(crate) struct Server(Child);

impl Server {
    /// Starts a program and waits until its port is open.
    pub(crate) fn start(program: &str, words: &[&str], port: u16) -> Self {
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Self(command.spawn().unwrap());
        eventually(program, || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        server
    }

    /// From now on it accepts connections and says nothing, and those that it has hear nothing either.
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
        Self::within(driver, 8, 20)
    }

    /// With so many seconds for a mount and an unmount.
    pub(crate) fn within(driver: &'static str, mount: u64, unmount: u64) -> Self {
        let side_file = json!({"deadlines": {"mount": mount, "unmount": unmount, "other": 5}}).to_string();
        let plugin = Plugin::new(format!("flexvol~{driver}"), driver, Some(&side_file));
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
        let target = self.path(&format!("pods/{uid}/volumes/flexvol~{}/v", self.driver));
        fs::create_dir_all(&target).unwrap();
        target
    }

    pub(crate) fn start(&self, target: &Path, options: &Value) -> Running {
        self.plugin.call(["mount", target.to_str().unwrap(), &options.to_string()]).start()
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

    /// The programs that serve this node's pods.
    pub(crate) fn daemons(&self) -> Vec<i32> {
        let root = self.path("pods/");
        processes_with(root.to_str().unwrap())
    }

    /// No mount, no process of the driver's, no private file, no control group, no scratch; the directories can be
    /// removed.
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

    /// Nobody but root can find the text: not on a command line, in an environment, in the mount table or in what
    /// we write down.
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

/// The groups that were made in this PID namespace.
fn groups() -> Vec<PathBuf> {
    let namespace = format!("-{}", flexvol::sys::process::namespace());
    let roots =
        ["/sys/fs/cgroup/flexvol", "/sys/fs/cgroup/unified/flexvol", "/sys/fs/cgroup/systemd/flexvol"];
    let found = roots.iter().flat_map(|root| fs::read_dir(root).into_iter().flatten().flatten());
    found.map(|entry| entry.path()).filter(|path| path.to_string_lossy().ends_with(&namespace)).collect()
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

/// A volume as two pods use it: written, read back, seen by the other, read-only for a third; unmounted in turn.
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

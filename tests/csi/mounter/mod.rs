//! `flexvold mounter`: drivers of a node that has no sshfs, and mount pods that have it. A mount
//! namespace of its own stands for each container.

use super::namespace::{self, mounts_at};
use super::node::{eventually, flexvol, flexvold, message};
use super::ports::reserved_port;
use super::skip;
use super::wording::wording_of;

mod doctor;
mod exec;
mod fake_runtime;
mod figures;
mod process_1;
mod runtime;

use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const NAME: &str = "example~sshfs";
const SSHFS: &str = "/usr/bin/sshfs";
const NOTHING: Option<&str> = None;

/// A node, its kubelet's directory, and an SSH server.
struct World {
    home: TempDir,
    server: Child,
    port: u16,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Whether it is there; else SKIP is said.
fn needs(test: &str, program: &str) -> bool {
    let there = Path::new(program).exists();
    if !there {
        skip(test, &format!("needs {program}"));
    }
    there
}

impl World {
    /// `None`, and SKIP is said, where it cannot be.
    fn new(test: &str) -> Option<Self> {
        for program in [SSHFS, "/usr/sbin/sshd", "/usr/bin/ssh-keygen", "/dev/fuse"] {
            if !needs(test, program) {
                return None;
            }
        }
        if flexvol().is_none() {
            skip(test, "flexvol is not built");
            return None;
        }
        if !namespace::enter(test) {
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        let at = home.path().display().to_string();
        sh(&format!(
            "cd {at}; mkdir kubelet srv plugins plugins/{NAME}; mkdir -p -m 755 /run/sshd /run/flexvol
            ln -s {} plugins/{NAME}/sshfs
            for key in host user; do ssh-keygen -q -t ed25519 -N '' -f $key; done",
            flexvol()?.display()
        ));
        // As on a node: what these have is seen by containers that ask for it.
        let kubelet = format!("{at}/kubelet");
        mount(Some("tmpfs"), &*kubelet, Some("tmpfs"), MsFlags::empty(), NOTHING).unwrap();
        for shared in [&*kubelet, "/run"] {
            mount(NOTHING, shared, NOTHING, MsFlags::MS_SHARED, NOTHING).unwrap();
        }
        let port = reserved_port().port();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nStrictModes no\nUsePAM no\nPidFile none\nHostKey {at}/host\nAuthorizedKeysFile {at}/user.pub\nSubsystem sftp internal-sftp\n"
        );
        fs::write(format!("{at}/config"), config).unwrap();
        let mut server = Command::new("/usr/sbin/sshd");
        server.args(["-D", "-f", &format!("{at}/config")]).stdin(Stdio::null()).stderr(Stdio::null());
        let server = server.spawn().unwrap();
        eventually("sshd listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        let world = Self { home, server, port };
        world.settings("");
        Some(world)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// The node has no sshfs any more; containers that were started before have.
    fn has_no_sshfs(&self) {
        mount(Some("/dev/null"), SSHFS, NOTHING, MsFlags::MS_BIND, NOTHING).unwrap();
        assert!(self.home.path().exists());
    }

    fn registration(&self) -> PathBuf {
        self.path("kubelet/plugin-containers").join(format!("{NAME}.json"))
    }

    fn settings(&self, words: &str) {
        let driver = if words.contains(r#""driver""#) { "" } else { r#""driver": "sshfs","# };
        let text = format!(r#"{{{words} {driver} "policy": {{"servers": ["127.0.0.1"]}}}}"#);
        fs::write(self.path("plugins").join(NAME).join(".flexvol.json"), text).unwrap();
    }

    fn target(&self, pod: &str) -> PathBuf {
        let target = self.path(&format!("kubelet/pods/{pod}/volumes/{NAME}/v"));
        // One that is dead can be looked at by nobody.
        let _ = fs::create_dir_all(&target);
        target
    }

    fn options(&self) -> Value {
        use base64::Engine as _;
        let key = fs::read(self.path("user")).unwrap();
        let host = fs::read_to_string(self.path("host.pub")).unwrap();
        json!({"server": "127.0.0.1", "port": self.port.to_string(), "path": self.path("srv"),
            "hostKey": host.trim(),
            "kubernetes.io/secret/ssh-privatekey": base64::engine::general_purpose::STANDARD.encode(key)})
    }

    fn command(&self, verb: &str, pod: &str) -> Command {
        self.command_with(verb, pod, &self.options())
    }

    fn command_with(&self, verb: &str, pod: &str, options: &Value) -> Command {
        let mut command = Command::new(self.path("plugins").join(NAME).join("sshfs"));
        command.arg(verb).arg(self.target(pod)).stdin(Stdio::null()).stdout(Stdio::piped());
        if verb == "mount" {
            command.arg(options.to_string());
        }
        command
    }

    /// The message of the reply, empty for a success.
    fn call(&self, verb: &str, pod: &str) -> String {
        message(&self.command(verb, pod).output().unwrap().stdout)
    }

    /// Nothing is mounted, and nothing is left of what was.
    fn is_clean(&self, pods: &[&str]) {
        for pod in pods {
            assert_eq!(mounts_at(&self.target(pod)), Vec::<String>::new());
        }
        let homes = fs::read_dir("/run/flexvol/daemons").into_iter().flatten().count();
        assert_eq!((homes, self.sshfs()), (0, Vec::new()));
    }

    /// Who serves volumes of this world, wherever.
    fn sshfs(&self) -> Vec<i32> {
        let is_ours = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.starts_with("sshfs\0") && line.contains(&*self.home.path().to_string_lossy())
                || line.starts_with(&format!("{SSHFS}\0"))
                    && line.contains(&*self.home.path().to_string_lossy())
        };
        let pids = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        pids.filter(is_ours).collect()
    }
}

/// What messages call a mount pod.
fn of(uid: &str) -> String {
    format!("mount pod storage/tools-{uid} (container tools)")
}

/// A mount pod's container.
struct Container {
    /// unshare, whose child is process 1.
    child: Child,
    log: PathBuf,
}

impl Drop for Container {
    fn drop(&mut self) {
        self.crash();
    }
}

impl Container {
    fn start(world: &World, uid: &str) -> Self {
        Self::start_with(world, uid, "unchanged", "")
    }

    /// `inside` is run before process 1.
    fn start_with(world: &World, uid: &str, propagation: &str, inside: &str) -> Self {
        Self::start_words(world, uid, propagation, inside, &[])
    }

    fn start_words(world: &World, uid: &str, propagation: &str, inside: &str, words: &[&str]) -> Self {
        let log = world.path(&format!("log-{uid}"));
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--propagation",
            propagation,
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]);
        command.args(["sh", "-ec", &format!("{inside}\nexec \"$@\""), "sh"]).arg(flexvold());
        command.args(["mounter", "init", "--plugin", "example/sshfs", "--root"]).arg(world.path("kubelet"));
        command.args(words);
        command.env("POD_NAMESPACE", "storage").env("POD_NAME", format!("tools-{uid}")).env("POD_UID", uid);
        command.env("CONTAINER_NAME", "tools");
        let stderr = fs::File::create(&log).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
        Self { child, log }
    }

    fn registers(self, world: &World, uid: &str) -> Self {
        let has = || {
            fs::read_to_string(world.registration()).is_ok_and(|text| text.contains(&format!("\"{uid}\"")))
        };
        eventually("it registers", has);
        self
    }

    /// Process 1 has to end by itself, and whether it has done so as it should.
    fn ends(&mut self) -> bool {
        self.exits() == Some(0)
    }

    /// The same, and what it exits with.
    fn exits(&mut self) -> Option<i32> {
        let child = RefCell::new(&mut self.child);
        eventually("process 1 ends", || child.borrow_mut().try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }

    /// As a runtime's kill.
    fn crash(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Process 1, as the node sees it.
    fn init(&self) -> Pid {
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        Pid::from_raw(fs::read_to_string(children).unwrap().trim().parse().unwrap())
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

#[test]
fn a_node_without_sshfs_mounts_from_a_mount_pod() {
    let Some(world) = World::new("mounter::a_node_without_sshfs_mounts_from_a_mount_pod") else { return };
    let pod = Container::start(&world, "one").registers(&world, "one");
    world.has_no_sshfs();
    assert_eq!(world.call("mount", "1"), "", "{}", pod.log());
    fs::write(world.target("1").join("hello"), "world").unwrap();
    assert_eq!(fs::read_to_string(world.path("srv/hello")).unwrap(), "world");
    // It lives in the pod, and its key is in no argument.
    let serving = world.sshfs();
    assert_eq!(serving.len(), 1);
    let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).unwrap();
    assert_eq!(namespace(serving[0]), namespace(pod.init().as_raw()));
    assert_eq!(world.call("mount", "1"), "");
    assert_eq!(world.call("mount", "2"), "");
    assert_eq!((world.call("unmount", "1"), world.sshfs().len()), (String::new(), 1));
    assert_eq!(world.call("unmount", "2"), "");
    world.is_clean(&["1", "2"]);
}

/// Tests 3 and 24, and what a registration may be: used at once, refused with its pod, or passed
/// over where the side file says so.
#[test]
fn a_registration_is_read_anew_and_what_is_wrong_with_it_is_said() {
    let test = "mounter::a_registration_is_read_anew_and_what_is_wrong_with_it_is_said";
    let Some(world) = World::new(test) else { return };
    // No file, and none of root's alone.
    assert_eq!((world.call("mount", "1"), world.call("unmount", "1")), (String::new(), String::new()));
    let pod = Container::start(&world, "one").registers(&world, "one");
    let (path, good) = (world.registration(), fs::read_to_string(world.registration()).unwrap());
    let put = |text: &str, mode: u32, owner: u32| {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(&path, Some(owner), None).unwrap();
    };
    let torn = &good[..good.len() / 2];
    let older = good.replace("\"one\"", "\"zero\"");
    let cases: [(&str, u32, u32, &str); 6] = [
        (torn, 0o600, 0, "no registration"),
        ("[]", 0o600, 0, "no registration"),
        (&good, 0o602, 0, "chown root"),
        (&good, 0o600, 65_534, "chown root"),
        (&older, 0o600, 0, "storage/tools-one"),
        (&"x".repeat(70_000), 0o600, 0, "larger than"),
    ];
    for (text, mode, owner, said) in cases {
        put(text, mode, owner);
        world.settings("");
        let failed = world.call("mount", "1");
        assert!(failed.contains(said) && failed.contains("mounterFallback"), "{failed}");
        world.is_clean(&["1"]);
        for settings in [r#""mounterFallback": "host","#, r#""mounter": "host","#] {
            world.settings(settings);
            assert_eq!(
                (world.call("mount", "1"), world.call("unmount", "1")),
                (String::new(), String::new())
            );
        }
    }
    world.settings("");
    put(&good, 0o600, 0);
    assert_eq!(world.call("mount", "1"), "", "{}", pod.log());
    // Whatever becomes of the registration: what runs is found.
    fs::remove_file(&path).unwrap();
    assert_eq!(world.call("unmount", "1"), "");
    world.is_clean(&["1"]);
}

/// Who has no answer is told so in time, with the pod's name, and the next call goes.
#[test]
fn a_mount_pod_that_is_killed_in_the_middle_is_named_and_leaves_nothing() {
    let test = "mounter::a_mount_pod_that_is_killed_in_the_middle_is_named_and_leaves_nothing";
    let Some(world) = World::new(test) else { return };
    let mut pod = Container::start(&world, "one").registers(&world, "one");
    world.has_no_sshfs();
    let mut options = world.options();
    options["port"] = runtime::silent_server().to_string().into();
    let call = world.command_with("mount", "1", &options).spawn().unwrap();
    eventually("sshfs waits", || world.sshfs().len() == 1);
    let begun = Instant::now();
    pod.crash();
    let said = message(&call.wait_with_output().unwrap().stdout);
    assert!(said.contains("storage/tools-one"), "{said}");
    // The call itself would have 110 s.
    assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", begun.elapsed());
    world.is_clean(&["1"]);
    // Registered, and gone.
    let refused = world.call("mount", "1");
    assert!(refused.contains("storage/tools-one") && refused.contains("mounterFallback"), "{refused}");
    // One whose image has none, and one that has.
    let lacking = Container::start(&world, "two").registers(&world, "two");
    let refused = world.call("mount", "1");
    assert_eq!(refused, wording_of("not-in-mount-pod", ["sshfs", &of("two")]));
    drop(lacking);
    let shown = format!("umount {SSHFS}");
    let _pod = Container::start_with(&world, "three", "unchanged", &shown).registers(&world, "three");
    assert_eq!((world.call("mount", "1"), world.call("unmount", "1")), (String::new(), String::new()));
    world.is_clean(&["1"]);
}

#[test]
fn what_a_killed_driver_has_started_in_a_pod_ends() {
    let Some(world) = World::new("mounter::what_a_killed_driver_has_started_in_a_pod_ends") else { return };
    let pod = Container::start(&world, "one").registers(&world, "one");
    let mut options = world.options();
    options["port"] = runtime::silent_server().to_string().into();
    let mut call = world.command_with("mount", "1", &options).spawn().unwrap();
    eventually("sshfs waits", || world.sshfs().len() == 1);
    let worker = fs::read_to_string(format!("/proc/{0}/task/{0}/children", call.id())).unwrap();
    for pid in [Pid::from_raw(worker.trim().parse().unwrap()), Pid::from_raw(call.id().cast_signed())] {
        kill(pid, Signal::SIGKILL).unwrap();
    }
    call.wait().unwrap();
    let begun = Instant::now();
    eventually("it has ended", || world.sshfs().is_empty());
    // sshfs itself never gives up this server.
    assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", begun.elapsed());
    assert_eq!((world.call("mount", "1"), world.call("unmount", "1")), (String::new(), String::new()));
    world.is_clean(&["1"]);
    drop(pod);
}

/// Tests 18 and 19.
#[test]
fn process_1_reaps_and_leaves_what_is_another_pod_s() {
    let test = "mounter::process_1_reaps_and_leaves_what_is_another_pod_s";
    let Some(world) = World::new(test) else { return };
    let orphans = "(i=0; while [ $i -lt 1000 ]; do (sleep 0.3 &); i=$((i+1)); done) &";
    let mut one = Container::start_with(&world, "one", "unchanged", orphans).registers(&world, "one");
    let pids = |state: &str| {
        let init = one.init();
        let children = fs::read_to_string(format!("/proc/{init}/task/{init}/children")).unwrap();
        let is = |pid: &&str| {
            fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(state))
        };
        children.split_whitespace().filter(is).count()
    };
    eventually("all orphans are reaped", || pids(") ") == 0);
    let two = Container::start(&world, "two").registers(&world, "two");
    assert!(two.log().contains("taken over") && two.log().contains("storage/tools-one"), "{}", two.log());
    kill(one.init(), Signal::SIGTERM).unwrap();
    assert!(one.ends(), "{}", one.log());
    assert!(fs::read_to_string(world.registration()).unwrap().contains("\"two\""));
    assert_eq!((world.call("mount", "1"), world.call("unmount", "1")), (String::new(), String::new()));
    // With a volume in use it waits for that, and its registration is gone at once.
    assert_eq!(world.call("mount", "1"), "");
    let init = two.init();
    kill(init, Signal::SIGTERM).unwrap();
    eventually("its files are removed", || {
        fs::read_dir(world.registration().parent().unwrap()).unwrap().next().is_none()
    });
    assert_eq!(fs::read_dir(world.target("1")).unwrap().count(), 0);
    assert_eq!(world.call("unmount", "1"), "");
    // Process 1 ends and answers nobody any more: sshfs ends by itself.
    eventually("sshfs ends", || world.sshfs().is_empty());
    world.is_clean(&["1"]);
}

/// Test 20, and the probe.
#[test]
fn a_container_whose_mounts_stay_in_it_does_not_register() {
    let test = "mounter::a_container_whose_mounts_stay_in_it_does_not_register";
    let Some(world) = World::new(test) else { return };
    for propagation in ["private", "slave"] {
        let mut container = Container::start_with(&world, propagation, propagation, "");
        assert!(!container.ends());
        assert!(container.log().contains("mountPropagation: Bidirectional"), "{}", container.log());
        assert!(!world.registration().exists());
    }
    let check = |uid: &str| {
        let mut command = Command::new(flexvold());
        command.args(["mounter", "init", "--check", "--plugin", "example/sshfs", "--root"]);
        command.arg(world.path("kubelet")).env("POD_NAMESPACE", "storage");
        command.env("POD_NAME", format!("tools-{uid}")).env("POD_UID", uid);
        command.env("CONTAINER_NAME", "tools").output().unwrap().status.success()
    };
    assert!(!check("one"));
    let mut pod = Container::start(&world, "one").registers(&world, "one");
    assert!(check("one") && !check("two"));
    pod.crash();
    assert!(!check("one"));
}

/// Test 7: a reader finds one registration or another, never half of one.
#[test]
fn ten_thousand_registrations_are_read_whole() {
    use flexvol_linux::fs::directory::Directory;
    use flexvol_linux::fs::files;
    use flexvol_model::mounter::{LARGEST, Registration};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let (path, done) = (home.path().to_owned(), Arc::new(AtomicBool::new(false)));
    let read = Arc::new(AtomicUsize::new(0));
    let text = |uid: usize| {
        let text = json!({"podNamespace": "a", "podName": "b", "podUID": format!("{uid:0>200}"), "containerName": "c"});
        text.to_string()
    };
    files::replace(&path.join("x~y.json"), text(0).as_bytes()).unwrap();
    let (writer, ended, reads) = (path.clone(), Arc::clone(&done), Arc::clone(&read));
    let writing = std::thread::spawn(move || {
        let mut uid = 0;
        while uid < 10_000 || reads.load(Ordering::Acquire) <= 100 {
            files::replace_unsynced(&writer.join("x~y.json"), text(uid).as_bytes()).unwrap();
            uid += 1;
        }
        ended.store(true, Ordering::Release);
    });
    while !done.load(Ordering::Acquire) {
        let directory = Directory::open_of_root(&path).unwrap().unwrap();
        let bytes = directory.read_of_root("x~y.json", LARGEST).unwrap().unwrap();
        assert_eq!(Registration::parse(&bytes).unwrap().pod_uid.len(), 200);
        read.fetch_add(1, Ordering::Release);
    }
    writing.join().unwrap();
    println!("read {read:?} times while it was written 10000 times");
}

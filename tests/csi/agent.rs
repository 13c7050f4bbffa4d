//! `flexvold agent` at its socket: kills before its system calls, and what no driver would send.

use super::killed::{follow, is_full, tried};
use super::node::{eventually, flexvold};
use super::observed::get;
use super::pace::{deadline, slow_seconds};
use super::ports::reserved_port;
use super::{namespace, skip};
use flexvol_linux::net::daemon_socket;
use flexvol_linux::proc::clock;
use flexvol_linux::proc::deadline::Deadline;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const HANDLE: &str = "file:/srv/images/db.img";

/// A directory with the state of several agents, and locks that they share.
pub(crate) struct Nodes {
    pub(crate) home: TempDir,
}

impl Nodes {
    /// `None`, and SKIP is said, where there is no mount namespace for `/run`. That is memory: a
    /// driver waits two seconds for its release to be written, however busy the disk is.
    pub(crate) fn new(test: &str) -> Option<Self> {
        namespace::enter(test).then(|| Self { home: tempfile::tempdir_in("/run").unwrap() })
    }

    pub(crate) fn start(&self, name: &'static str) -> Agent {
        self.start_with(name, &[])
    }

    pub(crate) fn start_with(&self, name: &'static str, more: &[&str]) -> Agent {
        let mut agent = Agent { home: self.home.path().to_owned(), name, child: None };
        agent.start_with(more);
        agent
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// How many records there are.
    pub(crate) fn records(&self) -> usize {
        let names = fs::read_dir(self.path("locks/records")).unwrap().map(|file| file.unwrap().file_name());
        names.filter(|name| !name.as_encoded_bytes().starts_with(b".")).count()
    }
}

/// The agent of one node.
pub(crate) struct Agent {
    home: PathBuf,
    name: &'static str,
    pub(crate) child: Option<Child>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end(Signal::SIGKILL);
    }
}

impl Agent {
    pub(crate) fn name(&self) -> &str {
        self.name
    }

    /// Ends it as a machine's crash does.
    pub(crate) fn stop(&mut self) {
        self.end(Signal::SIGKILL);
    }

    pub(crate) fn socket(&self) -> PathBuf {
        Path::new("/run/flexvol").join(format!("{}.sock", self.name))
    }

    fn state(&self) -> PathBuf {
        self.home.join(self.name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(flexvold());
        command.args(["agent", "--node", self.name, "--store"]);
        command.arg(format!("file:{}", self.home.join("locks").display()));
        command.arg("--state").arg(self.state()).arg("--socket").arg(self.socket());
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    }

    pub(crate) fn start(&mut self) {
        self.start_with(&[]);
    }

    pub(crate) fn start_with(&mut self, more: &[&str]) {
        self.child = Some(self.command().args(more).spawn().unwrap());
        eventually("the agent answers", || self.ask(&json!({"v": 1, "method": "hello"})).is_some());
    }

    pub(crate) fn is_alive(&self) -> bool {
        let pid = self.child.as_ref().unwrap().id();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !stat.rsplit(')').next().unwrap().starts_with(" Z")
    }

    /// The exit status, of one that ends by itself.
    fn end(&mut self, signal: Signal) -> Option<i32> {
        let mut child = self.child.take()?;
        let _ = kill(Pid::from_raw(child.id().try_into().unwrap()), signal);
        child.wait().unwrap().code()
    }

    pub(crate) fn ask(&self, request: &Value) -> Option<Value> {
        let deadline = Deadline::after(deadline(10));
        let answer = daemon_socket::ask(&self.socket(), &request.to_string(), &deadline).ok()?;
        serde_json::from_slice(&answer).ok()
    }

    pub(crate) fn request(&self, method: &str, params: &Value) -> Option<Value> {
        let now = clock::since_boot();
        let until = now + u64::try_from(deadline(10).as_nanos()).unwrap();
        self.ask(&json!({"v": 1, "method": method, "asked": now, "until": until, "params": params}))
    }

    /// The epoch, or the code of the error.
    pub(crate) fn hold(&self, pod: &str) -> Result<u64, String> {
        let answer = self.request("hold", &hold_of(pod)).ok_or("no answer")?;
        answer["ok"]["epoch"].as_u64().ok_or_else(|| answer["err"]["code"].as_str().unwrap().to_owned())
    }

    pub(crate) fn release(&self, pod: &str) -> Option<String> {
        Some(self.request("release", &hold_of(pod))?["ok"]["state"].as_str()?.to_owned())
    }

    pub(crate) fn holds(&self) -> usize {
        let status = self.ask(&json!({"v": 1, "method": "status"})).unwrap();
        status["ok"]["holds"].as_array().unwrap().len()
    }
}

pub(crate) fn hold_of(pod: &str) -> Value {
    json!({
        "handle": HANDLE,
        "fence": "pod",
        "target": format!("/kubelet/pods/{pod}/volumes/example~image/v"),
        "access": "rw",
        "podNamespace": "default",
        "podName": pod,
        "podUid": pod,
    })
}

#[test]
fn a_hold_outlives_the_agent_and_ends_with_its_release() {
    let Some(nodes) = Nodes::new("agent::a_hold_outlives_the_agent_and_ends_with_its_release") else {
        return;
    };
    let (mut a, b) = (nodes.start("a"), nodes.start("b"));
    assert_eq!((a.hold("1"), b.hold("2")), (Ok(0), Err("FENCED".to_owned())));
    // SIGTERM ends it without an error, and SIGKILL loses nothing.
    for (signal, status) in [(Signal::SIGTERM, Some(0)), (Signal::SIGKILL, None)] {
        assert_eq!(a.end(signal), status);
        assert_eq!(b.hold("2"), Err("FENCED".to_owned()));
        a.start();
        assert_eq!((a.holds(), b.holds(), nodes.records()), (1, 0, 1));
    }
    assert_eq!(a.release("1").as_deref(), Some("released"));
    assert_eq!((a.holds(), nodes.records(), b.hold("2")), (0, 0, Ok(0)));
}

/// Of the journal, the records and the answers.
const CALLS: [&str; 14] = [
    "openat",
    "openat2",
    "write",
    "fsync",
    "fdatasync",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "flock",
    "read",
    "recvfrom",
    "sendto",
];

/// Each takes a start of the agent or two.
const FEW: usize = 3;
const MOST: usize = 60;

/// It holds and releases once a round, and is killed before the nth call of a name.
#[test]
fn kills_before_system_calls_lose_no_hold_and_leave_none() {
    let test = "agent::kills_before_system_calls_lose_no_hold_and_leave_none";
    let Some(nodes) = Nodes::new(test) else { return };
    let (mut a, b) = (nodes.start("a"), nodes.start("b"));
    let most = if is_full() { MOST } else { FEW };
    let mut struck = Vec::new();
    for call in CALLS {
        for nth in 1..=most {
            let pid = a.child.as_ref().unwrap().id();
            let Some(mut strace) = follow(pid, call, nth) else {
                return skip(test, "needs strace, and the right to use it");
            };
            let held = a.hold("1");
            if held.is_ok() {
                assert_eq!(b.hold("2"), Err("FENCED".to_owned()), "{call} {nth}");
            }
            let released = a.release("1");
            let _ = strace.kill();
            let _ = strace.wait();
            if held.is_ok() && released.is_some() && a.is_alive() {
                break;
            }
            eventually("it is dead", || !a.is_alive());
            a.end(Signal::SIGKILL);
            a.start();
            struck.push((call, nth));
            // The driver asks again, whatever it was told.
            if held.is_err() {
                assert_eq!((a.hold("1"), b.hold("2")), (Ok(0), Err("FENCED".to_owned())), "{call} {nth}");
            }
            assert!(a.release("1").is_some());
            eventually("it is released", || nodes.records() == 0);
            assert_eq!((a.holds(), b.hold("2"), b.release("2").as_deref()), (0, Ok(0), Some("released")));
        }
    }
    println!("struck before {struck:?}");
    tried("agent", "hold+release", struck.len());
}

fn connected(agent: &Agent) -> UnixStream {
    let stream = UnixStream::connect(agent.socket()).unwrap();
    stream.set_read_timeout(Some(deadline(40))).unwrap();
    stream
}

/// The code of the answer, if there is one before the end.
fn answer(mut stream: UnixStream) -> Option<String> {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let value: Value = serde_json::from_slice(answer.get(4..)?).unwrap();
    Some(value["err"]["code"].as_str().unwrap().to_owned())
}

#[test]
fn nonsense_is_answered_once_and_hurts_nobody() {
    let Some(nodes) = Nodes::new("agent::nonsense_is_answered_once_and_hurts_nobody") else { return };
    let a = nodes.start("a");
    let frame = |text: &[u8]| [&u32::try_from(text.len()).unwrap().to_be_bytes()[..], text].concat();
    let text = |text: &str| frame(text.as_bytes());
    for (bytes, code) in [
        (text("{"), "BAD_REQUEST"),
        (text(""), "BAD_REQUEST"),
        (text("[]"), "BAD_REQUEST"),
        (frame(b"\xff\xfe"), "BAD_REQUEST"),
        (text(&"[".repeat(60_000)), "BAD_REQUEST"),
        (text(r#"{"v":1,"method":"format"}"#), "BAD_REQUEST"),
        (text(r#"{"v":1,"method":"hold"}"#), "BAD_REQUEST"),
        (text(r#"{"v":2,"method":"hello"}"#), "UNSUPPORTED_VERSION"),
        // Longer than any may be: not even read.
        (u32::MAX.to_be_bytes().to_vec(), "BAD_REQUEST"),
        (262_145_u32.to_be_bytes().to_vec(), "BAD_REQUEST"),
    ] {
        let mut stream = connected(&a);
        stream.write_all(&bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(answer(stream).as_deref(), Some(code), "{:?}", String::from_utf8_lossy(&bytes));
    }
    for half in [&b"\0\0"[..], &b"\0\0\0\x08{\"v\""[..]] {
        let mut stream = connected(&a);
        stream.write_all(half).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(answer(stream), None);
    }
    assert_eq!((a.hold("1"), a.release("1").as_deref()), (Ok(0), Some("released")));
}

#[test]
fn who_says_nothing_or_a_byte_a_second_is_not_waited_for() {
    let Some(nodes) = Nodes::new("agent::who_says_nothing_or_a_byte_a_second_is_not_waited_for") else {
        return;
    };
    let a = nodes.start("a");
    let begun = Instant::now();
    // As many as are served at once, and one that trickles.
    let silent: Vec<_> = (0..63).map(|_| connected(&a)).collect();
    let mut slow = connected(&a);
    // What is announced would take half a day.
    slow.write_all(&200_000_u32.to_be_bytes()).unwrap();
    while slow.write_all(b" ").is_ok() {
        assert!(begun.elapsed() < deadline(60), "it is still heard");
        std::thread::sleep(Duration::from_millis(250));
    }
    assert_eq!(a.hold("1"), Ok(0));
    drop(silent);
}

#[test]
fn only_root_is_heard_also_where_the_socket_is_open_to_all() {
    let Some(nodes) = Nodes::new("agent::only_root_is_heard_also_where_the_socket_is_open_to_all") else {
        return;
    };
    let a = nodes.start("a");
    let mode = fs::metadata(a.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    fs::set_permissions(a.socket(), fs::Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions("/run/flexvol", fs::Permissions::from_mode(0o755)).unwrap();
    let script = r#"
import socket, struct, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(float(sys.argv[2]))
s.connect(sys.argv[1])
try:
    s.sendall(struct.pack(">I", 26) + b'{"v":1,"method":"status"} ')
    print(len(s.recv(4)))
except (BrokenPipeError, ConnectionResetError):
    print(0)
"#;
    let say = |uid: u32| {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", script]).arg(a.socket()).arg(slow_seconds(20).to_string());
        command.uid(uid).gid(uid).env_clear().current_dir("/").output()
    };
    let Ok(output) = say(65_534) else {
        return skip("agent::only_root_is_heard_also_where_the_socket_is_open_to_all", "needs python3");
    };
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n", "{output:?}");
    assert_eq!(String::from_utf8_lossy(&say(0).unwrap().stdout), "4\n");
}

/// Who asks tells nothing to a process that is not root's, nor where others may put a socket.
#[test]
fn who_poses_as_the_agent_is_told_nothing() {
    let Some(nodes) = Nodes::new("agent::who_poses_as_the_agent_is_told_nothing") else { return };
    let ask = |path: &Path| daemon_socket::ask(path, "{}", &Deadline::after(deadline(10)));
    let directory = nodes.home.path().join("open");
    fs::create_dir(&directory).unwrap();
    let path = directory.join("agent.sock");
    let ours = UnixListener::bind(&path).unwrap();
    ours.set_nonblocking(true).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(format!("{:#}", ask(&path).unwrap_err()).contains("chown root"));
    assert!(ours.accept().is_err());
    // In a directory of root's, but served by somebody else.
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(nodes.home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    drop(ours);
    fs::remove_file(&path).unwrap();
    let script = r#"
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
os.setgid(65534); os.setuid(65534)
s.listen(1)
print("ready", flush=True)
c, _ = s.accept()
c.settimeout(float(sys.argv[2]))
print(len(c.recv(100)), flush=True)
"#;
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", script]).arg(&path).arg(slow_seconds(20).to_string());
    let Ok(mut posing) = python.stdout(Stdio::piped()).spawn() else {
        return skip("agent::who_poses_as_the_agent_is_told_nothing", "needs python3");
    };
    let mut said = posing.stdout.take().unwrap();
    let mut ready = [0; 6];
    said.read_exact(&mut ready).unwrap();
    assert!(ask(&path).is_err());
    let mut heard = String::new();
    said.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "0\n");
    posing.wait().unwrap();
}

#[test]
fn a_second_agent_ends_and_the_first_serves_on() {
    let Some(nodes) = Nodes::new("agent::a_second_agent_ends_and_the_first_serves_on") else { return };
    let a = nodes.start("a");
    let second = a.command().stderr(Stdio::piped()).output().unwrap();
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    assert_eq!(a.hold("1"), Ok(0));
    // Nor does one begin where others could take its socket away.
    fs::set_permissions("/run/flexvol", fs::Permissions::from_mode(0o777)).unwrap();
    let mut open = a.command();
    let open = open.arg("--state").arg(nodes.home.path().join("other")).output().unwrap();
    // Said twice, or refused: in no case is it served.
    assert!(!open.status.success());
}

#[test]
fn prometheus_reads_what_is_held() {
    let Some(nodes) = Nodes::new("agent::prometheus_reads_what_is_held") else { return };
    let (mut a, b) = (nodes.start("a"), nodes.start("b"));
    a.stop();
    let address = reserved_port();
    a.start_with(&["--metrics", &address.to_string()]);
    assert_eq!((a.hold("1"), b.hold("2")), (Ok(0), Err("FENCED".to_owned())));
    assert_eq!(a.hold("2"), Err("FENCED".to_owned()));
    let has = |line: &str| get(address, "/metrics").lines().any(|told| told == line);
    for line in [
        r#"flexvol_agent_requests_total{method="hold",code="OK"} 1"#,
        r#"flexvol_agent_requests_total{method="hold",code="FENCED"} 1"#,
        r#"flexvol_agent_holds{phase="held"} 1"#,
        "flexvol_agent_ready 1",
        "flexvol_agent_unheard 0",
    ] {
        assert!(has(line), "{line} is not in {}", get(address, "/metrics"));
    }
    assert_eq!(a.release("1").unwrap(), "released");
    assert!(has(r#"flexvol_agent_holds{phase="held"} 0"#));
}

/// Test 33: what the journal cannot note is not asked of the locks, and what is held stays held.
#[test]
fn on_a_full_disk_nothing_new_is_held_and_nothing_is_lost() {
    let Some(nodes) = Nodes::new("agent::on_a_full_disk_nothing_new_is_held_and_nothing_is_lost") else {
        return;
    };
    let state = nodes.path("a");
    fs::create_dir(&state).unwrap();
    mount(Some("t"), &state, Some("tmpfs"), MsFlags::empty(), Some("size=64k,mode=700")).unwrap();
    let (a, b) = (nodes.start("a"), nodes.start("b"));
    let filler = state.join("filler");
    let fill = || {
        let mut file = fs::File::create(&filler).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    };
    let refused = |code: &str| Err(code.to_owned());
    fill();
    assert_eq!((a.hold("1"), nodes.records()), (refused("STORE_UNAVAILABLE"), 0));
    fs::remove_file(&filler).unwrap();
    assert_eq!(a.hold("1"), Ok(0));
    fill();
    // It is not said that it was released: the driver leaves a note.
    assert_eq!(a.release("1"), None);
    assert_eq!(b.hold("2"), refused("FENCED"));
    fs::remove_file(&filler).unwrap();
    assert_eq!(a.release("1").unwrap(), "released");
    assert_eq!(b.hold("2"), Ok(0));
    drop(a);
    umount2(&state, MntFlags::MNT_DETACH).unwrap();
}

/// An administrator says that a node is off: then another one has its storage.
#[test]
fn a_node_that_is_off_is_told_from_one_that_does_not_answer() {
    let Some(nodes) = Nodes::new("agent::a_node_that_is_off_is_told_from_one_that_does_not_answer") else {
        return;
    };
    let (mut a, b) = (nodes.start("a"), nodes.start("b"));
    let locks = |words: &[&str]| {
        let mut command = Command::new(flexvold());
        command.args(["locks", "--json", "--store"]).arg(format!("file:{}", nodes.path("locks").display()));
        let output = command.args(words).output().unwrap();
        (output.status.code(), serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default())
    };
    assert_eq!(a.hold("1"), Ok(0));
    a.stop();
    assert_eq!(b.hold("2"), Err("FENCED".to_owned()));
    let (status, shown) = locks(&[]);
    assert_eq!((status, &shown["records"][0]["holders"][0]["node"]), (Some(0), &json!("a")));
    // One that holds nothing may be a slip.
    assert_eq!(locks(&["--off", "c"]).0, Some(1));
    assert_eq!(locks(&["--off", "a"]).1["off"], json!(["a"]));
    assert_eq!(b.hold("2"), Ok(1));
    // It was in the same boot: it holds nothing until that is taken back.
    a.start();
    assert_eq!(a.hold("3"), Err("NOT_READY".to_owned()));
    assert_eq!(locks(&["--on", "a"]).1["off"], json!([]));
    assert_eq!((a.hold("3"), a.holds()), (Err("FENCED".to_owned()), 0));
    assert_eq!((b.release("2").as_deref(), a.hold("3")), (Some("released"), Ok(1)));
    assert_ne!(locks(&["--store", "file:/run/nowhere"]).0, Some(0));
}

/// A driver never finds no socket while one agent follows another.
#[test]
fn the_socket_is_there_while_agents_follow_each_other() {
    let Some(nodes) = Nodes::new("agent::the_socket_is_there_while_agents_follow_each_other") else { return };
    let mut a = nodes.start("a");
    for _ in 0..3 {
        assert_eq!(a.end(Signal::SIGTERM), Some(0));
        assert!(a.socket().exists());
        // Nobody listens: that is told at once.
        assert!(UnixStream::connect(a.socket()).is_err());
        a.start();
    }
}

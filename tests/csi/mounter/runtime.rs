//! Programs through a container runtime, which the agent asks.

use super::fake_runtime::{Next, Runtime, SOCKET, State};
use super::{Container, NAME, World, message, needs};
use crate::node::{eventually, flexvold};
use crate::pace::{deadline, slow_seconds};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flexvol_linux::net::daemon_socket::Conversation;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_model::mounter::Order;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

const AGENT: &str = "/run/flexvol/agent.sock";
const LEFT: &str = "/run/flexvol/exec";

/// A container without a process 1 of ours.
struct Plain(Child);

impl Drop for Plain {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Plain {
    /// `inside` is run in it first.
    fn start(world: &World, inside: &str) -> Self {
        let begun = world.path("begun");
        let _ = fs::remove_file(&begun);
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "unchanged", "--pid", "--fork", "--kill-child"]);
        let script = format!("{inside}\ntouch {}; exec sleep 1000", begun.display());
        command.args(["--mount-proc", "sh", "-ec", &script]).stdin(Stdio::null());
        let plain = Self(command.spawn().unwrap());
        eventually("a container begins", || begun.exists());
        plain
    }

    /// Process 1, as the node sees it.
    fn init(&self) -> u32 {
        let children = format!("/proc/{0}/task/{0}/children", self.0.id());
        fs::read_to_string(children).unwrap().trim().parse().unwrap()
    }
}

/// The node's agent.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        self.crash();
    }
}

impl Agent {
    fn start(world: &World) -> Self {
        let mut command = Command::new(flexvold());
        command.args(["agent", "--node", "n", "--socket", AGENT, "--store"]);
        command.arg(format!("file:{}", world.path("locks").display()));
        command.arg("--state").arg(world.path("state")).stdin(Stdio::null());
        let _ = fs::remove_file(AGENT);
        let agent = Self(command.stderr(fs::File::create(world.path("agent.log")).unwrap()).spawn().unwrap());
        eventually("the agent listens", || Path::new(AGENT).exists());
        agent
    }

    fn crash(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn register(world: &World, uid: &str) {
    let directory = world.registration().parent().unwrap().to_owned();
    fs::create_dir_all(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(world.registration(), registration(uid).to_string()).unwrap();
    fs::set_permissions(world.registration(), fs::Permissions::from_mode(0o600)).unwrap();
}

fn registration(uid: &str) -> Value {
    json!({"podNamespace": "storage", "podName": format!("tools-{uid}"), "podUID": uid, "containerName": "tools"})
}

/// A node with an agent, a runtime and a container that is registered.
struct Scene {
    agent: Agent,
    runtime: Runtime,
    container: Plain,
    world: World,
}

impl Scene {
    fn new(test: &str) -> Option<Self> {
        let world = World::new(test)?;
        if !needs(test, "/usr/bin/nsenter") {
            return None;
        }
        let runtime = Runtime::start();
        let container = Plain::start(&world, "");
        runtime.has("one", "first", container.init());
        register(&world, "one");
        Some(Self { agent: Agent::start(&world), runtime, container, world })
    }

    /// Of the agent that listens here.
    fn ask(&self, uid: &str, order: Order) -> Value {
        assert!(self.world.path("state").exists());
        let request = format!(
            r#"{{"v":1,"method":"exec","pod":"{uid}","at":{},"params":{}}}"#,
            registration(uid),
            order.into_json()
        );
        let deadline = Deadline::after(deadline(60));
        let answer = Conversation::begin(Path::new(AGENT), &deadline).unwrap().ask(&request, &deadline);
        serde_json::from_slice(&answer.unwrap()).unwrap()
    }

    fn sh(&self, script: &str, within: u64) -> Value {
        self.ask("one", Order { within, ..answering("sh", &["-c", script]) })
    }

    fn code(&self, script: &str) -> i64 {
        let answer = self.sh(script, 1000 * slow_seconds(20));
        answer["ok"]["status"].as_i64().unwrap_or_else(|| panic!("{answer}")) >> 8
    }

    /// No file and no process of a program.
    fn is_clean(&self) {
        let left: Vec<_> = fs::read_dir(LEFT).into_iter().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
        self.world.is_clean(&["1", "2"]);
    }
}

fn answering(program: &str, args: &[&str]) -> Order {
    let args = args.iter().map(|word| (*word).to_owned()).collect();
    Order {
        program: program.to_owned(),
        args,
        answering: true,
        within: 1000 * slow_seconds(20),
        ..Order::default()
    }
}

fn code_of(answer: &Value) -> &str {
    answer["err"]["code"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

/// Its port; it says who it is, and no more: ssh soon gives up one that does not say that much.
pub(super) fn silent_server() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.write_all(b"SSH-2.0-silent\r\n");
            open.push(stream);
        }
    });
    port
}

fn running(mark: &str) -> bool {
    !super::sh(&format!("pgrep -fx '{mark}' || true")).trim().is_empty()
}

#[test]
fn a_node_without_sshfs_mounts_through_its_runtime() {
    let Some(scene) = Scene::new("mounter::runtime::a_node_without_sshfs_mounts_through_its_runtime") else {
        return;
    };
    let world = &scene.world;
    world.has_no_sshfs();
    for settings in [r#""mounter": "cri","#, ""] {
        world.settings(settings);
        assert_eq!(world.call("mount", "1"), "");
        fs::write(world.target("1").join("hello"), settings).unwrap();
        assert_eq!(fs::read_to_string(world.path("srv/hello")).unwrap(), settings);
        let serving = world.sshfs();
        let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).unwrap();
        assert_eq!(serving.len(), 1);
        assert_eq!(namespace(&serving[0].to_string()), namespace(&scene.container.init().to_string()));
        assert_eq!((world.call("mount", "1"), world.call("mount", "2")), (String::new(), String::new()));
        // It outlives who has started it.
        assert_eq!((world.call("unmount", "1"), world.sshfs().len()), (String::new(), 1));
        assert!(world.target("2").join("hello").exists());
        assert_eq!(world.call("unmount", "2"), "");
        scene.is_clean();
    }
    // As Kubernetes itself called the registration of such a driver.
    let old = world.registration().with_file_name(format!("flexvolume-{NAME}.json"));
    fs::rename(world.registration(), &old).unwrap();
    assert_eq!((world.call("mount", "1"), world.call("unmount", "1")), (String::new(), String::new()));
    fs::remove_file(old).unwrap();
    // A process 1 that answers is asked, where it may be.
    scene.runtime.asked();
    let pod = Container::start(world, "two").registers(world, "two");
    let refused = world.call("mount", "1");
    assert!(refused.contains("storage/tools-two"), "{refused}");
    assert!(scene.runtime.asked().is_empty(), "{}", pod.log());
}

/// Tests 2 and 11.
#[test]
fn arguments_arrive_as_they_are_and_results_come_back_apart() {
    let test = "mounter::runtime::arguments_arrive_as_they_are_and_results_come_back_apart";
    let Some(scene) = Scene::new(test) else { return };
    let words = ["", " a  b ", "\u{fc}\u{1f980}", "\"\\\n\u{1}", "$HOME", "-n", "a=b"];
    let script = r#"for word; do printf '%s|' "$word"; done; printf %s "$MARK" >&2; exit 7"#;
    let mut order = answering("sh", &[&["-c", script, "sh"], &words[..]].concat());
    order.env = vec!["MARK= x=\u{fc}".to_owned()];
    let answer = scene.ask("one", order);
    let said = &answer["ok"];
    assert_eq!(said["answer"].as_str().unwrap(), words.map(|word| format!("{word}|")).concat(), "{answer}");
    assert_eq!((said["output"].as_str().unwrap(), said["status"].as_i64()), (" x=\u{fc}", Some(7 << 8)));
    // Both together, in their order.
    let order = Order { answering: false, ..answering("sh", &["-c", "echo a; echo b >&2; echo c"]) };
    assert_eq!(scene.ask("one", order)["ok"]["output"], "a\nb\nc\n");
    // What is not there, what is there and cannot be run, and what fails as if it were not there.
    assert_eq!(code_of(&scene.ask("one", answering("no-such-program", &[]))), "MISSING");
    assert_eq!(scene.code("exit 127"), 127);
    for program in ["", "a/b", "-x", "a=b"] {
        assert_eq!(code_of(&scene.ask("one", answering(program, &[]))), "BAD_REQUEST", "{program}");
    }
    // What is read, is no argument of anybody's.
    scene.runtime.asked();
    let secret = "c4nary-of-a-tenant";
    let answer = scene.ask("one", Order { stdin: STANDARD.encode(secret), ..answering("cat", &[]) });
    assert_eq!(answer["ok"]["answer"], secret);
    let asked = scene.runtime.asked().iter().map(|(_, cmd)| cmd.join(" ")).collect::<String>();
    assert!(!asked.contains(secret) && !asked.contains(&STANDARD.encode(secret)), "{asked}");
    scene.is_clean();
}

/// Tests 12, 13 and 14.
#[test]
fn who_is_late_or_loud_or_stays_behind_holds_nobody_up() {
    let test = "mounter::runtime::who_is_late_or_loud_or_stays_behind_holds_nobody_up";
    let Some(scene) = Scene::new(test) else { return };
    // The runtime kills the first process alone; a grandchild would go on.
    let answer = scene.sh("sh -c 'sleep 6001.125; true'; true", 500 * slow_seconds(3));
    assert_eq!(code_of(&answer), "TIMEOUT");
    eventually("it is ended", || !running("sleep 6001.125"));
    assert_eq!(scene.code("sleep 6001.375 & exit 3"), 3);
    // It goes on: it may be what serves a volume.
    assert!(running("sleep 6001.375"));
    super::sh("pkill -fx 'sleep 6001.375'");
    let answer =
        scene.sh("head -c 20000000 /dev/zero | tr '\\0' x; echo end >&2; exit 3", 1000 * slow_seconds(20));
    let said = &answer["ok"];
    assert_eq!((said["status"].as_i64(), said["output"].as_str()), (Some(3 << 8), Some("end\n")));
    assert_eq!(said["answer"].as_str().unwrap().len(), 64 << 10);
    scene.is_clean();
}

/// Tests 5, 6 and 16.
#[test]
fn what_ended_in_the_middle_is_looked_for_again() {
    let Some(mut scene) = Scene::new("mounter::runtime::what_ended_in_the_middle_is_looked_for_again") else {
        return;
    };
    // The container was started again: once before it is looked for, once after.
    let second = Plain::start(&scene.world, "");
    scene.runtime.has("one", "second", second.init());
    assert_eq!(scene.code("exit 5"), 5);
    scene.runtime.next(Next::Exited);
    assert_eq!(scene.code("exit 6"), 6);
    assert!(scene.runtime.asked().iter().all(|(id, _)| id == "second"));
    // The runtime ends in the middle; what it has begun is not there twice.
    let mark = scene.world.path("began");
    scene.runtime.next(Next::Cut(mark.clone()));
    let script =
        format!("echo $$ >>{0}; [ $(wc -l <{0}) -gt 1 ] || exec sleep 6001.625; exit 4", mark.display());
    assert_eq!(scene.code(&script), 4);
    eventually("it is ended", || !running("sleep 6001.625"));
    scene.runtime.stop();
    let back = scene.runtime.again_after(Duration::from_secs(1));
    assert_eq!(scene.code("exit 8"), 8);
    let _back = back.join().unwrap();
    // Another pod, and none.
    assert_eq!(code_of(&scene.ask("two", answering("true", &[]))), "GONE");
    scene.is_clean();
}

/// kill -9 of the pod and of the agent while a volume is being mounted.
#[test]
fn who_is_killed_while_it_mounts_leaves_nothing_and_the_next_one_goes() {
    let test = "mounter::runtime::who_is_killed_while_it_mounts_leaves_nothing_and_the_next_one_goes";
    let Some(mut scene) = Scene::new(test) else { return };
    let mut options = scene.world.options();
    options["port"] = silent_server().to_string().into();
    scene.world.settings(r#""mounter": "cri","#);
    for agent_s in [true, false] {
        let call = scene.world.command_with("mount", "1", &options).spawn().unwrap();
        eventually("sshfs waits", || scene.world.sshfs().len() == 1);
        let begun = Instant::now();
        if agent_s {
            scene.agent.crash();
        } else {
            *scene.runtime.fake.state() = State::default();
            drop(std::mem::replace(&mut scene.container, Plain::start(&scene.world, "")));
        }
        let said = message(&call.wait_with_output().unwrap().stdout);
        assert!(said.contains("storage/tools-one"), "{said}");
        // The call itself would have 110 s.
        assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", begun.elapsed());
        if agent_s {
            scene.agent = Agent::start(&scene.world);
        } else {
            scene.runtime.has("one", "next", scene.container.init());
        }
        assert_eq!((scene.world.call("mount", "1"), scene.world.sshfs().len()), (String::new(), 1));
        assert_eq!(scene.world.call("unmount", "1"), "");
        scene.is_clean();
    }
    // A driver that is killed is missed at once.
    let mut call = scene.world.command_with("mount", "1", &options).spawn().unwrap();
    eventually("sshfs waits", || scene.world.sshfs().len() == 1);
    kill(Pid::from_raw(call.id().try_into().unwrap()), Signal::SIGKILL).unwrap();
    call.wait().unwrap();
    eventually("what it has started ends", || scene.world.sshfs().is_empty());
}

/// Test 15, and sockets that are not root's.
#[test]
fn only_a_runtime_of_root_s_that_speaks_cri_is_asked() {
    let Some(mut scene) = Scene::new("mounter::runtime::only_a_runtime_of_root_s_that_speaks_cri_is_asked")
    else {
        return;
    };
    // Docker's own containerd: a server without this service, and first in line.
    let other = PathBuf::from("/run/containerd/containerd.sock");
    fs::create_dir_all(other.parent().unwrap()).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(&other).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (end, ended) = oneshot::channel::<()>();
    let docker = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::UnixListener::from_std(listener).unwrap();
            let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
            let server = tonic::transport::Server::builder().add_routes(tonic::service::Routes::default());
            tokio::select! { _ = server.serve_with_incoming(incoming) => {}, _ = ended => {} }
        });
    });
    assert_eq!(scene.code("exit 3"), 3);
    // Where others may write, and where others serve.
    let directory = Path::new(SOCKET).parent().unwrap();
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(code_of(&scene.sh("true", 1000 * slow_seconds(1))), "NO_RUNTIME");
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(scene.code("exit 3"), 3);
    scene.runtime.stop();
    let _ = fs::remove_file(SOCKET);
    let mut nobody = Command::new("setpriv");
    let serve = format!(
        "import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('{SOCKET}')\ns.listen()\nwhile True: print(s.accept()[0].recv(9), flush=True)"
    );
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
    nobody.args(["--reuid=65534", "--clear-groups", "/usr/bin/python3", "-c", &serve]);
    let heard = scene.world.path("heard");
    let mut nobody = nobody.stdout(fs::File::create(&heard).unwrap()).spawn().unwrap();
    eventually("somebody listens", || Path::new(SOCKET).exists());
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    let answer = scene.sh("true", 1000 * slow_seconds(1));
    assert_eq!(code_of(&answer), "NO_RUNTIME");
    assert!(answer["err"]["msg"].as_str().unwrap().contains("crio.sock"), "{answer}");
    // Somebody is told nothing.
    let said = || fs::read_to_string(&heard).unwrap();
    eventually("somebody was asked", || said().contains("b''"));
    assert!(!said().contains("PRI"), "{}", said());
    nobody.kill().unwrap();
    nobody.wait().unwrap();
    drop(end);
    docker.join().unwrap();
}

/// What it costs; see [`figures`](super::figures).
#[test]
#[ignore = "figures"]
fn overhead_of_what_the_agent_adds() {
    let Some(scene) = Scene::new("mounter::runtime::overhead_of_what_the_agent_adds") else { return };
    let mut times: Vec<_> = (0..101)
        .map(|_| {
            let begun = Instant::now();
            assert_eq!(scene.code("exit 0"), 0);
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    println!("through the agent and a runtime that only enters: {:?} (median of {})", times[50], times.len());
}

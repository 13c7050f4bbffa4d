//! Volumes that are unmounted by force: real mounts that do not let go, and an agent that is killed
//! meanwhile.

use super::agent::{Agent, Nodes};
use super::namespace::mounts_at;
use super::node::{eventually, flexvol, write_executable};
use super::pace::{deadline, slow_seconds};
use super::skip;
use flexvol_cluster::fence::decide::{Cause, Task};
use flexvol_cluster::fence::record::Record;
use flexvol_cluster::fence::store::RecordStore as _;
use flexvol_cluster::fence::store::file::FileStore;
use flexvol_linux::proc::clock;
use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const NAME: &str = "example~tool";

/// What a driver does that knows whether it is mounted.
const UMOUNT: &str = "grep -q \" $2 \" /proc/self/mountinfo || exit 0; umount \"$2\" || exit 3";

/// An agent whose kubelet's directory is as on a node: what is unmounted there is everywhere.
struct Scene {
    nodes: Nodes,
    agent: Agent,
}

impl Scene {
    /// With what its driver does to unmount, and how long that may take.
    fn new(test: &str, unmount: &str) -> Option<Self> {
        let nodes = Nodes::new(test)?;
        share(&nodes.path("kubelet"));
        let driver = nodes.path(&format!("plugins/{NAME}/tool"));
        fs::create_dir_all(driver.parent().unwrap()).unwrap();
        let script = format!(
            "#!/bin/sh\necho \"$1\" >>{0}/ran\n({unmount}) >>{0}/said 2>&1 && echo '{{\"status\":\"Success\"}}' ||\n\
             echo '{{\"status\":\"Failure\",\"message\":\"busy\"}}'\n",
            nodes.path("").display()
        );
        write_executable(&driver, &script);
        let agent = Self::start(&nodes);
        Some(Self { nodes, agent })
    }

    fn start(nodes: &Nodes) -> Agent {
        let plugins = nodes.path("plugins");
        let longest = slow_seconds(2).to_string();
        nodes.start_with("a", &["--longest-call", &longest, "--drivers", plugins.to_str().unwrap()])
    }

    fn target(&self, pod: &str) -> PathBuf {
        let target = self.nodes.path(&format!("kubelet/pods/{pod}/volumes/{NAME}/v"));
        // One that is mounted may not answer.
        if mounts_at(&target).is_empty() {
            fs::create_dir_all(&target).unwrap();
        }
        target
    }

    /// It is held for a pod, as its driver would.
    fn hold(&self, pod: &str) -> Result<(), String> {
        let now = clock::since_boot();
        let params = json!({"handle": handle(pod), "fence": "pod", "target": self.target(pod), "access": "rw",
            "podNamespace": "default", "podName": pod, "podUid": pod});
        let until = now + u64::try_from(deadline(10).as_nanos()).unwrap();
        let request = json!({"v": 1, "method": "hold", "asked": now, "until": until, "params": params});
        let answer = self.agent.ask(&request).unwrap();
        if answer["ok"].is_object() {
            Ok(())
        } else {
            Err(answer["err"]["code"].as_str().unwrap().to_owned())
        }
    }

    fn store(&self) -> FileStore {
        FileStore::open(&self.nodes.path("locks")).unwrap()
    }

    fn record(&self, pod: &str) -> Option<Record> {
        self.store().read(&handle(pod), soon()).unwrap().record
    }

    /// Somebody wants it to be unmounted by force. The agent is killed, and hears of that when it
    /// starts.
    fn force(&mut self, pods: &[&str]) -> Vec<Task> {
        let task = |pod: &&str| {
            let holder = self.record(pod).unwrap().holders.remove(0);
            let task = Task { holder, reason: Cause::Forced };
            self.store().note(&task, soon()).unwrap();
            task
        };
        let tasks = pods.iter().map(task).collect();
        self.agent.stop();
        self.agent = Self::start(&self.nodes);
        tasks
    }

    /// What is said of a task; nothing once it is done.
    fn said(&self, task: &Task) -> Option<Value> {
        let directory = fs::read_dir(self.nodes.path("locks/tasks")).unwrap().next()?.unwrap().path();
        let text = fs::read_to_string(directory.join(format!("{}.json", task.name()))).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// What was said of each last, when all are done.
    fn done(&self, tasks: &[Task]) -> Vec<Value> {
        let (start, mut last) = (Instant::now(), vec![Value::Null; tasks.len()]);
        loop {
            let said: Vec<_> = tasks.iter().map(|task| self.said(task)).collect();
            if said.iter().all(Option::is_none) {
                return last;
            }
            for (last, said) in last.iter_mut().zip(said) {
                *last = said.map_or(last.take(), |said| said["status"].clone());
            }
            assert!(start.elapsed() < deadline(150), "{last:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn stuck(&self, task: &Task) -> Value {
        eventually("it is stuck", || self.said(task).unwrap()["status"]["phase"] == "Stuck");
        self.said(task).unwrap()["status"].clone()
    }

    fn is_mounted(&self, pod: &str) -> bool {
        !mounts_at(&self.target(pod)).is_empty()
    }

    fn ran(&self) -> usize {
        fs::read_to_string(self.nodes.path("ran")).unwrap_or_default().lines().count()
    }
}

fn handle(pod: &str) -> String {
    format!("rbd:pool/{pod}")
}

fn soon() -> Instant {
    Instant::now() + deadline(30)
}

/// As kubelet's directory is on a node.
fn share(path: &Path) {
    let nothing = None::<&str>;
    fs::create_dir_all(path).unwrap();
    mount(Some(path), path, nothing, MsFlags::MS_BIND, nothing).unwrap();
    mount(nothing, path, nothing, MsFlags::MS_SHARED, nothing).unwrap();
}

fn tmpfs(target: &Path) {
    mount(Some("tmpfs"), target, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
}

/// A file system whose server reads what it is asked and answers the first question alone: no
/// signal ends whoever waits for it.
fn silent(target: &Path) -> bool {
    const INIT: u32 = 26;
    let Ok(mut device) = File::options().read(true).write(true).open("/dev/fuse") else { return false };
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    mount(Some("silent"), target, Some("fuse.silent"), MsFlags::empty(), Some(&*options)).unwrap();
    std::thread::spawn(move || {
        let mut request = vec![0; 1 << 20];
        while let Ok(length) = device.read(&mut request) {
            let number = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
            if length > 16 && number(4) == INIT {
                let mut answer = [0; 80];
                answer[..4].copy_from_slice(&80_u32.to_ne_bytes());
                answer[8..16].copy_from_slice(&request[8..16]);
                answer[16..20].copy_from_slice(&7_u32.to_ne_bytes());
                answer[20..24].copy_from_slice(&31_u32.to_ne_bytes());
                answer[36..40].copy_from_slice(&4096_u32.to_ne_bytes());
                device.write_all(&answer).unwrap();
            }
        }
    });
    true
}

/// Test 52: a FUSE server that is silent holds up its driver, which nothing ends, and neither the
/// volume itself nor another one that is busy.
#[test]
fn t52_what_does_not_let_go_is_gone_around() {
    let test = "forced::t52_what_does_not_let_go_is_gone_around";
    let Some(mut scene) = Scene::new(test, &format!("stat \"$2\" && {UMOUNT}")) else { return };
    if !silent(&scene.target("silent")) {
        return skip(test, "needs /dev/fuse");
    }
    tmpfs(&scene.target("busy"));
    let _open = File::create(scene.target("busy").join("file")).unwrap();
    tmpfs(&scene.target("idle"));
    let pods = ["silent", "busy", "idle"];
    for pod in pods {
        scene.hold(pod).unwrap();
    }
    let tasks = scene.force(&pods);
    let said = scene.done(&tasks);
    for pod in pods {
        assert!(!scene.is_mounted(pod) && scene.record(pod).is_none(), "{pod}");
    }
    let tried = |number: usize| -> Vec<String> {
        let steps = said[number]["steps"].as_array().into_iter().flatten();
        let outcomes = steps.map(|step| step["outcome"].as_str().unwrap().to_owned());
        outcomes.filter(|outcome| outcome != "Running").collect()
    };
    // Its driver hangs in the kernel; what waits for the connection ends with that. Of what is done
    // at once nothing may have been seen, or only that it was begun.
    assert!(tried(0).first().is_none_or(|it| it == "Stuck"), "{said:?}");
    // It is taken off its directory, and its driver says that it is not mounted.
    assert!(tried(1).get(..2).is_none_or(|it| it == ["Failed", "Failed"]), "{said:?}");
    assert!(tried(2).len() <= 1, "{said:?}");
    assert!(scene.ran() >= 5, "the driver has the last word of two");
    assert_eq!(scene.agent.holds(), 0);
    scene.hold("silent").unwrap();
}

/// The driver's own process has died, and everybody is told that by the mount.
#[test]
fn what_nobody_serves_any_more_is_unmounted() {
    let test = "forced::what_nobody_serves_any_more_is_unmounted";
    let Some(mut scene) = Scene::new(test, UMOUNT) else { return };
    let target = scene.target("dead");
    let Ok(device) = File::options().read(true).write(true).open("/dev/fuse") else {
        return skip(test, "needs /dev/fuse");
    };
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    mount(Some("dead"), &target, Some("fuse.dead"), MsFlags::empty(), Some(&*options)).unwrap();
    drop(device);
    assert!(target.read_dir().is_err());
    scene.hold("dead").unwrap();
    let task = scene.force(&["dead"]).remove(0);
    scene.done(&[task]);
    assert!(mounts_at(&target).is_empty() && scene.record("dead").is_none());
    assert_eq!(scene.ran(), 1);
}

/// Of an image that is in use the kernel has the device still, whatever its directory shows: it is
/// released when its last user has gone, and not before. The agent is killed all the time.
#[test]
fn what_is_in_use_is_released_after_its_last_user() {
    let test = "forced::what_is_in_use_is_released_after_its_last_user";
    let Some(nodes) = Nodes::new(test) else { return };
    let Some(program) = flexvol() else { return skip(test, "flexvol is not built") };
    share(&nodes.path("kubelet"));
    let driver = nodes.path("plugins/example~image/image");
    fs::create_dir_all(driver.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(program, &driver).unwrap();
    fs::create_dir_all(nodes.path("images")).unwrap();
    let mut scene = Scene { agent: Scene::start(&nodes), nodes };
    let side_file = json!({"agent": {"fence": "pod", "socket": scene.agent.socket()},
        "policy": {"imageRoots": [scene.nodes.path("images")]}, "options": {"size": "16Mi", "file": "db.img"}});
    fs::write(driver.with_file_name(".flexvol.json"), side_file.to_string()).unwrap();
    let target = scene.nodes.path("kubelet/pods/1/volumes/example~image/v");
    fs::create_dir_all(&target).unwrap();
    let options = r#"{"kubernetes.io/pod.name":"db","kubernetes.io/pod.namespace":"default","kubernetes.io/pod.uid":"1"}"#;
    let call = |words: &[&str]| {
        let mut command = std::process::Command::new(&driver);
        let output = command.arg(words[0]).arg(&target).args(&words[1..]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(call(&["mount", options]).contains("Success"));
    let mut open = File::create(target.join("file")).unwrap();
    let handle = format!("file:{}", scene.nodes.path("images/db.img").display());
    let holders =
        |scene: &Scene| scene.store().read(&handle, soon()).unwrap().record.map_or(0, |it| it.holders.len());
    let holder = scene.store().read(&handle, soon()).unwrap().record.unwrap().holders.remove(0);
    let task = Task { holder, reason: Cause::Forced };
    scene.store().note(&task, soon()).unwrap();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(6) {
        scene.agent.stop();
        scene.agent = Scene::start(&scene.nodes);
        std::thread::sleep(Duration::from_millis(350));
        assert_eq!(holders(&scene), 1);
    }
    let status = scene.stuck(&task);
    assert!(status["message"].as_str().unwrap().contains("default/db"), "{status}");
    assert!(mounts_at(&target).is_empty() && open.write_all(b"late").is_ok());
    // Nor is it mounted again.
    assert!(!call(&["mount", options]).contains("Success"));
    drop(open);
    scene.done(&[task]);
    assert_eq!((holders(&scene), scene.agent.holds()), (0, 0));
    assert!(call(&["mount", options]).contains("Success") && call(&["unmount"]).contains("Success"));
}

//! A CSI driver behind FlexVolume: driver `csi`, the agent, and `flexvold csi` or a [`stub`] that
//! fails as it is told.

mod checked;
mod faults;
mod figures;
mod stub;
mod through;

use super::agent::{Agent, Nodes};
use super::namespace::mounts_at;
use super::node::{self, flexvol, message};
use super::pace::slow_seconds;
use super::skip;
use super::wording::wording;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use stub::{Served, Stub};

const DRIVER: &str = "example~csi";
const SECRET: &str = "c4nary-of-a-tenant";

/// The same as kubelet sends it.
const ENCODED: &str = "YzRuYXJ5LW9mLWEtdGVuYW50";

/// kubelet's side of a node, with an agent on it.
struct Scene {
    nodes: Nodes,
    agent: Agent,
    /// Its directory.
    kubelet: PathBuf,
}

impl Scene {
    /// `None`, and SKIP is said, where there is no program with our drivers.
    fn new(test: &str) -> Option<Self> {
        let nodes = Nodes::new(test)?;
        let kubelet = nodes.path("kubelet");
        fs::create_dir_all(kubelet.join("plugins_registry")).unwrap();
        Self::on(nodes, kubelet, test)
    }

    fn on(nodes: Nodes, kubelet: PathBuf, test: &str) -> Option<Self> {
        let Some(program) = flexvol() else {
            skip(test, "flexvol is not built");
            return None;
        };
        let plugins = nodes.path("plugins").join(DRIVER);
        fs::create_dir_all(&plugins).unwrap();
        symlink(program, plugins.join("csi")).unwrap();
        let agent = nodes.start_with("a", &["--kubelet-root", kubelet.to_str().unwrap()]);
        let scene = Self { nodes, agent, kubelet };
        scene.set(30);
        Some(scene)
    }

    /// With a CSI driver that does as it is told.
    fn with_stub(test: &str, stages: bool) -> Option<(Self, Stub, Served)> {
        let scene = Self::new(test)?;
        let stub = Stub::new(stages);
        let served = stub.serve(&scene.kubelet);
        Some((scene, stub, served))
    }

    /// The agent again.
    fn start(&mut self) {
        self.agent.start_with(&["--kubelet-root", self.kubelet.to_str().unwrap()]);
    }

    fn set(&self, seconds: u64) {
        self.set_seconds(slow_seconds(seconds));
    }

    /// However slow the machine is.
    fn set_seconds(&self, seconds: u64) {
        let text = json!({
            "driver": "csi",
            "agent": {"socket": self.agent.socket()},
            "deadlines": {"mount": seconds, "unmount": seconds},
            "policy": {"csiDrivers": "*"},
        });
        fs::write(self.nodes.path("plugins").join(DRIVER).join(".flexvol.json"), text.to_string()).unwrap();
    }

    fn target(&self, pod: &str) -> PathBuf {
        self.kubelet.join("pods").join(pod).join("volumes").join(DRIVER).join("v")
    }

    /// The message of the reply, empty for a success. As kubelet does it: the directory is there
    /// before a mount, and removed after one that has failed, or after an unmount.
    fn call(&self, words: &[&str], pod: &str) -> String {
        let target = self.target(pod);
        let mut command = Command::new(self.nodes.path("plugins").join(DRIVER).join("csi"));
        command.arg(words[0]).arg(&target).args(&words[1..]).stdin(Stdio::null());
        let said = message(&command.output().unwrap().stdout);
        if said.is_empty() == (words[0] == "unmount") {
            let _ = fs::remove_dir(&target);
        }
        said
    }

    /// To 2 GiB.
    fn grow(&self, pod: &str, options: &Value) -> String {
        let mut command = Command::new(self.nodes.path("plugins").join(DRIVER).join("csi"));
        command.args(["expandfs", &options.to_string(), ""]).arg(self.target(pod)).args(["2147483648", "1"]);
        message(&command.stdin(Stdio::null()).output().unwrap().stdout)
    }

    fn mount(&self, pod: &str, options: &Value) -> String {
        fs::create_dir_all(self.target(pod)).unwrap();
        self.call(&["mount", &options.to_string()], pod)
    }

    /// kubelet does not call for a directory that is gone.
    fn unmount(&self, pod: &str) -> String {
        if self.target(pod).exists() { self.call(&["unmount"], pod) } else { String::new() }
    }

    fn is_mounted(&self, pod: &str) -> bool {
        let place = self.target(pod).canonicalize();
        place.is_ok_and(|place| !mounts_at(&place).is_empty())
    }

    /// The volumes that the agent knows of.
    fn known(&self) -> Vec<Value> {
        let status = self.agent.ask(&json!({"v": 1, "method": "status"})).unwrap();
        status["ok"]["csi"].as_array().unwrap().clone()
    }

    fn journal(&self) -> Vec<String> {
        let files = fs::read_dir(self.nodes.path("a/csi")).unwrap();
        files.filter_map(|file| fs::read_to_string(file.unwrap().path()).ok()).collect()
    }

    /// Nothing is left of any volume: no mount, no directory, no note of the agent or the driver.
    fn is_clean(&self) {
        assert!(self.known().is_empty(), "{:?}", self.known());
        // The agent removes it from its disk last.
        node::eventually("the journal is empty", || self.journal().is_empty());
        let root = self.kubelet.canonicalize().unwrap().display().to_string();
        let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        assert!(!table.contains(&root), "{table}");
        // The agent removes them last.
        let notes = || fs::read_dir("/run/flexvol/published").map_or(0, Iterator::count);
        node::eventually("no note is left", || notes() == 0);
        let drivers = fs::read_dir(self.kubelet.join("plugins/kubernetes.io/csi"));
        for driver in drivers.into_iter().flatten() {
            assert_eq!(fs::read_dir(driver.unwrap().path()).unwrap().count(), 0);
        }
    }
}

fn options(more: &[(&str, &str)]) -> Value {
    let mut options = json!({"driver": stub::NAME, "volumeHandle": "vol-1"});
    for (key, value) in more {
        options[*key] = json!(value);
    }
    options
}

#[test]
fn a_volume_is_staged_once_and_unstaged_with_its_last_pod() {
    let test = "behind::a_volume_is_staged_once_and_unstaged_with_its_last_pod";
    let Some((scene, stub, _served)) = Scene::with_stub(test, true) else { return };
    assert_eq!(scene.mount("1", &options(&[])), "");
    assert_eq!(stub.calls(), ["stage", "publish"]);
    // kubelet asks again: what is mounted needs no CSI driver.
    assert_eq!((scene.mount("1", &options(&[])), stub.calls()), (String::new(), vec![]));
    assert_eq!(scene.mount("2", &options(&[])), "");
    assert_eq!((stub.calls(), stub.count()), (vec!["publish"], (1, 2)));
    fs::write(scene.target("1").join("file"), "x").unwrap();
    assert_eq!(fs::read_to_string(scene.target("2").join("file")).unwrap(), "x");
    assert_eq!((scene.unmount("1"), stub.calls()), (String::new(), vec!["unpublish"]));
    assert!(scene.is_mounted("2") && !scene.is_mounted("1"));
    assert_eq!((scene.unmount("2"), stub.calls()), (String::new(), vec!["unpublish", "unstage"]));
    assert_eq!(stub.count(), (0, 0));
    scene.is_clean();
}

#[test]
fn a_driver_that_does_not_stage_is_only_asked_to_publish() {
    let test = "behind::a_driver_that_does_not_stage_is_only_asked_to_publish";
    let Some((scene, stub, _served)) = Scene::with_stub(test, false) else { return };
    assert_eq!(scene.mount("1", &options(&[])), "");
    assert_eq!((scene.unmount("1"), stub.calls()), (String::new(), vec!["publish", "unpublish"]));
    assert_eq!(stub.publish_request().staging_target_path, "");
    scene.is_clean();
}

#[test]
fn what_the_volume_says_reaches_the_driver() {
    let test = "behind::what_the_volume_says_reaches_the_driver";
    let Some((scene, stub, _served)) = Scene::with_stub(test, true) else { return };
    let said = options(&[
        ("attributes", r#"{"source":"//a/b","kept":"yes"}"#),
        ("attr.source", "//c/d"),
        ("mountFlags", "noatime, vers=3"),
        ("podInfo", "true"),
        ("kubernetes.io/fsType", "ext4"),
        ("kubernetes.io/mounterArgs.FsGroup", "1000"),
        ("kubernetes.io/pod.name", "web-0"),
        ("kubernetes.io/pod.namespace", "shop"),
        ("kubernetes.io/pod.uid", "1"),
        ("kubernetes.io/secret/password", ENCODED),
    ]);
    assert_eq!(scene.mount("1", &said), "");
    let (stage, publish) = (stub.stage_request(), stub.publish_request());
    let context = [("source", "//c/d"), ("kept", "yes")].map(|(key, value)| (key.into(), value.into()));
    assert_eq!((stage.volume_id.as_str(), stage.volume_context), ("vol-1", context.into()));
    assert_eq!((stage.secrets["password"].as_str(), &publish.secrets), (SECRET, &stage.secrets));
    let capability = publish.volume_capability.unwrap();
    assert_eq!(Some(&capability), stage.volume_capability.as_ref());
    let shown = format!("{capability:?}");
    for part in ["\"ext4\"", "[\"noatime\", \"vers=3\"]", "\"1000\"", "SingleNodeMultiWriter"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let info = |key: &str| publish.volume_context[&format!("csi.storage.k8s.io/{key}")].clone();
    assert_eq!([info("pod.name"), info("pod.namespace"), info("pod.uid")], ["web-0", "shop", "1"]);
    assert_eq!(publish.staging_target_path, stage.staging_target_path);
    // The Secret is on no disk.
    for text in scene.journal() {
        assert!(!text.contains(SECRET) && !text.contains(ENCODED), "{text}");
        // Nor is what may be one.
        assert!(!text.contains("//c/d") && !text.contains("noatime"), "{text}");
    }
    assert_eq!(scene.unmount("1"), "");
    scene.is_clean();
}

#[test]
fn a_volume_that_has_grown_is_told() {
    let test = "behind::a_volume_that_has_grown_is_told";
    let Some((scene, stub, served)) = Scene::with_stub(test, true) else { return };
    let volume = options(&[("kubernetes.io/fsType", "ext4")]);
    // Before it is mounted there is nothing to grow.
    assert_ne!(scene.grow("1", &volume), "");
    assert_eq!(scene.mount("1", &volume), "");
    stub.calls();
    assert_eq!((scene.grow("1", &volume), stub.calls()), (String::new(), vec!["expand"]));
    let (asked, staged) = (stub.expand_request(), stub.stage_request());
    assert_eq!((asked.volume_id.as_str(), PathBuf::from(&asked.volume_path)), ("vol-1", scene.target("1")));
    assert_eq!(asked.capacity_range.unwrap().required_bytes, 2 << 30);
    assert_eq!(asked.staging_target_path, staged.staging_target_path);
    assert_eq!(asked.volume_capability, staged.volume_capability);
    // kubelet comes again until it has grown.
    stub.fails("expand", Some(stub::Fault::Refused(tonic::Code::Internal)));
    assert!(scene.grow("1", &volume).contains("as it was told"));
    assert_eq!(scene.unmount("1"), "");
    scene.is_clean();
    // A driver that has nothing to do on the node is not asked.
    drop(served);
    let stub = Stub::new(false);
    let _served = stub.serve(&scene.kubelet);
    assert_eq!((scene.mount("1", &volume), scene.grow("1", &volume)), (String::new(), String::new()));
    assert_eq!((scene.unmount("1"), stub.calls()), (String::new(), vec!["publish", "unpublish"]));
    scene.is_clean();
}

#[test]
fn a_reader_reads_and_does_not_keep_a_writer_from_being_told() {
    let test = "behind::a_reader_reads_and_does_not_keep_a_writer_from_being_told";
    let Some((scene, stub, _served)) = Scene::with_stub(test, true) else { return };
    let reader = options(&[("kubernetes.io/readwrite", "ro")]);
    assert_eq!(scene.mount("1", &options(&[])), "");
    assert_eq!(scene.mount("2", &reader), "");
    assert!(stub.publish_request().readonly && fs::write(scene.target("2").join("x"), "").is_err());
    for pod in ["1", "2"] {
        assert_eq!(scene.unmount(pod), "");
    }
    // Staged for readers: a writer is told, and gets it once they are gone.
    assert_eq!(scene.mount("2", &reader), "");
    let refused = scene.mount("1", &options(&[]));
    assert!(refused.contains(wording("csi-published-otherwise")), "{refused}");
    assert_eq!((scene.unmount("2"), scene.mount("1", &options(&[]))), (String::new(), String::new()));
    assert!(!stub.publish_request().readonly);
    // Nor does a volume of other attributes get what was staged with these.
    let refused = scene.mount("2", &options(&[("attr.source", "other")]));
    assert!(refused.contains(wording("csi-published-otherwise")), "{refused}");
    let once = options(&[("accessMode", "ReadWriteOncePod")]);
    assert_ne!(scene.mount("2", &once), "");
    assert_eq!((scene.unmount("1"), scene.mount("2", &once)), (String::new(), String::new()));
    // One pod's alone: not even a reader gets it.
    assert_ne!(scene.mount("1", &reader), "");
    assert_eq!(scene.unmount("2"), "");
    scene.is_clean();
}

#[test]
fn another_zone_and_what_kubelet_has_staged_are_refused() {
    let test = "behind::another_zone_and_what_kubelet_has_staged_are_refused";
    let Some((scene, stub, _served)) = Scene::with_stub(test, true) else { return };
    stub.is_in("topology.example.com/zone", "b");
    let of = |zone| options(&[("topology.topology.example.com/zone", zone)]);
    let refused = scene.mount("1", &of("a"));
    assert!(refused.contains("\"a\"") && refused.contains("\"b\"") && stub.calls().is_empty(), "{refused}");
    assert_eq!((scene.mount("1", &of("b")), scene.unmount("1")), (String::new(), String::new()));
    let hash = flexvol_cluster::csi::name::hash(b"vol-1");
    let staged = scene.kubelet.join("plugins/kubernetes.io/csi").join(stub::NAME).join(hash);
    let staged = staged.join("globalmount");
    fs::create_dir_all(&staged).unwrap();
    let mount = |program: &str, words: &[&str]| {
        assert!(Command::new(program).args(words).arg(&staged).status().unwrap().success());
    };
    mount("mount", &["-t", "tmpfs", "kubelet"]);
    stub.calls();
    let refused = scene.mount("1", &options(&[]));
    assert!(refused.contains(wording("csi-staged-by-kubelet")) && stub.calls().is_empty(), "{refused}");
    mount("umount", &[]);
    fs::remove_dir_all(staged.parent().unwrap()).unwrap();
    assert_eq!((scene.mount("1", &options(&[])), scene.unmount("1")), (String::new(), String::new()));
    scene.is_clean();
}

#[test]
fn without_an_agent_nothing_is_published_and_everything_unmounted() {
    let test = "behind::without_an_agent_nothing_is_published_and_everything_unmounted";
    let Some((mut scene, stub, _served)) = Scene::with_stub(test, true) else { return };
    assert_eq!(scene.mount("1", &options(&[])), "");
    stub.calls();
    scene.agent.stop();
    scene.set(3);
    let refused = scene.mount("2", &options(&[]));
    assert!(refused.contains(wording("agent-not-there")) && !scene.is_mounted("2"), "{refused}");
    assert_eq!((scene.unmount("1"), scene.is_mounted("1"), stub.calls()), (String::new(), false, vec![]));
    // The agent finds out what kubelet has removed meanwhile.
    scene.start();
    node::eventually("it is taken away", || stub.count() == (0, 0));
    node::eventually("it is forgotten", || scene.known().is_empty());
    scene.is_clean();
}

#[test]
fn a_directory_that_could_not_be_removed_again_is_refused() {
    let test = "behind::a_directory_that_could_not_be_removed_again_is_refused";
    let Some((scene, stub, _served)) = Scene::with_stub(test, true) else { return };
    let left = scene.target("1").join("left");
    fs::create_dir_all(scene.target("1")).unwrap();
    fs::write(&left, "of a pod").unwrap();
    let refused = scene.mount("1", &options(&[]));
    assert!(refused.contains(wording("csi-target-not-empty")) && stub.calls().is_empty(), "{refused}");
    assert_eq!(fs::read_to_string(&left).unwrap(), "of a pod");
    fs::remove_file(left).unwrap();
    assert_eq!((scene.mount("1", &options(&[])), scene.unmount("1")), (String::new(), String::new()));
    scene.is_clean();
}

#[test]
fn what_another_has_mounted_is_neither_shown_nor_kept() {
    let test = "behind::what_another_has_mounted_is_neither_shown_nor_kept";
    let Some((scene, stub, served)) = Scene::with_stub(test, true) else { return };
    another_mounts(&scene, &stub);
    drop(served);
    drop(scene);
    // kubelet's directory is a symlink: the mount table has other paths.
    let Some(nodes) = Nodes::new(test) else { return };
    let kubelet = nodes.path("kubelet");
    fs::create_dir_all(nodes.path("data/plugins_registry")).unwrap();
    symlink("data", &kubelet).unwrap();
    let Some(scene) = Scene::on(nodes, kubelet, test) else { return };
    let stub = Stub::new(true);
    let _served = stub.serve(&scene.kubelet);
    another_mounts(&scene, &stub);
}

fn another_mounts(scene: &Scene, stub: &Stub) {
    let mount = |words: &[&str]| {
        assert!(Command::new("mount").args(words).arg(scene.target("1")).status().unwrap().success());
    };
    fs::create_dir_all(scene.target("1")).unwrap();
    mount(&["-t", "tmpfs", "foreign"]);
    assert_ne!(scene.call(&["mount", &options(&[]).to_string()], "1"), "");
    assert_eq!((scene.unmount("1"), stub.calls()), (String::new(), vec![]));
    // Above the volume, a refusal of the CSI driver ends it, and both go.
    assert_eq!(scene.mount("1", &options(&[])), "");
    mount(&["-t", "tmpfs", "above"]);
    stub.fails("unpublish", Some(stub::Fault::Refused(tonic::Code::Internal)));
    assert_ne!(scene.unmount("1"), "");
    assert_eq!(mounts_at(&scene.target("1").canonicalize().unwrap()).len(), 1);
    stub.fails("unpublish", None);
    assert_eq!((scene.unmount("1"), stub.count()), (String::new(), (0, 0)));
    scene.is_clean();
}

/// More than are served at once, of one CSI driver and of all.
#[test]
fn many_pods_at_once_wait_for_each_other() {
    let test = "behind::many_pods_at_once_wait_for_each_other";
    let Some((scene, stub, _served)) = Scene::with_stub(test, false) else { return };
    let pods: Vec<_> = (0..50).map(|pod: u8| pod.to_string()).collect();
    let all = |work: &(dyn Fn(&str) -> String + Sync)| {
        std::thread::scope(|scope| {
            let each: Vec<_> = pods.iter().map(|pod| scope.spawn(move || work(pod))).collect();
            for one in each {
                assert_eq!(one.join().unwrap(), "");
            }
        });
    };
    let shared = options(&[("accessMode", "ReadWriteMany")]);
    all(&|pod| scene.mount(pod, &shared));
    assert_eq!(stub.count(), (0, 50));
    all(&|pod| scene.unmount(pod));
    assert_eq!(stub.count(), (0, 0));
    scene.is_clean();
}

/// flex → CSI → flex: `flexvold csi` serves a driver in shell, found by its registration.
#[test]
fn a_server_of_ours_is_behind_it() {
    let test = "behind::a_server_of_ours_is_behind_it";
    let driver = node::Driver::Script(node::STRICT);
    let Some(mut inner) = node::Node::new(test, "example.com/strict", &driver) else { return };
    inner.start(&["--register"]);
    let nodes = Nodes { home: tempfile::tempdir_in(inner.home.path()).unwrap() };
    let Some(scene) = Scene::on(nodes, inner.kubelet(), test) else { return };
    let volume = json!({"driver": "strict.example.com.flex.flexvol.dev", "volumeHandle": "fx1#pv-1",
        "accessMode": "ReadWriteMany", "attr.share": "x", "kubernetes.io/secret/password": ENCODED});
    assert_eq!((scene.mount("1", &volume), scene.mount("2", &volume)), (String::new(), String::new()));
    assert!(scene.is_mounted("1") && scene.is_mounted("2"));
    let log = inner.log();
    assert!(log.contains(r#""share":"x""#) && log.contains(ENCODED), "{log}");
    inner.restart();
    for pod in ["1", "2"] {
        assert_eq!((scene.unmount(pod), scene.is_mounted(pod)), (String::new(), false));
    }
    assert_eq!((inner.called("mount"), inner.called("unmount")), (2, 2));
    scene.is_clean();
}

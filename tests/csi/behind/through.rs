//! Volumes of other drivers, which a CSI driver serves and nobody rewrites.

use super::stub::{Served, Stub};
use super::{ENCODED, SECRET, Scene};
use crate::node::{flexvol, message};
use crate::wording::wording;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const SMB: &str = "smb.csi.k8s.io";

/// As an author of years ago wrote it.
fn share() -> Value {
    json!({
        "networkPath": "//nas.example.com/web",
        "mountOptions": "vers=3.0,uid=7,nofail",
        "kubernetes.io/fsType": "cifs",
        "kubernetes.io/pvOrVolumeName": "data",
        "kubernetes.io/mounterArgs.FsGroup": "1000",
        "kubernetes.io/secret/password": ENCODED,
    })
}

/// `fstab/cifs` by `install`, in a directory of its own.
struct Cifs<'a> {
    scene: &'a Scene,
    plugins: PathBuf,
}

impl<'a> Cifs<'a> {
    fn new(scene: &'a Scene) -> Self {
        let plugins = scene.nodes.path("installed");
        fs::create_dir_all(&plugins).unwrap();
        Self { scene, plugins }
    }

    fn install(&self, words: &[&str]) -> Output {
        let state = self.scene.nodes.path("state-of-install");
        let socket = format!("agent.socket={}", self.scene.agent.socket().display());
        let mut command = Command::new(flexvol().unwrap());
        command.arg("install").args(words).args(["--set", &socket]);
        command.arg("--plugin-dir").arg(&self.plugins).arg("--state-dir").arg(state);
        command.output().unwrap()
    }

    fn target(&self, pod: &str) -> PathBuf {
        self.scene.kubelet.join("pods").join(pod).join("volumes/fstab~cifs/data")
    }

    fn call(&self, verb: &str, target: Option<&Path>, options: Option<&Value>) -> Value {
        let mut command = Command::new(self.plugins.join("fstab~cifs/cifs"));
        command.arg(verb).args(target).args(options.map(Value::to_string)).stdin(Stdio::null());
        serde_json::from_slice(&command.output().unwrap().stdout).unwrap()
    }

    /// The message of the reply, as of [`Scene::call`].
    fn mount(&self, pod: &str, options: &Value) -> String {
        let target = self.target(pod);
        fs::create_dir_all(&target).unwrap();
        let said = message(self.call("mount", Some(&target), Some(options)).to_string().as_bytes());
        if !said.is_empty() {
            let _ = fs::remove_dir(&target);
        }
        said
    }

    fn unmount(&self, pod: &str) -> String {
        let target = self.target(pod);
        let said = message(self.call("unmount", Some(&target), None).to_string().as_bytes());
        let _ = fs::remove_dir(&target);
        said
    }
}

fn smb(scene: &Scene) -> (Stub, Served) {
    let stub = Stub::called(SMB, true);
    let served = stub.serve(&scene.kubelet);
    (stub, served)
}

fn succeeds(done: &Output) {
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn old_volumes_are_served_unchanged() {
    let test = "behind::through::old_volumes_are_served_unchanged";
    let Some(scene) = Scene::new(test) else { return };
    let (stub, _served) = smb(&scene);
    let cifs = Cifs::new(&scene);
    succeeds(&cifs.install(&["fstab/cifs", "--through-csi", SMB]));
    // As the driver before it: the owners of files are the server's.
    let said = cifs.call("init", None, None);
    assert_eq!(
        (&said["capabilities"]["attach"], &said["capabilities"]["fsGroup"]),
        (&json!(false), &json!(false))
    );
    assert_eq!((cifs.mount("1", &share()), cifs.mount("2", &share())), (String::new(), String::new()));
    let stage = stub.stage_request();
    let context = [("source".to_owned(), "//nas.example.com/web".to_owned())];
    assert_eq!((stage.volume_context, stage.secrets["password"].as_str()), (context.into(), SECRET));
    let shown = format!("{:?}", stage.volume_capability.unwrap());
    for part in ["[\"vers=3.0\", \"uid=7\"]", "\"1000\"", "fs_type: \"\""] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // One pod may have another login than the other.
    assert_eq!((stub.count(), scene.known().len()), ((2, 2), 2));
    for text in scene.journal() {
        assert!(!text.contains(SECRET) && !text.contains("nas.example.com"), "{text}");
    }
    // kubelet asks again; and another volume at the same target is none of this one.
    stub.calls();
    assert_eq!((cifs.mount("1", &share()), stub.calls()), (String::new(), vec![]));
    assert_eq!((cifs.unmount("1"), cifs.unmount("2")), (String::new(), String::new()));
    assert_eq!(stub.count(), (0, 0));
    scene.is_clean();
}

#[test]
fn what_the_csi_driver_has_no_word_for_is_refused() {
    let test = "behind::through::what_the_csi_driver_has_no_word_for_is_refused";
    let Some(scene) = Scene::new(test) else { return };
    let (stub, _served) = smb(&scene);
    let cifs = Cifs::new(&scene);
    succeeds(&cifs.install(&["fstab/cifs", "--through-csi", SMB]));
    let hostile = [
        ("networkPath", "//nas/../etc"),
        ("mountOptions", "credentials=/etc/shadow"),
        ("mountOptions", "suid"),
        ("cruid", "0"),
        ("driver", "other.csi.example.com"),
        ("volumeHandle", "vol-1"),
        ("attr.source", "//evil/x"),
    ];
    for (key, value) in hostile {
        let mut options = share();
        options[key] = json!(value);
        assert_ne!(cifs.mount("1", &options), "", "{key}");
        assert!(stub.calls().is_empty() && scene.known().is_empty(), "{key}");
    }
    scene.is_clean();
}

#[test]
fn what_could_serve_no_volume_is_not_installed() {
    let test = "behind::through::what_could_serve_no_volume_is_not_installed";
    let Some(scene) = Scene::new(test) else { return };
    let cifs = Cifs::new(&scene);
    for words in [
        ["fstab/cifs", "--through-csi", "nfs.csi.k8s.io"].as_slice(),
        &["acme/cifs", "--through-csi", SMB],
        &["fstab/cifs=tmpfs", "--through-csi", SMB],
        &["fstab/cifs", "--through-csi", SMB, "--set", "policy.servers=nas.example.com"],
        &["oracle/oci", "--through-csi", "blockvolume.csi.oraclecloud.com"],
    ] {
        let done = cifs.install(words);
        assert_eq!(done.status.code(), Some(2), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(fs::read_dir(&cifs.plugins).unwrap().count(), 0, "{words:?}");
    }
    let done = cifs.install(&["fstab/cifs", "--through-csi", "nfs.csi.k8s.io"]);
    let told = String::from_utf8(done.stderr).unwrap();
    assert!(told.contains(wording("no-way-through-csi")) && told.contains(SMB), "{told}");
    // Under another name, whose options they have is said.
    succeeds(&cifs.install(&["acme/share=juliohm/cifs", "--through-csi", SMB]));
}

/// Pods that run while the driver changes keep their volumes and end.
#[test]
fn a_driver_goes_there_and_back_under_its_pods() {
    let test = "behind::through::a_driver_goes_there_and_back_under_its_pods";
    let Some(mut scene) = Scene::new(test) else { return };
    let (stub, _served) = smb(&scene);
    let cifs = Cifs::new(&scene);
    succeeds(&cifs.install(&["fstab/cifs"]));
    // What its own driver has mounted there.
    fs::create_dir_all(cifs.target("1")).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "share"]).arg(cifs.target("1")).status();
    assert!(mounted.unwrap().success());
    succeeds(&cifs.install(&["fstab/cifs", "--through-csi", SMB]));
    assert_eq!((cifs.mount("2", &share()), stub.count()), (String::new(), (1, 1)));
    assert_eq!((cifs.unmount("1"), stub.count()), (String::new(), (1, 1)));
    // An upgrade says nothing of it.
    succeeds(&cifs.install(&["fstab/cifs"]));
    assert_eq!((cifs.mount("3", &share()), stub.count()), (String::new(), (2, 2)));
    succeeds(&cifs.install(&["fstab/cifs=cifs", "--unset", "throughCsi"]));
    assert_eq!((cifs.unmount("2"), cifs.unmount("3")), (String::new(), String::new()));
    // As its sweep does every minute.
    scene.agent.stop();
    scene.start();
    crate::node::eventually("the agent finds it", || stub.count() == (0, 0) && scene.known().is_empty());
    scene.is_clean();
}

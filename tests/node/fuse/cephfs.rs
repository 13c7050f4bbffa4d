//! `cephfs`, against a real cluster of one node.

use crate::canary::nobody_finds_in;
use crate::node::{Node, alone_for, end, lives, mounts_at, sh};
use crate::sshd::base64;
use crate::stores::with;
use crate::subjects::Subject;
use crate::support::pace::deadline;
use crate::support::processes_with;
use crate::support::wording::wording_of;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

pub(crate) const PROGRAMS: [&str; 5] = ["ceph-mon", "ceph-osd", "ceph-mds", "ceph", "ceph-fuse"];

/// How long the cluster takes to come up, and then some.
const LIMIT: u32 = 300;

/// What a mount and an unmount may take, in seconds; six clients begin at once, beside other tests.
const MOUNT: u64 = 30;
const UNMOUNT: u64 = 15;

/// What undoing and ending take at most, beyond that.
const GRACE: u64 = 15;

/// The cluster, which ends with the test.
pub(crate) struct Cluster {
    directory: String,
}

impl Cluster {
    pub(crate) fn start(node: &Node) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/ceph");
        let directory = node.path("ceph").display().to_string();
        sh(&format!("CEPH_WITHOUT=rbd {} start {directory}", script.display()));
        Self { directory }
    }

    pub(crate) fn options(&self) -> Value {
        let key = fs::read_to_string(format!("{}/user.key", self.directory)).unwrap();
        json!({"monitors": "127.0.0.1", "user": "user", "kubernetes.io/secret/key": base64(&key)})
    }

    /// Whoever serves anything says nothing any more.
    fn stop() {
        let serving = ["ceph-mon", "ceph-osd", "ceph-mds"].map(processes_with).concat();
        assert!(serving.len() >= 3);
        for pid in serving {
            kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
        }
    }
}

/// What fails, started at the same time; each says why and leaves nothing.
fn none_is_mounted(node: &Node, options: &[(&str, Value, &str)]) {
    let pod = |number: usize| node.pod(&format!("wrong-{number}"));
    let calls: Vec<_> = options
        .iter()
        .enumerate()
        .map(|(number, (_, options, _))| node.start(&pod(number), options))
        .collect();
    for (number, (call, (what, _, said))) in calls.into_iter().zip(options).enumerate() {
        let run = call.finish();
        let failure = run.failure();
        assert!(failure.contains("127.0.0.1") && failure.contains(said), "{what}: {failure}");
        assert!(run.took < deadline(MOUNT + GRACE), "{what}: {:?}", run.took);
        assert!(!failure.contains("waiting for"), "{what} is known only by the deadline: {failure}");
        assert_eq!(mounts_at(&pod(number)), 0);
    }
    node.is_clean(&["ceph-fuse"]);
}

#[test]
fn it_lives_and_dies_with_a_cluster() {
    alone_for("cephfs::it_lives_and_dies_with_a_cluster", LIMIT, &PROGRAMS, || {
        let node = Node::within("cephfs", MOUNT, UNMOUNT);
        let cluster = Cluster::start(&node);
        let (options, key) = (cluster.options(), Some("key"));
        let subject = Subject { node, options: options.clone(), key, servers: Vec::new() };
        let node = &subject.node;
        lives(node, &options);
        node.is_clean(&["ceph-fuse"]);
        let key = |name: &str| fs::read_to_string(format!("{}/{name}.key", cluster.directory)).unwrap();
        nobody_finds_in("cephfs", &subject, key("user").trim());
        let wrong = |key, value| with(&options, key, value);
        none_is_mounted(
            node,
            &[
                ("path", wrong("path", "none"), "No such file or directory"),
                ("user", wrong("user", "nobody"), "(13) Permission denied"),
                ("key", wrong("kubernetes.io/secret/key", &base64(&key("admin"))), "(13) Permission denied"),
                ("no key", wrong("kubernetes.io/secret/key", &base64("none")), "Malformed input"),
                ("file system", wrong("fsName", "none"), "No such file or directory"),
                ("port", wrong("monitors", "127.0.0.1:1"), wording_of("connection-refused", ["1"])),
            ],
        );
        let (one, two) = (node.pod("1"), node.pod("2"));
        node.mount(&one, &with(&options, "path", "directory")).success();
        Node::keeps_secret(key("user").trim());
        assert_eq!(fs::read_to_string(one.join("file")).unwrap(), "written");
        fs::write(one.join("other"), vec![b'x'; 1 << 20]).unwrap();
        node.mount(&two, &options).success();
        end(&processes_with(two.to_str().unwrap()));
        assert!(fs::read_dir(&two).is_err());
        node.unmount(&two).success();
        Cluster::stop();
        let run = node.mount(&two, &options);
        let failure = run.failure();
        assert!(
            failure.contains("127.0.0.1") && run.took < deadline(MOUNT + GRACE),
            "{:?}: {failure}",
            run.took
        );
        let run = node.unmount(&one);
        run.success();
        assert!(run.took < deadline(UNMOUNT + GRACE), "{:?}", run.took);
        node.is_clean(&["ceph-fuse"]);
    });
}

//! `glusterfs`, against a real glusterd with one brick.

use crate::node::{Node, alone, end, lives, mounts_at, sh};
use crate::stores::with;
use crate::support::pace::{deadline, slow_seconds};
use crate::support::{eventually, processes_with};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs;
use std::process::{Child, Command, Stdio};

pub(crate) const PROGRAMS: [&str; 3] = ["glusterd", "gluster", "glusterfs"];

/// What a mount and an unmount may take, in seconds, beside other tests.
const MOUNT: u64 = 15;
const UNMOUNT: u64 = 15;

/// What undoing and ending take at most, beyond that.
const GRACE: u64 = 15;

/// One that is none of the loopback's: glusterd takes no brick from there.
const ADDRESS: &str = "10.99.7.1";

/// The trusted pool of one; ends with the test, and so does its state, which it keeps in fixed
/// places.
pub(crate) struct Gluster(Child);

impl Gluster {
    pub(crate) fn start(node: &Node) -> Self {
        let brick = node.make("brick");
        sh(&format!(
            "ip addr add {ADDRESS}/32 dev lo
            mkdir -p /var/lib/glusterd /var/log/glusterfs
            for place in /var/lib/glusterd /var/log/glusterfs; do mount -t tmpfs -o mode=755 gluster $place; done"
        ));
        let mut command = Command::new("glusterd");
        command.args(["--no-daemon", "--pid-file=/run/glusterd.pid"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let gluster = Self(command.spawn().unwrap());
        let ask = |words: &str| {
            let timeout = slow_seconds(20);
            format!("timeout {timeout} gluster --mode=script {words} >/run/gluster.out 2>&1")
        };
        eventually("glusterd", || {
            Command::new("sh").args(["-c", &ask("volume list")]).status().unwrap().success()
        });
        for words in [format!("volume create web {ADDRESS}:{brick}/web force"), "volume start web".to_owned()]
        {
            sh(&format!("{} || {{ cat /run/gluster.out; exit 1; }}", ask(&words)));
        }
        gluster
    }

    /// Whoever serves anything says nothing any more.
    fn stop(&self) {
        for pid in processes_with("glusterfsd").into_iter().chain([self.0.id().cast_signed()]) {
            kill(Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
        }
    }
}

impl Drop for Gluster {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn of_gluster() -> Value {
    json!({"servers": "127.0.0.1", "volume": "web"})
}

#[test]
fn two_pods_share_it_and_one_only_reads() {
    alone("glusterfs::two_pods_share_it_and_one_only_reads", &PROGRAMS, || {
        let node = Node::new("glusterfs");
        let _gluster = Gluster::start(&node);
        lives(&node, &of_gluster());
        node.is_clean(&["--process-name=fuse"]);
        let target = node.pod("1");
        // The first of the servers is not there.
        let below =
            with(&with(&of_gluster(), "subDir", "directory"), "servers", &format!("192.0.2.1,{ADDRESS}"));
        node.mount(&target, &below).success();
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "written");
        end(&node.daemons());
        assert!(fs::read_dir(&target).is_err());
        node.unmount(&target).success();
        for (key, value) in [("volume", "none"), ("subDir", "none"), ("servers", "192.0.2.1")] {
            let target = node.pod("1");
            let failure = node.mount(&target, &with(&of_gluster(), key, value)).failure();
            assert!(failure.contains("127.0.0.1:/") || failure.contains("192.0.2.1"), "{failure}");
            assert!(!failure.contains("without a word"), "{failure}");
            println!("{key}: {failure}");
            assert_eq!(mounts_at(&target), 0);
            node.is_clean(&["--process-name=fuse"]);
        }
    });
}

#[test]
fn a_silent_server_holds_up_nothing() {
    alone("glusterfs::a_silent_server_holds_up_nothing", &PROGRAMS, || {
        let node = Node::within("glusterfs", MOUNT, UNMOUNT);
        let gluster = Gluster::start(&node);
        let (one, two) = (node.pod("1"), node.pod("2"));
        node.mount(&one, &of_gluster()).success();
        fs::write(one.join("file"), "x").unwrap();
        gluster.stop();
        let run = node.mount(&two, &of_gluster());
        println!("{:?}: {}", run.took, run.failure());
        assert!(
            run.failure().contains("127.0.0.1:/web") && run.took < deadline(MOUNT + GRACE),
            "{:?}",
            run.took
        );
        let run = node.unmount(&one);
        run.success();
        println!("{:?}", run.took);
        assert!(run.took < deadline(UNMOUNT + GRACE), "{:?}", run.took);
        node.is_clean(&["--process-name=fuse"]);
    });
}

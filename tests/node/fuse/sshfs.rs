//! `sshfs`.

use crate::node::{Node, PASSWORD, Server, alone, deadlines, end, lives, mounts_at, sh};
use crate::sshd::{Sshd, base64};
use crate::support::eventually;
use crate::support::pace::deadline;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

const PROGRAMS: [&str; 3] = ["sshfs", "sshd", "ssh-keygen"];

/// The ssh that each sshfs has started.
const SSH: &str = "ssh\0-x";

#[test]
fn two_pods_share_it_and_one_only_reads() {
    alone("sshfs::two_pods_share_it_and_one_only_reads", &PROGRAMS, || {
        let node = Node::new("sshfs");
        let sshd = Sshd::start(&node);
        lives(&node, &sshd.options());
        node.is_clean(&[SSH]);
    });
}

#[test]
fn its_key_is_root_s_alone_and_gone_with_the_mount() {
    alone("sshfs::its_key_is_root_s_alone_and_gone_with_the_mount", &PROGRAMS, || {
        let node = Node::new("sshfs");
        let sshd = Sshd::start(&node);
        let target = node.pod("1");
        node.mount(&target, &sshd.options()).success();
        Node::keeps_secret(sshd.telling_line());
        assert!(!sh("find /run/flexvol -name key").is_empty());
        // Neither our reply pipe nor anything else of ours.
        for pid in node.daemons() {
            let names = sh(&format!("ls -l /proc/{pid}/fd"));
            assert!(names.lines().all(|line| !line.contains("pipe:") || line.contains(" 0 ")), "{names}");
        }
        node.unmount(&target).success();
        node.is_clean(&[SSH]);
    });
}

#[test]
fn a_password_of_any_characters_works() {
    alone("sshfs::a_password_of_any_characters_works", &["sshfs", "rclone"], || {
        let node = Node::new("sshfs");
        let directory = node.make("srv");
        let words =
            ["serve", "sftp", &directory, "--addr", "127.0.0.1:2022", "--user", "web", "--pass", PASSWORD];
        let _server = Server::start("rclone", &words, 2022);
        let options = json!({"server": "127.0.0.1", "port": "2022", "user": "web", "hostKeyCheck": "off",
            "kubernetes.io/secret/password": base64(PASSWORD)});
        let target = node.pod("1");
        node.mount(&target, &options).success();
        fs::write(target.join("file"), "x").unwrap();
        assert!(sh("grep -rlF 'w!o' /run/flexvol || true").is_empty());
        node.unmount(&target).success();
        let mut wrong = options.clone();
        wrong["kubernetes.io/secret/password"] = base64("another").into();
        let failure = node.mount(&target, &wrong).failure();
        assert!(failure.contains("web@127.0.0.1") && !failure.contains("another"), "{failure}");
        node.is_clean(&[SSH]);
    });
}

#[test]
fn what_is_wrong_is_said_and_leaves_nothing() {
    alone("sshfs::what_is_wrong_is_said_and_leaves_nothing", &PROGRAMS, || {
        let node = Node::new("sshfs");
        let sshd = Sshd::start(&node);
        let target = node.pod("1");
        let other_key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMDWRKAF0dxkFoKscRdqY+p4bOD9Kn0NWpbZfT92YcBa";
        for (key, value, said) in [
            ("path", "/does/not/exist", "No such file or directory"),
            ("port", "1", "Connection refused"),
            ("hostKey", other_key, "Host key verification failed"),
            ("user", "nosuchuser", "Permission denied"),
        ] {
            let mut options = sshd.options();
            options[key] = value.into();
            let failure = node.mount(&target, &options).failure();
            assert!(failure.contains(said) && failure.contains("127.0.0.1"), "{failure}");
            assert_eq!(mounts_at(&target), 0);
        }
        node.is_clean(&[SSH]);
    });
}

#[test]
fn the_group_of_the_pod_can_write() {
    alone("sshfs::the_group_of_the_pod_can_write", &PROGRAMS, || {
        let node = Node::new("sshfs");
        let sshd = Sshd::start(&node);
        let target = node.pod("1");
        let mut options = sshd.options();
        options["kubernetes.io/mounterArgs.FsGroup"] = "3000".into();
        node.mount(&target, &options).success();
        let root = fs::metadata(&target).unwrap();
        assert_eq!((root.gid(), root.mode() & 0o7777), (3000, 0o770));
        let path = target.display();
        sh(&format!("setpriv --reuid 1000 --regid 1000 --groups 3000 sh -c 'echo x > {path}/file'"));
        sh(&format!("! setpriv --reuid 1000 --regid 1000 --clear-groups ls {path} 2>/dev/null"));
        node.unmount(&target).success();
        node.is_clean(&[SSH]);
    });
}

#[test]
fn a_killed_daemon_can_be_unmounted() {
    alone("sshfs::a_killed_daemon_can_be_unmounted", &PROGRAMS, || {
        let node = Node::new("sshfs");
        let sshd = Sshd::start(&node);
        let target = node.pod("1");
        node.mount(&target, &sshd.options()).success();
        end(&node.daemons());
        assert!(fs::read_dir(&target).is_err());
        node.unmount(&target).success();
        node.is_clean(&[SSH]);
    });
}

/// Nothing comes from the server any more, and nobody says so.
#[test]
fn a_dropped_server_holds_up_no_unmount() {
    alone("sshfs::a_dropped_server_holds_up_no_unmount", &PROGRAMS, || {
        let node = Node::new("sshfs");
        let sshd = Sshd::start(&node);
        let target = node.pod("1");
        node.mount(&target, &sshd.options()).success();
        sh("ip link set lo down");
        let run = node.unmount(&target);
        run.success();
        // Sooner than the deadline of an unmount.
        assert!(run.took < deadline(30), "{:?}", run.took);
        node.is_clean(&[SSH]);
    });
}

#[test]
fn a_silent_server_fails_the_mount_in_time() {
    // On every machine less than the 10 s after which ssh itself gives up.
    const MOUNT: u64 = 8;
    alone("sshfs::a_silent_server_fails_the_mount_in_time", &PROGRAMS, || {
        let mut deadlines = deadlines(MOUNT, 40);
        deadlines["mount"] = MOUNT.into();
        let node = Node::installed("sshfs", &json!({"deadlines": deadlines}));
        let sshd = Sshd::start(&node);
        sshd.server.stop();
        let target = node.pod("1");
        let run = node.mount(&target, &sshd.options());
        let failure = run.failure();
        let late = format!("deadline of {MOUNT} s");
        assert!(failure.contains("root@127.0.0.1") && failure.contains(&late), "{failure}");
        assert!(run.took < deadline(MOUNT + 15), "{:?}", run.took);
        node.is_clean(&[SSH]);
    });
}

/// Killed with everything that could clean up after it: the daemon stays, and the next call finds
/// it.
#[test]
fn what_a_killed_call_left_is_ended_by_the_next() {
    alone("sshfs::what_a_killed_call_left_is_ended_by_the_next", &PROGRAMS, || {
        let node = Node::new("sshfs");
        let sshd = Sshd::start(&node);
        sshd.server.stop();
        let target = node.pod("1");
        let call = node.start(&target, &sshd.options());
        eventually("sshfs and its ssh", || !crate::support::processes_with(SSH).is_empty());
        // Stopped, so that it does not clean up between the death of its worker and its own.
        kill(Pid::from_raw(call.pid()), Signal::SIGSTOP).unwrap();
        let killed: Vec<_> = crate::support::children(call.pid()).into_iter().chain([call.pid()]).collect();
        for pid in &killed {
            kill(Pid::from_raw(*pid), Signal::SIGKILL).unwrap();
        }
        eventually("the daemon alone", || !killed.iter().any(|pid| crate::support::is_alive(*pid)));
        assert!(!crate::support::processes_with(SSH).is_empty());
        drop(call);
        node.unmount(&target).success();
        node.is_clean(&[SSH]);
    });
}

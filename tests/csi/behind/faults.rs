//! What goes wrong: each code of gRPC at each call, answers that are lost, a CSI driver that is
//! gone, silent or has forgotten everything, an agent that is killed.

use super::stub::{Fault, NAME};
use super::{Scene, options};
use crate::killed::{follow, is_full, tried};
use crate::node::eventually;
use crate::skip;
use crate::wording::wording;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};
use tonic::Code;

const CODES: [Code; 16] = [
    Code::Cancelled,
    Code::Unknown,
    Code::InvalidArgument,
    Code::DeadlineExceeded,
    Code::NotFound,
    Code::AlreadyExists,
    Code::PermissionDenied,
    Code::ResourceExhausted,
    Code::FailedPrecondition,
    Code::Aborted,
    Code::OutOfRange,
    Code::Unimplemented,
    Code::Internal,
    Code::Unavailable,
    Code::DataLoss,
    Code::Unauthenticated,
];

/// As kubelet tells them apart.
fn is_final(code: Code) -> bool {
    !matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Unavailable
            | Code::ResourceExhausted
            | Code::Aborted
    )
}

#[test]
fn each_code_at_each_call_of_a_mount() {
    let Some((scene, stub, _served)) =
        Scene::with_stub("behind::faults::each_code_at_each_call_of_a_mount", true)
    else {
        return;
    };
    for call in ["stage", "publish"] {
        for code in CODES {
            for fault in [Fault::Refused(code), Fault::Lost(code)] {
                stub.fails(call, Some(fault));
                let refused = scene.mount("1", &options(&[]));
                assert!(refused.contains("as it was told"), "{call} {fault:?}: {refused}");
                assert!(!scene.is_mounted("1"), "{call} {fault:?}");
                // Nothing is left of what was not done; of what may have been, the journal knows.
                assert_eq!(scene.known().is_empty(), is_final(code), "{call} {fault:?}");
                stub.fails(call, None);
                if !is_final(code) {
                    assert_eq!(scene.mount("1", &options(&[])), "", "{call} {fault:?}");
                    assert_eq!(scene.unmount("1"), "");
                }
                assert_eq!(stub.count(), (0, 0), "{call} {fault:?}");
                scene.is_clean();
            }
        }
    }
}

#[test]
fn each_code_at_each_call_of_an_unmount() {
    let Some((scene, stub, _served)) =
        Scene::with_stub("behind::faults::each_code_at_each_call_of_an_unmount", true)
    else {
        return;
    };
    for call in ["unpublish", "unstage"] {
        for code in CODES {
            for fault in [Fault::Refused(code), Fault::Lost(code)] {
                // What is not there was taken away; but one that is and says so is a lie.
                let is_gone = code == Code::NotFound || (call, code) == ("unstage", Code::Unimplemented);
                if is_gone && matches!(fault, Fault::Refused(_)) {
                    continue;
                }
                assert_eq!(scene.mount("1", &options(&[])), "", "{call} {fault:?}");
                stub.fails(call, Some(fault));
                let refused = scene.unmount("1");
                assert_eq!(refused.is_empty(), is_gone, "{call} {fault:?}: {refused}");
                // kubelet comes again as long as the directory is there.
                assert_eq!(scene.target("1").exists(), !is_gone, "{call} {fault:?}");
                stub.fails(call, None);
                assert_eq!((scene.unmount("1"), stub.count()), (String::new(), (0, 0)), "{call} {fault:?}");
                scene.is_clean();
            }
        }
    }
}

#[test]
fn a_driver_that_is_gone_comes_back() {
    let test = "behind::faults::a_driver_that_is_gone_comes_back";
    let Some((scene, stub, served)) = Scene::with_stub(test, true) else { return };
    assert_eq!(scene.mount("1", &options(&[])), "");
    drop(served);
    let refused = scene.mount("2", &options(&[]));
    assert!(refused.contains(wording("csi-driver-not-here")) && refused.contains(NAME), "{refused}");
    // It is staged: whoever unmounts it behind the driver's back would lose it on another node.
    assert!(scene.unmount("1").contains(wording("csi-driver-not-here")) && scene.is_mounted("1"));
    // A socket that no one serves, then one that never answers.
    let socket = scene.kubelet.join("plugins").join(NAME).join("csi.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    scene.set_seconds(4);
    let begun = Instant::now();
    assert_ne!(scene.mount("2", &options(&[])), "");
    // Without this deadline of its own it would have 110 s.
    assert!(begun.elapsed() < Duration::from_secs(100), "{:?}", begun.elapsed());
    drop(listener);
    assert_ne!(scene.mount("2", &options(&[])), "");
    fs::remove_file(&socket).unwrap();
    scene.set(30);
    let _served = stub.serve(&scene.kubelet);
    assert_eq!((scene.mount("2", &options(&[])), scene.unmount("2")), (String::new(), String::new()));
    assert_eq!((scene.unmount("1"), stub.count()), (String::new(), (0, 0)));
    scene.is_clean();
}

#[test]
fn a_driver_that_has_forgotten_everything_is_told_again() {
    let test = "behind::faults::a_driver_that_has_forgotten_everything_is_told_again";
    let Some((scene, stub, _served)) = Scene::with_stub(test, true) else { return };
    assert_eq!(scene.mount("1", &options(&[])), "");
    stub.forgets();
    stub.calls();
    assert_eq!(scene.mount("2", &options(&[])), "");
    assert_eq!(stub.calls(), ["publish", "stage", "publish"]);
    assert_eq!((scene.unmount("1"), scene.unmount("2")), (String::new(), String::new()));
    scene.is_clean();
}

#[test]
fn a_call_that_is_never_answered_ends_in_time_and_is_asked_again() {
    let test = "behind::faults::a_call_that_is_never_answered_ends_in_time_and_is_asked_again";
    let Some((scene, stub, _served)) = Scene::with_stub(test, true) else { return };
    for call in ["stage", "publish"] {
        scene.set(2);
        stub.fails(call, Some(Fault::Silent));
        let begun = Instant::now();
        let refused = scene.mount("1", &options(&[]));
        // Without this deadline of its own it would have 110 s.
        assert!(begun.elapsed() < Duration::from_secs(100), "{call} {:?}", begun.elapsed());
        assert!(refused.contains("DeadlineExceeded") && !scene.known().is_empty(), "{refused}");
        stub.fails(call, None);
        // kubelet comes no more for the mount, but unmounts.
        fs::create_dir_all(scene.target("1")).unwrap();
        scene.set(30);
        assert_eq!((scene.unmount("1"), stub.count()), (String::new(), (0, 0)), "{call}");
        scene.is_clean();
    }
}

/// kubelet forgets a mount that has failed, and its pod is deleted.
#[test]
fn what_kubelet_has_forgotten_is_taken_away() {
    let test = "behind::faults::what_kubelet_has_forgotten_is_taken_away";
    let Some((mut scene, stub, _served)) = Scene::with_stub(test, true) else { return };
    assert_eq!(scene.mount("1", &options(&[])), "");
    stub.fails("unstage", Some(Fault::Refused(Code::Unavailable)));
    assert_ne!(scene.unmount("1"), "");
    fs::remove_dir_all(scene.kubelet.join("pods/1")).unwrap();
    stub.fails("unstage", None);
    scene.agent.stop();
    scene.start();
    eventually("it is taken away", || stub.count() == (0, 0) && scene.known().is_empty());
    scene.is_clean();
}

/// It is mounted, and no one has said so: kubelet would take it for done and not apply the fsGroup.
#[test]
fn an_answer_that_is_lost_with_the_agent_leaves_no_mount() {
    let test = "behind::faults::an_answer_that_is_lost_with_the_agent_leaves_no_mount";
    let Some((mut scene, stub, _served)) = Scene::with_stub(test, true) else { return };
    scene.set(4);
    stub.fails("publish", Some(Fault::Unheard));
    let agent = Pid::from_raw(scene.agent.child.as_ref().unwrap().id().try_into().unwrap());
    let refused = std::thread::scope(|scope| {
        scope.spawn(|| {
            eventually("it is published", || stub.count() == (1, 1));
            kill(agent, Signal::SIGKILL).unwrap();
        });
        scene.mount("1", &options(&[]))
    });
    assert!(!refused.is_empty() && !scene.is_mounted("1"), "{refused}");
    scene.agent.stop();
    stub.fails("publish", None);
    scene.start();
    scene.set(30);
    // The CSI driver believes that it is there, and is told otherwise.
    assert_eq!((scene.mount("1", &options(&[])), scene.is_mounted("1")), (String::new(), true));
    assert_eq!((scene.unmount("1"), stub.count()), (String::new(), (0, 0)));
    scene.is_clean();
}

/// Another node may get what is still mounted here.
#[test]
fn a_driver_that_lies_is_not_believed() {
    let test = "behind::faults::a_driver_that_lies_is_not_believed";
    let Some((scene, stub, _served)) = Scene::with_stub(test, true) else { return };
    stub.fails("publish", Some(Fault::Lie));
    assert_ne!(scene.mount("1", &options(&[])), "");
    stub.fails("publish", None);
    assert_eq!((stub.count(), scene.known().is_empty()), ((0, 0), true));
    scene.is_clean();
    assert_eq!(scene.mount("1", &options(&[])), "");
    stub.fails("unstage", Some(Fault::Lie));
    let refused = scene.unmount("1");
    assert!(refused.contains(wording("csi-still-staged")) && scene.target("1").exists(), "{refused}");
    stub.fails("unstage", None);
    assert_eq!((scene.unmount("1"), stub.count()), (String::new(), (0, 0)));
    scene.is_clean();
}

/// It takes no such path, and never has: kubelet does not ask for its unpublishing either.
#[test]
fn a_driver_that_takes_no_such_path_is_not_asked_for_ever() {
    let test = "behind::faults::a_driver_that_takes_no_such_path_is_not_asked_for_ever";
    let Some((scene, stub, _served)) = Scene::with_stub(test, true) else { return };
    for call in ["publish", "unpublish"] {
        stub.fails(call, Some(Fault::Refused(Code::InvalidArgument)));
    }
    assert_ne!(scene.mount("1", &options(&[])), "");
    assert_eq!((stub.count(), scene.known().is_empty()), ((0, 0), true));
    scene.is_clean();
    // What it has published it has to unpublish, whatever it says.
    stub.fails("publish", None);
    assert_eq!(scene.mount("1", &options(&[])), "");
    assert_ne!(scene.unmount("1"), "");
    assert!(scene.is_mounted("1") && stub.count() == (1, 1));
    stub.fails("unpublish", None);
    assert_eq!((scene.unmount("1"), stub.count()), (String::new(), (0, 0)));
    scene.is_clean();
}

/// An agent that was replaced by one of an older version knows of no CSI drivers.
#[test]
fn an_agent_that_is_too_old_keeps_no_pod() {
    let test = "behind::faults::an_agent_that_is_too_old_keeps_no_pod";
    let Some((mut scene, stub, _served)) = Scene::with_stub(test, true) else { return };
    assert_eq!(scene.mount("1", &options(&[])), "");
    scene.agent.stop();
    let socket = scene.agent.socket();
    fs::remove_file(&socket).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut length = [0; 4];
            stream.read_exact(&mut length).unwrap();
            stream.read_exact(&mut vec![0; u32::from_be_bytes(length) as usize]).unwrap();
            let answer = br#"{"v":1,"err":{"code":"BAD_REQUEST","msg":"what is that"}}"#;
            let length = u32::try_from(answer.len()).unwrap().to_be_bytes();
            stream.write_all(&[&length[..], answer].concat()).unwrap();
        }
    });
    assert_ne!(scene.mount("2", &options(&[])), "");
    assert_eq!((scene.unmount("1"), scene.is_mounted("1")), (String::new(), false));
    scene.start();
    eventually("it is taken away", || stub.count() == (0, 0) && scene.known().is_empty());
    scene.is_clean();
}

/// Of the journal, the CSI driver's answers and the agent's own.
const CALLS: [&str; 11] = [
    "openat",
    "write",
    "fsync",
    "fdatasync",
    "rename",
    "renameat",
    "unlink",
    "mkdir",
    "connect",
    "sendto",
    "recvfrom",
];

/// Each takes a start of the agent.
const FEW: usize = 3;
const MOST: usize = 60;

/// A pod comes and goes once a round, and the agent is killed before the nth call of a name.
#[test]
fn an_agent_killed_before_system_calls_leaves_nothing() {
    let test = "behind::faults::an_agent_killed_before_system_calls_leaves_nothing";
    let Some((mut scene, stub, _served)) = Scene::with_stub(test, true) else { return };
    let most = if is_full() { MOST } else { FEW };
    let mut struck = Vec::new();
    for call in CALLS {
        for nth in 1..=most {
            let Some(mut strace) = follow(scene.agent.child.as_ref().unwrap().id(), call, nth) else {
                return skip(test, "needs strace, and the right to use it");
            };
            // Who waits for an agent that is dead is not waited for.
            scene.set(3);
            let mounted = scene.mount("1", &options(&[]));
            let unmounted = scene.unmount("1");
            let _ = strace.kill();
            let _ = strace.wait();
            if mounted.is_empty() && unmounted.is_empty() && scene.agent.is_alive() {
                break;
            }
            eventually("it is dead", || !scene.agent.is_alive());
            scene.agent.stop();
            scene.start();
            scene.set(30);
            struck.push((call, nth));
            if mounted.is_empty() && unmounted.is_empty() {
                // kubelet was content, and has removed the directory: the agent finds that.
                eventually("it is taken away", || stub.count() == (0, 0) && scene.known().is_empty());
                scene.is_clean();
                continue;
            }
            // kubelet asks again, whatever it was told: for the mount first, or it comes no more.
            if nth % 2 == 0 {
                assert_eq!(scene.mount("1", &options(&[])), "", "{call} {nth}");
            } else {
                fs::create_dir_all(scene.target("1")).unwrap();
            }
            assert_eq!((scene.unmount("1"), stub.count()), (String::new(), (0, 0)), "{call} {nth}");
            scene.is_clean();
        }
    }
    println!("struck before {struck:?}");
    tried("csi", "mount+unmount", struck.len());
}

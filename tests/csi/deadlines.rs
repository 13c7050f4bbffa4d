//! Deadlines, callers that go away, concurrent calls, and kills.

use super::killed::{is_full, strike};
use super::node::{Driver, Node, STRICT, eventually, refused, within};
use super::pace::{deadline, slow_seconds};
use super::skip;
use flexvol_cluster::wire::csi;
use flexvol_cluster::wire::csi::node_client::NodeClient;
use std::time::{Duration, Instant};
use tonic::{Code, Status};

/// As [`STRICT`], but `mount` waits for a file `go` beside the driver, before or after it mounts.
const WAITS: &str = r#"wait_for() { touch "$here/at.$1"; while [ -e "$here/hold.$1" ]; do sleep 0.02; done; }
case $1 in
init) ok ',"capabilities":{"attach":false}';;
mount) wait_for before; is_mounted "$2" && fail "already mounted"; mount -t tmpfs strict "$2" || fail "mount"; wait_for after; ok;;
unmount) wait_for unmount; is_mounted "$2" || fail "not mounted"; umount "$2" || fail "umount"; ok;;
*) no;;
esac"#;

fn waiting(test: &str, name: &'static str) -> Option<Node> {
    Node::serving(test, name, &Driver::Script(WAITS))
}

fn hold(node: &Node, at: &str) {
    std::fs::write(node.driver().with_file_name(format!("hold.{at}")), "").unwrap();
}

fn release(node: &Node, at: &str) {
    std::fs::remove_file(node.driver().with_file_name(format!("hold.{at}"))).unwrap();
}

fn reached(node: &Node, at: &str) -> bool {
    node.driver().with_file_name(format!("at.{at}")).exists()
}

async fn publish(node: &Node, pod: &str, allowed: Duration) -> Result<(), Status> {
    let request = within(node.publish_request(pod), allowed);
    NodeClient::new(node.channel().await).node_publish_volume(request).await.map(drop)
}

/// Before any call is given up, whatever its caller allows: that takes 110 s.
fn gives_up(node: &Node, start: Instant) {
    eventually("the server is done", || node.said().contains(r#""code":"DeadlineExceeded""#));
    assert!(start.elapsed() < Duration::from_secs(100), "{:?}", start.elapsed());
}

#[test]
fn a_hanging_driver_is_ended_with_all_it_has_started() {
    let body = STRICT.replace("mount) is", "mount) sleep 987 & sleep 987; is");
    let Some(node) = Node::serving("a_hanging_driver", "example.com/strict", &Driver::Script(&body)) else {
        return;
    };
    let start = Instant::now();
    let status = node.block_on(publish(&node, "1", deadline(2))).unwrap_err();
    // Whoever is first to say so, client or server.
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}");
    gives_up(&node, start);
    let left = || std::process::Command::new("pgrep").args(["-x", "-f", "sleep 987"]).output().unwrap();
    eventually("nothing of it runs", || left().stdout.is_empty());
    eventually("nothing is left", || !node.target("1").exists());
    node.is_clean();
}

/// Each does it once, when it mounts: asked again, it does as it should.
#[test]
fn a_driver_that_does_not_end_is_given_up() {
    let stays = format!("mount -t tmpfs strict \"$2\"; setsid sleep {} & ok", slow_seconds(3));
    for habit in [
        // Answers, and lives on without its outputs.
        r#"printf '{"status":"Success"}'; exec >/dev/null 2>&1; sleep 986"#,
        // Answers without end, a byte at a time.
        "while :; do printf ' '; sleep 0.1; done",
        "trap '' TERM; while :; do sleep 0.1; done",
        "kill -STOP $$",
        // Mounts, answers and ends, and something that has left its group holds its output.
        &stays,
    ] {
        let once = format!("mount) [ -e \"$here/once\" ] || {{ touch \"$here/once\"; {habit}; }}; is");
        let body = STRICT.replace("mount) is", &once);
        let Some(node) = Node::serving("does_not_end", "example.com/strict", &Driver::Script(&body)) else {
            return;
        };
        let start = Instant::now();
        let status = node.block_on(publish(&node, "1", deadline(1))).unwrap_err();
        assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{habit}: {status}");
        gives_up(&node, start);
        node.is_clean();
        node.publish("1", |_| ()).unwrap();
        assert!(node.is_mounted("1"));
        node.unpublish("1").unwrap();
        node.is_clean();
    }
}

/// It would go on with the volume, whose lock is free.
#[test]
fn what_has_left_the_driver_s_group_is_ended_too() {
    let leaves = r#"mount) [ -e "$here/once" ] || {
        touch "$here/once"
        setsid sh -c 'echo $$ >"$1.new"; mv "$1.new" "$1"; exec sleep 983' sh "$here/left" </dev/null >/dev/null 2>&1 &
        while [ ! -e "$here/left" ]; do sleep 0.02; done
        exec sleep 983
    }; is"#;
    let body = STRICT.replace("mount) is", leaves);
    let Some(node) = Node::serving("has_left_the_group", "example.com/strict", &Driver::Script(&body)) else {
        return;
    };
    let start = Instant::now();
    let status = node.block_on(publish(&node, "1", deadline(2))).unwrap_err();
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}");
    gives_up(&node, start);
    let pid = std::fs::read_to_string(node.driver().with_file_name("left")).unwrap();
    let runs = || std::fs::read_to_string(format!("/proc/{}/cmdline", pid.trim())).unwrap_or_default();
    eventually("it has ended", || !runs().contains("983"));
    node.publish("1", |_| ()).unwrap();
    node.unpublish("1").unwrap();
    node.is_clean();
}

/// More than have a turn at once.
#[test]
fn drivers_that_hang_hold_up_no_other_volume() {
    let body = STRICT.replace("mount) is", "mount) case $3 in *hangs*) sleep 984;; esac; is");
    let Some(node) = Node::serving("drivers_that_hang", "example.com/strict", &Driver::Script(&body)) else {
        return;
    };
    let crowd = 40;
    let hanging: Vec<_> = (0..crowd)
        .map(|number| {
            let mut request = node.publish_request(&format!("hangs-{number}"));
            request.volume_id = format!("fx1#hangs-{number}");
            request.volume_context.insert("this".into(), "hangs".into());
            request
        })
        .collect();
    node.block_on(async {
        let channel = node.channel().await;
        let mut tasks = tokio::task::JoinSet::new();
        for request in hanging {
            let mut client = NodeClient::new(channel.clone());
            let request = within(request, deadline(15));
            tasks.spawn(async move { client.node_publish_volume(request).await });
        }
        while node.called("mount") < crowd {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        publish(&node, "1", deadline(15)).await.unwrap();
        assert!(!node.said().contains("DeadlineExceeded"), "it was published after them");
        while let Some(ended) = tasks.join_next().await {
            assert!(ended.unwrap().is_err());
        }
    });
    eventually("all are given up", || node.said().matches(r#""code":"DeadlineExceeded""#).count() == crowd);
    node.unpublish("1").unwrap();
    node.is_clean();
}

#[test]
fn a_volume_that_is_being_published_is_busy() {
    let Some(node) = waiting("is_busy", "example.com/waits") else { return };
    hold(&node, "before");
    node.block_on(async {
        let (first, (second, third)) = tokio::join!(publish(&node, "1", deadline(20)), async {
            while !reached(&node, "before") {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let others = (publish(&node, "1", deadline(20)).await, publish(&node, "2", deadline(20)).await);
            release(&node, "before");
            others
        });
        assert!(first.is_ok(), "{first:?}");
        assert_eq!((refused(second), refused(third)), (Code::Aborted, Code::Aborted));
    });
    assert_eq!(node.called("mount"), 1);
    node.unpublish("1").unwrap();
    node.is_clean();
}

#[test]
fn a_caller_that_goes_away_leaves_no_half_a_publish() {
    let Some(node) = waiting("goes_away", "example.com/waits") else { return };
    hold(&node, "after");
    node.block_on(async {
        tokio::select! {
            answer = publish(&node, "1", deadline(20)) => panic!("{answer:?}"),
            () = async { while !reached(&node, "after") { tokio::time::sleep(Duration::from_millis(10)).await } } => {}
        }
    });
    assert_eq!(refused(node.publish("1", |_| ())), Code::Aborted);
    release(&node, "after");
    eventually("it is published", || node.publish("1", |_| ()).is_ok());
    assert_eq!(node.called("mount"), 1);
    node.unpublish("1").unwrap();
    node.is_clean();
}

/// At each step of a publish, and of an unpublish, `flexvold` is killed while its driver goes on or
/// is killed as well: asked again, it converges.
#[test]
fn a_kill_before_or_after_a_mount_is_survived() {
    for (at, driver_too) in [("before", false), ("before", true), ("after", false), ("after", true)] {
        let Some(mut node) = waiting("a_kill_anywhere", "example.com/waits") else { return };
        hold(&node, at);
        cut_short(&node, at, async { publish(&node, "1", deadline(20)).await });
        node.kill();
        if driver_too {
            kill_driver(&node);
        }
        node.start(&[]);
        if !driver_too {
            // The driver of the one before still runs: no one else may touch the volume.
            let status = node.publish("1", |_| ()).unwrap_err();
            assert_eq!(status.code(), Code::Aborted, "{status}");
        }
        release(&node, at);
        eventually("it is published", || node.publish("1", |_| ()).is_ok());
        assert!(node.is_mounted("1"), "{at} {driver_too}");
        unpublish_cut_short(&mut node);
        node.is_clean();
    }
}

/// The first that `flexvold` asks the kernel about its driver is who it is.
#[test]
fn a_driver_whose_number_was_not_noted_keeps_its_volume() {
    let test = "a_driver_whose_number_was_not_noted_keeps_its_volume";
    let Some(mut node) = waiting(test, "example.com/waits") else { return };
    eventually("it has been asked for init", || node.said().contains("capabilities"));
    hold(&node, "before");
    let Some(mut strace) = strike(&node, "pidfd_open", 1) else {
        return skip(test, "needs strace, and the right to use it");
    };
    node.try_publish("1", deadline(10)).unwrap_err();
    strace.kill().unwrap();
    strace.wait().unwrap();
    assert!(!is_numbered(&node), "it was killed too late");
    node.restart();
    eventually("the driver runs", || reached(&node, "before"));
    assert_eq!(refused(node.publish("1", |_| ())), Code::Aborted);
    assert_eq!((node.called("mount"), node.called("unmount")), (1, 0));
    release(&node, "before");
    eventually("it is published", || node.publish("1", |_| ()).is_ok());
    assert!(node.is_mounted("1"));
    node.unpublish("1").unwrap();
    node.is_clean();
}

fn unpublish_cut_short(node: &mut Node) {
    hold(node, "unmount");
    let request = csi::NodeUnpublishVolumeRequest {
        volume_id: "fx1#pv-1".into(),
        target_path: node.target("1").display().to_string(),
    };
    cut_short(node, "unmount", async {
        NodeClient::new(node.channel().await).node_unpublish_volume(request).await.map(drop)
    });
    node.kill();
    kill_driver(node);
    release(node, "unmount");
    node.start(&[]);
    eventually("it is unpublished", || node.unpublish("1").is_ok());
}

fn cut_short(node: &Node, at: &str, call: impl Future<Output = Result<(), Status>>) {
    node.block_on(async {
        tokio::select! {
            answer = call => panic!("{answer:?}"),
            () = async { while !(reached(node, at) && is_noted(node)) { tokio::time::sleep(Duration::from_millis(5)).await } } => {}
        }
    });
}

fn is_noted(node: &Node) -> bool {
    !node.notes().is_empty()
}

/// Whether the number of the driver's process stands in a note.
fn is_numbered(node: &Node) -> bool {
    node.notes().iter().any(|note| note.contains(r#""pid""#))
}

fn kill_driver(node: &Node) {
    let driver = node.driver().display().to_string();
    eventually("its driver has ended", || {
        let found = std::process::Command::new("pgrep").args(["-f", &driver]).output().unwrap();
        let pids = String::from_utf8(found.stdout).unwrap();
        let pids = pids.lines().map(|pid| nix::unistd::Pid::from_raw(pid.parse().unwrap()));
        let pids: Vec<_> = pids.filter(|pid| *pid != nix::unistd::getpid()).collect();
        for pid in &pids {
            // One that it has just forked may have ended.
            let _ = nix::sys::signal::kill(*pid, nix::sys::signal::Signal::SIGKILL);
        }
        pids.is_empty()
    });
}

/// Without pauses: each time a little later, so that every write of the journal is hit.
#[test]
fn kills_at_many_moments_are_survived() {
    let Some(mut node) = Node::serving("at_any_moment", "flexvol/tmpfs", &Driver::Ours("{}")) else { return };
    let rounds = if is_full() { 400 } else { 40 };
    for round in 0..rounds {
        let pause = Duration::from_micros(150 * (round % 80));
        node.block_on(async {
            tokio::select! {
                _ = publish(&node, "1", deadline(20)) => {}
                () = tokio::time::sleep(pause) => {}
            }
        });
        node.restart();
        eventually("it is published", || node.publish("1", |_| ()).is_ok());
        assert!(node.is_mounted("1") && node.stats("1").is_ok());
        eventually("it is unpublished", || node.unpublish("1").is_ok());
        node.is_clean();
    }
}

#[test]
fn many_at_once() {
    let Some(node) = Node::serving("many_at_once", "flexvol/tmpfs", &Driver::Ours("{}")) else { return };
    let requests: Vec<_> = (0..60)
        .map(|number| {
            let mut request = node.publish_request(&format!("pod-{number}"));
            request.volume_id = format!("fx1#pv-{number}");
            request
        })
        .collect();
    let take_down = |request: &csi::NodePublishVolumeRequest| csi::NodeUnpublishVolumeRequest {
        volume_id: request.volume_id.clone(),
        target_path: request.target_path.clone(),
    };
    node.block_on(async {
        let channel = node.channel().await;
        let mut tasks = tokio::task::JoinSet::new();
        for request in requests.clone() {
            let mut client = NodeClient::new(channel.clone());
            tasks.spawn(async move { client.node_publish_volume(request).await });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap().unwrap();
        }
        for request in requests.iter().map(take_down) {
            let mut client = NodeClient::new(channel.clone());
            tasks.spawn(async move {
                client
                    .node_unpublish_volume(request)
                    .await
                    .map(|_| tonic::Response::new(csi::NodePublishVolumeResponse {}))
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap().unwrap();
        }
    });
    node.is_clean();
}

//! A node that runs out of something, and those who would like it to.

use super::node::{Driver, Node, STRICT, eventually, refused};
use super::observed::get;
use super::pace::deadline;
use super::ports::reserved_port;
use flexvol_cluster::csi::journal::Journal;
use flexvol_model::csi_journal::{Phase, Target};
use flexvol_protocol::{DriverName, TargetPath};
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};
use tonic::Code;

fn strict(test: &str) -> Option<Node> {
    Node::new(test, "example.com/strict", &Driver::Script(STRICT))
}

/// A file that takes what is left of the disk.
fn fill(node: &Node) -> std::path::PathBuf {
    let path = node.state().join("full");
    let mut file = std::fs::File::create(&path).unwrap();
    while file.write_all(&[7; 4096]).is_ok() {}
    path
}

#[test]
fn on_a_full_disk_nothing_is_published_and_everything_unpublished() {
    let Some(mut node) = strict("a_full_disk") else { return };
    std::fs::create_dir(node.state()).unwrap();
    mount(Some("tmpfs"), &node.state(), Some("tmpfs"), MsFlags::empty(), Some("size=256k")).unwrap();
    node.start(&[]);
    node.publish("1", |_| ()).unwrap();
    node.publish("2", |_| ()).unwrap();
    let full = fill(&node);
    let status = node.publish("3", |it| it.volume_id = "fx1#pv-3".into()).unwrap_err();
    assert!(status.code() == Code::ResourceExhausted && status.message().contains("No space"), "{status}");
    assert!(!node.target("3").exists() && node.called("mount") == 2, "{}", node.log());
    // What is left of this volume has to be noted, and cannot be.
    node.unpublish("1").unwrap();
    assert_eq!(refused(node.stats("1")), Code::NotFound);
    node.stats("2").unwrap();
    std::fs::remove_file(full).unwrap();
    node.unpublish("2").unwrap();
    node.is_clean();
}

/// How long the thread that serves had a processor.
fn computed(pid: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

#[test]
fn without_descriptors_it_waits_and_works_again_with_them() {
    let Some(mut node) = strict("without_descriptors") else { return };
    node.start(&[]);
    let pid = node.server().id();
    let limited = Command::new("prlimit").args(["--pid", &pid.to_string(), "--nofile=40:40"]).status();
    assert!(limited.unwrap().success());
    let crowd: Vec<_> = (0..60).map(|_| UnixStream::connect(node.socket()).unwrap()).collect();
    eventually("its descriptors are taken", || descriptors(pid) > 30);
    let before = computed(pid);
    std::thread::sleep(Duration::from_secs(2));
    let computed = computed(pid).saturating_sub(before);
    // Who asks the kernel again at once computes all the time, or as much of it as others leave.
    assert!(computed < Duration::from_millis(200), "it computed {computed:?} of 2 s");
    drop(crowd);
    eventually("it answers again", || node.try_publish("1", deadline(20)).is_ok());
    node.unpublish("1").unwrap();
    node.is_clean();
}

/// Everybody on the node reaches the port.
#[test]
fn a_crowd_at_the_metrics_takes_no_descriptors() {
    let Some(mut node) = strict("a_crowd_at_the_metrics") else { return };
    let address = reserved_port();
    node.start(&["--metrics", &address.to_string()]);
    let crowd: Vec<_> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(500));
    let open = descriptors(node.server().id());
    assert!(open < 60, "{open} descriptors");
    node.publish("1", |_| ()).unwrap();
    drop(crowd);
    eventually("the page comes", || get(address, "/metrics").contains("flexvol_csi_volumes"));
    node.unpublish("1").unwrap();
}

#[test]
fn no_tenant_makes_a_metric() {
    let Some(mut node) = strict("no_tenant_makes_a_metric") else { return };
    let address = reserved_port();
    node.start(&["--metrics", &address.to_string()]);
    let play = |name: &str| {
        node.publish("1", |it| {
            it.volume_id = format!("fx1#{name}");
            it.volume_context.insert(name.into(), name.into());
        })
        .unwrap();
        let request = flexvol_cluster::wire::csi::NodeUnpublishVolumeRequest {
            volume_id: format!("fx1#{name}"),
            target_path: node.target("1").display().to_string(),
        };
        node.node(async move |mut it| it.node_unpublish_volume(request).await).unwrap();
    };
    play("first");
    let before = get(address, "/metrics").lines().count();
    for number in 0..10 {
        play(&format!("tenant-{number}"));
    }
    let page = get(address, "/metrics");
    assert!(page.lines().count() == before && !page.contains("tenant"), "{page}");
}

#[test]
fn another_user_cannot_connect() {
    let Some(mut node) = strict("another_user") else { return };
    node.start(&["--register"]);
    let registration = node.kubelet().join("plugins_registry/strict.example.com.flex.flexvol.dev@reg.sock");
    eventually("it registers", || registration.exists());
    for socket in [node.socket(), registration] {
        let test = |words: &[&str]| {
            Command::new("setpriv").args(words).args(["test", "-w"]).arg(&socket).status().unwrap().success()
        };
        // The directory of the test lets everybody in.
        assert!(test(&["--regid=0", "--clear-groups"]));
        assert!(!test(&["--reuid=65534", "--regid=65534", "--clear-groups"]), "{}", socket.display());
    }
}

#[test]
fn no_id_and_no_driver_writes_a_line_of_the_log() {
    let forged = r#"{\"level\":\"INFO\",\"message\":\"forged\"}"#;
    let body = STRICT.replace("mount) is", &format!("mount) printf '{{\"status\":\"Failure\",\"message\":\"a\\\\n{}\\\\u0007\\\\u001b[2J\"}}'; exit 1; is", forged.replace('\\', "\\\\")));
    let Some(node) = Node::serving("no_id_writes_a_line", "example.com/strict", &Driver::Script(&body))
    else {
        return;
    };
    let status = node.publish("1", |_| ()).unwrap_err();
    assert!(status.message().contains("forged"), "{status}");
    for id in ["fx1#a\n{\"message\":\"forged\"}", "\u{1b}[2J", "\u{2028}{\"message\":\"forged\"}"] {
        assert!(node.publish("1", |it| it.volume_id = id.into()).is_err());
        assert!(node.publish("1", |it| it.target_path.push_str(id)).is_err());
    }
    for line in node.said().lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(value["message"] != "forged" && !line.contains('\u{1b}'), "{line}");
    }
    node.is_clean();
}

#[test]
fn ten_thousand_volumes_are_known_at_once() {
    let Some(mut node) = strict("ten_thousand") else { return };
    let driver = DriverName::parse(node.name).unwrap();
    let volumes = node.state().join("strict.example.com.flex.flexvol.dev/volumes");
    let (journal, _) = Journal::open(volumes.clone(), &driver, false).unwrap();
    let target = Target { phase: Phase::Done, read_only: false, exclusive: false };
    for number in 0..10_000 {
        let path = format!("/k/pods/{number}/volumes/kubernetes.io~csi/data/mount");
        let path = TargetPath::parse(path.as_ref()).unwrap();
        journal.change(&format!("fx1#other-{number}"), |entry| entry.publish(&path, target)).unwrap();
    }
    // What cannot be read, as of a later version, is set aside, and nothing else.
    std::fs::write(volumes.join("0.json"), r#"{"id":"x","targets":{"/a":{"phase":"halfway"}}}"#).unwrap();
    let start = Instant::now();
    node.start(&[]);
    println!("10000 volumes: served after {:?}", start.elapsed());
    // Each by each would take hours.
    assert!(start.elapsed() < deadline(40), "{:?}", start.elapsed());
    assert!(node.said().contains("set aside") && volumes.join("0.broken").exists());
    node.publish("1", |_| ()).unwrap();
    node.stats("1").unwrap();
    node.unpublish("1").unwrap();
}

#[test]
fn told_to_end_while_it_publishes_it_ends_and_converges_later() {
    let body = STRICT.replace("mount) is", "mount) [ ! -e \"$here/hang\" ] || sleep 986; is");
    let Some(mut node) = Node::serving("told_to_end", "example.com/strict", &Driver::Script(&body)) else {
        return;
    };
    let hang = node.driver().with_file_name("hang");
    std::fs::write(&hang, "").unwrap();
    node.block_on(async {
        let request = node.publish_request("1");
        let mut client = flexvol_cluster::wire::csi::node_client::NodeClient::new(node.channel().await);
        tokio::select! {
            answer = client.node_publish_volume(request) => panic!("{answer:?}"),
            () = async { while node.called("mount") == 0 { tokio::time::sleep(Duration::from_millis(5)).await } } => {}
        }
    });
    let start = Instant::now();
    kill(Pid::from_raw(node.server().id().cast_signed()), Signal::SIGTERM).unwrap();
    assert!(node.wait().success(), "{}", node.said());
    // Its driver would be waited for as long as a call may take: 110 s.
    assert!(start.elapsed() < Duration::from_secs(100), "{:?}", start.elapsed());
    std::fs::remove_file(hang).unwrap();
    node.start(&[]);
    // Its driver goes on, and nothing else begins.
    let status = node.publish("1", |_| ()).unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    let pid: i32 = status.message().split(' ').nth(1).unwrap().parse().unwrap();
    nix::sys::signal::killpg(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    eventually("it is published", || node.publish("1", |_| ()).is_ok());
    node.unpublish("1").unwrap();
    node.is_clean();
}

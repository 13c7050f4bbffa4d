//! Servers that fall silent, for every driver whose mounts a program serves: whatever becomes of a
//! server, each call ends in its time, says who did not answer, and leaves nothing.

use crate::node::{Node, PASSWORD, Server, alone, mount_table};
use crate::sshd::{Sshd, base64};
use crate::stores::{of_rclone, of_store, of_webdav, serve, store, with};
use crate::support::pace::deadline;
use crate::support::{Running, eventually, is_alive};
use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
use serde_json::{Value, json};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAMS: [&str; 7] = ["sshfs", "sshd", "ssh-keygen", "s3fs", "curl", "rclone", "mount.davfs"];

/// What a mount may take here that nobody answers, in seconds.
const MOUNT: u64 = 4;

/// The same for an unmount.
const UNMOUNT: u64 = 12;

/// What undoing and ending take at most, beyond that: less than any program waits for a server that
/// is silent.
const GRACE: u64 = 15;

/// A port on which nobody is told anything: the kernel has no room for a connection, and drops what
/// asks for one.
pub(crate) struct Dropping {
    _listener: OwnedFd,
    _fillers: Vec<TcpStream>,
}

impl Dropping {
    pub(crate) fn at(port: u16) -> Self {
        let listener = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        bind(&listener, &address).unwrap();
        listen(&listener, 0).unwrap();
        let connect = |_| TcpStream::connect_timeout(&address, deadline(1)).ok();
        let fillers: Vec<_> = (0..4).map_while(connect).collect();
        assert!(fillers.len() < 4, "the kernel takes any number of connections");
        Self { _listener: listener, _fillers: fillers }
    }
}

/// A driver on a node of its own, and a volume of it.
struct Volume {
    kind: &'static str,
    node: Node,
    options: Value,
}

/// One of each kind, with so many seconds for a mount; the last is another program of the same
/// driver.
fn volumes(mount: u64) -> Vec<Volume> {
    let ssh = json!({"server": "127.0.0.1", "port": "2222", "hostKeyCheck": "off", "path": "/",
        "kubernetes.io/secret/password": base64(PASSWORD)});
    let kinds = [
        ("sshfs", ssh),
        ("s3", of_store()),
        ("rclone", of_rclone()),
        ("webdav", of_webdav()),
        ("s3", with(&of_store(), "mounter", "rclone")),
    ];
    let volume = |(kind, options)| Volume { kind, node: Node::within(kind, mount, UNMOUNT), options };
    kinds.into_iter().map(volume).collect()
}

/// Mounts all of them at the same time; each fails in its time with the server's name, and leaves
/// nothing.
fn none_is_mounted(volumes: &[Volume]) {
    let mounts: Vec<_> =
        volumes.iter().map(|volume| volume.node.start(&volume.node.pod("1"), &volume.options)).collect();
    for (volume, mount) in volumes.iter().zip(mounts) {
        let run = mount.finish();
        let failure = run.failure();
        assert!(failure.contains("127.0.0.1"), "{}: {failure}", volume.kind);
        assert!(run.took < deadline(MOUNT + GRACE), "{}: {:?}", volume.kind, run.took);
        println!("{}: {:?}: {failure}", volume.kind, run.took);
    }
    for volume in volumes {
        volume.node.is_clean(&["ssh\0-x"]);
    }
}

#[test]
fn a_mount_from_a_dropped_server_fails_in_its_time() {
    alone("dropped::a_mount_from_a_dropped_server_fails_in_its_time", &PROGRAMS, || {
        let _ports = [2222, 5000, 8080].map(Dropping::at);
        none_is_mounted(&volumes(MOUNT));
    });
}

#[test]
fn a_mount_from_a_server_that_says_nothing_fails_in_its_time() {
    alone("dropped::a_mount_from_a_server_that_says_nothing_fails_in_its_time", &PROGRAMS, || {
        // The kernel takes their connections, and nobody else does.
        let _ports = [2222, 5000, 8080].map(|port| std::net::TcpListener::bind(("127.0.0.1", port)).unwrap());
        none_is_mounted(&volumes(MOUNT));
    });
}

/// A process that waits in the kernel: of the node, or of a pod, which has the volume as a mount of
/// its own.
fn reader(target: &Path, name: &str, of_pod: bool) -> Child {
    let mut command = Command::new("unshare");
    if of_pod {
        let script = "mount --bind \"$1\" /mnt && umount -l \"$1\" && exec cat \"/mnt/$2\"";
        command.args(["-m", "sh", "-c", script, "sh"]).arg(target).arg(name);
    } else {
        command.arg("cat").arg(target.join(name));
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Until each of them sleeps in what it reads, or has its answer. One that is held up before it can
/// read is in nobody's way.
fn until_they_wait(pods: &mut [Child]) {
    let began = Instant::now();
    let waits = |pod: &mut Child| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pod.id())).unwrap_or_default();
        pod.try_wait().unwrap().is_some() || stat.contains("(cat) D") || stat.contains("(cat) S")
    };
    while began.elapsed() < deadline(2) && !pods.iter_mut().all(waits) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn volumes_whose_servers_fall_silent_are_unmounted_in_time() {
    const NAME: &str = "dropped::volumes_whose_servers_fall_silent_are_unmounted_in_time";
    alone(NAME, &PROGRAMS, || {
        let mut volumes = volumes(30);
        let sshd = Sshd::start(&volumes[0].node);
        volumes[0].options = sshd.options();
        let Some(store) = store(NAME) else { return };
        let web = serve("webdav", &volumes[2].node.make("srv"), 8080);
        let targets: Vec<_> = volumes.iter().map(|volume| volume.node.pod("1")).collect();
        for (volume, target) in volumes.iter().zip(&targets) {
            volume.node.mount(target, &volume.options).success();
            // More than anybody keeps in memory at once.
            fs::write(target.join("file"), vec![b'x'; 1 << 20]).unwrap();
        }
        let servers: [&Server; 3] = [&sshd.server, &store, &web];
        for server in servers {
            server.stop();
        }
        let mut pods = Vec::new();
        for (volume, target) in volumes.iter().zip(&targets) {
            pods.extend(["file", "none", "directory/file"].map(|name| reader(target, name, true)));
            // rclone knows for minutes which names there are, and so is taken for well.
            if !volume.options.to_string().contains("rclone") && volume.kind != "rclone" {
                pods.push(reader(target, "none", false));
            }
        }
        until_they_wait(&mut pods);
        let unmounts: Vec<Running> =
            volumes.iter().zip(&targets).map(|(volume, target)| volume.node.start_unmount(target)).collect();
        for (volume, unmount) in volumes.iter().zip(unmounts) {
            let run = unmount.finish();
            run.success();
            println!("{}: {:?}", volume.kind, run.took);
            assert!(run.took < deadline(UNMOUNT + GRACE), "{}: {:?}", volume.kind, run.took);
        }
        eventually("the end of who waited", || {
            pods.iter_mut()
                .all(|pod| matches!(pod.try_wait(), Ok(Some(_))) || !is_alive(pod.id().cast_signed()))
        });
        assert!(!mount_table().contains(" - fuse"), "{}", mount_table());
        for volume in &volumes {
            volume.node.is_clean(&["ssh\0-x", "mount.davfs"]);
        }
    });
}

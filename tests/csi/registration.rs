//! Registration, seen by a stand-in for kubelet's plugin manager: the same calls with the same
//! `:authority`, over the socket it would find.

use super::node::{Driver, Node, STRICT, eventually};
use crate::wording::wording;
use flexvol_cluster::wire::registration::registration_client::RegistrationClient;
use flexvol_cluster::wire::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use hyper_util::rt::TokioIo;
use std::path::{Path, PathBuf};
use tonic::transport::{Channel, Endpoint, Uri};

/// As grpc-go makes one of a socket's path: everything but a few signs percent-encoded.
fn authority(path: &Path) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:[]@".contains(&byte);
    path.to_str()
        .unwrap()
        .bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

async fn kubelet(path: PathBuf) -> RegistrationClient<Channel> {
    let uri: Uri = format!("http://{}", authority(&path)).parse().unwrap();
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
    });
    RegistrationClient::new(Endpoint::from(uri).connect_with_connector(connector).await.unwrap())
}

fn registering(test: &str) -> Option<(Node, PathBuf)> {
    let mut node = Node::new(test, "example.com/strict", &Driver::Script(STRICT))?;
    node.start(&["--register"]);
    let socket = node.kubelet().join("plugins_registry/strict.example.com.flex.flexvol.dev@reg.sock");
    eventually("the socket is there", || socket.exists());
    Some((node, socket))
}

fn info(node: &Node, socket: &Path) -> PluginInfo {
    node.block_on(async {
        kubelet(socket.to_owned()).await.get_info(InfoRequest {}).await.unwrap().into_inner()
    })
}

fn notify(node: &Node, socket: &Path, status: RegistrationStatus) {
    node.block_on(async {
        kubelet(socket.to_owned()).await.notify_registration_status(status).await.unwrap()
    });
}

#[test]
fn kubelet_is_told_who_is_there() {
    let Some((mut node, socket)) = registering("kubelet_is_told") else { return };
    let found = info(&node, &socket);
    assert_eq!(
        (found.r#type.as_str(), found.name.as_str()),
        ("CSIPlugin", "strict.example.com.flex.flexvol.dev")
    );
    assert_eq!(
        (found.endpoint, found.supported_versions),
        (node.socket().display().to_string(), vec!["1.0.0".into()])
    );
    notify(&node, &socket, RegistrationStatus { plugin_registered: true, error: String::new() });
    assert!(node.said().contains("registered with kubelet"));
    let about = std::os::unix::fs::MetadataExt::mode(&socket.metadata().unwrap());
    assert_eq!(about & 0o777, 0o600);
    // Told to end: kubelet sees the socket go first.
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(node.server().id().cast_signed()),
        nix::sys::signal::Signal::SIGTERM,
    )
    .unwrap();
    assert!(node.wait().success(), "{}", node.said());
    assert!(!socket.exists() && !node.socket().exists());
}

#[test]
fn a_socket_that_is_removed_comes_back() {
    let Some((node, socket)) = registering("comes_back") else { return };
    for path in [&socket, &node.socket()] {
        std::fs::remove_file(path).unwrap();
        eventually("the socket is back", || std::os::unix::net::UnixStream::connect(path).is_ok());
    }
    info(&node, &socket);
    node.publish("1", |_| ()).unwrap();
    node.unpublish("1").unwrap();
}

#[test]
fn a_refused_registration_is_tried_again() {
    use std::os::unix::fs::MetadataExt as _;
    let Some((node, socket)) = registering("tried_again") else { return };
    let before = socket.metadata().unwrap().ino();
    notify(&node, &socket, RegistrationStatus { plugin_registered: false, error: "not now".into() });
    assert!(node.said().contains("not now"));
    eventually("another socket", || socket.metadata().is_ok_and(|now| now.ino() != before));
    info(&node, &socket);
}

#[test]
fn a_killed_one_s_sockets_are_taken_over_and_a_living_one_s_are_not() {
    let Some((mut node, socket)) = registering("taken_over") else { return };
    let second = node.command(&["--register"]).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && said.contains(wording("socket-in-use")), "{said}");
    node.restart();
    info(&node, &socket);
    // A file that is no socket is not removed.
    node.kill();
    std::fs::remove_file(node.socket()).unwrap();
    std::fs::write(node.socket(), "mine").unwrap();
    let refused = node.command(&[]).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no socket"), "{refused:?}");
    assert_eq!(std::fs::read_to_string(node.socket()).unwrap(), "mine");
}

#[test]
fn a_socket_has_one_server_and_is_no_symlink() {
    let Some(mut node) = Node::serving("one_server", "example.com/strict", &Driver::Script(STRICT)) else {
        return;
    };
    // Another state: they would not see each other's locks.
    let second = |node: &Node| {
        let mut command = std::process::Command::new(super::node::flexvold());
        command.args(["csi", "--driver", node.name, "--node-id", "node-1", "--plugin-dir"]);
        command.arg(node.home.path().join("plugins")).arg("--state").arg(node.home.path().join("other"));
        command.arg("--endpoint").arg(node.socket());
        let refused = command.output().unwrap();
        assert!(!refused.status.success());
        String::from_utf8(refused.stderr).unwrap()
    };
    let said = second(&node);
    assert!(said.contains("is served by another process"), "{said}");
    node.publish("1", |_| ()).unwrap();
    node.unpublish("1").unwrap();
    node.kill();
    std::fs::remove_file(node.socket()).unwrap();
    let victim = node.home.path().join("victim");
    std::os::unix::fs::symlink(&victim, node.socket()).unwrap();
    let said = second(&node);
    assert!(said.contains("no socket") && !victim.exists(), "{said}");
}

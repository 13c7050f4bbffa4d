//! What admins see: health, probe, metrics, logs, several drivers in one process.

use super::node::{Driver, Node, STRICT};
use super::ports::reserved_port;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

pub(crate) fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn prometheus_health_and_probe_agree() {
    let Some(mut node) = Node::new("prometheus", "example.com/strict", &Driver::Script(STRICT)) else {
        return;
    };
    let address = reserved_port();
    node.start(&["--metrics", &address.to_string()]);
    node.publish("1", |_| ()).unwrap();
    let page = get(address, "/metrics");
    for line in [
        r#"flexvol_csi_requests_total{driver="strict.example.com.flex.flexvol.dev",method="NodePublishVolume",code="Ok"} 1"#,
        r#"flexvol_csi_volumes{driver="strict.example.com.flex.flexvol.dev"} 1"#,
        r#"flexvol_csi_driver_processes_stuck{driver="strict.example.com.flex.flexvol.dev"} 0"#,
    ] {
        assert!(page.contains(line), "{page}");
    }
    assert!(get(address, "/").starts_with("HTTP/1.1 404"));
    let health = || {
        node.block_on(async {
            let mut health = HealthClient::new(node.channel().await);
            health.check(HealthCheckRequest::default()).await.unwrap().into_inner().status()
        })
    };
    super::node::eventually("it is healthy", || health() == ServingStatus::Serving);
    let probe = || node.command(&["--check"]).output().unwrap();
    assert!(probe().status.success());
    node.write_driver("fail 'on strike'");
    let refused = probe();
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("on strike"),
        "{refused:?}"
    );
    node.write_driver(STRICT);
    node.unpublish("1").unwrap();
}

#[test]
fn nobody_home_fails_the_probe() {
    let Some(node) = Node::new("nobody_home", "example.com/strict", &Driver::Script(STRICT)) else { return };
    let refused = node.command(&["--check"]).output().unwrap();
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("connect to"),
        "{refused:?}"
    );
}

#[test]
fn every_line_of_the_log_is_json_and_names_its_request() {
    let Some(node) = Node::serving("the_log", "example.com/strict", &Driver::Script(STRICT)) else { return };
    node.publish("1", |_| ()).unwrap();
    node.unpublish("1").unwrap();
    let lines: Vec<serde_json::Value> = node
        .said()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let done = lines
        .iter()
        .filter(|line| line["message"] == "done" && line["span"]["method"] == "NodePublishVolume");
    let done: Vec<_> = done.collect();
    assert_eq!(done.len(), 1, "{lines:?}");
    assert!(done[0]["span"]["id"].is_u64() && done[0]["span"]["volume"] == "fx1#pv-1", "{done:?}");
}

#[test]
fn one_process_serves_several_drivers() {
    let Some(node) = Node::new("several", "example.com/strict", &Driver::Script(STRICT)) else { return };
    let other = node.home.path().join("plugins/example.com~other");
    std::fs::create_dir(&other).unwrap();
    std::fs::copy(node.driver(), other.join("other")).unwrap();
    let mut command = std::process::Command::new(super::node::flexvold());
    command.args([
        "csi",
        "--driver",
        node.name,
        "--driver",
        "example.com/other",
        "--node-id",
        "n",
        "--plugin-dir",
    ]);
    command.arg(node.home.path().join("plugins")).arg("--state").arg(node.state());
    command.arg("--kubelet-root").arg(node.kubelet()).stderr(std::process::Stdio::null());
    let mut server = command.spawn().unwrap();
    let socket =
        |name: &str| node.kubelet().join(format!("plugins/{name}.example.com.flex.flexvol.dev/csi.sock"));
    for name in ["strict", "other"] {
        super::node::eventually("it is served", || {
            std::os::unix::net::UnixStream::connect(socket(name)).is_ok()
        });
        let found = node.block_on(async {
            let channel = flexvol_cluster::csi::sockets::connect(&socket(name)).await.unwrap();
            let mut identity = flexvol_cluster::wire::csi::identity_client::IdentityClient::new(channel);
            identity
                .get_plugin_info(flexvol_cluster::wire::csi::GetPluginInfoRequest {})
                .await
                .unwrap()
                .into_inner()
        });
        assert_eq!(found.manifest["flexvolume"], format!("example.com/{name}"));
    }
    server.kill().unwrap();
    server.wait().unwrap();
}

//! Where the kernel refuses everything: the one to blame is named.

use crate::support::wording::{wording, wording_of};
use crate::support::{isolated, sh};
use serde_json::json;
use std::net::TcpListener;
use std::process::Command;

/// A server that is there, so that all that is missing is the node's own permission to mount.
/// `fsopen(2)` asks for that before anything else, so no kernel module is needed either.
#[test]
fn a_missing_capability_is_no_server_s_fault() {
    isolated("refused::a_missing_capability_is_no_server_s_fault", |node| {
        sh("ip link set lo up 2>/dev/null || true");
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port().to_string();
        let monitor = format!("127.0.0.1:{port}");
        for (driver, options) in [
            ("tmpfs", json!({})),
            ("bind", json!({"source": "/run/srv"})),
            ("nfs", json!({"server": "127.0.0.1", "path": "/export", "port": port})),
            ("cifs", json!({"server": "127.0.0.1", "share": "data", "port": port, "guest": "true"})),
            (
                "cephfs",
                json!({"monitors": monitor, "user": "u", "mounter": "kernel",
                       "kubernetes.io/secret/key": "QVFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQT09"}),
            ),
        ] {
            node.install(driver, json!({}));
            let target = node.volume(driver, "p");
            let mut command = Command::new("setpriv");
            command.args(["--bounding-set", "-sys_admin", "--inh-caps", "-all"]);
            command.arg(node.program(driver)).arg("mount").arg(&target).arg(options.to_string());
            let refused = node.call(&mut command);
            let message = refused.message.clone();
            refused.failure(&["Operation not permitted", "without CAP_SYS_ADMIN", "privileged"]);
            for blamed in ["export", "server", "cluster"] {
                assert!(!message.replace("/export", "").contains(blamed), "{driver}: {message}");
            }
        }
    });
}

/// Who is asked in vain, and one fix for it: that of a name that nobody knows is another.
#[test]
fn a_server_in_vain_has_its_fix() {
    isolated("refused::a_server_in_vain_has_its_fix", |node| {
        sh("ip link set lo up 2>/dev/null || true");
        for (driver, mut options) in [
            ("nfs", json!({"path": "/export", "port": "1"})),
            ("cifs", json!({"share": "data", "port": "1", "guest": "true"})),
        ] {
            node.install(driver, json!({}));
            let target = node.volume(driver, "p");
            options["server"] = "127.0.0.1".into();
            let expected = &[
                "server 127.0.0.1 (127.0.0.1): ",
                wording_of("connection-refused", ["1"]),
                wording("check-that-it-runs"),
            ]
            .concat();
            node.mount(driver, &target, &options).failure(&[expected]);
            options["server"] = "no-such-host.invalid".into();
            let unknown = node.mount(driver, &target, &options);
            assert!(!unknown.message.contains("firewalls"), "{}", unknown.message);
            unknown
                .failure(&[wording_of("name-unknown", ["server no-such-host.invalid: the node's resolver"])]);
        }
    });
}

/// Whoever answers for a name may say that it is the node itself.
#[test]
fn a_name_of_the_node_itself_is_no_server() {
    isolated("refused::a_name_of_the_node_itself_is_no_server", |node| {
        sh("ip link set lo up 2>/dev/null || true");
        sh("echo '127.0.0.1 inside.example.com' >/run/hosts && mount --bind /run/hosts /etc/hosts");
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port().to_string();
        let monitor = format!("inside.example.com:{port}");
        for (driver, options) in [
            ("nfs", json!({"server": "inside.example.com", "path": "/export", "port": port})),
            ("cifs", json!({"source": "//inside.example.com/web", "port": port, "guest": "true"})),
            (
                "cephfs",
                json!({"monitors": monitor, "user": "u", "mounter": "kernel",
                       "kubernetes.io/secret/key": "QVFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQT09"}),
            ),
            ("nbd", json!({"server": "inside.example.com", "port": port})),
        ] {
            for servers in [json!(["*"]), json!(["*.example.com"])] {
                node.install(driver, json!({"policy": {"servers": servers}}));
                let target = node.volume(driver, "p");
                let words = ["127.0.0.1", "the node itself", "policy.servers"];
                let answer = node.mount(driver, &target, &options).failure(&words);
                assert!(answer.message.ends_with("policy.servers"), "{answer:?}");
            }
        }
        sh("umount /etc/hosts");
    });
}

//! Drivers whose servers are a program without a configuration: `s3`, `rclone`, `webdav`.

use crate::node::{Node, PASSWORD, Server, alone, deadlines, end, lives, mounts_at, sh};
use crate::sshd::base64;
use crate::support::eventually;
use serde_json::{Value, json};
use std::fs;

const DAV: &str = "http://127.0.0.1:8080";
pub(crate) const STORE: &str = "http://127.0.0.1:5000";

/// rclone's own server of a protocol, where `web` has [`PASSWORD`].
pub(crate) fn serve(protocol: &str, directory: &str, port: u16) -> Server {
    serve_with(protocol, directory, port, PASSWORD)
}

/// The same with another password.
pub(crate) fn serve_with(protocol: &str, directory: &str, port: u16, password: &str) -> Server {
    let address = format!("127.0.0.1:{port}");
    let words = [
        "serve",
        protocol,
        directory,
        "--addr",
        &address,
        "--dir-cache-time",
        "0",
        "--user",
        "web",
        "--pass",
        password,
    ];
    Server::start("rclone", &words, port)
}

/// A store that speaks S3, with a bucket `web`; nothing where no such store is installed.
pub(crate) fn store(name: &str) -> Option<Server> {
    let Ok(program) = which("moto_server") else {
        crate::support::skip(name, "moto_server is not installed: pip install 'moto[server]'");
        return None;
    };
    let server = Server::start(&program, &["-H", "127.0.0.1", "-p", "5000"], 5000);
    sh(&format!("curl --fail --silent --request PUT {STORE}/web"));
    Some(server)
}

fn which(program: &str) -> Result<String, ()> {
    let path = std::env::var("PATH").unwrap_or_default();
    let found = path.split(':').map(|directory| format!("{directory}/{program}"));
    found.into_iter().find(|path| fs::metadata(path).is_ok()).ok_or(())
}

pub(crate) fn of_store() -> Value {
    json!({"bucket": "web", "endpoint": STORE, "kubernetes.io/secret/accessKeyID": base64("AKIAEXAMPLE"),
        "kubernetes.io/secret/secretAccessKey": base64("secret/key+of=store")})
}

pub(crate) fn of_webdav() -> Value {
    json!({"url": DAV, "user": "web", "kubernetes.io/secret/password": base64(PASSWORD)})
}

pub(crate) fn of_rclone() -> Value {
    json!({"remote": "webdav", "backend.url": DAV, "backend.vendor": "other", "backend.user": "web",
        "kubernetes.io/secret/pass": base64(PASSWORD)})
}

pub(crate) fn with(options: &Value, key: &str, value: &str) -> Value {
    let mut options = options.clone();
    options[key] = value.into();
    options
}

/// Fails with these words and leaves nothing.
fn refuses(node: &Node, options: &Value, said: &str) {
    let target = node.pod("1");
    let failure = node.mount(&target, options).failure();
    assert!(failure.contains(said) && failure.contains("127.0.0.1"), "{failure}");
    assert_eq!(mounts_at(&target), 0);
    node.is_clean(&[]);
}

#[test]
fn s3_by_s3fs() {
    const NAME: &str = "stores::s3_by_s3fs";
    alone(NAME, &["s3fs", "curl"], || {
        let node = Node::new("s3");
        let Some(_server) = store(NAME) else { return };
        lives(&node, &of_store());
        node.is_clean(&[]);
        let target = node.pod("1");
        let group =
            with(&with(&of_store(), "prefix", "directory"), "kubernetes.io/mounterArgs.FsGroup", "3000");
        node.mount(&target, &group).success();
        Node::keeps_secret("key+of=store");
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "written");
        sh(&format!(
            "setpriv --reuid 1000 --regid 1000 --groups 3000 sh -c 'echo x > {}/x'",
            target.display()
        ));
        end(&node.daemons());
        node.unmount(&target).success();
        refuses(&node, &with(&of_store(), "bucket", "none"), "bucket or key not found");
    });
}

#[test]
fn s3_by_rclone() {
    const NAME: &str = "stores::s3_by_rclone";
    alone(NAME, &["rclone", "curl"], || {
        let node = Node::new("s3");
        let Some(_server) = store(NAME) else { return };
        let options = with(&of_store(), "mounter", "rclone");
        lives(&node, &options);
        node.is_clean(&[]);
        refuses(&node, &with(&options, "bucket", "none"), "directory not found");
        refuses(&node, &with(&options, "endpoint", "http://127.0.0.1:1"), "connection refused");
    });
}

/// Go keeps ten times as much.
#[test]
fn a_program_has_no_more_memory_than_the_policy_says() {
    alone("stores::a_program_has_no_more_memory_than_the_policy_says", &["rclone"], || {
        if !std::path::Path::new("/sys/fs/cgroup/memory/cgroup.procs").exists() {
            return println!(
                "SKIP a_program_has_no_more_memory_than_the_policy_says: needs control groups of version 1"
            );
        }
        let little = json!({"deadlines": deadlines(30, 40), "policy": {"maxMemory": "4Mi"}});
        let node = Node::installed("rclone", &little);
        let _server = serve("webdav", &node.make("srv"), 8080);
        refuses(&node, &of_rclone(), "policy.maxMemory");
        let node = Node::new("rclone");
        let target = node.pod("1");
        node.mount(&target, &of_rclone()).success();
        let limit = sh("cat /sys/fs/cgroup/memory/flexvol/*/memory.limit_in_bytes");
        assert!(limit.lines().any(|limit| limit == (2_u64 << 30).to_string()), "{limit}");
        node.unmount(&target).success();
        node.is_clean(&[]);
    });
}

#[test]
fn rclone_of_webdav() {
    alone("stores::rclone_of_webdav", &["rclone"], || {
        let node = Node::new("rclone");
        let directory = node.make("srv");
        let _server = serve("webdav", &directory, 8080);
        lives(&node, &of_rclone());
        // What was closed is stored, however soon the volume went.
        assert_eq!(fs::read_to_string(format!("{directory}/directory/file")).unwrap(), "written");
        node.is_clean(&[]);
        refuses(
            &node,
            &with(&of_rclone(), "kubernetes.io/secret/pass", &base64("another")),
            "401 Unauthorized",
        );
        refuses(&node, &with(&of_rclone(), "path", "none"), "directory not found");
    });
}

#[test]
fn rclone_of_sftp_and_a_killed_daemon() {
    alone("stores::rclone_of_sftp_and_a_killed_daemon", &["rclone"], || {
        let node = Node::new("rclone");
        let _server = serve("sftp", &node.make("srv"), 2022);
        let options = json!({"remote": "sftp", "backend.host": "127.0.0.1", "backend.port": "2022",
            "backend.user": "web", "hostKeyCheck": "off", "kubernetes.io/secret/pass": base64(PASSWORD)});
        let target = node.pod("1");
        node.mount(&target, &with(&options, "kubernetes.io/mounterArgs.FsGroup", "3000")).success();
        sh(&format!(
            "setpriv --reuid 1000 --regid 1000 --groups 3000 sh -c 'echo x > {}/x'",
            target.display()
        ));
        assert!(sh("grep -rlF 'w!o' /run/flexvol || true").is_empty(), "the password is not as it was typed");
        end(&node.daemons());
        node.unmount(&target).success();
        node.is_clean(&[]);
    });
}

/// davfs2 reads the node's own passwords whoever mounts.
#[test]
fn webdav_with_a_password_of_the_node_s() {
    alone("stores::webdav_with_a_password_of_the_node_s", &["mount.davfs", "rclone"], || {
        let policy =
            |allowed: bool| json!({"deadlines": deadlines(30, 40), "policy": {"allowNodeSecrets": allowed}});
        let node = Node::installed("webdav", &policy(false));
        let own = node.path("secrets");
        let password = PASSWORD.replace('\\', "\\\\").replace('"', "\\\"").replace(' ', "\\ ");
        let directories = ["", "/", ":8080"].map(|end| format!("http://127.0.0.1{end} web {password}\n"));
        let target = node.pod("1").display().to_string();
        fs::write(
            &own,
            format!(
                "{DAV} web {password}\n{DAV}/ web {password}\n{target} web {password}\n{}",
                directories.concat()
            ),
        )
        .unwrap();
        sh(&format!("chmod 600 {0}; mount --bind {0} /etc/davfs2/secrets", own.display()));
        let directory = node.make("srv");
        let server = serve("webdav", &directory, 8080);
        let nobody = json!({"url": DAV});
        for options in [
            nobody.clone(),
            with(&nobody, "url", &format!("{DAV}/")),
            with(&of_webdav(), "kubernetes.io/secret/password", &base64("another")),
        ] {
            refuses(&node, &options, "Could not authenticate");
        }
        let allowed = Node::installed("webdav", &policy(true));
        let target = allowed.pod("1");
        allowed.mount(&target, &nobody).success();
        allowed.unmount(&target).success();
        drop(server);
        let words = ["serve", "webdav", &directory, "--addr", "127.0.0.1:8080"];
        let _open = Server::start("rclone", &words, 8080);
        lives(&node, &nobody);
        node.is_clean(&["mount.davfs"]);
    });
}

#[test]
fn webdav_by_davfs2() {
    alone("stores::webdav_by_davfs2", &["mount.davfs", "rclone"], || {
        let node = Node::new("webdav");
        let directory = node.make("srv");
        let _server = serve("webdav", &directory, 8080);
        lives(&node, &of_webdav());
        assert_eq!(fs::read_to_string(format!("{directory}/directory/file")).unwrap(), "written");
        node.is_clean(&["mount.davfs"]);
        let target = node.pod("1");
        node.mount(&target, &with(&of_webdav(), "kubernetes.io/mounterArgs.FsGroup", "3000")).success();
        // davfs2 asks the node's own lists, in which the pod's group is not.
        let script = format!("ls {0}; cat {0}/directory/file; echo x > {0}/x", target.display());
        sh(&format!("setpriv --reuid nobody --regid 3000 --clear-groups sh -ec '{script}'"));
        eventually("the file on the server", || fs::metadata(format!("{directory}/x")).is_ok());
        // It leaves a file that would keep it from mounting here again.
        end(&node.daemons());
        node.unmount(&target).success();
        node.mount(&target, &of_webdav()).success();
        node.unmount(&target).success();
        refuses(
            &node,
            &with(&of_webdav(), "kubernetes.io/secret/password", &base64("another")),
            "Could not authenticate",
        );
        refuses(&node, &with(&of_webdav(), "url", &format!("{DAV}/none")), "404 Not Found");
        refuses(&node, &with(&of_webdav(), "url", "http://127.0.0.1:1"), "does not answer");
    });
}

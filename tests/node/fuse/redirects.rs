//! Servers that send clients to another one: who goes there, as docs/settings.md says.

use crate::node::{Node, alone, deadlines, sh};
use crate::sshd::{Sshd, base64};
use crate::support::pace::deadline;
use serde_json::{Value, json};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How often the other server was asked.
struct Other(Arc<AtomicUsize>);

impl Other {
    /// Starts both: one that is allowed and redirects everything, and the one on 127.0.0.9 that it
    /// names.
    fn start() -> Self {
        let other = Self(Arc::default());
        let asked = Arc::clone(&other.0);
        serve(("127.0.0.1", 8081), |path| {
            format!("302 Found\r\nLocation: http://127.0.0.9:8082{path}\r\nContent-Length: 0")
        });
        serve(("127.0.0.9", 8082), move |_| {
            asked.fetch_add(1, Ordering::SeqCst);
            "403 Forbidden\r\nContent-Length: 0".to_owned()
        });
        other
    }

    fn was_asked(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}

/// A server of HTTP that says one thing, until the test ends.
fn serve(address: (&str, u16), answer: impl Fn(&str) -> String + Send + 'static) {
    let listener = TcpListener::bind(address).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.map(|stream| reply(stream, &answer));
        }
    });
}

fn reply(mut stream: TcpStream, answer: &impl Fn(&str) -> String) {
    stream.set_read_timeout(Some(deadline(5))).unwrap();
    let mut request = Vec::new();
    let mut bytes = [0; 4096];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut bytes) {
            Ok(length) if length > 0 => request.extend_from_slice(&bytes[..length]),
            _ => return,
        }
    }
    let text = String::from_utf8_lossy(&request);
    let path = text.split(' ').nth(1).unwrap_or("/");
    let _ = write!(stream, "HTTP/1.1 {}\r\nConnection: close\r\n\r\n", answer(path));
}

/// Whether a mount goes to the other server. It fails in any case.
fn is_followed(driver: &'static str, side_file: &Value, options: &Value) -> bool {
    let other = Other::start();
    let node = Node::installed(driver, side_file);
    let target = node.pod("1");
    let failure = node.mount(&target, options).failure();
    println!("{failure}");
    other.was_asked()
}

fn only_the_first() -> Value {
    json!({"deadlines": deadlines(30, 40), "policy": {"servers": ["127.0.0.1"]}})
}

#[test]
fn git_follows_none_unless_it_is_allowed() {
    alone("redirects::git_follows_none_unless_it_is_allowed", &["git"], || {
        let options = json!({"repository": "http://127.0.0.1:8081/web.git"});
        let other = Other::start();
        for policy in [json!({"servers": ["127.0.0.1"]}), json!({"servers": ["*", "127.0.0.1"]})] {
            let node = Node::installed("git", &json!({"policy": policy}));
            let failure = node.mount(&node.pod("1"), &options).failure();
            assert!(failure.contains("redirect") && failure.contains("policy.allowRedirects"), "{failure}");
            assert!(!other.was_asked());
        }
        let allowed = json!({"policy": {"servers": ["127.0.0.1"], "allowRedirects": true}});
        let node = Node::installed("git", &allowed);
        node.mount(&node.pod("1"), &options).failure();
        assert!(other.was_asked());
    });
}

#[test]
fn webdav_follows_none() {
    alone("redirects::webdav_follows_none", &["mount.davfs"], || {
        let options = json!({"url": "http://127.0.0.1:8081/web"});
        assert!(!is_followed("webdav", &only_the_first(), &options));
    });
}

/// It has no option against it: where this changes, docs/settings.md has to.
#[test]
fn s3fs_follows_them() {
    alone("redirects::s3fs_follows_them", &["s3fs"], || {
        let options = json!({"bucket": "web", "endpoint": "http://127.0.0.1:8081",
            "kubernetes.io/secret/accessKeyID": base64("AKIAEXAMPLE"),
            "kubernetes.io/secret/secretAccessKey": base64("secret")});
        assert!(is_followed("s3", &only_the_first(), &options));
    });
}

/// The same.
#[test]
fn rclone_follows_them() {
    alone("redirects::rclone_follows_them", &["rclone"], || {
        let options = json!({"remote": "http", "backend.url": "http://127.0.0.1:8081/web/"});
        assert!(is_followed("rclone", &only_the_first(), &options));
    });
}

/// Neither its user's nor the system's, nor what a volume says of one.
#[test]
fn sshfs_goes_by_no_configuration_of_the_node() {
    alone("redirects::sshfs_goes_by_no_configuration_of_the_node", &["sshfs", "sshd", "ssh-keygen"], || {
        let node = Node::new("sshfs");
        let sshd = Sshd::start(&node);
        let elsewhere = "Host *\nProxyCommand touch /run/asked\n";
        sh(
            "mount -t tmpfs -o mode=700 home /root; mkdir -m 700 /root/.ssh; mount -t tmpfs -o mode=755 ssh /etc/ssh",
        );
        for place in ["/root/.ssh/config", "/etc/ssh/ssh_config"] {
            fs::write(place, elsewhere).unwrap();
        }
        let target = node.pod("1");
        node.mount(&target, &sshd.options()).success();
        node.unmount(&target).success();
        for word in [
            "ProxyJump=127.0.0.9",
            "ProxyCommand=touch",
            "ssh_command=touch",
            "directport=8082",
            "F=/etc/ssh",
        ] {
            let mut options = sshd.options();
            options["mountOptions"] = word.into();
            let failure = node.mount(&target, &options).failure();
            assert!(failure.contains("mountOptions"), "{failure}");
        }
        assert!(!Path::new("/run/asked").exists());
        // The same words would have been gone by.
        let _ = Command::new("ssh").args(["-p", "2222", "127.0.0.1"]).output();
        assert!(Path::new("/run/asked").exists());
    });
}

//! An SSH server with one user, root, who has a key.

use crate::node::{Node, Server, sh};
use serde_json::{Value, json};
use std::fs;

pub(crate) const PORT: u16 = 2222;

pub(crate) struct Sshd {
    pub(crate) server: Server,
    key: String,
    pub(crate) host_key: String,
    pub(crate) directory: String,
}

impl Sshd {
    pub(crate) fn start(node: &Node) -> Self {
        let (home, directory) = (node.make("sshd"), node.make("srv"));
        sh(&format!(
            "cd {home}; mkdir -p /run/sshd; for key in host user; do ssh-keygen -q -t ed25519 -N '' -f $key; done"
        ));
        let config = format!(
            "Port {PORT}\nListenAddress 127.0.0.1\nStrictModes no\nUsePAM no\nPidFile none\nHostKey {home}/host\nAuthorizedKeysFile {home}/user.pub\nSubsystem sftp internal-sftp\nSetEnv PATH=/usr/local/bin:/usr/bin:/bin\nKexAlgorithms curve25519-sha256\nMaxStartups 100\n"
        );
        fs::write(format!("{home}/config"), config).unwrap();
        let server = Server::start("/usr/sbin/sshd", &["-D", "-f", &format!("{home}/config")], PORT);
        let read = |name: &str| fs::read_to_string(format!("{home}/{name}")).unwrap();
        Self { server, key: read("user"), host_key: read("host.pub").trim().to_owned(), directory }
    }

    /// What a PV says.
    pub(crate) fn options(&self) -> Value {
        json!({"server": "127.0.0.1", "port": PORT.to_string(), "path": self.directory, "hostKey": self.host_key,
            "kubernetes.io/secret/ssh-privatekey": base64(&self.key)})
    }

    /// The line of the private key that is in no other key.
    pub(crate) fn telling_line(&self) -> &str {
        self.key.lines().nth(4).unwrap()
    }
}

/// As kubelet sends a secret.
pub(crate) fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

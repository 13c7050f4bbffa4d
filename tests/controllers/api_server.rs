//! etcd and kube-apiserver on loopback, for one test.

use flexvol_cluster::controllers::client::{Place, connect};
use kube::Client;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const TOKEN: &str = "token-of-a-test";

/// No test waits longer for anything.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// A process that ends with what it belongs to.
pub(crate) struct Process(Child);

impl Process {
    /// Starts it; what it says goes to a file.
    pub(crate) fn start(command: &mut Command, log: &Path) -> Self {
        let log = fs::File::options().create(true).append(true).open(log).unwrap();
        Self(command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap())
    }

    /// As kill -9 would.
    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The API server, with what it wants.
pub(crate) struct ApiServer {
    pub(crate) home: TempDir,
    pub(crate) programs: PathBuf,
    port: u16,
    _processes: [Process; 2],
}

impl ApiServer {
    /// Starts it, and waits until it is ready.
    pub(crate) async fn start(programs: PathBuf) -> Self {
        let home = tempfile::tempdir().unwrap();
        let [clients, peers, port] = free_ports();
        let etcd = etcd(&programs, home.path(), clients, peers);
        let api = kube_apiserver(&programs, home.path(), clients, port);
        let server = Self { home, programs, port, _processes: [etcd, api] };
        let start = Instant::now();
        while !server.is_ready().await {
            assert!(start.elapsed() < PATIENCE, "{}", server.said("kube-apiserver"));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        server
    }

    async fn is_ready(&self) -> bool {
        // It makes its certificate first.
        self.certificate().exists() && self.client().apiserver_version().await.is_ok()
    }

    /// Of the API server.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.home.path().join("pki/apiserver.crt")
    }

    /// An admin.
    pub(crate) fn client(&self) -> Client {
        let server = format!("https://127.0.0.1:{}", self.port);
        let (authority, token) = (self.certificate(), self.home.path().join("token"));
        connect(&Place { server, authority, token }, "default").unwrap().leases
    }

    /// The end of what a program has said.
    pub(crate) fn said(&self, name: &str) -> String {
        let text = fs::read_to_string(self.home.path().join(name).with_extension("log")).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

/// Free a moment ago.
fn free_ports() -> [u16; 3] {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

fn etcd(programs: &Path, home: &Path, clients: u16, peers: u16) -> Process {
    let (clients, peers) = (format!("http://127.0.0.1:{clients}"), format!("http://127.0.0.1:{peers}"));
    let mut command = Command::new(programs.join("etcd"));
    command.args(["--unsafe-no-fsync", "--log-level=warn", "--name=etcd"]);
    command.arg(format!("--data-dir={}", home.join("etcd").display()));
    command.arg(format!("--listen-client-urls={clients}")).arg(format!("--advertise-client-urls={clients}"));
    command.arg(format!("--listen-peer-urls={peers}")).arg(format!("--initial-advertise-peer-urls={peers}"));
    command.arg(format!("--initial-cluster=etcd={peers}"));
    Process::start(&mut command, &home.join("etcd.log"))
}

fn kube_apiserver(programs: &Path, home: &Path, etcd: u16, port: u16) -> Process {
    let key = home.join("accounts.key");
    let made = Command::new("openssl").args(["genrsa", "-out"]).arg(&key).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    fs::write(home.join("token"), TOKEN).unwrap();
    fs::write(home.join("tokens"), format!("{TOKEN},admin,admin,system:masters\n")).unwrap();
    let at = |flag: &str, path: &str| format!("--{flag}={}", home.join(path).display());
    let mut command = Command::new(programs.join("kube-apiserver"));
    command.arg(format!("--etcd-servers=http://127.0.0.1:{etcd}")).arg(format!("--secure-port={port}"));
    command.args([
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.96.0.0/24",
    ]);
    command.args([
        "--service-account-issuer=https://kubernetes.default.svc",
        "--disable-admission-plugins=ServiceAccount,StorageObjectInUseProtection",
    ]);
    command.arg(at("cert-dir", "pki")).arg(at("token-auth-file", "tokens"));
    command.arg(at("service-account-key-file", "accounts.key"));
    command.arg(at("service-account-signing-key-file", "accounts.key"));
    Process::start(&mut command, &home.join("kube-apiserver.log"))
}

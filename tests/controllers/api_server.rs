//! etcd and kube-apiserver on loopback, for one test.

use super::pace::deadline;
use super::ports::reserved_port;
use flexvol_cluster::controllers::client::{Place, connect};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const TOKEN: &str = "token-of-a-test";

/// No test waits longer for anything.
pub(crate) fn patience() -> Duration {
    deadline(120)
}

/// A process that ends with what it belongs to.
pub(crate) struct Process(Child);

impl Process {
    /// Starts it; what it says goes to a file. It ends with the test, also if that is killed.
    pub(crate) fn start(command: &mut Command, log: &Path) -> Self {
        let log = fs::File::options().create(true).append(true).open(log).unwrap();
        let mut ending = Command::new("setpriv");
        ending.args(["--pdeathsig=KILL", "--"]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            ending.env(name, value.unwrap_or_default());
        }
        ending.current_dir(command.get_current_dir().unwrap_or(Path::new(".")));
        Self(ending.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Returns true if it has exited with status 1: a reported error, not a panic.
    pub(crate) fn has_failed(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some_and(|status| status.code() == Some(1))
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    /// Ends by a signal.
    pub(crate) fn ends_by(&mut self, signal: Signal) {
        kill(Pid::from_raw(self.pid().cast_signed()), signal).unwrap();
        self.0.wait().unwrap();
    }

    /// Kills it with SIGKILL.
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
    /// Port of etcd.
    behind: u16,
    _etcd: Process,
    api: Process,
}

impl ApiServer {
    /// Starts it, and waits until it is ready.
    pub(crate) async fn start(programs: PathBuf) -> Self {
        let home = tempfile::tempdir().unwrap();
        let [clients, peers, port] = [(); 3].map(|()| reserved_port().port());
        let etcd = etcd(&programs, home.path(), clients, peers);
        let api = kube_apiserver(&programs, home.path(), clients, port);
        let server = Self { home, programs, port, behind: clients, _etcd: etcd, api };
        server.until_ready().await;
        server
    }

    /// Ends at once, and begins as before.
    pub(crate) async fn again(&mut self) {
        self.api.kill();
        self.api = kube_apiserver(&self.programs, self.home.path(), self.behind, self.port);
        self.until_ready().await;
    }

    async fn until_ready(&self) {
        let start = Instant::now();
        while !self.is_ready().await {
            assert!(start.elapsed() < patience(), "{}", self.said("kube-apiserver"));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn is_ready(&self) -> bool {
        // It makes its certificate first.
        self.certificate().exists() && self.client().apiserver_version().await.is_ok()
    }

    /// Until it has made the namespaces that are always there.
    pub(crate) async fn has_namespaces(&self) {
        let namespaces: Api<Namespace> = Api::all(self.client());
        let start = Instant::now();
        while namespaces.get_opt("default").await.unwrap().is_none() {
            assert!(start.elapsed() < patience(), "{}", self.said("kube-apiserver"));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Certificate of the API server.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.home.path().join("pki/apiserver.crt")
    }

    /// Token of an admin.
    fn token(&self) -> PathBuf {
        self.home.path().join("token")
    }

    /// Writes what a pod finds where its service account is mounted; the account is an admin's.
    pub(crate) fn mount_account(&self, directory: &Path) {
        fs::copy(self.token(), directory.join("token")).unwrap();
        fs::copy(self.certificate(), directory.join("ca.crt")).unwrap();
        fs::write(directory.join("namespace"), "default").unwrap();
    }

    /// Writes a kubeconfig of an admin, for this address: of the API server or of a proxy.
    pub(crate) fn kubeconfig(&self, address: &str) -> PathBuf {
        let config = self.config(address, "default");
        let name = format!("{}.kubeconfig", address.rsplit(':').next().unwrap());
        let path = self.home.path().join(name);
        fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// Content of a kubeconfig of an admin, for a namespace.
    pub(crate) fn config(&self, address: &str, namespace: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Config", "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
            "clusters": [{"name": "c", "cluster": {"server": address, "certificate-authority": self.certificate()}}],
            "users": [{"name": "u", "user": {"tokenFile": self.token()}}]})
    }

    /// An admin.
    pub(crate) fn client(&self) -> Client {
        let server = self.address();
        let (authority, token) = (self.certificate(), self.token());
        connect(&Place { server, authority, token }, "default").unwrap().leases
    }

    /// URL of the API server.
    pub(crate) fn address(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The end of what a program has said.
    pub(crate) fn said(&self, name: &str) -> String {
        let text = fs::read_to_string(self.home.path().join(name).with_extension("log")).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
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
    let mut generate = Command::new("openssl");
    generate.args(["ecparam", "-genkey", "-noout", "-name", "prime256v1", "-out"]).arg(&key);
    let made = generate.output().unwrap();
    assert!(made.status.success(), "{made:?}");
    fs::write(home.join("token"), TOKEN).unwrap();
    fs::write(home.join("tokens"), format!("{TOKEN},admin,admin,system:masters\n")).unwrap();
    let at = |flag: &str, path: &str| format!("--{flag}={}", home.join(path).display());
    let mut command = Command::new(programs.join("kube-apiserver"));
    // It lives for seconds, and would collect garbage for a third of what it computes.
    let memory = std::env::var("FLEXVOL_API_SERVER_MEMORY").unwrap_or_else(|_| "400MiB".to_owned());
    command.env("GOGC", "off").env("GOMEMLIMIT", memory);
    command.arg(format!("--etcd-servers=http://127.0.0.1:{etcd}")).arg(format!("--secure-port={port}"));
    command.args([
        "--bind-address=127.0.0.1",
        // Mount pods are.
        "--allow-privileged=true",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        "--authorization-mode=RBAC",
        // Nobody here asks too often, and it costs a fourth of the time to begin.
        "--enable-priority-and-fairness=false",
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

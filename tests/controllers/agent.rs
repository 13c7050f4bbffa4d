//! `flexvold agent --store kubernetes`, as its own process, beside a real API server.

use super::api_server::{ApiServer, Process, patience};
use super::pace::deadline;
use super::proxy::Proxy;
use super::store::{KIND, has_kinds, request};
use super::with_server;
use flexvol_cluster::fence::store::kubernetes::name_of;
use flexvol_linux::net::daemon_socket;
use flexvol_linux::proc::clock;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::host;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const HANDLE: &str = "rbd:f/pool/image";

/// An agent of a node, whose requests pass a proxy.
struct Node {
    home: PathBuf,
    name: &'static str,
    server: String,
}

impl Node {
    fn new(server: &ApiServer, name: &'static str, address: String) -> Self {
        let home = server.home.path().join(name);
        std::fs::create_dir(&home).unwrap();
        server.mount_account(&home);
        Self { home, name, server: address }
    }

    fn start(&self) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flexvold"));
        command.args(["agent", "--store", "kubernetes", "--server", &self.server, "--node", self.name]);
        let at = |name: &str| self.home.join(name);
        command
            .arg("--account")
            .arg(&self.home)
            .arg("--state")
            .arg(at("state"))
            .arg("--socket")
            .arg(self.socket());
        Process::start(&mut command, &at("log"))
    }

    fn socket(&self) -> PathBuf {
        self.home.join("agent.sock")
    }

    /// What it answers, once it does.
    async fn ask(&self, method: &str, pod: &str) -> Value {
        let asked = clock::since_boot();
        let params = json!({"handle": HANDLE, "fence": "pod", "target": format!("/nowhere/pods/{pod}/volumes/v~d/v"),
            "access": "rw", "podNamespace": "default", "podName": pod, "podUid": pod});
        let until = asked + u64::try_from(deadline(15).as_nanos()).unwrap();
        let request = json!({"v": 1, "method": method, "asked": asked, "until": until, "params": params});
        let (socket, request) = (self.socket(), request.to_string());
        let start = Instant::now();
        loop {
            let (socket, request) = (socket.clone(), request.clone());
            let asking = move || daemon_socket::ask(&socket, &request, &Deadline::after(deadline(20)));
            match tokio::task::spawn_blocking(asking).await.unwrap() {
                Ok(answer) => return serde_json::from_slice(&answer).unwrap(),
                Err(error) => {
                    let log = std::fs::read_to_string(self.home.join("log")).unwrap_or_default();
                    assert!(start.elapsed() < patience(), "{error:#}\n{log}");
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Two agents; one starts again while the API server does not answer, and knows who it is.
#[test]
fn agents_hold_in_kubernetes() {
    if !nix::unistd::getuid().is_root() {
        return super::skip("agents_hold_in_kubernetes", "needs root: the socket is root's");
    }
    with_server("agents_hold_in_kubernetes", async |server| {
        has_kinds(&server).await;
        let client = server.client();
        for name in ["a", "b"] {
            let status = json!({"nodeInfo": {"bootID": host::boot().unwrap()}});
            let node =
                json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status});
            request(&client, "POST", "/api/v1/nodes", &node).await.unwrap();
        }
        let proxy = Proxy::listen(server.client()).await;
        let (a, b) = (Node::new(&server, "a", proxy.address()), Node::new(&server, "b", server.address()));
        let (mut first, _second) = (a.start(), b.start());
        // What an agent asks once, and what each volume costs.
        assert!(!a.ask("hold", "first").await["ok"].is_null());
        proxy.requests();
        assert_eq!(a.ask("release", "first").await["ok"]["state"], "released");
        let answer = a.ask("hold", "db-0").await;
        assert_eq!(answer["ok"], json!({"epoch": 0}), "{answer}");
        let requests = proxy.requests();
        assert!(requests.len() <= 4, "{requests:#?}");
        let object = format!("{KIND}/{}", name_of(HANDLE));
        let held = request(&client, "GET", &object, &Value::Null).await.unwrap();
        let node = request(&client, "GET", "/api/v1/nodes/a", &Value::Null).await.unwrap();
        assert_eq!(held["spec"]["holders"][0]["nodeUID"], node["metadata"]["uid"]);
        let answer = b.ask("hold", "db-1").await;
        let said = answer["err"]["msg"].as_str().unwrap();
        assert!(
            answer["err"]["code"] == "FENCED"
                && said.contains("on node a")
                && said.contains("out-of-service")
        );
        // What is held stays so while nobody serves; who starts without the API server says that.
        first.kill();
        proxy.is_busy(usize::MAX);
        first = a.start();
        let status = a.ask("status", "").await;
        assert_eq!((&status["ok"]["ready"], &status["ok"]["node"]), (&json!(false), &json!("a")), "{status}");
        let answer = a.ask("release", "db-0").await;
        assert_eq!(answer["ok"]["state"], "later", "{answer}");
        let answer = a.ask("hold", "db-2").await;
        assert_eq!(answer["err"]["code"], "STORE_UNAVAILABLE", "{answer}");
        proxy.is_busy(0);
        let start = Instant::now();
        while b.ask("hold", "db-1").await["ok"].is_null() {
            assert!(start.elapsed() < patience(), "what was to be released later is not");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let answer = b.ask("release", "db-1").await;
        assert_eq!(answer["ok"]["state"], "released", "{answer}");
        drop(first);
    });
}

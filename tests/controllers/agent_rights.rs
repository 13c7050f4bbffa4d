//! What `flexvold manifest agent` allows is enough, and the least: each right is taken away once,
//! and then a step fails. And with all of them an agent changes what its own node holds, and
//! nothing else: a policy of the API server says so.

use super::api_server::{ApiServer, patience};
use super::pace::deadline;
use super::proxy::{Proxy, Right};
use super::rights::rights;
use super::store::{KIND, has_kinds, request, request_as, store_at, waiting};
use super::store_contract::{HANDLE, goes, holder, mount, release, soon};
use super::with_server;
use flexvol_cluster::fence::decide::{Cause, Reply, Task};
use flexvol_cluster::fence::progress::{Outcome, Phase, Progress, Step};
use flexvol_cluster::fence::record::{Holder, Record};
use flexvol_cluster::fence::sharing::Sharing;
use flexvol_cluster::fence::store::RecordStore as _;
use flexvol_cluster::fence::store::kubernetes::{FORCE_DETACH, KubernetesStore, name_of};
use flexvol_cluster::manifest::agent::{self, Request};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// What a step may take without a right.
fn limit() -> Duration {
    deadline(5)
}

const AGENT: &str = "system:serviceaccount:default:flexvol-agent";

fn printed() -> Vec<Value> {
    let (image, kubelet_root) = ("image".to_owned(), "/var/lib/kubelet".to_owned());
    agent::objects(&Request { image, namespace: "default".to_owned(), kubelet_root, plugin_dir: None })
}

fn of_kind(kind: &str) -> Value {
    printed().into_iter().find(|object| object["kind"] == kind).unwrap()
}

/// Where objects of a kind are made.
pub(crate) fn place(object: &Value) -> String {
    let plural =
        format!("{}s", object["kind"].as_str().unwrap().to_lowercase()).replace("policys", "policies");
    let api = object["apiVersion"].as_str().unwrap();
    let root = if api.contains('/') { "apis" } else { "api" };
    let below = object["metadata"]["namespace"].as_str().map(|name| format!("namespaces/{name}/"));
    format!("/{root}/{api}/{}{plural}", below.unwrap_or_default())
}

/// All that is printed can be made, in its order.
#[test]
fn what_is_printed_is_taken() {
    with_server("what_is_printed_is_taken", async |server| {
        server.has_namespaces().await;
        let objects = printed();
        for object in objects.iter().filter(|object| object["kind"] != "Namespace") {
            let path = format!("{}?fieldValidation=Strict", place(object));
            let made = request(&server.client(), "POST", &path, object).await;
            assert!(made.is_ok(), "{}: {made:?}", object["kind"]);
        }
    });
}

/// What an agent does, step by step, and the step that fails.
fn play(store: &KubernetesStore, limit: Duration) -> Result<(), &'static str> {
    let me = holder("a", "1");
    store.uid_of_node("a", soon()).map_err(|_| "it knows its node")?;
    store.list_of(&me.node, soon()).map_err(|_| "it finds what its node holds")?;
    store.read(HANDLE, soon()).map_err(|_| "it reads a record")?;
    goes(&mount(store, "a", "1")).then_some(()).ok_or("it holds")?;
    if release(store, &me) != Ok(Reply::Done) {
        return Err("it releases");
    }
    let start = Instant::now();
    while !store.read(HANDLE, soon()).unwrap().version.is_empty() {
        if start.elapsed() > limit {
            return Err("what is empty is removed");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let task = Task { holder: me.clone(), reason: Cause::StillAttached };
    store.note(&task, soon()).map_err(|_| "it leaves itself a task")?;
    store.tasks(&me.node, soon()).map_err(|_| "it looks for its tasks")?;
    hears(store, &task, limit).then_some(()).ok_or("it hears of a task")?;
    store.report(&task, &working()).map_err(|_| "it reports")?;
    store.finish(&task).map_err(|_| "it ends a task")
}

pub(crate) fn working() -> Progress {
    let step = Step { name: "umount -l", outcome: Outcome::Running, message: String::new() };
    Progress { phase: Phase::Running, steps: vec![step], message: String::new() }
}

/// Whether it is told of a task when that comes, and does not ask again and again.
fn hears(store: &KubernetesStore, task: &Task, limit: Duration) -> bool {
    let (tell, told) = channel();
    let heard = move || {
        let _ = tell.send(());
    };
    store.hear_of_tasks(&task.holder.node, Arc::new(heard));
    let asks_again = Duration::from_millis(1500);
    if told.recv_timeout(limit).is_err() || told.recv_timeout(asks_again).is_ok() {
        return false;
    }
    let another = Task { holder: holder("a", "2"), reason: Cause::PodGone };
    store.note(&another, soon()).unwrap();
    let heard = told.recv_timeout(limit).is_ok();
    let _ = store.finish(&another);
    heard
}

/// One who may do what is printed, but for one thing, does what an agent does.
async fn trial(server: &ApiServer, user: &str, without: Option<&Right>) -> Result<(), &'static str> {
    let client = server.client();
    for of in ["Cluster", ""] {
        let rights = rights(&of_kind(&format!("{of}Role"))["rules"]);
        let rules: Vec<_> = rights
            .iter()
            .filter(|right| Some(*right) != without)
            .map(|right| json!({"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]}))
            .collect();
        let [mut role, mut binding] =
            [format!("{of}Role"), format!("{of}RoleBinding")].map(|kind| of_kind(&kind));
        role["rules"] = json!(rules);
        binding["roleRef"]["name"] = json!(user);
        let api = "rbac.authorization.k8s.io";
        binding["subjects"] = json!([{"kind": "User", "name": user, "apiGroup": api}]);
        for mut object in [role, binding] {
            object["metadata"]["name"] = json!(user);
            request(&client, "POST", &place(&object), &object).await.unwrap();
        }
        for right in &rights {
            knows(server, user, right, Some(right) != without).await;
        }
    }
    let proxy = Proxy::listen(server.client()).await;
    proxy.acts_as(user);
    let store = store_at(server.home.path(), &server.certificate(), &proxy.address());
    let limit = if without.is_some() { limit() } else { patience() };
    let played = waiting(move || play(&store, limit)).await;
    assert!(without.is_some() || proxy.refused().is_empty(), "{:?}", proxy.refused());
    played
}

/// Until the API server knows whether it is allowed.
pub(crate) async fn knows(server: &ApiServer, user: &str, right: &Right, allowed: bool) {
    let attributes =
        json!({"group": right.group, "resource": right.resource, "verb": right.verb, "namespace": "default"});
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes}});
    let start = Instant::now();
    loop {
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let answer = request(&server.client(), "POST", path, &review).await.unwrap();
        if answer["status"]["allowed"] == allowed {
            return;
        }
        assert!(start.elapsed() < patience(), "{right:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn the_agents_rights_are_the_least() {
    with_server("the_agents_rights_are_the_least", async |server| {
        has_kinds(&server).await;
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}});
        request(&server.client(), "POST", "/api/v1/nodes", &node).await.unwrap();
        assert_eq!(trial(&server, "all", None).await, Ok(()));
        let all = ["ClusterRole", "Role"].map(|kind| rights(&of_kind(kind)["rules"])).concat();
        assert_eq!(all.len(), 11);
        let mut steps = Vec::new();
        for (number, right) in all.iter().enumerate() {
            let failed = trial(&server, &format!("without-{number}"), Some(right)).await;
            steps.push(failed.expect_err(&format!("{right:?} is not needed")));
            empty(&server).await;
        }
        assert_eq!(
            steps,
            [
                "it knows its node",
                "it reads a record",
                "it finds what its node holds",
                "it holds",
                "it releases",
                "what is empty is removed",
                "it looks for its tasks",
                "it hears of a task",
                "it leaves itself a task",
                "it ends a task",
                "it reports",
            ]
        );
    });
}

/// What a trial has left.
async fn empty(server: &ApiServer) {
    let client = server.client();
    let store = Arc::new(store_at(server.home.path(), &server.certificate(), &server.address()));
    waiting(move || {
        let _ = release(&*store, &holder("a", "1"));
    })
    .await;
    for kind in [KIND.to_owned(), KIND.replace("flexattachments", "flexdetachtasks")] {
        request(&client, "DELETE", &kind, &Value::Null).await.unwrap();
    }
}

fn object(sharing: Sharing, epoch: u64, holders: &[&Holder]) -> Value {
    let holders: Vec<Holder> = holders.iter().map(|&holder| holder.clone()).collect();
    let finalizers = if holders.is_empty() { json!([]) } else { json!(["flexvol.dev/held"]) };
    let record = Record { handle: HANDLE.to_owned(), sharing, epoch, holders };
    json!({
        "apiVersion": "flexvol.dev/v1alpha1",
        "kind": "FlexAttachment",
        "metadata": {"name": name_of(HANDLE), "finalizers": finalizers},
        "spec": record.to_json(),
    })
}

/// An API server with all that is printed.
struct Ruled {
    server: ApiServer,
    path: String,
}

impl Ruled {
    async fn over(server: ApiServer) -> Self {
        has_kinds(&server).await;
        let kinds = ["Role", "RoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];
        for object in kinds.map(of_kind) {
            request(&server.client(), "POST", &place(&object), &object).await.unwrap();
        }
        let ruled = Self { server, path: format!("{KIND}/{}", name_of(HANDLE)) };
        let foreign = object(Sharing::Exclusive, 0, &[&holder("b", "2")]);
        let start = Instant::now();
        // Until it is known, what is tried is only tried.
        let path = format!("{KIND}?dryRun=All");
        while request_as(&ruled.server.client(), AGENT, Some("a"), "POST", &path, &foreign).await.is_ok() {
            assert!(start.elapsed() < patience(), "the policy is not there");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        ruled
    }

    /// The record as an administrator sets it, whatever it was before.
    async fn is(&self, object: &Value) {
        let client = self.server.client();
        if let Ok(mut now) = request(&client, "GET", &self.path, &Value::Null).await {
            now["metadata"]["finalizers"] = json!([]);
            request(&client, "PUT", &self.path, &now).await.unwrap();
            request(&client, "DELETE", &self.path, &Value::Null).await.unwrap();
        }
        request(&client, "POST", KIND, object).await.unwrap();
    }

    /// What is said to an agent that writes this over what there is.
    async fn put(&self, node: Option<&str>, object: &Value) -> Result<(), String> {
        let client = self.server.client();
        let now = request(&client, "GET", &self.path, &Value::Null).await.unwrap();
        let mut object = object.clone();
        object["metadata"]["resourceVersion"] = now["metadata"]["resourceVersion"].clone();
        said(request_as(&client, AGENT, node, "PUT", &self.path, &object).await)
    }

    async fn ask(&self, node: Option<&str>, method: &str, path: &str, object: &Value) -> Result<(), String> {
        said(request_as(&self.server.client(), AGENT, node, method, path, object).await)
    }
}

fn said(answer: Result<Value, (u16, String)>) -> Result<(), String> {
    answer.map(drop).map_err(|(code, text)| format!("{code} {text}"))
}

fn refused(answer: &Result<(), String>, words: &str) {
    assert!(answer.as_ref().is_err_and(|text| text.contains(words)), "{answer:?} is not: {words}");
}

const OWN: &str = "own node alone";

/// Show 4.
#[test]
fn an_agent_touches_its_own_nodes_holders_alone() {
    with_server("an_agent_touches_its_own_nodes_holders_alone", async |server| {
        let ruled = Ruled::over(server).await;
        let (own, foreign) = (holder("a", "1"), holder("b", "2"));
        let reader = |of: &Holder| Holder { read_only: true, ..of.clone() };
        let (own_reader, other_reader) = (reader(&own), reader(&foreign));
        let (x, ro, rw) = (Sharing::Exclusive, Sharing::SharedReadOnly, Sharing::SharedReadWrite);
        let a = Some("a");
        // Nobody holds it.
        refused(&ruled.ask(a, "POST", KIND, &object(x, 0, &[&foreign])).await, OWN);
        refused(&ruled.ask(None, "POST", KIND, &object(x, 0, &[&own])).await, "names no node");
        ruled.ask(a, "POST", KIND, &object(x, 0, &[&own])).await.unwrap();
        // It does, itself.
        let mut without = object(x, 0, &[&own]);
        without["metadata"]["finalizers"] = json!([]);
        refused(&ruled.put(a, &without).await, "finalizer");
        refused(&ruled.put(a, &object(x, 2, &[&own])).await, "by one");
        refused(&ruled.put(Some("b"), &object(x, 1, &[&foreign])).await, OWN);
        refused(&ruled.put(None, &object(x, 0, &[])).await, "names no node");
        ruled.put(a, &object(x, 1, &[&own])).await.unwrap();
        ruled.put(a, &object(ro, 1, &[&own_reader])).await.unwrap();
        ruled.put(a, &object(ro, 1, &[])).await.unwrap();
        // Another node does.
        ruled.is(&object(x, 0, &[&foreign])).await;
        refused(&ruled.put(a, &object(x, 1, &[&own])).await, OWN);
        refused(&ruled.put(a, &object(x, 1, &[])).await, OWN);
        refused(&ruled.put(a, &object(rw, 0, &[&foreign])).await, "another node holds");
        refused(
            &ruled
                .put(a, &object(x, 0, &[&Holder { epoch: 0, device: "x".into(), ..foreign.clone() }]))
                .await,
            OWN,
        );
        refused(&ruled.ask(a, "DELETE", &ruled.path, &Value::Null).await, OWN);
        // Both do.
        ruled.is(&object(ro, 0, &[&other_reader])).await;
        ruled.put(a, &object(ro, 0, &[&other_reader, &own_reader])).await.unwrap();
        refused(&ruled.put(a, &object(ro, 0, &[&own_reader])).await, OWN);
        ruled.put(a, &object(ro, 0, &[&other_reader])).await.unwrap();
    });
}

/// With a token as kubelet asks for it: the API server knows from it where the agent runs.
#[test]
fn a_pods_own_token_names_its_node() {
    with_server("a_pods_own_token_names_its_node", async |server| {
        let ruled = Ruled::over(server).await;
        let (server, client) = (&ruled.server, ruled.server.client());
        let account = of_kind("ServiceAccount");
        request(&client, "POST", &place(&account), &account).await.unwrap();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}});
        request(&client, "POST", "/api/v1/nodes", &node).await.unwrap();
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "agent", "namespace": "default"},
            "spec": {"serviceAccountName": "flexvol-agent", "nodeName": "a", "containers": [{"name": "a", "image": "i"}]},
        });
        let pod = request(&client, "POST", "/api/v1/namespaces/default/pods", &pod).await.unwrap();
        let bound =
            json!({"kind": "Pod", "apiVersion": "v1", "name": "agent", "uid": pod["metadata"]["uid"]});
        let asked = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": [], "expirationSeconds": 3600, "boundObjectRef": bound}});
        let path = "/api/v1/namespaces/default/serviceaccounts/flexvol-agent/token";
        let answer = request(&client, "POST", path, &asked).await.unwrap();
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), answer["status"]["token"].as_str().unwrap()).unwrap();
        let store = store_at(home.path(), &server.certificate(), &server.address());
        let right =
            Right { group: "flexvol.dev".into(), resource: "flexattachments".into(), verb: "delete".into() };
        knows(server, AGENT, &right, true).await;
        waiting(move || {
            let elsewhere = mount(&store, "b", "2");
            assert!(elsewhere.is_err_and(|error| error.to_string().contains(OWN)));
            assert!(goes(&mount(&store, "a", "1")));
            assert_eq!(release(&store, &holder("a", "1")), Ok(Reply::Done));
        })
        .await;
    });
}

/// Show 4, for tasks.
#[test]
fn an_agent_ends_its_own_tasks_alone() {
    with_server("an_agent_ends_its_own_tasks_alone", async |server| {
        let ruled = Ruled::over(server).await;
        let tasks = KIND.replace("flexattachments", "flexdetachtasks");
        let task = |node: &str| {
            json!({
                "apiVersion": "flexvol.dev/v1alpha1",
                "kind": "FlexDetachTask",
                "metadata": {"name": node},
                "spec": {"reason": "NodeLost", "holder": holder(node, "1").to_json()},
            })
        };
        let a = Some("a");
        refused(&ruled.ask(a, "POST", &tasks, &task("b")).await, OWN);
        ruled.ask(a, "POST", &tasks, &task("a")).await.unwrap();
        request(&ruled.server.client(), "POST", &tasks, &task("b")).await.unwrap();
        refused(&ruled.ask(a, "DELETE", &format!("{tasks}/b"), &Value::Null).await, OWN);
        // What is said of it neither.
        let status = json!({"status": working().to_json()});
        for (name, allowed) in [("a", true), ("b", false)] {
            let path = format!("{tasks}/{name}/status");
            let answer = ruled.ask(a, "PATCH", &path, &status).await;
            if allowed { answer.unwrap() } else { refused(&answer, OWN) }
        }
        let client = ruled.server.client();
        let read = request(&client, "GET", &format!("{tasks}/a"), &Value::Null).await.unwrap();
        assert_eq!((&read["status"], &read["spec"]["reason"]), (&status["status"], &json!("NodeLost")));
        // Nor is what it is told to do a part of that.
        let other = json!({"spec": {"reason": "Forced"}, "status": {"phase": "Done"}});
        ruled.ask(a, "PATCH", &format!("{tasks}/a/status"), &other).await.unwrap();
        let read = request(&client, "GET", &format!("{tasks}/a"), &Value::Null).await.unwrap();
        assert_eq!((&read["status"]["phase"], &read["spec"]["reason"]), (&json!("Done"), &json!("NodeLost")));
        let unknown = json!({"status": {"phase": "Perhaps"}});
        refused(&ruled.ask(a, "PATCH", &format!("{tasks}/a/status"), &unknown).await, "422");
        // What a task says does not change.
        let mut changed =
            request(&ruled.server.client(), "GET", &format!("{tasks}/b"), &Value::Null).await.unwrap();
        changed["spec"]["reason"] = json!("PodGone");
        let said = request(&ruled.server.client(), "PUT", &format!("{tasks}/b"), &changed).await.unwrap_err();
        assert_eq!(said.0, 422, "{said:?}");
        ruled.ask(a, "DELETE", &format!("{tasks}/a"), &Value::Null).await.unwrap();
    });
}

/// Whoever has taken over a node has others unmount nothing by force.
#[test]
fn an_agent_marks_no_lock() {
    with_server("an_agent_marks_no_lock", async |server| {
        let ruled = Ruled::over(server).await;
        let (own, foreign) = (holder("a", "1"), holder("b", "2"));
        let marked = |of: &Holder| {
            let mut object = object(Sharing::Exclusive, 0, &[of]);
            object["metadata"]["annotations"] = json!({FORCE_DETACH: "true", "team": "db"});
            object
        };
        let words = "by force";
        refused(&ruled.ask(Some("a"), "POST", KIND, &marked(&own)).await, words);
        ruled.is(&object(Sharing::Exclusive, 0, &[&foreign])).await;
        refused(&ruled.put(Some("a"), &marked(&foreign)).await, words);
        // What an administrator has marked stays so, whatever an agent writes.
        ruled.is(&marked(&own)).await;
        refused(&ruled.put(Some("a"), &object(Sharing::Exclusive, 0, &[&own])).await, words);
        ruled.put(Some("a"), &marked(&own)).await.unwrap();
    });
}

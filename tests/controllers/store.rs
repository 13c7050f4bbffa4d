//! Locks as objects of a real API server: what every store has to do, what is lost on the way, and
//! what the API server itself refuses.

use super::api_server::{ApiServer, patience};
use super::proxy::{Cut, Proxy, Way};
use super::store_contract::{Always, HANDLE, ask, goes, holder, is_a_store, mount, release, soon};
use super::with_server;
use flexvol_cluster::controllers::client::Place;
use flexvol_cluster::fence::decide::{Reason, Reply};
use flexvol_cluster::fence::record::{Holder, Record};
use flexvol_cluster::fence::request::{Left, Request};
use flexvol_cluster::fence::sharing::Sharing;
use flexvol_cluster::fence::store::kubernetes::{KubernetesStore, name_of};
use flexvol_cluster::fence::store::{Read, RecordStore, StoreError};
use flexvol_cluster::manifest::crds::crds;
use kube::Client;
use serde_json::{Value, json};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) const KIND: &str = "/apis/flexvol.dev/v1alpha1/namespaces/default/flexattachments";

/// What the API server answers, or its code and what it says.
pub(crate) async fn request(
    client: &Client,
    method: &str,
    path: &str,
    body: &Value,
) -> Result<Value, (u16, String)> {
    answer(client, http::Request::builder(), method, path, body).await
}

/// The same, as an agent of a node says it.
pub(crate) async fn request_as(
    client: &Client,
    user: &str,
    node: Option<&str>,
    method: &str,
    path: &str,
    body: &Value,
) -> Result<Value, (u16, String)> {
    let builder = http::Request::builder().header("impersonate-user", user);
    let key = "impersonate-extra-authentication.kubernetes.io%2fnode-name";
    let builder = node.into_iter().fold(builder, |builder, node| builder.header(key, node));
    answer(client, builder, method, path, body).await
}

async fn answer(
    client: &Client,
    request: http::request::Builder,
    method: &str,
    path: &str,
    body: &Value,
) -> Result<Value, (u16, String)> {
    let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = request.method(method).uri(path).header("content-type", kind);
    match client.request::<Value>(request.body(bytes).unwrap()).await {
        Ok(answer) => Ok(answer),
        Err(kube::Error::Api(status)) => Err((status.code, status.message.clone())),
        Err(error) => panic!("{error}"),
    }
}

/// Makes both kinds, and waits until they are served.
pub(crate) async fn has_kinds(server: &ApiServer) {
    server.has_namespaces().await;
    let client = server.client();
    for crd in crds() {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        request(&client, "POST", path, &crd).await.unwrap();
    }
    let start = Instant::now();
    for kind in [KIND.to_owned(), KIND.replace("flexattachments", "flexdetachtasks")] {
        while request(&client, "GET", &kind, &Value::Null).await.is_err() {
            assert!(start.elapsed() < patience());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

pub(crate) fn store_at(home: &Path, authority: &Path, address: &str) -> KubernetesStore {
    let place =
        Place { server: address.to_owned(), authority: authority.to_owned(), token: home.join("token") };
    KubernetesStore::open(&place, "default").unwrap()
}

/// A store whose requests pass a proxy.
async fn behind(server: &ApiServer) -> (Arc<KubernetesStore>, Proxy) {
    let proxy = Proxy::listen(server.client()).await;
    let store = store_at(server.home.path(), &server.certificate(), &proxy.address());
    (Arc::new(store), proxy)
}

/// In a thread that may wait.
pub(crate) async fn waiting<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[test]
fn t1_t3_t8_t23_t24_in_kubernetes() {
    with_server("t1_t3_t8_t23_t24_in_kubernetes", async |server| {
        has_kinds(&server).await;
        let store = store_at(server.home.path(), &server.certificate(), &server.address());
        // Each tries until it has won against all others: a hundred take minutes.
        waiting(move || is_a_store(&store, 24)).await;
    });
}

/// Four are waited for; then what is empty is removed.
#[test]
fn hold_and_release_are_four_round_trips() {
    with_server("hold_and_release_are_four_round_trips", async |server| {
        has_kinds(&server).await;
        let (store, proxy) = behind(&server).await;
        let one = Arc::clone(&store);
        waiting(move || assert!(goes(&mount(&*one, "a", "1")))).await;
        let object = format!("{KIND}/{}", name_of(HANDLE));
        let held = request(&server.client(), "GET", &object, &Value::Null).await.unwrap();
        assert_eq!(held["metadata"]["finalizers"], json!(["flexvol.dev/held"]));
        // Whoever deletes it does not take the lock.
        request(&server.client(), "DELETE", &object, &Value::Null).await.unwrap();
        let two = Arc::clone(&store);
        waiting(move || assert!(!goes(&mount(&*two, "b", "2")))).await;
        proxy.requests();
        let three = Arc::clone(&store);
        waiting(move || assert_eq!(release(&*three, &holder("a", "1")), Ok(Reply::Done))).await;
        assert_eq!(request(&server.client(), "GET", &object, &Value::Null).await.unwrap_err().0, 404);
        proxy.requests();
        let four = Arc::clone(&store);
        waiting(move || {
            assert!(goes(&mount(&*four, "a", "1")));
            assert_eq!(release(&*four, &holder("a", "1")), Ok(Reply::Done));
        })
        .await;
        let mut asked = proxy.requests();
        let start = Instant::now();
        while asked.len() < 4 && start.elapsed() < patience() {
            tokio::time::sleep(Duration::from_millis(20)).await;
            asked.extend(proxy.requests());
        }
        let methods: Vec<_> = asked.iter().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(methods, ["POST", "GET", "PUT", "DELETE"], "{asked:?}");
        while request(&server.client(), "GET", &object, &Value::Null).await.is_ok() {
            assert!(start.elapsed() < patience(), "what is empty stays");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

/// Tests 2, 4, 24 and 26: each request and each answer of a hold and a release is lost once.
#[test]
fn t2_t4_t24_what_is_lost_is_found_out() {
    with_server("t2_t4_t24_what_is_lost_is_found_out", async |server| {
        has_kinds(&server).await;
        let (store, proxy) = behind(&server).await;
        for way in [Way::Lost, Way::Killed] {
            for at in 1..=5 {
                for cut in [Cut::Before(at), Cut::After(at)] {
                    if way == Way::Killed && (at > 4 || cut == Cut::Before(at)) {
                        // One that is silent costs seconds.
                        continue;
                    }
                    proxy.cut_so(Some(cut), way);
                    let store = Arc::clone(&store);
                    waiting(move || {
                        assert!((0..3).any(|_| goes(&mount(&*store, "a", "1"))), "{way:?} {cut:?}");
                        let read = store.read(HANDLE, soon()).unwrap();
                        assert_eq!(read.record.unwrap().holders.len(), 1, "{way:?} {cut:?}");
                        assert!(!goes(&mount(&*store, "b", "2")), "{way:?} {cut:?}");
                        assert!((0..3).any(|_| release(&*store, &holder("a", "1")) == Ok(Reply::Done)));
                        assert_eq!(store.read(HANDLE, soon()).unwrap().record, None, "{way:?} {cut:?}");
                    })
                    .await;
                }
            }
        }
    });
}

/// An API server that has no time is asked again, and no longer than there is time.
#[test]
fn a_busy_server_is_asked_again() {
    with_server("a_busy_server_is_asked_again", async |server| {
        has_kinds(&server).await;
        let (store, proxy) = behind(&server).await;
        for busy in [1, 3] {
            proxy.is_busy(busy);
            let store = Arc::clone(&store);
            waiting(move || assert!(goes(&mount(&*store, "a", "1")))).await;
        }
        proxy.is_busy(usize::MAX);
        waiting(move || {
            let start = Instant::now();
            let read = store.read(HANDLE, start + Duration::from_secs(2));
            assert!(matches!(read, Err(StoreError::Failed(_))), "{read:?}");
            // It would never end.
            assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
        })
        .await;
    });
}

/// Test 26 and (f) of the shows: a server that is dead, or only silent, costs no more than the
/// deadline, and nothing is held.
#[test]
fn t26_a_dead_server_costs_its_deadline() {
    let home = tempfile::tempdir().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    std::fs::write(home.path().join("token"), "t").unwrap();
    let ca = std::process::Command::new("openssl")
        .args([
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=ca", "-keyout", "key", "-out",
            "ca",
        ])
        .current_dir(home.path())
        .output()
        .unwrap();
    assert!(ca.status.success(), "{ca:?}");
    for address in [silent.local_addr().unwrap(), closed] {
        let store = store_at(home.path(), &home.path().join("ca"), &format!("http://{address}"));
        let start = Instant::now();
        let read = store.read(HANDLE, start + Duration::from_secs(1));
        assert!(matches!(&read, Err(StoreError::Failed(why)) if why.contains("API server")), "{read:?}");
        let until = Instant::now() + Duration::from_secs(1);
        let written = store.write(HANDLE, &Read::default(), Some(&Record::free(HANDLE)), until);
        assert!(matches!(written, Err(StoreError::Unsure(_))), "{written:?}");
        // Without a deadline each would try for four seconds.
        assert!(start.elapsed() < Duration::from_secs(7), "{:?}", start.elapsed());
    }
}

/// Without the kinds nothing is free: it is said what is missing.
#[test]
fn without_its_kinds_nothing_is_held() {
    with_server("without_its_kinds_nothing_is_held", async |server| {
        server.has_namespaces().await;
        let (store, _proxy) = behind(&server).await;
        waiting(move || {
            let Err(StoreError::Failed(why)) = mount(&*store, "a", "1") else { panic!("it was held") };
            assert!(why.contains("flexvold manifest agent"), "{why}");
        })
        .await;
    });
}

/// What others write into a lock stays, and one that is deleted is given to nobody any more; its
/// holder's retry neither, and its release removes it.
#[test]
fn a_lock_that_is_deleted_goes_with_its_holder() {
    with_server("a_lock_that_is_deleted_goes_with_its_holder", async |server| {
        has_kinds(&server).await;
        let (store, _proxy) = behind(&server).await;
        let (path, client) = (format!("{KIND}/{}", name_of(HANDLE)), server.client());
        let one = Arc::clone(&store);
        waiting(move || assert!(goes(&mount(&*one, "a", "1")))).await;
        let written = json!({"metadata": {"labels": {"team": "db"}, "annotations": {"why": "not"},
            "finalizers": ["example.com/backup", "flexvol.dev/held"]}});
        request(&client, "PATCH", &path, &written).await.unwrap();
        let one = Arc::clone(&store);
        waiting(move || assert!(goes(&mount(&*one, "a", "1")))).await;
        let read = request(&client, "GET", &path, &Value::Null).await.unwrap();
        let metadata = &read["metadata"];
        assert_eq!(
            (&metadata["labels"]["team"], &metadata["annotations"]["why"]),
            (&json!("db"), &json!("not"))
        );
        assert_eq!(metadata["finalizers"], json!(["example.com/backup", "flexvol.dev/held"]));
        assert_eq!(metadata["labels"].as_object().unwrap().len(), 2, "{metadata}");
        request(&client, "DELETE", &path, &Value::Null).await.unwrap();
        let one = Arc::clone(&store);
        waiting(move || {
            for (node, pod) in [("b", "2"), ("a", "1")] {
                let Ok(Reply::Refused(refusal)) = mount(&*one, node, pod) else { panic!("it was held") };
                assert_eq!(refusal.reason, Reason::Draining);
            }
            assert_eq!(release(&*one, &holder("a", "1")), Ok(Reply::Done));
            // As long as somebody else keeps the object.
            assert!(!goes(&mount(&*one, "b", "2")));
        })
        .await;
        let read = request(&client, "GET", &path, &Value::Null).await.unwrap();
        assert_eq!(read["metadata"]["finalizers"], json!(["example.com/backup"]));
        request(&client, "PATCH", &path, &json!({"metadata": {"finalizers": null}})).await.unwrap();
        waiting(move || assert!(goes(&mount(&*store, "b", "2")))).await;
    });
}

fn object(record: &Record) -> Value {
    json!({
        "apiVersion": "flexvol.dev/v1alpha1",
        "kind": "FlexAttachment",
        "metadata": {"name": name_of(HANDLE)},
        "spec": record.to_json(),
    })
}

/// Test 56: what an agent with a mistake would write.
#[test]
fn t56_the_server_refuses_what_must_never_be() {
    with_server("t56_the_server_refuses_what_must_never_be", async |server| {
        has_kinds(&server).await;
        let client = server.client();
        let path = format!("{KIND}/{}", name_of(HANDLE));
        let record = |sharing, epoch, holders: &[Holder]| Record {
            handle: HANDLE.to_owned(),
            sharing,
            epoch,
            holders: holders.to_vec(),
        };
        let (a, b) = (holder("a", "1"), holder("b", "2"));
        let reader = |of: &Holder| Holder { read_only: true, ..of.clone() };
        let late = Holder { epoch: 3, ..a.clone() };
        let (x, n) = (Sharing::Exclusive, Sharing::ExclusivePerNode);
        let (ro, rw) = (Sharing::SharedReadOnly, Sharing::SharedReadWrite);
        // Each from the one before that was taken.
        let steps = [
            (record(x, 2, &[a.clone(), b.clone()]), Some("has one holder")),
            (record(x, 2, &[late]), Some("not reached yet")),
            (record(x, 2, std::slice::from_ref(&a)), None),
            (record(x, 1, std::slice::from_ref(&a)), Some("epoch never falls")),
            (record(n, 2, &[a.clone(), b.clone()]), Some("on one node")),
            (record(ro, 2, &[reader(&a)]), None),
            (record(ro, 2, &[reader(&a), b.clone()]), Some("has no writer")),
            (record(ro, 2, &[reader(&a), reader(&b)]), None),
            (record(rw, 2, &[reader(&a), reader(&b)]), Some("others hold it")),
            (record(ro, 2, &[reader(&a), reader(&a)]), Some("Duplicate value")),
            (Record { handle: "rbd:other".to_owned(), ..record(ro, 2, &[reader(&a)]) }, Some("for ever")),
            (record(ro, 3, &[]), None),
        ];
        for (number, (next, refused)) in steps.iter().enumerate() {
            let mut wanted = object(next);
            let now = request(&client, "GET", &path, &Value::Null).await;
            let written = match now {
                Err(_) => request(&client, "POST", KIND, &wanted).await,
                Ok(now) => {
                    wanted["metadata"]["resourceVersion"] = now["metadata"]["resourceVersion"].clone();
                    request(&client, "PUT", &path, &wanted).await
                }
            };
            match refused {
                None => drop(written.unwrap()),
                Some(words) => {
                    let (code, said) = written.expect_err(&number.to_string());
                    assert!(code == 422 && said.contains(words), "{number}: {code} {said}");
                }
            }
        }
        for key in ["volumeHandle", "policy", "epoch", "holders"] {
            let mut without = object(&record(x, 0, &[]));
            without["spec"].as_object_mut().unwrap().remove(key);
            assert_eq!(request(&client, "POST", KIND, &without).await.unwrap_err().0, 422, "{key}");
        }
    });
}

/// What an object says that no agent has written is no free storage, and one of another storage
/// neither.
#[test]
fn t33_a_damaged_object_grants_nothing() {
    with_server("t33_a_damaged_object_grants_nothing", async |server| {
        has_kinds(&server).await;
        let client = server.client();
        let mut other = object(&Record::free("rbd:other"));
        other["metadata"]["name"] = json!(name_of(HANDLE));
        request(&client, "POST", KIND, &other).await.unwrap();
        let (store, _proxy) = behind(&server).await;
        waiting(move || {
            assert!(matches!(mount(&*store, "a", "1"), Err(StoreError::Failed(_))));
            let request = Request::EndUnmount { id: holder("a", "1").id, left: Left::Nothing };
            assert!(matches!(ask(&*store, &request, &Always::default()), Err(StoreError::Failed(_))));
        })
        .await;
    });
}

/// As docs/agent.md says it: the next one holds under a higher epoch.
#[test]
fn an_administrator_takes_what_a_dead_node_holds() {
    with_server("an_administrator_takes_what_a_dead_node_holds", async |server| {
        has_kinds(&server).await;
        let (store, _proxy) = behind(&server).await;
        let first = Arc::clone(&store);
        waiting(move || assert!(goes(&mount(&*first, "a", "1")))).await;
        let patch = json!([
            {"op": "test", "path": "/spec/holders/0/node", "value": "a"},
            {"op": "test", "path": "/spec/epoch", "value": 0},
            {"op": "remove", "path": "/spec/holders/0"},
            {"op": "replace", "path": "/spec/epoch", "value": 1},
        ]);
        let patch = http::Request::patch(format!("{KIND}/{}", name_of(HANDLE)))
            .header("content-type", "application/json-patch+json")
            .body(patch.to_string().into_bytes());
        server.client().request::<Value>(patch.unwrap()).await.unwrap();
        waiting(move || {
            assert_eq!(mount(&*store, "b", "2"), Ok(Reply::Go { epoch: 1 }));
            assert!(!goes(&mount(&*store, "a", "1")));
        })
        .await;
    });
}

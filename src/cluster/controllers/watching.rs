//! Keeps the objects of a kind as the API server has them: asks for all, and for what changes after
//! that, for ever.
//!
//! A watch goes on from where the last one ended, also when the API server was away. All are asked
//! for again when it says that it cannot tell what happened since.

use super::api;
use super::cache::{Watchable, number};
use super::watches::{Objects, Told};
use futures_util::TryStreamExt as _;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Error, Resource};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Objects in one answer.
const PAGE: u32 = 200;

/// The API server ends a watch after so many seconds.
const LASTS: u32 = 290;

/// A watch that is silent for longer than it lasts is dead.
const SILENT: Duration = Duration::from_secs(LASTS as u64 + 20);

/// After the first failure, and the longest pause.
const FIRST: Duration = Duration::from_millis(100);
const LAST: Duration = Duration::from_secs(5);

/// One kind.
struct Kept<K> {
    api: Api<K>,
    objects: Arc<Objects<K>>,
    /// Up to where all is known.
    version: Option<String>,
    failures: u32,
}

impl<K: Watchable> Objects<K> {
    /// Watches them from now on, unless they are watched already.
    pub fn begin(self: &Arc<Self>, client: &Client) {
        if self.may_begin() {
            tokio::spawn(keep(Api::all(client.clone()), Arc::clone(self)));
        }
    }
}

impl<K: Watchable + Resource<Scope = NamespaceResourceScope>> Objects<K> {
    /// Watches those of a namespace from now on, unless they are watched already.
    pub fn begin_in(self: &Arc<Self>, client: &Client, namespace: &str) {
        if self.may_begin() {
            tokio::spawn(keep(Api::namespaced(client.clone(), namespace), Arc::clone(self)));
        }
    }
}

/// Keeps them, for ever.
async fn keep<K: Watchable>(api: Api<K>, objects: Arc<Objects<K>>) {
    let mut kept = Kept { api, objects, version: None, failures: 0 };
    loop {
        if let Err(error) = kept.follow().await {
            tracing::warn!(kind = %K::kind(&()), reason = api::reason(&error), "cannot watch");
            if !is_passing(&error) {
                kept.version = None;
            }
        }
        tokio::time::sleep(FIRST.saturating_mul(2_u32.saturating_pow(kept.failures)).min(LAST)).await;
        kept.failures = kept.failures.saturating_add(1);
    }
}

impl<K: Watchable> Kept<K> {
    /// Until a watch ends.
    async fn follow(&mut self) -> Result<(), Error> {
        let version = match &self.version {
            Some(version) => version.clone(),
            None => self.list().await?,
        };
        let params = WatchParams::default().timeout(LASTS);
        let mut events = pin!(self.api.watch(&params, &version).await?);
        while let Some(event) = timeout(SILENT, events.try_next()).await.map_err(silent)?? {
            let (version, told) = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    (object.meta().resource_version.clone(), Told::Is(Box::new(object)))
                }
                WatchEvent::Deleted(object) => {
                    (object.meta().resource_version.clone(), Told::Gone(Box::new(object)))
                }
                WatchEvent::Bookmark(mark) => {
                    let version = mark.metadata.resource_version;
                    let told = Told::Still(number(&version));
                    (Some(version), told)
                }
                WatchEvent::Error(status) => return Err(Error::Api(status)),
            };
            self.objects.told(told);
            (self.version, self.failures) = (version, 0);
        }
        self.failures = 0;
        Ok(())
    }

    /// Asks for all, page by page.
    async fn list(&mut self) -> Result<String, Error> {
        self.objects.told(Told::Lists);
        let mut params = ListParams::default().limit(PAGE);
        let version = loop {
            let page = self.api.list(&params).await?;
            self.objects.told(Told::Page(page.items));
            match page.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => params.continue_token = Some(next),
                None => break page.metadata.resource_version.unwrap_or_default(),
            }
        };
        self.objects.told(Told::Listed(number(&version)));
        self.version = Some(version.clone());
        Ok(version)
    }
}

/// Whether a watch may go on where it ended: the connection broke, or the API server is busy.
fn is_passing(error: &Error) -> bool {
    match error {
        Error::Api(status) => matches!(status.code, 429 | 503),
        error => matches!(error, Error::Service(_) | Error::HyperError(_) | Error::ReadEvents(_)),
    }
}

fn silent(_: tokio::time::error::Elapsed) -> Error {
    Error::Service("the API server is silent".into())
}

#[cfg(test)]
mod tests {
    use super::super::requests::Clients;
    use super::super::watches::Watches;
    use super::*;
    use http::{Request, Response};
    use http_body_util::combinators::UnsyncBoxBody;
    use http_body_util::{BodyExt as _, StreamBody};
    use hyper::body::{Bytes, Frame};
    use kube::ResourceExt as _;
    use kube::client::Body;
    use serde_json::{Value, json};
    use std::collections::VecDeque;
    use std::sync::Mutex;
    use tokio_stream::wrappers::UnboundedReceiverStream;
    use tower::service_fn;

    /// What the API server answers to a request.
    enum Answer {
        /// A code and a document.
        Whole(u16, Value),
        /// Lines of a watch; then its end, a broken connection, or nothing for ever.
        Lines(Vec<Value>, Then),
    }

    #[derive(Clone, Copy)]
    enum Then {
        Ends,
        Breaks,
        Silence,
    }

    type Sent = UnsyncBoxBody<Bytes, std::io::Error>;

    fn answer(answer: Answer) -> Response<Sent> {
        let (code, lines, then) = match answer {
            Answer::Whole(code, document) => (code, vec![document], Then::Ends),
            Answer::Lines(lines, then) => (200, lines, then),
        };
        let (send, lines_of) = tokio::sync::mpsc::unbounded_channel();
        for line in lines {
            send.send(Ok(Frame::data(Bytes::from(format!("{line}\n"))))).unwrap();
        }
        match then {
            Then::Ends => (),
            Then::Breaks => send.send(Err(std::io::Error::other("reset"))).unwrap(),
            Then::Silence => drop(tokio::spawn(async move {
                std::future::pending::<()>().await;
                drop(send);
            })),
        }
        let body = StreamBody::new(UnboundedReceiverStream::new(lines_of));
        Response::builder().status(code).body(body.boxed_unsync()).unwrap()
    }

    fn node(name: &str, version: &str) -> Value {
        json!({ "metadata": { "name": name, "resourceVersion": version }, "spec": { "drivers": [] } })
    }

    fn list(version: &str, next: &str, items: &[Value]) -> Answer {
        let metadata = json!({ "resourceVersion": version, "continue": next });
        Answer::Whole(
            200,
            json!({ "apiVersion": "storage.k8s.io/v1", "kind": "CSINodeList", "metadata": metadata, "items": items }),
        )
    }

    fn event(kind: &str, object: &Value) -> Value {
        json!({ "type": kind, "object": object })
    }

    fn failure(code: u16) -> Value {
        json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "no", "code": code, "reason": "Other" })
    }

    fn mark(version: &str) -> Value {
        let metadata = json!({ "resourceVersion": version });
        event(
            "BOOKMARK",
            &json!({ "kind": "CSINode", "apiVersion": "storage.k8s.io/v1", "metadata": metadata }),
        )
    }

    /// What was asked, for whom it is known in the end, when all answers are given.
    async fn played(answers: Vec<Answer>) -> (Vec<String>, Vec<String>) {
        let (answers, asked) =
            (Arc::new(Mutex::new(VecDeque::from(answers))), Arc::new(Mutex::new(Vec::new())));
        let of_service = (Arc::clone(&answers), Arc::clone(&asked));
        let service = service_fn(move |request: Request<Body>| {
            let (answers, asked) = of_service.clone();
            async move {
                let query = request.uri().query().unwrap_or_default().to_owned();
                let kept = query.split('&').filter(|part| {
                    ["resourceVersion=", "continue=", "watch="].iter().any(|name| part.starts_with(name))
                });
                let next = answers.lock().unwrap().pop_front();
                let Some(next) = next else { return std::future::pending().await };
                asked.lock().unwrap().push(kept.collect::<Vec<_>>().join(" "));
                Ok::<_, std::io::Error>(answer(next))
            }
        });
        let (watches, clients) = (Watches::default(), Clients::over(&service, "default"));
        watches.csi_nodes.begin(&clients.objects);
        watches.csi_nodes.begin(&clients.objects);
        let begun = tokio::time::Instant::now();
        while !answers.lock().unwrap().is_empty() {
            assert!(begun.elapsed() < Duration::from_hours(1), "{:?}", asked.lock().unwrap());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut known: Vec<_> = watches
            .csi_nodes
            .all()
            .iter()
            .map(|node| node.name_any() + &node.resource_version().unwrap_or_default())
            .collect();
        known.sort();
        let asked = asked.lock().unwrap().clone();
        (asked, known)
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_goes_on_where_it_ended() {
        let (asked, known) = played(vec![
            list("5", "more", &[node("a", "1")]),
            list("5", "", &[node("b", "2")]),
            Answer::Lines(
                vec![event("ADDED", &node("c", "6")), event("MODIFIED", &node("a", "7"))],
                Then::Ends,
            ),
            Answer::Lines(vec![event("DELETED", &node("b", "8"))], Then::Breaks),
            Answer::Lines(vec![mark("20")], Then::Silence),
            Answer::Whole(503, failure(503)),
            Answer::Lines(vec![event("MODIFIED", &node("c", "21"))], Then::Silence),
        ])
        .await;
        let watch = |version: &str| format!("watch=true resourceVersion={version}");
        assert_eq!(
            asked,
            ["", "continue=more", &watch("5"), &watch("7"), &watch("8"), &watch("20"), &watch("20")]
        );
        assert_eq!(known, ["a7", "c21"]);
    }

    #[tokio::test(start_paused = true)]
    async fn all_are_asked_for_when_it_cannot_go_on() {
        for end in [
            Answer::Lines(vec![event("ERROR", &failure(410))], Then::Ends),
            Answer::Whole(410, failure(410)),
            Answer::Lines(vec![json!({ "type": "MODIFIED", "object": 7 })], Then::Ends),
        ] {
            let (asked, known) = played(vec![
                list("5", "", &[node("a", "1"), node("b", "2")]),
                end,
                list("9", "", &[node("b", "8")]),
                Answer::Lines(vec![], Then::Silence),
            ])
            .await;
            let watches = ["watch=true resourceVersion=5", "watch=true resourceVersion=9"];
            assert_eq!(asked, ["", watches[0], "", watches[1]]);
            assert_eq!(known, ["b8"]);
        }
    }

    /// Lists are large: a watch that is not allowed must not have them asked for all the time.
    #[tokio::test(start_paused = true)]
    async fn a_watch_that_never_begins_is_asked_for_ever_more_rarely() {
        let rounds = 8;
        let answers = (0..rounds).flat_map(|_| [list("5", "", &[]), Answer::Whole(403, failure(403))]);
        let begun = tokio::time::Instant::now();
        let (asked, _) = played(answers.collect()).await;
        assert_eq!(asked.len(), 2 * rounds);
        assert!(begun.elapsed() > 2 * LAST, "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_fails_is_asked_for_again() {
        let (asked, known) = played(vec![
            Answer::Whole(403, failure(403)),
            list("5", "more", &[node("a", "1")]),
            Answer::Whole(410, failure(410)),
            list("7", "", &[node("b", "6")]),
            Answer::Lines(vec![], Then::Silence),
        ])
        .await;
        assert_eq!(asked, ["", "", "continue=more", "", "watch=true resourceVersion=7"]);
        assert_eq!(known, ["b6"]);
    }
}

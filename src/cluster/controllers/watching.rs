//! Reflector: keeps the objects of a kind as the API server has them. It lists them all, then
//! watches what changes, for ever.
//!
//! A watch continues where the last one ended, even if the API server was away. All objects are
//! listed again when the API server says that it no longer knows the changes since then.
//!
//! Requests and answers are text here, so that the loop is compiled once and not for each kind;
//! only [`Store`] knows the kind.

use super::api;
use super::cache::{Watchable, number};
use super::watches::{Objects, Told};
use flexvol_protocol::backoff;
use futures_util::{AsyncBufReadExt as _, TryStreamExt as _};
use kube::api::{ListMeta, ListParams, ObjectList, WatchEvent, WatchParams};
use kube::core::{NamespaceResourceScope, Request};
use kube::{Client, Error, Resource};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Limit for the objects in one answer.
const PAGE: u32 = 200;

/// Duration of a watch, in seconds: the API server ends it then.
const LASTS: u32 = 290;

/// Limit for silence: a watch that is silent for longer than it lasts is dead.
const SILENT: Duration = Duration::from_secs(LASTS as u64 + 20);

/// Pause after the first failure, and longest pause.
const FIRST: Duration = Duration::from_millis(100);
const LAST: Duration = Duration::from_secs(5);

/// Store of one kind of objects, which takes them as JSON.
trait Store: Send + Sync {
    /// Returns the name of the kind.
    fn kind(&self) -> String;
    /// Begins a list.
    fn begins(&self);
    /// Adds a page of the list.
    fn page(&self, text: &str) -> Result<ListMeta, Error>;
    /// Ends the list, which is complete as of this version.
    fn ends(&self, version: &str);
    /// Handles an event of the watch; returns the version up to which all is known now.
    fn event(&self, line: &str) -> Result<Option<String>, Error>;
}

impl<K: Watchable> Store for Objects<K> {
    fn kind(&self) -> String {
        K::kind(&()).into_owned()
    }

    fn begins(&self) {
        self.told(Told::Lists);
    }

    fn page(&self, text: &str) -> Result<ListMeta, Error> {
        let page: ObjectList<K> = serde_json::from_str(text).map_err(Error::SerdeError)?;
        self.told(Told::Page(page.items));
        Ok(page.metadata)
    }

    fn ends(&self, version: &str) {
        self.told(Told::Listed(number(version)));
    }

    fn event(&self, line: &str) -> Result<Option<String>, Error> {
        let (version, told) = match serde_json::from_str(line).map_err(Error::SerdeError)? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                (K::meta(&object).resource_version.clone(), Told::Is(Box::new(object)))
            }
            WatchEvent::Deleted(object) => {
                (K::meta(&object).resource_version.clone(), Told::Gone(Box::new(object)))
            }
            WatchEvent::Bookmark(mark) => {
                let version = mark.metadata.resource_version;
                let told = Told::Still(number(&version));
                (Some(version), told)
            }
            WatchEvent::Error(status) => return Err(Error::Api(status)),
        };
        self.told(told);
        Ok(version)
    }
}

impl<K: Watchable> Objects<K> {
    /// Watches these objects from now on, unless they are watched already.
    pub fn begin(self: &Arc<Self>, client: &Client) {
        self.begin_at(client, K::url_path(&(), None));
    }

    fn begin_at(self: &Arc<Self>, client: &Client, path: String) {
        if self.may_begin() {
            tokio::spawn(Reflector::new(client.clone(), path, Arc::clone(self) as _).run());
        }
    }
}

impl<K: Watchable + Resource<Scope = NamespaceResourceScope>> Objects<K> {
    /// Watches the objects of a namespace from now on, unless they are watched already.
    pub fn begin_in(self: &Arc<Self>, client: &Client, namespace: &str) {
        self.begin_at(client, K::url_path(&(), Some(namespace)));
    }
}

/// List and watch of one kind.
struct Reflector {
    client: Client,
    requests: Request,
    store: Arc<dyn Store>,
    /// Version up to which all is known.
    version: Option<String>,
    failures: u32,
}

impl Reflector {
    fn new(client: Client, path: String, store: Arc<dyn Store>) -> Self {
        Self { client, requests: Request::new(path), store, version: None, failures: 0 }
    }

    /// Lists and watches, for ever.
    async fn run(mut self) {
        loop {
            if let Err(error) = self.follow().await {
                tracing::warn!(kind = self.store.kind(), reason = api::reason(&error), "cannot watch");
                if !is_passing(&error) {
                    self.version = None;
                }
            }
            tokio::time::sleep(backoff(FIRST, LAST, self.failures)).await;
            self.failures = self.failures.saturating_add(1);
        }
    }

    /// Follows the objects until a watch ends.
    async fn follow(&mut self) -> Result<(), Error> {
        let version = match self.version.take() {
            Some(version) => version,
            None => self.list().await?,
        };
        let params = WatchParams::default().timeout(LASTS);
        let request = self.requests.watch(&params, &version).map_err(Error::BuildRequest)?;
        self.version = Some(version);
        let mut lines = pin!(self.client.request_stream(request).await?.lines());
        while let Some(line) =
            timeout(SILENT, lines.try_next()).await.map_err(silent)?.map_err(Error::ReadEvents)?
        {
            match self.store.event(&line) {
                // The connection ended within an event: the next watch delivers it again.
                Err(Error::SerdeError(error)) if error.is_eof() => break,
                told => (self.version, self.failures) = (told?, 0),
            }
        }
        self.failures = 0;
        Ok(())
    }

    /// Lists all objects, page by page.
    async fn list(&mut self) -> Result<String, Error> {
        self.store.begins();
        let mut params = ListParams::default().limit(PAGE);
        let version = loop {
            let request = self.requests.list(&params).map_err(Error::BuildRequest)?;
            let page = self.store.page(&self.client.request_text(request).await?)?;
            match page.continue_.filter(|next| !next.is_empty()) {
                Some(next) => params.continue_token = Some(next),
                None => break page.resource_version.unwrap_or_default(),
            }
        };
        self.store.ends(&version);
        Ok(version)
    }
}

/// Returns true for errors after which a watch resumes where it ended: a broken connection, or a
/// busy API server.
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

    /// Answer of the API server to one request.
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

    /// Plays all answers; returns the requests, and the objects known at the end.
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
        let (watches, clients) = (Watches::default(), Clients::over(&service, &service, "default"));
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

    /// Lists are large: a forbidden watch must not cause a new list all the time.
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

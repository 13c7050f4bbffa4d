//! What stands between a controller and the API server: counts requests, holds one back or ends the
//! controller at it, and knows which rights were used.

use super::pace::{deadline, slow_seconds};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// Which request is cut short: before the API server gets it, or when it has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Before(usize),
    After(usize),
}

/// What happens there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Way {
    /// The controller is to end.
    #[default]
    Killed,
    /// The connection breaks.
    Lost,
}

#[derive(Default)]
struct State {
    /// The requests so far, those of leases and watches not among them.
    requests: Vec<String>,
    cut: Option<Cut>,
    way: Way,
    /// The next request of this method, and whose path has this, is held back.
    held: Option<(&'static str, String)>,
    /// Whom the API server takes the controller for: else for an admin.
    user: Option<String>,
    /// So many requests are answered that there is no time for them.
    busy: usize,
    /// What the API server has allowed it, and what not.
    allowed: BTreeMap<Right, usize>,
    refused: BTreeSet<Right>,
    /// Requests of all kinds, but of leases, that came and that were answered.
    came: usize,
    answered: usize,
}

/// What is allowed in a cluster: a group, a resource and a verb.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Right {
    pub(crate) group: String,
    pub(crate) resource: String,
    pub(crate) verb: String,
}

impl Right {
    /// What a request asks for; none, if it is for no object.
    fn of(request: &Request<Incoming>) -> Option<Self> {
        let parts: Vec<_> = request.uri().path().trim_matches('/').split('/').collect();
        let (group, rest) = match &parts[..] {
            ["api", _, rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            _ => return None,
        };
        let rest = match rest {
            ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
            rest => rest,
        };
        let (resource, named) = match rest {
            [] => return None,
            [resource] => ((*resource).to_owned(), false),
            [resource, _] => ((*resource).to_owned(), true),
            [resource, _, below, ..] => (format!("{resource}/{below}"), true),
        };
        let watches = request.uri().query().is_some_and(|query| query.contains("watch="));
        let verb = match request.method().as_str() {
            "GET" if watches => "watch",
            "GET" if named => "get",
            "GET" => "list",
            "POST" => "create",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" if named => "delete",
            _ => "deletecollection",
        };
        Some(Self { group: group.to_owned(), resource, verb: verb.to_owned() })
    }
}

/// A proxy.
#[derive(Clone)]
pub(crate) struct Proxy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    /// The request at which to end, or that is held back, is there.
    reached: Arc<Notify>,
    resumed: Arc<Notify>,
    client: Client,
}

impl Proxy {
    /// Listens, for as long as the runtime is there.
    pub(crate) async fn listen(client: Client) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let proxy =
            Self { address, state: Arc::default(), reached: Arc::default(), resumed: Arc::default(), client };
        let accepting = proxy.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(accepting.clone().serve(stream));
            }
        });
        proxy
    }

    async fn serve(self, stream: TcpStream) {
        let service = service_fn(move |request| self.clone().pass(request));
        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    }

    async fn pass(self, request: Request<Incoming>) -> Result<Response<Body>, kube::Error> {
        if self.state().user.is_some() && Self::is_of_newer_servers(&request) {
            let text =
                "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
            return Ok(answer(422, "Invalid", text));
        }
        if self.is_still_busy() {
            return Ok(answer(429, "TooManyRequests", "too many requests, please try again later"));
        }
        let (number, right) = (self.note(&request), Right::of(&request));
        let counts = !request.uri().path().contains("/leases");
        self.state().came += usize::from(counts);
        self.may_hold(&request).await;
        self.may_end(number.map(Cut::Before)).await?;
        let (mut parts, body) = request.into_parts();
        parts.headers.remove("host");
        if let Some(user) = &self.state().user {
            parts.headers.insert("impersonate-user", user.parse().unwrap());
        }
        let body = body.collect().await.map_err(kube::Error::HyperError)?.to_bytes().to_vec();
        let answer = self.client.send(Request::from_parts(parts, body.into())).await;
        self.state().answered += usize::from(counts);
        self.may_end(number.map(Cut::After)).await?;
        if let (Ok(answer), Some(right)) = (&answer, right) {
            let mut state = self.state();
            if answer.status() == StatusCode::FORBIDDEN {
                state.refused.insert(right);
            } else {
                *state.allowed.entry(right).or_default() += 1;
            }
        }
        answer
    }

    /// A list that comes as a watch: many servers have no such thing, and then list and watch.
    fn is_of_newer_servers(request: &Request<Incoming>) -> bool {
        request.uri().query().is_some_and(|query| query.contains("sendInitialEvents=true"))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The number of a request that counts.
    fn note(&self, request: &Request<Incoming>) -> Option<usize> {
        let (method, path) = (request.method(), request.uri().path());
        let reads_all =
            method == "GET" && request.uri().query().is_some_and(|query| query.contains("resourceVersion"));
        if reads_all || path.contains("/leases") || path.contains("/events") {
            return None;
        }
        let mut state = self.state();
        state.requests.push(format!("{method} {path}"));
        Some(state.requests.len())
    }

    /// Returns when the request is not held back any more.
    async fn may_hold(&self, request: &Request<Incoming>) {
        let (method, path) = (request.method().as_str(), request.uri().path());
        let is_it = |(of, part): &mut (&'static str, String)| method == *of && path.ends_with(part.as_str());
        if self.state().held.take_if(is_it).is_some() {
            self.reached.notify_one();
            self.resumed.notified().await;
        }
    }

    /// The next request of this method whose path ends so is held back.
    pub(crate) fn hold(&self, method: &'static str, path: &str) {
        self.state().held = Some((method, path.to_owned()));
    }

    /// What is held back goes on.
    pub(crate) fn resume(&self) {
        self.state().held = None;
        self.resumed.notify_one();
    }

    /// The next requests are answered that there is no time for them.
    pub(crate) fn is_busy(&self, requests: usize) {
        self.state().busy = requests;
    }

    fn is_still_busy(&self) -> bool {
        let mut state = self.state();
        let busy = state.busy > 0;
        state.busy = state.busy.saturating_sub(1);
        busy
    }

    /// Whom the API server takes the controller for; and it is an older one.
    pub(crate) fn acts_as(&self, user: &str) {
        self.state().user = Some(user.to_owned());
    }

    /// What the API server has allowed so far, and how often.
    pub(crate) fn allowed(&self) -> BTreeMap<Right, usize> {
        self.state().allowed.clone()
    }

    /// What it has not allowed.
    pub(crate) fn refused(&self) -> BTreeSet<Right> {
        self.state().refused.clone()
    }

    /// Never returns if the controller is to end here.
    async fn may_end(&self, at: Option<Cut>) -> Result<(), kube::Error> {
        let way = {
            let mut state = self.state();
            if at.is_none() || state.cut != at {
                return Ok(());
            }
            state.cut = None;
            state.way
        };
        self.reached.notify_one();
        match way {
            Way::Killed => std::future::pending().await,
            Way::Lost => Err(kube::Error::Service("lost".into())),
        }
    }

    /// The requests since this was last asked.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state().requests)
    }

    /// Until nothing was asked for so many milliseconds of an idle machine: what follows what was
    /// done is done then. What never rests is not waited for.
    pub(crate) async fn is_quiet(&self, milliseconds: u64) {
        let (start, mut before) = (Instant::now(), usize::MAX);
        while start.elapsed() < deadline(20) {
            let (came, answered) = {
                let state = self.state();
                (state.came, state.answered)
            };
            if came == answered && came == before {
                return;
            }
            before = came;
            tokio::time::sleep(Duration::from_millis(slow_seconds(milliseconds))).await;
        }
    }

    /// From now on requests are counted, and at this one the controller is to end.
    pub(crate) fn cut(&self, cut: Option<Cut>) {
        self.cut_so(cut, Way::Killed);
    }

    pub(crate) fn cut_so(&self, cut: Option<Cut>, way: Way) {
        let mut state = self.state();
        (state.requests, state.cut, state.way) = (Vec::new(), cut, way);
    }

    /// Until the request is there.
    pub(crate) async fn reached(&self) {
        self.reached.notified().await;
    }

    /// The address, as a URL.
    pub(crate) fn address(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// As an API server refuses something.
fn answer(code: u16, reason: &str, message: &str) -> Response<Body> {
    let status = serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "reason": reason, "code": code, "message": message});
    let answer = Response::builder().status(code).header("content-type", "application/json");
    answer.body(status.to_string().into_bytes().into()).unwrap()
}

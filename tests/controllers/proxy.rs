//! What stands between a controller and the API server: counts requests, and may end the controller
//! at one of them.

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// At which request the controller ends: before the API server gets it, or when it has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Before(usize),
    After(usize),
}

#[derive(Default)]
struct State {
    /// The requests so far, those of leases and watches not among them.
    requests: Vec<String>,
    cut: Option<Cut>,
}

/// A proxy.
#[derive(Clone)]
pub(crate) struct Proxy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    /// The request at which to end is there.
    reached: Arc<Notify>,
    client: Client,
}

impl Proxy {
    /// Listens, for as long as the runtime is there.
    pub(crate) async fn listen(client: Client) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = Self { address, state: Arc::default(), reached: Arc::default(), client };
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
        let number = self.note(&request);
        self.may_end(number.map(Cut::Before)).await;
        let (mut parts, body) = request.into_parts();
        parts.headers.remove("host");
        let body = body.collect().await.map_err(kube::Error::HyperError)?.to_bytes().to_vec();
        let answer = self.client.send(Request::from_parts(parts, body.into())).await;
        self.may_end(number.map(Cut::After)).await;
        answer
    }

    /// The number of a request that counts.
    fn note(&self, request: &Request<Incoming>) -> Option<usize> {
        let (method, path) = (request.method(), request.uri().path());
        let reads_all =
            method == "GET" && request.uri().query().is_some_and(|query| query.contains("resourceVersion"));
        if reads_all || path.contains("/leases") || path.contains("/events") {
            return None;
        }
        let mut state = self.state.lock().unwrap();
        state.requests.push(format!("{method} {path}"));
        Some(state.requests.len())
    }

    /// Never returns if the controller is to end here.
    async fn may_end(&self, at: Option<Cut>) {
        if at.is_some() && self.state.lock().unwrap().cut == at {
            self.reached.notify_one();
            std::future::pending::<()>().await;
        }
    }

    /// The requests since this was last asked.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }

    /// From now on requests are counted, and at this one the controller is to end.
    pub(crate) fn cut(&self, cut: Option<Cut>) {
        *self.state.lock().unwrap() = State { requests: Vec::new(), cut };
    }

    /// Until the request is there.
    pub(crate) async fn reached(&self) {
        self.reached.notified().await;
    }

    /// The address, as a URL.
    pub(crate) fn address(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How a controller gets here.
    pub(crate) fn write_kubeconfig(&self, path: &Path) {
        let text = format!(
            "{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}],\n\
             users: [{{name: u, user: {{token: unused}}}}], clusters: [{{name: c, cluster: {{server: \"http://{}\"}}}}]}}\n",
            self.address
        );
        std::fs::write(path, text).unwrap();
    }
}

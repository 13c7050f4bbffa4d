//! Metrics page for Prometheus.

use anyhow::{Context as _, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Deadline from the connection to the end of a request's head.
const PATIENCE: Duration = Duration::from_secs(5);

/// Limit for simultaneous connections: every process of the node reaches the port, and must not use
/// up what publishing needs.
const CONNECTIONS: usize = 16;

/// Content type of OpenMetrics' text.
const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Listens before anything else is done, so that a port in use is known at once.
pub async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("listen at {address} for Prometheus"))
}

/// Answers `/metrics` for ever, each time with the text of `write`.
pub async fn serve(listener: TcpListener, write: impl Fn() -> String + Send + Sync + 'static) {
    let (write, places) = (Arc::new(write), Arc::new(Semaphore::new(CONNECTIONS)));
    loop {
        // The semaphore is never closed.
        let place = Arc::clone(&places).acquire_owned().await.ok();
        let Ok((stream, _)) = listener.accept().await else {
            // Too many open files: their owners will close some.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let write = Arc::clone(&write);
        let service = service_fn(move |request| {
            let answer = page(&request, &*write);
            async move { Ok::<_, Infallible>(answer) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            // A client that does not read the page is not waited for either.
            drop(tokio::time::timeout(PATIENCE * 2, connection).await);
            drop(place);
        });
    }
}

fn page(request: &Request<Incoming>, write: &dyn Fn() -> String) -> Response<Full<Bytes>> {
    if request.uri().path() != "/metrics" {
        let mut nothing = Response::new(Full::new(Bytes::from_static(b"look at /metrics\n")));
        *nothing.status_mut() = StatusCode::NOT_FOUND;
        return nothing;
    }
    let mut found = Response::new(Full::new(Bytes::from(write())));
    found.headers_mut().insert("content-type", hyper::header::HeaderValue::from_static(TYPE));
    found
}

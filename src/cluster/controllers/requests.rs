//! Requests to the API server: a bounded number at once, each with a deadline.
//!
//! A long answer, such as a page of a list, may come compressed; a watch does not.
//!
//! A request that is never answered releases its place at its deadline, so the requests that wait
//! always get their turn. A watch keeps a place until the server begins to answer. A request that
//! renews a lease waits for no other request: a process that cannot renew its lease has to stop.

use flate2::read::GzDecoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::{Body as Content, Bytes};
use kube::Client;
use kube::client::Body;
use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tower::{BoxError, Service, ServiceExt as _, service_fn};

/// Limit for simultaneous requests: as many as external-provisioner has workers. With fewer, a busy
/// API server lets the requests of others go first.
const AT_ONCE: usize = 100;

/// Compression that is accepted for answers.
const GZIP: &str = "gzip";

/// Deadline of a request, from when it has a place.
const DEADLINE: Duration = Duration::from_secs(30);

/// Clients of the API server: for the objects of controllers, and for the leases that keep them
/// active.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a client of the API server has none")]
pub struct Clients {
    /// Client for objects: bounded.
    pub objects: Client,
    /// Client for leases: not bounded.
    pub leases: Client,
}

impl Clients {
    /// Builds the clients over a service for objects and one for leases.
    pub fn over<S, B>(objects: &S, leases: &S, namespace: &str) -> Self
    where
        S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<BoxError>,
        B: Content<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let bounded = |service: &S, at_once: usize| {
            let (service, places) = (service.clone(), Arc::new(Semaphore::new(at_once)));
            let passing = move |request| pass(service.clone(), Arc::clone(&places), request);
            Client::new(service_fn(passing), namespace)
        };
        Self { objects: bounded(objects, AT_ONCE), leases: bounded(leases, Semaphore::MAX_PERMITS) }
    }
}

/// Answer that is complete, or one that continues.
type Answer<B> = Response<Either<Full<Bytes>, B>>;

async fn pass<S, B>(
    service: S,
    places: Arc<Semaphore>,
    mut request: Request<Body>,
) -> Result<Answer<B>, BoxError>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    B: Content<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    if !watches {
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static(GZIP));
    }
    let _place = places.acquire().await?;
    let answering = async {
        let answer = service.oneshot(request).await.map_err(Into::into)?;
        if watches {
            return Ok(answer.map(Either::Right));
        }
        let (mut parts, body) = answer.into_parts();
        let whole = body.collect().await.map_err(Into::into)?.to_bytes();
        let whole = match parts.headers.remove(CONTENT_ENCODING) {
            Some(encoding) if encoding == GZIP => decompressed(&whole)?,
            _ => whole,
        };
        Ok(Response::from_parts(parts, Either::Left(Full::new(whole))))
    };
    let late = || format!("the API server does not answer within {} s", DEADLINE.as_secs());
    timeout(DEADLINE, answering).await.map_err(|_| late())?
}

/// Decompresses the body of an answer.
fn decompressed(bytes: &[u8]) -> std::io::Result<Bytes> {
    let mut plain = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut plain)?;
    Ok(plain.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use futures_util::{AsyncBufReadExt as _, StreamExt as _};
    use k8s_openapi::api::core::v1::Node;
    use kube::Api;
    use std::io::Write as _;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;
    use tokio::time::Instant;

    /// Body of an answer that never ends.
    struct Endless;

    impl Content for Endless {
        type Data = Bytes;
        type Error = std::io::Error;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, std::io::Error>>> {
            Poll::Pending
        }
    }

    /// Returns clients of an API server that never ends its answers, or never begins them, except
    /// for leases; and the number of its requests.
    fn silent(begins: bool) -> (Clients, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let service = service_fn(move |request: Request<Body>| {
            let count = Arc::clone(&count);
            async move {
                if request.uri().path().contains("leases") {
                    let body = r#"{"metadata":{"name":"l"}}"#;
                    return Ok(Response::new(Either::Left(Full::from(body))));
                }
                count.fetch_add(1, Ordering::Relaxed);
                if !begins {
                    std::future::pending::<()>().await;
                }
                Ok::<_, std::io::Error>(Response::new(Either::Right(Endless)))
            }
        });
        (Clients::over(&service, &service, "default"), asked)
    }

    #[tokio::test(start_paused = true)]
    async fn every_request_has_its_turn() {
        for begins in [false, true] {
            let (clients, asked) = silent(begins);
            let start = Instant::now();
            let requests: Vec<_> = (0..=AT_ONCE * 2)
                .map(|_| {
                    let nodes: Api<Node> = Api::all(clients.objects.clone());
                    let asking = async move { nodes.get("a").await.unwrap_err().to_string() };
                    tokio::spawn(timeout(DEADLINE * 10, asking))
                })
                .collect();
            tokio::time::sleep(DEADLINE / 2).await;
            assert_eq!(asked.load(Ordering::Relaxed), AT_ONCE);
            for request in requests {
                assert!(request.await.unwrap().unwrap().contains("30 s"));
            }
            assert_eq!((asked.load(Ordering::Relaxed), start.elapsed()), (AT_ONCE * 2 + 1, DEADLINE * 3));
        }
    }

    /// A place is released even if the caller has dropped the request.
    #[tokio::test(start_paused = true)]
    async fn a_place_is_given_back_by_who_has_gone() {
        let (clients, asked) = silent(false);
        for round in 1..=3 {
            let requests: Vec<_> = (0..AT_ONCE)
                .map(|_| {
                    let nodes: Api<Node> = Api::all(clients.objects.clone());
                    tokio::spawn(async move { nodes.get("a").await.map(drop) })
                })
                .collect();
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(asked.load(Ordering::Relaxed), round * AT_ONCE);
            requests.iter().for_each(tokio::task::JoinHandle::abort);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_renewed_while_all_wait() {
        let (clients, _) = silent(false);
        for _ in 0..AT_ONCE * 2 {
            let nodes: Api<Node> = Api::all(clients.objects.clone());
            tokio::spawn(async move { nodes.get("a").await.map(drop) });
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
            Api::namespaced(clients.leases.clone(), "default");
        let start = Instant::now();
        leases.get("l").await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    /// A watch releases its place when it is answered, and continues.
    #[tokio::test(start_paused = true)]
    async fn watches_take_no_place_for_long() {
        let (clients, asked) = silent(true);
        let mut watches = Vec::new();
        for _ in 0..AT_ONCE * 2 {
            let nodes: Api<Node> = Api::all(clients.objects.clone());
            watches.push(nodes.watch(&kube::api::WatchParams::default(), "0").await.unwrap());
        }
        assert_eq!(asked.load(Ordering::Relaxed), AT_ONCE * 2);
    }

    /// An answer is compressed only if the request accepts that: a watch does not.
    #[tokio::test]
    async fn a_long_answer_may_be_compressed() {
        let service = service_fn(|request: Request<Body>| async move {
            let list = br#"{"metadata":{"resourceVersion":"7"},"items":[]}"#;
            let answer = Response::builder();
            if request.headers().get(ACCEPT_ENCODING).is_some_and(|encoding| encoding == GZIP) {
                let mut compressed = GzEncoder::new(Vec::new(), Compression::fast());
                compressed.write_all(list)?;
                let answer = answer.header(CONTENT_ENCODING, GZIP);
                return Ok(answer.body(Full::from(compressed.finish()?)).unwrap());
            }
            Ok::<_, std::io::Error>(answer.body(Full::from(&list[..])).unwrap())
        });
        let clients = Clients::over(&service, &service, "default");
        let nodes: Api<Node> = Api::all(clients.objects.clone());
        let list = nodes.list(&kube::api::ListParams::default()).await.unwrap();
        assert_eq!(list.metadata.resource_version.unwrap(), "7");
        let watch = Request::get("/api/v1/nodes?watch=true").body(Vec::new()).unwrap();
        let mut lines = std::pin::pin!(clients.objects.request_stream(watch).await.unwrap().lines());
        assert!(lines.next().await.unwrap().unwrap().starts_with('{'));
    }
}

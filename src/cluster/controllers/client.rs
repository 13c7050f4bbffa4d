//! Access to the API server from a pod of its cluster: an address, a certificate, a token.
//!
//! kube's own loader is not used: it reads kubeconfig, runs programs named there and asks clouds
//! for tokens. That is a megabyte that no pod needs.

use super::requests::Clients;
use anyhow::{Context as _, Result, ensure};
use http::Request;
use http::header::{AUTHORIZATION, HeaderValue};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::Body;
use kube::client::middleware::BaseUriLayer;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tower::ServiceBuilder;
use tower::util::MapRequestLayer;

/// Directory where kubelet mounts the credentials of a pod's service account.
pub const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Deadline for connecting.
const CONNECT: Duration = Duration::from_secs(10);

/// Keep-alive interval: a peer that vanished is noticed after three of these.
const ALIVE: Duration = Duration::from_secs(10);

/// Age after which the token is read again: kubelet replaces a token long before it expires.
const FRESH: Duration = Duration::from_mins(1);

/// Address and credentials for the API server.
#[derive(Clone, Debug)]
pub struct Place {
    /// `https://address:port`.
    pub server: String,
    /// Path of its certificate authority, in PEM form.
    pub authority: PathBuf,
    /// Path of the token, which is read again regularly.
    pub token: PathBuf,
}

/// Connects to the API server: one connection is for objects, and another for leases, which no long
/// answer can delay.
///
/// # Errors
///
/// Fails if the address is invalid, or if a file is missing or invalid.
pub fn connect(place: &Place, namespace: &str) -> Result<Clients> {
    let server: http::Uri = place.server.parse().with_context(|| format!("understand {:?}", place.server))?;
    let token = Token::read(&place.token)?;
    let https = https(&place.authority)?;
    let service = || {
        let token = token.clone();
        let mut client = hyper_util::client::legacy::Client::builder(TokioExecutor::new());
        client
            .timer(TokioTimer::new())
            .http2_adaptive_window(true)
            .http2_keep_alive_interval(ALIVE)
            .http2_keep_alive_timeout(ALIVE)
            .http2_keep_alive_while_idle(true);
        ServiceBuilder::new()
            .layer(BaseUriLayer::new(server.clone()))
            .layer(MapRequestLayer::new(move |request| token.add_to(request)))
            .service(client.build(https.clone()))
    };
    Ok(Clients::over(&service(), &service(), namespace))
}

fn https(authority: &Path) -> Result<HttpsConnector<HttpConnector>> {
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(authority);
    for certificate in certificates.with_context(|| format!("read {}", authority.display()))? {
        roots.add(certificate?).with_context(|| format!("trust {}", authority.display()))?;
    }
    ensure!(!roots.is_empty(), "{} has no certificate", authority.display());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let tls = tls.with_root_certificates(roots).with_no_client_auth();
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.set_keepalive(Some(ALIVE));
    tcp.set_keepalive_interval(Some(ALIVE));
    tcp.set_keepalive_retries(Some(3));
    Ok(HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_all_versions()
        .wrap_connector(tcp))
}

/// Token of a service account, as last read.
#[derive(Clone)]
struct Token {
    path: PathBuf,
    last: Arc<Mutex<(HeaderValue, Instant)>>,
}

impl Token {
    fn read(path: &Path) -> Result<Self> {
        let last = Arc::new(Mutex::new((header(path)?, Instant::now())));
        Ok(Self { path: path.to_owned(), last })
    }

    fn add_to(&self, mut request: Request<Body>) -> Request<Body> {
        request.headers_mut().insert(AUTHORIZATION, self.now());
        request
    }

    fn now(&self) -> HeaderValue {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.1.elapsed() > FRESH {
            match header(&self.path) {
                Ok(value) => *last = (value, Instant::now()),
                // The old token may still be valid; the next request reads the file again.
                Err(error) => tracing::warn!(reason = %format!("{error:#}"), "cannot read the token"),
            }
        }
        last.0.clone()
    }
}

fn header(path: &Path) -> Result<HeaderValue> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let value = HeaderValue::try_from(format!("Bearer {}", text.trim()));
    let mut value = value.ok().with_context(|| format!("{} is no token", path.display()))?;
    value.set_sensitive(true);
    Ok(value)
}

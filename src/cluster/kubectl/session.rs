//! Access to the API server through `kubectl proxy`, for commands that write or ask often.
//!
//! kubectl selects the cluster, authenticates (exec plugins, certificates, OIDC) and connects. The
//! same code would be a megabyte here, and not the version that the user has. Its proxy passes on
//! the API server's answer to a write, which kubectl itself prints only as text. The socket is in a
//! private directory, and the proxy ends with this process.

use super::asking::Kubectl;
use crate::controllers::blocking::{Answer, Api};
use crate::controllers::requests::Clients;
use anyhow::{Context as _, Result, bail, ensure};
use flexvol_linux::fs::files;
use flexvol_linux::proc::piped::Piped;
use http::header::HOST;
use http::{HeaderValue, Request};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::ChildStdout;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tower::{BoxError, service_fn};

/// Deadline of one request, retries included.
const ANSWER_WAIT: Duration = Duration::from_secs(40);

/// Limit for the objects in one answer.
const PAGE: usize = 500;

/// Limit for the pages of one list: a million objects.
const PAGES: usize = 2000;

/// Connection to the API server, open as long as this value exists.
pub struct Session {
    api: Api,
    _proxy: Piped,
    /// Kept open: kubectl ends if it prints into a closed pipe.
    _said: BufReader<ChildStdout>,
    _home: TempDir,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session")
    }
}

impl Session {
    /// Starts kubectl's proxy. Only for the main thread ([`Piped::serve`]).
    ///
    /// # Errors
    ///
    /// Fails if kubectl does not start it; kubectl has printed the reason.
    pub fn start(kubectl: &Kubectl) -> Result<Self> {
        let home = files::temporary("kubectl-flexvol-").context("make a directory for a socket")?;
        let socket = home.path().join("api");
        let mut proxy = kubectl.proxy(&socket)?;
        let mut said = proxy.output().context("kubectl has no output")?;
        let mut line = String::new();
        // kubectl prints where it serves, or exits.
        said.read_line(&mut line).context("read what kubectl prints")?;
        ensure!(!line.is_empty(), "kubectl proxy failed: see what it says");
        let api = Api::by(|| Ok(client(socket)))?;
        Ok(Self { api, _proxy: proxy, _said: said, _home: home })
    }

    /// Returns the API, for tasks that run beside this one.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Sends a request that reads or changes something. After an unsure change, the caller must
    /// read again.
    pub fn ask(&self, method: &'static str, path: &str, body: Option<Value>) -> Answer {
        self.api.ask(method, path.to_owned(), body, Instant::now() + ANSWER_WAIT)
    }

    /// Returns the current state of an object; `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// Fails if there is no answer, or if the request is refused.
    pub fn get(&self, path: &str) -> Result<Option<Value>> {
        match self.ask("GET", path, None) {
            Answer::Done(object) => Ok(Some(object)),
            Answer::Missing(_) => Ok(None),
            Answer::Refused(why) | Answer::Unsure(why) => bail!("read {path}: {why}"),
            Answer::Conflict => bail!("read {path}: the API server says that it conflicts"),
        }
    }

    /// Passes each object of a kind to `take`, page by page; returns whether the kind exists. The
    /// path may end with a selector.
    ///
    /// # Errors
    ///
    /// Fails if there is no answer, or if the request is refused.
    pub fn list(&self, path: &str, mut take: impl FnMut(Value)) -> Result<bool> {
        let mut token = String::new();
        let joint = if path.contains('?') { '&' } else { '?' };
        for _ in 0..PAGES {
            let Some(mut page) = self.get(&format!("{path}{joint}limit={PAGE}&continue={token}"))? else {
                ensure!(token.is_empty(), "read {path}: it ended halfway: try again");
                return Ok(false);
            };
            if let Value::Array(items) = page["items"].take() {
                items.into_iter().for_each(&mut take);
            }
            match page["metadata"]["continue"].as_str() {
                // All other characters of a token are safe in a path.
                Some(more) if !more.is_empty() => token = more.replace('=', "%3D"),
                _ => return Ok(true),
            }
        }
        bail!("read {path}: there is no end of it")
    }
}

/// Client that opens a connection to the socket for each request.
fn client(socket: PathBuf) -> Client {
    let service = service_fn(move |mut request: Request<Body>| {
        let socket = socket.clone();
        async move {
            // kubectl accepts no other host name.
            request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
            let stream = TokioIo::new(UnixStream::connect(socket).await?);
            let (mut sender, connection) = http1::handshake(stream).await?;
            tokio::spawn(connection);
            Ok::<_, BoxError>(sender.send_request(request).await?)
        }
    });
    Clients::over(&service, &service, "default").objects
}

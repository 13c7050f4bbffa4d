//! Blocking requests to the API server, each with a deadline.
//!
//! One thread does all network I/O. A caller waits for the answer, but never longer than its
//! deadline, whatever the connection does. Reads are retried until then. A write is retried only if
//! the API server was too busy for it (429): otherwise the next answer might be about the first
//! attempt, and the caller has to read the record again.

use super::api::reason;
use super::client::{Place, connect};
use anyhow::{Context as _, Result};
use http::Request;
use kube::{Client, Error};
use serde_json::Value;
use std::fmt;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Deadline of one attempt; the next one uses another connection.
const TRY: Duration = Duration::from_secs(4);

/// Pause before the second attempt; doubled before each further one.
const PAUSE: Duration = Duration::from_millis(50);

/// Longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Result of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The object, or the API server's answer in its place.
    Done(Value),
    /// There is no such object, kind or namespace.
    Missing(String),
    /// The object exists already, or has changed since it was read.
    Conflict,
    /// The API server refuses the request.
    Refused(String),
    /// The result is unknown.
    Unsure(String),
}

/// Client of the API server for blocking requests.
pub struct Api {
    client: Client,
    runtime: Handle,
    /// Ends the thread when dropped.
    _stop: oneshot::Sender<()>,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Api")
    }
}

impl Api {
    /// Opens a client with the credentials of a pod of the cluster; sends no request yet.
    ///
    /// # Errors
    ///
    /// Fails if the token or the certificate cannot be read.
    pub fn open(place: &Place, namespace: &str) -> Result<Self> {
        Self::by(|| Ok(connect(place, namespace)?.objects))
    }

    /// Opens a client that `connect` makes inside the runtime of the network thread.
    pub fn by(connect: impl FnOnce() -> Result<Client>) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build().context("start")?;
        let client = {
            // Tasks that the client starts run in this runtime.
            let _inside = runtime.enter();
            connect()?
        };
        let (stop, stopped) = oneshot::channel();
        let handle = runtime.handle().clone();
        let thread = thread::Builder::new().name("api".to_owned());
        thread.spawn(move || runtime.block_on(stopped)).context("start a thread")?;
        Ok(Self { client, runtime: handle, _stop: stop })
    }

    /// Sends a request, and waits for the answer.
    pub fn ask(&self, method: &'static str, path: String, body: Option<Value>, deadline: Instant) -> Answer {
        let (tell, told) = sync_channel(1);
        let client = self.client.clone();
        let asking = self.runtime.spawn(async move {
            let _ = tell.send(insist(&client, method, &path, body.as_ref(), deadline).await);
        });
        let left = deadline.saturating_duration_since(Instant::now());
        told.recv_timeout(left).unwrap_or_else(|_| {
            asking.abort();
            late()
        })
    }

    /// Runs a task with the client in the background, for as long as the thread runs.
    pub fn begin<F: Future<Output = ()> + Send + 'static>(&self, work: impl FnOnce(Client) -> F) {
        self.runtime.spawn(work(self.client.clone()));
    }

    /// Sends a request once, and does not wait for the answer.
    pub fn tell(&self, method: &'static str, path: String, body: Value) {
        let (client, deadline) = (self.client.clone(), Instant::now() + TRY);
        self.runtime.spawn(async move {
            let answer = attempt(&client, method, &path, Some(&body), deadline).await;
            tracing::debug!(method, path, ?answer, "told");
        });
    }
}

fn late() -> Answer {
    Answer::Unsure("the API server does not answer in time".to_owned())
}

/// Sends a request, and retries it where that is safe, until an answer or the deadline.
pub async fn insist(
    client: &Client,
    method: &'static str,
    path: &str,
    body: Option<&Value>,
    deadline: Instant,
) -> Answer {
    let mut pause = PAUSE;
    loop {
        let (answer, busy) = attempt(client, method, path, body, deadline).await;
        let again = busy || (method == "GET" && matches!(answer, Answer::Unsure(_)));
        if !again || Instant::now() + pause >= deadline {
            return answer;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Sends a request once. Returns true if the API server was too busy and has not carried it out.
async fn attempt(
    client: &Client,
    method: &'static str,
    path: &str,
    body: Option<&Value>,
    deadline: Instant,
) -> (Answer, bool) {
    let bytes = body.map(Value::to_string).unwrap_or_default().into_bytes();
    let request = Request::builder().method(method).uri(path).header("content-type", form(method, body));
    let request = match request.body(bytes) {
        Ok(request) => request,
        Err(error) => return (Answer::Refused(error.to_string()), false),
    };
    let limit = deadline.saturating_duration_since(Instant::now()).min(TRY);
    match tokio::time::timeout(limit, client.request::<Value>(request)).await {
        Err(_) => (late(), false),
        Ok(Ok(object)) => (Answer::Done(object), false),
        Ok(Err(error)) => (meaning(&error), matches!(&error, Error::Api(status) if status.code == 429)),
    }
}

/// Returns the content type of the body: a patch is a list of operations, or a set of new values.
fn form(method: &str, body: Option<&Value>) -> &'static str {
    match (method, body) {
        ("PATCH", Some(Value::Array(_))) => "application/json-patch+json",
        ("PATCH", _) => "application/merge-patch+json",
        _ => "application/json",
    }
}

fn meaning(error: &Error) -> Answer {
    let reason = reason(error);
    match error {
        Error::Api(status) => match status.code {
            404 => Answer::Missing(reason),
            409 => Answer::Conflict,
            400..=499 if !matches!(status.code, 408 | 429) => Answer::Refused(reason),
            _ => Answer::Unsure(reason),
        },
        _ => Answer::Unsure(format!("the API server cannot be reached: {reason}")),
    }
}

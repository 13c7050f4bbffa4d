//! Requests of threads that wait, each with a deadline.
//!
//! The network is one thread's. Whoever asks waits for the answer and no longer than its deadline,
//! whatever the connection does. A question is asked again until then; what is to be changed only
//! where the API server has said that it had no time for it (429): else what it answers next might
//! be about the first one, and the record is to be read again.

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

/// One try; then over another connection.
const TRY: Duration = Duration::from_secs(4);

/// Before the second try; doubled before each further one.
const PAUSE: Duration = Duration::from_millis(50);

/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What came of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The object, or what there is instead.
    Done(Value),
    /// There is no such object, kind or namespace.
    Missing(String),
    /// It is there already, or is no more what was read.
    Conflict,
    /// The API server does not do that.
    Refused(String),
    /// No one knows.
    Unsure(String),
}

/// The API server.
pub struct Api {
    client: Client,
    runtime: Handle,
    /// The thread ends with this.
    _stop: oneshot::Sender<()>,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Api")
    }
}

impl Api {
    /// Of a place, as a pod of its cluster has it; it is not asked yet.
    ///
    /// # Errors
    ///
    /// The token or the certificate cannot be read.
    pub fn open(place: &Place, namespace: &str) -> Result<Self> {
        Self::by(|| Ok(connect(place, namespace)?.objects))
    }

    /// By a client that is made in the thread of the network.
    pub fn by(connect: impl FnOnce() -> Result<Client>) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build().context("start")?;
        let client = {
            // What a client starts runs there.
            let _inside = runtime.enter();
            connect()?
        };
        let (stop, stopped) = oneshot::channel();
        let handle = runtime.handle().clone();
        let thread = thread::Builder::new().name("api".to_owned());
        thread.spawn(move || runtime.block_on(stopped)).context("start a thread")?;
        Ok(Self { client, runtime: handle, _stop: stop })
    }

    /// Asks, and waits.
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

    /// Does something with a client, for ever, beside what is asked.
    pub fn begin<F: Future<Output = ()> + Send + 'static>(&self, work: impl FnOnce(Client) -> F) {
        self.runtime.spawn(work(self.client.clone()));
    }

    /// Asks, and does not wait.
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

/// Asks until there is an answer, or the deadline is over.
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

/// Once; and whether the API server had no time for it, and has not done it.
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

/// What the body is: a change is a list of operations, or what becomes of each field.
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

//! Requests of one connection to the agent for a mount pod: the same as to a pod's process 1. A
//! program that a connection starts ends with the connection, unless the connection keeps it.

use super::Runtimes;
use super::container::Container;
use super::programs::{checked, failed};
use super::streams::{Streams, place, tidy};
use crate::agent::fault::{Code, Fault};
use flexvol_linux::fs::files;
use flexvol_model::mounter::{Order, Registration, SERVES, volume};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Limit for the run time of a program.
const LONGEST: Duration = Duration::from_hours(1);

/// Deadline for the start of a program that serves a volume: a driver waits a second longer.
const START: Duration = Duration::from_secs(9);

/// Wait for a runtime that does not answer, when only the pod is asked for.
const MOMENT: Duration = Duration::from_secs(5);

/// Pause between two checks that a container still runs.
const LOOK: Duration = Duration::from_secs(1);

/// Limit for the reported output of a program that serves a volume, in bytes.
const WORDS: u64 = 64 << 10;

#[derive(Deserialize)]
struct End {
    serves: String,
    within: u64,
}

/// Program that serves a volume, started by this connection.
struct Serving {
    pod: Registration,
    container: Container,
    name: String,
    directory: PathBuf,
    looked: Instant,
    kept: bool,
}

/// State of one connection.
#[derive(Default)]
pub struct Session {
    serving: Option<Serving>,
}

impl Session {
    /// Reports whether it has started a program that serves a volume.
    pub fn serves(&self) -> bool {
        self.serving.is_some()
    }
}

impl Runtimes {
    /// Removes the leftovers of a killed agent.
    pub fn begin(&self) {
        tidy();
    }

    /// Carries out one request as the mount pod would.
    pub fn answer(
        &self,
        session: &mut Session,
        pod: &Registration,
        method: &str,
        params: Value,
    ) -> Result<Value, Fault> {
        Handle::try_current().map_err(failed)?.block_on(self.asked(session, pod, method, params))
    }

    /// Ends the program of a closed connection, unless the program is kept.
    pub fn forget(&self, session: Session) {
        let Some(serving) = session.serving.filter(|serving| !serving.kept) else { return };
        let ending = self.end(&serving.pod, &serving.name, Duration::ZERO);
        if let Err(fault) = Handle::try_current().map_err(failed).and_then(|handle| handle.block_on(ending)) {
            tracing::warn!(reason = fault.message, "a program that nobody wants was not ended");
        }
    }

    async fn asked(
        &self,
        session: &mut Session,
        pod: &Registration,
        method: &str,
        params: Value,
    ) -> Result<Value, Fault> {
        let now = Instant::now();
        match (method, &mut session.serving) {
            ("hello", _) => {
                let container = self.container(pod, now + MOMENT).await?;
                Ok(json!({"pod": pod.pod_uid, "container": container.id}))
            }
            ("exec", _) => {
                let order = checked(parsed(params)?)?;
                let until = now + Duration::from_millis(order.within).min(LONGEST);
                self.exec(pod, &order, until).await
            }
            ("launch", serving @ None) => {
                let order: Order = checked(parsed(params)?)?;
                let name = volume(&order.serves).map_err(Fault::bad)?;
                let until = now + Duration::from_millis(order.within).min(START);
                let (container, streams) = self.launch(pod, &order, until).await?;
                *serving = Some(Serving::new(pod, container, name, streams));
                Ok(json!({}))
            }
            ("look", Some(serving)) => self.look(serving).await,
            ("keep", Some(serving)) => {
                files::write_through(&serving.directory.join("kept"), b"").map_err(failed)?;
                let _ = files::forget(&serving.directory.join("in"));
                serving.kept = true;
                Ok(json!({}))
            }
            ("end", _) => {
                let End { serves, within } = parsed(params)?;
                let patience = Duration::from_millis(within).min(LONGEST);
                self.end(pod, &volume(&serves).map_err(Fault::bad)?, patience).await.map(|()| json!({}))
            }
            (method, _) => Err(Fault::bad(format!("there is no method {method:?}"))),
        }
    }

    async fn look(&self, serving: &mut Serving) -> Result<Value, Fault> {
        let read = |name: &str| files::beginning(&serving.directory.join(name), WORDS).unwrap_or_default();
        let words = String::from_utf8_lossy(&read("words")).into_owned();
        let status = String::from_utf8_lossy(&read("status")).trim().parse::<u8>().ok();
        if status.is_none() && serving.looked.elapsed() >= LOOK {
            serving.looked = Instant::now();
            match self.container(&serving.pod, Instant::now()).await {
                Ok(found) if found.id == serving.container.id => {}
                // Containers continue to run while their runtime restarts.
                Err(fault) if fault.code == Code::NoRuntime => {}
                Err(fault) => return Err(fault),
                Ok(_) => {
                    return Err(Fault::new(Code::Failed, "it was started again in the middle"));
                }
            }
        }
        let others = status == Some(0) && serving.container.has(&word(&serving.name)).await?;
        let status = status.map(|code| i32::from(code) << 8);
        Ok(json!({"status": status, "others": others, "words": words}))
    }

    async fn end(&self, pod: &Registration, name: &str, patience: Duration) -> Result<(), Fault> {
        let ended = match self.container(pod, Instant::now() + MOMENT).await {
            Ok(container) => container.end(&word(name), patience).await,
            Err(fault) if fault.code == Code::Gone => Ok(()),
            Err(fault) => Err(fault),
        };
        let _ = files::remove_tree(&place(name));
        ended
    }
}

impl Serving {
    fn new(pod: &Registration, container: Container, name: String, streams: Streams) -> Self {
        // The directory stays for as long as the volume is served.
        let directory = streams.0.clone();
        std::mem::forget(streams);
        Self { pod: pod.clone(), container, name, directory, looked: Instant::now(), kept: false }
    }
}

fn word(name: &str) -> String {
    format!("{SERVES}={name}")
}

fn parsed<T: for<'de> Deserialize<'de>>(params: Value) -> Result<T, Fault> {
    serde_json::from_value(params).map_err(Fault::bad)
}

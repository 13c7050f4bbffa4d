//! Programs in a container: those that end, and those that serve a volume.

use super::container::{Container, Ran};
use super::streams::{Heard, SHORT, Streams};
use super::{Runtimes, shown};
use crate::agent::fault::{Code, Fault};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flexvol_model::mounter::{Order, Registration, SERVES};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const EXEC: &str = include_str!("exec.sh");
const LAUNCH: &str = include_str!("launch.sh");
const END: &str = include_str!("end.sh");

/// Extra time for finding and ending the started processes, besides the time given to them.
const ENDING: Duration = Duration::from_secs(4);

/// Wait for a runtime that restarts.
const RUNTIME: Duration = Duration::from_secs(10);

/// Number of the next program of this process.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Factor from an exit code of the shell to the wait status that callers expect of a process.
const STATUS: i32 = 256;

impl Runtimes {
    /// Runs a program to its end. No program here mounts, so a lost run is repeated once.
    pub(super) async fn exec(
        &self,
        pod: &Registration,
        order: &Order,
        until: Instant,
    ) -> Result<Value, Fault> {
        let name = format!("{SHORT}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let word = format!("{SERVES}={name}");
        let mut lost = None;
        for _ in 0..2 {
            let container = self.container(pod, until.min(Instant::now() + RUNTIME)).await?;
            if lost.is_some() {
                container.end(&word, Duration::ZERO).await?;
            }
            let streams = Streams::make(&name, &input(order)?).map_err(failed)?;
            let heard = streams.listen(order.answering).map_err(failed)?;
            let words = [streams.0.display().to_string(), order.program.clone()].into_iter();
            let words = words.chain(command(order, &word)).collect();
            let ran = listening(container.script(EXEC, words, until), heard).await;
            match ran {
                Err(fault) if fault.code == Code::Timeout => {
                    let _ = container.end(&word, Duration::ZERO).await;
                    return Err(late(order, pod));
                }
                Err(fault) => return Err(fault),
                Ok((Ran::Lost(why), ..)) => lost = Some(why),
                Ok((Ran::Said(said), output, answer)) => {
                    return Ok(json!({"status": status(&said)?, "output": output, "answer": answer}));
                }
            }
        }
        Err(ended(&lost.unwrap_or_default()))
    }

    /// Starts a program that serves a volume, after ending one that an interrupted call may have
    /// started.
    pub(super) async fn launch(
        &self,
        pod: &Registration,
        order: &Order,
        until: Instant,
    ) -> Result<(Container, Streams), Fault> {
        let word = format!("{SERVES}={}", order.serves);
        let mut lost = None;
        for _ in 0..2 {
            let container = self.container(pod, until).await?;
            container.end(&word, Duration::ZERO).await?;
            let streams = Streams::make(&order.serves, &input(order)?).map_err(failed)?;
            let seconds = Duration::from_millis(order.within).as_secs().saturating_add(1);
            let words = [streams.0.display().to_string(), order.program.clone(), seconds.to_string()];
            let words = words.into_iter().chain(command(order, &word)).collect();
            match container.script(LAUNCH, words, until).await {
                Ok(Ran::Said(_)) => return Ok((container, streams)),
                Ok(Ran::Lost(why)) => lost = Some(why),
                Err(fault) => {
                    let _ = container.end(&word, Duration::ZERO).await;
                    return Err(if fault.code == Code::Timeout { late(order, pod) } else { fault });
                }
            }
        }
        Err(ended(&lost.unwrap_or_default()))
    }
}

impl Container {
    /// Lets the processes with this word in their environment finish for `patience`, then ends
    /// them.
    pub(super) async fn end(&self, word: &str, patience: Duration) -> Result<(), Fault> {
        let words = vec![word.to_owned(), patience.as_secs().to_string()];
        match self.script(END, words, Instant::now() + patience + ENDING).await? {
            Ran::Said(said) if said == "ended" => Ok(()),
            Ran::Said(_) => Err(Fault::new(Code::Failed, "what serves a volume cannot be ended")),
            // They ended with their container.
            Ran::Lost(_) => Ok(()),
        }
    }

    /// Reports whether any process has this word in its environment.
    pub(super) async fn has(&self, word: &str) -> Result<bool, Fault> {
        let words = vec![word.to_owned(), "look".to_owned()];
        Ok(
            matches!(self.script(END, words, Instant::now() + ENDING).await?, Ran::Said(said) if said == "left"),
        )
    }
}

/// Returns the command line that runs the program with its environment.
fn command(order: &Order, word: &str) -> impl Iterator<Item = String> {
    let words = ["env".to_owned(), word.to_owned()].into_iter().chain(order.env.iter().cloned());
    words.chain([order.program.clone()]).chain(order.args.iter().cloned()).collect::<Vec<_>>().into_iter()
}

/// Checks that the program has a plain name, which `env` takes for a program.
pub(super) fn checked(order: Order) -> Result<Order, Fault> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte);
    let is_program = order.program.bytes().all(plain) && !order.program.starts_with(['-', '.']);
    let is_environment =
        order.env.iter().all(|word| word.split_once('=').is_some_and(|(name, _)| is_name(name)));
    if order.program.is_empty() || !is_program || !is_environment {
        return Err(Fault::bad("a program has a plain name, and so has what is in its environment"));
    }
    Ok(order)
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Reads the output while the script runs, so that a program with much output is not blocked.
async fn listening(
    script: impl Future<Output = Result<Ran, Fault>>,
    heard: [Option<Heard>; 2],
) -> Result<(Ran, String, String), Fault> {
    let [mut out, mut err] = heard;
    let ran = {
        let (out, err) = (listen(&mut out), listen(&mut err));
        tokio::pin!(script, out, err);
        loop {
            tokio::select! {
                ran = &mut script => break ran,
                () = &mut out => {}
                () = &mut err => {}
            }
        }
    }?;
    let is_answer = err.is_some();
    let [out, err] = [out, err].map(|heard| heard.map(Heard::text).unwrap_or_default());
    Ok(if is_answer { (ran, err, out) } else { (ran, out, err) })
}

async fn listen(heard: &mut Option<Heard>) {
    match heard {
        Some(heard) => heard.listen().await,
        None => std::future::pending().await,
    }
}

fn input(order: &Order) -> Result<Vec<u8>, Fault> {
    STANDARD.decode(&order.stdin).map_err(Fault::bad)
}

/// Returns the status in the kernel's form.
fn status(said: &str) -> Result<i32, Fault> {
    let code = said.strip_prefix("ended ").and_then(|code| code.parse::<u8>().ok());
    let code = code.ok_or_else(|| Fault::new(Code::Failed, "how a program has ended is not known"))?;
    Ok(i32::from(code) * STATUS)
}

pub(super) fn failed(error: impl Into<anyhow::Error>) -> Fault {
    Fault::new(Code::Failed, format!("{:#}", error.into()))
}

fn late(order: &Order, pod: &Registration) -> Fault {
    let text =
        format!("{} timed out after {} ms in {} and was ended", order.program, order.within, shown(pod));
    Fault::new(Code::Timeout, text)
}

fn ended(why: &str) -> Fault {
    Fault::new(Code::Failed, format!("it or its runtime ended in the middle: {why}"))
}

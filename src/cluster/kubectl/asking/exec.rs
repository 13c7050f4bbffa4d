//! Program in a container. Its output is controlled by the author of the container: it must not
//! reach a terminal unchanged.

use super::Kubectl;
use anyhow::{Context as _, Result, anyhow, ensure};
use flexvol_linux::proc::helper::last_words;
use flexvol_linux::proc::piped::Piped;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Limit for the bytes that are read of each of its streams.
const MOST: u64 = 1 << 20;

/// Place where a program runs.
#[derive(Clone, Copy, Debug)]
pub struct Container<'a> {
    /// Namespace of the pod.
    pub namespace: &'a str,
    /// Name of the pod.
    pub pod: &'a str,
    /// Name of the container in the pod.
    pub name: &'a str,
}

impl Kubectl {
    /// Runs a program and returns its output. Kills kubectl when it takes longer than `within`.
    ///
    /// # Errors
    ///
    /// Fails if the program cannot be run there, or has failed; its error output becomes one line.
    pub fn exec(&self, at: Container<'_>, program: &[&str], within: Duration) -> Result<String> {
        let Container { namespace, pod, name } = at;
        let asked = ["exec", "--namespace", namespace, pod, "--container", name, "--"];
        let words = asked.iter().chain(program).map(OsStr::new);
        let running = Piped::apart(&self.program, self.cluster.iter().map(|word| &**word).chain(words));
        let mut running = running.with_context(|| format!("start {}", self.program.display()))?;
        let until = Instant::now() + within;
        let output = read(running.output().context("kubectl has no output")?)?;
        let errors = read(running.errors().context("kubectl has no standard error")?)?;
        let whole = |stream: Receiver<io::Result<Vec<u8>>>| {
            let left = until.saturating_duration_since(Instant::now());
            let text = stream.recv_timeout(left);
            let text = text.map_err(|_| anyhow!("kubectl exec timed out after {} s", within.as_secs()))??;
            ensure!(u64::try_from(text.len())? < MOST, "it prints more than {MOST} bytes");
            Ok(String::from_utf8_lossy(&text).into_owned())
        };
        let (output, errors) = (whole(output)?, whole(errors)?);
        let status = running.end()?;
        ensure!(status.success(), "kubectl exec failed ({status}): {}", last_words(&errors));
        Ok(output)
    }
}

/// Reads a stream in a thread, which ends with the stream.
fn read(stream: impl Read + Send + 'static) -> Result<Receiver<io::Result<Vec<u8>>>> {
    let (sender, receiver) = channel();
    let reader = thread::Builder::new().name("stream".to_owned());
    let begun = reader.spawn(move || {
        let mut text = Vec::new();
        let _ = sender.send(stream.take(MOST).read_to_end(&mut text).map(|_| text));
    });
    begun.context("start a thread")?;
    Ok(receiver)
}

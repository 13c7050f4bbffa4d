//! Calls a driver and remembers, as kubelet does, which verbs it lacks.

use super::exec::{self, End, Run, Terms};
use super::verdict::{Fault, Verdict};
use crate::failure::{Code, Failure, Result};
use crate::protocol::{Call, Capabilities, Options, Verb};
use crate::secret::{MASK, Redactor};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// One driver as kubelet knows it between two probes.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Absolute: kubelet never searches.
    pub executable: PathBuf,
    /// How it is executed.
    pub terms: Terms,
    unsupported: BTreeSet<Verb>,
}

/// One call: what was asked, what came back, what kubelet makes of it.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// From the verb on, secrets masked: for people.
    pub arguments: Vec<String>,
    /// `None` if the verb is known to be missing: then kubelet does not execute the driver.
    pub run: Option<Run>,
    /// Secrets masked.
    pub verdict: Verdict,
}

impl Caller {
    /// A driver that was just found.
    pub fn new(executable: impl Into<PathBuf>) -> Self {
        Self { executable: executable.into(), terms: Terms::default(), unsupported: BTreeSet::new() }
    }

    /// Calls the driver, unless it once said that it lacks the verb.
    pub fn call(&mut self, call: &Call) -> Exchange {
        let (verb, arguments) = (call.verb(), shown(call));
        if self.unsupported.contains(&verb) {
            return Exchange { arguments, run: None, verdict: Verdict::NotSupported };
        }
        let exchange = self.execute(&call.to_arguments());
        if exchange.verdict == Verdict::NotSupported {
            self.unsupported.insert(verb);
        }
        let secrets = call.options().into_iter().flat_map(|options| options.secrets.values());
        let verdict = exchange.verdict.cleaned(&Redactor::new(secrets));
        Exchange { arguments, verdict, ..exchange }
    }

    /// Executes the driver with any arguments at all, and remembers nothing. They are shown as they are.
    pub fn execute(&self, arguments: &[OsString]) -> Exchange {
        let shown: Vec<_> = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let run = exec::run(&self.executable, arguments, &self.terms);
        let verdict = Verdict::of(shown.first().map_or("", String::as_str), &run);
        Exchange { arguments: shown, run: Some(run), verdict }
    }

    /// Calls `init`, which decides whether kubelet loads the driver and how it treats it.
    pub fn init(&mut self) -> (Exchange, Result<Capabilities>) {
        let exchange = self.call(&Call::Init);
        let capabilities = match &exchange.verdict {
            Verdict::Success(status) => status.capabilities.ok_or_else(|| {
                internal(
                    "capabilities are null, at which kubelet crashes: leave them out or make them an object",
                )
            }),
            other => Err(internal(&other.to_string())),
        };
        (exchange, capabilities)
    }

    /// The verbs that said `Not supported` so far.
    pub fn unsupported(&self) -> &BTreeSet<Verb> {
        &self.unsupported
    }
}

impl Exchange {
    /// How long the driver took; nothing if it was not executed.
    pub fn took(&self) -> Duration {
        self.run.as_ref().map_or(Duration::ZERO, |run| run.took)
    }

    /// What kubelet does not say but a person wants to know, of a call that went wrong.
    pub fn hint(&self) -> Option<String> {
        match self.run.as_ref().map(|run| &run.end)? {
            End::NotStarted(reason) => Some(format!("the driver cannot be executed: {reason}")),
            End::Signaled(signal) => Some(format!("the driver was killed by signal {signal}")),
            _ => None,
        }
    }
}

impl Verdict {
    fn cleaned(self, redactor: &Redactor) -> Self {
        match self {
            Self::Failure(Fault::Status { verb, status, message }) => Self::Failure(Fault::Status {
                verb,
                status: redactor.clean(&status),
                message: redactor.clean(&message),
            }),
            other => other,
        }
    }
}

fn internal(message: &str) -> Failure {
    Failure::new(Code::Internal, message)
}

/// argv for people: the value of every secret is masked.
fn shown(call: &Call) -> Vec<String> {
    let plain = call.options().map(Options::to_json);
    let masked = call.options().map(|options| masked(options).to_json());
    let show = |word: OsString| match (&plain, &masked) {
        (Some(plain), Some(masked)) if word == plain.as_str() => masked.clone(),
        _ => word.to_string_lossy().into_owned(),
    };
    call.to_arguments().into_iter().map(show).collect()
}

fn masked(options: &Options) -> Options {
    let mut masked = options.clone();
    for key in std::mem::take(&mut masked.secrets).into_keys() {
        masked.reserved.insert(format!("kubernetes.io/secret/{key}"), MASK.to_owned());
    }
    masked
}

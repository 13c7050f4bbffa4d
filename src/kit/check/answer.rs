//! One answer of a driver: the strict verdict, and what the answer was meant to be.

use super::evidence::{Evidence, Stopped};
use crate::fault_injection::Observed;
use flexvol_kubelet::{Asked, Diagnosis, End, Fault, Run, Verdict};
use flexvol_protocol::{Capabilities, DriverStatus};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// Limit for the part of an output that is shown, in bytes.
const SHOWN: usize = 2000;

/// One call and its result.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Path that was executed.
    pub executable: PathBuf,
    /// Arguments of the call, and the secrets in them.
    pub asked: Asked,
    /// Observations of the process.
    pub run: Run,
    /// Kubelet's verdict, as strict as kubelet is.
    pub verdict: Verdict,
    /// True if the kit disturbed the driver in a way that may prevent an answer: it killed the
    /// driver, or closed its output.
    pub disturbed: bool,
    /// True if the driver was stopped while the machine was too busy to tell whether it hung.
    pub unclear: bool,
    /// Observations of the fault injector and the tracer.
    pub observed: Observed,
    /// Verdict of the kit. It ignores noise around the answer, its spelling and the exit status.
    pub meant: Meant,
}

/// Intended meaning of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meant {
    /// The call worked.
    Success(DriverStatus),
    /// The driver does not have the verb.
    NotSupported,
    /// The call failed; the message.
    Failure(String),
    /// The output holds no answer.
    Nothing,
}

impl Answer {
    /// Builds the answer of a finished execution.
    pub fn new(executable: PathBuf, asked: Asked, run: Run, verdict: Verdict) -> Self {
        let meant = Meant::of(&verdict, &run);
        Self {
            executable,
            asked,
            run,
            verdict,
            disturbed: false,
            unclear: false,
            observed: Observed::default(),
            meant,
        }
    }

    /// Reports whether the call worked.
    pub fn is_success(&self) -> bool {
        matches!(self.meant, Meant::Success(_))
    }

    /// Reports whether the driver answered with a failure.
    pub fn is_failure(&self) -> bool {
        matches!(self.meant, Meant::Failure(_))
    }

    /// Returns the reason of a failure; empty otherwise.
    pub fn message(&self) -> &str {
        if let Meant::Failure(message) = &self.meant { message } else { "" }
    }

    /// Returns the fields of a success.
    pub fn status(&self) -> Option<&DriverStatus> {
        if let Meant::Success(status) = &self.meant { Some(status) } else { None }
    }

    /// Reports whether the driver hung, so that the kit stopped it.
    pub fn was_stopped(&self) -> bool {
        self.run.stopped.is_some() && self.run.exited.is_none()
    }

    /// Returns the time from the injection of a fault to the end of the driver.
    pub fn outlived(&self) -> Option<Duration> {
        self.run.exited?.checked_sub(self.observed.injected?)
    }

    /// Returns the JSON object that is the answer, without the noise around it.
    pub fn object(&self) -> Option<Value> {
        object_in(&self.run.output)
    }

    /// Reports whether kubelet could parse the answer.
    pub fn is_readable(&self) -> bool {
        matches!(
            self.verdict,
            Verdict::Success(_) | Verdict::NotSupported | Verdict::Failure(Fault::Status { .. })
        )
    }

    /// Describes kubelet's verdict, with secrets masked.
    pub fn reading(&self) -> String {
        self.asked.redactor().clean(&self.verdict.to_string())
    }

    /// Returns the duration of the call.
    pub fn took(&self) -> Duration {
        self.run.took
    }

    /// Fails if the call did not work. `expected` says what should have happened.
    pub fn succeeds(self, expected: &str) -> Result<Self, Stopped> {
        if self.is_success() {
            Ok(self)
        } else {
            Err(self.fails(format!("{expected}, but {}", self.shown())))
        }
    }

    /// Fails unless the driver answered with an explicit failure: not with a success or a missing
    /// verb, and not without an answer.
    pub fn refuses(self, expected: &str) -> Result<Self, Stopped> {
        if self.is_failure() {
            Ok(self)
        } else {
            Err(self.fails(format!("{expected}, but {}", self.shown())))
        }
    }

    /// Fails unless the driver reported success or failure. `situation` says what it had to handle.
    pub fn answers(self, situation: &str) -> Result<Self, Stopped> {
        if self.is_success() || self.is_failure() {
            Ok(self)
        } else {
            Err(self.fails(format!("{situation}, and {}", self.shown())))
        }
    }

    /// Builds the failure of a case, with this call as evidence.
    pub fn fails(&self, problem: impl Into<String>) -> Stopped {
        self.evidence(problem).into()
    }

    /// Blocks the case if the call did not work. `case` is the case about this call.
    pub fn or_blocked(self, case: &'static str) -> Result<Self, Stopped> {
        if self.is_success() {
            return Ok(self);
        }
        let problem = format!("{} is needed first, but {}", self.asked.verb(), self.shown());
        Err(Stopped::Blocked(case, Box::new(self.evidence(problem))))
    }

    /// Describes the answer in a few words.
    pub fn shown(&self) -> String {
        let words = match (&self.meant, self.was_stopped()) {
            (_, true) => "it did not end".to_owned(),
            (Meant::Success(_), _) => "it said Success".to_owned(),
            (Meant::NotSupported, _) => "it said Not supported".to_owned(),
            (Meant::Failure(message), _) if message.is_empty() => "it said Failure".to_owned(),
            (Meant::Failure(message), _) => format!("it said Failure: {message}"),
            (Meant::Nothing, _) => match &self.run.end {
                End::Exited(0) => "there is no answer in its output".to_owned(),
                end => format!("there is no answer in its output ({end})"),
            },
        };
        flexvol_protocol::text::one_line(&self.asked.redactor().clean(&words), 300)
    }

    /// Collects what an author needs to know about this call.
    pub fn evidence(&self, problem: impl Into<String>) -> Evidence {
        let diagnosis = Diagnosis::of(&self.executable, &self.asked, &self.run, &self.verdict);
        let mut kubelet = self.asked.redactor().clean(&self.verdict.to_string());
        if let Some(line) = diagnosis.event.or_else(|| diagnosis.log.into_iter().next()) {
            // The event usually holds the verdict, after the name of the step that failed.
            kubelet = if line.contains(&kubelet) { line } else { format!("{kubelet}; {line}") };
        }
        if let Some(sticky) = diagnosis.sticky {
            let _ = write!(kubelet, "; from now on {sticky}");
        }
        // The case knows a better fix for wrong behaviour. If the driver cannot be executed, only
        // the diagnosis knows why.
        let idle = matches!(self.run.end, End::NotStarted(_));
        let fix = diagnosis.findings.into_iter().next().filter(|_| idle).map(|finding| finding.fix);
        Evidence {
            problem: problem.into(),
            sent: self.asked.shown.iter().map(|word| flexvol_protocol::text::one_line(word, SHOWN)).collect(),
            came_back: self.came_back(),
            kubelet: flexvol_protocol::text::one_line(&kubelet, SHOWN),
            fix,
        }
    }

    fn came_back(&self) -> String {
        let output = String::from_utf8_lossy(&self.run.output);
        let mut text = flexvol_protocol::text::one_line(&self.asked.redactor().clean(&output), SHOWN);
        if text.is_empty() {
            text.push_str("nothing");
        }
        if self.run.end != End::Exited(0) {
            let _ = write!(text, ", {}", self.run.end);
        }
        text
    }
}

impl Meant {
    fn of(verdict: &Verdict, run: &Run) -> Self {
        match verdict {
            // A driver that exited has given its answer, even if another process still holds the
            // output.
            _ if run.stopped.is_some() && run.exited.is_none() => Self::Nothing,
            Verdict::Success(status) => Self::Success(status.clone()),
            Verdict::NotSupported => Self::NotSupported,
            Verdict::Failure(Fault::Status { status, message, .. }) if status == "Failure" => {
                Self::Failure(message.clone())
            }
            Verdict::Failure(_) => {
                object_in(&run.output).map_or(Self::Nothing, |object| Self::of_object(&object))
            }
        }
    }

    fn of_object(object: &Value) -> Self {
        let text =
            |key: &str| member(object, key).and_then(|value| value.as_str()).unwrap_or_default().to_owned();
        let status: String = text("status").to_lowercase().split_whitespace().collect();
        match status.as_str() {
            "success" | "succeeded" | "successful" | "ok" => Self::Success(DriverStatus {
                status: "Success".to_owned(),
                device: text("device"),
                attached: member(object, "attached").is_some_and(|value| *value == true || *value == "true"),
                capabilities: member(object, "capabilities").map(capabilities),
                ..DriverStatus::default()
            }),
            "notsupported" => Self::NotSupported,
            _ => Self::Failure(text("message")),
        }
    }
}

/// Finds the last object in the output that has a status.
fn object_in(output: &[u8]) -> Option<Value> {
    let text = String::from_utf8_lossy(output);
    let starts = text.char_indices().rev().filter(|(_, c)| *c == '{').map(|(at, _)| at);
    let mut objects = starts.filter_map(|at| {
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>();
        values.next()?.ok().filter(|value| member(value, "status").is_some())
    });
    objects.next()
}

/// Returns the value of a key. Like Go, ignores the case of keys.
pub(super) fn member<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    let mut members = object.as_object()?.iter();
    members.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// Reads the capabilities as they were meant: a boolean in quotes counts as a boolean.
fn capabilities(given: &Value) -> Capabilities {
    let or = |key: &str, otherwise: bool| match member(given, key) {
        Some(value) if *value == true || *value == "true" => true,
        Some(value) if *value == false || *value == "false" => false,
        _ => otherwise,
    };
    let default = Capabilities::KUBELET_DEFAULT;
    Capabilities {
        attach: or("attach", default.attach),
        selinux_relabel: or("selinuxRelabel", default.selinux_relabel),
        supports_metrics: or("supportsMetrics", default.supports_metrics),
        fs_group: or("fsGroup", default.fs_group),
        requires_fs_resize: or("requiresFSResize", default.requires_fs_resize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_found_in_noise_whatever_the_case_of_its_keys() {
        for (output, status) in [
            (r#"{"Status":"Success"}"#, Some("Success")),
            (r#"warning {"x":1} {"status":"Failure"} bye"#, Some("Failure")),
            (r#"{"status":"Failed"}{"STATUS":"Success"}"#, Some("Success")),
            (r#"{"message":"no"}"#, None),
        ] {
            let found = object_in(output.as_bytes());
            let found = found.as_ref().and_then(|object| member(object, "status")?.as_str());
            assert_eq!(found, status, "{output}");
        }
    }
}

//! Kubelet's judgement of one execution: `DriverCall.Run` of pkg/volume/flexvolume/driver-call.go.

use super::exec::{End, Run, Stop};
use flexvol_protocol::{DriverStatus, StatusKind};
use std::fmt;

/// Kubelet's conclusion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The call succeeded.
    Success(DriverStatus),
    /// The driver lacks the verb: kubelet does not call it again and works without it.
    NotSupported,
    /// The call failed and will be repeated.
    Failure(Fault),
}

/// Reasons why kubelet treats a call as failed. Shown in kubelet's own words, where it has some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The driver reported a failure.
    Status {
        /// The verb.
        verb: String,
        /// Usually `Failure`; every text except the two successful ones counts as a failure.
        status: String,
        /// The driver's message.
        message: String,
    },
    /// The driver said `Success` and then did not exit with 0.
    End(End),
    /// The output is not one JSON object of the right types. The text is Go's.
    Malformed(String),
    /// The driver had to be stopped.
    Stopped {
        /// Reason for the stop.
        why: Stop,
        /// True if the driver itself had ended, but a process that it started still held the
        /// output.
        held: bool,
    },
}

impl Verdict {
    /// Judges one execution.
    pub fn of(verb: &str, run: &Run) -> Self {
        if let Some(why) = run.stopped {
            return Self::Failure(Fault::Stopped { why, held: run.exited.is_some() });
        }
        let status = match DriverStatus::parse(&run.output) {
            Ok(status) => status,
            Err(malformed) => return Self::Failure(Fault::Malformed(malformed.to_string())),
        };
        match status.outcome() {
            StatusKind::NotSupported => Self::NotSupported,
            StatusKind::Success if run.end == End::Exited(0) => Self::Success(status),
            StatusKind::Success => Self::Failure(Fault::End(run.end.clone())),
            StatusKind::Failure => Self::Failure(Fault::Status {
                verb: verb.to_owned(),
                status: status.status,
                message: status.message,
            }),
        }
    }

    /// Reports whether kubelet continues with the next step.
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Success(_))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success(_) => f.write_str("Success"),
            Self::NotSupported => f.write_str("Not supported"),
            Self::Failure(fault) => fault.fmt(f),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status { verb, status, message } => {
                write!(f, "{verb} command failed, status: {status}, reason: {message}")
            }
            Self::End(end) => end.fmt(f),
            Self::Malformed(why) => f.write_str(why),
            Self::Stopped { why: Stop::OutputLimit, .. } => {
                f.write_str("output without end: kubelet would read on until its memory is full")
            }
            Self::Stopped { why: Stop::Told, .. } => f.write_str("told to stop before the driver had ended"),
            Self::Stopped { why: Stop::Patience, held: false } => {
                f.write_str("no end within the time given: kubelet would wait for ever")
            }
            Self::Stopped { why: Stop::Patience, held: true } => f.write_str(
                "a process that the driver left running holds its output: kubelet would wait for ever; close descriptors 1 and 2 in it",
            ),
        }
    }
}

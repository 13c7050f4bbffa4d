//! gRPC code for a driver's answer: one table from verdict to code. Pure.
//!
//! | answer | code |
//! |---|---|
//! | `Success` | OK |
//! | `Failure`, or any other status | INTERNAL, or what the [habits](super::habits) say its message means |
//! | `Not supported` where there is nothing else to do | UNIMPLEMENTED |
//! | no JSON, an exit status, too much output | INTERNAL |
//! | no end before the deadline | `DEADLINE_EXCEEDED` |
//! | stopped because `flexvold` ends | UNAVAILABLE |
//! | cannot be executed | `FAILED_PRECONDITION` |
//! | not now: no descriptor, process, memory or disk is left | `RESOURCE_EXHAUSTED` |
//!
//! kubelet treats `DEADLINE_EXCEEDED`, UNAVAILABLE, ABORTED and `RESOURCE_EXHAUSTED` as "may still
//! be going on", and all others as final.

use super::exhaustion;
use super::habits::Habits;
use flexvol_kubelet::{End, Exchange, Fault, Stop, Verdict};
use flexvol_protocol::failure::{Code as FailureCode, Failure};
use flexvol_protocol::text::one_line;
use tonic::{Code, Status};

/// Limit for the message of a status, in bytes; the message becomes a pod's Event.
const LIMIT: usize = 1024;

/// Returns the status of a call that did not succeed.
pub fn of_exchange(exchange: &Exchange, habits: &Habits) -> Status {
    let message = one_line(&exchange.verdict.to_string(), LIMIT);
    Status::new(code(exchange, habits), message)
}

fn code(exchange: &Exchange, habits: &Habits) -> Code {
    let end = exchange.run.as_ref().map(|run| &run.end);
    match (&exchange.verdict, end) {
        (_, Some(End::NotStarted(reason))) if exhaustion::is_reason(reason) => Code::ResourceExhausted,
        (_, Some(End::NotStarted(_))) => Code::FailedPrecondition,
        (Verdict::Success(_), _) => Code::Ok,
        (Verdict::NotSupported, _) => Code::Unimplemented,
        (Verdict::Failure(Fault::Stopped { why: Stop::Patience, .. }), _) => Code::DeadlineExceeded,
        (Verdict::Failure(Fault::Stopped { why: Stop::Told, .. }), _) => Code::Unavailable,
        (Verdict::Failure(Fault::Status { message, .. }), _) => meaning(message, habits),
        (Verdict::Failure(_), _) => Code::Internal,
    }
}

fn meaning(message: &str, habits: &Habits) -> Code {
    let message = message.to_lowercase();
    let found = habits.messages.iter().find(|rule| message.contains(&rule.contains.to_lowercase()));
    found.map_or(Code::Internal, |rule| rule.code)
}

/// Returns the status for an error of this process, not of the driver.
pub fn of_error(error: &anyhow::Error) -> Status {
    let code = match error.downcast_ref::<Failure>().map(Failure::code) {
        Some(FailureCode::BadCall | FailureCode::BadOptions | FailureCode::Denied) => Code::InvalidArgument,
        Some(FailureCode::NotFound) => Code::NotFound,
        Some(FailureCode::Conflict) => Code::FailedPrecondition,
        Some(FailureCode::Busy) => Code::Aborted,
        Some(FailureCode::Timeout) => Code::DeadlineExceeded,
        _ if exhaustion::is_cause(error) => Code::ResourceExhausted,
        _ => Code::Internal,
    };
    Status::new(code, one_line(&format!("{error:#}"), LIMIT))
}

#[cfg(test)]
mod tests {
    use super::super::habits::Meaning;
    use super::*;
    use flexvol_kubelet::Run;

    fn of(verdict: Verdict, end: End, habits: &Habits) -> Code {
        let run = Run { end, ..Run::nothing() };
        of_exchange(&Exchange { arguments: Vec::new(), run: Some(run), verdict }, habits).code()
    }

    fn failure(message: &str) -> Verdict {
        Verdict::Failure(Fault::Status {
            verb: "mount".into(),
            status: "Failure".into(),
            message: message.into(),
        })
    }

    #[test]
    fn the_table() {
        let full = std::io::Error::from_raw_os_error(24);
        let stopped = |why| Verdict::Failure(Fault::Stopped { why, held: false });
        let habits = Habits {
            messages: vec![Meaning { contains: "No Such share".into(), code: Code::NotFound }],
            ..Habits::default()
        };
        for (verdict, end, expected) in [
            (failure("broken"), End::Exited(1), Code::Internal),
            (failure("error: no such Share here"), End::Exited(1), Code::NotFound),
            (Verdict::NotSupported, End::Exited(0), Code::Unimplemented),
            (Verdict::Failure(Fault::Malformed("x".into())), End::Exited(0), Code::Internal),
            (Verdict::Failure(Fault::End(End::Exited(1))), End::Exited(1), Code::Internal),
            (stopped(Stop::Patience), End::Signaled(15), Code::DeadlineExceeded),
            (stopped(Stop::OutputLimit), End::Signaled(15), Code::Internal),
            (stopped(Stop::Told), End::Signaled(9), Code::Unavailable),
            (failure("x"), End::NotStarted("no such file".into()), Code::FailedPrecondition),
            (failure("x"), End::NotStarted(full.to_string()), Code::ResourceExhausted),
        ] {
            assert_eq!(of(verdict.clone(), end, &habits), expected, "{verdict}");
        }
    }

    #[test]
    fn messages_are_one_line() {
        let exchange = Exchange { arguments: Vec::new(), run: None, verdict: failure(&"a\nb".repeat(2000)) };
        let message = of_exchange(&exchange, &Habits::default()).message().to_owned();
        assert!(message.len() <= LIMIT && !message.contains('\n'));
        assert!(message.starts_with("mount command failed, status: Failure, reason: a; b"));
    }
}

//! Form of every answer, whatever the call: one JSON object that kubelet can read, in time, and
//! then the end of the output. All of it is watched.

pub(in crate::check) mod played;

use crate::check::answer::{Answer, member};
use crate::check::case::Seen;
use crate::check::case::{Case, How, Level, Scope};
use crate::check::evidence::Evidence;
use flexvol_kubelet::{End, Fault, Verdict};
use flexvol_protocol::VerbSet;
use flexvol_protocol::failure::MESSAGE_LIMIT;
use flexvol_protocol::text::seconds;
use serde_json::Value;

/// Limit for an output, in bytes: kubelet reads it into memory, and logs it if it cannot parse it.
const LARGEST: usize = 64 << 10;

/// Builds a case that looks at every call.
const fn watched(
    id: &'static str,
    level: Level,
    items: &'static [u8],
    [claim, reason, fix]: [&'static str; 3],
    look: fn(&Seen<'_>) -> Option<Vec<Evidence>>,
) -> Case {
    let (scope, needs) = (Scope::All, VerbSet::of(&[]));
    Case { id, level, scope, needs, items, claim, reason, fix, how: How::Watched(look) }
}

pub(in crate::check) const CASES: &[Case] = &[
    watched(
        "output::one_object",
        Level::Must,
        &[1, 33],
        [
            "every call is answered with one JSON object",
            "kubelet hands the whole output to one json.Unmarshal (driver-call.go: handleCmdResponse)",
            "print one object such as {\"status\":\"Success\"}, once, also for arguments you do not know",
        ],
        |seen| seen.calls(one_object),
    ),
    watched(
        "output::no_noise",
        Level::Must,
        &[1, 2],
        [
            "nothing is printed besides the answer, on standard error neither",
            "kubelet reads both outputs from one pipe; anything else in it voids the answer (driver-call.go: Run)",
            "point descriptors 1 and 2 at a log or /dev/null first, and print the answer to a copy of the old 1",
        ],
        |seen| seen.calls(noise),
    ),
    watched(
        "output::plain_text",
        Level::Must,
        &[3],
        [
            "the answer is UTF-8 without a byte order mark or NUL",
            "Go's JSON parser refuses a mark and a NUL, and replaces what is not UTF-8",
            "print UTF-8, and take out of a tool's words what is none",
        ],
        |seen| seen.calls(plain_text),
    ),
    watched(
        "output::status_words",
        Level::Must,
        &[4],
        [
            "the status is exactly Success or Not supported, or a word for failure",
            "kubelet compares the text; every other one, Not Supported for example, is a failure (driver-call.go)",
            "write \"Success\", \"Not supported\" or \"Failure\", in just this case and spacing",
        ],
        |seen| seen.calls(status_words),
    ),
    watched(
        "output::types",
        Level::Must,
        &[5],
        [
            "the fields kubelet knows have the types it knows: strings, true or false, whole numbers",
            "one field of a wrong type voids the whole answer, in every verb (driver-call.go: DriverStatus)",
            "write true without quotes, a device in quotes, and leave out what is not needed",
        ],
        |seen| seen.calls(types),
    ),
    watched(
        "output::success_exits_zero",
        Level::Must,
        &[6],
        [
            "a Success comes with exit status 0",
            "Success with any other exit status is a failure for kubelet, which calls it a driver bug (driver-call.go: Run)",
            "exit 0 after Success",
        ],
        |seen| seen.calls(success_exits_zero),
    ),
    watched(
        "output::failure_exits_zero",
        Level::Should,
        &[7],
        [
            "a Failure comes with exit status 0",
            "on any other exit status kubelet logs all arguments, secrets included (driver-call.go: Run)",
            "exit 0 whenever an answer was printed",
        ],
        |seen| seen.calls(failure_exits_zero),
    ),
    watched(
        "output::not_killed",
        Level::Must,
        &[8],
        [
            "no call ends by a signal or an abort",
            "without an answer kubelet says unexpected end of JSON input, and nobody learns why",
            "catch what can go wrong and answer Failure with the reason in message",
        ],
        |seen| seen.calls(not_killed),
    ),
    watched(
        "output::pipe_closed",
        Level::Must,
        &[9],
        [
            "the output is closed when the driver ends: nothing it started keeps it open",
            "kubelet reads to the end of the pipe and waits for ever for one that is kept open (exec: CombinedOutput)",
            "start a daemon with descriptors 0, 1 and 2 on /dev/null (setsid daemon </dev/null >/dev/null 2>&1 &)",
        ],
        |seen| seen.calls(pipe_closed),
    ),
    watched(
        "output::in_time",
        Level::Must,
        &[22],
        [
            "every call ends",
            "kubelet has no timeout but for waitforattach: the volume hangs until kubelet is restarted",
            "give every step that can hang a deadline (timeout 60 mount …), and answer Failure",
        ],
        |seen| seen.calls(in_time),
    ),
    watched(
        "output::size",
        Level::Should,
        &[15],
        [
            "an answer is smaller than 64 KiB",
            "kubelet keeps all of it in memory, and logs it if it is no good",
            "print the answer and nothing else; cut long messages",
        ],
        |seen| seen.calls(size),
    ),
    watched(
        "output::message",
        Level::Should,
        &[23],
        [
            "a Failure says why in one printable line of at most 1 KiB",
            "the message becomes an Event of the pod, which people read in a terminal",
            "put the reason and what to do into \"message\", as one line",
        ],
        |seen| seen.calls(message),
    ),
];

/// Reports whether kubelet cannot parse the output, although no signal ended the driver.
fn is_malformed(answer: &Answer) -> bool {
    let ended = matches!(answer.run.end, End::Signaled(_));
    matches!(answer.verdict, Verdict::Failure(Fault::Malformed(_))) && !ended
}

/// Returns the object at the start of a text, and the text after it.
fn object(text: &str) -> Option<(Value, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok().filter(Value::is_object)?;
    Some((value, text[values.byte_offset()..].trim()))
}

/// Returns the noise around the answer in an output, if there is any.
fn in_noise(output: &str) -> Option<String> {
    let (at, (_, after)) = output.char_indices().filter(|(_, c)| *c == '{').find_map(|(at, _)| {
        Some((at, object(&output[at..]).filter(|(value, _)| member(value, "status").is_some())?))
    })?;
    let noise = format!("{} {after}", output[..at].trim());
    let noise = noise.trim();
    (!noise.is_empty() && object(after).is_none()).then(|| noise.to_owned())
}

fn one_object(answer: &Answer) -> Option<Evidence> {
    if !is_malformed(answer) || has_strange_bytes(&answer.run.output).is_some() {
        return None;
    }
    let output = String::from_utf8_lossy(&answer.run.output);
    if in_noise(&output).is_some() {
        return None;
    }
    let what = match (&answer.run.end, object(output.trim())) {
        (End::NotStarted(why), _) => format!("the driver cannot be executed: {why}"),
        (_, Some((_, ""))) => return None,
        (_, Some(_)) => "it printed more than one object".to_owned(),
        _ if output.trim().is_empty() => "it printed nothing".to_owned(),
        _ => "it printed no JSON object".to_owned(),
    };
    Some(answer.evidence(what))
}

fn noise(answer: &Answer) -> Option<Evidence> {
    if !is_malformed(answer) || has_strange_bytes(&answer.run.output).is_some() {
        return None;
    }
    let noise = in_noise(&String::from_utf8_lossy(&answer.run.output))?;
    let noise = flexvol_protocol::text::one_line(&answer.asked.redactor().clean(&noise), 120);
    Some(answer.evidence(format!("besides the answer it printed: {noise}")))
}

fn has_strange_bytes(output: &[u8]) -> Option<&'static str> {
    match output {
        output if output.starts_with(b"\xef\xbb\xbf") => Some("the output begins with a byte order mark"),
        output if output.contains(&0) => Some("there is a NUL in the output"),
        output if std::str::from_utf8(output).is_err() => Some("the output is not UTF-8"),
        _ => None,
    }
}

fn plain_text(answer: &Answer) -> Option<Evidence> {
    has_strange_bytes(&answer.run.output).map(|what| answer.evidence(what))
}

fn status_words(answer: &Answer) -> Option<Evidence> {
    let Verdict::Failure(Fault::Status { status, .. }) = &answer.verdict else { return None };
    let plain: String = status.to_lowercase().chars().filter(char::is_ascii_lowercase).collect();
    let meant =
        matches!(plain.as_str(), "" | "success" | "succeeded" | "ok" | "notsupported" | "unsupported");
    meant.then(|| answer.evidence(format!("the status is {status:?}, which kubelet takes for a failure")))
}

fn types(answer: &Answer) -> Option<Evidence> {
    let Verdict::Failure(Fault::Malformed(why)) = &answer.verdict else { return None };
    let output = std::str::from_utf8(&answer.run.output).ok()?;
    let (_, after) = object(output.trim())?;
    after.is_empty().then(|| answer.evidence(why.clone()))
}

fn success_exits_zero(answer: &Answer) -> Option<Evidence> {
    let Verdict::Failure(Fault::End(end)) = &answer.verdict else { return None };
    let status = matches!(end, End::Exited(_));
    status.then(|| answer.evidence(format!("it says Success and ends with {end}")))
}

fn failure_exits_zero(answer: &Answer) -> Option<Evidence> {
    let End::Exited(code @ 1..) = answer.run.end else { return None };
    answer.is_failure().then(|| answer.evidence(format!("it says Failure and ends with exit status {code}")))
}

fn not_killed(answer: &Answer) -> Option<Evidence> {
    let End::Signaled(signal) = answer.run.end else { return None };
    let by_itself = answer.run.stopped.is_none();
    by_itself.then(|| answer.evidence(format!("the driver was ended by signal {signal}")))
}

fn pipe_closed(answer: &Answer) -> Option<Evidence> {
    answer.run.exited?;
    answer.run.closed.is_none().then(|| answer.evidence("something it started keeps the output open"))
}

fn in_time(answer: &Answer) -> Option<Evidence> {
    let hung = answer.was_stopped() && answer.run.exited.is_none();
    hung.then(|| answer.evidence(format!("it did not end within {} s", seconds(answer.took(), 0))))
}

fn size(answer: &Answer) -> Option<Evidence> {
    let bytes = answer.run.output.len();
    (bytes >= LARGEST).then(|| answer.evidence(format!("the output has {bytes} bytes")))
}

fn message(answer: &Answer) -> Option<Evidence> {
    if !answer.is_failure() {
        return None;
    }
    let message = answer.message();
    let what = match () {
        () if message.trim().is_empty() => "the failure has no message".to_owned(),
        () if message.len() > MESSAGE_LIMIT => format!("the message has {} bytes", message.len()),
        () if message.contains(char::is_control) => "there are control characters in the message".to_owned(),
        () => return None,
    };
    Some(answer.evidence(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_told_from_the_answer() {
        for (output, expected) in [
            ("warning: x\n{\"status\":\"Success\"}", Some("warning: x")),
            ("{\"status\":\"Success\"}\nbye", Some("bye")),
            ("{oops} {\"status\":\"Success\"}", Some("{oops}")),
            ("{\"status\":\"Success\"}", None),
            ("{\"status\":\"Success\"}{\"status\":\"Success\"}", None),
            ("usage: driver mount", None),
            ("", None),
        ] {
            assert_eq!(in_noise(output).as_deref(), expected, "{output}");
        }
    }
}

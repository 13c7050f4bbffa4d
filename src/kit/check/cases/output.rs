//! Form of every answer, whatever the call: one JSON object that kubelet can read, in time, and
//! then the end of the output. All of it is watched.

pub(in crate::check) mod played;

use crate::check::answer::{Answer, member};
use crate::check::case::{How, Scene};
use crate::check::evidence::Evidence;
use flexvol_kubelet::{End, Fault, Verdict};
use flexvol_protocol::failure::MESSAGE_LIMIT;
use flexvol_protocol::text::seconds;
use serde_json::Value;

/// Limit for an output, in bytes: kubelet reads it into memory, and logs it if it cannot parse it.
const LARGEST: usize = 64 << 10;

pub(in crate::check) const SCENES: &[Scene] = &[
    ("output::one_object", How::Watched(|seen| seen.calls(one_object))),
    ("output::no_noise", How::Watched(|seen| seen.calls(noise))),
    ("output::plain_text", How::Watched(|seen| seen.calls(plain_text))),
    ("output::status_words", How::Watched(|seen| seen.calls(status_words))),
    ("output::types", How::Watched(|seen| seen.calls(types))),
    ("output::success_exits_zero", How::Watched(|seen| seen.calls(success_exits_zero))),
    ("output::failure_exits_zero", How::Watched(|seen| seen.calls(failure_exits_zero))),
    ("output::not_killed", How::Watched(|seen| seen.calls(not_killed))),
    ("output::pipe_closed", How::Watched(|seen| seen.calls(pipe_closed))),
    ("output::in_time", How::Watched(|seen| seen.calls(in_time))),
    ("output::size", How::Watched(|seen| seen.calls(size))),
    ("output::message", How::Watched(|seen| seen.calls(message))),
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

//! Traces that one call would leave in kubelet: lines in its log, an Event of the pod, a verb that
//! is never called again. The diagnosis also names secrets in these traces and gives the driver's
//! author a fix for each problem.
//!
//! Pure: the result depends only on the arguments and on what was observed of the process.

use super::asked::Asked;
use super::exec::{End, Run};
use super::verdict::{Fault, Verdict};
use flexvol_protocol::secret::Redactor;
use flexvol_protocol::text::seconds;
use flexvol_protocol::{DriverStatus, Verb};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// Shortest time after the driver's end for which a held output is reported.
const LINGERING: Duration = Duration::from_millis(200);

/// Longest `init` that is not reported as slow: while it runs, kubelet cannot look up any volume
/// plugin.
const SLOW_INIT: Duration = Duration::from_secs(1);

/// Places where others could read a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum LeakPlace {
    /// Log of kubelet.
    Log,
    /// Event of the pod, readable for users of the namespace.
    Event,
}

/// One key of a Secret that would leak.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leak {
    /// Key of the secret.
    pub key: String,
    /// Place where the secret would appear.
    pub place: LeakPlace,
}

/// Problem that has to be fixed in the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Problem and its consequence.
    pub problem: String,
    /// Fix, as an instruction.
    pub fix: String,
}

/// Complete diagnosis of a call, secrets masked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    /// Lines that kubelet would log at its default verbosity.
    pub log: Vec<String>,
    /// Text of the pod's Event.
    pub event: Option<String>,
    /// Secrets that would appear in these texts.
    pub leaks: Vec<Leak>,
    /// Kubelet's replacement for the verb, if kubelet does not call the verb again until a file in
    /// the driver's directory changes.
    pub sticky: Option<&'static str>,
    /// Findings, most severe first.
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// Diagnoses a call to `executable`; `verdict` is kubelet's, with the secrets not yet masked.
    pub fn of(executable: &Path, asked: &Asked, run: &Run, verdict: &Verdict) -> Self {
        let verb = Verb::parse(asked.verb().as_ref());
        let (log, event) = (log(executable, asked, run, verdict), event(asked, verb, verdict));
        let redactor = asked.redactor();
        let lacks = *verdict == Verdict::NotSupported;
        Self {
            leaks: leaks(asked, run, &log, event.as_deref()),
            log: log.iter().map(|line| clean(&redactor, asked, line)).collect(),
            event: event.map(|event| redactor.clean(&event)),
            sticky: verb.filter(|_| lacks).map(|verb| verb.spec().not_supported),
            findings: findings(asked, verb, run, verdict),
        }
    }
}

/// Returns the log lines of `DriverCall.Run` and `handleCmdResponse`.
fn log(executable: &Path, asked: &Asked, run: &Run, verdict: &Verdict) -> Vec<String> {
    let (path, verb) = (executable.display(), asked.verb());
    let failed = run.end != End::Exited(0);
    let mut lines = Vec::new();
    match verdict {
        Verdict::Failure(Fault::Malformed(why)) => lines.push(format!(
            "Failed to unmarshal output for command: {verb}, output: {}, error: {why}",
            go_quoted(&run.output)
        )),
        Verdict::Failure(fault @ Fault::Status { .. }) => lines.push(fault.to_string()),
        Verdict::Failure(Fault::End(end)) => lines
            .push(format!("FlexVolume: driver bug: {path}: exec error ({end}) but no error in response.")),
        _ => {}
    }
    let answered_badly = matches!(verdict, Verdict::Failure(Fault::Malformed(_) | Fault::Status { .. }));
    if failed && answered_badly {
        let words: Vec<_> = asked.arguments.iter().map(|word| word.to_string_lossy()).collect();
        lines.push(format!(
            "FlexVolume: driver call failed: executable: {path}, args: [{}], error: {}, output: {}",
            words.join(" "),
            reason(&run.end),
            go_quoted(&run.output)
        ));
    }
    if verb == Verb::Init.name() && !verdict.is_success() {
        let directory = executable.parent().and_then(Path::file_name).unwrap_or_default();
        lines.push(format!(
            "Error dynamically probing plugins: error creating Flexvolume plugin from directory {}, skipping. Error: {verdict}",
            directory.display()
        ));
    }
    lines
}

/// Returns the error text of the process. Newer kubelets report an executable that cannot be
/// executed as one that cannot be found.
fn reason(end: &End) -> String {
    match end {
        End::NotStarted(_) => "executable file not found in $PATH".to_owned(),
        end => end.to_string(),
    }
}

/// Returns the pod's Event, for verbs whose failure becomes one. It names the failed operation in
/// kubelet's words.
fn event(asked: &Asked, verb: Option<Verb>, verdict: &Verdict) -> Option<String> {
    let Verdict::Failure(fault) = verdict else { return None };
    let operation = match verb? {
        Verb::Attach => "AttachVolume.Attach",
        Verb::Detach => "DetachVolume.Detach",
        Verb::WaitForAttach => "MountVolume.WaitForAttach",
        Verb::MountDevice => "MountVolume.MountDevice",
        Verb::Mount => "MountVolume.SetUp",
        Verb::ExpandFs => "MountVolume.NodeExpandVolume",
        _ => return None,
    };
    if matches!(fault, Fault::Stopped { .. }) {
        return None;
    }
    let named = asked.options().and_then(|options| options.volume_name);
    Some(format!("{operation} failed for volume {:?} : {fault}", named.unwrap_or_else(|| "…".to_owned())))
}

fn leaks(asked: &Asked, run: &Run, log: &[String], event: Option<&str>) -> Vec<Leak> {
    let argv_is_logged = log.iter().any(|line| line.contains(", args: ["));
    let output_is_logged = log.iter().any(|line| line.contains("output: "));
    let output = String::from_utf8_lossy(&run.output);
    let mut leaks = Vec::new();
    for (key, secret) in &asked.secrets {
        let redactor = Redactor::new([secret]);
        let holds = |text: &str| redactor.clean(text) != text;
        let in_log =
            argv_is_logged || output_is_logged && holds(&output) || log.iter().any(|line| holds(line));
        let places = [(in_log, LeakPlace::Log), (event.is_some_and(holds), LeakPlace::Event)];
        leaks.extend(
            places.into_iter().filter(|(there, _)| *there).map(|(_, place)| Leak { key: key.clone(), place }),
        );
    }
    leaks
}

/// Masks a log line for display: argv as it is shown, everything else without the secrets.
fn clean(redactor: &Redactor, asked: &Asked, line: &str) -> String {
    let masked = asked.arguments.iter().zip(&asked.shown).fold(line.to_owned(), |line, (raw, shown)| {
        let raw = raw.to_string_lossy();
        if *raw == **shown { line } else { line.replace(&*raw, shown) }
    });
    redactor.clean(&masked)
}

fn findings(asked: &Asked, verb: Option<Verb>, run: &Run, verdict: &Verdict) -> Vec<Finding> {
    let found = |problem: &str, fix: &str| Finding { problem: problem.into(), fix: fix.into() };
    let mut all = Vec::new();
    match verdict {
        Verdict::Failure(Fault::Malformed(_)) => all.push(malformed(run)),
        Verdict::Failure(fault) => all.extend(of_fault(fault)),
        Verdict::NotSupported if verb == Some(Verb::Init) => {
            all.push(found("without init the driver is not loaded", "answer init with Success"));
        }
        Verdict::NotSupported => {}
        Verdict::Success(status) => all.extend(verb.and_then(|verb| forgotten(verb, status, asked))),
    }
    if verb.is_none() {
        all.push(found("no kubelet calls such a verb", "see flexvol explain for those there are"));
    }
    let answered_badly = matches!(verdict, Verdict::Failure(Fault::Status { .. } | Fault::Malformed(_)));
    if answered_badly && !matches!(run.end, End::Exited(0) | End::NotStarted(_)) {
        let what = if asked.secrets.is_empty() { "all arguments" } else { "all arguments, the secrets too" };
        let problem = format!("because of its {} kubelet logs {what}", run.end);
        all.push(found(&problem, "exit 0 whenever an answer was printed, Failure included"));
    }
    if let Some(held) =
        run.closed.and_then(|closed| closed.checked_sub(run.exited?)).filter(|held| *held > LINGERING)
    {
        let problem = format!(
            "a process it left running held its output {} s longer, and kubelet waits for that",
            seconds(held, 1)
        );
        all.push(found(&problem, "close descriptors 1 and 2 in it (>/dev/null 2>&1)"));
    }
    if verb == Some(Verb::Init) && run.took > SLOW_INIT {
        let problem = "a slow init holds up every volume of the node";
        all.push(found(problem, "do nothing in init but print the capabilities"));
    }
    all
}

/// Returns the finding for a fault; `None` for a proper Failure.
fn of_fault(fault: &Fault) -> Option<Finding> {
    let (problem, fix) = match fault {
        Fault::Status { status, message, .. } if status == "Failure" && message.is_empty() => {
            ("it failed and does not say why".to_owned(), "put the reason into \"message\"")
        }
        Fault::Status { status, .. } if status == "Failure" => return None,
        Fault::Status { status, .. } => (
            format!("the status {status:?} counts as a failure"),
            "print exactly Success, Failure or Not supported",
        ),
        Fault::End(end) => (format!("it says Success and ends with {end}"), "exit 0 after Success"),
        Fault::Stopped { held: true, .. } => (
            "a process it left running holds its output, and kubelet waits for ever".to_owned(),
            "close descriptors 1 and 2 in it (>/dev/null 2>&1)",
        ),
        Fault::Stopped { .. } => (
            "it does not end, and kubelet waits for ever".to_owned(),
            "give every step a deadline, or --timeout",
        ),
        Fault::Malformed(why) => (why.clone(), "print one JSON object"),
    };
    Some(Finding { problem, fix: fix.into() })
}

/// Describes an output that is not one JSON object.
fn malformed(run: &Run) -> Finding {
    let first = run.output.iter().find(|byte| !byte.is_ascii_whitespace());
    let (problem, fix) = match (&run.end, first) {
        (End::NotStarted(why), _) => return not_started(why),
        (_, None) => ("it prints nothing", "print one JSON object such as {\"status\":\"Success\"}"),
        (_, Some(b'{')) => (
            "the output is not one JSON object and nothing else",
            "print one object with double quotes, true and false in small letters, and nothing after it, on \
             standard error neither",
        ),
        (_, Some(0xef)) => ("the output begins with a byte order mark", "print UTF-8 without one"),
        _ => (
            "there is something before the JSON object: standard error is read, too",
            "print nothing else on standard output or error: send messages to a log",
        ),
    };
    Finding { problem: problem.into(), fix: fix.into() }
}

fn not_started(why: &str) -> Finding {
    let fix = match why {
        why if why.contains("ermission denied") => {
            "make it executable (chmod 755), on a file system without noexec, for a user who may"
        }
        why if why.contains("o such file") => {
            "give the path of a file that is there; of a script, the program in its first line must be, too, \
             without a carriage return at its end"
        }
        why if why.contains("xec format") => {
            "begin a script with #!/bin/sh, and build a program for this machine"
        }
        why if why.contains("busy") => "never write into an executable in place: rename a new one over it",
        why if why.contains("too long") => "an argument may have 131071 bytes: make the Secret smaller",
        _ => "see execve(2)",
    };
    Finding { problem: format!("it cannot be executed: {why}"), fix: fix.into() }
}

/// Reports a field that is missing in a Success.
fn forgotten(verb: Verb, status: &DriverStatus, asked: &Asked) -> Option<Finding> {
    let had_device = || asked.shown.get(1).is_some_and(|device| !device.is_empty());
    let (problem, fix) = match verb {
        Verb::Init if status.capabilities.is_none() => {
            ("capabilities are null, at which kubelet crashes", "leave them out or make them an object")
        }
        Verb::IsAttached if !status.attached => (
            "without \"attached\":true the volume counts as detached, and is attached again",
            "say it if it is",
        ),
        Verb::WaitForAttach if status.device.is_empty() && had_device() => {
            ("without \"device\" the device is forgotten", "name it again")
        }
        Verb::Attach if status.device.is_empty() => {
            ("no device is named, and the next calls get none", "name it in \"device\", if there is one")
        }
        _ => return None,
    };
    Some(Finding { problem: problem.into(), fix: fix.into() })
}

/// Quotes bytes like Go's `%q`.
fn go_quoted(bytes: &[u8]) -> String {
    let mut quoted = "\"".to_owned();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            push_escaped(&mut quoted, c);
        }
        for byte in chunk.invalid() {
            let _ = write!(quoted, "\\x{byte:02x}");
        }
    }
    quoted.push('"');
    quoted
}

fn push_escaped(text: &mut String, c: char) {
    match c {
        '"' | '\\' => text.extend(['\\', c]),
        '\n' => text.push_str("\\n"),
        '\r' => text.push_str("\\r"),
        '\t' => text.push_str("\\t"),
        '\u{7}' => text.push_str("\\a"),
        '\u{8}' => text.push_str("\\b"),
        '\u{b}' => text.push_str("\\v"),
        '\u{c}' => text.push_str("\\f"),
        // Writing to a String cannot fail.
        c if c.is_ascii_control() => drop(write!(text, "\\x{:02x}", u32::from(c))),
        c if c.is_control() => drop(write!(text, "\\u{:04x}", u32::from(c))),
        c => text.push(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::{wording, wording_of};

    const PASSWORD: &str =
        r#"{"kubernetes.io/pvOrVolumeName":"v","kubernetes.io/secret/password":"aHVudGVyMg=="}"#;

    fn run(output: &[u8], code: i32) -> Run {
        let moment = Duration::from_millis(3);
        Run {
            end: End::Exited(code),
            exited: Some(moment),
            closed: Some(moment),
            took: moment,
            output: output.to_vec(),
            ..Run::nothing()
        }
    }

    fn of(arguments: &[&str], run: &Run) -> Diagnosis {
        let asked = Asked::new(arguments.iter().map(Into::into).collect());
        Diagnosis::of(Path::new("/p/a~b/b"), &asked, run, &Verdict::of(asked.verb(), run))
    }

    fn mount(output: &str, code: i32) -> Diagnosis {
        of(&["mount", "/d", PASSWORD], &run(output.as_bytes(), code))
    }

    #[test]
    fn a_good_answer_leaves_nothing() {
        assert_eq!(mount("{\"status\":\"Success\"}\n", 0), Diagnosis::default());
    }

    #[test]
    fn a_failure_with_exit_0_keeps_argv_out_of_the_log() {
        let diagnosis = mount(r#"{"status":"Failure","message":"no"}"#, 0);
        let words = "mount command failed, status: Failure, reason: no";
        assert_eq!(diagnosis.log, [words]);
        let event = format!("MountVolume.SetUp failed for volume \"v\" : {words}");
        assert_eq!(diagnosis.event.as_deref(), Some(event.as_str()));
        assert!(diagnosis.leaks.is_empty());
    }

    #[test]
    fn a_failure_with_exit_1_puts_every_secret_into_the_log() {
        let diagnosis = mount(r#"{"status":"Failure","message":"no"}"#, 1);
        let last = "FlexVolume: driver call failed: executable: /p/a~b/b, args: [mount /d \
                    {\"kubernetes.io/pvOrVolumeName\":\"v\",\"kubernetes.io/secret/password\":\"***\"}], \
                    error: exit status 1, output: \"{\\\"status\\\":\\\"Failure\\\",\\\"message\\\":\\\"no\\\"}\"";
        assert_eq!(diagnosis.log.last().unwrap(), last);
        assert_eq!(diagnosis.leaks, [Leak { key: "password".into(), place: LeakPlace::Log }]);
        assert!(diagnosis.findings.iter().any(|finding| finding.fix.starts_with("exit 0")));
        // This secret is too short for the search in texts.
        let short = of(&["mount", "/d", r#"{"kubernetes.io/secret/p":"aA=="}"#], &run(b"", 1));
        assert_eq!(short.leaks.len(), 1);
        assert!(!short.log.join("").contains("aA=="), "{:?}", short.log);
    }

    #[test]
    fn a_secret_in_the_message_reaches_the_event() {
        let diagnosis = mount(r#"{"status":"Failure","message":"login with hunter2 failed"}"#, 0);
        let places: Vec<_> = diagnosis.leaks.iter().map(|leak| leak.place).collect();
        assert_eq!(places, [LeakPlace::Log, LeakPlace::Event]);
        assert!(!format!("{diagnosis:?}").contains("hunter2"), "{diagnosis:?}");
    }

    #[test]
    fn a_secret_in_noise_reaches_the_log() {
        let diagnosis = mount("+ mount -o password=hunter2\n{\"status\":\"Success\"}", 0);
        assert_eq!(diagnosis.leaks, [Leak { key: "password".into(), place: LeakPlace::Log }]);
        assert!(
            diagnosis.log[0].starts_with("Failed to unmarshal output for command: mount, output: \"+ mount")
        );
        assert!(diagnosis.log[0].contains("password=***"), "{:?}", diagnosis.log);
        assert!(diagnosis.findings[0].problem.contains(wording("something-before")));
    }

    #[test]
    fn not_supported_says_what_kubelet_does_instead() {
        let diagnosis = mount(r#"{"status":"Not supported"}"#, 1);
        assert!(diagnosis.log.is_empty() && diagnosis.event.is_none());
        assert!(diagnosis.sticky.unwrap().contains(wording("global-directory")));
        let init = of(&["init"], &run(br#"{"status":"Not supported"}"#, 0));
        assert!(init.log[0].contains("from directory a~b, skipping. Error: Not supported"), "{:?}", init.log);
    }

    #[test]
    fn each_fault_has_its_fix() {
        let of_output =
            |output: &[u8], code| of(&["mount", "/d", "{}"], &run(output, code)).findings[0].clone();
        for (output, code, problem, fix) in [
            (&b""[..], 0, "prints nothing", "one JSON object"),
            (b"{'status': 'Success'}", 0, wording("output-not-one-object"), "double quotes"),
            (b"\xef\xbb\xbf{}", 0, "byte order mark", "without one"),
            (b"warning\n{}", 0, wording("something-before"), "to a log"),
            (br#"{"status":"success"}"#, 0, wording_of("counts-as-failure", ["success"]), "exactly Success"),
            (br#"{"status":"Failure"}"#, 0, wording("failure-without-reason"), "message"),
            (br#"{"status":"Success"}"#, 7, "ends with exit status 7", "exit 0 after Success"),
        ] {
            let finding = of_output(output, code);
            assert!(finding.problem.contains(problem) && finding.fix.contains(fix), "{finding:?}");
        }
        for (why, fix) in [
            ("Permission denied (os error 13)", "chmod 755"),
            ("No such file or directory (os error 2)", "first line"),
            ("Exec format error (os error 8)", "#!/bin/sh"),
            ("Text file busy (os error 26)", "rename"),
            ("Argument list too long (os error 7)", "131071"),
        ] {
            assert!(not_started(why).fix.contains(fix), "{why}");
        }
    }

    #[test]
    fn what_a_success_leaves_out_is_missed() {
        for (arguments, output, word) in [
            (&["isattached", "{}", "n"][..], r#"{"status":"Success"}"#, "counts as detached"),
            (&["waitforattach", "/dev/x", "{}"], r#"{"status":"Success"}"#, "forgotten"),
            (&["attach", "{}", "n"], r#"{"status":"Success"}"#, "no device"),
            (&["init"], r#"{"status":"Success","capabilities":null}"#, "crashes"),
            (&["frobnicate"], r#"{"status":"Success"}"#, "no kubelet calls"),
        ] {
            let findings = of(arguments, &run(output.as_bytes(), 0)).findings;
            assert!(findings[0].problem.contains(word), "{arguments:?}: {findings:?}");
        }
        assert!(of(&["waitforattach", "", "{}"], &run(br#"{"status":"Success"}"#, 0)).findings.is_empty());
    }

    #[test]
    fn a_held_output_is_noticed() {
        let mut late = run(br#"{"status":"Success"}"#, 0);
        late.closed = Some(Duration::from_secs(2));
        assert!(
            of(&["mount", "/d", "{}"], &late).findings[0].problem.contains("held its output 2.0 s longer")
        );
    }

    #[test]
    fn quotes_as_go_does() {
        assert_eq!(
            go_quoted(b"a\"\\\n\t\x01\x7f\xff\xc3\xa4\xc2\x85"),
            "\"a\\\"\\\\\\n\\t\\x01\\x7f\\xff\u{e4}\\u0085\""
        );
    }
}

//! Calls of a driver; the caller remembers, as kubelet does, the verbs that the driver lacks.

use super::exec::{self, End, Run, Terms};
use super::verdict::{Fault, Verdict};
use flexvol_protocol::failure::{Code, Failure, Result};
use flexvol_protocol::secret::{MASK, Redactor};
use flexvol_protocol::{Call, Capabilities, Options, Verb};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// One driver as kubelet knows it between two probes.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Absolute path: kubelet does not search.
    pub executable: PathBuf,
    /// Settings for its execution.
    pub terms: Terms,
    unsupported: BTreeSet<Verb>,
}

/// One call: arguments, answer, and kubelet's verdict.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Arguments from the verb on, secrets masked, for display.
    pub arguments: Vec<String>,
    /// `None` if the verb is known to be missing: kubelet then does not execute the driver.
    pub run: Option<Run>,
    /// Kubelet's verdict, secrets masked.
    pub verdict: Verdict,
}

impl Caller {
    /// Returns the caller for a driver that was just found.
    pub fn new(executable: impl Into<PathBuf>) -> Self {
        Self { executable: executable.into(), terms: Terms::default(), unsupported: BTreeSet::new() }
    }

    /// Calls the driver, unless it answered before that it lacks the verb.
    pub fn call(&mut self, call: &Call) -> Exchange {
        let (verb, arguments) = (call.verb(), masked(call));
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

    /// Executes the driver with arbitrary arguments and remembers nothing. The arguments are
    /// recorded without masking.
    pub fn execute(&self, arguments: &[OsString]) -> Exchange {
        Exchange::of(arguments, exec::run(&self.executable, arguments, &self.terms))
    }

    /// Calls `init`, which decides whether kubelet loads the driver and how it treats it.
    pub fn init(&mut self) -> (Exchange, Result<Capabilities>) {
        let exchange = self.call(&Call::Init);
        let capabilities = exchange.capabilities();
        (exchange, capabilities)
    }

    /// Returns the verbs that were answered with `Not supported` so far.
    pub fn unsupported(&self) -> &BTreeSet<Verb> {
        &self.unsupported
    }
}

/// Calls `init` of several drivers at the same time: one that hangs does not delay the others.
pub(super) fn init_each(executables: &[PathBuf], terms: &Terms) -> Vec<Exchange> {
    let arguments = Call::Init.to_arguments();
    let runs = exec::run_each(executables, &arguments, terms);
    runs.into_iter().map(|run| Exchange::of(&arguments, run)).collect()
}

impl Exchange {
    fn of(arguments: &[OsString], run: Run) -> Self {
        let arguments: Vec<_> = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let verdict = Verdict::of(arguments.first().map_or("", String::as_str), &run);
        Self { arguments, run: Some(run), verdict }
    }

    /// Returns the duration of the execution; zero if the driver was not executed.
    pub fn took(&self) -> Duration {
        self.run.as_ref().map_or(Duration::ZERO, |run| run.took)
    }

    /// Returns the capabilities that kubelet reads from the answer to `init`.
    pub fn capabilities(&self) -> Result<Capabilities> {
        match &self.verdict {
            Verdict::Success(status) => status.capabilities.ok_or_else(|| {
                internal(
                    "capabilities are null, at which kubelet crashes: leave them out or make them an object",
                )
            }),
            other => Err(internal(&other.to_string())),
        }
    }

    /// Returns the reason for a failed call, if kubelet itself does not report it.
    pub fn hint(&self) -> Option<String> {
        match self.run.as_ref().map(|run| &run.end)? {
            End::NotStarted(reason) => Some(format!("the driver cannot be executed: {reason}")),
            End::Signaled(signal) => Some(format!("the driver was killed by signal {signal}")),
            _ => None,
        }
    }
}

impl Verdict {
    #[inline(never)]
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

/// Returns argv from the verb on for display: the value of every secret is masked.
#[inline(never)]
pub fn masked(call: &Call) -> Vec<String> {
    let plain = call.options().map(Options::to_json);
    let without = call.options().map(|options| without_secrets(options).to_json());
    let show = |word: OsString| match (&plain, &without) {
        (Some(plain), Some(without)) if word == plain.as_str() => without.clone(),
        _ => word.to_string_lossy().into_owned(),
    };
    call.to_arguments().into_iter().map(show).collect()
}

fn without_secrets(options: &Options) -> Options {
    let mut masked = options.clone();
    for key in std::mem::take(&mut masked.secrets).into_keys() {
        masked.reserved.insert(format!("kubernetes.io/secret/{key}"), MASK.to_owned());
    }
    masked
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::exec::Stop;
    use super::*;
    use crate::pace::deadline;
    use crate::wording::wording;
    use flexvol_protocol::TargetPath;
    use flexvol_protocol::secret::Secret;
    use std::fs::{self, Permissions};
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;
    use tempfile::TempDir;

    /// A driver for one test.
    pub(in super::super) struct Script {
        pub(in super::super) dir: TempDir,
        pub(in super::super) caller: Caller,
    }

    pub(in super::super) fn script(body: &str) -> Script {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("driver");
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(format!("#!/bin/sh\n[ $# -gt 0 ] || exit 0\n{body}\n").as_bytes()).unwrap();
        drop(file);
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        let mut caller = Caller::new(path);
        // A child process of another test may still hold the file open for writing, between fork
        // and exec.
        while caller.execute(&[]).hint().is_some_and(|hint| hint.contains("busy")) {}
        caller.terms.patience = Duration::from_secs(20);
        Script { dir, caller }
    }

    fn verdict(body: &str) -> (Verdict, Run) {
        let exchange = script(body).caller.call(&Call::Init);
        (exchange.verdict, exchange.run.unwrap())
    }

    fn fault(body: &str) -> String {
        match verdict(body).0 {
            Verdict::Failure(fault) => fault.to_string(),
            other => panic!("{body}: {other}"),
        }
    }

    #[test]
    fn the_outcome_matrix() {
        let unexpected = "unexpected end of JSON input";
        for (body, expected) in [
            ("echo '{\"status\":\"Success\"}'; exit 1", "exit status 1"),
            ("echo '{\"status\":\"Success\"}'; kill -9 $$", "signal: 9"),
            (
                "echo '{\"status\":\"Failure\",\"message\":\"m\"}'",
                "init command failed, status: Failure, reason: m",
            ),
            ("echo '{\"status\":\"success\"}'; exit 2", "init command failed, status: success, reason: "),
            ("", unexpected),
            ("exit 3", unexpected),
            (
                "echo warn >&2; echo '{\"status\":\"Success\"}'",
                "invalid character 'w' looking for beginning of value",
            ),
            ("echo '{\"status\":\"Success\"}'; echo bye >&2", "invalid character 'b' after top-level value"),
        ] {
            assert_eq!(fault(body), expected, "{body}");
        }
        assert!(verdict("echo '{\"status\":\"Success\"}'").0.is_success());
        assert_eq!(verdict("echo '{\"status\":\"Not supported\"}'; exit 1").0, Verdict::NotSupported);
    }

    #[test]
    fn not_supported_sticks() {
        let Script { dir, mut caller } =
            script("echo x >> \"${0%/*}/log\"; echo '{\"status\":\"Not supported\"}'");
        let target = TargetPath::parse("/a".as_ref()).unwrap();
        for executed in [true, false, false] {
            let exchange = caller.call(&Call::Unmount { target: target.clone() });
            assert_eq!((exchange.run.is_some(), exchange.verdict), (executed, Verdict::NotSupported));
        }
        assert_eq!(fs::read_to_string(dir.path().join("log")).unwrap(), "x\n");
        assert_eq!(caller.unsupported().iter().collect::<Vec<_>>(), [&Verb::Unmount]);
    }

    #[test]
    fn a_held_pipe_is_told_from_a_hanging_driver() {
        let mut held = script("echo '{\"status\":\"Success\"}'; sleep 6000 &");
        held.caller.terms.patience = deadline(1);
        let exchange = held.caller.call(&Call::Init);
        let run = exchange.run.unwrap();
        assert_eq!(exchange.verdict, Verdict::Failure(Fault::Stopped { why: Stop::Patience, held: true }));
        assert!(run.exited.unwrap() < deadline(1) && run.closed.is_none());
        assert!(run.took < deadline(20), "the group is killed: {:?}", run.took);

        let mut hangs = script("sleep 60");
        hangs.caller.terms.patience = deadline(1);
        let exchange = hangs.caller.call(&Call::Init);
        let run = exchange.run.unwrap();
        assert_eq!(exchange.verdict, Verdict::Failure(Fault::Stopped { why: Stop::Patience, held: false }));
        assert_eq!((run.exited, run.end), (None, End::Signaled(15)));
    }

    #[test]
    fn a_child_that_lets_go_of_the_pipe_is_left_alone() {
        let (verdict, run) = verdict("sleep 600 >/dev/null 2>&1 & echo '{\"status\":\"Success\"}'");
        assert!(verdict.is_success() && run.took < deadline(20), "{:?}", run.took);
    }

    #[test]
    fn a_slow_child_s_output_belongs_to_the_answer() {
        let (verdict, run) = verdict("{ sleep 1; echo '{\"status\":\"Success\"}'; } &");
        assert!(verdict.is_success());
        assert!(run.exited.unwrap() + Duration::from_millis(100) < run.closed.unwrap());
    }

    #[test]
    fn output_is_limited() {
        let mut endless = script("exec yes");
        endless.caller.terms.output_limit = 100_000;
        let exchange = endless.caller.call(&Call::Init);
        let run = exchange.run.unwrap();
        assert_eq!(run.stopped, Some(Stop::OutputLimit));
        assert!(exchange.verdict.to_string().contains("without end") && run.output.len() < 200_000);
        let (verdict, run) =
            verdict("head -c 3000000 /dev/zero | tr '\\0' ' '; echo '{\"status\":\"Success\"}'");
        assert!(verdict.is_success() && run.output.len() > 3_000_000);
    }

    #[test]
    fn what_cannot_be_executed_has_no_output() {
        let script = script("exit 0");
        fs::set_permissions(&script.caller.executable, Permissions::from_mode(0o644)).unwrap();
        for path in [script.caller.executable.clone(), script.dir.path().join("nothing")] {
            let exchange = Caller::new(path).call(&Call::Init);
            assert_eq!(exchange.verdict.to_string(), "unexpected end of JSON input");
            assert!(exchange.hint().unwrap().starts_with(wording("driver-not-executable")));
        }
    }

    #[test]
    fn the_process_is_kubelet_s() {
        let mut script = script(
            r#"printf '{"status":"Failure","message":"%s %s %s %s"}' "$(pwd)" "$(readlink /proc/$$/fd/0)" \
            "$([ /proc/$$/fd/1 -ef /proc/$$/fd/2 ] && echo same)" "$(tr '\0' ' ' < /proc/$$/environ)""#,
        );
        script.caller.terms.environment = vec![("A".into(), "b".into())];
        let said = script.caller.call(&Call::Init).verdict.to_string();
        assert!(said.ends_with("reason: / /dev/null same A=b "), "{said}");
    }

    #[test]
    fn secrets_are_shown_to_the_driver_only() {
        let mut script = script(r#"printf '{"status":"Failure","message":"%s"}' "$(echo "$3" | tr -d '"')""#);
        let secrets = [("password".to_owned(), Secret::new(b"hunter2".to_vec()))].into();
        let target = TargetPath::parse("/a".as_ref()).unwrap();
        let options = Options { secrets, ..Options::default() };
        let exchange = script.caller.call(&Call::Mount { target, device: None, options });
        let raw = String::from_utf8(exchange.run.unwrap().output).unwrap();
        assert!(raw.contains("aHVudGVyMg=="), "{raw}");
        let shown = format!("{:?} {}", exchange.arguments, exchange.verdict);
        assert!(shown.contains("secret/password") && !shown.contains("aHVudGVyMg"), "{shown}");
    }

    #[test]
    fn null_capabilities_are_a_fault() {
        let capabilities = |answer: &str| script(&format!("echo '{answer}'")).caller.init().1;
        assert!(capabilities(r#"{"status":"Success","capabilities":{"attach":false}}"#).is_ok());
        let error = capabilities(r#"{"status":"Success","capabilities":null}"#).unwrap_err();
        assert!(error.message().contains(wording("capabilities-null")));
    }
}

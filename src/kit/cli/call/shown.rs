//! Prints a call, for people and for programs. Secrets are masked in both.

use super::Called;
use anyhow::Result;
use flexvol_kubelet::{End, LeakPlace, Run, Stop, Verdict};
use flexvol_protocol::shell::words;
use flexvol_protocol::text::one_line;
use flexvol_terminal::report::duration;
use flexvol_terminal::screen::{Screen, Tone};
use serde_json::{Value, json};
use std::time::Duration;

/// Limit for the output that is shown to people, in bytes.
const OUTPUT: usize = 4000;

/// Width of the names on the left.
const NAMES: usize = 9;

impl Called {
    /// Prints everything.
    pub(super) fn print(&self, screen: &mut Screen) -> Result<()> {
        if screen.wants_json() {
            return screen.json(&self.as_json());
        }
        let argv = words(&[&[self.executable.display().to_string()], &self.asked.shown[..]].concat());
        let environment: Vec<_> = self.environment().map(|(name, value)| format!("{name}={value}")).collect();
        fact(screen, "executed", &argv)?;
        fact(screen, "with", &format!("{} in /, input from /dev/null", environment.join(" ")))?;
        fact(screen, "process", &process(&self.run))?;
        fact(screen, "output", &output(&self.run))?;
        for line in one_block(&self.output()).lines() {
            fact(screen, "", &format!("| {line}"))?;
        }
        self.print_verdict(screen)?;
        self.print_findings(screen)
    }

    fn print_verdict(&self, screen: &mut Screen) -> Result<()> {
        let tone = match self.verdict {
            Verdict::Success(_) => Tone::Good,
            Verdict::Failure(_) => Tone::Bad,
            Verdict::NotSupported => Tone::Warning,
        };
        let verdict = screen.paint(tone, &self.said());
        fact(screen, "kubelet", &verdict)?;
        for line in &self.diagnosis.log {
            fact(screen, "log", &one_line(line, usize::MAX))?;
        }
        if let Some(event) = &self.diagnosis.event {
            fact(screen, "event", &one_line(event, usize::MAX))?;
        }
        if let Some(instead) = self.diagnosis.sticky {
            let verb = self.asked.verb();
            let text = format!(
                "{verb} is never called again until a file in the driver's directory changes: {instead}"
            );
            fact(screen, "memory", &text)?;
        }
        Ok(())
    }

    fn print_findings(&self, screen: &mut Screen) -> Result<()> {
        for leak in &self.diagnosis.leaks {
            let place = match leak.place {
                LeakPlace::Log => "kubelet's log",
                LeakPlace::Event => "the pod's Event",
            };
            let text = screen.paint(Tone::Bad, &format!("{} would be in {place}", leak.key));
            fact(screen, "secret", &text)?;
        }
        if self.diagnosis.leaks.is_empty() && !self.asked.secrets.is_empty() {
            fact(screen, "secret", "none would be in kubelet's log or an Event")?;
        }
        for finding in &self.diagnosis.findings {
            fact(screen, "fix", &format!("{}: {}", finding.problem, finding.fix))?;
        }
        Ok(())
    }

    /// Prints the lines in kubelet's log and nothing else.
    pub(super) fn print_log(&self, screen: &mut Screen) -> Result<()> {
        if screen.wants_json() {
            return screen.json(&self.diagnosis.log);
        }
        self.diagnosis.log.iter().try_for_each(|line| screen.line(&one_line(line, usize::MAX)))
    }

    fn as_json(&self) -> Value {
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        let (outcome, reply) = match &self.verdict {
            Verdict::Success(status) => ("success", Some(status)),
            Verdict::Failure(_) => ("failure", None),
            Verdict::NotSupported => ("notSupported", None),
        };
        let reply = reply.map(|status| {
            let redactor = self.asked.redactor();
            json!({"device": redactor.clean(&status.device), "attached": status.attached,
                "message": redactor.clean(&status.message)})
        });
        json!({
            "executable": self.executable, "arguments": self.asked.shown,
            "environment": self.environment().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>(),
            "end": self.run.end.to_string(), "exitedSeconds": seconds(self.run.exited),
            "closedSeconds": seconds(self.run.closed), "seconds": self.run.took.as_secs_f64(),
            "held": is_held(&self.run), "output": self.output(), "outcome": outcome, "verdict": self.said(),
            "reply": reply, "log": self.diagnosis.log, "event": self.diagnosis.event,
            "leaks": self.diagnosis.leaks, "notSupported": self.diagnosis.sticky,
            "findings": self.diagnosis.findings,
        })
    }

    fn environment(&self) -> impl Iterator<Item = (String, String)> {
        let text = |word: &std::ffi::OsString| word.to_string_lossy().into_owned();
        self.environment.iter().map(move |(name, value)| (text(name), text(value)))
    }

    fn output(&self) -> String {
        self.asked.redactor().clean(&String::from_utf8_lossy(&self.run.output))
    }

    fn said(&self) -> String {
        one_line(&self.asked.redactor().clean(&self.verdict.to_string()), usize::MAX)
    }
}

fn fact(screen: &mut Screen, name: &str, text: &str) -> Result<()> {
    screen.line(format!("{name:<NAMES$} {text}").trim_end())
}

fn process(run: &Run) -> String {
    match run.exited {
        None if matches!(run.end, End::NotStarted(_)) => run.end.to_string(),
        Some(after) => format!("{} after {}", run.end, duration(after)),
        None => format!("{} after {}, stopped", run.end, duration(run.took)),
    }
}

fn output(run: &Run) -> String {
    let bytes = run.output.len();
    match run.closed {
        Some(after) => format!("{bytes} bytes, ended after {}", duration(after)),
        None if is_held(run) => format!("{bytes} bytes, still held by a process the driver left running"),
        None if run.stopped.is_some() => format!("{bytes} bytes, without end"),
        None => "none".to_owned(),
    }
}

/// Reports whether the output was still open after the driver had ended.
fn is_held(run: &Run) -> bool {
    run.exited.is_some() && run.closed.is_none() && run.stopped == Some(Stop::Patience)
}

/// Replaces unprintable characters, keeps line breaks, and cuts text that is too long.
fn one_block(text: &str) -> String {
    let end = text.floor_char_boundary(OUTPUT.min(text.len()));
    let more =
        if end < text.len() { format!("\n… {} bytes more", text.len() - end) } else { String::new() };
    let plain = |c: char| if flexvol_protocol::text::is_unprintable(c) && c != '\n' { '?' } else { c };
    text[..end].chars().map(plain).chain(more.chars()).collect()
}

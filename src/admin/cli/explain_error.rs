//! `flexvol explain-error`.

use anyhow::{Context as _, Result};
use clap::Args;
use flexvol_model::diagnostics::known_errors::SAID;
use flexvol_model::diagnostics::{self, Confidence, Explained};
use flexvol_terminal::screen::{Screen, Tone, wrap};
use serde_json::{Value, json};
use std::io::{self, Read as _};
use std::process::ExitCode;

/// Limit for the part of standard input that is read, in bytes.
const LIMIT: u64 = 1 << 16;

/// Option that clap takes for a part of the text, as it begins with a hyphen. No error text has it.
const JSON: &str = "--json";

/// Width of the words on the left.
const NAMES: usize = 9;

/// Explain an error text from a pod's Event, kubelet's log or mount(8)
#[derive(Args)]
#[command(after_help = "\
Takes off what kubelet puts around the driver's words, says what kubelet did, why it went wrong, how that is fixed, and what to \
run next; of a text that only says that something failed, who knows why. What is of CSI or of what Kubernetes has built in, and no \
FlexVolume, is called so. Nothing is sent anywhere, and no argument of a logged call is repeated: those hold secrets.

Examples:
  flexvol explain-error 'MountVolume.SetUp failed for volume \"v\" : unexpected end of JSON input'
  flexvol explain-error 'mount error(13): Permission denied'
  kubectl get events --field-selector reason=FailedMount -o jsonpath='{.items[-1:].message}' | flexvol explain-error -
  journalctl -u kubelet | grep -i flexvolume | tail -1 | flexvol explain-error - --json

Exit status: 0 understood, 1 not, 2 wrong usage.")]
pub(super) struct ExplainError {
    /// Error text, in quotes or not; - reads it from standard input
    #[arg(required = true, allow_hyphen_values = true)]
    text: Vec<String>,
}

impl ExplainError {
    /// Reports whether the option for JSON follows the text.
    pub(super) fn wants_json(&self) -> bool {
        self.text.last().is_some_and(|word| word == JSON)
    }

    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        let explained = diagnostics::explain(&self.text()?);
        match &explained {
            _ if screen.wants_json() => screen.json(&as_json(explained.as_ref()))?,
            Some(explained) => show(explained, screen)?,
            None => screen.text(
                "nothing in it is known: explain the whole Event (kubectl describe pod), or look with sudo flexvol doctor\n",
            )?,
        }
        Ok(if explained.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn text(&self) -> Result<String> {
        let words = &self.text[..self.text.len() - usize::from(self.wants_json())];
        if words != ["-"] {
            return Ok(words.join(" "));
        }
        let mut bytes = Vec::new();
        io::stdin().take(LIMIT).read_to_end(&mut bytes).context("read standard input")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn show(explained: &Explained, screen: &mut Screen) -> Result<()> {
    for did in &explained.did {
        fact(screen, "kubelet", None, did)?;
    }
    match explained.confidence {
        Confidence::Cause => fact(screen, "cause", Some(Tone::Bad), explained.known_error.cause)?,
        // The text contains the cause.
        Confidence::Hint if explained.known_error.id == SAID.id => {
            fact(screen, "cause", Some(Tone::Bad), SAID.cause)?;
        }
        Confidence::Hint => {
            fact(screen, "cause", Some(Tone::Bad), "unknown: flexvol does not know it from this text")?;
            fact(screen, "hint", None, explained.known_error.cause)?;
        }
    }
    fact(screen, "fix", Some(Tone::Good), explained.known_error.fix)?;
    screen.line(&format!("{:<NAMES$} {}", "next", explained.next()))
}

/// Prints one name and its text, broken between words.
fn fact(screen: &mut Screen, name: &str, tone: Option<Tone>, text: &str) -> Result<()> {
    let wrapped = wrap(text, NAMES + 1, screen.width());
    let name = format!("{name:<NAMES$}");
    let name = tone.map_or(name.clone(), |tone| screen.paint(tone, &name));
    screen.text(&format!("{name} {}", wrapped.trim_start()))
}

fn as_json(explained: Option<&Explained>) -> Value {
    match explained {
        None => json!({"understood": false}),
        Some(explained) => json!({
            "understood": true,
            "id": explained.known_error.id,
            "confidence": match explained.confidence {
                Confidence::Cause => "cause",
                Confidence::Hint => "hint",
            },
            "kubelet": explained.did,
            "cause": explained.known_error.cause,
            "fix": explained.known_error.fix,
            "next": explained.next(),
        }),
    }
}

//! Step of the `exec` driver: runs a command of the side file with its secrets in private files,
//! and verifies its mount.

use super::context::{Context, denied, open_place};
use super::undo::Undo;
use super::unmount;
use crate::hints::after_rollback;
use crate::hints::with_hint;
use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flexvol_linux::fs::opened;
use flexvol_linux::mount::place::Look;
use flexvol_linux::mount::{self, Way};
use flexvol_linux::proc::helper::{HelperExit, Invocation, last_words};
use flexvol_linux::proc::process;
use flexvol_model::plan::{Answer, Run, Word};
use flexvol_protocol::TargetPath;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::ordered::filled;
use flexvol_protocol::secret::Secret;
use flexvol_protocol::text::one_line;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Limit for an answer, in bytes: no path is longer.
const LONGEST_ANSWER: usize = 4096;

pub(super) fn run(context: &mut Context<'_>, run: &Run) -> Result<Option<Undo>> {
    if let Some(target) = &run.unmounts {
        return unmount_by_command(context, run, target);
    }
    match command(context, run).and_then(|printed| restrict(run).map(|()| printed)) {
        Ok(printed) => {
            answer(context, run.answer, &printed)?;
            Ok(run.mounts.clone().map(Undo::Unmount))
        }
        Err(error) => Err(run.mounts.iter().fold(error, failed)),
    }
}

/// Rolls back a command that mounts and then fails: kubelet's next look would take the mount for a
/// success. Returns the command's own error, and adds a mount that stays.
fn failed(error: anyhow::Error, target: &TargetPath) -> anyhow::Error {
    // This comes first: processes left by the command could mount again, or keep the mount busy.
    process::end_children();
    let undone = open_place(target).and_then(|place| unmount::take_off(&place));
    after_rollback(error, undone, format_args!("a mount at {target}"))
}

/// Restricts the mount, so that no flag of the command's own choice lets a tenant become root. The
/// second look reports a missing or dead mount.
fn restrict(run: &Run) -> Result<()> {
    let (Some(target), Some(flags)) = (&run.mounts, run.flags) else { return Ok(()) };
    let place = open_place(target)?;
    match place.look()? {
        Look::Mount(_) => mount::restrict(&place, flags, Way::Detached),
        _ => Ok(()),
    }
}

/// Unmounts by a command. Ignores its failure: the next step unmounts the rest, or reports an
/// error.
fn unmount_by_command(context: &mut Context<'_>, run: &Run, target: &TargetPath) -> Result<Option<Undo>> {
    context.refuse_foreign(target)?;
    if matches!(open_place(target)?.look()?, Look::Mount(_) | Look::Dead(_)) {
        let _ = command(context, run);
    }
    Ok(None)
}

/// Runs the command. Returns its output, if that is an answer.
fn command(context: &Context<'_>, run: &Run) -> Result<String> {
    let (program, words) = run.argv.split_first().context("the plan names no program")?;
    let mut invocation = match program {
        Word::Program(name) => Invocation::of(name),
        Word::Text(path) => Invocation::at(Path::new(path)),
        _ => return Err(denied("a command must begin with the absolute path of a program".into())),
    };
    let mut files = Vec::new();
    let args = words
        .iter()
        .map(|word| argument(context, &mut invocation, &mut files, word, run))
        .collect::<Result<Vec<_>>>()?;
    invocation = invocation.args(args).mask(run.secrets.values());
    if run.secrets_on_stdin {
        invocation = invocation.stdin(as_json(&run.secrets)?);
    }
    if run.mounts.is_some() {
        invocation = invocation.daemon();
    }
    if run.answer != Answer::Nothing {
        invocation = invocation.answering();
    }
    let outcome = context.tools().run(invocation)?;
    if outcome.success() { Ok(outcome.answer) } else { Err(complaint(&program.to_string(), &outcome)) }
}

fn complaint(program: &str, outcome: &HelperExit) -> anyhow::Error {
    // A script may print the reason to either stream.
    let said = last_words(&format!("{}{}", outcome.answer, outcome.output));
    let said = if said.is_empty() { "without a word".into() } else { format!("saying: {}", with_hint(said)) };
    Failure::new(Code::Internal, format!("{program} failed ({}) {said}", outcome.status)).into()
}

/// Returns an argument; for a secret, the path of a file in memory that only root and the command
/// can open.
fn argument(
    context: &Context<'_>,
    invocation: &mut Invocation,
    files: &mut Vec<OwnedFd>,
    word: &Word,
    run: &Run,
) -> Result<String> {
    match word {
        Word::Text(text) => Ok(text.clone()),
        Word::Program(name) => Ok((*name).to_owned()),
        Word::Server(named) => Ok(named.with(&context.reached()?.name)),
        Word::Secret { before, key } => {
            let file =
                private_file(run.secrets.get(key).context("the plan names a secret it does not have")?)?;
            let path = invocation.keep(file.as_fd())?;
            files.push(file);
            Ok(format!("{before}{}", path.display()))
        }
        Word::File { .. } | Word::Scratch { .. } => anyhow::bail!("a command has no files of its own"),
    }
}

fn private_file(secret: &Secret) -> Result<OwnedFd> {
    opened::in_memory("flexvol-secret", secret.expose()).context("make a file in memory")
}

fn as_json(secrets: &BTreeMap<String, Secret>) -> Result<Secret> {
    let encoded: BTreeMap<_, _> =
        filled(secrets.iter().map(|(key, secret)| (key, STANDARD.encode(secret.expose()))));
    Ok(Secret::new(serde_json::to_vec(&encoded)?))
}

fn answer(context: &mut Context<'_>, answer: Answer, printed: &str) -> Result<()> {
    match answer {
        Answer::Nothing => {}
        Answer::Device => context.fields.device = Some(one_answer(printed, "the device")?),
        Answer::VolumeName => context.fields.volume_name = Some(one_answer(printed, "the volume's name")?),
        Answer::Attached => {
            let wanted = "true or false";
            let line = one_answer(printed, wanted)?;
            context.fields.attached = Some(line.parse().map_err(|_| no_answer(printed, wanted))?);
        }
    }
    Ok(())
}

/// Returns the only line that is not empty. Any other line may be a warning, and must not become a
/// device to format.
fn one_answer(printed: &str, wanted: &str) -> Result<String> {
    let mut lines = printed.lines().map(str::trim).filter(|line| !line.is_empty());
    match (lines.next(), lines.next()) {
        (Some(line), None) if line.len() <= LONGEST_ANSWER => Ok(line.to_owned()),
        _ => Err(no_answer(printed, wanted)),
    }
}

fn no_answer(printed: &str, wanted: &str) -> anyhow::Error {
    let printed = match one_line(printed, 200) {
        line if line.is_empty() => "nothing".to_owned(),
        line => format!("{line:?}, which is no answer"),
    };
    let text = format!(
        "the command printed {printed}: let it print {wanted} on one line, and anything else on standard error"
    );
    Failure::new(Code::Internal, text).into()
}

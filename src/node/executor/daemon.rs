//! Steps of drivers whose mounts are served by a program: FUSE.
//!
//! * The program's input lies in a [`Private`] directory below /run. The target's name alone is
//!   enough to find it again: a lost record does not matter.
//! * The volume counts as mounted when the mount exists and answers. Another process asks it,
//!   because that may hang.
//! * If the program ends earlier, its last words are the reason. Everything it started is ended,
//!   and its files are removed.
//! * The unmount lets the program write back what pods have written, then ends it with all it has
//!   started. A program that does not answer any more is ended first, because a mount whose server
//!   is gone cannot be unmounted otherwise.

use super::context::{Context, open_place};
use super::home::Home;
use super::mount_pod::{self, Served};
use super::tools_root;
use super::undo::Undo;
use super::unmount;
use crate::hints::with_hint;
use crate::hints::{after_rollback, describe};
use anyhow::{Context as _, Result};
use flexvol_linux::fs::directory::Directory;
use flexvol_linux::mount::place::{Answer, Look, Place};
use flexvol_linux::mount::{self, Way};
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::{Invocation, Runner, Tools};
use flexvol_linux::proc::process;
use flexvol_model::plan::{Daemon, Word};
use flexvol_protocol::TargetPath;
use flexvol_protocol::failure::{Code, Failure};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Pause between two looks at a daemon that has not mounted yet.
const TICK: Duration = Duration::from_millis(10);

/// Limit for one health check of a mount that was just made; between two checks the daemon itself
/// is checked.
const MOMENT: Duration = Duration::from_secs(1);

/// Limit for a first listing: a healthy server may have to list a million names.
const FIRST_LISTING_WAIT: Duration = Duration::from_secs(20);

/// Limit for the answer of a mount that is to be unmounted; then it counts as silent.
const ANSWER: Duration = Duration::from_secs(10);

/// Limit for davfs2's index, in bytes.
const INDEX_LIMIT: usize = 1 << 24;

/// Part of an unmount's time that is reserved for the work after the daemon's end.
const RESERVE: Duration = Duration::from_secs(5);

/// Removes the identities of the node from a program's environment: root's Kerberos tickets and the
/// machine's role in a cloud are not for tenants.
pub(super) fn without_identity(program: Invocation) -> Invocation {
    let nothing = [("KRB5CCNAME", "FILE:/dev/null"), ("KRB5_CLIENT_KTNAME", "FILE:/dev/null")];
    let program = nothing.into_iter().fold(program, |program, (name, value)| program.env(name, value));
    program.env("AWS_EC2_METADATA_DISABLED", "true")
}

/// Starts the daemon with everything it needs.
fn launch(home: &Home, daemon: &Daemon, context: &Context<'_>) -> Result<Served> {
    let pod = mount_pod::of(context, &daemon.target)?;
    let root = tools_root::of(context)?;
    let on_node = root.as_ref().map_or(context.runner, |root| root as &dyn Runner);
    let runner = pod.as_ref().map_or(on_node, |pod| pod as &dyn Runner);
    let tools = Tools { runner, deadline: &context.deadline };
    runner.find(daemon.program)?;
    let mut helper = without_identity(Invocation::of(daemon.program));
    home.make(!daemon.log.is_empty(), daemon.scratch)?;
    // The note comes before any start in the pod, so that the cleanup finds the pod.
    pod.as_ref().map_or(Ok(()), |pod| home.note(&pod.note()))?;
    let mut masked = home.write(&daemon.files, tools)?;
    if let Some(content) = &daemon.stdin {
        helper = helper.stdin(home.content(content, tools, &mut masked)?);
    }
    let words = |words: &[Word]| words.iter().map(|word| home.word(word)).collect::<Result<Vec<_>>>();
    if !daemon.probe.is_empty() {
        let probe =
            without_identity(Invocation::of(daemon.program)).args(words(&daemon.probe)?).mask(&masked);
        probed(daemon, probe, tools)?;
    }
    let helper = helper.args(words(&daemon.words)?).mask(&masked);
    let memory = context.settings.policy.memory_limit();
    if let Some(pod) = pod {
        let there = pod.launch(&helper, &home.name(), memory, &context.deadline)?;
        return Ok(Served::There(Box::new(there)));
    }
    let helper = match &root {
        Some(root) => root.program(helper),
        None => helper,
    };
    helper.launch(&home.limited_scope(memory)).map(Served::Here)
}

/// Lists the source once before it is mounted, so that a wrong server or path fails at once.
///
/// A listing that still runs after [`FIRST_LISTING_WAIT`] counts as a success: the program itself
/// gives up sooner if the server does not answer. If the call has less time left than that, the
/// listing has to end.
fn probed(daemon: &Daemon, probe: Invocation, tools: Tools<'_>) -> Result<()> {
    let asked = Deadline::after(FIRST_LISTING_WAIT.min(tools.deadline.remaining()));
    match tools.until(&asked).run(probe) {
        Ok(outcome) if !outcome.success() => {
            let text = format!("cannot find {}: {}", daemon.from, describe(&outcome, daemon.program));
            Err(Failure::new(Code::NotFound, text).into())
        }
        Err(error) if !asked.expired() => Err(error),
        _ => tools.deadline.check(&format!("asking for {}", daemon.from)).map_err(Into::into),
    }
}

/// Performs the step.
pub(super) fn serve(context: &Context<'_>, daemon: &Daemon) -> Result<Option<Undo>> {
    let home = Home::of(&daemon.target);
    home.end(Duration::ZERO)
        .and_then(|()| take_off_late(&daemon.target))
        .and_then(|()| remove_traces(&daemon.traces))
        .context("remove what a killed call left")?;
    let served = undo_of(&daemon.target, started(context, daemon, &home));
    if served.is_err() {
        remove_traces(&daemon.traces)?;
    }
    served
}

/// Unmounts what the daemon has mounted just before it was ended. Earlier, nothing was mounted.
fn take_off_late(target: &TargetPath) -> Result<()> {
    let Some(place) = Place::open(target)? else { return Ok(()) };
    match place.look()? {
        Look::Mount(_) | Look::Dead(_) => unmount::take_off(&place),
        Look::Missing | Look::Plain(_) => Ok(()),
    }
}

/// Returns the undo of a step that succeeded. If it failed, removes what it left.
pub(super) fn undo_of(target: &TargetPath, done: Result<()>) -> Result<Option<Undo>> {
    match done {
        Ok(()) => Ok(Some(Undo::EndDaemon(target.clone()))),
        Err(error) => Err(after_rollback(error, undo(target), format_args!("a mount at {target}"))),
    }
}

/// Unmounts, ends the daemon, and removes its files.
pub(super) fn undo(target: &TargetPath) -> Result<()> {
    let home = Home::of(target);
    home.end_processes(Duration::ZERO);
    process::end_children();
    unmount::take_off(&open_place(target)?)?;
    home.end(Duration::ZERO)
}

fn started(context: &Context<'_>, daemon: &Daemon, home: &Home) -> Result<()> {
    let mut running = launch(home, daemon, context)?;
    let place = open_place(&daemon.target)?;
    let said = |running: &Served| said(daemon, home, running);
    loop {
        // Checked before the mount: a daemon that has ended has mounted by now, or never will.
        let ended = running.ended()?;
        let served = is_served(&place, MOMENT.min(context.deadline.remaining()));
        if has_given_up(daemon, &running) {
            let text = format!("{} gave up {}:{}", daemon.program, daemon.from, said(&running));
            return Err(Failure::new(Code::NotFound, text).into());
        }
        if served {
            let restricted = mount::restrict(&place, daemon.flags, Way::Detached);
            // Some daemons mount before they know that there is nothing to mount.
            if restricted.is_ok() || matches!(place.look(), Ok(Look::Mount(_))) {
                return restricted.and_then(|()| running.keep());
            }
        }
        if let Some(status) = ended
            && !(status.success() && running.has_others())
        {
            let killed =
                if status.signal() == Some(9) { ", as for more memory than policy.maxMemory" } else { "" };
            let text = format!(
                "{} could not mount {} ({status}{killed}){}",
                daemon.program,
                daemon.from,
                said(&running)
            );
            return Err(Failure::new(Code::Internal, text).into());
        }
        if let Err(failure) = context.deadline.check(&format!("waiting for {} to mount", daemon.program)) {
            let text = format!("{failure}: {}{}", daemon.from, said(&running));
            return Err(Failure::new(failure.code(), text).into());
        }
        std::thread::sleep(TICK);
    }
}

/// Reports whether the daemon says that it has nothing to serve, though it runs on or has mounted.
fn has_given_up(daemon: &Daemon, running: &Served) -> bool {
    !daemon.futile.is_empty() && running.words().contains(daemon.futile)
}

/// Reports whether the mount exists and answers.
fn is_served(place: &Place, wait: Duration) -> bool {
    matches!(place.look(), Ok(Look::Mount(_))) && place.ask(wait) == Answer::Alive
}

/// Returns the end of a message: the daemon's last words.
fn said(daemon: &Daemon, home: &Home, running: &Served) -> String {
    let words = match running.words() {
        words if words.is_empty() && !daemon.log.is_empty() => running.told(&home.log(daemon.log)),
        words => words,
    };
    match words {
        words if words.is_empty() => " without a word: do server, path and secret exist".to_owned(),
        words => format!(" saying: {}", with_hint(words)),
    }
}

/// Reports whether a daemon of this target, or anything that belongs to it, is left.
pub(super) fn is_left(target: &TargetPath) -> bool {
    Home::of(target).is_left()
}

/// Removes what a daemon has left, when nothing is mounted at the target any more.
pub(super) fn sweep(target: &TargetPath) -> Result<()> {
    if is_left(target) { Home::of(target).end(Duration::ZERO) } else { Ok(()) }
}

/// Performs the step that unmounts.
pub(super) fn unmount(
    context: &Context<'_>,
    target: &TargetPath,
    patience: u32,
    traces: &[PathBuf],
) -> Result<()> {
    let patience = Duration::from_secs(patience.into());
    let home = Home::of(target);
    if let Some(place) = Place::open(target)? {
        context.refuse_foreign(target)?;
        let wait = ANSWER.min(context.deadline.remaining() / 4);
        if matches!(place.look()?, Look::Mount(_)) && place.ask(wait) == Answer::Silent {
            home.end_processes(Duration::ZERO);
            mount::abort(&place);
        }
        unmount::unmount(context, target)?;
    }
    home.end(patience.min(context.deadline.remaining().saturating_sub(RESERVE)))?;
    take_off_late(target)?;
    remove_traces(traces)
}

/// Removes what the program leaves outside its own directories: files below /run, and caches.
fn remove_traces(traces: &[PathBuf]) -> Result<()> {
    for trace in traces {
        let (Some(parent), Some(name)) = (trace.parent(), trace.file_name()) else { continue };
        if let Some(end) = name.as_encoded_bytes().strip_prefix(b"*") {
            // A leftover cache blocks no volume.
            let _ = remove_saved(parent, end);
        } else if trace.starts_with("/run") {
            Directory::open(parent)?.map_or(Ok(()), |parent| parent.remove(name))?;
        }
    }
    Ok(())
}

/// Removes the caches of davfs2 whose names end with `end`. A cache with data that no server has
/// stays: the data can still be saved by hand.
fn remove_saved(parent: &Path, end: &[u8]) -> Result<()> {
    let Some(caches) = Directory::open(parent)? else { return Ok(()) };
    for name in caches.names()?.iter().filter(|name| name.as_encoded_bytes().ends_with(end)) {
        let index = caches.child(name)?.map(|cache| cache.read("index", INDEX_LIMIT)).transpose()?.flatten();
        if index.is_some_and(|index| is_saved(&String::from_utf8_lossy(&index))) {
            caches.remove_tree(name)?;
        }
    }
    Ok(())
}

/// Reports whether davfs2's index says that all is saved. davfs2 writes that after a normal end: no
/// file is newer than the server's, and none was put aside because the server did not take it.
fn is_saved(index: &str) -> bool {
    let aside = index.rsplit_once("<d:backup>").and_then(|(_, rest)| rest.split_once("</d:backup>"));
    aside.is_none_or(|(aside, _)| !aside.contains("<d:reg>"))
        && !index.contains("<d:dirty>")
        && index.trim_end().ends_with("</d:root>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_removed_only_if_all_of_it_is_saved() {
        let index = |file: &str, aside: &str| {
            format!("<d:root><d:dir><d:reg>{file}</d:reg></d:dir><d:backup>{aside}</d:backup></d:root>\n")
        };
        assert!(is_saved(&index("<d:size>7</d:size>", "<d:mode>1</d:mode>")));
        assert!(!is_saved(&index("<d:dirty>1</d:dirty>", "")));
        assert!(!is_saved(&index("", "<d:reg></d:reg>")));
        assert!(!is_saved(&index("", "")[..30]) && !is_saved(""));
    }
}

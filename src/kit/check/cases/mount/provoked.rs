//! Mounts that fail because something is wrong with their options, with the node or with a server.

use super::tools::Tools;
use super::{abandon, can_write, end, read_only};
use crate::check::answer::Answer;
use crate::check::attempt::plainly;
use crate::check::evidence::{Played, Stopped, skip};
use crate::check::footprint::Footprint;
use crate::check::staging::{make_directory, remove_directory};
use crate::check::subject::Subject;
use crate::sandbox::Network;
use flexvol_kubelet::PodVolume;
use flexvol_protocol::Access;
use flexvol_protocol::secret::Secret;
use std::ffi::OsString;

/// Limit for the number of programs whose failure is tried.
const MOST_PROGRAMS: usize = 12;

/// Limit for the number of options that are spoilt one by one.
const MOST_OPTIONS: usize = 8;

/// Text that is no name, number, path, size or mode.
const NONSENSE: &str = "no such thing: check";

/// Mistake in a mount that should make it fail.
enum Flaw {
    /// The options are cut off.
    CutOff,
    /// The type of the file system does not exist.
    FileSystem,
    /// The value of an option is nonsense.
    Value(String),
    /// All secrets are wrong.
    Secrets,
}

impl Flaw {
    fn all(volume: &PodVolume) -> Vec<Self> {
        let mut flaws = vec![Self::CutOff, Self::FileSystem];
        flaws.extend(volume.options.own.keys().take(MOST_OPTIONS).cloned().map(Self::Value));
        flaws.extend((!volume.options.secrets.is_empty()).then_some(Self::Secrets));
        flaws
    }

    fn words(&self) -> String {
        match self {
            Self::CutOff => "with options that are cut off".to_owned(),
            Self::FileSystem => format!("with fsType {NONSENSE:?}"),
            Self::Value(key) => format!("with {NONSENSE:?} for option {key}"),
            Self::Secrets => "with wrong secrets".to_owned(),
        }
    }

    fn arguments(&self, volume: &PodVolume) -> Result<Vec<OsString>, Stopped> {
        let mut flawed = volume.clone();
        match self {
            Self::CutOff => {
                let arguments = volume.mount_call()?.to_arguments();
                return Ok(arguments.into_iter().take(2).chain([r#"{"kubernetes.io/"#.into()]).collect());
            }
            Self::FileSystem => flawed.options.fs_type = Some(NONSENSE.to_owned()),
            Self::Value(key) => drop(flawed.options.own.insert(key.clone(), NONSENSE.to_owned())),
            Self::Secrets => {
                for secret in flawed.options.secrets.values_mut() {
                    *secret = Secret::new(b"wrong".to_vec());
                }
            }
        }
        Ok(flawed.mount_call()?.to_arguments())
    }
}

/// A mount that failed.
struct Failed<'a> {
    volume: &'a PodVolume,
    before: &'a Footprint,
    answer: &'a Answer,
    /// Description of the fault, for the middle of a sentence.
    flaw: &'a str,
}

/// Check of what a failed mount leaves.
type Judge = fn(&Subject<'_>, &Failed<'_>) -> Played;

/// Makes mounts fail in all known ways.
fn provoke(subject: &mut Subject<'_>, judge: Judge) -> Played {
    let mut failures = 0;
    for flaw in Flaw::all(&subject.volume()?) {
        let call =
            |subject: &mut Subject<'_>, volume: &PodVolume| Ok(subject.execute(&flaw.arguments(volume)?));
        failures += usize::from(attempt(subject, &flaw.words(), judge, call)?);
    }
    for nth in 1..=MOST_PROGRAMS {
        let mut started = 0;
        let flaw = format!("when program {nth} that it starts fails");
        let call = |subject: &mut Subject<'_>, volume: &PodVolume| {
            let (answer, programs) = with_failing(subject, &read_only(volume), nth)?;
            started = programs;
            Ok(answer)
        };
        failures += usize::from(attempt(subject, &flaw, judge, call)?);
        if started < nth {
            break;
        }
    }
    if failures == 0 {
        return skip("nothing was found that makes a mount fail");
    }
    Ok(())
}

/// Reports whether the mount failed. Unmounts a volume that is mounted in spite of the fault.
fn attempt(
    subject: &mut Subject<'_>,
    flaw: &str,
    judge: Judge,
    call: impl FnOnce(&mut Subject<'_>, &PodVolume) -> Result<Answer, Stopped>,
) -> Result<bool, Stopped> {
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let before = Footprint::of(subject)?;
    let answer = call(subject, &volume)?;
    if answer.is_success() {
        if subject.layers(&volume)? == 0 {
            let problem = format!("{flaw} it says Success, and nothing is mounted");
            return Err(Stopped::Blocked("mount::tools_that_fail", Box::new(answer.evidence(problem))));
        }
        subject.take_down(&volume)?;
        return Ok(false);
    }
    judge(subject, &Failed { volume: &volume, before: &before, answer: &answer, flaw })?;
    abandon(subject, &volume, &answer)?;
    Ok(true)
}

/// Makes a mount in which the `nth` program fails. Also returns how many programs were started.
fn with_failing(
    subject: &mut Subject<'_>,
    volume: &PodVolume,
    nth: usize,
) -> Result<(Answer, usize), Stopped> {
    let _tools = Tools::failing(subject, nth)?;
    let answer = subject.call(&volume.mount_call()?);
    Ok((answer, Tools::started()?))
}

pub(super) fn leaves_nothing(subject: &mut Subject<'_>) -> Played {
    provoke(subject, |subject, failed| {
        let target = failed.volume.target()?;
        let grown = failed.before.grown(subject, target.as_path())?;
        if grown.is_empty() {
            return Ok(());
        }
        Err(failed.answer.fails(format!("{} the mount fails and leaves {}", failed.flaw, grown.join(", "))))
    })
}

pub(super) fn leaves_directory(subject: &mut Subject<'_>) -> Played {
    provoke(subject, |_, failed| match remove_directory(failed.volume.target()?.as_path()) {
        Ok(()) => Ok(()),
        Err(error) => {
            let flaw = failed.flaw;
            let what = format!("{flaw} the mount fails, and then the directory cannot be removed: {error}");
            Err(failed.answer.fails(what))
        }
    })
}

pub(super) fn tools_that_fail(subject: &mut Subject<'_>) -> Played {
    let mut started = 0;
    // A read-only mount may have one more step.
    for make in [PodVolume::clone, read_only] {
        for nth in 1..=MOST_PROGRAMS {
            let programs = tool_that_fails(subject, make, nth)?;
            started += programs;
            if programs < nth {
                break;
            }
        }
    }
    if started == 0 {
        let why = "the driver starts none of the programs that can be made to fail";
        return skip(why);
    }
    Ok(())
}

/// Makes a mount in which the `nth` program fails. Returns how many programs were started.
fn tool_that_fails(
    subject: &mut Subject<'_>,
    make: fn(&PodVolume) -> PodVolume,
    nth: usize,
) -> Result<usize, Stopped> {
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let asked = make(&volume);
    let (answer, started) = with_failing(subject, &asked, nth)?;
    if answer.is_success() && started >= nth {
        let flaw = format!("program {nth} that it started has failed, it said Success, and");
        if subject.layers(&volume)? == 0 {
            return Err(answer.fails(format!("{flaw} nothing is mounted")));
        }
        let may_write = asked.options.access() == Access::ReadWrite;
        if !may_write && subject.facts.writable && can_write(&volume).is_ok() {
            return Err(answer.fails(format!("{flaw} a pod that may only read can write")));
        }
    }
    end(subject, &volume, &answer)?;
    Ok(started)
}

pub(super) fn backend_down(subject: &mut Subject<'_>) -> Played {
    if subject.given.network != Network::Machine {
        return skip("needs a driver whose server is there (--network host)");
    }
    let (volume, inside) = (subject.volume()?, subject.inside);
    let before = before_any_call(subject, &volume)?;
    for _ in 0..2 {
        // A driver that attaches contacts its server before `mount`.
        let answer = inside.without_network(|| subject.attempt(&volume, &plainly))??.answer;
        if answer.is_success() {
            subject.clear(&volume)?;
            return skip("the volume is mounted without a network");
        }
        if answer.was_stopped() {
            return Err(answer.fails("without a network the mount does not end"));
        }
        let grown = left_of(subject, &volume, &before)?;
        if !grown.is_empty() {
            return Err(
                answer.fails(format!("without a network the mount fails and leaves {}", grown.join(", ")))
            );
        }
        subject.clear(&volume)?;
    }
    subject.stage(&volume)?;
    subject.mount(&volume)?.succeeds("the network is back")?;
    subject.take_down(&volume)
}

/// Records the state before any call, with the directories that kubelet makes.
fn before_any_call(subject: &Subject<'_>, volume: &PodVolume) -> Result<Footprint, Stopped> {
    make_directory(volume.target()?.as_path())?;
    if subject.attaches() {
        make_directory(volume.global()?.as_path())?;
    }
    Footprint::of(subject)
}

/// Lists what a failure leaves, after `detach` has removed what `attach` brought to the node.
fn left_of(
    subject: &mut Subject<'_>,
    volume: &PodVolume,
    before: &Footprint,
) -> Result<Vec<String>, Stopped> {
    let target = volume.target()?;
    let grown = before.grown(subject, target.as_path())?;
    if grown.is_empty() || !subject.attaches() {
        return Ok(grown);
    }
    subject.clear(volume)?;
    before.grown(subject, target.as_path())
}

//! Calls that do not run to their end: killed, told to end, or without a reader for the answer.
//!
//! A call is traced once, to learn what it does, and then interrupted again and again: right after
//! each of its changes, and at system calls over its whole length.

mod plan;
mod told;

use crate::check::answer::Answer;
use crate::check::case::{How, Scene};
use crate::check::evidence::{Played, Stopped};
use crate::check::given::Nature;
use crate::check::in_time::is_late;
use crate::check::staging::{is_mounted, make_directory, put, remove_directory};
use crate::check::subject::Subject;
use crate::fault_injection::{FaultInjection, Signal, Target};
use flexvol_kubelet::PodVolume;
use flexvol_protocol::Verb;
use flexvol_protocol::text::seconds;
use plan::Plan;
use std::time::Duration;

const MOUNT_WORKS: &str = "mount::works";
/// Case about an unmount without a mount, which these cases do very often.
const NOT_MOUNTED: &str = "unmount::not_mounted";
const UNMOUNT_WORKS: &str = "unmount::works";
const THEN_UNMOUNT: &str = "crash::killed_mount_then_unmount";
const THEN_MOUNT: &str = "crash::killed_mount_then_mount";
const KILLED_UNMOUNT: &str = "crash::killed_unmount";

/// Interval between two expensive checks, in faults: these checks cost more than they show.
const SAMPLE: usize = 3;

/// Delay that a mount may have because another one was killed.
const DELAY: Duration = Duration::from_secs(5);

pub(in crate::check) const SCENES: &[Scene] = &[
    (THEN_UNMOUNT, How::Played(killed_mount_then_unmount)),
    (THEN_MOUNT, How::Played(killed_mount_then_mount)),
    (KILLED_UNMOUNT, How::Played(killed_unmount)),
    ("crash::lock_is_freed", How::Played(lock_is_freed)),
    ("crash::closed_reader", How::Played(told::closed_reader)),
    ("crash::terminated_mount", How::Played(told::terminated_mount)),
    ("crash::terminated_unmount", How::Played(told::terminated_unmount)),
];

fn killed_mount_then_unmount(subject: &mut Subject<'_>) -> Played {
    let plan = Plan::learn(subject, Verb::Mount)?;
    for fault in plan.faults(Signal::Kill) {
        let volume = fresh(subject)?;
        let killed = plan.interrupted(subject, fault, |subject| subject.mount(&volume))?;
        let expected =
            format!("mount was {}; unmount is to take away what it did", plan.when(&killed, fault));
        let answer = subject.unmount(&volume)?.succeeds(&expected)?;
        plan.gone(subject, &volume, &answer, &expected)?;
    }
    plan.end(subject)
}

fn killed_mount_then_mount(subject: &mut Subject<'_>) -> Played {
    let plan = Plan::learn(subject, Verb::Mount)?;
    for fault in plan.faults(Signal::Kill) {
        let volume = fresh(subject)?;
        let killed = plan.interrupted(subject, fault, |subject| subject.mount(&volume))?;
        let when = format!("mount was {}", plan.when(&killed, fault));
        up(subject, &plan, &volume, (&killed, &when))?;
        blocked(THEN_UNMOUNT, down(subject, &plan, &volume))?;
    }
    plan.end(subject)
}

fn killed_unmount(subject: &mut Subject<'_>) -> Played {
    let plan = Plan::learn(subject, Verb::Unmount)?;
    for (index, fault) in plan.faults(Signal::Kill).enumerate() {
        let volume = fresh(subject)?;
        subject.mount(&volume)?.or_blocked(MOUNT_WORKS)?;
        let killed = plan.interrupted(subject, fault, |subject| subject.unmount(&volume))?;
        let when = format!("unmount was {}", plan.when(&killed, fault));
        let expected = format!("{when}; the next one is to end it");
        let answer = subject.unmount(&volume)?.succeeds(&expected)?;
        plan.gone(subject, &volume, &answer, &expected)?;
        if index % SAMPLE == 0 {
            up(subject, &plan, &volume, (&answer, &when))?;
            blocked(UNMOUNT_WORKS, down(subject, &plan, &volume))?;
        }
    }
    plan.end(subject)
}

fn lock_is_freed(subject: &mut Subject<'_>) -> Played {
    let plan = Plan::learn(subject, Verb::Mount)?;
    for fault in plan.faults(Signal::Kill).step_by(SAMPLE) {
        let fault = FaultInjection { target: Target::Group, ..fault };
        let killed_volume = fresh(subject)?;
        let killed = plan.interrupted(subject, fault, |subject| subject.mount(&killed_volume))?;
        let alone = subject.given.is(Nature::Exclusive);
        let volume = if alone {
            blocked(THEN_UNMOUNT, down(subject, &plan, &killed_volume))?;
            make_directory(killed_volume.target()?.as_path())?;
            killed_volume.clone()
        } else {
            fresh(subject)?
        };
        let other = if alone { "the next one" } else { "that of another pod" };
        let expected = format!("a mount was {}; {other} is to work", plan.when(&killed, fault));
        let answer = subject.mount(&volume)?.succeeds(&expected)?;
        if is_late(answer.took(), DELAY + plan.took * 5)? {
            let took = seconds(answer.took(), 1);
            return Err(answer.fails(format!("{expected} at once, but took {took} s")));
        }
        subject.unmount(&volume)?.or_blocked(UNMOUNT_WORKS)?;
        blocked(THEN_UNMOUNT, down(subject, &plan, &killed_volume))?;
        remove_directory(volume.target()?.as_path())?;
    }
    plan.end(subject)
}

/// Returns the volume for another pod, with nothing but its directory made.
fn fresh(subject: &mut Subject<'_>) -> Result<PodVolume, Stopped> {
    let volume = subject.volume()?;
    make_directory(volume.target()?.as_path())?;
    Ok(volume)
}

/// Brings the volume up as a pod needs it: mounted once, and writable. Kubelet mounts nothing where
/// something is mounted. `before` is the call before, `when` says what happened to it.
fn up(subject: &mut Subject<'_>, plan: &Plan, volume: &PodVolume, (before, when): (&Answer, &str)) -> Played {
    let target = volume.target()?;
    let answer = if is_mounted(&target)? {
        before.clone()
    } else {
        make_directory(target.as_path())?;
        subject.mount(volume)?.succeeds(&format!("{when}; the next mount is to work"))?
    };
    plan.mounted(subject, volume, &answer, when)?;
    if subject.facts.writable
        && let Err(error) = put(&target.as_path().join("check"), "written by a pod")
    {
        return Err(answer.fails(format!("{when}; then nothing can be written to the volume: {error}")));
    }
    Ok(())
}

/// Takes the volume out of the pod.
fn down(subject: &mut Subject<'_>, plan: &Plan, volume: &PodVolume) -> Played {
    let expected = "unmount is to take the volume away";
    let answer = subject.unmount(volume)?.succeeds(expected)?;
    plan.gone(subject, volume, &answer, expected)
}

/// Turns a failure into a block by the case that is about it.
fn blocked(case: &'static str, played: Played) -> Played {
    played.map_err(|stopped| match stopped {
        Stopped::Failed(evidence) => Stopped::Blocked(case, evidence),
        other => other,
    })
}

/// Fails if something is mounted at the directory, or kubelet cannot remove it.
fn removed(volume: &PodVolume, answer: &Answer, expected: &str) -> Played {
    let target = volume.target()?;
    if is_mounted(&target)? {
        return Err(answer.fails(format!("{expected}, but the directory is still a mount point")));
    }
    remove_directory(target.as_path()).map_err(|error| {
        answer.fails(format!("{expected}, but kubelet cannot remove the directory afterwards: {error}"))
    })
}

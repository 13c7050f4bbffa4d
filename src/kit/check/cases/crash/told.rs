//! Calls that are told to end, or whose answer is not read.

use super::plan::Plan;
use super::{KILLED_UNMOUNT, MOUNT_WORKS, THEN_MOUNT, THEN_UNMOUNT, blocked, down, fresh, up};
use crate::check::answer::{Answer, Meant};
use crate::check::evidence::{Played, Stopped};
use crate::check::in_time::is_late;
use crate::check::subject::Subject;
use crate::fault_injection::{FaultInjection, Signal};
use flexvol_protocol::Verb;
use flexvol_protocol::text::seconds;
use std::time::Duration;

/// Time to end after SIGTERM: systemd gives a service at least this, kubelet a `waitforattach`.
const TO_END: Duration = Duration::from_secs(10);

pub(super) fn closed_reader(subject: &mut Subject<'_>) -> Played {
    let plan = Plan::learn(subject, Verb::Mount)?;
    let volume = fresh(subject)?;
    let unheard = plan.unheard(subject, |subject| subject.mount(&volume))?;
    let when = "nobody heard the answer of mount";
    if subject.layers(&volume)? == 0 {
        plan.nothing_more(subject, &unheard, &format!("{when}, and nothing is mounted"))?;
    } else {
        plan.mounted(subject, &volume, &unheard, when)?;
        plan.complete(subject, &unheard, when)?;
    }
    up(subject, &plan, &volume, (&unheard, when))?;
    blocked(THEN_UNMOUNT, down(subject, &plan, &volume))?;
    let volume = fresh(subject)?;
    subject.mount(&volume)?.or_blocked(MOUNT_WORKS)?;
    plan.unheard(subject, |subject| subject.unmount(&volume))?;
    let expected = "nobody heard the answer of unmount; the next one is to work";
    let answer = subject.unmount(&volume)?.succeeds(expected)?;
    plan.gone(subject, &volume, &answer, expected)?;
    plan.end(subject)
}

pub(super) fn terminated_mount(subject: &mut Subject<'_>) -> Played {
    let plan = Plan::learn(subject, Verb::Mount)?;
    for fault in plan.faults(Signal::Terminate) {
        let volume = fresh(subject)?;
        let told = plan.interrupted(subject, fault, |subject| subject.mount(&volume))?;
        let when = ends(&plan, fault, &told)?;
        match (&told.meant, subject.layers(&volume)?) {
            (Meant::Failure(_), 1..) => {
                let then = "said Failure and left the mount, which kubelet takes for a success next time";
                return Err(told.fails(format!("{when}; it {then}")));
            }
            (Meant::Success(_), 0) => {
                return Err(told.fails(format!("{when}; it said Success, and nothing is mounted")));
            }
            _ => {}
        }
        blocked(THEN_MOUNT, up(subject, &plan, &volume, (&told, &when)))?;
        blocked(THEN_UNMOUNT, down(subject, &plan, &volume))?;
    }
    plan.end(subject)
}

pub(super) fn terminated_unmount(subject: &mut Subject<'_>) -> Played {
    let plan = Plan::learn(subject, Verb::Unmount)?;
    for fault in plan.faults(Signal::Terminate) {
        let volume = fresh(subject)?;
        subject.mount(&volume)?.or_blocked(MOUNT_WORKS)?;
        let told = plan.interrupted(subject, fault, |subject| subject.unmount(&volume))?;
        let when = ends(&plan, fault, &told)?;
        if told.is_success() && subject.layers(&volume)? > 0 {
            return Err(told.fails(format!("{when}; it said Success, and the volume is mounted")));
        }
        blocked(KILLED_UNMOUNT, down(subject, &plan, &volume))?;
    }
    plan.end(subject)
}

/// Describes where the call was told to end. Fails if it did not end in time.
fn ends(plan: &Plan, fault: FaultInjection, told: &Answer) -> Result<String, Stopped> {
    let when = format!("{} was {}", told.asked.verb(), plan.when(told, fault));
    match told.outlived() {
        _ if told.was_stopped() => {
            Err(told.fails(format!("{when}, and did not end within {} s", seconds(told.took(), 0))))
        }
        Some(late) if is_late(late, TO_END)? => {
            Err(told.fails(format!("{when}, and ended only {} s later", seconds(late, 0))))
        }
        _ => Ok(when),
    }
}

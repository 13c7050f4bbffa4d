//! Plan of where to interrupt a call, and checks of the result.

use super::{MOUNT_WORKS, NOT_MOUNTED, UNMOUNT_WORKS, blocked, removed};
use crate::check::answer::Answer;
use crate::check::evidence::{Played, Stopped};
use crate::check::footprint::at_rest;
use crate::check::in_time::Deadline;
use crate::check::subject::Subject;
use crate::fault_injection::{FaultInjection, Moment, Observed, Signal, Target};
use crate::tracer::{self, Point, Trace};
use flexvol_kubelet::{PodVolume, Reader};
use flexvol_protocol::Verb;
use flexvol_protocol::ordered::filled;
use std::collections::BTreeSet;
use std::time::Duration;

/// Number of interruptions for each repetition.
const FAULTS: usize = 3;

/// Limit for the time of a whole case; slow drivers are interrupted less often.
const LONGEST: Duration = Duration::from_secs(15);

/// Deadline for the processes that a dead driver had started.
const LAST_WAIT: Duration = Duration::from_secs(2);

const TICK: Duration = Duration::from_millis(2);

/// Time after which an unchanged state counts as stable.
const REST: Duration = Duration::from_millis(100);

/// Facts about a call that ran to its end.
pub(super) struct Plan {
    moments: Vec<Moment>,
    /// Number of its system calls; 0 if they were not counted.
    calls: usize,
    pub(super) took: Duration,
    /// Number of mounts at the directory of a mounted volume.
    layers: usize,
    /// State while nothing was mounted for any pod.
    before: Held,
    /// Number of mounts, devices and processes that belong to a mounted volume.
    takes: [usize; 3],
    /// True for each of these kinds that leaves something even without an interruption: other cases
    /// are about that.
    leaks: [bool; 3],
    /// Names of the leaked processes, which no later step waits for.
    leaked: BTreeSet<String>,
    /// Volume without a pod of its own, but attached if necessary.
    volume: PodVolume,
}

impl Plan {
    /// Plays one life cycle of a volume, in which this verb is traced.
    pub(super) fn learn(subject: &mut Subject<'_>, verb: Verb) -> Result<Self, Stopped> {
        let volume = subject.volume()?;
        subject.stage(&volume)?;
        let follow = |subject: &mut Subject<'_>, now: Verb| {
            let possible = now == verb && tracer::is_possible();
            subject.trace = possible.then_some(Trace::SystemCalls);
        };
        let blank = Held::now(subject)?;
        follow(subject, Verb::Mount);
        let mount = subject.mount(&volume)?.or_blocked(MOUNT_WORKS)?;
        let (layers, while_mounted) = (subject.layers(&volume)?, at_rest(REST, || Held::now(subject))?);
        if layers == 0 {
            let problem = "it said Success, and the directory is no mount point";
            return Err(Stopped::Blocked(MOUNT_WORKS, Box::new(mount.evidence(problem))));
        }
        follow(subject, Verb::Unmount);
        let unmount = subject.unmount(&volume)?.or_blocked(UNMOUNT_WORKS)?;
        subject.trace = None;
        // An unmount that is killed late has done everything, so a second unmount must work.
        let again = subject.unmount(&volume)?.or_blocked(NOT_MOUNTED)?;
        blocked(UNMOUNT_WORKS, removed(&volume, &again, "it is unmounted"))?;
        let left = after_a_moment(subject, &blank, [0; 3], [false, false, subject.facts.lingers])?;
        let leaks = left.map(|more| !more.is_empty());
        let leaked = if leaks[2] { names(subject)? } else { BTreeSet::new() };
        let before = Held::now(subject)?;
        let takes = while_mounted.more_than(&before).map(|more| more.len());
        let answer = if verb == Verb::Mount { mount } else { unmount };
        let calls = answer.observed.traced.as_ref().map_or(0, |traced| traced.system_calls);
        let took = answer.run.took;
        Ok(Self {
            moments: moments(subject, &answer),
            calls,
            took,
            layers,
            before,
            takes,
            leaks,
            leaked,
            volume,
        })
    }

    /// Returns one fault for each moment, in turn for the whole process group and for the driver
    /// alone.
    pub(super) fn faults(&self, signal: Signal) -> impl Iterator<Item = FaultInjection> {
        let targets = [Target::Group, Target::Driver].into_iter().cycle();
        self.moments.iter().zip(targets).map(move |(at, target)| FaultInjection { at: *at, signal, target })
    }

    /// Describes where a call was interrupted, for people; continues a sentence after "was".
    pub(super) fn when(&self, answer: &Answer, fault: FaultInjection) -> String {
        let Observed { injected, traced } = &answer.observed;
        let interrupted = traced.as_ref().and_then(|traced| Some((traced, traced.interrupted.as_ref()?)));
        let place = match (interrupted, injected) {
            (Some((traced, at)), _) => match at.change {
                Some(change) => format!("right after {change}(2) of {}", at.name),
                None => {
                    format!("before system call {} of {}, by {}", traced.system_calls, self.calls, at.name)
                }
            },
            (None, Some(injected)) => format!("{} ms after its start", injected.as_millis()),
            (None, None) => return "over before it was to be struck".to_owned(),
        };
        let how = if fault.signal == Signal::Kill { "killed" } else { "told to end" };
        let whom = if fault.target == Target::Driver { "the driver alone" } else { "its process group" };
        format!("{how} {place} ({whom})")
    }

    /// Fails unless the volume is mounted, and no more often than usual.
    /// Fewer mounts are allowed, if the interrupted call mounts in steps.
    pub(super) fn mounted(
        &self,
        subject: &Subject<'_>,
        volume: &PodVolume,
        answer: &Answer,
        when: &str,
    ) -> Played {
        match (subject.layers(volume)?, self.layers) {
            (now @ 1.., usual) if now <= usual => Ok(()),
            (0, _) => {
                Err(answer.fails(format!("{when}; it said Success, and the directory is no mount point")))
            }
            (now, usual) => Err(answer.fails(format!(
                "{when}; there are {now} mounts at the directory afterwards instead of {usual}"
            ))),
        }
    }

    /// Fails if anything is left of a pod's volume.
    pub(super) fn gone(
        &self,
        subject: &Subject<'_>,
        volume: &PodVolume,
        answer: &Answer,
        expected: &str,
    ) -> Played {
        removed(volume, answer, expected)?;
        self.nothing_more(subject, answer, expected)
    }

    /// Fails if there is more than before any pod. Waits a moment for what only releases something.
    pub(super) fn nothing_more(&self, subject: &Subject<'_>, answer: &Answer, expected: &str) -> Played {
        let more = after_a_moment(subject, &self.before, [0; 3], self.leaks)?;
        let mut more = more.iter().zip(self.leaks).filter(|(_, leaks)| !leaks).flat_map(|(more, _)| more);
        match more.next() {
            None => Ok(()),
            Some(left) => Err(answer.fails(format!("{expected}, but {left} is left"))),
        }
    }

    /// Fails unless everything is there that belongs to a mounted volume, and nothing else.
    pub(super) fn complete(&self, subject: &Subject<'_>, answer: &Answer, when: &str) -> Played {
        let more = after_a_moment(subject, &self.before, self.takes, self.leaks)?;
        for (kind, what) in ["mounts", "devices", "processes"].into_iter().enumerate() {
            let (now, usual) = (more[kind].len(), self.takes[kind]);
            if now != usual && !self.leaks[kind] {
                let text = format!("{when}; it is mounted, with {now} {what} instead of {usual}");
                return Err(answer.fails(text));
            }
        }
        Ok(())
    }

    /// Makes a call that is interrupted, and waits for the processes that it has left running.
    pub(super) fn interrupted(
        &self,
        subject: &mut Subject<'_>,
        fault: FaultInjection,
        call: impl FnOnce(&mut Subject<'_>) -> Result<Answer, Stopped>,
    ) -> Result<Answer, Stopped> {
        subject.fault = Some(fault);
        let answer = call(subject);
        subject.fault = None;
        settle(subject, &self.leaked)?;
        answer
    }

    /// Does the same with a call whose answer is not read.
    pub(super) fn unheard(
        &self,
        subject: &mut Subject<'_>,
        call: impl FnOnce(&mut Subject<'_>) -> Result<Answer, Stopped>,
    ) -> Result<Answer, Stopped> {
        subject.terms.reader = Reader::Closed;
        let answer = call(subject);
        subject.terms.reader = Reader::All;
        settle(subject, &self.leaked)?;
        answer
    }

    /// Takes the volume off the node.
    pub(super) fn end(&self, subject: &mut Subject<'_>) -> Played {
        subject.unstage(&self.volume)
    }
}

/// Chooses moments: right after changes, and before system calls over the whole call.
/// Without a tracer, chooses random times.
fn moments(subject: &mut Subject<'_>, answer: &Answer) -> Vec<Moment> {
    let run = &answer.run;
    let affordable = LONGEST.as_micros() / (run.took.as_micros() * 4).max(1);
    let affordable = usize::try_from(affordable).unwrap_or(usize::MAX).max(FAULTS);
    let count = affordable.min(subject.repeat() * FAULTS);
    let random = &mut subject.random;
    let Some(traced) = &answer.observed.traced else {
        let most = u64::try_from(run.took.as_micros()).unwrap_or(u64::MAX).max(1);
        let times = std::iter::repeat_with(|| Moment::After(Duration::from_micros(random.u64(..most))));
        return times.take(count).collect();
    };
    let changes = traced.changes.min(count * 2 / 3);
    let mut all: Vec<_> =
        spread(random, traced.changes, changes).map(Point::Change).map(Moment::At).collect();
    all.extend(spread(random, traced.system_calls, count - changes).map(Point::Call).map(Moment::At));
    all
}

/// Returns `count` numbers from 1 to `total`, as far from each other as possible.
fn spread(random: &mut fastrand::Rng, total: usize, count: usize) -> impl Iterator<Item = usize> {
    let offset = if total == 0 { 0 } else { random.usize(..total) };
    let count = count.min(total);
    (0..count).map(move |index| 1 + (index * total + offset) / count)
}

/// Waits for processes of a dead driver, but not for daemons: kubelet takes longer to come back.
fn settle(subject: &Subject<'_>, leaked: &BTreeSet<String>) -> Result<(), Stopped> {
    let daemons: BTreeSet<_> = filled(subject.facts.daemons.iter().map(|line| name(line)));
    let mut end = Deadline::new(LAST_WAIT);
    let goes_on = |name: &String| daemons.contains(name) || leaked.contains(name);
    while !names(subject)?.iter().all(goes_on) && !end.is_over() {
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// Returns the names of the running processes.
fn names(subject: &Subject<'_>) -> Result<BTreeSet<String>, Stopped> {
    Ok(filled(subject.inside.processes()?.iter().map(|(_, line)| name(line))))
}

fn name(line: &str) -> String {
    line.split([' ', '\0']).next().unwrap_or_default().to_owned()
}

/// Lists what is new, once it is as many as wanted or time is over.
/// Does not wait for kinds that leak.
fn after_a_moment(
    subject: &Subject<'_>,
    before: &Held,
    wanted: [usize; 3],
    leaks: [bool; 3],
) -> Result<[Vec<String>; 3], Stopped> {
    let mut end = Deadline::new(LAST_WAIT);
    loop {
        let more = Held::now(subject)?.more_than(before);
        let is_there = (0..3).all(|kind| leaks[kind] || more[kind].len() == wanted[kind]);
        if is_there || end.is_over() {
            return Ok(more);
        }
        std::thread::sleep(TICK);
    }
}

/// Mounts, devices and processes, described for people.
#[derive(PartialEq)]
struct Held([BTreeSet<String>; 3]);

impl Held {
    fn now(subject: &Subject<'_>) -> Result<Self, Stopped> {
        let inside = subject.inside;
        let mounts = inside.mounts()?.into_iter();
        let mounts =
            mounts.map(|entry| format!("a mount ({}) at {}", entry.file_system, entry.target.display()));
        let devices = inside.devices()?.into_iter().map(|device| format!("the device {}", device.display()));
        let processes = inside.processes()?.into_iter();
        let processes = processes.map(|(pid, line)| format!("the process {pid} ({})", line.trim()));
        Ok(Self([mounts.collect(), devices.collect(), processes.collect()]))
    }

    fn more_than(&self, before: &Self) -> [Vec<String>; 3] {
        let more = |kind: usize| self.0[kind].difference(&before.0[kind]).cloned().collect();
        [more(0), more(1), more(2)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_spread_over_all_of_a_call() {
        let mut random = fastrand::Rng::with_seed(1);
        for (total, count) in [(1, 1), (3, 3), (3, 2), (100, 7), (800, 30), (5, 20), (0, 3)] {
            for _ in 0..50 {
                let all: Vec<_> = spread(&mut random, total, count).collect();
                assert_eq!(all.len(), count.min(total));
                assert!(all.iter().all(|at| (1..=total).contains(at)), "{all:?} of {total}");
                let close = |pair: &[usize]| pair[1] - pair[0] < total / count.min(total);
                assert!(!all.windows(2).any(close), "{all:?} of {total}");
            }
        }
    }
}

//! Many calls at the same time, and very many one after the other.

use crate::check::answer::Answer;
use crate::check::case::{How, Scene};
use crate::check::evidence::{Evidence, Played, Stopped, skip};
use crate::check::given::Nature;
use crate::check::in_time::Deadline;
use crate::check::replica::Replica;
use crate::check::staging::{make_directory, remove_directory};
use crate::check::subject::Subject;
use flexvol_kubelet::PodVolume;
use flexvol_protocol::{Call, Verb};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Number of pods of a node that start at the same time, for each repetition.
const PODS: usize = 5;

/// Time for cycles, for each repetition.
const CYCLING: Duration = Duration::from_millis(120);

/// Number of cycles before growth is looked for, and the minimum after that.
const FIRST_CYCLES: usize = 3;

/// Deadline for a mount while another one hangs, unless several times the usual duration is longer.
const NEIGHBOURLY: Duration = Duration::from_secs(1);

/// Deadline for things that end on their own after the last cycle.
const TO_END: Duration = Duration::from_millis(500);

/// Pause between two replacements of the driver, or between two looks.
const MOMENT: Duration = Duration::from_millis(1);

pub(in crate::check) const SCENES: &[Scene] = &[
    ("storm::same_directory", How::Played(same_directory)),
    ("storm::mount_and_unmount", How::Played(mount_and_unmount)),
    ("storm::many_directories", How::Played(many_directories)),
    ("storm::mount_a_unmount_b", How::Played(mount_a_unmount_b)),
    ("storm::hung_neighbour", How::Played(hung_neighbour)),
    ("storm::cycles", How::Played(cycles)),
    ("storm::replaced", How::Played(replaced)),
];

fn mount_words(volume: &PodVolume) -> Result<Vec<OsString>, Stopped> {
    Ok(volume.mount_call()?.to_arguments())
}

fn unmount_words(volume: &PodVolume) -> Result<Vec<OsString>, Stopped> {
    Ok(Call::Unmount { target: volume.target()? }.to_arguments())
}

fn same_directory(subject: &mut Subject<'_>) -> Played {
    for _ in 0..subject.repeat() {
        let volume = subject.volume()?;
        subject.stage(&volume)?;
        let words = mount_words(&volume)?;
        for answer in subject.at_once(&[words.clone(), words]) {
            let answer = answer.succeeds("two mounts of the directory come at once")?;
            subject.has_layers(&volume, 1, &answer)?;
        }
        subject.take_down(&volume)?;
    }
    Ok(())
}

fn mount_and_unmount(subject: &mut Subject<'_>) -> Played {
    for round in 0..subject.repeat() {
        let volume = subject.volume()?;
        // Rounds begin in turn with an unmounted and with a mounted volume.
        if round % 2 == 0 {
            subject.stage(&volume)?;
        } else {
            subject.bring_up(&volume)?;
        }
        let words = [mount_words(&volume)?, unmount_words(&volume)?];
        let mut last = None;
        for answer in subject.at_once(&words) {
            last = Some(answer.answers("a mount and an unmount of the directory come at once")?);
        }
        let layers = subject.layers(&volume)?;
        if let Some(answer) = last.filter(|_| layers > 1) {
            return Err(answer.fails(format!("a mount and an unmount came at once and left {layers} mounts")));
        }
        make_directory(volume.target()?.as_path())?;
        let answer = subject.unmount(&volume)?.succeeds("a mount and an unmount came at once before")?;
        subject.has_layers(&volume, 0, &answer)?;
        subject.put_all_away(&[volume])?;
    }
    Ok(())
}

fn needs_sharing(subject: &Subject<'_>) -> Played {
    if subject.given.is(Nature::Exclusive) {
        return skip("one pod at a time has the volume");
    }
    Ok(())
}

fn many_directories(subject: &mut Subject<'_>) -> Played {
    needs_sharing(subject)?;
    let volumes: Vec<_> = (0..PODS * subject.repeat()).map(|_| subject.volume()).collect::<Result<_, _>>()?;
    subject.stage(&volumes[0])?;
    for volume in &volumes {
        make_directory(volume.target()?.as_path())?;
    }
    let mounts: Vec<_> = volumes.iter().map(mount_words).collect::<Result<_, _>>()?;
    let unmounts: Vec<_> = volumes.iter().map(unmount_words).collect::<Result<_, _>>()?;
    for (calls, verb, layers) in [(mounts, "mount", 1), (unmounts, "unmount", 0)] {
        for (answer, volume) in subject.at_once(&calls).into_iter().zip(&volumes) {
            let situation = format!("{} pods have the volume {verb}ed at once", volumes.len());
            subject.has_layers(volume, layers, &answer.succeeds(&situation)?)?;
        }
    }
    subject.put_all_away(&volumes)
}

fn mount_a_unmount_b(subject: &mut Subject<'_>) -> Played {
    needs_sharing(subject)?;
    let mut running = subject.volume()?;
    subject.bring_up(&running)?;
    for _ in 0..subject.repeat() {
        let next = subject.volume()?;
        make_directory(next.target()?.as_path())?;
        let calls = [mount_words(&next)?, unmount_words(&running)?];
        for (answer, (volume, layers)) in subject.at_once(&calls).into_iter().zip([(&next, 1), (&running, 0)])
        {
            let answer = answer.succeeds("a mount for one pod and an unmount for another come at once")?;
            subject.has_layers(volume, layers, &answer)?;
        }
        if let Err(error) = std::fs::read_dir(next.target()?.as_path()) {
            let text = format!("while another pod ended, a pod got a volume that cannot be read: {error}");
            return Err(Evidence::new(text).into());
        }
        remove_directory(running.target()?.as_path())?;
        running = next;
    }
    subject.take_down(&running)
}

/// Stops the driver at several points in the middle of a mount, as a server that hangs would.
/// A lock that is held for a moment can hinder the other mount at one of them; only a lock that is
/// held for long hinders it at two.
fn hung_neighbour(subject: &mut Subject<'_>) -> Played {
    if subject.facts.keeps_data || subject.attaches() {
        let text = "two pods have the same volume, and calls for one volume may wait for each other";
        return skip(text);
    }
    let usual = subject.terms.patience;
    let patience = NEIGHBOURLY.max(Duration::from_millis(subject.facts.mount_took * 5)).min(usual / 2);
    let mut hindered = Vec::new();
    for tenths in [3, 5, 7] {
        let (hangs, works) = (subject.volume()?, subject.volume()?);
        let pause = Duration::from_micros(subject.facts.mount_took * 100 * tenths);
        make_directory(hangs.target()?.as_path())?;
        make_directory(works.target()?.as_path())?;
        hindered.extend(while_it_hangs(subject, &hangs, &works, pause, patience)?);
        for volume in [&hangs, &works] {
            make_directory(volume.target()?.as_path())?;
            subject.take_down(volume)?;
        }
    }
    match hindered.as_slice() {
        [_, .., last] => Err(last.fails(format!("the mount of another volume hung, and {}", last.shown()))),
        _ => Ok(()),
    }
}

/// Returns the answer for the second pod if it was hindered.
fn while_it_hangs(
    subject: &mut Subject<'_>,
    hangs: &PodVolume,
    works: &PodVolume,
    pause: Duration,
    patience: Duration,
) -> Result<Option<Answer>, Stopped> {
    let before = subject.inside.processes()?;
    let (first, second) = (mount_words(hangs)?, mount_words(works)?);
    let usual = subject.terms.patience;
    let (hung, answer) = subject.beside(&first, |subject| {
        std::thread::sleep(pause);
        let processes = subject.inside.processes()?;
        let stopped: Vec<_> = processes.into_iter().filter(|each| !before.contains(each)).collect();
        signal(&stopped, Signal::STOP);
        subject.terms.patience = patience;
        let answer = subject.execute(&second);
        subject.terms.patience = usual;
        signal(&stopped, Signal::CONT);
        Ok::<_, Stopped>(answer)
    });
    if let Some(hung) = hung {
        hung.or_blocked("mount::works")?;
    }
    Ok(Some(answer?).filter(|answer| !answer.is_success()))
}

fn signal(processes: &[(i32, String)], signal: Signal) {
    for pid in processes.iter().filter_map(|(pid, _)| Pid::from_raw(*pid)) {
        // A process may have ended meanwhile.
        let _ = kill_process(pid, signal);
    }
}

/// Number of each thing that may grow.
#[derive(Clone, Copy)]
struct Count {
    mounts: usize,
    devices: usize,
    processes: usize,
    descriptors: usize,
    files: usize,
}

impl Count {
    fn take(subject: &Subject<'_>) -> Result<Self, Stopped> {
        let processes = subject.inside.processes()?;
        let descriptors = |pid: i32| std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        Ok(Self {
            mounts: subject.inside.mounts()?.len(),
            devices: subject.inside.devices()?.len(),
            descriptors: processes.iter().map(|(pid, _)| descriptors(*pid)).sum(),
            processes: processes.len(),
            files: subject.inside.changed()?.len(),
        })
    }

    /// Describes a thing that has grown with every cycle, or nearly every one.
    fn grown(self, before: Self, cycles: usize) -> Option<String> {
        let named = [
            ("mounts", before.mounts, self.mounts),
            ("devices", before.devices, self.devices),
            ("processes", before.processes, self.processes),
            ("open descriptors", before.descriptors, self.descriptors),
            ("files", before.files, self.files),
        ];
        let (name, before, after) =
            named.into_iter().find(|(_, before, after)| after.saturating_sub(*before) * 2 >= cycles)?;
        Some(format!("after {cycles} more cycles of mount and unmount {before} {name} were {after}"))
    }
}

fn cycles(subject: &mut Subject<'_>) -> Played {
    let start = Instant::now();
    let budget = CYCLING * u32::try_from(subject.repeat()).unwrap_or(u32::MAX);
    let first = subject.volume()?;
    subject.stage(&first)?;
    (0..FIRST_CYCLES).try_for_each(|_| cycle(subject))?;
    let (before, mut cycles) = (Count::take(subject)?, 0);
    while cycles < FIRST_CYCLES || (start.elapsed() < budget && cycles < 100 * subject.repeat()) {
        cycle(subject)?;
        cycles += 1;
    }
    let mut end = Deadline::new(TO_END);
    while let Some(text) = Count::take(subject)?.grown(before, cycles) {
        if end.is_over() {
            return Err(Evidence::new(text).into());
        }
        std::thread::sleep(MOMENT);
    }
    remove_directory(first.target()?.as_path())?;
    subject.unstage(&first)
}

/// Plays one pod; the device stays attached.
fn cycle(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    make_directory(volume.target()?.as_path())?;
    subject.mount(&volume)?.or_blocked("mount::works")?;
    subject.unmount(&volume)?.or_blocked("unmount::works")?;
    let target = volume.target()?;
    // The pod's own directories are removed too, so that nothing of the kit grows.
    for directory in target.as_path().ancestors().take(4) {
        if remove_directory(directory).is_err() {
            break;
        }
    }
    Ok(())
}

fn replaced(subject: &mut Subject<'_>) -> Played {
    subject.with_replica(|subject, replica| {
        let volume = subject.volume()?;
        subject.stage(&volume)?;
        let init = Call::Init.to_arguments();
        for (words, layers) in [(mount_words(&volume)?, 1), (unmount_words(&volume)?, 0)] {
            let mut calls = vec![init.clone(); PODS * subject.repeat()];
            calls.insert(calls.len() / 2, words);
            for answer in while_replaced(replica, || subject.at_once(&calls))? {
                let answer = answer.succeeds("the driver was replaced again and again meanwhile")?;
                if answer.asked.verb() != Verb::Init.name() {
                    subject.has_layers(&volume, layers, &answer)?;
                }
            }
        }
        subject.put_all_away(&[volume])
    })
}

/// Does something, and replaces the driver again and again meanwhile.
fn while_replaced<T>(replica: &Replica, deed: impl FnOnce() -> T) -> Result<T, Stopped> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let replacing = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                replica.replace()?;
                std::thread::sleep(MOMENT);
            }
            Ok::<_, std::io::Error>(())
        });
        let result = deed();
        done.store(true, Ordering::Relaxed);
        if let Ok(replaced) = replacing.join() {
            replaced?;
        }
        Ok(result)
    })
}

//! Options with which kubelet describes a volume and its pod.

use super::values::Elsewhere;
use crate::check::attempt::{Attempt, plainly};
use crate::check::evidence::{Played, Stopped};
use crate::check::given::Nature;
use crate::check::spelling::{object, pairs, quoted, with_member, with_value};
use crate::check::staging::put;
use crate::check::subject::Subject;
use flexvol_kubelet::PodVolume;
use flexvol_protocol::{Access, FsGroup, FsGroupSpelling, Options};
use rustix::io::Errno;
use std::io;

const READ_WRITE: &str = "kubernetes.io/readwrite";

/// Case about a read-only volume, for cases that need one.
const READ_ONLY: &str = "options::read_only";

/// File that a pod writes.
const FILE: &str = "check";

/// Options that a user may try in order to get write access.
const SWITCHES: [(&str, &str); 8] = [
    ("rw", "true"),
    ("readwrite", "rw"),
    ("readOnly", "false"),
    ("ro", "false"),
    ("mountOptions", "rw"),
    ("mount_options", "rw"),
    ("options", "rw"),
    ("opts", "rw"),
];

/// Keys that are not kubelet's, but are equal to one if case is ignored.
/// For Go, ſ is an s in lower case, and it sorts last.
const LIKENESSES: [&str; 4] = [
    "KUBERNETES.IO/readwrite",
    "Kubernetes.io/ReadWrite",
    "kubernetes.io/READWRITE",
    "kuberneteſ.io/readwrite",
];

/// Group of a pod.
const GROUP: u32 = 4321;

pub(super) fn read_only(subject: &mut Subject<'_>) -> Played {
    subject.use_once()?;
    let volume = with_access(subject.volume()?, Access::ReadOnly);
    let attempt = subject.attempt(&volume, &plainly)?;
    let answer = attempt.answer.succeeds("the volume is asked for read-only")?;
    match write(&volume)? {
        Err(error) if error.raw_os_error() == Some(Errno::ROFS.raw_os_error()) => {}
        Err(_) if attempt.looks.is_some_and(|looks| looks.is_read_only()) => {}
        Err(error) => return Err(answer.fails(format!("ro was asked for, and a write fails with {error}"))),
        Ok(()) => return Err(answer.fails("ro was asked for, and a file can be written")),
    }
    subject.clear(&volume)
}

pub(super) fn read_write(subject: &mut Subject<'_>) -> Played {
    let volume = with_access(subject.volume()?, Access::ReadWrite);
    for word in ["rx", "RO"] {
        let attempt =
            subject.attempt(&volume, &|options| with_value(options, READ_WRITE, &quoted(word)).into())?;
        let answer =
            attempt.answer.refuses(&format!("readwrite is {word:?}: anything but ro and rw is refused"))?;
        if attempt.looks.is_some() {
            return Err(
                answer.fails(format!("readwrite is {word:?}: it said Failure, and something is mounted"))
            );
        }
        subject.clear(&volume)?;
    }
    if subject.given.is(Nature::ReadOnly) {
        return Ok(());
    }
    must_write(subject, Some("rw"))?;
    must_write(subject, None)
}

fn must_write(subject: &mut Subject<'_>, word: Option<&str>) -> Result<(), Stopped> {
    let volume = with_access(subject.volume()?, Access::ReadWrite);
    let spelling = |options: &Options| match word {
        Some(_) => plainly(options),
        None => without(options, |key| key == READ_WRITE).into(),
    };
    let how = word.map_or_else(|| "without a word about it".to_owned(), |word| format!("with {word}"));
    let answer =
        subject.attempt(&volume, &spelling)?.answer.succeeds(&format!("{how} it is to be mounted"))?;
    if let Err(error) = write(&volume)? {
        return Err(answer.fails(format!("{how} it is to be writable, but a write fails with {error}")));
    }
    subject.clear(&volume)
}

pub(super) fn ro_wins(subject: &mut Subject<'_>) -> Played {
    need_read_only(subject)?;
    let lists = subject.given.lists.clone();
    let all = |volume: &mut PodVolume| {
        let switches = SWITCHES.iter().filter(|(key, _)| !volume.options.own.contains_key(*key));
        let switches: Vec<_> = switches.collect();
        volume
            .options
            .own
            .extend(switches.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    };
    if must_not_write(subject, "every name of a switch", &all)? {
        for (key, value) in SWITCHES {
            let one = |volume: &mut PodVolume| {
                volume.options.own.entry(key.to_owned()).or_insert_with(|| value.to_owned());
            };
            must_not_write(subject, &format!("{key:?} {value:?}"), &one)?;
        }
    }
    for (key, given) in subject.volume()?.options.own {
        let only = lists.contains(&key).then(|| "rw".to_owned());
        for value in [format!("{given},rw")].into_iter().chain(only) {
            let changed =
                |volume: &mut PodVolume| drop(volume.options.own.insert(key.clone(), value.clone()));
            must_not_write(subject, &format!("{key:?} {value:?}"), &changed)?;
        }
    }
    Ok(())
}

/// Blocks the case if `ro` alone does not make the volume read-only.
fn need_read_only(subject: &mut Subject<'_>) -> Result<(), Stopped> {
    subject.use_once()?;
    let volume = with_access(subject.volume()?, Access::ReadOnly);
    let answer = subject.attempt(&volume, &plainly)?.answer.or_blocked(READ_ONLY)?;
    if write(&volume)?.is_ok() {
        let evidence = answer.evidence("a read-only volume is needed first, and a file can be written");
        return Err(Stopped::Blocked(READ_ONLY, Box::new(evidence)));
    }
    subject.clear(&volume)
}

/// Fails if the volume is writable in spite of `ro`, beside the user's changes.
/// Returns true if refused.
fn must_not_write(
    subject: &mut Subject<'_>,
    what: &str,
    change: &dyn Fn(&mut PodVolume),
) -> Result<bool, Stopped> {
    let mut volume = with_access(subject.volume()?, Access::ReadOnly);
    change(&mut volume);
    let attempt = subject.attempt(&volume, &plainly)?;
    let refused = !attempt.answer.is_success();
    if !refused && write(&volume)?.is_ok() {
        return Err(attempt.answer.fails(format!("ro was asked for, and {what} makes it writable")));
    }
    subject.clear(&volume)?;
    Ok(refused)
}

pub(super) fn other_case_key(subject: &mut Subject<'_>) -> Played {
    need_read_only(subject)?;
    let with = |keys: &[&str], value: &str, volume: &mut PodVolume| {
        volume.options.own.extend(keys.iter().map(|key| ((*key).to_owned(), value.to_owned())));
    };
    if must_not_write(subject, &format!("one of the options {LIKENESSES:?}"), &|volume| {
        with(&LIKENESSES, "rw", volume);
    })? {
        for key in LIKENESSES {
            must_not_write(subject, &format!("{key:?} \"rw\""), &|volume| with(&[key], "rw", volume))?;
        }
    }
    if subject.given.is(Nature::ReadOnly) {
        return Ok(());
    }
    let all = |volume: &mut PodVolume| with(&LIKENESSES, "ro", volume);
    if must_stay_writable(subject, &format!("one of the options {LIKENESSES:?}"), &all)? {
        for key in LIKENESSES {
            must_stay_writable(subject, &format!("{key:?} \"ro\""), &|volume| with(&[key], "ro", volume))?;
        }
    }
    Ok(())
}

/// Fails if the volume is read-only in spite of `rw`, beside the user's options.
/// Returns true if refused.
fn must_stay_writable(
    subject: &mut Subject<'_>,
    what: &str,
    change: &dyn Fn(&mut PodVolume),
) -> Result<bool, Stopped> {
    let mut volume = with_access(subject.volume()?, Access::ReadWrite);
    change(&mut volume);
    let attempt = subject.attempt(&volume, &plainly)?;
    let refused = !attempt.answer.is_success();
    if !refused && write(&volume)?.is_err() {
        return Err(attempt.answer.fails(format!("rw was asked for, and {what} makes it read-only")));
    }
    subject.clear(&volume)?;
    Ok(refused)
}

pub(super) fn fs_group(subject: &mut Subject<'_>) -> Played {
    let mut seen = Vec::new();
    for spelling in [FsGroupSpelling::Current, FsGroupSpelling::Legacy] {
        let mut volume = subject.volume()?;
        volume.options.fs_group = Some(FsGroup { gid: GROUP, spelling });
        let Attempt { answer, looks } = subject.attempt(&volume, &plainly)?;
        seen.extend(looks.map(|looks| looks.owner.1));
        let answer = answer.succeeds("a pod has the fsGroup 4321")?;
        if seen.first() != seen.last() {
            let text = "with kubernetes.io/mounterArgs.FsGroup the group of the volume is";
            return Err(answer.fails(format!("{text} {}, with kubernetes.io/fsGroup {}", seen[0], seen[1])));
        }
        subject.clear(&volume)?;
    }
    // The device does not depend on the group, so it is mounted only once.
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let odd = ["0", "abc", "4294967294", "4294967295", "-1", ""];
    for odd in odd.into_iter().take(if subject.repeat() > 1 { odd.len() } else { 2 }) {
        let mut changed = volume.clone();
        changed.options.fs_group = None;
        let spelling = |options: &Options| {
            with_member(options, "kubernetes.io/mounterArgs.FsGroup", &quoted(odd)).into()
        };
        let attempt = subject.attempt_mount(&changed, &spelling)?;
        if !attempt.answer.is_success() {
            attempt.answer.refuses(&format!("the fsGroup {odd:?} must be taken or refused"))?;
        }
        subject.clear_mount(&volume)?;
    }
    subject.clear(&volume)
}

pub(super) fn without_pod(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    let of_pod =
        |key: &str| key.starts_with("kubernetes.io/pod.") || key == "kubernetes.io/serviceAccount.name";
    let spelling = |options: &Options| without(options, of_pod).into();
    let Attempt { answer, looks } = subject.attempt(&volume, &spelling)?;
    if answer.is_success() && looks.is_none() {
        return Err(answer.fails("without the keys about the pod it said Success, and nothing is mounted"));
    }
    if !answer.is_success() {
        answer.refuses("without the keys about the pod it must be mounted or refused")?;
    }
    subject.clear(&volume)
}

/// Name of the pod or of the volume, and a function that sets it.
type Name = (&'static str, fn(&mut PodVolume, String));

pub(super) fn pod_names(subject: &mut Subject<'_>) -> Played {
    const NAMES: [Name; 5] = [
        ("pod.name", |volume, name| volume.options.pod.name = Some(name)),
        ("pod.namespace", |volume, name| volume.options.pod.namespace = Some(name)),
        ("pod.uid", |volume, name| volume.options.pod.uid = Some(name)),
        ("serviceAccount.name", |volume, name| volume.options.pod.service_account = Some(name)),
        ("pvOrVolumeName", |volume, name| volume.options.volume_name = Some(name)),
    ];
    let elsewhere = Elsewhere::make(subject)?;
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let ways = elsewhere.ways("");
    let way = ways[1].clone();
    let mut all = volume.clone();
    for (_, set) in NAMES {
        set(&mut all, way.clone());
    }
    let refused = !must_stay_inside(subject, &all, &elsewhere, &format!("with {way:?} as every name"))?;
    let one_by_one = refused || subject.repeat() > 1;
    for (key, set) in NAMES.into_iter().filter(|_| one_by_one) {
        for way in ways.iter().skip(1).take(subject.repeat()) {
            let mut changed = volume.clone();
            set(&mut changed, way.clone());
            must_stay_inside(subject, &changed, &elsewhere, &format!("with {way:?} as kubernetes.io/{key}"))?;
        }
    }
    subject.clear(&volume)?;
    elsewhere.remove()
}

/// Fails if the driver touches the other directory. Returns true if the mount was a success.
fn must_stay_inside(
    subject: &mut Subject<'_>,
    volume: &PodVolume,
    elsewhere: &Elsewhere,
    how: &str,
) -> Result<bool, Stopped> {
    let attempt = subject.attempt_mount(volume, &plainly)?;
    let touched = elsewhere.touched(volume)?;
    subject.clear_mount(volume)?;
    match touched.map_or_else(|| elsewhere.touched(volume), |what| Ok(Some(what)))? {
        Some(what) => Err(attempt.answer.fails(format!("{how} {what}"))),
        None => Ok(attempt.answer.is_success()),
    }
}

fn with_access(mut volume: PodVolume, access: Access) -> PodVolume {
    volume.options.access = Some(access);
    volume
}

fn without(options: &Options, unwanted: impl Fn(&str) -> bool) -> String {
    let members = pairs(options).into_iter().filter(|(key, _)| !unwanted(key));
    object(members.map(|(key, value)| (quoted(&key), quoted(&value))))
}

/// Writes a file as a pod would.
fn write(volume: &PodVolume) -> Result<io::Result<()>, Stopped> {
    Ok(put(&volume.target()?.as_path().join(FILE), "written by a pod"))
}

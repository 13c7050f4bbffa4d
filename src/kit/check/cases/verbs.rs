//! Verbs of a driver: each answer shows whether it has the verb, and kubelet remembers that for
//! good.

use super::init::{LONGEST, fastest};
use crate::check::answer::{Answer, Meant};
use crate::check::case::{How, Scene, Seen};
use crate::check::evidence::{Evidence, Played, Stopped, skip};
use crate::check::in_time::is_late;
use crate::check::subject::{KUBELET_ROOT, NODE, Subject};
use flexvol_kubelet::PodVolume;
use flexvol_linux::fs::inotify::{Inotify, Interest, Notice};
use flexvol_protocol::text::seconds;
use flexvol_protocol::{Access, Call, Options, TargetPath, Verb};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Words that no present kubelet calls. The last two were verbs once.
const UNKNOWN: [&[&str]; 6] = [
    &["foo"],
    &["foo", "{}", "node-1"],
    &[""],
    &["MOUNT"],
    &["waitfordetach", "/dev/null"],
    &["getdevicemountpath", "{}"],
];

/// Words that people type to learn what a program is.
const QUESTIONS: [&str; 6] = ["version", "--version", "help", "--help", "-h", "-v"];

pub(in crate::check) const SCENES: &[Scene] = &[
    ("verbs::unknown", How::Played(unknown)),
    ("verbs::not_found_is_quick", How::Played(not_found_is_quick)),
    ("verbs::none", How::Played(none)),
    ("verbs::missing_stay_missing", How::Played(missing_stay_missing)),
    ("verbs::present_stay_present", How::Watched(present_stay_present)),
    ("verbs::argument_count", How::Played(missing_arguments)),
    ("verbs::surplus_arguments", How::Played(surplus_arguments)),
    ("verbs::name", How::Played(name)),
    ("verbs::self_test_words", How::Played(self_test_words)),
    ("verbs::own_directory", How::Played(own_directory)),
];

fn unknown(subject: &mut Subject<'_>) -> Played {
    let long = "x".repeat(4 << 10);
    for words in UNKNOWN.into_iter().chain([&[long.as_str()][..]]) {
        let answer = subject.words(words);
        if answer.meant != Meant::NotSupported {
            let verb = flexvol_protocol::text::one_line(&format!("{:?}", words[0]), 40);
            return Err(
                answer.fails(format!("{verb} is no verb and must be Not supported, but {}", answer.shown()))
            );
        }
    }
    Ok(())
}

fn not_found_is_quick(subject: &mut Subject<'_>) -> Played {
    let answer = fastest(subject, &["foo"]);
    if !is_late(answer.took(), LONGEST)? {
        return Ok(());
    }
    let seconds = seconds(answer.took(), 1);
    Err(answer.fails(format!("an unknown verb takes {seconds} s, and must take no more than 1")))
}

fn none(subject: &mut Subject<'_>) -> Played {
    let answer = subject.words(&[]);
    if answer.is_failure() || answer.meant == Meant::NotSupported {
        return Ok(());
    }
    Err(answer.fails(format!("a call without a verb must fail or be Not supported, but {}", answer.shown())))
}

fn missing_stay_missing(subject: &mut Subject<'_>) -> Played {
    let volume = some_volume(subject)?;
    for call in calls(&volume)? {
        let verb = call.verb();
        // Without a volume it is unknown whether the driver has these verbs, and whether it is safe
        // to call them.
        let unclear = !subject.facts.mounts && matches!(verb, Verb::Mount | Verb::Unmount);
        if verb == Verb::Init || subject.facts.has(verb) || unclear {
            continue;
        }
        let empty = vec![String::new(); verb.spec().arguments.len()];
        let empty: Vec<_> = [verb.name().to_owned()].into_iter().chain(empty).map(OsString::from).collect();
        let shapes = [("without arguments", vec![verb.name().into()]), ("with empty arguments", empty)];
        let mut answers: Vec<_> =
            shapes.into_iter().map(|(shape, words)| (shape, subject.execute(&words))).collect();
        // Outside a sandbox, a driver that has the verb after all would change the machine.
        if subject.is_contained() {
            answers.push(("with its arguments", subject.call(&call)));
        }
        all_the_same(verb, &answers)?;
    }
    Ok(())
}

fn all_the_same(verb: Verb, answers: &[(&str, Answer)]) -> Played {
    let is_missing = |answer: &Answer| answer.meant == Meant::NotSupported;
    let missing = answers.iter().find(|(_, answer)| is_missing(answer));
    let present = answers.iter().find(|(_, answer)| !is_missing(answer));
    let (Some((missing, _)), Some((present, answer))) = (missing, present) else { return Ok(()) };
    let problem = format!("{missing} {verb} is Not supported, but {present} {}", answer.shown());
    Err(answer.fails(problem))
}

fn present_stay_present(seen: &Seen<'_>) -> Option<Vec<Evidence>> {
    let is_there =
        |answer: &Answer| Verb::parse(answer.asked.verb().as_ref()).is_some_and(|verb| seen.facts.has(verb));
    seen.calls_that(is_there, |answer| {
        let problem = || format!("{} is there, and was Not supported in this call", answer.asked.verb());
        (answer.meant == Meant::NotSupported).then(|| answer.evidence(problem()))
    })
}

fn missing_arguments(subject: &mut Subject<'_>) -> Played {
    let volume = some_volume(subject)?;
    for call in calls(&volume)? {
        if !is_there(subject, call.verb()) {
            continue;
        }
        let words = call.to_arguments();
        for count in 1..words.len() {
            let answer = subject.execute(&words[..count]);
            // Another case checks whether Not supported is allowed.
            if !answer.is_failure() && answer.meant != Meant::NotSupported {
                let (verb, given) = (call.verb(), count - 1);
                let all = words.len() - 1;
                let problem =
                    format!("{verb} with {given} of its {all} arguments must fail, but {}", answer.shown());
                return Err(answer.fails(problem));
            }
        }
    }
    Ok(())
}

fn surplus_arguments(subject: &mut Subject<'_>) -> Played {
    if !subject.facts.mounts || !subject.is_contained() {
        return skip("needs a volume that can be mounted");
    }
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    for call in [volume.mount_call()?, Call::Unmount { target: volume.target()? }] {
        if subject.facts.has(call.verb()) {
            let mut words = call.to_arguments();
            // Before Kubernetes 1.6, `mount` had three arguments.
            words.extend(["surplus".into(), "surplus".into()]);
            let expected = format!("{} with two arguments too many must fail", call.verb());
            subject.execute(&words).refuses(&expected)?;
        }
    }
    subject.take_down(&volume)
}

fn name(subject: &mut Subject<'_>) -> Played {
    let volume = some_volume(subject)?;
    let reconstructed = Options { own: [].into(), ..volume.device_options() };
    let json = [volume.device_options(), reconstructed].map(|options| options.to_json());
    for (options, words) in json.iter().zip(["with its options", "with the volume's name alone"]) {
        let answer = fastest(subject, &["getvolumename", options]);
        let good = answer.is_success() || answer.meant == Meant::NotSupported;
        match good {
            false if subject.given.volume.is_none() => {
                return skip("getvolumename wants options: give --options");
            }
            false => {
                let problem = format!("getvolumename {words} must not fail, but {}", answer.shown());
                return Err(answer.fails(problem));
            }
            true if is_late(answer.took(), LONGEST)? => {
                let seconds = seconds(answer.took(), 1);
                let problem = format!("getvolumename takes {seconds} s, and must take no more than 1");
                return Err(answer.fails(problem));
            }
            true => {}
        }
    }
    Ok(())
}

fn self_test_words(subject: &mut Subject<'_>) -> Played {
    subject.excused = true;
    for word in QUESTIONS {
        let answer = subject.words(&[word]);
        let readable = !subject.facts.clean || answer.is_readable();
        if answer.meant == Meant::Nothing || !readable {
            let problem = format!("{word} must be answered with one JSON object, but {}", answer.shown());
            return Err(answer.fails(problem));
        }
    }
    Ok(())
}

/// Fails if a call changes the driver's directory.
/// Kubelet also sees a change that is undone at once.
fn own_directory(subject: &mut Subject<'_>) -> Played {
    let own = subject.given.driver.parent().unwrap_or(Path::new("/"));
    let mut changes = Inotify::new()?;
    changes.watch(own, Interest::ENTRIES)?;
    let looks = |answer: &Answer, changes: &mut Inotify| match changes.read()?.into_iter().find(is_noticed) {
        None => Ok(()),
        Some(notice) => Err(answer.fails(noticed(answer, &notice))),
    };
    for words in [&["init"][..], &["foo"], &["mount", "", ""], &["unmount", ""]] {
        let answer = subject.words(words);
        looks(&answer, &mut changes)?;
    }
    if subject.facts.mounts && subject.is_contained() {
        let volume = subject.volume()?;
        let answer = subject.bring_up(&volume)?;
        looks(&answer, &mut changes)?;
        subject.take_down(&volume)?;
        let last = subject.answers().last().cloned();
        last.map_or(Ok(()), |answer| looks(&answer, &mut changes))?;
    }
    Ok(())
}

/// Reports whether kubelet sees a change: it ignores a name that begins with a dot.
fn is_noticed(notice: &Notice) -> bool {
    notice.name.as_ref().is_some_and(|name| !name.as_bytes().starts_with(b"."))
}

fn noticed(answer: &Answer, notice: &Notice) -> String {
    let name = notice.name.as_ref().map(|name| name.display().to_string()).unwrap_or_default();
    let what = format!("{:?}", notice.what).to_lowercase();
    format!("{} must leave the driver's directory alone, but {name} was {what}", answer.asked.verb())
}

/// Reports whether the driver has a verb. `mount` and `unmount` count as present if it is unknown.
fn is_there(subject: &Subject<'_>, verb: Verb) -> bool {
    let unclear = !subject.facts.mounts && matches!(verb, Verb::Mount | Verb::Unmount);
    verb != Verb::Init && (unclear || subject.facts.has(verb))
}

/// Returns the volume, or one without any option.
fn some_volume(subject: &mut Subject<'_>) -> Result<PodVolume, Stopped> {
    if subject.given.volume.is_some() {
        return subject.volume();
    }
    Ok(PodVolume {
        kubelet_root: KUBELET_ROOT.into(),
        pod_uid: "0c8e1f5a-1d5b-4a2e-9c53-000000000000".to_owned(),
        driver: flexvol_protocol::DriverName::parse("check.example/driver")?,
        name: "data".to_owned(),
        options: Options { access: Some(Access::ReadWrite), ..Options::default() },
        capacity: None,
    })
}

/// Returns one call for each verb, as kubelet would send it. Each is undone by a later one.
fn calls(volume: &PodVolume) -> Result<Vec<Call>, Stopped> {
    let mut calls: Vec<_> = volume.calls(NODE, "")?.into_iter().map(|(call, _)| call).collect();
    let (options, target): (_, TargetPath) = (volume.device_options(), volume.target()?);
    let (new_bytes, old_bytes) = (2 << 20, 1 << 20);
    let directory = target.as_path().to_owned();
    calls.push(Call::ExpandVolume { options: options.clone(), target: directory, new_bytes, old_bytes });
    calls.push(Call::ExpandFs { options, device: String::new(), target, new_bytes, old_bytes });
    Ok(calls)
}

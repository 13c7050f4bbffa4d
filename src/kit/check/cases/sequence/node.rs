//! Life cycles that involve more than one pod's directory: the device of the node, the driver
//! itself.

use super::{UNMOUNT_WORKS, load, reload};
use crate::check::answer::{Answer, Meant};
use crate::check::case::{How, Scene};
use crate::check::cases::expand;
use crate::check::evidence::{Evidence, Played, Stopped};
use crate::check::given::Nature;
use crate::check::replica::Replica;
use crate::check::staging::{is_mounted, make_directory, remove_after};
use crate::check::subject::{NODE, Subject};
use flexvol_kubelet::PodVolume;
use flexvol_protocol::{Call, Verb};
use std::time::Duration;

/// Case about the device of a volume.
const ATTACH_WORKS: &str = "attach::works";

pub(in crate::check) const SCENES: &[Scene] = &[
    ("sequence::attach", How::Played(attach)),
    ("sequence::upgrade", How::Played(upgrade)),
    ("sequence::resize", How::Played(expand::grow_and_mount_again)),
    ("sequence::probe_storm", How::Played(probe_storm)),
];

/// Does what the controller and kubelet do after a reboot: the node's status says attached, but
/// only the driver knows the actual state.
pub(super) fn attach_again(subject: &mut Subject<'_>, volume: &PodVolume) -> Played {
    let mut device = subject.device().to_owned();
    if subject.facts.has(Verb::IsAttached) {
        let answer = subject.call_is_attached(volume, NODE);
        if answer.status().is_some_and(|status| !status.attached) {
            device = subject.attach(volume)?;
        }
    }
    let answer = subject.call_wait(volume, &device);
    let device = match &answer.meant {
        Meant::NotSupported => device,
        Meant::Success(status) => status.device.clone(),
        _ => return Err(answer.fails(format!("the node was started again, and {}", answer.shown()))),
    };
    subject.mount_device(volume, &device)
}

/// Fails if `getvolumename` fails, which stops everything.
/// It may be unsupported; its answer is unused.
fn ask_name(subject: &mut Subject<'_>, volume: &PodVolume) -> Played {
    let answer = subject.call(&Call::GetVolumeName { options: volume.device_options() });
    if answer.meant == Meant::NotSupported || answer.is_success() {
        return Ok(());
    }
    Err(answer.fails(format!("getvolumename comes first, and {}", answer.shown())))
}

fn attach(subject: &mut Subject<'_>) -> Played {
    let first = subject.volume()?;
    ask_name(subject, &first)?;
    subject.bring_up(&first)?;
    is_still_attached(subject, &first, "a pod has the volume")?;
    let mut last = first.clone();
    if !subject.given.is(Nature::Exclusive) {
        last = subject.volume()?;
        start_second(subject, &last)?;
        let ended = subject.unmount(&first)?.or_blocked(UNMOUNT_WORKS)?;
        gone(&ended, &first)?;
        if !is_mounted(&last.target()?)? {
            return Err(ended.fails("the first pod ended, and the second no longer has the volume"));
        }
        is_still_attached(subject, &first, "the second pod has the volume")?;
    }
    let ended = subject.unmount(&last)?.or_blocked(UNMOUNT_WORKS)?;
    gone(&ended, &last)?;
    is_still_attached(subject, &last, "the volume was not detached")?;
    ask_name(subject, &last)?;
    subject.unstage(&last)
}

/// Starts another pod of the node: the device is mounted already.
fn start_second(subject: &mut Subject<'_>, volume: &PodVolume) -> Played {
    ask_name(subject, volume)?;
    let device = subject.device().to_owned();
    let waited = subject.call_wait(volume, &device);
    if waited.meant != Meant::NotSupported {
        waited.or_blocked(ATTACH_WORKS)?;
    }
    make_directory(volume.target()?.as_path())?;
    let answer = subject.mount(volume)?.succeeds("a second pod of the node shares the volume")?;
    if is_mounted(&volume.target()?)? {
        return Ok(());
    }
    Err(answer.fails("it said Success, and the second pod's directory is no mount point"))
}

fn is_still_attached(subject: &mut Subject<'_>, volume: &PodVolume, why: &str) -> Played {
    if !subject.facts.has(Verb::IsAttached) {
        return Ok(());
    }
    let answer = subject.call_is_attached(volume, NODE);
    if answer.status().is_some_and(|status| !status.attached) {
        return Err(answer.fails(format!("{why}, and isattached does not say that it is attached")));
    }
    Ok(())
}

fn upgrade(subject: &mut Subject<'_>) -> Played {
    subject.with_replica(upgraded)
}

fn upgraded(subject: &mut Subject<'_>, replica: &Replica) -> Played {
    let (_, first) = load(subject)?;
    let before = subject.volume()?;
    subject.bring_up(&before)?;
    // The driver is replaced during another mount, or during the unmount if one pod at a time has
    // the volume.
    let pause = Duration::from_millis(subject.facts.mount_took / 2);
    let situation = "the driver was replaced meanwhile";
    if subject.given.is(Nature::Exclusive) {
        while_replaced(replica, pause, || subject.unmount(&before))?.succeeds(situation)?;
        reload(subject, first)?;
    } else {
        let during = subject.volume()?;
        subject.stage(&during)?;
        while_replaced(replica, pause, || subject.mount(&during))?.succeeds(situation)?;
        reload(subject, first)?;
        let answer = subject.unmount(&during)?.succeeds("the driver was replaced while it mounted this")?;
        gone(&answer, &during)?;
        subject.unmount(&before)?.succeeds("the driver was replaced after it had mounted this")?;
    }
    subject.put_all_away(&[before])
}

/// Does something, and replaces the driver a little later.
fn while_replaced(
    replica: &Replica,
    pause: Duration,
    deed: impl FnOnce() -> Result<Answer, Stopped>,
) -> Result<Answer, Stopped> {
    std::thread::scope(|scope| {
        let replaced = scope.spawn(move || {
            std::thread::sleep(pause);
            replica.replace()
        });
        let answer = deed();
        if let Ok(replaced) = replaced.join() {
            replaced?;
        }
        answer
    })
}

/// Fails if the volume is still mounted, or its directory cannot be removed.
fn gone(answer: &Answer, volume: &PodVolume) -> Played {
    let target = volume.target()?;
    if is_mounted(&target)? {
        return Err(answer.fails("it said Success, and the directory is still a mount"));
    }
    remove_after(answer, &target)
}

fn probe_storm(subject: &mut Subject<'_>) -> Played {
    let (_, first) = load(subject)?;
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let mount = volume.mount_call()?.to_arguments();
    let unmount = Call::Unmount { target: volume.target()? }.to_arguments();
    for (verb, call, layers) in [(Verb::Mount, mount, 1), (Verb::Unmount, unmount, 0)] {
        if subject.facts.mounts && !subject.facts.has(verb) {
            return Err(Stopped::Skipped(format!("the driver leaves {verb} to kubelet")));
        }
        let inits = subject.repeat() * 5;
        let mut calls = vec![Call::Init.to_arguments(); inits];
        calls.insert(inits / 2, call);
        for answer in subject.at_once(&calls) {
            let answer = answer.succeeds(&format!("{inits} inits come at once with one {verb}"))?;
            let said = answer.status().and_then(|status| status.capabilities);
            if answer.asked.verb() == Verb::Init.name() && said != first {
                return Err(answer.fails("of many inits at once, not all said the same"));
            }
        }
        if subject.layers(&volume)? != layers {
            let text = format!("{verb} came with {inits} inits and said Success, and did not do its work");
            return Err(Evidence::new(text).into());
        }
    }
    subject.put_all_away(&[volume])
}

//! `attach`, `isattached` and `detach`, as the controller calls them, and `waitforattach`, as
//! kubelet does before each mount.

pub(in crate::check) mod device;
pub(in crate::check) mod disk;

use crate::check::answer::Meant;
use crate::check::case::{How, Scene};
use crate::check::device_calls::mounted_at;
use crate::check::evidence::{Evidence, Played, skip};
use crate::check::given::Nature;
use crate::check::in_time::is_late;
use crate::check::left;
use crate::check::staging::{is_mounted, make_directory, remove_directory};
use crate::check::subject::{NODE, Subject};
use crate::fault_injection::{FaultInjection, Moment, Signal, Target};
use flexvol_kubelet::{PodVolume, by_kubelet};
use flexvol_linux::mount::mount_table;
use flexvol_protocol::text::seconds;
use flexvol_protocol::{Access, Verb};
use std::path::Path;
use std::time::Duration;

/// Case about the whole sequence of calls, for cases that need it to begin.
const WORKS: &str = "attach::works";

/// Another node of the cluster.
const OTHER_NODE: &str = "node-2.check";

/// Limit for a call that each start of a pod waits for.
const QUICK: Duration = Duration::from_secs(2);

/// Time that a hopeless `waitforattach` may run before it is told to end.
const HOPE: Duration = Duration::from_secs(2);

/// Time from kubelet's SIGTERM to its own crash.
const TO_END: Duration = Duration::from_secs(10);

/// Directories of the node's tools, which are missing in an empty image.
const TOOLS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

pub(in crate::check) const SCENES: &[Scene] = &[
    ("attach::works", How::Played(works)),
    ("attach::twice", How::Played(twice)),
    ("attach::device", How::Played(device)),
    ("attach::detach_by_name", How::Played(detach_by_name)),
    ("attach::detach_twice", How::Played(detach_twice)),
    ("attach::detach_unknown", How::Played(detach_unknown)),
    ("attach::is_attached", How::Played(is_attached)),
    ("attach::second_node", How::Played(second_node)),
    ("attach::without_secrets_and_tools", How::Played(without_tools)),
    ("attach::wait", How::Played(wait)),
    ("attach::wait_again", How::Played(wait_again)),
    ("attach::wait_fails_in_time", How::Played(wait_fails_in_time)),
];

fn works(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    let mut device = String::new();
    let answer = subject.call_attach(&volume, NODE);
    if answer.meant != Meant::NotSupported {
        device = device_in(answer.succeeds("the volume is to be attached")?.meant);
    }
    let answer = subject.call_wait(&volume, &device);
    if answer.meant != Meant::NotSupported {
        device = device_in(answer.succeeds("the volume is attached and awaited")?.meant);
    }
    mount_device(subject, &volume, &device)?;
    let global = volume.global()?;
    // Kubelet does not call `unmountdevice` for a directory that is no mount point.
    if is_mounted(&global)? {
        let answer = subject.call_unmount_device(&volume)?;
        match answer.meant {
            Meant::NotSupported => by_kubelet::unmount(&global)?,
            _ => drop(answer.succeeds("the device is to be unmounted")?),
        }
    }
    if let Err(error) = remove_directory(global.as_path()) {
        let text = format!("after unmountdevice kubelet removes the global directory, but {error}");
        return Err(Evidence::new(text).into());
    }
    let answer = subject.call_detach(&volume.name, NODE);
    if answer.meant != Meant::NotSupported {
        answer.succeeds("the volume is to be detached")?;
    }
    Ok(())
}

/// Mounts the device, by the driver or as kubelet does.
fn mount_device(subject: &mut Subject<'_>, volume: &PodVolume, device: &str) -> Played {
    let global = volume.global()?;
    make_directory(global.as_path())?;
    let answer = subject.call_mount_device(volume, device)?;
    if answer.meant != Meant::NotSupported {
        let answer = answer.succeeds("the device is to be mounted")?;
        if !subject.facts.has(Verb::Mount) && subject.facts.mounts && !is_mounted(&global)? {
            let text = "mount is left to kubelet, which binds the global directory, and mountdevice mounted nothing there";
            return Err(answer.fails(text));
        }
    } else if !device.is_empty() {
        let read_only = volume.options.access() == Access::ReadOnly;
        let fs_type = volume.options.fs_type.as_deref().unwrap_or_default();
        if let Err(error) = by_kubelet::mount_device(device, &global, fs_type, read_only) {
            let text = format!("mountdevice is left to kubelet, which cannot mount the device: {error:#}");
            return Err(answer.fails(text));
        }
    }
    Ok(())
}

fn device_in(meant: Meant) -> String {
    if let Meant::Success(status) = meant { status.device } else { String::new() }
}

fn twice(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    let before = subject.inside.devices()?.len();
    let first = device_in(subject.call_attach(&volume, NODE).or_blocked(WORKS)?.meant);
    let devices = subject.inside.devices()?.len();
    for _ in 0..subject.repeat() {
        let again = subject.call_attach(&volume, NODE).succeeds("it is attached to this node already")?;
        let device = device_in(again.meant.clone());
        if device != first {
            return Err(
                again.fails(format!("the device was {first:?}, and is {device:?} at the next attach"))
            );
        }
        let now = subject.inside.devices()?.len();
        if now != devices {
            let (first, all) = (devices - before, now - before);
            return Err(again.fails(format!("{first} devices of the node became {all}")));
        }
    }
    subject.unstage(&volume)
}

fn device(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    let mut device = String::new();
    if subject.facts.has(Verb::Attach) {
        let answer = subject.call_attach(&volume, NODE).or_blocked(WORKS)?;
        device = device_in(answer.meant.clone());
        if device.is_empty() {
            return Err(answer.fails("attach said Success without a device"));
        }
    }
    if subject.facts.has(Verb::WaitForAttach) {
        let answer = subject.call_wait(&volume, &device).or_blocked(WORKS)?;
        if device_in(answer.meant.clone()).is_empty() {
            return Err(answer.fails("waitforattach said Success without a device, so kubelet knows none"));
        }
    }
    subject.unstage(&volume)
}

fn detach_by_name(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    let before = subject.inside.devices()?;
    subject.attach(&volume)?;
    let answer = subject.call_detach(&volume.name, NODE).succeeds("an attached volume is to be detached")?;
    if let Some(device) = left::devices_but(subject, &before)?.first() {
        return Err(answer.fails(format!("it said Success, and {} is still there", device.display())));
    }
    if subject.facts.has(Verb::IsAttached) {
        let asked = subject.call_is_attached(&volume, NODE);
        if asked.status().is_some_and(|status| status.attached) {
            return Err(asked.fails("detach said Success, and isattached says that it is still attached"));
        }
    }
    Ok(())
}

fn detach_twice(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.attach(&volume)?;
    subject.call_detach(&volume.name, NODE).or_blocked(WORKS)?;
    for _ in 0..subject.repeat() {
        subject.call_detach(&volume.name, NODE).succeeds("it is detached already")?;
    }
    Ok(())
}

fn detach_unknown(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.call_detach(&volume.name, NODE).succeeds("the volume was never attached")?;
    subject.attach(&volume)?;
    let devices = subject.inside.devices()?;
    // One name contains the volume's, one is a part of it, one is the longest in Kubernetes.
    let longest = format!("{}a", "pv.".repeat(84));
    let within = volume.name.get(..1).unwrap_or("v").to_owned();
    for name in ["pvc-2f3b1c9e-never-attached".to_owned(), format!("{}-2", volume.name), within, longest] {
        if name == volume.name {
            continue;
        }
        let answer =
            subject.call_detach(&name, NODE).succeeds("nobody has attached a volume of that name")?;
        if subject.inside.devices()? != devices || is_struck_off(subject, &volume) {
            return Err(answer.fails(format!("{} was attached, and no longer is", volume.name)));
        }
    }
    subject.unstage(&volume)
}

/// Reports whether the driver says that the volume is not attached to our node.
fn is_struck_off(subject: &mut Subject<'_>, volume: &PodVolume) -> bool {
    subject.facts.has(Verb::IsAttached)
        && subject.call_is_attached(volume, NODE).status().is_some_and(|status| !status.attached)
}

fn is_attached(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.attach(&volume)?;
    let answer = subject.call_is_attached(&volume, NODE).succeeds("the volume is attached")?;
    if !answer.status().is_some_and(|status| status.attached) {
        return Err(answer.fails("the volume is attached, and the answer has no \"attached\":true"));
    }
    subject.unstage(&volume)?;
    // After a failure the controller would still assume that it is attached.
    let answer =
        subject.call_is_attached(&volume, NODE).succeeds("the volume is detached, which can be said")?;
    if answer.status().is_some_and(|status| status.attached) {
        return Err(answer.fails("the volume is detached, and the answer has \"attached\":true"));
    }
    Ok(())
}

fn second_node(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.attach(&volume)?;
    let elsewhere = subject.call_attach(&volume, OTHER_NODE).answers("it is attached to another node")?;
    if elsewhere.is_success() && subject.given.is(Nature::Exclusive) {
        let text = "one pod at a time has the volume, and it was attached to two nodes";
        return Err(elsewhere.fails(text));
    }
    if is_struck_off(subject, &volume) {
        return Err(elsewhere.fails("the volume was attached to the first node, and no longer is"));
    }
    let answer =
        subject.call_detach(&volume.name, OTHER_NODE).succeeds("a second node is to be without it")?;
    if is_struck_off(subject, &volume) {
        return Err(answer.fails("the volume was detached from the first node as well"));
    }
    subject.call_attach(&volume, NODE).succeeds("it is still attached to the first node")?;
    subject.unstage(&volume)
}

fn without_tools(subject: &mut Subject<'_>) -> Played {
    let driver = subject.given.driver.clone();
    if TOOLS.iter().any(|directory| driver.starts_with(directory)) {
        return skip("the driver lies among the tools that are to be missing");
    }
    let volume = subject.volume()?;
    let (mounts, devices) = (mount_table::read()?.len(), subject.inside.devices()?);
    let covered = directories_of_tools();
    covered.iter().try_for_each(|path| subject.inside.mount_nobodys(path, "tmpfs"))?;
    let answers = [
        subject.call_attach(&volume, NODE),
        subject.call_is_attached(&volume, NODE),
        subject.call_detach(&volume.name, NODE),
    ];
    covered.iter().try_for_each(|path| subject.inside.take_off(path))?;
    let was_attached = answers[0].is_success();
    for answer in answers {
        // isattached may be left to kubelet.
        if answer.asked.verb() != Verb::IsAttached.name() || subject.facts.has(Verb::IsAttached) {
            answer.answers("the tools of a node are missing")?;
        }
    }
    if !was_attached
        && (mount_table::read()?.len() != mounts || !left::devices_but(subject, &devices)?.is_empty())
    {
        return Err(Evidence::new("attach failed for want of a tool, and left a device or mount").into());
    }
    // The same attach must work once the tools are back.
    subject.call_attach(&volume, NODE).succeeds("the tools of the node are there again")?;
    subject.unstage(&volume)
}

/// Lists the directories of tools, without links and without those that are missing.
fn directories_of_tools() -> Vec<&'static Path> {
    let is_directory = |path: &Path| path.symlink_metadata().is_ok_and(|about| about.is_dir());
    TOOLS.iter().map(Path::new).filter(|path| is_directory(path)).collect()
}

fn wait(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    let device = match subject.call_attach(&volume, NODE) {
        answer if answer.meant == Meant::NotSupported => String::new(),
        answer => device_in(answer.or_blocked(WORKS)?.meant),
    };
    for device in [device.as_str(), ""] {
        let answer = subject.call_wait(&volume, device).succeeds("the volume is attached")?;
        if device_in(answer.meant.clone()).is_empty() {
            return Err(answer.fails(format!("for the device {device:?} it answered without one")));
        }
    }
    subject.unstage(&volume)
}

fn wait_again(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    let first = subject.device().to_owned();
    let mounts = mounted_at(volume.global()?.as_path())?;
    for _ in 0..subject.repeat() {
        let answer = subject.call_wait(&volume, &first).succeeds("the volume is mounted")?;
        let device = device_in(answer.meant.clone());
        if device != first {
            return Err(answer.fails(format!("the device was {first:?}, and is {device:?} now")));
        }
        if is_late(answer.took(), QUICK)? {
            let took = seconds(answer.took(), 1);
            return Err(answer.fails(format!("it took {took} s, and every start of a pod waits for it")));
        }
        if mounted_at(volume.global()?.as_path())? != mounts {
            return Err(answer.fails("what is mounted at the global directory has changed"));
        }
    }
    subject.take_down(&volume)
}

fn wait_fails_in_time(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    let usual = subject.terms.clone();
    subject.fault =
        Some(FaultInjection { at: Moment::After(HOPE), signal: Signal::Terminate, target: Target::Driver });
    subject.terms.patience = HOPE + TO_END;
    // The volume is not attached, and no device has that name. A driver that attaches it anyway is
    // fine.
    let answer = subject.call_wait(&volume, "/dev/check/none");
    (subject.terms, subject.fault) = (usual, None);
    if answer.was_stopped() {
        return Err(answer.fails("it was told to end by SIGTERM, and had not ended 10 s later"));
    }
    if answer.observed.injected.is_none() {
        answer.answers("nothing is attached")?;
    }
    // The driver can detach what it attached anyway only after an attach.
    subject.attach(&volume)?;
    subject.unstage(&volume)
}

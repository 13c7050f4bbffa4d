//! Whole life cycles of volumes, as kubelet plays them: calls in the usual order, with the usual
//! checks of the directory between them. Each call has cases of its own; these cases are about the
//! steps between the calls.

pub(in crate::check) mod node;

use crate::check::answer::Answer;
use crate::check::case::{How, Scene};
use crate::check::cases::daemon::settled;
use crate::check::evidence::{Evidence, Played, Stopped, skip};
use crate::check::given::Nature;
use crate::check::staging::{is_mounted, make_directory, put, remove_after, remove_directory};
use crate::check::subject::Subject;
use flexvol_kubelet::{PodVolume, Reader, by_kubelet};
use flexvol_protocol::{Access, Call, Capabilities, FsGroup, FsGroupSpelling, Options};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

/// Case about a step that must work before anything else.
const LOADS: &str = "init::capabilities";
const UNMOUNT_WORKS: &str = "unmount::works";

/// Group of a pod.
const GROUP: u32 = 2000;

pub(in crate::check) const SCENES: &[Scene] = &[
    ("sequence::boot", How::Played(boot)),
    ("sequence::pod", How::Played(pod)),
    ("sequence::lost_answer", How::Played(lost_answer)),
    ("sequence::failed_start", How::Played(failed_start)),
    ("sequence::restart_alive", How::Played(restart_alive)),
    ("sequence::restart_gone", How::Played(restart_gone)),
    ("sequence::reboot", How::Played(reboot)),
    ("sequence::two_pods", How::Played(two_pods)),
    ("sequence::dead_daemon", How::Played(dead_daemon)),
];

/// Calls `init`, and returns its capabilities.
fn load(subject: &mut Subject<'_>) -> Result<(Answer, Option<Capabilities>), Stopped> {
    let answer = subject.call(&Call::Init).or_blocked(LOADS)?;
    let capabilities = answer.status().and_then(|status| status.capabilities);
    Ok((answer, capabilities))
}

/// Calls `init` once more. Fails if it does not say what it said before.
fn reload(subject: &mut Subject<'_>, before: Option<Capabilities>) -> Played {
    let (answer, now) = load(subject)?;
    if now == before {
        return Ok(());
    }
    Err(answer.fails(format!("init said {}, and now {}", shown(before), shown(now))))
}

fn shown(capabilities: Option<Capabilities>) -> String {
    let Some(capabilities) = capabilities else { return "null".to_owned() };
    let Capabilities { attach, selinux_relabel, supports_metrics, fs_group, requires_fs_resize } =
        capabilities;
    format!(
        "attach {attach}, fsGroup {fs_group}, requiresFSResize {requires_fs_resize}, \
         selinuxRelabel {selinux_relabel}, supportsMetrics {supports_metrics}"
    )
}

fn boot(subject: &mut Subject<'_>) -> Played {
    let (_, first) = load(subject)?;
    reload(subject, first)?;
    if subject.facts.mounts {
        let volume = subject.volume()?;
        subject.bring_up(&volume)?;
        reload(subject, first)?;
        subject.take_down(&volume)?;
    }
    reload(subject, first)
}

fn pod(subject: &mut Subject<'_>) -> Played {
    for _ in 0..subject.repeat().min(5) {
        let mut volume = subject.volume()?;
        let writable = volume.options.access() == Access::ReadWrite && subject.facts.writable;
        if subject.facts.fs_group && writable {
            volume.options.fs_group = Some(FsGroup { gid: GROUP, spelling: FsGroupSpelling::Current });
        }
        let answer = subject.bring_up(&volume)?;
        let target = volume.target()?;
        if subject.facts.fs_group && writable {
            // The pod starts even if this fails.
            let _ = by_kubelet::change_group(target.as_path(), GROUP);
        }
        if let Err(error) = std::fs::read_dir(target.as_path()) {
            return Err(answer.fails(format!("it said Success, and the volume cannot be listed: {error}")));
        }
        subject.take_down(&volume)?;
        no_directory_is_left(&volume)?;
    }
    Ok(())
}

/// Removes the directories as kubelet does after the pod's last volume.
fn no_directory_is_left(volume: &PodVolume) -> Played {
    let target = volume.target()?;
    for directory in target.as_path().ancestors().skip(1).take(3) {
        if let Err(error) = remove_directory(directory) {
            let names = names_in(directory);
            let text =
                format!("kubelet cannot remove {}: {error}; there is {names} in it", directory.display());
            return Err(Evidence::new(text).into());
        }
    }
    Ok(())
}

fn names_in(directory: &Path) -> String {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names: Vec<_> = entries.take(3).map(|entry| entry.file_name().display().to_string()).collect();
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

fn lost_answer(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    subject.terms.reader = Reader::Closed;
    let unread = subject.mount(&volume);
    subject.terms.reader = Reader::All;
    unread?;
    let after = mount_unless_mounted(subject, &volume)?;
    let layers = subject.layers(&volume)?;
    if layers != 1 {
        let text = format!("after a mount whose answer was lost there are {layers} mounts at the directory");
        return Err(after.map_or_else(|| Evidence::new(&text).into(), |answer| answer.fails(&text)));
    }
    subject.take_down(&volume)
}

/// Does what kubelet does after its restart: it makes no call if the volume is mounted.
fn mount_unless_mounted(subject: &mut Subject<'_>, volume: &PodVolume) -> Result<Option<Answer>, Stopped> {
    let target = volume.target()?;
    if is_mounted(&target)? {
        return Ok(None);
    }
    make_directory(target.as_path())?;
    Ok(Some(subject.mount(volume)?.succeeds("nothing is mounted, and the pod is to start")?))
}

fn failed_start(subject: &mut Subject<'_>) -> Played {
    let Some(bad) = a_failure(subject)? else {
        return skip("no way was found to make mount fail");
    };
    let volume = subject.volume()?;
    for _ in 0..2 {
        subject.stage(&volume)?;
        fail_once(subject, &volume, &bad)?;
    }
    // From now on, the options are right.
    make_directory(volume.target()?.as_path())?;
    let answer = subject.mount(&volume)?.succeeds("what was wrong before is right now")?;
    subject.has_layers(&volume, 1, &answer)?;
    subject.take_down(&volume)?;
    // A pod that is deleted after a failure gets no unmount.
    let given_up = subject.volume()?;
    subject.stage(&given_up)?;
    fail_once(subject, &given_up, &bad)?;
    no_directory_is_left(&given_up)?;
    subject.unstage(&given_up)
}

/// Makes a `mount` that fails, and does what kubelet does then.
fn fail_once(subject: &mut Subject<'_>, volume: &PodVolume, bad: &str) -> Played {
    let target = volume.target()?;
    let arguments: [OsString; 3] = ["mount".into(), target.as_path().into(), bad.into()];
    let answer = subject.execute(&arguments);
    if !answer.is_failure() {
        return Err(answer.fails(format!("the same options failed before, and {}", answer.shown())));
    }
    if is_mounted(&target)? {
        return Err(answer.fails("it failed, and something is mounted: kubelet takes the volume for mounted"));
    }
    remove_directory(target.as_path())
        .map_err(|error| answer.fails(format!("it failed, and kubelet cannot remove the directory: {error}")))
}

/// Finds options with which `mount` fails, by trying.
fn a_failure(subject: &mut Subject<'_>) -> Result<Option<String>, Stopped> {
    let volume = subject.volume()?;
    let Call::Mount { options, .. } = volume.mount_call()? else { return Ok(None) };
    let good = options.to_json();
    let other_access =
        good.replace("\"kubernetes.io/readwrite\":\"rw\"", "\"kubernetes.io/readwrite\":\"maybe\"");
    let without = Options { own: BTreeMap::new(), ..options.clone() }.to_json();
    let file_system = Options { fs_type: Some("nosuchfs".to_owned()), ..options }.to_json();
    for bad in [other_access, file_system, without, "{".to_owned()] {
        if bad == good {
            continue;
        }
        subject.stage(&volume)?;
        let target = volume.target()?;
        let arguments: [OsString; 3] = ["mount".into(), target.as_path().into(), bad.as_str().into()];
        let answer = subject.execute(&arguments);
        if answer.is_failure() {
            // The scene checks later what such a failure leaves.
            by_kubelet::unmount(&target)?;
            subject.unstage(&volume)?;
            let _ = remove_directory(target.as_path());
            return Ok(Some(bad));
        }
        subject.take_down(&volume)?;
    }
    Ok(None)
}

fn restart_alive(subject: &mut Subject<'_>) -> Played {
    let (_, first) = load(subject)?;
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    let file = volume.target()?.as_path().join("check");
    let writes = put(&file, "before the restart").is_ok();
    reload(subject, first)?;
    if subject.attaches() {
        subject.attach(&volume)?;
    }
    let (answer, layers) = (mount_unless_mounted(subject, &volume)?, subject.layers(&volume)?);
    let fails = |text: String| match &answer {
        Some(answer) => answer.fails(text),
        None => Evidence::new(text).into(),
    };
    if layers != 1 {
        return Err(fails(format!("after init there are {layers} mounts at the directory")));
    }
    if writes {
        match std::fs::read_to_string(&file) {
            Ok(text) if text == "before the restart" => std::fs::remove_file(&file)?,
            Ok(_) => return Err(fails("after init a file in the volume has changed".to_owned())),
            Err(error) => return Err(fails(format!("after init a file cannot be read: {error}"))),
        }
    }
    subject.take_down(&volume)
}

fn restart_gone(subject: &mut Subject<'_>) -> Played {
    let (_, first) = load(subject)?;
    let mounted = subject.volume()?;
    subject.bring_up(&mounted)?;
    // For this pod, kubelet had only made the directory when it was killed.
    let half_made = subject.volume()?;
    make_directory(half_made.target()?.as_path())?;
    reload(subject, first)?;
    let answer = subject.unmount(&half_made)?.succeeds("kubelet had only made the directory")?;
    remove_after(&answer, &half_made.target()?)?;
    subject.unmount(&mounted)?.succeeds("the pod is gone")?;
    subject.put_all_away(&[mounted])
}

fn reboot(subject: &mut Subject<'_>) -> Played {
    let (stays, goes) = (subject.volume()?, subject.volume()?);
    let both = !subject.given.is(Nature::Exclusive);
    subject.bring_up(&stays)?;
    if both {
        subject.bring_up(&goes)?;
    } else {
        make_directory(goes.target()?.as_path())?;
    }
    subject.reboot()?;
    load(subject)?;
    let answer = subject.unmount(&goes)?.succeeds("the node was started again, and the pod is gone")?;
    remove_after(&answer, &goes.target()?)?;
    if subject.attaches() {
        node::attach_again(subject, &stays)?;
    }
    let answer = subject.mount(&stays)?.succeeds("the node was started again, and the pod is to start")?;
    subject.has_layers(&stays, 1, &answer)?;
    subject.take_down(&stays)
}

fn two_pods(subject: &mut Subject<'_>) -> Played {
    if subject.given.is(Nature::Exclusive) {
        return skip("one pod at a time has the volume");
    }
    let volumes = [subject.volume()?, subject.volume()?];
    volumes.iter().try_for_each(|volume| subject.stage(volume))?;
    mount_both(subject, &volumes)?;
    let [ends, stays] = &volumes;
    let file = stays.target()?.as_path().join("check");
    let writes = put(&file, "of the second pod").is_ok();
    let answer = subject.unmount(ends)?.or_blocked(UNMOUNT_WORKS)?;
    if subject.layers(stays)? != 1 {
        return Err(answer.fails("the first pod ended, and the second no longer has the volume"));
    }
    if writes && let Err(error) = std::fs::read_to_string(&file).and_then(|_| std::fs::remove_file(&file)) {
        return Err(answer.fails(format!("the first pod ended, and the second cannot read: {error}")));
    }
    remove_directory(ends.target()?.as_path())?;
    subject.take_down(stays)
}

/// Mounts both at the same time, except where kubelet waits for one.
fn mount_both(subject: &mut Subject<'_>, volumes: &[PodVolume; 2]) -> Played {
    let answers = if subject.attaches() {
        vec![subject.mount(&volumes[0])?, subject.mount(&volumes[1])?]
    } else {
        let [first, second] = [volumes[0].mount_call()?, volumes[1].mount_call()?];
        subject.at_once(&[first.to_arguments(), second.to_arguments()])
    };
    for (answer, volume) in answers.into_iter().zip(volumes) {
        let answer = answer.succeeds("two pods have the volume")?;
        let layers = subject.layers(volume)?;
        if layers != 1 {
            let text = format!("two pods started at once, and one has {layers} mounts at its directory");
            return Err(answer.fails(text));
        }
    }
    Ok(())
}

fn dead_daemon(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    let before = subject.inside.processes()?;
    subject.bring_up(&volume)?;
    let daemons: Vec<_> = settled(subject)?.into_iter().filter(|each| !before.contains(each)).collect();
    if daemons.is_empty() {
        return skip("no process serves the mount");
    }
    subject.kill(&daemons.iter().map(|(pid, _)| *pid).collect::<Vec<_>>())?;
    let answer = subject.unmount(&volume)?.succeeds("the process behind the mount was killed")?;
    if is_mounted(&volume.target()?)? {
        return Err(answer.fails("it said Success, and the directory is still a mount"));
    }
    remove_after(&answer, &volume.target()?)?;
    let next = subject.volume()?;
    subject.stage(&next)?;
    let answer = subject.mount(&next)?.succeeds("the next pod starts")?;
    if subject.layers(&next)? == 0 {
        return Err(answer.fails("it said Success, and the directory is no mount point"));
    }
    subject.take_down(&next)
}

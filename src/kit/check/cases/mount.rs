//! `mount`, as kubelet calls it before a pod starts and again after a lost answer.

mod again;
mod first;
mod odd;
mod pods;
mod provoked;
mod tools;

use crate::check::answer::Answer;
use crate::check::case::{Case, How, Level, Scope};
use crate::check::evidence::{Played, Stopped};
use crate::check::footprint::Footprint;
use crate::check::staging::{put, remove_directory};
use crate::check::subject::Subject;
use flexvol_kubelet::PodVolume;
use flexvol_protocol::{Access, Options, Verb, VerbSet};
use std::io;

/// Builds a case with a volume.
const fn case(
    id: &'static str,
    (level, needs): (Level, &[Verb]),
    items: &'static [u8],
    [claim, reason, fix]: [&'static str; 3],
    scene: fn(&mut Subject<'_>) -> Played,
) -> Case {
    let (scope, needs) = (Scope::Volume, VerbSet::of(needs));
    Case { id, level, scope, needs, items, claim, reason, fix, how: How::Played(scene) }
}

/// Verbs of cases about the driver's own `mount`, not kubelet's.
const OWN: &[Verb] = &[Verb::Mount];

pub(in crate::check) const CASES: &[Case] = &[
    case(
        "mount::works",
        (Level::Must, &[]),
        &[59, 78],
        [
            "a volume that is mounted on an empty directory is a mount point afterwards",
            "kubelet takes a directory that is no mount point for not mounted (mounter.go: SetUpAt)",
            "if it says why it fails, fix that first; mount on the directory itself, and look into /proc/self/mountinfo before saying Success",
        ],
        first::works,
    ),
    case(
        "mount::usable_at_once",
        (Level::Must, &[]),
        &[61, 78],
        [
            "as soon as mount says Success the volume can be listed, measured, written to and read",
            "containers start at once; what they write before the volume is there lands on the node's disk",
            "wait until the daemon serves: look into the volume before you say Success",
        ],
        first::usable_at_once,
    ),
    case(
        "mount::stays",
        (Level::Must, &[]),
        &[61, 78],
        [
            "a mounted volume stays as it is, whatever else the driver is called for",
            "init and the calls of other pods come at any time while it is used (probe.go, reconciler.go)",
            "touch nothing in init, and in other verbs only the directory they name",
        ],
        first::stays,
    ),
    case(
        "mount::makes_directory",
        (Level::Should, OWN),
        &[60, 66],
        [
            "if the directory is missing, mount makes it or says Failure and leaves none",
            "kubelet makes it first since 1.6; a pod that ends meanwhile takes it away again (mounter.go)",
            "make it with mkdir, and remove it again if the mount fails",
        ],
        first::makes_directory,
    ),
    case(
        "mount::nothing_beside",
        (Level::Must, &[]),
        &[70],
        [
            "nothing is made beside the volume's directory",
            "after a restart kubelet takes every entry there for a volume of the driver (reconstruct.go)",
            "keep locks, logs and state in /run and /var/log, not below kubelet's directory",
        ],
        first::nothing_beside,
    ),
    case(
        "mount::propagates",
        (Level::Must, &[]),
        &[71],
        [
            "the mount is seen by containers, and its end too",
            "containers have mount tables of their own, which get what is mounted below a shared mount",
            "mount in kubelet's own namespace, and change the propagation of no mount above the directory",
        ],
        first::propagates,
    ),
    case(
        "mount::old_call",
        (Level::Harden, OWN),
        &[135],
        [
            "a mount with a device before the options, as before 1.6, works or is a Failure that leaves nothing",
            "Kubernetes 1.2 to 1.5 called mount DIR DEVICE OPTIONS (driver-call.go)",
            "count the arguments, and say Failure if there are not two",
        ],
        first::old_call,
    ),
    case(
        "mount::twice",
        (Level::Must, OWN),
        &[62],
        [
            "a second mount of a mounted directory is a Success and changes nothing",
            "a kubelet that was killed and starts again mounts while the first mount still runs, and unmounts once",
            "look first whether the directory is a mount point, and answer Success if it is",
        ],
        again::twice,
    ),
    case(
        "mount::many_times",
        (Level::Must, OWN),
        &[63],
        [
            "however often a directory was mounted, one unmount ends it",
            "kubelet calls unmount once; a mount that is left makes its rmdir fail for ever (unmounter.go)",
            "count nothing: mounted is mounted, and unmount unmounts",
        ],
        again::many_times,
    ),
    case(
        "mount::other_source",
        (Level::Should, OWN),
        &[64],
        [
            "where something else is mounted, mount fails or mounts above it; it does not say that all is well",
            "the pod would get another one's files: kubelet believes a Success (mounter.go: SetUpAt)",
            "compare source and type in /proc/self/mountinfo, and say Failure if they are not the volume's",
        ],
        again::other_source,
    ),
    case(
        "mount::other_access",
        (Level::Should, OWN),
        &[51, 64],
        [
            "a volume that is mounted for writing is not a Success for a pod that may only read",
            "kubelet keeps containers from writing, and not the node: what the driver mounts is all there is (mounter.go)",
            "look whether the mount is read-only as it was asked for, and say Failure if not",
        ],
        again::other_access,
    ),
    case(
        "mount::failure_leaves_nothing",
        (Level::Must, OWN),
        &[65],
        [
            "a mount that fails leaves no mount, no device, no process and no file",
            "kubelet takes a mount that it finds for a success at the next attempt, and never calls unmount",
            "undo in reverse what was done before the step that failed, on every way out",
        ],
        provoked::leaves_nothing,
    ),
    case(
        "mount::failure_leaves_directory",
        (Level::Must, OWN),
        &[66],
        [
            "a mount that fails leaves the directory empty, or gone",
            "kubelet does one rmdir and ignores its error; its housekeeping removes no files (mounter.go)",
            "put nothing into the directory before it is mounted, and remove it if mount does not succeed",
        ],
        provoked::leaves_directory,
    ),
    case(
        "mount::tools_that_fail",
        (Level::Must, OWN),
        &[65, 72],
        [
            "if one of the programs that the driver starts fails, mount does not say that it mounted",
            "kubelet believes a Success and starts the pod, which writes to the node's disk (mounter.go)",
            "look at every exit status: mount(8) has more than one for a failure, 32 is the usual",
        ],
        provoked::tools_that_fail,
    ),
    case(
        "mount::backend_down",
        (Level::Must, OWN),
        &[22, 72],
        [
            "without its server mount fails in time, again and again, and works once the server is back",
            "kubelet repeats a failed mount for ever, and waits for ever for one that hangs (goroutinemap)",
            "give what waits for the network a deadline (timeout 60 mount …), and keep nothing of a failure",
        ],
        provoked::backend_down,
    ),
    case(
        "mount::leftover_files",
        (Level::Must, OWN),
        &[67, 88],
        [
            "files that are in the directory already are mounted over or refused, and never deleted",
            "what a pod wrote while nothing was mounted may be all there is of its data",
            "never remove what is in the directory: mount over it, or say Failure and name it",
        ],
        odd::leftover_files,
    ),
    case(
        "mount::symlink",
        (Level::Harden, OWN),
        &[68],
        [
            "a directory that is a symbolic link is not followed",
            "kubelet makes a directory; a link in its place was put there by somebody else",
            "say Failure if the path is a symbolic link ([ -L \"$dir\" ])",
        ],
        odd::symlink,
    ),
    case(
        "mount::file",
        (Level::Harden, OWN),
        &[68],
        [
            "a file in place of the directory keeps what is in it",
            "kubelet makes a directory; a file in its place is somebody's data",
            "say Failure if the path is there and no directory",
        ],
        odd::file,
    ),
    case(
        "mount::relative",
        (Level::Harden, OWN),
        &[68],
        [
            "a path that does not begin at the root is refused, or means what the kernel takes it for",
            "kubelet's working directory is any; a path is always absolute (mounter.go)",
            "say Failure if the path does not begin with a slash",
        ],
        odd::relative,
    ),
    case(
        "mount::dot_dot",
        (Level::Harden, OWN),
        &[68],
        [
            "a path with .. in it makes nothing outside of the volume's directory",
            "kubelet sends clean paths; another one comes from names that somebody has chosen with care",
            "say Failure if a part of the path is ..; do not clean it, and do not mkdir -p it",
        ],
        odd::dot_dot,
    ),
    case(
        "mount::outside",
        (Level::Harden, OWN),
        &[68],
        [
            "a directory that is none of kubelet's is refused, or mounted and unmounted like any other",
            "kubelet's root differs from node to node; administrators call drivers by hand",
            "either way is fine: mount just there, or say Failure and touch nothing",
        ],
        odd::outside,
    ),
    case(
        "mount::other_root",
        (Level::Must, &[]),
        &[69],
        [
            "kubelet's directories may be anywhere",
            "--root-dir is /var/lib/k0s/kubelet, /var/snap/…/kubelet and more; the path is all that is passed",
            "take the directory as it is passed; put /var/lib/kubelet nowhere into the driver",
        ],
        odd::other_root,
    ),
    case(
        "mount::awkward_root",
        (Level::Must, &[]),
        &[69],
        [
            "kubelet's directories may have spaces, quotes, a backslash and any letters in their names, and be long",
            "the path is one argument; /proc/self/mountinfo has \\040 for a space",
            "put quotes around every variable, and read the mount table with findmnt or mountpoint",
        ],
        odd::awkward_root,
    ),
    case(
        "mount::two_pods",
        (Level::Must, &[]),
        &[74],
        [
            "two pods have the volume at the same time, and the end of one leaves the other's alone",
            "each pod has a directory of its own, and gets its own mount and unmount (reconciler.go)",
            "release what both share (device, daemon, session) only when the last mount of it is gone",
        ],
        pods::two_pods,
    ),
    case(
        "mount::two_modes",
        (Level::Should, &[]),
        &[75],
        [
            "one pod may write to the volume and another only read, at the same time",
            "readOnly is each pod's own word; mounts of one device share its superblock",
            "mount the device once and bind it, with remount,bind,ro where it is read-only",
        ],
        pods::two_modes,
    ),
    case(
        "mount::fs_group",
        (Level::Should, &[]),
        &[53, 76, 143],
        [
            "the pod's group may use the volume: kubelet changes the group if fsGroup is true, else the driver",
            "pods run as nobody in particular; kubelet runs chown on every file if fsGroup is true (volume_linux.go)",
            "say \"fsGroup\":false where chown does not work, and pass the group to mount (gid=…) yourself",
        ],
        pods::fs_group,
    ),
    case(
        "mount::nosuid_nodev",
        (Level::Should, &[]),
        &[77],
        [
            "set-uid programs and device files of the volume do nothing on the node",
            "whoever fills the volume can put a set-uid shell or the node's disk into it; kubelet adds no flags",
            "mount with nosuid,nodev",
        ],
        pods::nosuid_nodev,
    ),
];

/// Case about the directory after a failure, for cases that need it removed.
const LEAVES_DIRECTORY: &str = "mount::failure_leaves_directory";

/// Case about an unmount, for cases that need one in between.
const UNMOUNT_WORKS: &str = "unmount::works";

/// Does what kubelet does after a failed mount: one rmdir. Then takes the device off the node.
fn abandon(subject: &mut Subject<'_>, volume: &PodVolume, answer: &Answer) -> Played {
    if let Err(error) = remove_directory(volume.target()?.as_path()) {
        let evidence = answer.evidence(format!("after a failure the directory must be removed, but {error}"));
        return Err(Stopped::Blocked(LEAVES_DIRECTORY, Box::new(evidence)));
    }
    if subject.attaches() { subject.unstage(volume) } else { Ok(()) }
}

/// Ends a volume after a call that may or may not have mounted it.
fn end(subject: &mut Subject<'_>, volume: &PodVolume, answer: &Answer) -> Played {
    if answer.is_success() { subject.take_down(volume) } else { abandon(subject, volume, answer) }
}

/// Fails if a failed mount has left a mount, or something in kubelet's directories, that was not
/// there before.
fn makes_no_places(before: &Footprint, answer: &Answer) -> Played {
    let grown = if answer.is_success() { Vec::new() } else { before.new_places()? };
    if grown.is_empty() {
        return Ok(());
    }
    Err(answer.fails(format!("the mount failed and left {}", grown.join(", "))))
}

/// Returns the volume for a pod that may only read it.
fn read_only(volume: &PodVolume) -> PodVolume {
    let options = Options { access: Some(Access::ReadOnly), ..volume.options.clone() };
    PodVolume { options, ..volume.clone() }
}

/// Fails if no file can be written to the volume now.
fn can_write(volume: &PodVolume) -> io::Result<()> {
    let file = volume.target().map_err(io::Error::other)?.as_path().join("check-write");
    put(&file, "x")?;
    std::fs::remove_file(file)
}

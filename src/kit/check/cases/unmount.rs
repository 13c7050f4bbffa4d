//! `unmount`, as kubelet calls it when the pod is gone, again and again until it is a Success.

mod above;
mod dead;
mod foreign;
mod lost;
mod plain;

use crate::check::case::{Case, How, Level, Scope};
use crate::check::evidence::Played;
use crate::check::subject::Subject;
use flexvol_protocol::{Verb, VerbSet};

/// Builds a case with a volume.
const fn case(
    id: &'static str,
    (level, scope, needs): (Level, Scope, &[Verb]),
    items: &'static [u8],
    [claim, reason, fix]: [&'static str; 3],
    scene: fn(&mut Subject<'_>) -> Played,
) -> Case {
    let needs = VerbSet::of(needs);
    Case { id, level, scope, needs, items, claim, reason, fix, how: How::Played(scene) }
}

/// Level, scope and verbs of a case about any volume, unmounted by the driver or by kubelet.
const ANY: (Level, Scope, &[Verb]) = (Level::Must, Scope::Volume, &[]);

/// The same for a case about the driver's own `unmount`, not kubelet's.
const OWN: (Level, Scope, &[Verb]) = (Level::Must, Scope::Volume, &[Verb::Unmount]);

/// The same for a case about a driver that leaves a process running.
const DAEMON: (Level, Scope, &[Verb]) = (Level::Must, Scope::Daemon, &[Verb::Unmount]);

pub(in crate::check) const CASES: &[Case] = &[
    case(
        "unmount::works",
        ANY,
        &[79, 96],
        [
            "a volume that is unmounted is no mount point any more, and its directory is empty or gone",
            "kubelet removes the directory next, and tries for ever if it cannot (unmounter.go: TearDownAt)",
            "unmount until the directory is no mount point, and leave nothing in it",
        ],
        plain::works,
    ),
    case(
        "unmount::not_mounted",
        OWN,
        &[80],
        [
            "an unmount of a directory that is not mounted is a Success",
            "kubelet never looks before it calls, and calls again if it lost the answer (unmounter.go)",
            "look whether it is a mount point, and answer Success if it is not",
        ],
        plain::not_mounted,
    ),
    case(
        "unmount::no_directory",
        OWN,
        &[81],
        [
            "an unmount of a directory that is not there is a Success, and makes none",
            "kubelet looks first; its call may cross with the end of another, and people call by hand (unmounter.go)",
            "answer Success if there is nothing at the path",
        ],
        plain::no_directory,
    )
    .at(Level::Should),
    case(
        "unmount::many_times",
        OWN,
        &[82],
        [
            "an unmount can be repeated as often as anybody likes",
            "kubelet repeats it until it hears Success (nestedpendingoperations)",
            "answer Success whenever the directory is no mount point, whatever happened before",
        ],
        plain::many_times,
    ),
    case(
        "unmount::never_mounted",
        OWN,
        &[83],
        [
            "an unmount is a Success on a node where the driver has never been called before",
            "after a restart kubelet unmounts what it finds in its directories (reconstruct.go)",
            "need no state: what is not known is not mounted",
        ],
        plain::never_mounted,
    ),
    case(
        "unmount::state_without_mount",
        OWN,
        &[84],
        [
            "an unmount is a Success if the mount is gone already, and so is the next mount",
            "after a reboot the directories and what is in /var are still there, the mounts are not",
            "believe /proc/self/mountinfo and not your own notes; clean those up",
        ],
        lost::state_without_mount,
    ),
    case(
        "unmount::mount_without_state",
        OWN,
        &[85],
        [
            "an unmount works without the files that mount has written to /run and /tmp",
            "drivers are upgraded and their containers replaced while pods run",
            "unmount what /proc/self/mountinfo shows at the directory, and take all else from there",
        ],
        lost::mount_without_state,
    ),
    case(
        "unmount::old_mount",
        (Level::Must, Scope::Volume, &[Verb::Mount, Verb::Unmount]),
        &[14, 95],
        [
            "an unmount works for a volume that the same driver mounted from another directory",
            "the driver is replaced, and plugin directories move with the distribution, while pods run",
            "recognise a mount by its source or type, not by a path or a version of the driver",
        ],
        lost::old_mount,
    ),
    case(
        "unmount::needs_nothing",
        OWN,
        &[92],
        [
            "an unmount works without a network",
            "a volume is unmounted because its server is gone, too; unmount gets nothing but the directory",
            "ask no server in unmount; what must be told to one may fail without a word",
        ],
        lost::needs_nothing,
    ),
    case(
        "unmount::stacked",
        OWN,
        &[86],
        [
            "all mounts that lie one above the other at the directory are unmounted",
            "mounts that were doubled stay after an upgrade of the driver; kubelet's rmdir fails with one left",
            "unmount in a loop while the directory is a mount point",
        ],
        foreign::stacked,
    ),
    case(
        "unmount::mounts_inside",
        OWN,
        &[87, 97],
        [
            "with a mount inside the volume unmount takes it off as well, or fails and works once it is gone",
            "pods with the right to mount leave mounts behind; unmount is repeated until it succeeds",
            "unmount what is below first, deepest first, or answer Failure; delete nothing",
        ],
        foreign::mounts_inside,
    ),
    case(
        "unmount::keeps_data",
        ANY,
        &[88],
        [
            "what was written to the volume is not deleted",
            "the pod's data is all that a volume is for; the next pod mounts it again",
            "never rm -r the directory: rmdir it, after it is no mount point any more",
        ],
        plain::keeps_data,
    ),
    case(
        "unmount::keeps_foreign_data",
        OWN,
        &[87, 88, 89],
        [
            "with a mount inside the volume that cannot be unmounted, nothing in it is deleted",
            "umount fails while somebody uses it, and an rm -r that follows deletes another volume",
            "never rm -r the directory: rmdir it, after it is no mount point any more",
        ],
        foreign::keeps_foreign_data,
    ),
    case(
        "unmount::busy",
        OWN,
        &[88, 89, 97],
        [
            "while somebody uses the volume unmount waits, fails or detaches it, and works later",
            "a process of the pod may live on for a moment; kubelet repeats a failed unmount",
            "answer Failure if umount says busy, change nothing else, and succeed when it is free",
        ],
        plain::busy,
    ),
    case(
        "unmount::kills_nobody",
        OWN,
        &[89],
        [
            "a process that uses the volume is not killed",
            "who still uses it may be a backup, a shell of an admin or kubelet itself (fuser -km kills them all)",
            "answer Failure if umount says busy: kubelet comes again, and the pod's own processes are gone by then",
        ],
        plain::kills_nobody,
    )
    .at(Level::Should),
    case(
        "unmount::pod_directory",
        ANY,
        &[81, 96],
        [
            "the directories above the volume's are there after the unmount, with the owner and mode they had",
            "they are kubelet's, which finds in them what is left of a pod; other volumes may be in them",
            "rmdir the volume's directory alone, without -p, and chown and chmod nothing above it",
        ],
        above::pod_directory,
    )
    .at(Level::Should),
    case(
        "unmount::others_stay",
        OWN,
        &[93],
        [
            "the end of one volume leaves all other mounts as they are",
            "many pods have volumes of the same driver, in directories whose names begin alike",
            "compare whole paths, and unmount nothing but the directory",
        ],
        foreign::others_stay,
    ),
    case(
        "unmount::foreign",
        OWN,
        &[94],
        [
            "what somebody else has mounted, in a directory that is no volume of the driver, stays mounted",
            "a path from a slip, or from a link that was put there, must not end another driver's volume",
            "follow no link, and look at the source of the mount; a driver that goes by its path, pods/*/volumes/VENDOR~DRIVER, needs the habit ownTree as a CSI driver",
        ],
        foreign::foreign,
    )
    .at(Level::Harden),
    case(
        "unmount::wild_path",
        OWN,
        &[94],
        [
            "an unmount of /, of /etc or of a path that is none changes nothing",
            "the driver is root on the node, and is also called by hand and by scripts",
            "say Failure unless the path is absolute and a volume's directory",
        ],
        foreign::wild_path,
    )
    .at(Level::Harden),
    case(
        "unmount::dead",
        DAEMON,
        &[90, 110],
        [
            "an unmount works when the process that serves the mount was killed",
            "a daemon that ran out of memory leaves a mount that does not answer; only unmount can end it",
            "do not look into the directory (no ls, stat, df): read /proc/self/mountinfo, then umount",
        ],
        dead::dead,
    ),
    case(
        "unmount::hung",
        DAEMON,
        &[91],
        [
            "an unmount ends when the process that serves the mount does not answer, and works in the end",
            "kubelet has no deadline, and looks at the directory first: whoever comes after that must not hang, too",
            "look at nothing in the directory; umount with a deadline, then umount -l and kill the server",
        ],
        dead::hung,
    )
    .at(Level::Should),
];

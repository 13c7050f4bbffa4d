//! Leftovers that must not exist after a volume is gone.
//! They are searched for at the end of every case that ended well.

use crate::check::case::Seen;
use crate::check::case::{Case, How, Level, Scope};
use crate::check::evidence::Evidence;
use crate::check::left::Left;
use flexvol_protocol::VerbSet;
use flexvol_protocol::text::one_line;

/// Limit for the number of things that are named.
const NAMED: usize = 5;

/// Limit for the description of one thing, in bytes.
const LONGEST: usize = 300;

pub(in crate::check) const CASES: &[Case] = &[
    Case {
        id: "left::mounts",
        level: Level::Must,
        scope: Scope::All,
        needs: VerbSet::of(&[]),
        items: &[65, 93],
        claim: "no mount is left when a volume is unmounted, or was not mounted after all",
        reason: "kubelet knows of the pod's directory only: a mount elsewhere holds the volume until the node reboots",
        fix: "unmount in unmount whatever mount has mounted, and undo it where mount fails",
        how: How::Watched(mounts),
    },
    Case {
        id: "left::devices",
        level: Level::Must,
        scope: Scope::All,
        needs: VerbSet::of(&[]),
        items: &[65, 93],
        claim: "no loop, device mapper or network block device is left when a volume is gone",
        reason: "a device holds the volume's file or server, and a node has few of them",
        fix: "use losetup with autoclear (mount -o loop does), or detach the device in unmount or detach",
        how: How::Watched(devices),
    },
    Case {
        id: "left::processes",
        level: Level::Must,
        scope: Scope::All,
        needs: VerbSet::of(&[]),
        items: &[19, 65, 93, 110],
        claim: "no process is left when a volume is unmounted, or was not mounted after all",
        reason: "it runs in kubelet's cgroup: each pod adds one until the node has no memory",
        fix: "wait for what is started; end the server of a volume in unmount, after the umount",
        how: How::Watched(processes),
    },
    Case {
        id: "left::files",
        level: Level::Must,
        scope: Scope::All,
        needs: VerbSet::of(&[]),
        items: &[65, 66, 93],
        claim: "no file is left when a volume is gone, but for logs, empty locks and the volume's own data",
        reason: "each pod adds one; in the pod's directory they keep kubelet from removing it (orphaned pod)",
        fix: "keep state in the mount table instead of files; remove temporary files on every way out (trap EXIT)",
        how: How::Watched(files),
    },
    Case {
        id: "left::own_directory",
        level: Level::Must,
        scope: Scope::All,
        needs: VerbSet::of(&[]),
        items: &[29, 39],
        claim: "no verb makes, changes or removes anything in the driver's own directory",
        reason: "kubelet watches it, and runs init again at every change (plugin/pkg: flexvolume/probe.go)",
        fix: "write to /run or /var/lib, log to /var/log; of Python, set PYTHONDONTWRITEBYTECODE",
        how: How::Watched(own_directory),
    },
];

fn mounts(seen: &Seen<'_>) -> Option<Vec<Evidence>> {
    find(seen, "still mounted", |left| &left.mounts)
}

fn devices(seen: &Seen<'_>) -> Option<Vec<Evidence>> {
    find(seen, "still there", |left| &left.devices)
}

fn processes(seen: &Seen<'_>) -> Option<Vec<Evidence>> {
    find(seen, "still running", |left| &left.processes)
}

fn files(seen: &Seen<'_>) -> Option<Vec<Evidence>> {
    find(seen, "left behind", |left| &left.files)
}

fn own_directory(seen: &Seen<'_>) -> Option<Vec<Evidence>> {
    find(seen, "made or changed in the driver's own directory", |left| &left.own_directory)
}

/// Builds one piece of evidence for all things of a kind.
fn find(seen: &Seen<'_>, what: &str, kind: fn(&Left) -> &Vec<String>) -> Option<Vec<Evidence>> {
    let found = kind(seen.left?);
    if found.is_empty() {
        return Some(Vec::new());
    }
    let named: Vec<_> = found.iter().take(NAMED).map(|each| one_line(&clean(seen, each), LONGEST)).collect();
    let more = match found.len() - named.len() {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let problem = format!("{what}: {}{more}", named.join(", "));
    Some(vec![Evidence::new(problem)])
}

/// Masks secrets, because a command line or a file name may hold one.
fn clean(seen: &Seen<'_>, text: &str) -> String {
    seen.answers.iter().fold(text.to_owned(), |text, answer| answer.asked.redactor().clean(&text))
}

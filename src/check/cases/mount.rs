//! `mount`, as kubelet calls it before a pod starts and again after a lost answer.

use crate::check::case::{Case, How, Level, Scope};
use crate::check::evidence::Played;
use crate::check::subject::Subject;
use crate::protocol::{Verb, VerbSet};

pub(in crate::check) const CASES: &[Case] = &[
    Case {
        id: "mount::works",
        level: Level::Must,
        scope: Scope::Volume,
        needs: VerbSet::of(&[]),
        items: &[59],
        claim: "a volume that is mounted on an empty directory is a mount point afterwards",
        reason: "kubelet takes a directory that is no mount point for not mounted (mounter.go: SetUpAt)",
        mend: "mount on the directory itself; look into /proc/self/mountinfo before saying Success",
        how: How::Played(works),
    },
    Case {
        id: "mount::twice",
        level: Level::Must,
        scope: Scope::Volume,
        needs: VerbSet::of(&[Verb::Mount]),
        items: &[62, 63],
        claim: "a second mount of a mounted directory is a Success and changes nothing",
        reason: "kubelet repeats a mount whose answer it lost, and unmounts once (reconciler.go)",
        mend: "look first whether the directory is a mount point, and answer Success if it is",
        how: How::Played(twice),
    },
];

fn works(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let answer = subject.mount(&volume)?.succeeds("a volume is to be mounted")?;
    if subject.layers(&volume)? == 0 {
        return Err(answer.fails("it said Success, and the directory is no mount point"));
    }
    subject.take_down(&volume)
}

fn twice(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.bring_up(&volume)?;
    let before = subject.layers(&volume)?;
    for _ in 0..subject.repeat() {
        let again = subject.mount(&volume)?.succeeds("it is mounted already, as it should be")?;
        let after = subject.layers(&volume)?;
        if after != before {
            return Err(again.fails(format!("{before} mounts became {after}")));
        }
    }
    subject.take_down(&volume)
}

//! `mount`, as kubelet calls it before a pod starts and again after a lost answer.

mod again;
mod first;
mod odd;
mod pods;
mod provoked;
mod tools;

use crate::check::answer::Answer;
use crate::check::case::{How, Scene};
use crate::check::evidence::{Played, Stopped};
use crate::check::footprint::Footprint;
use crate::check::staging::{put, remove_directory};
use crate::check::subject::Subject;
use flexvol_kubelet::PodVolume;
use flexvol_protocol::{Access, Options};
use std::io;

pub(in crate::check) const SCENES: &[Scene] = &[
    ("mount::works", How::Played(first::works)),
    ("mount::usable_at_once", How::Played(first::usable_at_once)),
    ("mount::stays", How::Played(first::stays)),
    ("mount::makes_directory", How::Played(first::makes_directory)),
    ("mount::nothing_beside", How::Played(first::nothing_beside)),
    ("mount::propagates", How::Played(first::propagates)),
    ("mount::old_call", How::Played(first::old_call)),
    ("mount::twice", How::Played(again::twice)),
    ("mount::many_times", How::Played(again::many_times)),
    ("mount::other_source", How::Played(again::other_source)),
    ("mount::other_access", How::Played(again::other_access)),
    ("mount::failure_leaves_nothing", How::Played(provoked::leaves_nothing)),
    ("mount::failure_leaves_directory", How::Played(provoked::leaves_directory)),
    ("mount::tools_that_fail", How::Played(provoked::tools_that_fail)),
    ("mount::backend_down", How::Played(provoked::backend_down)),
    ("mount::leftover_files", How::Played(odd::leftover_files)),
    ("mount::symlink", How::Played(odd::symlink)),
    ("mount::file", How::Played(odd::file)),
    ("mount::relative", How::Played(odd::relative)),
    ("mount::dot_dot", How::Played(odd::dot_dot)),
    ("mount::outside", How::Played(odd::outside)),
    ("mount::other_root", How::Played(odd::other_root)),
    ("mount::awkward_root", How::Played(odd::awkward_root)),
    ("mount::two_pods", How::Played(pods::two_pods)),
    ("mount::two_modes", How::Played(pods::two_modes)),
    ("mount::fs_group", How::Played(pods::fs_group)),
    ("mount::nosuid_nodev", How::Played(pods::nosuid_nodev)),
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
    subject.unstage(volume)
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

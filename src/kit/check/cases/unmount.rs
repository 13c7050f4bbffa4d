//! `unmount`, as kubelet calls it when the pod is gone, again and again until it is a Success.

mod above;
mod dead;
mod foreign;
mod lost;
mod plain;

use crate::check::case::{How, Scene};

pub(in crate::check) const SCENES: &[Scene] = &[
    ("unmount::works", How::Played(plain::works)),
    ("unmount::not_mounted", How::Played(plain::not_mounted)),
    ("unmount::no_directory", How::Played(plain::no_directory)),
    ("unmount::many_times", How::Played(plain::many_times)),
    ("unmount::never_mounted", How::Played(plain::never_mounted)),
    ("unmount::state_without_mount", How::Played(lost::state_without_mount)),
    ("unmount::mount_without_state", How::Played(lost::mount_without_state)),
    ("unmount::old_mount", How::Played(lost::old_mount)),
    ("unmount::needs_nothing", How::Played(lost::needs_nothing)),
    ("unmount::stacked", How::Played(foreign::stacked)),
    ("unmount::mounts_inside", How::Played(foreign::mounts_inside)),
    ("unmount::keeps_data", How::Played(plain::keeps_data)),
    ("unmount::keeps_foreign_data", How::Played(foreign::keeps_foreign_data)),
    ("unmount::busy", How::Played(plain::busy)),
    ("unmount::kills_nobody", How::Played(plain::kills_nobody)),
    ("unmount::pod_directory", How::Played(above::pod_directory)),
    ("unmount::others_stay", How::Played(foreign::others_stay)),
    ("unmount::foreign", How::Played(foreign::foreign)),
    ("unmount::wild_path", How::Played(foreign::wild_path)),
    ("unmount::dead", How::Played(dead::dead)),
    ("unmount::hung", How::Played(dead::hung)),
];

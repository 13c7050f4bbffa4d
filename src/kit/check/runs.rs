//! Runs of a real kubelet that show why each must is one, as `tests/cluster` plays them.

use super::case::Case;

/// Kubernetes release that was run.
pub const RELEASE: &str = "Kubernetes 1.37.2";

/// Case of `tests/cluster`, and the musts that follow from it.
pub type Run = (&'static str, &'static [&'static str]);

/// All runs. docs/kubelet-truth.md shows them as a table.
pub const RUNS: &[Run] = &[
    ("truth: output::one_object: two answers", &["output::one_object"]),
    ("truth: output::no_noise: a warning before the answer", &["output::no_noise"]),
    ("truth: output::plain_text: a byte order mark", &["output::plain_text"]),
    ("truth: output::status_words: success", &["output::status_words"]),
    ("truth: output::types: a device that is a number", &["output::types"]),
    ("truth: output::success_exits_zero", &["output::success_exits_zero"]),
    ("truth: output::not_killed", &["output::not_killed"]),
    (
        "truth: output::pipe_closed: the pod waits as long as the output is held",
        &["output::pipe_closed", "daemon::descriptors"],
    ),
    ("truth: output::in_time: a call that hangs has no Event", &["output::in_time"]),
    ("truth: output::escapes", &["output::escapes"]),
    (
        "truth: init::booleans, init::capabilities, init::works: list",
        &["init::works", "init::capabilities", "init::booleans"],
    ),
    ("truth: init::attach_is_meant: capabilities left out", &["init::attach_is_meant"]),
    ("replies: init::quick: while one init runs no volume of any driver is mounted", &["init::quick"]),
    (
        "replies: init::without_network_and_tools: one that fails when kubelet starts is never called again",
        &["init::without_network_and_tools"],
    ),
    (
        "replies: init::no_side_effects, verbs::own_directory: what init writes calls init",
        &["init::no_side_effects", "verbs::own_directory", "left::own_directory"],
    ),
    (
        "replies: verbs::missing_stay_missing: a Failure of a verb that it lacks",
        &["verbs::missing_stay_missing"],
    ),
    ("truth: verbs::present_stay_present: and it is not called again", &["verbs::present_stay_present"]),
    ("replies: environment::empty: the environment is that of kubelet", &["environment::empty"]),
    ("replies: environment::no_stdin: the input is empty", &["environment::no_stdin"]),
    (
        "replies: install::alone, environment::symlink: links are followed while kubelet runs",
        &["environment::symlink"],
    ),
    (
        "truth: kubelet and pod up call with the same, byte for byte",
        &[
            "options::escapes",
            "options::unknown_keys",
            "options::empty_fs_type",
            "options::unicode",
            "options::shell",
            "options::injection",
            "options::paths",
            "options::missing",
            "secrets::binary",
            "secrets::missing",
            "attach::read_only_blank",
            "attach::partition_table",
        ],
    ),
    ("truth: kubelet and pod down call with the same, byte for byte", &["unmount::needs_nothing"]),
    ("replies: options::long: 126,000 bytes of an option", &["options::long"]),
    ("replies: options::read_write: a pod that may write cannot", &["options::read_write"]),
    (
        "truth: a failure is tried again",
        &["options::unknown_value", "mount::backend_down", "sequence::failed_start"],
    ),
    (
        "truth: mount::works: Success without a mount is believed",
        &["mount::works", "mount::usable_at_once", "mount::propagates", "mount::tools_that_fail"],
    ),
    (
        "truth: mount::failure_leaves_nothing: a mount is taken for success",
        &["mount::failure_leaves_nothing"],
    ),
    (
        "truth: mount::failure_leaves_directory: it is there for the next call",
        &["mount::failure_leaves_directory", "mount::leftover_files"],
    ),
    ("truth: mount::failure_leaves_directory: and for the orphan", &["left::files"]),
    (
        "replies: other roots: a pod runs",
        &["mount::other_root", "mount::awkward_root", "environment::other_path"],
    ),
    ("truth: they run", &["mount::two_pods", "sequence::pod", "sequence::two_pods"]),
    (
        "replies: mount::twice, storm::same_directory: a second mount while the first runs",
        &["mount::twice", "storm::same_directory", "sequence::lost_answer"],
    ),
    ("replies: mount::many_times: two mounts, one on the other", &["mount::many_times"]),
    ("replies: mount::nothing_beside: unmounted, as if it were a volume", &["mount::nothing_beside"]),
    ("replies: crash::killed_mount_then_mount: mounted again", &["crash::killed_mount_then_mount"]),
    (
        "replies: crash::killed_mount_then_unmount: unmounted, whatever it had done",
        &["crash::killed_mount_then_unmount", "sequence::restart_gone"],
    ),
    ("replies: crash::killed_unmount: unmounted again", &["crash::killed_unmount"]),
    ("replies: crash::lock_is_freed: who finds its lock fails for ever", &["crash::lock_is_freed"]),
    ("replies: crash::closed_reader: nobody reads the answer", &["crash::closed_reader"]),
    ("replies: storm::mount_and_unmount: unmounted while it mounts", &["storm::mount_and_unmount"]),
    ("replies: unmount::works: Success while it is mounted", &["unmount::works"]),
    (
        "replies: unmount::not_mounted, unmount::many_times: an answer that cannot be read",
        &["unmount::not_mounted", "unmount::many_times"],
    ),
    ("replies: unmount::mounts_inside: a mount of the pod", &["unmount::mounts_inside"]),
    (
        "replies: unmount::stacked: rmdir fails with one left, and unmount is called again",
        &["unmount::stacked"],
    ),
    (
        "replies: unmount::dead: it is called for a server that has ended",
        &["unmount::dead", "sequence::dead_daemon"],
    ),
    ("discovery: restart: what went is unmounted", &["unmount::never_mounted"]),
    (
        "discovery: restart: what stays has its data",
        &["mount::stays", "unmount::others_stay", "sequence::restart_alive"],
    ),
    ("discovery: reboot: they run again", &["unmount::state_without_mount", "sequence::reboot"]),
    ("discovery: take-over: we unmount what is not ours", &["unmount::mount_without_state"]),
    ("discovery: roll-back: it unmounts what is ours", &["unmount::old_mount"]),
    ("events: busy unmount", &["unmount::busy", "unmount::keeps_foreign_data"]),
    ("attach: ReadWriteOnce: the next has its data", &["unmount::keeps_data", "attach::keeps_data"]),
    ("replies: secrets::output: a message is an Event", &["secrets::output"]),
    (
        "replies: secrets::mount_table, secrets::arguments: a pod reads both",
        &["secrets::mount_table", "secrets::arguments", "secrets::daemon"],
    ),
    (
        "replies: secrets::files, secrets::logs: a pod reads what is left",
        &["secrets::files", "secrets::logs"],
    ),
    ("attach: reference: who called what", &["attach::works", "attach::wait_again", "sequence::attach"]),
    ("replies: attach::twice: an answer that cannot be read: attached again", &["attach::twice"]),
    ("replies: attach::device, attach::wait: no device is a blank one", &["attach::device", "attach::wait"]),
    (
        "replies: attach::mount_device_without_name: for mountdevice, too",
        &["attach::mount_device_without_name"],
    ),
    ("replies: attach::detach_by_name: the name and the node", &["attach::detach_by_name"]),
    (
        "replies: attach::detach_twice: an answer that cannot be read: detached again",
        &["attach::detach_twice"],
    ),
    ("attach: node goes: the reference was told", &["attach::detach_unknown"]),
    ("replies: attach::is_attached: left out, it is attached again and again", &["attach::is_attached"]),
    (
        "replies: attach::without_secrets_and_tools: what the controllers send",
        &["attach::without_secrets_and_tools"],
    ),
    (
        "replies: attach::wait_fails_in_time: kubelet ends if it is called for longer",
        &["attach::wait_fails_in_time"],
    ),
    ("replies: attach::mount_device: a second mountdevice while the first runs", &["attach::mount_device"]),
    (
        "replies: attach::mount_device_fails_cleanly: a mount is taken for success",
        &["attach::mount_device_fails_cleanly"],
    ),
    ("replies: attach::unmount_device: Success while it is mounted", &["attach::unmount_device"]),
    ("replies: attach::unmount_device_busy: a process uses it", &["attach::unmount_device_busy"]),
    ("replies: attach::unmount_device_stacked: of the device, too", &["attach::unmount_device_stacked"]),
    ("replies: attach::no_other_mounts: kubelet does not call", &["attach::no_other_mounts"]),
    ("replies: attach::device_is_free: it is asked for again until it is", &["attach::device_is_free"]),
    ("holes: attached, equal names: the claim is not served from the other", &["attach::another_volume"]),
    ("replies: expand::grows: a Success is believed", &["expand::grows"]),
    (
        "replies: expand::twice: an answer that cannot be read: called again",
        &["expand::twice", "sequence::resize"],
    ),
    (
        "replies: expand::odd_arguments: of a driver that does not attach: no device",
        &["expand::odd_arguments"],
    ),
    (
        "replies: expand::not_left_to_kubelet: without expandfs nothing grows, and the claim says it did",
        &["expand::not_left_to_kubelet"],
    ),
    ("replies: install: unnamed: is no driver", &["install::name"]),
    ("replies: install: closed: is no driver", &["install::mode"]),
    ("replies: install: foreign: is no driver", &["install::executable"]),
    (
        "replies: install::alone: a link in place of the directory is no driver for a kubelet that starts",
        &["install::alone"],
    ),
    ("figures: they run", &["storm::many_directories"]),
    ("figures: round 1: 20 pods come and go", &["storm::cycles"]),
    ("discovery: upgrades: 100 pods come and go", &["storm::mount_a_unmount_b"]),
    ("discovery: upgrades: no FailedMount", &["storm::replaced", "sequence::upgrade"]),
    (
        "replies: daemon::own_session: the process group and the session are those of kubelet",
        &["daemon::own_session", "daemon::survives_kill"],
    ),
    ("attach: kubelet attaches itself: who called what", &["sequence::boot"]),
    (
        "replies: left::mounts, left::processes, left::devices: what kubelet does not know of stays",
        &["left::mounts", "left::processes", "left::devices"],
    ),
];

impl Case {
    /// Returns the case of `tests/cluster` in which a kubelet made this case a must.
    pub fn run(&self) -> Option<&'static str> {
        let showed = |run: &&Run| run.1.contains(&self.id);
        RUNS.iter().find(showed).map(|(name, _)| *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::case::Level;
    use std::collections::BTreeMap;

    #[test]
    fn each_must_cites_a_run_and_nothing_else_does() {
        let mut cited = BTreeMap::new();
        for id in RUNS.iter().flat_map(|(_, ids)| *ids) {
            *cited.entry(*id).or_insert(0) += 1;
        }
        let musts = Case::all().filter(|case| case.level == Level::Must).map(|case| (case.id, 1));
        assert_eq!(cited, musts.collect());
    }
}

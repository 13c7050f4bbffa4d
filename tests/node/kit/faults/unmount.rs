//! Unmounts that do nothing, or too much.

use super::Fault;
use super::Reference::{Keeper, Tmpfs};

const SOURCES: &str = "    sources=$(mounted) || succeed\n";
const LOOP: &str = "    while mounted; do\n        umount -n \"$dir\" ||";
const BUSY: &str = r#"umount -n "$dir" || fail "cannot unmount"#;
const NOT_OURS: &str = r#"*) fail "$dir is no directory of kubelet for a volume" ;;"#;
const FROM_ELSEWHERE: &str = r#"*) fail "what is mounted at $dir is not from this driver" ;;"#;
const DONE: &str = "    done\n    succeed\n";
const REMOUNT: &str = r#"    [ "$2" = rw ] || mount"#;
const LOCK: &str = r#"    [ -d "${dir%/*}" ] || return"#;

/// A file for each volume, in a place that is empty after a boot.
const NOTE: (&str, &str) =
    (LOCK, "    note=/run/$(printf %s \"$dir\" | cksum | tr ' ' -)\n    [ -d \"${dir%/*}\" ] || return");

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "unmounts-nothing",
        what: "says Success and unmounts nothing",
        of: Tmpfs,
        change: &[(SOURCES, "    succeed\n")],
        fails: &["unmount::works"],
    },
    Fault {
        name: "not-mounted-is-a-failure",
        what: "fails if the volume is not mounted: fstab/cifs and most others",
        of: Tmpfs,
        change: &[(SOURCES, "    sources=$(mounted) || fail \"$dir is not mounted\"\n")],
        fails: &[
            "sequence::reboot",
            "sequence::restart_gone",
            "unmount::many_times",
            "unmount::never_mounted",
            "unmount::no_directory",
            "unmount::not_mounted",
            "unmount::state_without_mount",
            "verbs::surplus_arguments",
        ],
    },
    Fault {
        name: "missing-is-a-failure",
        what: "fails if the directory is not there",
        of: Tmpfs,
        change: &[(
            SOURCES,
            "    [ -d \"$dir\" ] || fail \"$dir is not there\"\n    sources=$(mounted) || succeed\n",
        )],
        fails: &["unmount::no_directory"],
    },
    Fault {
        name: "wants-to-have-mounted",
        what: "fails on a node where it has mounted nothing since the boot",
        of: Tmpfs,
        change: &[
            (
                SOURCES,
                "    [ -e /run/tmpfs.sh ] || fail \"nothing was mounted here\"\n    sources=$(mounted) || succeed\n",
            ),
            (REMOUNT, "    : >/run/tmpfs.sh\n    [ \"$2\" = rw ] || mount"),
        ],
        fails: &[
            "sequence::reboot",
            "unmount::mount_without_state",
            "unmount::never_mounted",
            "unmount::no_directory",
            "verbs::surplus_arguments",
        ],
    },
    Fault {
        name: "believes-its-notes",
        what: "fails if a mount that it has written down is gone",
        of: Tmpfs,
        change: &[
            NOTE,
            (
                SOURCES,
                "    sources=$(mounted) || { [ ! -e \"$note\" ] || fail \"the mount is lost\"; succeed; }\n    rm -f \"$note\"\n",
            ),
            (REMOUNT, "    : >\"$note\"\n    [ \"$2\" = rw ] || mount"),
        ],
        fails: &["unmount::state_without_mount"],
    },
    Fault {
        name: "needs-its-notes",
        what: "takes what it has not written down for not mounted",
        of: Tmpfs,
        change: &[
            NOTE,
            (SOURCES, "    [ -e \"$note\" ] || succeed\n    sources=$(mounted) || succeed\n"),
            ("\"\") undo=yes\n", "\"\") : >\"$note\"; undo=yes\n"),
            (DONE, "    done\n    rm -f \"$note\"\n    succeed\n"),
        ],
        fails: &["unmount::mount_without_state"],
    },
    Fault {
        name: "own-path-in-the-source",
        what: "knows its mounts by the path it was executed by",
        of: Tmpfs,
        change: &[
            (LOCK, "    path=$(printf %s \"$0\" | cksum | tr ' ' -)\n    [ -d \"${dir%/*}\" ] || return"),
            ("source=tmpfs.sh:$1:$2", "source=tmpfs.sh:$path:$1:$2"),
            ("*tmpfs.sh:*)", "*\"tmpfs.sh:$path:\"*)"),
        ],
        fails: &["unmount::old_mount"],
    },
    Fault {
        name: "asks-its-server",
        what: "fails if its server cannot be reached",
        of: Tmpfs,
        change: &[(
            SOURCES,
            "    grep -q 127.0.0.1 /proc/net/fib_trie || fail \"the server does not answer\"\n    sources=$(mounted) || succeed\n",
        )],
        fails: &["unmount::needs_nothing"],
    },
    Fault {
        name: "unmounts-one-of-several",
        what: "unmounts one of several mounts: nearly everybody",
        of: Tmpfs,
        change: &[(LOOP, "    for once in once; do\n        umount -n \"$dir\" ||")],
        fails: &["unmount::stacked"],
    },
    Fault {
        name: "kills-who-uses",
        what: "kills every process that uses the volume, as fuser -km does",
        of: Tmpfs,
        change: &[(
            LOOP,
            "    find /proc -mindepth 3 -maxdepth 3 -lname \"$dir*\" | cut -d/ -f3 | sort -u | xargs -r kill -9\n    while mounted; do\n        umount -n \"$dir\" ||",
        )],
        fails: &["unmount::kills_nobody"],
    },
    Fault {
        name: "removes-what-is-above",
        what: "removes the directories above the volume's with it: rmdir -p",
        of: Tmpfs,
        change: &[(DONE, "    done\n    rmdir -p \"$dir\"\n    succeed\n")],
        fails: &["unmount::pod_directory"],
    },
    Fault {
        name: "owns-what-is-above",
        what: "gives the directory above the volume's to the pod's user",
        of: Tmpfs,
        change: &[(REMOUNT, "    chown 1000 \"${dir%/*}\"\n    [ \"$2\" = rw ] || mount")],
        fails: &["unmount::pod_directory"],
    },
    Fault {
        name: "busy-is-gone",
        what: "says Success if the volume is busy",
        of: Tmpfs,
        change: &[(BUSY, r#"umount -n "$dir" || succeed "cannot unmount"#)],
        fails: &["unmount::busy", "unmount::keeps_foreign_data", "unmount::mounts_inside"],
    },
    Fault {
        name: "empties-the-volume",
        what: "deletes what is in the directory before it unmounts it",
        of: Tmpfs,
        change: &[(
            LOOP,
            "    find \"$dir\" -xdev -mindepth 1 -delete\n    while mounted; do\n        umount -n \"$dir\" ||",
        )],
        fails: &["unmount::busy", "unmount::keeps_data"],
    },
    Fault {
        name: "rm-rf",
        what: "removes the directory with all that is in it when the unmount fails",
        of: Tmpfs,
        change: &[(BUSY, r#"umount -n "$dir" || rm -rf "$dir" || fail "cannot unmount"#)],
        fails: &["unmount::busy", "unmount::keeps_foreign_data", "unmount::mounts_inside"],
    },
    Fault {
        name: "unmounts-what-begins-alike",
        what: "unmounts every directory whose path begins with the volume's",
        of: Tmpfs,
        change: &[(
            LOOP,
            "    for other in $(findmnt -nr -o TARGET | grep \"^$dir\"); do umount -n \"$other\"; done\n    while mounted; do\n        umount -n \"$dir\" ||",
        )],
        fails: &["unmount::others_stay"],
    },
    Fault {
        name: "unmounts-foreign",
        what: "unmounts what somebody else has mounted in a directory of kubelet's",
        of: Tmpfs,
        change: &[(FROM_ELSEWHERE, "*) ;;")],
        fails: &["unmount::foreign"],
    },
    Fault {
        name: "unmounts-anything",
        what: "unmounts whatever it is told: nearly everybody",
        of: Tmpfs,
        change: &[(NOT_OURS, "*) ;;"), (FROM_ELSEWHERE, "*) ;;")],
        fails: &["unmount::foreign", "unmount::wild_path"],
    },
    Fault {
        name: "asks-the-dead",
        what: "asks the process that serves the mount before it unmounts",
        of: Keeper,
        change: &[
            NOTE,
            (
                "    start || fail \"the server does not start\"\n",
                "    start || fail \"the server does not start\"\n    : >\"$note\"\n",
            ),
            (
                "    while mounted; do",
                "    if mounted && [ -e \"$note\" ]; then\n        pgrep -f \"$server\\$\" || fail \"the server does not answer\"\n    fi\n    while mounted; do",
            ),
            ("    stop\n    succeed\n", "    stop\n    rm -f \"$note\"\n    succeed\n"),
        ],
        fails: &["sequence::dead_daemon", "unmount::dead"],
    },
    Fault {
        name: "waits-for-the-hung",
        what: "waits for ever until the process that serves the mount has ended by itself",
        of: Keeper,
        change: &[("pkill -KILL", "pkill -TERM")],
        fails: &["output::in_time", "unmount::hung"],
    },
];

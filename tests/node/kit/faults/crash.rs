//! Leftovers of calls that did not run to their end.

use super::Fault;
use super::Reference::{Keeper, Tmpfs};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "goes-by-its-note",
        what: "writes down at the end of mount that it mounted, and without that unmounts nothing",
        of: Tmpfs,
        change: &[
            (
                "fail \"cannot make $dir read-only\"\n",
                "fail \"cannot make $dir read-only\"\n    note=/run/tmpfs.sh.$(printf '%s' \"$dir\" | sha256sum | cut -c 1-20) && : >\"$note\"\n",
            ),
            (
                "    sources=$(mounted) || succeed\n",
                "    note=/run/tmpfs.sh.$(printf '%s' \"$dir\" | sha256sum | cut -c 1-20)\n    [ -e \"$note\" ] || succeed\n    sources=$(mounted) || succeed\n",
            ),
            ("is mounted in it\"\n    done\n", "is mounted in it\"\n    done\n    rm \"$note\"\n"),
        ],
        fails: &["crash::killed_mount_then_unmount", "unmount::mount_without_state"],
    },
    Fault {
        name: "lock-by-mkdir",
        what: "locks with a directory, which stays when it is killed, and waits for ever",
        of: Tmpfs,
        change: &[
            (
                "    set -- $fields\n",
                "    set -- $fields\n    lock=/run/tmpfs.lock\n    \
                 until mkdir \"$lock\"; do sleep 0.02; done; locked=yes; sleep 0.1\n",
            ),
            (
                "    [ -z \"$made\" ] || rmdir \"$dir\"\n",
                "    [ -z \"$made\" ] || rmdir \"$dir\"\n    [ -z \"${locked-}\" ] || rmdir \"$lock\"\n",
            ),
        ],
        fails: &[
            "crash::killed_mount_then_mount",
            "output::in_time",
            "environment::full_disk",
            "environment::read_only",
            "crash::lock_is_freed",
            "storm::hung_neighbour",
        ],
    },
    Fault {
        name: "unmount-notes-its-start",
        what: "notes that it unmounts, and refuses to begin again after it was killed",
        of: Tmpfs,
        change: &[
            (
                "    while mounted; do\n",
                "    going=/run/going.$(printf '%s' \"$dir\" | sha256sum | cut -c 1-20)\n    mkdir \"$going\" || fail \"$dir is being unmounted\"\n    while mounted; do\n",
            ),
            (
                "        umount -n \"$dir\" || fail",
                "        umount -n \"$dir\" || { rmdir \"$going\"; false; } || fail",
            ),
            (
                "or something is mounted in it\"\n    done\n",
                "or something is mounted in it\"\n    done\n    rmdir \"$going\"\n",
            ),
        ],
        fails: &["crash::killed_unmount"],
    },
    Fault {
        name: "gives-up-without-undo",
        what: "answers Failure when it is told to end, and leaves what it mounted",
        of: Tmpfs,
        change: &[("trap exit HUP INT TERM\n", "trap 'undo= made=; exit' HUP INT TERM\n")],
        fails: &["crash::terminated_mount"],
    },
    Fault {
        name: "hangs-when-told-to-end",
        what: "waits for ever when it is told to end",
        of: Tmpfs,
        change: &[("trap exit HUP INT TERM\n", "trap 'sleep 60' HUP INT TERM\n")],
        fails: &["crash::terminated_mount", "crash::terminated_unmount"],
    },
    Fault {
        name: "dies-of-its-answer",
        what: "prints before all is done, which ends it if nobody reads",
        of: Keeper,
        change: &[("    start || fail", "    echo >&3\n    start || fail")],
        fails: &["crash::closed_reader"],
    },
];

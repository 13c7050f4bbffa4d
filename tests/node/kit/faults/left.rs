//! Leftovers after a volume is gone.

use super::Fault;
use super::Reference::{Keeper, Loop, Tmpfs};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "helper-mount",
        what: "mounts a directory to prepare volumes in, and never unmounts it",
        of: Tmpfs,
        change: &[(
            "    set -- $fields",
            "    mkdir -p /run/tmpfs.sh; mountpoint /run/tmpfs.sh || mount -n -t tmpfs tmpfs /run/tmpfs.sh; set -- $fields",
        )],
        fails: &["left::mounts"],
    },
    Fault {
        name: "loop-device-left",
        what: "forgets the loop device when a volume is detached: kvaps/loop",
        of: Loop,
        change: &[(
            "for found in $(device); do losetup -d \"$found\" || fail \"cannot take $found away\"; done\n    gone",
            "",
        )],
        fails: &["attach::detach_by_name", "left::devices"],
    },
    Fault {
        name: "server-left",
        what: "leaves the server of a volume running when it is unmounted",
        of: Keeper,
        change: &[("    done\n    stop\n    succeed", "    done\n    succeed")],
        fails: &["left::processes", "storm::cycles", "daemon::is_gone"],
    },
    Fault {
        name: "temporary-file",
        what: "leaves a temporary file for each mount",
        of: Tmpfs,
        change: &[("    set -- $fields", "    printf '%s' \"$fields\" >\"$(mktemp)\"; set -- $fields")],
        fails: &["left::files", "mount::failure_leaves_nothing", "secrets::files", "storm::cycles"],
    },
    Fault {
        name: "file-for-each-pod",
        what: "writes down what it mounted, and forgets the note when it unmounts",
        of: Tmpfs,
        change: &[("    set -- $fields", "    echo \"$dir\" >\"/run/mounted-$$\"; set -- $fields")],
        fails: &["left::files", "mount::failure_leaves_nothing", "storm::cycles"],
    },
    Fault {
        name: "writes-beside-itself",
        what: "logs to its own directory, and so makes kubelet call init after each mount: fq/lizardfs",
        of: Tmpfs,
        change: &[("    set -- $fields", "    echo \"$dir\" >>\"${0%/*}/log\"; set -- $fields")],
        fails: &["left::own_directory", "verbs::own_directory", "log::bounded"],
    },
];

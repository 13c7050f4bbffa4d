//! Drivers that work as long as calls come one after the other, or only a few come at all.

use super::Fault;
use super::Reference::{Keeper, Tmpfs};

const LOCK: &str =
    "    flock -w 100 9 || fail \"another call for this pod does not end: look for it with ps\"\n";
const MOUNT: &str = "    \"\") undo=yes\n";
const DO_START: &str = "setsid -f $server 3>&- 9>&-";

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "no-lock",
        what: "looks whether the volume is mounted, and mounts a moment later, without a lock",
        of: Tmpfs,
        change: &[(LOCK, ""), (MOUNT, "    \"\") undo=yes\n        sleep 0.1\n")],
        fails: &["storm::same_directory"],
    },
    Fault {
        name: "lock-for-nobody-else",
        what: "fails while another call runs, for whatever volume",
        of: Tmpfs,
        change: &[(
            "    take \"$1\"\n    [ -d \"$dir\" ]",
            "    exec 8>/run/tmpfs.sh.lock\n    flock -n 8 || fail 'busy'\n    sleep 0.05\n    take \"$1\"\n    [ -d \"$dir\" ]",
        )],
        fails: &[
            "storm::same_directory",
            "storm::many_directories",
            "storm::hung_neighbour",
            "sequence::two_pods",
        ],
    },
    Fault {
        name: "lock-for-all",
        what: "lets all volumes wait for one that hangs",
        of: Tmpfs,
        change: &[(
            "    take \"$1\"\n    [ -d \"$dir\" ]",
            "    exec 8>/run/tmpfs.sh.lock\n    flock 8\n    sleep 0.1\n    take \"$1\"\n    [ -d \"$dir\" ]",
        )],
        fails: &["storm::hung_neighbour"],
    },
    Fault {
        name: "broken-by-haste",
        what: "breaks a volume that is mounted again while it is still being unmounted",
        of: Tmpfs,
        change: &[
            (
                "    take \"$1\"\n    [ -d \"$dir\" ]",
                "    sleep 0.1\n    take \"$1\"\n    exec 8<\"${dir%/*/*}\"\n    flock -n -s 8 || \
                 { : >\"/run/tmpfs.sh-${dir##*/}\" && fail 'it is being unmounted'; }\n    exec 8<&-\n    \
                 [ -d \"$dir\" ]",
            ),
            (
                "    take \"$1\"\n    sources",
                "    ! rm \"/run/tmpfs.sh-${1##*/}\" || fail 'it is broken'\n    \
                 [ ! -d \"${1%/*/*}\" ] || { exec 8<\"${1%/*/*}\" && flock 8 && sleep 0.3; }\n    take \"$1\"\n    sources",
            ),
        ],
        fails: &["storm::mount_and_unmount"],
    },
    Fault {
        name: "unmounts-them-all",
        what: "unmounts every mount of the volume for the pod that ends first",
        of: Tmpfs,
        change: &[(
            "    while mounted; do\n",
            "    sleep 0.1\n    for other in $(findmnt -nro TARGET -S \"${sources%% *}\"); do umount -n \"$other\"; done\n    \
             while mounted; do\n",
        )],
        fails: &["mount::two_pods", "unmount::others_stay", "storm::mount_a_unmount_b", "sequence::two_pods"],
    },
    Fault {
        name: "a-lock-file-each",
        what: "makes a lock file for each pod and never removes it",
        of: Tmpfs,
        change: &[(
            "    take \"$1\"\n    sources",
            "    take \"$1\"\n    : >\"/run/tmpfs.sh-$(printf '%s' \"$dir\" | sha256sum | cut -c 1-20)\"\n    sources",
        )],
        fails: &["storm::cycles"],
    },
    Fault {
        name: "server-in-the-pod",
        what: "starts the server in the directory of the pod's volumes",
        of: Keeper,
        change: &[(DO_START, "cd \"${dir%/*}\" && setsid -f $server 3>&- 9>&-")],
        fails: &["daemon::descriptors"],
    },
    Fault {
        name: "server-in-the-group",
        what: "starts the server in the process group of the driver",
        of: Keeper,
        change: &[(DO_START, "{ $server 3>&- 9>&- & }")],
        fails: &["daemon::own_session", "daemon::survives_kill"],
    },
    Fault {
        name: "server-that-does-not-start",
        what: "does not look whether the server could be started",
        of: Keeper,
        change: &[("command -v \"${server%% *}\" && ", "")],
        fails: &["daemon::fails_early"],
    },
    Fault {
        name: "server-by-number",
        what: "writes down the server's number, and ends whoever has that when the volume goes",
        of: Keeper,
        change: &[
            (
                "stop() { while pkill -KILL -f \"$server\\$\"; do sleep 0.01; done; }",
                "file() { printf '/run/keeper.sh-%s' \"${server##*x}\"; }\nstop() {\n    \
                 if [ -s \"$(file)\" ]; then kill -9 \"$(cat \"$(file)\")\"; rm -f \"$(file)\"; fi\n    \
                 while pkill -KILL -f \"$server\\$\"; do sleep 0.01; done\n}",
            ),
            (DO_START, "setsid -f $server 3>&- 9>&- && pgrep -f \"$server\\$\" >\"$(file)\""),
        ],
        fails: &["daemon::spares_strangers"],
    },
];

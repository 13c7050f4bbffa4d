//! Drivers that are good as long as one call comes after the other, or only a few come at all.

use crate::check::self_test::Fault;
use crate::check::self_test::Reference::{Keeper, Tmpfs};

const LOCK: &str =
    "    flock -w 100 9 || fail \"another call for this pod does not end: look for it with ps\"\n";
const MOUNT: &str = "    \"\") undo=yes\n";
const FINISH: &str = "    trap '' HUP INT TERM PIPE\n";
const DO_START: &str = "setsid -f $server 3>&- 9>&-";

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "no-lock",
        what: "looks whether the volume is mounted, and mounts a moment later, without a lock",
        of: Tmpfs,
        change: &[(LOCK, ""), (MOUNT, "    \"\") undo=yes\n        sleep 0.1\n")],
        fails: &[],
    },
    Fault {
        name: "lock-for-nobody-else",
        what: "fails while another call runs, for whatever volume",
        of: Tmpfs,
        change: &[(
            "    take \"$1\"\n    [ -d \"$dir\" ]",
            "    exec 8>/run/tmpfs.sh.lock\n    flock -n 8 || fail 'busy'\n    sleep 0.05\n    take \"$1\"\n    [ -d \"$dir\" ]",
        )],
        fails: &[],
    },
    Fault {
        name: "lock-for-all",
        what: "lets all volumes wait for one that hangs",
        of: Tmpfs,
        change: &[(
            "    take \"$1\"\n    [ -d \"$dir\" ]",
            "    exec 8>/run/tmpfs.sh.lock\n    flock 8\n    sleep 0.1\n    take \"$1\"\n    [ -d \"$dir\" ]",
        )],
        fails: &[],
    },
    Fault {
        name: "unmounts-them-all",
        what: "unmounts every mount of the volume for the pod that ends first",
        of: Tmpfs,
        change: &[(
            "    while mounted; do\n",
            "    for other in $(findmnt -nro TARGET -S \"${sources%% *}\"); do umount -n \"$other\"; done\n    while mounted; do\n",
        )],
        fails: &[],
    },
    Fault {
        name: "a-lock-file-each",
        what: "makes a lock file for each pod and never removes it",
        of: Tmpfs,
        change: &[(
            "    take \"$1\"\n    sources",
            "    take \"$1\"\n    : >\"/run/tmpfs.sh-$(printf '%s' \"$dir\" | sha256sum | cut -c 1-20)\"\n    sources",
        )],
        fails: &[],
    },
    Fault {
        name: "looks-itself-up",
        what: "ends without an answer if its own file was replaced meanwhile",
        of: Tmpfs,
        change: &[
            ("verb=${1-}\n", "self=$(stat -c %i \"$0\")\nverb=${1-}\n"),
            (FINISH, "    trap '' HUP INT TERM PIPE\n    [ \"$self\" = \"$(stat -c %i \"$0\")\" ] || exit\n"),
        ],
        fails: &[],
    },
    Fault {
        name: "server-holds-a-terminal",
        what: "starts the server in the volume's directory above",
        of: Keeper,
        change: &[(DO_START, "( cd \"${dir%/*}\" && setsid -f $server 3>&- 9>&- )")],
        fails: &[],
    },
    Fault {
        name: "server-in-the-group",
        what: "starts the server in the process group of the driver",
        of: Keeper,
        change: &[(DO_START, "{ $server 3>&- 9>&- & }")],
        fails: &[],
    },
    Fault {
        name: "server-that-does-not-start",
        what: "does not look whether the server could be started",
        of: Keeper,
        change: &[("command -v \"${server%% *}\" && ", "")],
        fails: &[],
    },
    Fault {
        name: "server-by-number",
        what: "writes down the server's number, and ends whoever has that when the volume goes",
        of: Keeper,
        change: &[
            (
                "stop() { while pkill -KILL -f \"$server\\$\"; do sleep 0.01; done; }",
                "pidfile() { printf '/run/keeper.sh-%s' \"${server##*x}\"; }\n\
                 stop() { [ ! -e \"$(pidfile)\" ] || kill -9 \"$(cat \"$(pidfile)\")\"; rm -f \"$(pidfile)\"; }",
            ),
            (
                "    start || fail \"the server does not start\"\n",
                "    start || fail \"the server does not start\"\n    pgrep -f \"$server\\$\" >\"$(pidfile)\"\n",
            ),
        ],
        fails: &[],
    },
];

//! Drivers that handle each call well, but not the steps between the calls.

use super::Fault;
use super::Reference::{Keeper, Loop, Tmpfs};

const INIT: &str = r#""selinuxRelabel":true,"supportsMetrics":true}}' ;;"#;
const MOUNT: &str = "    \"\") undo=yes\n";
const SOURCE: &str = "    source=tmpfs.sh:$1:$2\n";
const FINISH: &str = "    trap '' HUP INT TERM PIPE\n";
const UNMOUNT: &str = "    sources=$(mounted) || succeed\n";

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "init-counts-mounts",
        what: "says in init that files have no group while a volume is mounted",
        of: Tmpfs,
        change: &[(
            INIT,
            "\"selinuxRelabel\":true,\"supportsMetrics\":true}}'\n    ! findmnt -t tmpfs | grep -q tmpfs.sh: || \
             answer='{\"status\":\"Success\",\"capabilities\":{\"attach\":false,\"fsGroup\":false,\"requiresFSResize\":false}}' ;;",
        )],
        fails: &[
            "sequence::boot",
            "sequence::restart_alive",
            "sequence::restart_gone",
            "sequence::upgrade",
            "sequence::probe_storm",
        ],
    },
    Fault {
        name: "bears-a-grudge",
        what: "fails to mount where it has failed before",
        of: Tmpfs,
        change: &[(
            "    case $fields in error:*) ",
            "    grudge=/run/tmpfs.sh-$(printf '%s' \"$1\" | sha256sum | cut -c 1-20)\n    \
             [ ! -e \"$grudge\" ] || fail 'it has failed before'\n    case $fields in error:*) : >\"$grudge\"\n        ",
        )],
        fails: &["sequence::failed_start"],
    },
    Fault {
        name: "note-beside-the-volume",
        what: "leaves a note beside the volume's directory when it unmounts",
        of: Tmpfs,
        change: &[(
            UNMOUNT,
            "    [ ! -d \"$dir\" ] || date >\"${dir%/*}/.last\"\n    sources=$(mounted) || succeed\n",
        )],
        fails: &["mount::nothing_beside", "sequence::pod", "left::files"],
    },
    Fault {
        name: "lock-without-a-holder",
        what: "locks with a directory, which stays when the driver dies of a reader that is gone",
        of: Tmpfs,
        change: &[
            (
                MOUNT,
                "    \"\") undo=yes lock=/run/tmpfs.sh-$(printf '%s' \"$dir\" | sha256sum | cut -c 1-20)\n        \
                 mkdir \"$lock\" || { undo= && fail 'locked'; }\n        printf ' ' >&3\n",
            ),
            (FINISH, "    trap '' HUP INT TERM PIPE\n    [ -z \"$lock\" ] || rmdir \"$lock\"\n"),
        ],
        fails: &["crash::closed_reader", "sequence::lost_answer"],
    },
    Fault {
        name: "believes-its-record",
        what: "takes a volume for mounted that it once wrote down as mounted",
        of: Tmpfs,
        change: &[
            (
                SOURCE,
                "    source=tmpfs.sh:$1:$2\n    record=/var/lib/tmpfs.sh-$(printf '%s' \"$dir\" | sha256sum | cut -c 1-20)\n    \
                 [ ! -e \"$record\" ] || succeed\n",
            ),
            (
                "cannot make $dir read-only\"\n    succeed",
                "cannot make $dir read-only\"\n    : >\"$record\"\n    succeed",
            ),
            (
                UNMOUNT,
                "    rm -f \"/var/lib/tmpfs.sh-$(printf '%s' \"$dir\" | sha256sum | cut -c 1-20)\"\n    sources=$(mounted) || succeed\n",
            ),
        ],
        fails: &["mount::other_access", "sequence::reboot"],
    },
    Fault {
        name: "needs-its-server",
        what: "fails to unmount when the server of the volume has died",
        of: Keeper,
        change: &[
            (
                "setsid -f $server 3>&- 9>&-",
                "setsid -f $server 3>&- 9>&- && : >\"/run/keeper.sh-${server##*x}\"",
            ),
            (
                "*) fail \"what is mounted at $dir is not from this driver\" ;; esac\n    fi\n",
                "*) fail \"what is mounted at $dir is not from this driver\" ;; esac\n        \
                 [ ! -e \"/run/keeper.sh-${server##*x}\" ] || pgrep -f \"$server\\$\" || fail 'the server does not answer'\n    fi\n",
            ),
            ("    stop\n    succeed", "    stop\n    rm -f \"/run/keeper.sh-${server##*x}\"\n    succeed"),
        ],
        fails: &["unmount::dead", "sequence::dead_daemon"],
    },
    Fault {
        name: "name-is-a-failure",
        what: "fails getvolumename, which costs each step of a volume that attaches",
        of: Loop,
        change: &[(
            "expandfs) expand \"$@\" ;;\n",
            "expandfs) expand \"$@\" ;;\ngetvolumename) fail 'no such verb' ;;\n",
        )],
        fails: &["verbs::name", "sequence::attach"],
    },
    Fault {
        name: "owner-is-a-file",
        what: "takes a mount for a stranger's if the driver's file is another by now",
        of: Tmpfs,
        change: &[
            (SOURCE, "    source=tmpfs.sh:$1:$2:$(stat -c %.9Z \"$0\")\n"),
            (
                "case $sources in *tmpfs.sh:*) ;;",
                "case $sources in *tmpfs.sh:*:\"$(stat -c %.9Z \"$0\")\") ;;",
            ),
        ],
        fails: &["sequence::upgrade", "storm::replaced"],
    },
    Fault {
        name: "init-takes-turns",
        what: "fails init while another one runs",
        of: Tmpfs,
        change: &[(
            "init)\n",
            "init)\n    exec 8>/run/tmpfs.sh.init\n    flock -n 8 || fail 'busy'\n    sleep 0.05\n",
        )],
        fails: &["init::storm", "storm::replaced", "sequence::probe_storm"],
    },
];

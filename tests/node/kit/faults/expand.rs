//! Volumes that grow in a wrong way.
//! A tmpfs can grow on any machine; the reference driver does not use that.

use super::Fault;
use super::Reference::Tmpfs;

const RESIZE: &str = r#""requiresFSResize":false,"#;

/// Changes that add `expandfs` to the driver, with this body.
macro_rules! expanding {
    ($body:literal $(, $more:expr)*) => {
        &[
            (RESIZE, r#""requiresFSResize":true,"#),
            (
                "unmount) unmount_volume \"$@\" ;;\n",
                concat!(
                    "unmount) unmount_volume \"$@\" ;;\nexpandfs)\n    [ $# = 5 ] || fail 'five arguments'\n    take \"$3\"\n    size=$(findmnt -bnro SIZE ",
                    "--mountpoint \"$dir\")\n    grow() { mount -n -o \"remount,size=$1\" \"$dir\"; }\n",
                    $body,
                    " ;;\n"
                ),
            ),
            $($more,)*
        ]
    };
}

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "does-not-grow",
        what: "says that a volume has grown, and leaves it to expandvolume, which is never called",
        of: Tmpfs,
        change: expanding!("    [ \"$4\" -ge \"$5\" ] || fail 'cannot shrink'\n    succeed"),
        fails: &["expand::grows"],
    },
    Fault {
        name: "grown-is-a-failure",
        what: "fails to grow what is large enough already",
        of: Tmpfs,
        change: expanding!(
            "    [ \"$4\" -gt \"$size\" ] || fail 'nothing to do'\n    grow \"$4\"\n    succeed"
        ),
        fails: &["expand::twice", "sequence::resize"],
    },
    Fault {
        name: "expand-wants-the-old-size",
        what: "ends without an answer if kubelet does not know the old size",
        of: Tmpfs,
        change: expanding!(
            "    [ \"$5\" != 0 ] || { answer= && exit; }\n    [ \"$4\" -ge \"$5\" ] || fail 'cannot shrink'\n    \
             [ \"$4\" -le \"$size\" ] || grow \"$4\"\n    succeed"
        ),
        fails: &["expand::odd_arguments", "output::one_object"],
    },
    Fault {
        name: "shrinks",
        what: "makes the volume as large as kubelet says, also if that is less",
        of: Tmpfs,
        change: expanding!("    grow \"$4\"\n    succeed"),
        fails: &["expand::shrink", "expand::shrink_is_refused", "expand::twice"],
    },
    Fault {
        name: "shrinking-is-a-success",
        what: "says Success to a smaller size, and does nothing",
        of: Tmpfs,
        change: expanding!("    [ \"$4\" -le \"$size\" ] || grow \"$4\"\n    succeed"),
        fails: &["expand::shrink_is_refused"],
    },
    Fault {
        name: "grown-once",
        what: "does not unmount at the first attempt one that has grown",
        of: Tmpfs,
        change: expanding!(
            "    [ \"$4\" -ge \"$5\" ] || fail 'cannot shrink'\n    [ \"$4\" -le \"$size\" ] || grow \"$4\"\n    \
             : >\"/run/tmpfs.sh-${dir##*/}\"\n    succeed",
            (
                "    while mounted; do\n",
                "    ! rm \"/run/tmpfs.sh-${dir##*/}\" || fail 'whose is it?'\n    while mounted; do\n"
            )
        ),
        fails: &["sequence::resize"],
    },
    Fault {
        name: "resize-is-not-said",
        what: "leaves growing to kubelet, which runs resize2fs on nothing",
        of: Tmpfs,
        change: &[(RESIZE, "")],
        fails: &["expand::not_left_to_kubelet"],
    },
];

//! Mounts that are none, or too many.

use crate::check::self_test::Fault;
use crate::check::self_test::Reference::Tmpfs;

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "fake-success",
        what: "takes every exit status of mount for a success: juliohm/cifs takes 32, the dummy of the examples all",
        of: Tmpfs,
        change: &[("mount -n -c -i -t tmpfs", "true")],
        fails: &["mount::works"],
    },
    Fault {
        name: "double-mount",
        what: "mounts again what is mounted",
        of: Tmpfs,
        change: &[("case $(mounted) in", "case \"\" in")],
        fails: &["mount::twice"],
    },
    Fault {
        name: "mounted-is-a-failure",
        what: "fails if the volume is mounted already: fstab/cifs",
        of: Tmpfs,
        change: &[("\"$source\") ;;", "\"$source\") fail \"$dir is mounted already\" ;;")],
        fails: &["mount::twice"],
    },
    Fault {
        name: "mounted-is-no-answer",
        what: "ends without an answer if the volume is mounted already: fq/lizardfs",
        of: Tmpfs,
        change: &[("\"$source\") ;;", "\"$source\") answer= && exit ;;")],
        fails: &["mount::twice", "output::one_object"],
    },
];

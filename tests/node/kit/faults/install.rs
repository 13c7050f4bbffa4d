//! Drivers in a wrong place, and drivers that cannot be started.

use super::Reference::Tmpfs;
use super::{Fault, Laid};

const SHEBANG: &str = "#!/usr/bin/env -S -i -C / PATH=/usr/sbin:/usr/bin:/sbin:/bin sh";

/// Placements that differ from the correct one.
pub(super) const LAID: &[(&str, Laid)] = &[
    ("for-everybody", Laid { mode: 0o777, ..Laid::WELL }),
    ("readme", Laid { beside: Some("README"), ..Laid::WELL }),
    ("no-dns-name", Laid { vendor: "Check_Example", ..Laid::WELL }),
];

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "no-dns-name",
        what: "has a vendor that is no DNS name, so that kubelet refuses it after init",
        of: Tmpfs,
        change: &[],
        fails: &["install::name"],
    },
    Fault {
        name: "readme",
        what: "has a file beside it, for which kubelet calls init: microsoft.com/smb brings jq and mount.cifs",
        of: Tmpfs,
        change: &[],
        fails: &["install::alone"],
    },
    Fault {
        name: "for-everybody",
        what: "can be replaced by everybody",
        of: Tmpfs,
        change: &[],
        fails: &["install::mode"],
    },
    Fault {
        name: "needs-bash",
        what: "needs a shell that many nodes lack: fstab/cifs and most others",
        of: Tmpfs,
        change: &[(SHEBANG, "#!/usr/bin/env -S -i -C / PATH=/usr/sbin:/usr/bin:/sbin:/bin bash")],
        fails: &["install::self_contained", "environment::no_processes"],
    },
    Fault {
        name: "long-first-line",
        what: "has a first line that is too long for older kernels",
        of: Tmpfs,
        change: &[(
            SHEBANG,
            "#!/usr/bin/env -S -i -C / \
             PATH=/opt/one/sbin:/opt/one/bin:/opt/two/sbin:/opt/two/bin:/opt/three/bin:/usr/sbin:/usr/bin:/sbin:/bin \
             LC_ALL=C sh",
        )],
        fails: &["install::executable"],
    },
];

//! What a driver needs from the node.

use crate::check::self_test::Fault;
use crate::check::self_test::Reference::Tmpfs;

pub(super) const FAULTS: &[Fault] = &[Fault {
    name: "needs-bash",
    what: "is a script for bash, which images for nodes often lack: nearly everybody",
    of: Tmpfs,
    change: &[("PATH=/usr/sbin:/usr/bin:/sbin:/bin sh\n", "PATH=/usr/sbin:/usr/bin:/sbin:/bin bash\n")],
    fails: &["install::self_contained"],
}];

//! What programs of device mapper have to be told where udev does not run.

use super::helper::Helper;
use std::path::Path;

/// Where udev listens, if it runs.
const UDEV: &str = "/run/udev/control";

/// In a container and on small nodes nobody makes device nodes for libdevmapper, which would wait for them: it makes
/// them itself where this variable is set.
#[must_use]
pub fn without_udev(helper: Helper) -> Helper {
    if Path::new(UDEV).exists() { helper } else { helper.env("DM_DISABLE_UDEV", "1") }
}

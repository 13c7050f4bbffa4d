//! Lines of results, of which tests/trust makes docs/trust.md.

use std::fs::File;
use std::io::Write as _;

/// Appends lines to the file that `FLEXVOL_TRUST` names, in one write: other tests append to it at
/// the same time.
pub(crate) fn append(lines: &str) {
    if let Some(path) = std::env::var_os("FLEXVOL_TRUST") {
        let file = File::options().create(true).append(true).open(path);
        file.unwrap().write_all(lines.as_bytes()).unwrap();
    }
}

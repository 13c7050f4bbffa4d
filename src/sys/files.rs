//! Small files, read whole.

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The text of a file of at most `limit` bytes; `None` if there is no such file.
pub fn read_small(path: &Path, limit: usize) -> Result<Option<String>> {
    let what = || format!("read {}", path.display());
    // Not blocking: a fifo of that name must not hold anybody up.
    let file = match File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        file => file.with_context(what)?,
    };
    let mut text = String::new();
    file.take(limit as u64 + 1).read_to_string(&mut text).with_context(what)?;
    ensure!(text.len() <= limit, "{} is larger than {limit} bytes", path.display());
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        assert_eq!(read_small(&path, 3).unwrap(), None);
        File::create(&path).unwrap().set_len(3).unwrap();
        assert_eq!(read_small(&path, 3).unwrap().unwrap().len(), 3);
        assert!(read_small(&path, 2).is_err());
    }
}

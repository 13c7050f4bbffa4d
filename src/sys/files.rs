//! Small files, read and written whole.

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
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

/// Makes a file that is not there yet, and its directory; for everybody to read, as the umask allows.
pub fn write_new(path: &Path, text: &str) -> Result<()> {
    let directory = path.parent().unwrap_or(path);
    std::fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
    let file = File::options().write(true).create_new(true).open(path);
    let write = |mut file: File| file.write_all(text.as_bytes());
    file.and_then(write).with_context(|| format!("write {}", path.display()))
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

    #[test]
    fn what_is_there_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        write_new(&path, "first").unwrap();
        assert!(write_new(&path, "second").is_err());
        assert_eq!(read_small(&path, 9).unwrap().unwrap(), "first");
    }
}

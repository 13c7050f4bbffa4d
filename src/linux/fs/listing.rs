//! Entries of a directory, read by its path, as kubelet reads its plugin directory.

use crate::fs::directory::Kind;
use anyhow::{Context as _, Result};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::Path;

/// One name in a directory that is read by its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The name.
    pub name: OsString,
    /// The kind of file that it names.
    pub kind: Kind,
}

/// Returns the entries of a directory, sorted by their bytes like Go's `ReadDir`.
pub fn list(directory: &Path) -> Result<Vec<Named>> {
    let what = || format!("read directory {}", directory.display());
    let entries: io::Result<Vec<_>> = fs::read_dir(directory).with_context(what)?.map(entry).collect();
    let mut entries: Vec<_> = entries.with_context(what)?.into_iter().flatten().collect();
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// Returns the names in a directory, unsorted; an empty list if the directory does not exist.
pub fn names(directory: &Path) -> io::Result<Vec<OsString>> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => Ok(entries?.filter_map(|entry| Some(entry.ok()?.file_name())).collect()),
    }
}

/// Returns the kind of a file, without following a symlink; `None` if it does not exist.
pub fn kind_of(path: &Path) -> Result<Option<Kind>> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found.file_type().into())),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("look at {}", path.display())),
    }
}

/// Reports whether a name begins with a dot: kubelet skips such names.
pub fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().first() == Some(&b'.')
}

/// Reports whether an error means that a file does not exist, or no longer exists.
pub fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

impl From<fs::FileType> for Kind {
    fn from(file_type: fs::FileType) -> Self {
        match file_type {
            kind if kind.is_dir() => Self::Directory,
            kind if kind.is_symlink() => Self::Link,
            kind if kind.is_file() => Self::File,
            _ => Self::Other,
        }
    }
}

/// Converts an entry. Returns `None` for a file that was removed meanwhile: on some file systems
/// the listing does not contain the kind.
fn entry(found: io::Result<fs::DirEntry>) -> io::Result<Option<Named>> {
    let found = found?;
    match found.file_type() {
        Ok(kind) => Ok(Some(Named { name: found.file_name(), kind: kind.into() })),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::directory::make_all;
    use std::os::unix::fs::symlink;

    #[test]
    fn entries_are_sorted_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        make_all(&path).unwrap();
        make_all(&path).unwrap();
        for name in ["z", "B", ".x"] {
            make_all(&path.join(name)).unwrap();
        }
        symlink(&path, path.join("a")).unwrap();
        fs::File::create(path.join("c")).unwrap();
        let found: Vec<_> = list(&path)
            .unwrap()
            .into_iter()
            .map(|each| (each.name.into_string().unwrap(), each.kind))
            .collect();
        let expected = [
            (".x", Kind::Directory),
            ("B", Kind::Directory),
            ("a", Kind::Link),
            ("c", Kind::File),
            ("z", Kind::Directory),
        ];
        assert_eq!(found, expected.map(|(name, kind)| (name.to_owned(), kind)));
        assert_eq!(kind_of(&path.join("a")).unwrap(), Some(Kind::Link));
        assert_eq!(kind_of(&path.join("c/d")).unwrap(), None);
        assert!(make_all(&path.join("c")).is_err() && list(&path.join("none")).is_err());
    }
}

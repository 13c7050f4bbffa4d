//! Directories: what is in one, and making one.

use anyhow::{Context as _, Result};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, FileType};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: OsString,
    /// What it names.
    pub kind: Kind,
}

/// What a name in a directory names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A real directory.
    Directory,
    /// A symlink, to whatever.
    Symlink,
    /// A file, or anything else.
    File,
}

/// The entries of a directory, in the order of their bytes as Go's `ReadDir` has them.
pub fn list(directory: &Path) -> Result<Vec<Entry>> {
    let what = || format!("read directory {}", directory.display());
    let entries: io::Result<Vec<_>> = fs::read_dir(directory).with_context(what)?.map(entry).collect();
    let mut entries: Vec<_> = entries.with_context(what)?.into_iter().flatten().collect();
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// What a path names, a symlink not followed; `None` if nothing.
pub fn kind_of(path: &Path) -> Result<Option<Kind>> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found.file_type().into())),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("look at {}", path.display())),
    }
}

/// Makes a directory, and all above it that are missing, with mode 0755. One that is there already is fine.
pub fn create(directory: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o755).create(directory);
    made.with_context(|| format!("make directory {}", directory.display()))
}

/// Of an error: the thing is not there, or no longer.
pub fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

impl From<FileType> for Kind {
    fn from(file_type: FileType) -> Self {
        match file_type {
            kind if kind.is_dir() => Self::Directory,
            kind if kind.is_symlink() => Self::Symlink,
            _ => Self::File,
        }
    }
}

/// `None` for what went away meanwhile, on a file system that does not say what a name names.
fn entry(found: io::Result<fs::DirEntry>) -> io::Result<Option<Entry>> {
    let found = found?;
    match found.file_type() {
        Ok(kind) => Ok(Some(Entry { name: found.file_name(), kind: kind.into() })),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn entries_are_sorted_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        create(&path).unwrap();
        create(&path).unwrap();
        for name in ["z", "B", ".x"] {
            create(&path.join(name)).unwrap();
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
            ("a", Kind::Symlink),
            ("c", Kind::File),
            ("z", Kind::Directory),
        ];
        assert_eq!(found, expected.map(|(name, kind)| (name.to_owned(), kind)));
        assert_eq!(kind_of(&path.join("a")).unwrap(), Some(Kind::Symlink));
        assert_eq!(kind_of(&path.join("c/d")).unwrap(), None);
        assert!(create(&path.join("c")).is_err() && list(&path.join("none")).is_err());
    }
}

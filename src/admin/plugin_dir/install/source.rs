//! Executable to be installed.

use anyhow::{Context as _, Result, ensure};
use flexvol_linux::fs::files::{self, File};
use flexvol_linux::fs::fingerprint::Fingerprint;
use std::io::{self, Read, Seek as _, Write};
use std::path::{Path, PathBuf};

/// The running program. It can be read also if its file was removed or replaced meanwhile.
const OWN: &str = "/proc/self/exe";

/// An executable, opened once for all its destinations.
#[derive(Debug)]
pub struct Source {
    file: File,
    path: PathBuf,
    fingerprint: Fingerprint,
    own: bool,
}

impl Source {
    /// Opens the running program.
    pub fn own() -> Result<Self> {
        Ok(Self { own: true, ..Self::open(Path::new(OWN))? })
    }

    /// Opens another build of flexvol, or any other driver.
    pub fn at(path: &Path) -> Result<Self> {
        ensure!(path.exists(), "there is no file {}: name the executable", path.display());
        let path = path.canonicalize().with_context(|| format!("open {}", path.display()))?;
        ensure!(path.is_file(), "{} is not a file: name the executable", path.display());
        Self::open(&path)
    }

    fn open(path: &Path) -> Result<Self> {
        let what = || format!("read {}", path.display());
        let file = files::open(path).with_context(what)?;
        let fingerprint = Fingerprint::of(&file).with_context(what)?;
        Ok(Self { file, path: path.to_owned(), fingerprint, own: false })
    }

    /// Returns its fingerprint.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// Reports whether it is the running program.
    pub fn is_own(&self) -> bool {
        self.own
    }

    /// Returns its path, to execute it there.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reports whether this executable begins with the bytes of `part`.
    pub(in crate::plugin_dir) fn begins_with(&self, part: &Fingerprint) -> Result<bool> {
        let what = || format!("read {}", self.path.display());
        let mut file = &self.file;
        file.rewind().with_context(what)?;
        Ok(Fingerprint::of(file.take(part.size)).with_context(what)?.hash == part.hash)
    }

    /// Copies it. Fails if the file was changed since it was opened.
    pub(super) fn copy_to(&self, target: impl Write) -> Result<()> {
        let mut file = &self.file;
        file.rewind().with_context(|| format!("read {}", self.path.display()))?;
        let copied = copy(file, target).with_context(|| format!("copy {}", self.path.display()))?;
        let same = copied.hash == self.fingerprint.hash;
        ensure!(same, "{} changed while it was copied: install again", self.path.display());
        Ok(())
    }
}

/// Copies to the end; returns the fingerprint of the copy.
pub(super) fn copy(from: impl Read, to: impl Write) -> io::Result<Fingerprint> {
    Fingerprint::of(Copying { from, to })
}

/// Reader that writes all it reads to `to`.
struct Copying<R, W> {
    from: R,
    to: W,
}

impl<R: Read, W: Write> Read for Copying<R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.from.read(buffer)?;
        self.to.write_all(&buffer[..length])?;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_whole_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("driver");
        let write = |bytes: &[u8]| File::create(&path).unwrap().write_all(bytes).unwrap();
        let content = vec![7; 200_000];
        write(&content);
        let source = Source::at(&path).unwrap();
        for _ in 0..2 {
            let mut copy = Vec::new();
            source.copy_to(&mut copy).unwrap();
            assert_eq!(copy, content);
        }
        write(b"other");
        assert!(source.copy_to(Vec::new()).unwrap_err().to_string().contains("changed while"));
        assert!(Source::at(dir.path()).is_err() && Source::at(Path::new("/nowhere")).is_err());
    }
}

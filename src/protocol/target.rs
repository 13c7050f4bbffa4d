//! Target of a call: the directory that the call is about.

use crate::failure::{Failure, Result};
use serde::{Serialize, Serializer};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Absolute path without `.`, `..`, NUL or extra slashes, in the spelling of the mount table. It is
/// never `/` itself.
///
/// Kubelet made the directory and sends its path in exactly this form; any other form is a call by
/// hand. The bytes are kept, UTF-8 or not. Symbolic links in the path are not checked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetPath(PathBuf);

impl TargetPath {
    /// Parses the target argument of a call.
    pub fn parse(argument: &OsStr) -> Result<Self> {
        let bytes = argument.as_bytes();
        let dots = |part: &[u8]| part == b"." || part == b"..";
        let path = Path::new(argument);
        let complaint = match () {
            () if !path.is_absolute() => "must be an absolute path",
            () if bytes.contains(&0) => "must not contain a NUL byte",
            () if bytes.split(|byte| *byte == b'/').any(dots) => "must not contain . or .. as a part",
            () if path.parent().is_none() => "must not be the root directory",
            () => return Ok(Self(path.components().collect())),
        };
        Err(Failure::call(format!("target {complaint}: pass the directory to mount on")))
    }

    /// Returns the path.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for TargetPath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Serialize for TargetPath {
    /// Writes the form for people: bytes that are not UTF-8 are replaced.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for TargetPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_bytes_and_drops_spare_slashes() {
        for (given, kept) in [
            (&b"/var/lib/kubelet"[..], &b"/var/lib/kubelet"[..]),
            (b"/a/b/", b"/a/b"),
            (b"//a///b//", b"/a/b"),
            (b"/a b/\xff\n/...", b"/a b/\xff\n/..."),
        ] {
            let target = TargetPath::parse(OsStr::from_bytes(given)).unwrap();
            assert_eq!(target.as_path().as_os_str().as_bytes(), kept);
        }
    }

    #[test]
    fn refuses_what_kubelet_never_sends() {
        for (given, word) in [
            ("", "absolute"),
            ("a/b", "absolute"),
            ("/", "root"),
            ("//", "root"),
            ("/a/../b", ".."),
            ("/a/..", ".."),
            ("/./a", ".."),
            ("/a/.", ".."),
            ("/a\0", "NUL"),
        ] {
            let message = TargetPath::parse(given.as_ref()).unwrap_err().message();
            assert!(message.contains(word), "{given:?}: {message}");
        }
    }
}

//! Properties of an executable, from its bytes alone: hash, version if it is a flexvol, machine or
//! interpreter.

use flexvol_protocol::text::hex;
use sha2::{Digest as _, Sha256};
use std::cmp::Ordering;
use std::io::{self, Read};

/// Mark with the version in the bytes of every build of flexvol, so that the version can be read
/// without running the file.
static MARK: &str = concat!("flexvol-build-version=", env!("CARGO_PKG_VERSION"), ";");

/// Length of the part of [`MARK`] that is the same in every build.
const MARK_NAME: usize = "flexvol-build-version=".len();

/// Limit for the length of a valid version.
const VERSION_LIMIT: usize = 64;

/// Limit for the beginning that is kept, in bytes: an ELF header, or a script's first line.
pub const HEAD: usize = 256;

/// Properties of an executable file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// SHA-256 in hexadecimal.
    pub hash: String,
    /// The size in bytes.
    pub size: u64,
    /// The version, if the file is a flexvol.
    pub version: Option<String>,
    /// Executable format.
    pub format: Format,
    /// The first bytes, at most [`HEAD`].
    pub head: Vec<u8>,
}

/// Executable format, which tells how the kernel runs a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// An ELF file for this machine (`e_machine`).
    Elf(u16),
    /// A script for this interpreter.
    Script(String),
    /// A format that the kernel does not know.
    Unknown,
}

impl Fingerprint {
    /// Reads a file from its current position to its end.
    pub fn of(mut file: impl Read) -> io::Result<Self> {
        let (mut hash, mut size, mut head) = (Sha256::new(), 0, Vec::new());
        let (mut buffer, mut kept, mut version) = (vec![0; 1 << 16], 0, None);
        loop {
            let read = match file.read(&mut buffer[kept..]) {
                Ok(0) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            let fresh = &buffer[kept..kept + read];
            hash.update(fresh);
            size += read as u64;
            head.extend_from_slice(&fresh[..read.min(HEAD - head.len())]);
            let filled = kept + read;
            version = version_in(&buffer[..filled]).or(version);
            // A mark may be split between two reads.
            kept = filled.min(MARK_NAME + VERSION_LIMIT);
            buffer.copy_within(filled - kept..filled, 0);
        }
        let format = Format::of(&head);
        Ok(Self { hash: hex(&hash.finalize()), size, version, format, head })
    }

    /// Returns the beginning of the hash, for messages.
    pub fn short_hash(&self) -> &str {
        short(&self.hash)
    }
}

/// Returns the beginning of a hash, for messages and for directory names.
pub fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

/// Returns the version of this build.
pub fn own_version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Returns the last version mark.
/// Its name alone, which is in the code of this function, is not one.
fn version_in(bytes: &[u8]) -> Option<String> {
    // Not evaluated at compile time: otherwise the mark would not be in the program.
    let name = &std::hint::black_box(MARK).as_bytes()[..MARK_NAME];
    let mut end = bytes.len();
    while let Some(at) = bytes[..end].iter().rposition(|byte| *byte == b'=') {
        let version = version_at(&bytes[at + 1..]);
        if version.is_some() && bytes[..=at].ends_with(name) {
            return version;
        }
        end = at;
    }
    None
}

fn version_at(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().take(VERSION_LIMIT).position(|byte| *byte == b';')?;
    let version = std::str::from_utf8(&bytes[..end]).ok()?;
    let plain = version.chars().all(|c| c.is_ascii_alphanumeric() || ".-+".contains(c));
    (plain && version.starts_with(|c: char| c.is_ascii_digit())).then(|| version.to_owned())
}

/// Compares two versions by the numbers between the dots. A release is newer than its pre-releases
/// (`1.0.0-rc1`). Versions that cannot be told apart are equal.
pub fn compare_versions(one: &str, other: &str) -> Ordering {
    let numbers = |version: &str| {
        let core = version.split(['-', '+']).next().unwrap_or_default();
        let mut numbers: Vec<u64> = core.split('.').map(|part| part.parse().unwrap_or(0)).collect();
        while numbers.last() == Some(&0) {
            numbers.pop();
        }
        numbers
    };
    let preceding = |version: &str| {
        version.split('+').next().unwrap_or_default().split_once('-').map(|(_, name)| name.to_owned())
    };
    numbers(one).cmp(&numbers(other)).then_with(|| match (preceding(one), preceding(other)) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(one), Some(other)) => one.cmp(&other),
    })
}

impl Format {
    fn of(head: &[u8]) -> Self {
        if let Some(rest) = head.strip_prefix(b"#!") {
            let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let line = String::from_utf8_lossy(line);
            return line
                .split_whitespace()
                .next()
                .map_or(Self::Unknown, |word| Self::Script(word.to_owned()));
        }
        match (head.get(..4), head.get(5), head.get(18..20)) {
            (Some(b"\x7fELF"), Some(2), Some(&[high, low])) => Self::Elf(u16::from_be_bytes([high, low])),
            (Some(b"\x7fELF"), _, Some(&[low, high])) => Self::Elf(u16::from_le_bytes([low, high])),
            _ => Self::Unknown,
        }
    }
}

/// Returns the `e_machine` of a machine name of uname(2); `None` for a machine that does not run
/// Kubernetes.
pub fn machine_number(machine: &str) -> Option<u16> {
    MACHINES.iter().find(|(name, _)| *name == machine).map(|(_, number)| *number)
}

/// Returns the name of an `e_machine`.
pub fn machine_name(number: u16) -> String {
    let known = MACHINES.iter().find(|(_, known)| *known == number);
    known.map_or_else(|| format!("machine {number}"), |(name, _)| (*name).to_owned())
}

/// Machine names of uname(2) and their numbers in elf.h.
const MACHINES: &[(&str, u16)] = &[
    ("x86_64", 62),
    ("aarch64", 183),
    ("armv7l", 40),
    ("armv6l", 40),
    ("i686", 3),
    ("ppc64le", 21),
    ("s390x", 22),
    ("riscv64", 243),
    ("loongarch64", 258),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Reader that returns few bytes at a time.
    struct Slow<'a>(&'a [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = self.1.min(self.0.len()).min(buffer.len());
            buffer[..length].copy_from_slice(&self.0[..length]);
            self.0 = &self.0[length..];
            Ok(length)
        }
    }

    #[test]
    fn the_hash_is_that_of_sha256sum() {
        let empty = Fingerprint::of(&b""[..]).unwrap();
        assert_eq!(empty.short_hash(), "e3b0c44298fc");
        assert_eq!((empty.size, empty.version, empty.format), (0, None, Format::Unknown));
        let hash = Fingerprint::of(&b"abc"[..]).unwrap().hash;
        assert_eq!(hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn the_last_mark_is_found_wherever_the_reads_end() {
        let mut bytes = vec![b'x'; 200];
        bytes.extend_from_slice(b"flexvol-build-version=0.1.0;");
        bytes.extend_from_slice(&[0; 300]);
        bytes.extend_from_slice(
            b"flexvol-build-version=1.2.3-rc1;flexvol-build-version=flexvol-build-version=x;",
        );
        let whole = Fingerprint::of(&bytes[..]).unwrap();
        assert_eq!(whole.version.as_deref(), Some("1.2.3-rc1"));
        for step in 1..40 {
            assert_eq!(Fingerprint::of(Slow(&bytes, step)).unwrap(), whole, "{step}");
        }
    }

    #[test]
    fn this_program_has_a_mark() {
        let own = Fingerprint::of(std::fs::File::open("/proc/self/exe").unwrap()).unwrap();
        // The program contains the marks of the test above, too.
        assert!(own.version.is_some() && own.size > 1 << 16);
        assert!(matches!(own.format, Format::Elf(_)), "{:?}", own.format);
    }

    #[test]
    fn versions_are_compared_by_their_numbers() {
        for (older, newer) in [
            ("0.1.0", "0.1.1"),
            ("0.9", "0.10"),
            ("1.0.0-rc1", "1.0.0"),
            ("1.0.0-rc1", "1.0.0-rc2"),
            ("1", "1.0.1"),
        ] {
            assert_eq!(compare_versions(older, newer), Ordering::Less, "{older} {newer}");
            assert_eq!(compare_versions(newer, older), Ordering::Greater, "{older} {newer}");
        }
        for (one, other) in [("1", "1.0.0"), ("1.0.0+a", "1.0.0+b"), ("", "0")] {
            assert_eq!(compare_versions(one, other), Ordering::Equal);
        }
    }

    #[test]
    fn scripts_and_machines() {
        let format = |bytes: &[u8]| Fingerprint::of(bytes).unwrap().format;
        assert_eq!(format(b"#! /bin/sh -e\necho"), Format::Script("/bin/sh".into()));
        assert_eq!(format(b"#!\n"), Format::Unknown);
        let mut elf = b"\x7fELF\x02\x01".to_vec();
        elf.resize(18, 0);
        elf.extend_from_slice(&[183, 0]);
        assert_eq!(format(&elf), Format::Elf(183));
        assert_eq!((machine_name(183).as_str(), machine_number("x86_64")), ("aarch64", Some(62)));
    }
}

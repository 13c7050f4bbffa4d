//! Allow-list for options of mkfs.
//!
//! The words come from a volume's options, while mkfs runs as root. Many options of mkfs take paths
//! (`-d` of ext4, `-p` and `-c` of xfs, `--rootdir` of btrfs, external journals), and some make
//! mkfs do nothing and succeed. So only the options listed here pass: a flag and its value, each as
//! a word of its own.

use crate::failure::{Failure, Result};
use crate::file_system::FileSystem;

/// Flag and its type of value.
struct Flag(&'static str, Takes);

enum Takes {
    Nothing,
    /// `4096`, `0.5`, `16k`.
    Number,
    /// A label, a UUID: letters, digits and `_.:+-`.
    Name,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// Comma-separated features, each optionally negated with `^`, except these.
    Features(&'static [&'static str]),
    /// Comma-separated `key` or `key=value` with one of these keys.
    Keys(&'static [&'static str]),
}

const EXT4: &[Flag] = &[
    Flag("-b", Takes::Number),
    Flag("-i", Takes::Number),
    Flag("-I", Takes::Number),
    Flag("-m", Takes::Number),
    Flag("-N", Takes::Number),
    Flag("-L", Takes::Name),
    Flag("-U", Takes::Name),
    // `journal_dev` makes an external journal instead of a file system.
    Flag("-O", Takes::Features(&["journal_dev"])),
    Flag("-E", Takes::Keys(EXT4_EXTENDED)),
];

/// Allowed keys. `offset`, which writes elsewhere, and `test_fs` are not among them.
const EXT4_EXTENDED: &[&str] = &[
    "discard",
    "hash_seed",
    "lazy_itable_init",
    "lazy_journal_init",
    "nodiscard",
    "num_backup_sb",
    "packed_meta_blocks",
    "resize",
    "root_owner",
    "stride",
    "stripe-width",
    "stripe_width",
];

const XFS: &[Flag] = &[
    Flag("-m", Takes::Keys(&["bigtime", "crc", "finobt", "inobtcount", "reflink", "rmapbt", "uuid"])),
    Flag("-i", Takes::Keys(&["attr", "maxpct", "nrext64", "perblock", "projid32bit", "size", "sparse"])),
    Flag("-n", Takes::Keys(&["ftype", "size", "version"])),
    Flag("-s", Takes::Keys(&["size"])),
    Flag("-b", Takes::Keys(&["size"])),
    Flag("-L", Takes::Name),
    Flag("-K", Takes::Nothing),
];

const BTRFS: &[Flag] = &[
    Flag("-n", Takes::Number),
    Flag("-s", Takes::Number),
    Flag("-L", Takes::Name),
    Flag("-m", Takes::OneOf(&["single", "dup"])),
    Flag("-d", Takes::OneOf(&["single", "dup"])),
    // `list-all` prints a list and makes nothing.
    Flag("-O", Takes::Features(&["list-all"])),
];

/// Fails with `BadOptions` unless `words` are flags that are harmless for this kind, each followed
/// by its value.
pub fn validate(kind: FileSystem, words: &[String]) -> Result<()> {
    let flags = match kind {
        FileSystem::Ext4 => EXT4,
        FileSystem::Xfs => XFS,
        FileSystem::Btrfs => BTRFS,
        FileSystem::Squashfs | FileSystem::Erofs | FileSystem::Iso9660 => &[],
    };
    let (mut words, mut seen) = (words.iter(), Vec::new());
    while let Some(word) = words.next() {
        let Flag(name, takes) =
            flags.iter().find(|flag| flag.0 == word).ok_or_else(|| unknown(kind, word, flags))?;
        if seen.contains(name) {
            // If -E is given twice, mkfs.ext4 silently drops the first.
            return Err(Failure::options(format!(
                "mkfs option {name} stands twice: join its values with commas"
            )));
        }
        seen.push(*name);
        if !matches!(takes, Takes::Nothing) {
            let value =
                words.next().ok_or_else(|| Failure::options(format!("mkfs option {name} lacks a value")))?;
            check(takes, value)
                .map_err(|why| Failure::options(format!("value {value:?} of mkfs option {name}: {why}")))?;
        }
    }
    Ok(())
}

fn unknown(kind: FileSystem, word: &str, flags: &[Flag]) -> Failure {
    let known: Vec<_> = flags.iter().map(|flag| flag.0).collect();
    let known = if known.is_empty() { "none are".to_owned() } else { format!("use {}", known.join(" ")) };
    Failure::options(format!("mkfs option {word:?} is not allowed for {}: {known}", kind.name()))
}

fn check(takes: &Takes, value: &str) -> Result<(), String> {
    let fits = match takes {
        Takes::Nothing => true,
        Takes::Number => is_number(value),
        Takes::Name => is_name(value),
        Takes::OneOf(words) => words.contains(&value),
        Takes::Features(except) => value.split(',').all(|word| {
            let feature = word.strip_prefix('^').unwrap_or(word);
            is_name(feature) && !except.contains(&feature)
        }),
        Takes::Keys(keys) => value.split(',').all(|word| {
            let (key, value) = word.split_once('=').unwrap_or((word, "1"));
            keys.contains(&key) && is_name(value)
        }),
    };
    if fits { Ok(()) } else { Err(expected(takes)) }
}

fn expected(takes: &Takes) -> String {
    match takes {
        Takes::Nothing => "takes none".to_owned(),
        Takes::Number => "give a number such as 4096 or 16k".to_owned(),
        Takes::Name => "only letters, digits and _.:+- are allowed".to_owned(),
        Takes::OneOf(words) => format!("give one of {}", words.join(", ")),
        Takes::Features(except) => format!("give names of features with commas, not {}", except.join(", ")),
        Takes::Keys(keys) => format!("give key=value with commas, with keys from {}", keys.join(", ")),
    }
}

fn is_number(value: &str) -> bool {
    value.starts_with(|first: char| first.is_ascii_digit())
        && value.len() <= 20
        && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.')
}

fn is_name(value: &str) -> bool {
    !value.is_empty()
        && !value.starts_with('-')
        && value.len() <= 255
        && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.:+-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::wording_of;

    fn validated(kind: FileSystem, line: &str) -> Result<()> {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        validate(kind, &words)
    }

    #[test]
    fn harmless_words_pass() {
        for (kind, line) in [
            (FileSystem::Ext4, ""),
            (FileSystem::Ext4, "-b 4096 -i 65536 -I 256 -m 0.5 -N 1000 -L data_1 -U random"),
            (
                FileSystem::Ext4,
                "-O ^has_journal,extent -E stride=16,stripe_width=64,nodiscard,root_owner=1:2",
            ),
            (FileSystem::Xfs, "-m crc=1,reflink=0 -i size=512 -n size=8192 -s size=4096 -L x -K -b size=4k"),
            (FileSystem::Btrfs, "-n 16k -s 4096 -L x -m dup -d single -O no-holes,^free-space-tree"),
        ] {
            assert_eq!(validated(kind, line), Ok(()), "{line}");
        }
    }

    #[test]
    fn no_path_and_no_device_gets_through() {
        for (kind, line) in [
            (FileSystem::Ext4, "-d /etc"),
            (FileSystem::Ext4, "-E stride=16 -E nodiscard"),
            (FileSystem::Ext4, "-E assume_storage_prezeroed=1"),
            (FileSystem::Ext4, "-d/etc"),
            (FileSystem::Ext4, "-J device=/dev/sda"),
            (FileSystem::Ext4, "-E offset=4096"),
            (FileSystem::Ext4, "-E stride=16,offset=0"),
            (FileSystem::Ext4, "-E stride=/etc"),
            (FileSystem::Ext4, "-O journal_dev"),
            (FileSystem::Ext4, "-O ^journal_dev"),
            (FileSystem::Ext4, "-n"),
            (FileSystem::Ext4, "-S"),
            (FileSystem::Ext4, "-l /etc/shadow"),
            (FileSystem::Ext4, "-z /etc/undo"),
            (FileSystem::Ext4, "-L -d"),
            (FileSystem::Ext4, "-b4096"),
            (FileSystem::Ext4, "-b"),
            (FileSystem::Ext4, "-b -d"),
            (FileSystem::Ext4, "/dev/sda"),
            (FileSystem::Ext4, "--"),
            (FileSystem::Xfs, "-p /etc/passwd"),
            (FileSystem::Xfs, "-c options=/etc/x"),
            (FileSystem::Xfs, "-l logdev=/dev/sda"),
            (FileSystem::Xfs, "-d name=x"),
            (FileSystem::Xfs, "-d file"),
            (FileSystem::Xfs, "-r rtdev=x"),
            (FileSystem::Xfs, "-m config=x"),
            (FileSystem::Xfs, "-N"),
            (FileSystem::Btrfs, "--rootdir /etc"),
            (FileSystem::Btrfs, "-r /etc"),
            (FileSystem::Btrfs, "-d raid1 /dev/sda"),
            (FileSystem::Btrfs, "-O list-all"),
            (FileSystem::Btrfs, "-L ../x"),
            (FileSystem::Squashfs, "-L x"),
        ] {
            assert!(validated(kind, line).is_err(), "{line}");
        }
    }

    #[test]
    fn messages_say_what_is_allowed() {
        assert_eq!(
            validated(FileSystem::Btrfs, "-x").unwrap_err().message(),
            wording_of("mkfs-option-denied", ["-x", "btrfs", "use -n -s -L -m -d -O"])
        );
        assert_eq!(
            validated(FileSystem::Btrfs, "-m raid1").unwrap_err().message(),
            "value \"raid1\" of mkfs option -m: give one of single, dup"
        );
    }
}

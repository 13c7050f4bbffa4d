//! The driver as a file: its names and modes, what kubelet's prober makes of them, and what it takes to start it.
//! Looked at where it lies; what an installer does on the way is not seen.

use crate::check::case::{Case, How, Level, Scope};
use crate::check::evidence::{Evidence, Played, Stopped};
use crate::check::subject::Subject;
use crate::protocol::{DriverName, VerbSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// How much of a file is read: the first line, or the headers.
const HEAD: u64 = 4096;

/// The type of the program header that names a loader (elf.h: `PT_INTERP`).
const LOADER: u32 = 3;

/// A case that calls nobody.
const fn case(
    id: &'static str,
    level: Level,
    items: &'static [u8],
    [claim, reason, mend]: [&'static str; 3],
    scene: fn(&mut Subject<'_>) -> Played,
) -> Case {
    let (scope, needs) = (Scope::All, VerbSet::of(&[]));
    Case { id, level, scope, needs, items, claim, reason, mend, how: How::Played(scene) }
}

pub(in crate::check) const CASES: &[Case] = &[
    case(
        "install::name",
        Level::Must,
        &[140],
        [
            "the directory is vendor~driver, a name Kubernetes takes, and the file in it is called driver",
            "kubelet executes the part after the ~, and refuses the name after init if it is no good (probe.go)",
            "name it like example.com~driver/driver: the vendor a DNS name in small letters, both without _ or ~",
        ],
        name,
    ),
    case(
        "install::alone",
        Level::Must,
        &[137],
        [
            "the directory is no link, and nothing else in it is visible",
            "kubelet skips links at its start, and calls init whenever a visible file changes (probe.go)",
            "keep logs, state and helpers elsewhere, and files of your own under a name with a dot in front",
        ],
        alone,
    ),
    case(
        "install::mode",
        Level::Must,
        &[137],
        [
            "the driver and its directory can be written to by their owner alone, and executed",
            "kubelet executes it as root, and whatever somebody else puts in its place (probe.go)",
            "chown root and chmod 0755 the file and the directory",
        ],
        mode,
    ),
    case(
        "install::self_contained",
        Level::Should,
        &[30, 136],
        [
            "the driver is a static program or a script for sh",
            "a loader, libc or interpreter that the node or kubelet's image lacks is an empty answer (driver-call.go)",
            "link it statically, or keep to what /bin/sh can do",
        ],
        self_contained,
    ),
];

/// The driver's directory as a file and as a name, and the driver's name.
fn names(subject: &Subject<'_>) -> Result<(OsString, OsString), Stopped> {
    let driver = &subject.given.driver;
    let directory = driver.parent().and_then(Path::file_name);
    if let (Some(directory), Some(file)) = (directory, driver.file_name())
        && (directory.as_bytes().contains(&b'~') || directory == file)
    {
        return Ok((directory.to_owned(), file.to_owned()));
    }
    Err(Stopped::Skipped("the driver does not lie in a directory vendor~driver".to_owned()))
}

fn fails(problem: impl Into<String>) -> Stopped {
    Evidence::new(problem).into()
}

fn name(subject: &mut Subject<'_>) -> Played {
    let (directory, file) = names(subject)?;
    let executed = DriverName::executable_in(&directory);
    if executed != file {
        let (directory, executed, file) = (directory.display(), executed.display(), file.display());
        return Err(fails(format!("in {directory} kubelet executes {executed}, and the driver is {file}")));
    }
    let name = DriverName::from_directory(&directory).map_err(|failure| fails(failure.message()))?;
    match name.vendor() {
        None if subject.facts.attaches => {
            let text = format!("{name} has no vendor, so the controller cannot find its attachments again");
            Err(fails(text))
        }
        Some(vendor) if vendor == "kubernetes.io" || vendor.ends_with(".kubernetes.io") => Err(fails(
            format!("{name} has the vendor of kubelet's own volumes, for one of which it may pass"),
        )),
        _ => Ok(()),
    }
}

fn alone(subject: &mut Subject<'_>) -> Played {
    let (directory, file) = names(subject)?;
    let Some(path) = subject.given.driver.parent() else { return Ok(()) };
    if fs::symlink_metadata(path)?.is_symlink() {
        return Err(fails(format!(
            "{} is a symbolic link, which kubelet skips at its start",
            directory.display()
        )));
    }
    let hidden = |name: &OsStr| name.as_bytes().starts_with(b".");
    for entry in fs::read_dir(path)? {
        let other = entry?.file_name();
        if other != file && !hidden(&other) {
            return Err(fails(format!("there is also {} in {}", other.display(), directory.display())));
        }
    }
    Ok(())
}

fn mode(subject: &mut Subject<'_>) -> Played {
    names(subject)?;
    let driver = &subject.given.driver;
    for path in driver.parent().into_iter().chain([driver.as_path()]) {
        let bits = fs::metadata(path)?.permissions().mode() & 0o7777;
        if bits & 0o022 != 0 {
            return Err(fails(format!("{} has mode {bits:04o}: others can change it", path.display())));
        }
        if bits & 0o111 == 0 {
            return Err(fails(format!("{} has mode {bits:04o}: nobody can execute it", path.display())));
        }
    }
    Ok(())
}

fn self_contained(subject: &mut Subject<'_>) -> Played {
    let mut head = Vec::new();
    File::open(&subject.given.driver)?.take(HEAD).read_to_end(&mut head)?;
    match needs(&head) {
        None => Ok(()),
        Some(needed) => Err(fails(format!("the driver needs {needed}"))),
    }
}

/// What a program cannot start without, besides the kernel and sh.
fn needs(head: &[u8]) -> Option<String> {
    if let Some(rest) = head.strip_prefix(b"#!") {
        let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let mut words = line.split_whitespace();
        let mut name = words.next()?;
        if name.ends_with("/env") {
            name = after_env(&mut words)?;
        }
        let is_sh = name.rsplit('/').next() == Some("sh");
        return (!is_sh).then(|| name.to_owned());
    }
    loader(head)
}

/// The program after the options and variables of env(1).
fn after_env<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<&'a str> {
    while let Some(word) = words.next() {
        match word {
            "-C" | "-u" => drop(words.next()),
            _ if word.starts_with('-') || word.contains('=') => {}
            _ => return Some(word),
        }
    }
    None
}

/// The loader of a program that is linked with shared libraries, of 64 bits and this machine's byte order.
fn loader(head: &[u8]) -> Option<String> {
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let short = |at: usize| Some(usize::from(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?)));
    let long = |at: usize| usize::try_from(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?)).ok();
    let (table, size, count) = (long(32)?, short(54)?, short(56)?);
    let header = (0..count)
        .map(|index| table + index * size)
        .find(|at| head.get(*at..at + 4).is_some_and(|kind| kind == LOADER.to_le_bytes()))?;
    let (start, length) = (long(header + 8)?, long(header + 32)?);
    let name = head.get(start..start.checked_add(length)?)?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    Some(String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_needs_is_told_from_its_beginning() {
        for (head, needed) in [
            ("#!/bin/sh\n", None),
            ("#! /bin/sh -e\n", None),
            ("#!/usr/bin/env sh\n", None),
            ("#!/usr/bin/env -S -i -C / PATH=/bin sh\n", None),
            ("#!/bin/bash\n", Some("/bin/bash")),
            ("#!/usr/bin/env python3\n", Some("python3")),
            ("\x7fELF\x02\x01 cut short", None),
            ("", None),
        ] {
            assert_eq!(needs(head.as_bytes()).as_deref(), needed, "{head:?}");
        }
    }

    #[test]
    fn the_loader_of_a_shared_program_is_found() {
        let mut head = Vec::new();
        let tests = std::env::current_exe().unwrap();
        File::open(tests).unwrap().take(HEAD).read_to_end(&mut head).unwrap();
        let found = needs(&head);
        if cfg!(target_feature = "crt-static") {
            assert_eq!(found, None);
        } else {
            assert!(found.unwrap().starts_with('/'));
        }
    }
}

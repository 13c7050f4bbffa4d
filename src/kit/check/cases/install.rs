//! The driver as a file: its names and modes, how kubelet's prober treats them, and what the driver
//! needs to start. The file is checked in its place; the steps of an installer are not seen.

pub(in crate::check) mod executable;

use crate::check::case::{How, Scene};
use crate::check::evidence::{Evidence, Played, Stopped, skip};
use crate::check::subject::Subject;
use flexvol_protocol::DriverName;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Limit for the part of a file that is read, in bytes: the first line, or the headers.
const HEAD: u64 = 4096;

/// Type of the program header that names a loader (elf.h: `PT_INTERP`).
const LOADER: u32 = 3;

pub(in crate::check) const SCENES: &[Scene] = &[
    ("install::name", How::Played(name)),
    ("install::alone", How::Played(alone)),
    ("install::mode", How::Played(mode)),
    ("install::self_contained", How::Played(self_contained)),
];

/// Returns the names of the driver's directory and of its file.
/// Skips the case if kubelet could not find it.
fn names(driver: &Path) -> Result<(&OsStr, &OsStr), Stopped> {
    let directory = driver.parent().and_then(Path::file_name);
    if let (Some(directory), Some(file)) = (directory, driver.file_name())
        && (directory.as_bytes().contains(&b'~') || directory == file)
    {
        return Ok((directory, file));
    }
    skip("the driver does not lie in a directory vendor~driver")
}

/// Builds the result of a case in which the driver was not called.
fn judged(wrong: Option<String>) -> Played {
    wrong.map_or(Ok(()), |problem| Err(Evidence::new(problem).into()))
}

fn name(subject: &mut Subject<'_>) -> Played {
    let (directory, file) = names(&subject.given.driver)?;
    judged(wrong_name(directory, file, subject.facts.attaches))
}

fn wrong_name(directory: &OsStr, file: &OsStr, attaches: bool) -> Option<String> {
    let executed = DriverName::executable_in(directory);
    if executed != file {
        let (directory, executed, file) = (directory.display(), executed.display(), file.display());
        return Some(format!("in {directory} kubelet executes {executed}, and the driver is {file}"));
    }
    let name = match DriverName::from_directory(directory) {
        Ok(name) => name,
        Err(failure) => return Some(failure.message()),
    };
    match name.vendor() {
        None if attaches => {
            Some(format!("{name} has no vendor, so the controller cannot find its attachments again"))
        }
        Some(vendor) if vendor == "kubernetes.io" || vendor.ends_with(".kubernetes.io") => {
            Some(format!("{name} has the vendor of kubelet's own volumes, for one of which it may pass"))
        }
        _ => None,
    }
}

fn alone(subject: &mut Subject<'_>) -> Played {
    let driver = &subject.given.driver;
    names(driver)?;
    judged(company(driver)?)
}

/// Describes a link in place of the directory, or another file in it that kubelet sees.
fn company(driver: &Path) -> io::Result<Option<String>> {
    let Some(directory) = driver.parent() else { return Ok(None) };
    if fs::symlink_metadata(directory)?.is_symlink() {
        let text = format!("{} is a symbolic link, which kubelet skips at its start", directory.display());
        return Ok(Some(text));
    }
    for entry in fs::read_dir(directory)? {
        let other = entry?.file_name();
        if Some(other.as_os_str()) != driver.file_name() && !other.as_bytes().starts_with(b".") {
            return Ok(Some(format!("there is also {} in {}", other.display(), directory.display())));
        }
    }
    Ok(None)
}

fn mode(subject: &mut Subject<'_>) -> Played {
    let driver = &subject.given.driver;
    names(driver)?;
    judged(wrong_mode(driver)?)
}

fn wrong_mode(driver: &Path) -> io::Result<Option<String>> {
    for path in driver.parent().into_iter().chain([driver]) {
        let bits = fs::metadata(path)?.permissions().mode() & 0o7777;
        if bits & 0o022 != 0 {
            return Ok(Some(format!("{} has mode {bits:04o}: others can change it", path.display())));
        }
        if bits & 0o111 == 0 {
            return Ok(Some(format!("{} has mode {bits:04o}: nobody can execute it", path.display())));
        }
    }
    Ok(None)
}

fn self_contained(subject: &mut Subject<'_>) -> Played {
    let mut head = Vec::new();
    File::open(&subject.given.driver)?.take(HEAD).read_to_end(&mut head)?;
    judged(needs(&head).map(|needed| format!("the driver needs {needed}")))
}

/// Returns what a program needs to start, besides the kernel and sh.
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

/// Returns the program after the options and variables of env(1).
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

/// Returns the loader of a program that is linked with shared libraries, of 64 bits and this
/// machine's byte order.
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
    use crate::wording::wording;

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
    fn the_names_are_those_of_kubernetes() {
        let wrong = |directory: &str, file: &str, attaches| {
            wrong_name(directory.as_ref(), file.as_ref(), attaches).unwrap_or_default()
        };
        assert_eq!(wrong("example.com~driver", "driver", true), "");
        assert_eq!(wrong("driver", "driver", false), "");
        assert!(wrong("driver", "driver", true).contains("no vendor"));
        assert!(wrong("example.com~driver", "driver.sh", false).contains("kubelet executes driver"));
        assert!(wrong("Example~driver", "driver", false).contains("lower-case"));
        assert!(wrong("a~b~c", "c", false).contains(wording("two-slashes")));
        assert!(wrong("kubernetes.io~nfs", "nfs", false).contains("kubelet's own"));
        assert!(names(Path::new("/src/driver.sh")).is_err());
        assert!(names(Path::new("/plugins/example.com~driver/driver")).is_ok());
    }

    #[test]
    fn what_others_see_or_change_is_told() {
        let plugins = tempfile::tempdir().unwrap();
        let directory = plugins.path().join("example.com~driver");
        let driver = directory.join("driver");
        let chmod = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        fs::create_dir(&directory).unwrap();
        for name in ["driver", ".driver.json"] {
            File::create(directory.join(name)).unwrap();
        }
        chmod(&directory, 0o755);
        chmod(&driver, 0o755);
        assert_eq!((company(&driver).unwrap(), wrong_mode(&driver).unwrap()), (None, None));
        for (path, mode, word) in
            [(&driver, 0o775, "others"), (&driver, 0o644, "nobody"), (&directory, 0o777, "others")]
        {
            let usual = fs::metadata(path).unwrap().permissions();
            chmod(path, mode);
            assert!(wrong_mode(&driver).unwrap().unwrap().contains(word), "{mode:o}");
            fs::set_permissions(path, usual).unwrap();
        }
        File::create(directory.join("driver.log")).unwrap();
        assert!(company(&driver).unwrap().unwrap().contains("driver.log"));
        fs::remove_file(directory.join("driver.log")).unwrap();
        let link = plugins.path().join("example.com~link");
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        assert!(company(&link.join("driver")).unwrap().unwrap().contains("symbolic link"));
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

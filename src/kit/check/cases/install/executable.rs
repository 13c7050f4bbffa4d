//! Check that the kernel can start the file, here and elsewhere.

use crate::check::case::{How, Scene};
use crate::check::evidence::{Evidence, Played};
use crate::check::subject::Subject;
use flexvol_linux::fs::fingerprint::{Fingerprint, Format, machine_name, machine_number};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Limit for a script's first line, in bytes: kernels before 5.1 read no more.
const LINE: usize = 127;

/// Directories of one person: other nodes do not have the files in them.
const PERSONAL: [&str; 5] = ["/home", "/root", "/tmp", "/var/tmp", "/run/user"];

pub(in crate::check) const SCENES: &[Scene] = &[("install::executable", How::Played(executable))];

fn executable(subject: &mut Subject<'_>) -> Played {
    let driver = &subject.given.driver;
    let mut head = [0; LINE + 1];
    let length = File::open(driver)?.read(&mut head)?;
    let problem = match Fingerprint::of(&head[..length])?.format {
        // A shell would run it as a script, but kubelet starts no shell.
        Format::Unknown => {
            Some("it is neither a program for Linux nor a script that begins with #!".to_owned())
        }
        Format::Elf(machine) => other_machine(machine),
        Format::Script(interpreter) => first_line(&head[..length], &interpreter),
    };
    problem.map_or(Ok(()), |problem| Err(Evidence::new(problem).into()))
}

fn other_machine(machine: u16) -> Option<String> {
    let own = machine_number(std::env::consts::ARCH)?;
    let (theirs, ours) = (machine_name(machine), machine_name(own));
    (machine != own).then(|| format!("it is a program for {theirs}, and this machine is {ours}"))
}

fn first_line(head: &[u8], interpreter: &str) -> Option<String> {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let path = Path::new(interpreter);
    match () {
        () if line.ends_with(b"\r") => {
            Some("its first line ends with a carriage return, for the kernel part of a name".to_owned())
        }
        () if line.len() > LINE => {
            Some(format!("its first line has more than {LINE} bytes, of which older kernels read no more"))
        }
        () if !path.is_absolute() => {
            Some(format!("its interpreter {interpreter} is looked for in kubelet's working directory"))
        }
        () if PERSONAL.iter().any(|directory| path.starts_with(directory)) => {
            Some(format!("its interpreter {interpreter} is where other nodes have nothing"))
        }
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_line_that_only_some_kernels_understand() {
        for (line, interpreter, problem) in [
            ("#!/bin/sh\necho", "/bin/sh", None),
            ("#!/bin/sh\r\necho", "/bin/sh", Some("carriage")),
            ("#!bin/sh\n", "bin/sh", Some("working directory")),
            ("#!/home/me/venv/bin/python\n", "/home/me/venv/bin/python", Some("other nodes")),
            (&format!("#!/bin/sh {}\n", "x".repeat(200)), "/bin/sh", Some("bytes")),
        ] {
            let found = first_line(line.as_bytes(), interpreter);
            assert_eq!(found.is_some(), problem.is_some(), "{line}");
            assert!(found.unwrap_or_default().contains(problem.unwrap_or_default()), "{line}");
        }
    }

    #[test]
    fn another_machine_is_told() {
        let own = machine_number(std::env::consts::ARCH).unwrap();
        assert_eq!(other_machine(own), None);
        assert!(other_machine(own + 1).unwrap().contains("this machine is"));
    }
}

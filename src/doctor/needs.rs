//! Programs and kernel support that the installed drivers need.

use super::{Finding, Request};
use crate::driver::Driver;
use crate::drivers;
use crate::packages;
use crate::plugin_dir::list::{Item, list};
use crate::plugin_dir::opened::Place;
use crate::protocol::DriverName;
use crate::settings::{SIDE_FILE, SIZE_LIMIT, Settings};
use crate::sys::helper::{distribution, lacks};
use crate::sys::{files, kernel_module};
use anyhow::Result;
use std::path::Path;

/// The kernel's file system that a driver of ours cannot do without.
const FILE_SYSTEMS: &[(&str, &str)] = &[
    ("nfs", "nfs"),
    ("cifs", "cifs"),
    ("overlay", "overlay"),
    ("sshfs", "fuse"),
    ("s3", "fuse"),
    ("rclone", "fuse"),
    ("webdav", "fuse"),
    ("glusterfs", "fuse"),
    ("lizardfs", "fuse"),
    ("blobfuse", "fuse"),
];

/// What scripts of others like to call.
const CALLED: &[&str] = &[
    "jq",
    "mount.cifs",
    "mount.nfs",
    "mount.glusterfs",
    "mount.ceph",
    "sshfs",
    "s3fs",
    "blobfuse",
    "blobfuse2",
    "gcsfuse",
    "ossfs",
    "rclone",
    "bindfs",
    "qemu-nbd",
    "python",
    "python3",
    "perl",
    "mfsmount",
    "mount.davfs",
    "rbd",
    "lvm",
    "git",
];

/// How much of a script is read, in bytes.
const SCRIPT: u64 = 1 << 16;

pub(super) fn look(request: &Request) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for directory in request.plugin_dirs()?.into_iter().filter(|path| path.exists()) {
        for item in list(&Place::new(&directory), None)? {
            findings.extend(of_item(&directory, &item));
        }
    }
    Ok(findings)
}

fn of_item(plugins: &Path, item: &Item) -> Vec<Finding> {
    let name = item.directory.to_string_lossy().into_owned();
    let home = plugins.join(&item.directory);
    let settings = settings(&home);
    // A symlink to flexvol is not looked into, but its side file says what it is.
    let driver = item.driver.as_ref().or(settings.driver.as_ref());
    let Some(driver) = driver.and_then(|driver| drivers::find(driver)) else {
        return of_script(&name, &home.join(DriverName::executable_in(&item.directory)));
    };
    let mut findings = programs(&name, driver, &settings);
    findings.extend(kernel(&name, driver.name()));
    findings
}

/// One that cannot be read is the business of another check.
fn settings(home: &Path) -> Settings {
    let text = files::read_small(&home.join(SIDE_FILE), SIZE_LIMIT).ok().flatten();
    text.and_then(|text| Settings::parse(&text).ok()).unwrap_or_default()
}

/// Without its only program a driver can do nothing; of several each is for some volumes.
fn programs(name: &str, driver: &dyn Driver, settings: &Settings) -> Vec<Finding> {
    let programs = driver.programs(settings);
    let lacking = programs.iter().filter_map(|program| Some((program, lacks(Path::new("/"), program)?)));
    lacking
        .map(|(program, mend)| {
            let evidence = format!("{name} runs {program}, which is not on this node");
            match programs.len() {
                1 => Finding::error("helper-missing", &evidence, &mend),
                _ => Finding::warning("helper-missing", &format!("{evidence}, for some volumes"), &mend),
            }
        })
        .collect()
}

fn kernel(name: &str, driver: &str) -> Option<Finding> {
    let (_, file_system) = FILE_SYSTEMS.iter().find(|(of, _)| *of == driver)?;
    if kernel_module::has_file_system(file_system) == Some(false) {
        let evidence =
            format!("{name} needs the file system {file_system}, which this kernel neither has nor can load");
        let mend = packages::mend_kernel(file_system, distribution(Path::new("/")));
        return Some(Finding::error("kernel-lacks", &evidence, &mend));
    }
    (*file_system == "fuse" && !Path::new("/dev/fuse").exists()).then(|| {
        let evidence = format!("{name} needs /dev/fuse, which is not here");
        Finding::error("kernel-lacks", &evidence, "modprobe fuse; in a container give it /dev/fuse")
    })
}

/// What a script of others calls by a name that only one program has.
fn of_script(name: &str, executable: &Path) -> Vec<Finding> {
    let Some(text) = files::beginning(executable, SCRIPT).filter(|bytes| bytes.starts_with(b"#!")) else {
        return Vec::new();
    };
    let text = String::from_utf8_lossy(&text).into_owned();
    let code: Vec<_> = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    let is_word_end = |c: char| !(c.is_alphanumeric() || "._-".contains(c));
    let calls = |program: &str| code.iter().any(|line| line.split(is_word_end).any(|word| word == program));
    let missing = CALLED
        .iter()
        .filter(|program| calls(program))
        .filter_map(|program| Some((program, lacks(Path::new("/"), program)?)));
    missing
        .map(|(program, mend)| {
            let evidence = format!(
                "the script {name} calls {program}, which is not on this node: its answer may be empty"
            );
            Finding::error("helper-missing", &evidence, &mend)
        })
        .collect()
}

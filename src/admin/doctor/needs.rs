//! Programs and kernel support that the installed drivers need.

use super::installed::{self, InstalledDriver};
use super::{DoctorRequest, Finding, Severity, mount_pods};
use anyhow::Result;
use flexvol_kubelet::scan;
use flexvol_linux::fs::files;
use flexvol_linux::proc::kernel_module;
use flexvol_model::driver::{Driver, Instead, Needs};
use flexvol_model::packages;
use flexvol_model::settings::Settings;
use flexvol_node::hints::{distribution, lacks};
use std::path::Path;

/// Programs that scripts of other projects often call.
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

/// Limit for the part of a script that is read, in bytes.
const SCRIPT: u64 = 1 << 16;

pub(super) fn look(request: &DoctorRequest) -> Result<Vec<Finding>> {
    Ok(installed::all(request)?.iter().flat_map(|installed| of_driver(request, installed)).collect())
}

fn of_driver(request: &DoctorRequest, installed: &InstalledDriver) -> Vec<Finding> {
    let (name, settings) = (installed.name(), &installed.settings);
    let Some(driver) = installed.driver() else {
        return of_script(&name, &scan::executable(&installed.plugins, &installed.item.directory));
    };
    let elsewhere = mount_pods::brings(request, &name, driver, settings);
    let mut findings = if elsewhere { Vec::new() } else { programs(&name, driver, settings) };
    findings.extend(kernel(&name, &driver.needs()));
    findings
}

/// Finds missing programs. A driver with only one program is useless without it; of several
/// programs, most are for some volumes.
fn programs(name: &str, driver: &dyn Driver, settings: &Settings) -> Vec<Finding> {
    let programs = driver.programs(settings);
    let lacking = programs.iter().filter_map(|program| Some((program, lacks(Path::new("/"), program)?)));
    lacking
        .filter_map(|(program, fix)| {
            let evidence = format!("{name} runs {program}, which is not on this node");
            match weight(&driver.needs(), program, programs.len(), &is_here)? {
                Severity::Error => Some(Finding::error("helper-missing", &evidence, &fix)),
                _ => Some(Finding::warning("helper-missing", &format!("{evidence}, for some volumes"), &fix)),
            }
        })
        .collect()
}

/// Returns the severity of one missing program of a driver; `None` if something else does the same.
fn weight(
    needs: &Needs,
    program: &str,
    of: usize,
    is_here: &dyn Fn(Instead) -> Option<bool>,
) -> Option<Severity> {
    let vital = of == 1 || needs.programs.contains(&program);
    let instead = match needs.instead {
        Some(other) => is_here(other),
        None if vital => Some(false),
        None => None,
    };
    match instead {
        // The file system serves every volume except those that ask for the program.
        Some(true) if matches!(needs.instead, Some(Instead::FileSystem(_))) => None,
        Some(false) => Some(Severity::Error),
        _ => Some(Severity::Warning),
    }
}

/// Reports whether the node has a replacement for a program; `None` if that is unknown.
fn is_here(what: Instead) -> Option<bool> {
    match what {
        Instead::FileSystem(name) => kernel_module::has_file_system(name),
        Instead::Program(name) => Some(lacks(Path::new("/"), name).is_none()),
    }
}

fn kernel(name: &str, needs: &Needs) -> Option<Finding> {
    if let Some(module) = needs.module
        && kernel_module::has(module) == Some(false)
    {
        return Some(kernel_lacks(name, &format!("kernel module {module}"), module));
    }
    let file_system = needs.file_system?;
    if kernel_module::has_file_system(file_system) == Some(false) {
        return Some(kernel_lacks(name, &format!("file system {file_system}"), file_system));
    }
    (file_system == "fuse" && !Path::new("/dev/fuse").exists()).then(|| {
        let evidence = format!("{name} needs /dev/fuse, which is not here");
        Finding::error("kernel-lacks", &evidence, "modprobe fuse; in a container give it /dev/fuse")
    })
}

fn kernel_lacks(name: &str, what: &str, module: &str) -> Finding {
    let evidence = format!("{name} needs the {what}, which this kernel neither has nor can load");
    let fix = packages::fix_kernel(module, distribution(Path::new("/")));
    Finding::error("kernel-lacks", &evidence, &fix)
}

/// Finds missing programs that a script calls. Each searched name belongs to only one program.
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
        .map(|(program, fix)| {
            let evidence = format!(
                "the script {name} calls {program}, which is not on this node: its answer may be empty"
            );
            Finding::error("helper-missing", &evidence, &fix)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_model::drivers;

    #[test]
    fn what_else_can_do_the_same_makes_it_less_bad() {
        let needs = |name: &str| drivers::find(name).unwrap().needs();
        let weight = |driver: &str, program: &str, of, here| weight(&needs(driver), program, of, &|_| here);
        for (driver, program, of, here, expected) in [
            ("git", "git", 1, None, Some(Severity::Error)),
            ("sshfs", "ssh", 2, None, Some(Severity::Error)),
            ("lvm", "lvm", 9, None, Some(Severity::Error)),
            ("lvm", "mkfs.xfs", 9, None, Some(Severity::Warning)),
            ("image", "mkfs.xfs", 8, None, Some(Severity::Warning)),
            ("cephfs", "ceph-fuse", 1, Some(true), None),
            ("cephfs", "ceph-fuse", 1, Some(false), Some(Severity::Error)),
            ("cephfs", "ceph-fuse", 1, None, Some(Severity::Warning)),
            ("s3", "s3fs", 1, Some(true), Some(Severity::Warning)),
            ("s3", "s3fs", 1, Some(false), Some(Severity::Error)),
        ] {
            assert_eq!(weight(driver, program, of, here), expected, "{driver} {program} {here:?}");
        }
    }

    #[test]
    fn what_is_vital_is_a_program_of_the_driver() {
        for driver in drivers::ALL {
            let settings = Settings::default();
            let (vital, programs) = (driver.needs().programs, driver.programs(&settings));
            assert!(vital.iter().all(|program| programs.contains(program)), "{}", driver.name());
        }
    }
}

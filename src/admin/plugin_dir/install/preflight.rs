//! Preflight checks, before anything is written: can the plugin directory take a driver that
//! kubelet can then execute? All problems are reported at once, each with its fix.

use super::source::Source;
use crate::plugin_dir::refusal::{Reason, Refusal};
use anyhow::{Context as _, Result};
use flexvol_kubelet::locate::{LocateRequest, locate};
use flexvol_kubelet::platform::{ObstacleKind, Platform};
use flexvol_linux::fs::directory::{self, Directory, FileSystem};
use flexvol_linux::fs::files;
use flexvol_linux::fs::fingerprint::{Fingerprint, Format, machine_name, machine_number};
use flexvol_protocol::quantity::Quantity;
use std::path::Path;

/// Space for all files except the executables, in bytes.
const EXTRA: u64 = 1 << 20;

/// Number of files and directories that an installation makes.
const FILES: u64 = 4;

/// Programs of another root whose ELF headers show its machine.
const TELLING: [&str; 4] = ["/bin/sh", "/usr/bin/sh", "/sbin/init", "/usr/lib/systemd/systemd"];

/// Results of the checks.
#[derive(Debug, Default)]
pub(super) struct Findings {
    errors: Vec<String>,
    /// Unusual facts that do not prevent the installation.
    pub(super) warnings: Vec<String>,
    /// True if the program is for the machine of the root, but not for this one: it cannot be run
    /// here.
    pub(super) other_machine: bool,
}

/// Destination of the driver, and what the driver needs there.
pub(super) struct Candidate<'a> {
    /// The opened plugin directory.
    pub(super) plugins: &'a Directory,
    /// The root of the node's file system, as this process sees it.
    pub(super) root: &'a Path,
    /// The executable to be installed.
    pub(super) source: &'a Source,
    /// Number of copies of the executable that are written.
    pub(super) copies: u64,
}

impl Findings {
    /// Runs the checks.
    pub(super) fn gather(candidate: &Candidate<'_>) -> Result<Self> {
        let mut findings = Self::default();
        let Candidate { plugins, root, source, copies } = candidate;
        let need = source.fingerprint().size.saturating_mul(*copies) + EXTRA;
        let place = plugins.path().display().to_string();
        let file_system = plugins.file_system()?;
        let fix = Fix::known(file_system, plugins.path(), root);
        findings.errors.extend(unfit(&place, file_system, plugins.is_writable(), need, &fix));
        findings.warnings.extend(odd(plugins.path(), &place)?);
        findings.program(source.fingerprint(), root);
        Ok(findings)
    }

    /// Fails if any problem prevents the installation.
    pub(super) fn into_result(self) -> Result<Self, Refusal> {
        if self.errors.is_empty() {
            return Ok(self);
        }
        Err(Refusal::new(Reason::Preflight, self.errors.join("; ")))
    }

    /// Checks whether the node can execute the program.
    fn program(&mut self, program: &Fingerprint, root: &Path) {
        let here = machine_number(own_machine());
        let there = if root == Path::new("/") { here } else { machine_of(root).or(here) };
        match &program.format {
            Format::Elf(machine) if there.is_some_and(|there| there != *machine) => {
                let node = there.map_or_else(String::new, machine_name);
                self.errors.push(format!(
                    "the executable is for {}, the node is {node}: take the build for {node}",
                    machine_name(*machine)
                ));
            }
            Format::Elf(machine) => self.other_machine = here.is_some_and(|here| here != *machine),
            Format::Script(interpreter) => self.errors.extend(missing(root, interpreter)),
            Format::Unknown => self.errors.push(
                "the executable is neither a Linux program nor a script that begins with #!: name another file".into(),
            ),
        }
    }
}

fn missing(root: &Path, interpreter: &str) -> Option<String> {
    let found = directory::resolve(root, interpreter.as_ref()).is_ok_and(|path| path.exists());
    (!found).then(|| {
        format!("the executable is a script for {interpreter}, which the node lacks: install it there first")
    })
}

/// Fixes for this platform.
struct Fix {
    read_only: String,
    no_exec: String,
}

impl Default for Fix {
    fn default() -> Self {
        let no_exec = format!("mount -o remount,exec its file system, or {ELSEWHERE}");
        Self { read_only: ELSEWHERE.into(), no_exec }
    }
}

impl Fix {
    /// Detects the platform only if there is something to fix.
    fn known(fs: FileSystem, place: &Path, root: &Path) -> Self {
        let needed = fs.read_only || fs.no_exec;
        let platform = if needed { Self::platform(place, root) } else { None };
        platform.map_or_else(Self::default, |platform| {
            let known = |kind| platform.obstacle.filter(|known| known.kind == kind).map(|known| known.fix);
            let read_only = known(ObstacleKind::ReadOnly).unwrap_or(platform.set).to_owned();
            let no_exec = known(ObstacleKind::NoExec).map(str::to_owned);
            Self { read_only, no_exec: no_exec.unwrap_or_else(|| Self::default().no_exec) }
        })
    }

    fn platform(place: &Path, root: &Path) -> Option<&'static Platform> {
        let root = (root != Path::new("/")).then(|| root.to_owned());
        locate(&LocateRequest { explicit: vec![place.to_owned()], root }).ok()?.platform
    }
}

/// Returns the problems of the file system.
fn unfit(place: &str, fs: FileSystem, writable: bool, need: u64, fix: &Fix) -> Vec<String> {
    let mut errors = Vec::new();
    if fs.read_only {
        errors.push(format!("{place} is on a read-only file system: {}", fix.read_only));
    } else if !writable {
        errors.push(format!("{place} cannot be written: run this as root"));
    }
    if fs.no_exec {
        let fix = &fix.no_exec;
        errors.push(format!("{place} is mounted noexec, so kubelet cannot execute drivers there: {fix}"));
    }
    if !fs.read_only && fs.free < need {
        let whole = Quantity(need.next_multiple_of(EXTRA));
        errors.push(format!(
            "{place} has {} free and {whole} are needed: make room on its file system",
            Quantity(fs.free),
        ));
    }
    if !fs.read_only && fs.free_files.is_some_and(|free| free < FILES) {
        errors.push(format!("{place} has no inodes left: remove files on its file system"));
    }
    errors
}

/// Fix that works everywhere.
const ELSEWHERE: &str = "give kubelet a writable directory with --volume-plugin-dir (and kube-controller-manager with --flex-volume-plugin-dir)";

/// Returns what is unusual, but works.
fn odd(path: &Path, place: &str) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    if path.is_symlink() {
        warnings.push(format!(
            "{place} is a symlink, which kubelet does not watch: it will see the change when it starts again, unless it is given the real path"
        ));
    }
    let opened = Directory::open(path)?.context("the plugin directory is gone: install again")?;
    if opened.look(".")?.is_some_and(|entry| entry.mode & 0o022 != 0) {
        warnings.push(format!(
            "{place} can be written by others than its owner, and kubelet runs as root what is in it: chmod go-w {place}"
        ));
    }
    Ok(warnings)
}

/// Fails if a missing plugin directory cannot be made, or could not take the driver then.
pub(super) fn creatable(path: &Path, root: &Path, source: &Source) -> Result<(), Refusal> {
    let above = path.ancestors().skip(1).find(|ancestor| ancestor.symlink_metadata().is_ok());
    let Some(above) = above else { return Ok(()) };
    let Ok(Some(opened)) = Directory::open(above) else { return Ok(()) };
    let Ok(fs) = opened.file_system() else { return Ok(()) };
    let place = format!("{} does not exist, and {}", path.display(), above.display());
    let need = source.fingerprint().size + EXTRA;
    let errors = unfit(&place, fs, opened.is_writable(), need, &Fix::known(fs, path, root));
    Findings { errors, ..Findings::default() }.into_result().map(drop)
}

/// Returns uname's name for the machine that this program was built for, and therefore runs on.
fn own_machine() -> &'static str {
    match std::env::consts::ARCH {
        "x86" => "i686",
        "arm" => "armv7l",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// Returns the machine that another root is for.
fn machine_of(root: &Path) -> Option<u16> {
    TELLING.iter().find_map(|path| {
        let path = directory::resolve(root, path.as_ref()).ok()?;
        // A fifo would block this process, and a device may do anything.
        let file = path.is_file().then(|| files::open(&path).ok()).flatten()?;
        match Fingerprint::of(file).ok()?.format {
            Format::Elf(machine) => Some(machine),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::{wording, wording_of};

    const FIT: FileSystem = FileSystem { read_only: false, no_exec: false, free: 10 << 20, free_files: None };

    #[test]
    fn everything_that_hinders_is_told_at_once() {
        let unfit = |fs, writable, need| unfit("/p", fs, writable, need, &Fix::default());
        assert!(unfit(FIT, true, 1).is_empty());
        let all = unfit(FileSystem { no_exec: true, free_files: Some(0), ..FIT }, false, 1 << 30);
        assert_eq!(all.len(), 4, "{all:?}");
        assert!(all[0].contains(wording("run-as-root")) && all[1].contains("remount,exec"));
        assert!(all[2].contains("10Mi free and 1Gi are needed"), "{}", all[2]);
        let read_only = unfit(FileSystem { read_only: true, free: 0, ..FIT }, false, 1);
        assert!(read_only.len() == 1 && read_only[0].contains("--volume-plugin-dir"));
    }

    #[test]
    fn the_node_s_machine_decides() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("bin")).unwrap();
        let program = |machine: u16| {
            let mut elf = b"\x7fELF\x02\x01".to_vec();
            elf.resize(18, 0);
            elf.extend_from_slice(&machine.to_le_bytes());
            elf
        };
        let write = |name: &str, bytes: &[u8]| {
            std::io::Write::write_all(&mut std::fs::File::create(root.path().join(name)).unwrap(), bytes)
                .unwrap();
        };
        let findings = |bytes: &[u8]| {
            let mut findings = Findings::default();
            findings.program(&Fingerprint::of(bytes).unwrap(), root.path());
            (findings.errors.join(" "), findings.other_machine)
        };
        write("bin/dash", &program(22));
        std::os::unix::fs::symlink("/bin/dash", root.path().join("bin/sh")).unwrap();
        assert_eq!(findings(&program(22)), (String::new(), machine_number(own_machine()) != Some(22)));
        assert!(findings(&program(243)).0.contains(wording_of("foreign-machine", ["…", "…", "s390x"])));
        assert!(findings(b"#!/bin/bash\n").0.contains(wording("interpreter-lacking")));
        assert_eq!(findings(b"#!/bin/sh\n"), (String::new(), false));
        assert!(findings(b"text").0.contains(wording("neither-program-nor-script")));
    }
}

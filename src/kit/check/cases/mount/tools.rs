//! Programs of the node that fail on request.

use crate::check::evidence::Stopped;
use crate::check::staging::make_directory;
use crate::check::subject::Subject;
use crate::sandbox::Inside;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Directories in which programs are looked for.
const DIRECTORIES: &[&str] = &["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Programs that change something on the node; mount.nfs and the like are added.
const PROGRAMS: &[&str] = &[
    "mount",
    "losetup",
    "chmod",
    "chown",
    "chgrp",
    "fusermount",
    "fusermount3",
    "dmsetup",
    "cryptsetup",
    "truncate",
    "fallocate",
    "modprobe",
    "systemd-run",
];

/// Directory of the stand-ins.
const WORKSHOP: &str = "/run/check-tools";

/// Stand-ins for programs, one of which will fail, until dropped.
pub(super) struct Tools<'a> {
    inside: &'a Inside,
    covered: Vec<PathBuf>,
    made: Vec<PathBuf>,
}

impl<'a> Tools<'a> {
    /// Makes the `nth` program that is started from now on fail as mount(8) does: it prints an
    /// error, and its exit status is 32.
    pub(super) fn failing(subject: &Subject<'a>, nth: usize) -> Result<Self, Stopped> {
        let workshop = Path::new(WORKSHOP);
        make_directory(workshop)?;
        let mut tools = Self { inside: subject.inside, covered: Vec::new(), made: Vec::new() };
        let count = tools.make(workshop.join("count"), "0\n")?;
        let stand_in = tools.make(workshop.join("stand-in"), &script(&count, nth))?;
        for (name, path) in programs() {
            tools.replace(&name, &path, &stand_in)?;
        }
        Ok(tools)
    }

    fn make(&mut self, path: PathBuf, text: &str) -> Result<PathBuf, Stopped> {
        let mut file = File::create(&path)?;
        file.write_all(text.as_bytes())?;
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
        self.made.push(path.clone());
        Ok(path)
    }

    fn replace(&mut self, name: &str, path: &Path, with: &Path) -> Result<(), Stopped> {
        let real = self.make(Path::new(WORKSHOP).join(format!("{name}.real")), "")?;
        self.cover(&real, path)?;
        self.cover(path, with)
    }

    fn cover(&mut self, path: &Path, with: &Path) -> Result<(), Stopped> {
        self.inside.bind(with, path)?;
        self.covered.push(path.to_owned());
        Ok(())
    }

    /// Returns how many programs were started since then.
    pub(super) fn started() -> Result<usize, Stopped> {
        let text = fs::read_to_string(Path::new(WORKSHOP).join("count"))?;
        Ok(text.trim().parse().unwrap_or_default())
    }
}

impl Drop for Tools<'_> {
    fn drop(&mut self) {
        // Anything that cannot be removed disappears with the sandbox.
        for path in self.covered.iter().rev() {
            drop(self.inside.take_off(path));
        }
        for path in &self.made {
            drop(fs::remove_file(path));
        }
        drop(fs::remove_dir(WORKSHOP));
    }
}

fn script(count: &Path, nth: usize) -> String {
    let count = count.display();
    format!(
        "#!/bin/sh\nname=${{0##*/}}\nread -r n <{count}\nn=$((n + 1))\necho $n >{count}\n\
         [ $n != {nth} ] || {{ echo \"$name: broken on purpose\" >&2; exit 32; }}\nexec {WORKSHOP}/$name.real \"$@\"\n"
    )
}

/// Finds the programs by name. A link to a larger program is left out: it cannot be replaced alone.
fn programs() -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for directory in DIRECTORIES.iter().filter_map(|path| fs::canonicalize(path).ok()) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_meant = PROGRAMS.contains(&&*name) || name.starts_with("mount.");
            if is_meant && entry.file_type().is_ok_and(|kind| kind.is_file()) {
                found.entry(name).or_insert_with(|| entry.path());
            }
        }
    }
    found
}

//! Content of a plugin directory under a driver's name.
//!
//! *Ours* is a driver whose side file has a hash, because only installers write one, and a driver
//! that a [receipt](super::receipt) recognizes. Anything else has another owner, and is overwritten
//! only if the admin asks for it.

use anyhow::{Context as _, Result, ensure};
use flexvol_linux::fs::directory::{self, Directory, Kind};
use flexvol_linux::fs::fingerprint::Fingerprint;
use flexvol_model::settings::{SIDE_FILE, SIZE_LIMIT, Settings};
use flexvol_model::side_file;
use flexvol_protocol::DriverName;
use flexvol_protocol::failure::Failure;
use std::ffi::OsStr;
use std::io::Read as _;
use std::path::PathBuf;

/// Prefix of all files that an installer makes, and renames or removes before it ends. Such a file,
/// while no process holds the lock, was left by a killed installer.
pub const LEFTOVER: &str = ".flexvol-";

/// Content found under a driver's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Absent,
    /// A driver that flexvol installed.
    Ours(Ours),
    /// A foreign driver.
    Foreign(Foreign),
    /// Something that cannot be a driver.
    Broken(Broken),
}

/// A driver that flexvol installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ours {
    /// Settings of its side file, or those that it was installed with.
    pub settings: Settings,
    /// State of the side file.
    pub side_file: SideFile,
    /// The executable; `None` if it was removed.
    pub program: Option<Program>,
    /// Other files in the directory.
    pub others: Vec<String>,
}

/// State of a side file that an installer wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SideFile {
    /// It exists, with these permissions, edited or not.
    Whole {
        /// The permissions.
        mode: u32,
    },
    /// Another one without the hash has replaced it.
    Unstamped,
    /// It is gone.
    Missing,
    /// It cannot be read, for this reason.
    Garbled(String),
}

/// A driver that flexvol did not install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// The file that kubelet would execute.
    pub executable: Executable,
    /// A side file written by hand: its settings, or its error.
    pub side_file: Option<Result<Settings, String>>,
    /// All other files in the directory.
    pub others: Vec<String>,
}

/// Directory entry with the executable's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Executable {
    /// Nothing.
    Missing,
    /// A regular file.
    File(Program),
    /// A symlink with this target; kubelet follows it.
    Link(PathBuf),
    /// Anything that cannot be executed.
    Other,
}

/// An executable that is a regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
    /// Its permissions.
    pub mode: u32,
    /// Its owner.
    pub owner: u32,
}

/// Directory entry that cannot be a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// An empty directory: kubelet fails because the executable is missing.
    Empty,
    /// A symlink to a directory: kubelet skips it at its start.
    Link(PathBuf),
    /// A file, or anything else that is not a directory.
    NotADirectory,
}

/// Permissions of every executable that we install.
pub const PROGRAM_MODE: u32 = 0o755;

/// Limit for an executable that is read, in bytes: a file with holes can have any size.
const PROGRAM_LIMIT: u64 = 1 << 30;

impl Ours {
    /// Reports whether the side file exists, and the executable has the content and the permissions
    /// that it was installed with.
    pub fn is_intact(&self) -> bool {
        let is_executable = self.program.as_ref().is_some_and(|program| program.mode == PROGRAM_MODE);
        is_executable && self.has_whole_program() && matches!(self.side_file, SideFile::Whole { .. })
    }

    /// Reports whether the executable is, byte for byte, the installed one.
    pub fn has_whole_program(&self) -> bool {
        let hash = self.program.as_ref().map(|program| &program.fingerprint.hash);
        hash.is_some() && hash == self.settings.hash.as_ref()
    }
}

impl SideFile {
    /// Reports whether the content of the side file is lost.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Missing | Self::Garbled(_))
    }
}

impl Found {
    /// Looks at a driver's directory in an opened plugin directory.
    pub fn look(plugins: &Directory, name: &DriverName) -> Result<Self> {
        Self::at(plugins, &name.directory())
    }

    /// Looks at a directory of any name, even one that Kubernetes rejects: kubelet executes the
    /// file in it with the name after the last `~`.
    pub fn at(plugins: &Directory, directory: &str) -> Result<Self> {
        let executable = DriverName::executable_in(directory.as_ref()).to_str().unwrap_or_default();
        let Some(entry) = plugins.look(directory)? else { return Ok(Self::Absent) };
        match entry.kind {
            Kind::Directory => {}
            Kind::Link => return Ok(Self::Broken(Broken::Link(plugins.link(directory)?))),
            _ => return Ok(Self::Broken(Broken::NotADirectory)),
        }
        match plugins.child(directory)? {
            Some(opened) => Self::inside(&opened, executable),
            None => Ok(Self::Absent),
        }
    }

    /// Looks into an opened directory of a driver, wherever it is.
    pub(super) fn inside(home: &Directory, executable: &str) -> Result<Self> {
        let names: Vec<String> =
            home.names()?.iter().map(|name| name.to_string_lossy().into_owned()).collect();
        let is_other =
            |name: &&String| *name != executable && *name != SIDE_FILE && !name.starts_with(LEFTOVER);
        let others: Vec<_> = names.iter().filter(is_other).cloned().collect();
        let executable = executable_of(home, executable.as_ref())?;
        Ok(match (side_file(home)?, executable) {
            (None, Executable::Missing) if others.is_empty() => Self::Broken(Broken::Empty),
            (Some((Ok(settings), mode)), Executable::File(program)) if settings.hash.is_some() => {
                let side_file = SideFile::Whole { mode };
                Self::Ours(Ours { settings, side_file, program: Some(program), others })
            }
            (Some((Ok(settings), mode)), Executable::Missing) if settings.hash.is_some() => {
                let side_file = SideFile::Whole { mode };
                Self::Ours(Ours { settings, side_file, program: None, others })
            }
            (side_file, executable) => {
                let side_file = side_file.map(|(read, _)| read);
                Self::Foreign(Foreign { executable, side_file, others })
            }
        })
    }

    /// Reports whether there is nothing under the driver's name, or only an empty directory.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Absent | Self::Broken(Broken::Empty))
    }

    /// Returns the settings, if there are any.
    pub fn settings(&self) -> Option<&Settings> {
        match self {
            Self::Ours(ours) => Some(&ours.settings),
            Self::Foreign(Foreign { side_file: Some(Ok(settings)), .. }) => Some(settings),
            _ => None,
        }
    }

    /// Returns the executable, if it is a regular file.
    pub fn program(&self) -> Option<&Program> {
        match self {
            Self::Ours(ours) => ours.program.as_ref(),
            Self::Foreign(Foreign { executable: Executable::File(program), .. }) => Some(program),
            _ => None,
        }
    }
}

fn executable_of(home: &Directory, name: &OsStr) -> Result<Executable> {
    let Some(entry) = home.look(name)? else { return Ok(Executable::Missing) };
    Ok(match entry.kind {
        Kind::Link => Executable::Link(home.link(name)?),
        Kind::File => {
            let Some(file) = home.file(name)? else { return Ok(Executable::Missing) };
            let path = home.path_of(name);
            let what = || format!("read {}", path.display());
            let is_large = file.metadata().with_context(what)?.len() > PROGRAM_LIMIT;
            ensure!(!is_large, "{} is larger than 1 GiB, and no driver: move it away", path.display());
            let fingerprint = Fingerprint::of(file.take(PROGRAM_LIMIT)).with_context(what)?;
            Executable::File(Program { fingerprint, mode: entry.mode, owner: entry.owner })
        }
        _ => Executable::Other,
    })
}

fn parsed(content: Vec<u8>) -> Result<Settings, String> {
    let text = String::from_utf8(content).map_err(|error| error.to_string())?;
    side_file::parse(&text).map_err(|failure: Failure| failure.message())
}

/// Reports whether there is a side file that an installer wrote.
pub(super) fn is_stamped(home: &Directory) -> Result<bool> {
    Ok(matches!(side_file(home)?, Some((Ok(settings), _)) if settings.hash.is_some()))
}

/// Returns the side file with its permissions, if there is one; if it is invalid, with its error.
fn side_file(home: &Directory) -> Result<Option<(Result<Settings, String>, u32)>> {
    let Some(entry) = home.look(SIDE_FILE)? else { return Ok(None) };
    let parsed = match home.read(SIDE_FILE, SIZE_LIMIT) {
        // The file is not the problem: the caller lacks rights, or the disk fails.
        Err(error) if !directory::is_about_content(&error) => return Err(error),
        Err(error) => Err(format!("{error:#}")),
        Ok(content) => parsed(content.unwrap_or_default()),
    };
    Ok(Some((parsed, entry.mode)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    struct Home(tempfile::TempDir);

    impl Home {
        fn new(files: &[(&str, &str)]) -> Self {
            let home = Self(tempfile::tempdir().unwrap());
            for (name, text) in files {
                let path = home.0.path().join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::File::create(&path).and_then(|mut file| io(&mut file, text)).unwrap();
            }
            home
        }

        fn found(&self) -> Found {
            let plugins = Directory::open(self.0.path()).unwrap().unwrap();
            Found::look(&plugins, &DriverName::parse("v/d").unwrap()).unwrap()
        }
    }

    fn io(file: &mut fs::File, text: &str) -> std::io::Result<()> {
        std::io::Write::write_all(file, text.as_bytes())
    }

    #[test]
    fn nothing_and_nothing_useful() {
        assert_eq!(Home::new(&[]).found(), Found::Absent);
        let file = Home::new(&[("v~d", "")]);
        assert_eq!(file.found(), Found::Broken(Broken::NotADirectory));
        let home = Home::new(&[]);
        fs::create_dir(home.0.path().join("v~d")).unwrap();
        assert_eq!(home.found(), Found::Broken(Broken::Empty));
        fs::File::create(home.0.path().join("v~d/.flexvol-1-program")).unwrap();
        assert_eq!(home.found(), Found::Broken(Broken::Empty));
        let home = Home::new(&[("x/d", "")]);
        symlink("x", home.0.path().join("v~d")).unwrap();
        assert_eq!(home.found(), Found::Broken(Broken::Link("x".into())));
    }

    #[test]
    fn a_hash_in_the_side_file_makes_it_ours() {
        let hash = Fingerprint::of(&b"program"[..]).unwrap().hash;
        let side = format!(r#"{{"hash":"{hash}"}}"#);
        let home = Home::new(&[("v~d/d", "program"), ("v~d/.flexvol.json", &side), ("v~d/jq", "")]);
        let Found::Ours(ours) = home.found() else { panic!("{:?}", home.found()) };
        assert_eq!((ours.others.as_slice(), ours.is_intact()), (&["jq".to_owned()][..], false));
        let set = |mode| {
            let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
            fs::set_permissions(home.0.path().join("v~d/d"), permissions).unwrap();
        };
        set(0o755);
        let Found::Ours(ours) = home.found() else { panic!("{:?}", home.found()) };
        assert!(ours.is_intact());
        let altered = Home::new(&[("v~d/d", "other"), ("v~d/.flexvol.json", &side)]);
        assert!(matches!(altered.found(), Found::Ours(ours) if !ours.is_intact()));
        let gone = Home::new(&[("v~d/.flexvol.json", &side)]);
        assert!(matches!(gone.found(), Found::Ours(Ours { program: None, .. })));
    }

    #[test]
    fn all_else_is_somebody_s() {
        for files in [
            &[("v~d/d", "#!/bin/sh")][..],
            &[("v~d/jq", "")],
            &[("v~d/d/inner", "")],
            &[("v~d/d", ""), ("v~d/.flexvol.json", r#"{"driver":"tmpfs"}"#)],
            &[("v~d/d", ""), ("v~d/.flexvol.json", r#"{"hash":1}"#)],
        ] {
            let found = Home::new(files).found();
            assert!(matches!(found, Found::Foreign(_)), "{files:?}: {found:?}");
        }
        let home = Home::new(&[("v~d/x", "")]);
        symlink("/bin/true", home.0.path().join("v~d/d")).unwrap();
        let Found::Foreign(foreign) = home.found() else { panic!() };
        assert_eq!(foreign.executable, Executable::Link("/bin/true".into()));
    }
}

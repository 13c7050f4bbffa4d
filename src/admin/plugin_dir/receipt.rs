//! Receipts of installed drivers, outside the plugin directory: they distinguish damage from a
//! foreign driver, and a lost driver comes back with its settings.
//!
//! ```text
//! <state>/installed/vendor~driver@<hash of the plugin directory's path>
//! ```
//!
//! A receipt is JSON, with mode 0600, in a directory with mode 0700. It is written before the
//! rename that makes its program visible, and also names the program before that one: if the
//! installer is killed in between, both are known. `uninstall` and `--roll-back` remove it. A
//! receipt that cannot be read, or that others could have written, does not count.
//!
//! A driver whose side file has a hash is ours without a receipt, as in releases before receipts.
//! For anything else a receipt decides, by the executable:
//!
//! | executable | side file | ours |
//! |---|---|---|
//! | missing, also without a directory | any | yes |
//! | as installed, byte for byte | any | yes |
//! | empty, or a truncated copy of the installed one | any | yes |
//! | same inode and birth time; first bytes equal, or the kernel cannot run it | any | yes |
//! | as in the two rows above, while open for writing | any | no: check again once it is closed |
//! | anything else: a symlink, a directory, another program | any | no: foreign |
//!
//! `install` and `deploy` restore a driver that is ours, `uninstall` removes it, and `doctor` and
//! `list` call it *altered* if any part of it is not as installed. `install` and `deploy` refuse a
//! foreign driver unless `--take-over` is given; `uninstall` always refuses it. ARCHITECTURE.md has
//! the whole table, and tests/node/install/heal.rs tests it.
//!
//! *Any* side file means: it is missing, is not JSON, or has no hash; in the last case its settings
//! are the admin's, and are kept. A side file that is JSON, but wrong, is an admin's mistake: it is
//! reported, and not touched. A side file that is a symlink or no file, or that is open for
//! writing, is not touched either.

use super::found::{Executable, Foreign, Found, Ours, Program, SideFile};
use super::install::source::Source;
use super::opened::PluginDirPath;
use anyhow::Result;
use flexvol_linux::fs::directory::{self, Birth, Directory, Entry, Kind};
use flexvol_linux::fs::files;
use flexvol_linux::fs::fingerprint::{Fingerprint, Format, HEAD, short};
use flexvol_linux::proc::process;
use flexvol_model::paths;
use flexvol_model::settings::{SIDE_FILE, SIZE_LIMIT, Settings};
use flexvol_model::side_file;
use flexvol_protocol::DriverName;
use flexvol_protocol::text::hex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Limit for a receipt that is read, in bytes: it contains the side file.
const LIMIT: usize = SIZE_LIMIT + (1 << 16);

/// Limit for a directory's name within a receipt's name, in bytes: the receipt's name is longer.
const LONG: usize = 200;

/// Record of what was installed under one name in one plugin directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Receipt {
    /// The side file.
    pub settings: Settings,
    /// The executable, and after an upgrade also the previous one.
    pub programs: Vec<Known>,
}

/// An executable that was installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Known {
    hash: String,
    size: u64,
    /// Its first bytes, in hexadecimal.
    head: String,
    /// Identity of the file; `None` on a file system that does not record birth times, as inode
    /// numbers are used again.
    birth: Option<Birth>,
}

impl Known {
    /// Describes an executable in an opened directory.
    pub fn of(fingerprint: &Fingerprint, home: &Directory, name: &str) -> Self {
        let birth = home.birth(name).ok().flatten();
        let (hash, head) = (fingerprint.hash.clone(), hex(&fingerprint.head));
        Self { hash, size: fingerprint.size, head, birth }
    }

    fn is_whole(&self, program: &Fingerprint) -> bool {
        self.hash == program.hash
    }

    /// Reports whether `program` is a remainder of this executable.
    fn is_left(&self, program: &Fingerprint, birth: Option<Birth>, source: Option<&Source>) -> Result<bool> {
        let begins = self.head.starts_with(&hex(&program.head));
        let is_same_file = birth.is_some() && birth == self.birth;
        if program.size == 0 || is_same_file && (begins || program.format == Format::Unknown) {
            return Ok(true);
        }
        if !begins || program.size >= self.size {
            return Ok(false);
        }
        let whole = source.filter(|source| source.fingerprint().hash == self.hash);
        Ok(program.size <= HEAD as u64
            || whole.map_or(anyhow::Ok(false), |whole| whole.begins_with(program))?)
    }
}

/// Location of one driver's receipt.
#[derive(Clone, Debug)]
pub struct Receipts {
    state: PathBuf,
    name: String,
    directory: String,
}

impl Receipts {
    /// Returns the location for a driver's directory in a plugin directory; `state` is as on the
    /// node.
    pub fn of(place: &PluginDirPath, state: &Path, directory: &str) -> Result<Self> {
        let called = if place.root.is_some() { place.directory.clone() } else { place.path()? };
        let called: PathBuf = called.components().collect();
        let hash = |bytes: &[u8]| anyhow::Ok(Fingerprint::of(bytes)?.hash);
        let key = hash(called.as_os_str().as_encoded_bytes())?;
        let long = directory.len() > LONG;
        let name = if long { format!("~{}", hash(directory.as_bytes())?) } else { directory.to_owned() };
        let name = format!("{name}@{}", short(&key));
        Ok(Self { state: place.below(state)?, name, directory: directory.to_owned() })
    }

    /// Reads the receipt. A receipt that others could have written does not count.
    pub fn read(&self) -> Result<Option<Receipt>> {
        match self.content() {
            Err(error) if directory::is_about_content(&error) || directory::is_forbidden(&error) => Ok(None),
            Err(_) if !self.state.is_dir() => Ok(None),
            content => Ok(content?.and_then(|content| parsed(&content))),
        }
    }

    fn content(&self) -> Result<Option<Vec<u8>>> {
        let Some(state) = Directory::open(&self.state)? else { return Ok(None) };
        let own = process::own_user();
        let is_private = |at: &Directory, name: &str, kind: Kind| {
            let is_closed = |entry: &Entry| entry.mode & 0o777 == entry.mode & 0o700;
            let own = |entry: Entry| entry.kind == kind && entry.owner == own && is_closed(&entry);
            anyhow::Ok(at.look(name)?.is_some_and(own))
        };
        if !is_private(&state, paths::RECEIPTS, Kind::Directory)? {
            return Ok(None);
        }
        let Some(all) = state.child(paths::RECEIPTS)? else { return Ok(None) };
        if is_private(&all, &self.name, Kind::File)? { all.read(&self.name, LIMIT) } else { Ok(None) }
    }

    /// Applies the receipt to what was found of the driver; returns the result and the receipt.
    pub fn known_again(&self, found: Found, plugins: &Directory) -> Result<(Found, Option<Receipt>)> {
        let Some(receipt) = self.read()? else { return Ok((found, None)) };
        let source = matches!(found, Found::Foreign(_)).then(|| Source::own().ok()).flatten();
        let found = receipt.recognize(found, plugins, &self.directory, source.as_ref())?;
        Ok((found, Some(receipt)))
    }

    /// Returns the directories of drivers that were installed in a plugin directory, also of those
    /// that are no longer there.
    pub fn all(place: &PluginDirPath, state: &Path) -> Result<Vec<String>> {
        let this = Self::of(place, state, "")?;
        let Some(all) = Directory::open(&this.state.join(paths::RECEIPTS))? else { return Ok(Vec::new()) };
        let names = all.names()?.into_iter().filter_map(|name| name.into_string().ok());
        // A draft of a killed writer is no receipt, and of a long name only the hash is stored.
        let names = names.filter(|name| !name.starts_with(['.', '~']));
        Ok(names.filter_map(|name| Some(name.strip_suffix(&this.name)?.to_owned())).collect())
    }

    /// Writes the receipt, completely or not at all.
    pub fn write(&self, receipt: &Receipt) -> Result<()> {
        directory::make_all(&self.state)?;
        files::make_private(&self.state.join(paths::RECEIPTS))?;
        files::replace(&self.path(), &serde_json::to_vec(receipt)?)
    }

    /// Saves an unreadable side file that is to be replaced; returns the path of the copy.
    pub fn set_aside(&self, side_file: &[u8]) -> Result<PathBuf> {
        files::make_private(&self.state.join(paths::RECEIPTS))?;
        files::replace(&self.aside(), side_file)?;
        Ok(self.aside())
    }

    /// Removes the receipt and the saved side file. A missing file is not an error.
    pub fn forget(&self) -> std::io::Result<()> {
        files::forget(&self.aside()).and(files::forget(&self.path()))
    }

    fn aside(&self) -> PathBuf {
        self.path().with_file_name(format!("{}.unreadable", self.name))
    }

    fn path(&self) -> PathBuf {
        self.state.join(paths::RECEIPTS).join(&self.name)
    }
}

fn parsed(content: &[u8]) -> Option<Receipt> {
    let receipt: Receipt = serde_json::from_slice(content).ok()?;
    side_file::check(&receipt.settings).is_ok().then_some(receipt)
}

impl Receipt {
    /// Returns what was found; a foreign driver becomes ours if this receipt knows it. `source` is
    /// an executable that may have been installed.
    pub fn recognize(
        &self,
        found: Found,
        plugins: &Directory,
        directory: &str,
        source: Option<&Source>,
    ) -> Result<Found> {
        let Found::Foreign(foreign) = &found else { return Ok(found) };
        let Some(home) = &plugins.child(directory)? else { return Ok(found) };
        let executable = DriverName::executable_in(directory.as_ref()).to_str().unwrap_or_default();
        let program = match &foreign.executable {
            Executable::Missing => None,
            Executable::File(program) if self.claims(program, home, executable, source)? => Some(program),
            _ => return Ok(found),
        };
        let Some((side_file, settings)) = self.side_file(foreign, home)? else { return Ok(found) };
        let (program, others) = (program.cloned(), foreign.others.clone());
        Ok(Found::Ours(Ours { settings, side_file, program, others }))
    }

    /// Reports whether an executable is an installed one, or the remainder of one.
    pub fn claims(
        &self,
        program: &Program,
        home: &Directory,
        executable: &str,
        source: Option<&Source>,
    ) -> Result<bool> {
        let program = &program.fingerprint;
        if self.programs.iter().any(|known| known.is_whole(program)) {
            return Ok(true);
        }
        let birth = home.birth(executable)?;
        for known in &self.programs {
            if known.is_left(program, birth, source)? {
                return Ok(!home.is_being_written(executable)?);
            }
        }
        Ok(false)
    }

    /// Returns state and settings for a side file without a hash; `None` if it must not be touched.
    fn side_file(&self, foreign: &Foreign, home: &Directory) -> Result<Option<(SideFile, Settings)>> {
        let Settings { version, hash, .. } = self.settings.clone();
        Ok(match &foreign.side_file {
            None => Some((SideFile::Missing, self.settings.clone())),
            Some(Ok(said)) => Some((SideFile::Unstamped, Settings { version, hash, ..said.clone() })),
            Some(Err(why)) if is_garbled(home)? => {
                Some((SideFile::Garbled(why.clone()), self.settings.clone()))
            }
            Some(Err(_)) => None,
        })
    }
}

/// Reports whether the side file cannot be intended: it is not a JSON object, and no process writes
/// it. Any other invalid side file is an admin's mistake, which is reported.
fn is_garbled(home: &Directory) -> Result<bool> {
    let is_file = home.look(SIDE_FILE)?.is_some_and(|entry| entry.kind == Kind::File);
    if !is_file || home.is_being_written(SIDE_FILE)? {
        return Ok(false);
    }
    let content = match home.read(SIDE_FILE, SIZE_LIMIT) {
        Err(error) if directory::is_about_content(&error) => return Ok(true),
        content => content?.unwrap_or_default(),
    };
    Ok(serde_json::from_slice::<Map<String, Value>>(&content).is_err())
}

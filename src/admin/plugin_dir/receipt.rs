//! What was installed, noted outside the plugin directory: so damage is told from someone else's
//! driver, and what was lost comes back with the settings it had.
//!
//! ```text
//! <state>/installed/vendor~driver@<hash of the plugin directory's path>      0600, in a directory
//! of 0700; JSON ```
//!
//! A receipt is written before the rename that makes its program visible, and names the program
//! before it, too: killed in between, either is known. It goes with `uninstall` and `--roll-back`.
//! One that cannot be read, or that others could have written, is none.
//!
//! A driver whose side file bears a hash is ours without a receipt, as before there were any. Of
//! all else a receipt decides, by the executable:
//!
//! | executable | side file | ours |
//! |---|---|---|
//! | nothing, also no directory | any | yes |
//! | as installed, byte for byte | any | yes |
//! | empty, or shorter and equal as far as it goes | any | yes |
//! | the very file (inode and time of birth) with its first bytes, or what the kernel cannot run |
//! any | yes |
//! | any, while someone has it open for writing | any | no: look again when they have closed it |
//! | all else: a symlink, a directory, another program | any | no: foreign |
//!
//! Ours is put back by `install` and `deploy`, removed by `uninstall`, and *altered* to `doctor`
//! and `list` if anything of it is not as installed. Foreign is refused by the first two unless
//! told `--take-over`, and by `uninstall`. ARCHITECTURE.md has the whole table,
//! tests/node/install/heal.rs plays it.
//!
//! *Any* side file is one that is gone, is no JSON, or bears no hash; the settings of the last are
//! the admin's, and are kept. One that is JSON, but wrong, is an admin's mistake: told, and not
//! touched. Neither is one that is a symlink or no file, or that someone has open for writing.

use super::found::{Executable, Foreign, Found, Ours, Program, SideFile};
use super::install::source::Source;
use super::opened::PluginDirPath;
use anyhow::Result;
use flexvol_linux::fs::directory::{self, Birth, Directory, Entry, Kind};
use flexvol_linux::fs::files;
use flexvol_linux::fs::fingerprint::{Fingerprint, Format, HEAD, hexadecimal, short};
use flexvol_linux::proc::process;
use flexvol_model::paths;
use flexvol_model::settings::{SIDE_FILE, SIZE_LIMIT, Settings};
use flexvol_model::side_file;
use flexvol_protocol::DriverName;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// The largest receipt that is read, in bytes: the side file is in it.
const LIMIT: usize = SIZE_LIMIT + (1 << 16);

/// The longest name of a directory that is part of a receipt's name: more is added to it.
const LONG: usize = 200;

/// What was installed under one name in one plugin directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Receipt {
    /// The side file.
    pub settings: Settings,
    /// The executable, and after an upgrade the one before.
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
    /// Which file it was; `None` where the file system does not say when files were made, and
    /// numbers of inodes come again.
    birth: Option<Birth>,
}

impl Known {
    /// An executable in an opened directory.
    pub fn of(fingerprint: &Fingerprint, home: &Directory, name: &str) -> Self {
        let birth = home.birth(name).ok().flatten();
        let (hash, head) = (fingerprint.hash.clone(), hexadecimal(&fingerprint.head));
        Self { hash, size: fingerprint.size, head, birth }
    }

    fn is_whole(&self, program: &Fingerprint) -> bool {
        self.hash == program.hash
    }

    /// Whether this is what is left of it.
    fn is_left(&self, program: &Fingerprint, birth: Option<Birth>, source: Option<&Source>) -> Result<bool> {
        let begins = self.head.starts_with(&hexadecimal(&program.head));
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

/// Where the receipt of one driver is.
#[derive(Clone, Debug)]
pub struct Receipts {
    state: PathBuf,
    name: String,
    directory: String,
}

impl Receipts {
    /// Of a driver's directory in a plugin directory; `state` is as the node calls it.
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

    /// Reads it. What someone else could have written is not believed.
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

    /// What was found of the driver, as the receipt knows it; and the receipt.
    pub fn known_again(&self, found: Found, plugins: &Directory) -> Result<(Found, Option<Receipt>)> {
        let Some(receipt) = self.read()? else { return Ok((found, None)) };
        let source = matches!(found, Found::Foreign(_)).then(|| Source::own().ok()).flatten();
        let found = receipt.recognize(found, plugins, &self.directory, source.as_ref())?;
        Ok((found, Some(receipt)))
    }

    /// The directories of drivers that were installed in a plugin directory, also of those that are
    /// not there any more.
    pub fn all(place: &PluginDirPath, state: &Path) -> Result<Vec<String>> {
        let this = Self::of(place, state, "")?;
        let Some(all) = Directory::open(&this.state.join(paths::RECEIPTS))? else { return Ok(Vec::new()) };
        let names = all.names()?.into_iter().filter_map(|name| name.into_string().ok());
        // A draft that a killed writer has left is none, and of a long name there is only the hash.
        let names = names.filter(|name| !name.starts_with(['.', '~']));
        Ok(names.filter_map(|name| Some(name.strip_suffix(&this.name)?.to_owned())).collect())
    }

    /// Writes it, whole or not at all.
    pub fn write(&self, receipt: &Receipt) -> Result<()> {
        directory::make_all(&self.state)?;
        files::make_private(&self.state.join(paths::RECEIPTS))?;
        files::replace(&self.path(), &serde_json::to_vec(receipt)?)
    }

    /// Keeps a side file that no one can read, which is to be replaced; where.
    pub fn set_aside(&self, side_file: &[u8]) -> Result<PathBuf> {
        files::make_private(&self.state.join(paths::RECEIPTS))?;
        files::replace(&self.aside(), side_file)?;
        Ok(self.aside())
    }

    /// Removes it, and what was set aside. One that is not there is removed.
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
    /// What is there, after what was installed there is known. `source` is what may have been
    /// installed.
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

    /// Whether an executable is one that was installed, or what is left of it.
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

    /// What is to be made of a side file without a hash; `None` if it must not be touched.
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

/// Whether no one can have meant the side file: it is no JSON object, and no one is writing it.
/// Another one is an admin's, who made a mistake, and hears of it.
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

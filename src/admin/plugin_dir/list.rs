//! List of a plugin directory: the owner of each driver, whether kubelet loads it, and its volumes.
//!
//! Foreign drivers are listed like our own. The list changes nothing and takes no lock: during an
//! installation it shows the state before or after it.

use super::found::{Broken, Found, Ours, PROGRAM_MODE, Program, SideFile};
use super::in_use::{self, Volume};
use super::opened::{Opened, PluginDirPath};
use super::receipt::Receipts;
use anyhow::Result;
use flexvol_kubelet::Terms;
use flexvol_kubelet::scan::{self, Finding};
use flexvol_linux::fs::directory::{self, Directory, Kind};
use flexvol_linux::fs::fingerprint::own_version;
use flexvol_linux::fs::listing;
use flexvol_model::drivers;
use flexvol_model::paths;
use flexvol_model::profiles;
use flexvol_model::settings::Settings;
use flexvol_node::hints::to_failure;
use flexvol_protocol::DriverName;
use flexvol_protocol::failure::{Code, Failure};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

/// One name in a plugin directory.
#[derive(Clone, Debug)]
pub struct Item {
    /// The name: of a driver directory, mostly `vendor~driver`.
    pub directory: OsString,
    /// Its owner.
    pub owner: Owner,
    /// The executable, if there is one.
    pub program: Option<Program>,
    /// The driver of flexvol that it is, if it is one.
    pub driver: Option<String>,
    /// kubelet's result for it; `None` if it was not examined.
    pub finding: Option<Finding>,
    /// Its volumes that are mounted on this node.
    pub volumes: Vec<Volume>,
}

/// Owner of an entry in the plugin directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// flexvol, and it is as it was installed.
    Flexvol,
    /// flexvol, but it was changed since; the changes.
    Altered(String),
    /// A flexvol executable that was copied there by hand.
    ByHand,
    /// A foreign owner.
    Foreign,
    /// It is no driver, for this reason.
    Nobody(String),
    /// It cannot be examined; the reason, or the fix.
    Unknown(String),
}

/// Lists everything in a plugin directory, in the order of names. With `terms`, it runs the `init`
/// of each driver as kubelet does.
pub fn list(place: &PluginDirPath, terms: Option<&Terms>) -> Result<Vec<Item>> {
    list_noted(place, paths::STATE.as_ref(), terms)
}

/// Does the same as [`list`], with another directory of state, which is a path on the node.
pub fn list_noted(place: &PluginDirPath, state: &Path, terms: Option<&Terms>) -> Result<Vec<Item>> {
    let Some(opened) = Opened::open(place)? else {
        let text = format!(
            "plugin directory {} does not exist: flexvol install makes it, --plugin-dir names another",
            place.path()?.display()
        );
        return Err(Failure::new(Code::NotFound, text).into());
    };
    let plugins = opened.directory;
    // An error here is no reason to show nothing: the volumes are only additional information.
    let mut volumes = place.below(state).and_then(|state| in_use::by_driver(&state)).unwrap_or_default();
    let names = plugins.names()?.into_iter();
    let look = Look { place, state, plugins: &plugins };
    let mut items: Vec<_> = names.map(|name| item(&look, name, &mut volumes)).collect();
    if let Some(terms) = terms {
        probe(&mut items, plugins.path(), terms);
    }
    Ok(items)
}

/// Runs `init` of all of them at the same time: one that hangs does not delay the others.
fn probe(items: &mut [Item], plugins: &Path, terms: &Terms) {
    let is_gone = |item: &Item| matches!(listing::kind_of(&plugins.join(&item.directory)), Ok(None));
    let is_known = |item: &Item| item.finding.is_some() || matches!(item.owner, Owner::Unknown(_));
    let mut asked: Vec<_> = items.iter_mut().filter(|item| !is_known(item) && !is_gone(item)).collect();
    let names: Vec<_> = asked.iter().map(|item| item.directory.clone()).collect();
    for (item, finding) in asked.iter_mut().zip(scan::init_each(plugins, &names, terms)) {
        item.finding = Some(finding.map_or_else(Finding::Failed, Finding::Loaded));
    }
}

/// Plugin directory and state that all items have in common.
struct Look<'a> {
    place: &'a PluginDirPath,
    state: &'a Path,
    plugins: &'a Directory,
}

fn item(look: &Look<'_>, name: OsString, volumes: &mut BTreeMap<String, Vec<Volume>>) -> Item {
    let volumes = volumes.remove(&*name.to_string_lossy()).unwrap_or_default();
    looked_at(look, name.clone(), volumes.clone()).unwrap_or_else(|error| {
        let owner = Owner::Unknown(to_failure(error).message());
        Item { directory: name, owner, program: None, driver: None, finding: None, volumes }
    })
}

fn looked_at(look: &Look<'_>, name: OsString, volumes: Vec<Volume>) -> Result<Item> {
    let Look { place, state, plugins } = look;
    let text = name.to_string_lossy().into_owned();
    // An entry that was removed just now is found to be absent below.
    let kind = plugins.look(&name)?.map_or(Kind::Directory, |entry| entry.kind);
    if let Some(why) = scan::ignored(&name, kind) {
        let (owner, finding) = (Owner::Nobody(why.to_string()), Some(Finding::Ignored(why)));
        return Ok(Item { directory: name, owner, program: None, driver: None, finding, volumes });
    }
    // Names of any bytes are possible; a name that is not text belongs to no driver.
    let found = match Found::at(plugins, &text) {
        Err(error) => {
            // Its init must not run either: kubelet is root and may do more than we.
            let fix = if directory::is_forbidden(&error) { ": run this as root" } else { "" };
            let owner = Owner::Unknown(format!("{error:#}{fix}"));
            return Ok(Item { directory: name, owner, program: None, driver: None, finding: None, volumes });
        }
        Ok(found) => found,
    };
    // Without the right to read receipts, the entry is shown as it was found.
    let known = Receipts::of(place, state, &text).and_then(|all| all.known_again(found.clone(), plugins));
    let (found, receipt) = known.unwrap_or((found, None));
    Ok(Item {
        owner: owner(&found, receipt.is_some()),
        driver: driver(&found, &text),
        program: found.program().cloned(),
        directory: name,
        finding: None,
        volumes,
    })
}

fn owner(found: &Found, is_noted: bool) -> Owner {
    match found {
        Found::Ours(ours) if ours.is_intact() => Owner::Flexvol,
        Found::Ours(ours) => Owner::Altered(altered(ours)),
        Found::Foreign(_) => match found.program() {
            Some(program) if program.fingerprint.version.is_some() => Owner::ByHand,
            _ => Owner::Foreign,
        },
        Found::Absent => Owner::Nobody("it was removed just now".to_owned()),
        Found::Broken(Broken::Empty) if is_noted => Owner::Altered("its files are gone".to_owned()),
        Found::Broken(Broken::Empty) => Owner::Nobody("an empty directory".to_owned()),
        Found::Broken(_) => Owner::Nobody("no directory".to_owned()),
    }
}

/// Describes the differences from what was installed.
fn altered(ours: &Ours) -> String {
    let side_file = match &ours.side_file {
        SideFile::Missing => Some("its side file is gone"),
        SideFile::Garbled(_) => Some("its side file is no JSON"),
        SideFile::Unstamped => Some("its side file does not say what was installed"),
        SideFile::Whole { .. } => None,
    };
    let program = match &ours.program {
        None => Some("its executable is gone".to_owned()),
        Some(_) if !ours.has_whole_program() => {
            Some("its executable is not the one that was installed".to_owned())
        }
        Some(program) if program.mode != PROGRAM_MODE => {
            Some(format!("its executable has the mode {:04o}", program.mode))
        }
        Some(_) => None,
    };
    let told = side_file.map(str::to_owned).into_iter().chain(program);
    told.collect::<Vec<_>>().join(", and ")
}

/// Returns which of our drivers a flexvol in this directory is, by the side file, else by the name.
fn driver(found: &Found, directory: &str) -> Option<String> {
    found.program()?.fingerprint.version.as_ref()?;
    let named = found.settings().and_then(|settings: &Settings| settings.driver.clone());
    let dialect = profiles::chosen(Some(directory), found.settings().unwrap_or(&Settings::default()));
    let by_name = || drivers::find(DriverName::executable_in(directory.as_ref()).to_str()?);
    let own = || dialect.map(|profile| profile.driver).or_else(by_name);
    named.or_else(|| Some(own()?.name().to_owned()))
}

impl Item {
    /// Returns the version, if it is a flexvol.
    pub fn version(&self) -> Option<&str> {
        self.program.as_ref()?.fingerprint.version.as_deref()
    }

    /// Returns the problems that an admin should fix, one line each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        match &self.owner {
            Owner::Unknown(why) => problems.push(why.clone()),
            Owner::Altered(what) => problems.push(format!("{what}: install it again")),
            Owner::Nobody(what) if !matches!(self.finding, Some(Finding::Ignored(_))) => {
                problems.push(format!("{what}: remove it, or install a driver there"));
            }
            _ => {}
        }
        if let Some(Finding::Failed(failed)) = &self.finding {
            problems.push(failed.logged.clone());
            problems.extend(failed.fix.iter().map(|fix| format!("fix: {fix}")));
        }
        if !self.volumes.is_empty() && self.is_unusable() {
            problems.push(format!(
                "{} of its volumes are mounted, which kubelet cannot unmount: {}",
                self.volumes.len(),
                in_use::describe(&self.volumes)
            ));
        }
        match self.version() {
            Some(version) if version != own_version() && self.owner == Owner::Flexvol => {
                problems.push(format!("version {version}, and this is {}: install it again", own_version()));
            }
            _ => {}
        }
        problems
    }

    /// Reports whether kubelet has no driver here.
    pub fn is_unusable(&self) -> bool {
        matches!(self.finding, Some(Finding::Failed(_) | Finding::Ignored(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::Path;

    fn script(plugins: &Path, directory: &str, text: &str) {
        let home = plugins.join(directory);
        fs::create_dir(&home).unwrap();
        let executable = home.join(directory.rsplit('~').next().unwrap());
        fs::File::create(&executable)
            .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()))
            .unwrap();
        fs::set_permissions(&executable, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn listed(plugins: &Path) -> Vec<Item> {
        list(&PluginDirPath::new(plugins), Some(&scan::terms())).unwrap()
    }

    #[test]
    fn everything_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        script(dir.path(), "a~good", "#!/bin/sh\necho '{\"status\":\"Success\"}'\n");
        script(dir.path(), "b~bad", "#!/bin/sh\necho oops\n");
        script(dir.path(), "C~name", "#!/bin/sh\necho '{\"status\":\"Success\"}'\n");
        fs::create_dir(dir.path().join("d~empty")).unwrap();
        fs::File::create(dir.path().join("e~file")).unwrap();
        symlink("a~good", dir.path().join("f~link")).unwrap();
        fs::create_dir(dir.path().join(".hidden")).unwrap();
        let items = listed(dir.path());
        let told: Vec<_> =
            items.iter().map(|item| (item.directory.to_str().unwrap(), item.problems().join("; "))).collect();
        let problem = |name| told.iter().find(|(directory, _)| *directory == name).unwrap().1.as_str();
        assert_eq!(told.len(), 7);
        assert_eq!((problem("a~good"), problem(".hidden"), problem("e~file")), ("", "", ""));
        assert!(
            problem("b~bad").contains("invalid character 'o' looking for beginning of value"),
            "{told:?}"
        );
        assert!(problem("C~name").contains("invalid name"), "{told:?}");
        assert!(problem("d~empty").starts_with("an empty directory: remove it"), "{told:?}");
        assert!(items.iter().any(|item| item.directory == "f~link" && item.is_unusable()));
        assert_eq!(items[2].owner, Owner::Foreign, "{:?}", items[2].directory);
    }

    #[test]
    fn without_init_nothing_is_executed() {
        let dir = tempfile::tempdir().unwrap();
        script(dir.path(), "a~b", "#!/bin/sh\necho x > \"${0%/*}/ran\"\n");
        let items = list(&PluginDirPath::new(dir.path()), None).unwrap();
        assert!(items[0].finding.is_none() && !dir.path().join("a~b/ran").exists());
        assert_eq!(items[0].program.as_ref().unwrap().fingerprint.hash.len(), 64);
    }

    #[test]
    fn a_missing_directory_is_an_error_with_the_fix() {
        let error = list(&PluginDirPath::new("/nowhere/at/all"), None).unwrap_err().to_string();
        assert!(error.contains("does not exist") && error.contains("--plugin-dir"), "{error}");
    }
}

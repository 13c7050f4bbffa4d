//! What is known of the drivers on the nodes.

use crate::driver::Driver;
use crate::drivers;
use crate::profiles::{self, Profile};
use crate::protocol::DriverName;
use crate::settings::Settings;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The drivers and side files that the volumes will meet.
#[derive(Default)]
pub struct Installed {
    drivers: BTreeMap<DriverName, &'static dyn Driver>,
    profiles: BTreeMap<DriverName, &'static Profile>,
    settings: BTreeMap<DriverName, Settings>,
    everywhere: Option<Settings>,
    directory: Option<String>,
}

/// A driver of ours behind a name.
pub(super) struct Known<'a> {
    pub(super) driver: &'static dyn Driver,
    pub(super) settings: Cow<'a, Settings>,
    /// Whether these are the settings of the node; else they are the defaults.
    pub(super) certain: bool,
}

impl Installed {
    /// Says which driver of ours bears a name.
    pub fn name(&mut self, name: DriverName, driver: &'static dyn Driver) {
        self.drivers.insert(name, driver);
    }

    /// Says whose options are understood under a name, where neither the name nor a side file does.
    pub fn speak(&mut self, name: DriverName, profile: &'static Profile) {
        self.profiles.insert(name, profile);
    }

    /// Adds the side file of one driver.
    pub fn add(&mut self, name: DriverName, settings: Settings) {
        self.settings.insert(name, settings);
    }

    /// The side file of every driver that has none of its own.
    pub fn set_everywhere(&mut self, settings: Settings) {
        self.everywhere = Some(settings);
    }

    /// All drivers of this plugin directory have been added.
    pub fn set_directory(&mut self, directory: String) {
        self.directory = Some(directory);
    }

    /// The directory a driver is missing from, if one was read.
    pub(super) fn lacks(&self, name: &DriverName) -> Option<&str> {
        self.directory.as_deref().filter(|_| !self.settings.contains_key(name))
    }

    /// The driver a name stands for, if it is one of ours.
    pub(super) fn known(&self, name: &DriverName) -> Option<Known<'_>> {
        let own = self.settings.get(name);
        let driver = self.drivers.get(name).copied();
        let driver = driver.or_else(|| drivers::find(own?.driver.as_deref()?));
        let profile = self.profile(name, driver, own);
        let driver = driver.or(profile.map(|profile| profile.driver));
        let driver = driver.or_else(|| drivers::find(name.driver()));
        let general = self.everywhere.as_ref().filter(|settings| fits(settings, driver));
        let driver = driver.or_else(|| drivers::find(general?.driver.as_deref()?))?;
        let settings = own.or(general);
        let certain = settings.is_some();
        let mut settings = settings.map_or_else(Cow::default, Cow::Borrowed);
        let profile = profile.or_else(|| self.profile(name, Some(driver), Some(&settings)));
        if settings.profile.as_deref() != profile.map(|profile| profile.name) {
            settings.to_mut().profile = profile.map(|profile| profile.name.to_owned());
        }
        Some(Known { driver, settings, certain })
    }

    /// As the installed driver chooses it.
    fn profile(
        &self,
        name: &DriverName,
        driver: Option<&'static dyn Driver>,
        settings: Option<&Settings>,
    ) -> Option<&'static Profile> {
        let settings = settings.cloned().unwrap_or_default();
        let named = settings.driver.clone().or_else(|| Some(driver?.name().to_owned()));
        let chosen = || {
            let settings = Settings { driver: named, ..settings };
            profiles::chosen(Some(&name.directory()), &settings)
        };
        self.profiles.get(name).copied().or_else(chosen)
    }
}

/// Whether a side file can be that of the driver.
fn fits(settings: &Settings, driver: Option<&'static dyn Driver>) -> bool {
    let Some(driver) = driver else { return true };
    let named = settings.driver.as_deref().is_none_or(|named| named == driver.name());
    named && settings.check_driver(driver.name()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> DriverName {
        DriverName::parse(text).unwrap()
    }

    fn known(installed: &Installed, text: &str) -> Option<(&'static str, bool)> {
        installed.known(&name(text)).map(|known| (known.driver.name(), known.certain))
    }

    #[test]
    fn a_name_a_side_file_and_a_word_of_the_admin_s_tell_the_driver() {
        let mut installed = Installed::default();
        assert_eq!(known(&installed, "example/image"), Some(("image", false)));
        assert_eq!(known(&installed, "example/disk"), None);
        installed.add(name("example/disk"), Settings::parse(r#"{"driver":"image"}"#).unwrap());
        assert_eq!(known(&installed, "example/disk"), Some(("image", true)));
        installed.name(name("example/disk"), drivers::find("bind").unwrap());
        assert_eq!(known(&installed, "example/disk"), Some(("bind", true)));
        installed.set_directory("/p".into());
        assert_eq!(installed.lacks(&name("example/disk")), None);
        assert_eq!(installed.lacks(&name("example/image")), Some("/p"));
    }

    #[test]
    fn a_name_of_another_driver_s_brings_its_dialect() {
        let spoken = |installed: &Installed, text: &str| {
            let known = installed.known(&name(text)).unwrap();
            (known.driver.name(), known.settings.profile.clone())
        };
        let mut installed = Installed::default();
        assert_eq!(spoken(&installed, "alicloud/nas"), ("nfs", Some("alicloud/nas".into())));
        assert_eq!(spoken(&installed, "example/nfs"), ("nfs", None));
        installed.add(name("alicloud/nas"), Settings::parse(r#"{"driver":"bind"}"#).unwrap());
        assert_eq!(spoken(&installed, "alicloud/nas"), ("bind", None));
        installed.speak(name("acme/share"), profiles::find("juliohm/cifs").unwrap());
        assert_eq!(spoken(&installed, "acme/share"), ("cifs", Some("juliohm/cifs".into())));
        installed.set_everywhere(Settings::parse(r#"{"policy":{"allowDev":true}}"#).unwrap());
        assert_eq!(spoken(&installed, "k8s/nfs"), ("nfs", Some("k8s/nfs".into())));
    }

    #[test]
    fn a_side_file_for_all_is_for_those_it_fits() {
        let mut installed = Installed::default();
        installed.set_everywhere(Settings::parse(r#"{"driver":"image"}"#).unwrap());
        assert_eq!(known(&installed, "example/image"), Some(("image", true)));
        assert_eq!(known(&installed, "example/tmpfs"), Some(("tmpfs", false)));
        assert_eq!(known(&installed, "example/disk"), Some(("image", true)));
        installed.set_everywhere(Settings::parse(r#"{"exec":{}}"#).unwrap());
        assert_eq!(known(&installed, "example/tmpfs"), Some(("tmpfs", false)));
    }
}

//! Known drivers and settings of the nodes.

use flexvol_model::installed::{Installed, Meaning};
use flexvol_model::profiles;
use flexvol_model::settings::Settings;
use flexvol_protocol::DriverName;
use std::collections::BTreeMap;

/// Drivers and side files on the nodes.
#[derive(Default)]
pub struct KnownDrivers {
    names: BTreeMap<DriverName, Meaning>,
    settings: BTreeMap<DriverName, Settings>,
    everywhere: Option<Settings>,
    directory: Option<String>,
}

/// Our driver behind a name.
pub(super) struct Known {
    pub(super) installed: Installed,
    /// True if its settings are those of the node; otherwise they are the defaults.
    pub(super) certain: bool,
}

impl KnownDrivers {
    /// Sets the meaning of a name, which overrides the side file.
    pub fn name(&mut self, name: DriverName, meaning: Meaning) {
        self.names.insert(name, meaning);
    }

    /// Adds the side file of one driver.
    pub fn add(&mut self, name: DriverName, settings: Settings) {
        self.settings.insert(name, settings);
    }

    /// Sets the side file of all drivers that have none of their own.
    pub fn set_everywhere(&mut self, settings: Settings) {
        self.everywhere = Some(settings);
    }

    /// Sets the plugin directory; all its drivers have been added.
    pub fn set_directory(&mut self, directory: String) {
        self.directory = Some(directory);
    }

    /// Returns the plugin directory, if one was read and the driver is not in it.
    pub(super) fn lacks(&self, name: &DriverName) -> Option<&str> {
        self.directory.as_deref().filter(|_| !self.settings.contains_key(name))
    }

    /// Reports whether a driver of exactly this name was declared.
    pub(super) fn has(&self, name: &DriverName) -> bool {
        self.settings.contains_key(name) || self.names.contains_key(name)
    }

    /// Returns the driver behind a name, if it is one of ours.
    pub(super) fn known(&self, name: &DriverName) -> Option<Known> {
        self.known_as(name, self.names.get(name))
    }

    /// Returns the driver behind a name that has this meaning.
    pub(super) fn known_as(&self, name: &DriverName, meaning: Option<&Meaning>) -> Option<Known> {
        let own = self.settings.get(name).cloned();
        let certain = own.is_some();
        let known = with(name, meaning, own.unwrap_or_default(), certain);
        let Some(general) = self.everywhere.as_ref().filter(|_| !certain) else { return known };
        let same = |other: &Known| {
            known.as_ref().is_none_or(|known| known.installed.driver.name() == other.installed.driver.name())
        };
        with(name, meaning, general.clone(), true).filter(same).or(known)
    }
}

/// Returns a driver with these settings; `None` if the settings do not fit.
fn with(
    name: &DriverName,
    meaning: Option<&Meaning>,
    mut settings: Settings,
    certain: bool,
) -> Option<Known> {
    match meaning {
        Some(Meaning::Driver(driver)) => {
            settings.driver = Some(driver.name().to_owned());
            settings.profile = Some(profiles::NONE.to_owned());
        }
        Some(Meaning::Profile(profile)) => {
            settings.driver = Some(profile.driver.name().to_owned());
            settings.profile = Some(profile.name.to_owned());
        }
        None => {}
    }
    let installed = Installed::identify(Some(name.directory()), name.driver(), settings).ok()?;
    Some(Known { installed, certain })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_model::side_file;

    fn name(text: &str) -> DriverName {
        DriverName::parse(text).unwrap()
    }

    fn known(installed: &KnownDrivers, text: &str) -> Option<(&'static str, bool)> {
        installed.known(&name(text)).map(|known| (known.installed.driver.name(), known.certain))
    }

    #[test]
    fn a_name_a_side_file_and_a_word_of_the_admin_s_tell_the_driver() {
        let mut installed = KnownDrivers::default();
        assert_eq!(known(&installed, "example/image"), Some(("image", false)));
        assert_eq!(known(&installed, "example/disk"), None);
        installed.add(name("example/disk"), side_file::parse(r#"{"driver":"image"}"#).unwrap());
        assert_eq!(known(&installed, "example/disk"), Some(("image", true)));
        installed.name(name("example/disk"), Meaning::find("bind").unwrap());
        assert_eq!(known(&installed, "example/disk"), Some(("bind", true)));
        installed.set_directory("/p".into());
        assert_eq!(installed.lacks(&name("example/disk")), None);
        assert_eq!(installed.lacks(&name("example/image")), Some("/p"));
    }

    #[test]
    fn a_profile_comes_from_the_name_too() {
        let mut installed = KnownDrivers::default();
        let profile = |installed: &KnownDrivers, text: &str| {
            installed.known(&name(text)).and_then(|known| known.installed.profile).map(|profile| profile.name)
        };
        assert_eq!(profile(&installed, "kvaps/loop"), Some("kvaps/loop"));
        assert_eq!(known(&installed, "kvaps/loop"), Some(("image", false)));
        assert_eq!(profile(&installed, "acme/loop"), None);
        installed.name(name("acme/loop"), Meaning::find("kvaps/loop").unwrap());
        assert_eq!(profile(&installed, "acme/loop"), Some("kvaps/loop"));
        installed.name(name("kvaps/loop"), Meaning::find("image").unwrap());
        assert_eq!(profile(&installed, "kvaps/loop"), None);
        installed.add(name("alicloud/nas"), side_file::parse(r#"{"driver":"bind"}"#).unwrap());
        assert_eq!(
            (profile(&installed, "alicloud/nas"), known(&installed, "alicloud/nas")),
            (None, Some(("bind", true)))
        );
        installed.set_everywhere(side_file::parse(r#"{"policy":{"allowDev":true}}"#).unwrap());
        assert_eq!(
            (profile(&installed, "k8s/nfs"), known(&installed, "k8s/nfs")),
            (Some("k8s/nfs"), Some(("nfs", true)))
        );
        assert_eq!(known(&installed, "kvaps/loop"), Some(("image", true)));
    }

    #[test]
    fn a_side_file_for_all_is_for_those_it_fits() {
        let mut installed = KnownDrivers::default();
        installed.set_everywhere(side_file::parse(r#"{"driver":"image"}"#).unwrap());
        assert_eq!(known(&installed, "example/image"), Some(("image", true)));
        assert_eq!(known(&installed, "example/tmpfs"), Some(("tmpfs", false)));
        assert_eq!(known(&installed, "example/disk"), Some(("image", true)));
        installed.set_everywhere(side_file::parse(r#"{"exec":{}}"#).unwrap());
        assert_eq!(known(&installed, "example/tmpfs"), Some(("tmpfs", false)));
    }
}

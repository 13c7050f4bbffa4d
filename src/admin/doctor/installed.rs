//! Installed drivers with the settings in their side files: the start of several checks.

use super::DoctorRequest;
use crate::plugin_dir::list::{Item, list};
use crate::plugin_dir::opened::PluginDirPath;
use anyhow::Result;
use flexvol_linux::fs::files;
use flexvol_model::driver::Driver;
use flexvol_model::drivers;
use flexvol_model::settings::{SIDE_FILE, SIZE_LIMIT, Settings};
use flexvol_model::side_file;
use std::path::PathBuf;

/// One installed driver, of any kind.
pub(super) struct InstalledDriver {
    /// The plugin directory.
    pub(super) plugins: PathBuf,
    pub(super) item: Item,
    /// Empty if the side file cannot be read: another check reports that.
    pub(super) settings: Settings,
}

/// Returns all drivers of all plugin directories that kubelets read.
pub(super) fn all(request: &DoctorRequest) -> Result<Vec<InstalledDriver>> {
    let mut all = Vec::new();
    for plugins in request.plugin_dirs()?.into_iter().filter(|path| path.exists()) {
        for item in list(&PluginDirPath::new(&plugins), None)? {
            let path = plugins.join(&item.directory).join(SIDE_FILE);
            let text = files::read_small(&path, SIZE_LIMIT).ok().flatten();
            let settings = text.and_then(|text| side_file::parse(&text).ok()).unwrap_or_default();
            all.push(InstalledDriver { plugins: plugins.clone(), item, settings });
        }
    }
    Ok(all)
}

impl InstalledDriver {
    /// Returns the name of its directory, `vendor~driver`.
    pub(super) fn name(&self) -> String {
        self.item.directory.to_string_lossy().into_owned()
    }

    /// Returns which of our drivers it is; for a symlink to flexvol, the side file says it.
    pub(super) fn driver(&self) -> Option<&'static dyn Driver> {
        let name = self.item.driver.as_ref().or(self.settings.driver.as_ref());
        name.and_then(|name| drivers::find(name))
    }
}

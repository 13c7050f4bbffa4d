//! The drivers that are installed, and what their side files say: what several checks begin with.

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

/// One of them, of whatever kind.
pub(super) struct InstalledDriver {
    /// The plugin directory.
    pub(super) plugins: PathBuf,
    pub(super) item: Item,
    /// Empty where the side file cannot be read: that is the business of another check.
    pub(super) settings: Settings,
}

/// All, in all plugin directories that kubelets read.
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
    /// Of its directory, `vendor~driver`.
    pub(super) fn name(&self) -> String {
        self.item.directory.to_string_lossy().into_owned()
    }

    /// Which of ours it is. A symlink to flexvol is not looked into, but its side file says it.
    pub(super) fn driver(&self) -> Option<&'static dyn Driver> {
        let name = self.item.driver.as_ref().or(self.settings.driver.as_ref());
        name.and_then(|name| drivers::find(name))
    }
}

//! Attach mode: it stays as it is until an admin changes it. If a driver no longer attaches,
//! kubelet does not unmount its devices and the controller-manager does not undo its attachments.

use super::{Installer, check};
use crate::plugin_dir::found::Found;
use flexvol_model::drivers;
use flexvol_model::installed::Installed;
use flexvol_model::settings::Settings;
use flexvol_protocol::{DriverName, Verb};

impl Installer<'_> {
    /// Reports whether the installed driver attaches, while a driver with these settings could
    /// attach but would not.
    pub(super) fn stays_attached(&self, found: &Found, settings: &Settings) -> bool {
        settings.attach.is_none()
            && self.source.is_own()
            && could_attach(&self.request.name, settings)
            && (found.settings().and_then(|settings| settings.attach) == Some(true) || self.attaches(found))
    }

    /// Asks the installed program, unless it is the one to be installed.
    fn attaches(&self, found: &Found) -> bool {
        let (name, ours) = (&self.request.name, &self.source.fingerprint().hash);
        let may_replace = match found {
            // The rest of a damaged program is not run.
            Found::Ours(ours) => ours.has_whole_program() || !ours.side_file.is_lost(),
            _ => self.request.allowed.take_over,
        };
        let other = found.program().filter(|program| may_replace && program.fingerprint.hash != *ours);
        let (Some(plugins), Some(_)) = (self.plugins, other) else { return false };
        let place = plugins.path_of(name.directory()).join(name.executable());
        check::init(&place, None).is_ok_and(|capabilities| capabilities.attach)
    }
}

/// Returns the message for the admin.
pub(super) fn told(name: &DriverName) -> String {
    format!(
        "{name} attaches volumes as before (\"attach\": true in its side file): to change that, end the pods that use its volumes on all nodes, then install with --set attach=false everywhere"
    )
}

fn could_attach(name: &DriverName, settings: &Settings) -> bool {
    settings.driver.as_deref().and_then(drivers::find).is_some_and(|driver| {
        let installed = Installed::new(driver, Some(name.directory()), settings.clone());
        driver.instead_of_attach().is_none()
            && installed.verbs().contains(Verb::Attach)
            && !installed.capabilities().attach
    })
}

//! Attach verbs for a driver without `attach`, under a name whose volumes are attached.
//!
//! The identity of a driver's volumes includes whether they are attached: a change in a cluster
//! with volumes in use leaves attachments behind that nothing undoes. So a profile may claim the
//! capability for a driver that mounts in one step. The attach verbs then do nothing on any host,
//! also in a controller-manager that has neither the storage nor a tool.

use super::Profile;
use crate::plan::{Goal, Plan};
use crate::settings::Settings;
use flexvol_protocol::{Call, Capabilities, Fields, Options, Verb, VerbSet};

/// Answer to `attach` and `waitforattach`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The answer of flexvol's driver, which attaches if it is configured to.
    Ours,
    /// The value of this option of flexvol. The driver has nothing to attach.
    Option(&'static str),
}

impl Profile {
    /// Returns the verbs of a driver under this name.
    pub fn verbs(&self, settings: &Settings) -> VerbSet {
        let own = self.driver.verbs(settings);
        match self.attach {
            Some(Device::Option(_)) => own.union(VerbSet::ATTACHING),
            Some(Device::Ours) | None => own,
        }
    }

    /// Returns the capabilities that `init` reports under this name.
    pub fn capabilities(&self, settings: &Settings) -> Capabilities {
        let own = self.driver.capabilities(settings);
        Capabilities {
            attach: settings.attach.unwrap_or(own.attach || self.attach.is_some()),
            fs_group: self.chown.unwrap_or(own.fs_group),
            ..own
        }
    }

    /// Reports whether only the name, and not the driver, has the verb.
    fn adds(&self, verb: Verb, settings: &Settings) -> bool {
        matches!(self.attach, Some(Device::Option(_)))
            && VerbSet::ATTACHING.contains(verb)
            && !self.driver.verbs(settings).contains(verb)
    }

    /// Returns the plan of a verb that only the name has; `None` if the driver has the verb.
    pub fn plan(&self, call: &Call, settings: &Settings) -> Option<Plan> {
        self.adds(call.verb(), settings).then(|| match call {
            // Removes a mount that the other driver left there.
            Call::UnmountDevice { target } => Plan::unmount(target),
            _ => Plan { goal: Goal::Performed, steps: Vec::new() },
        })
    }

    /// Returns the fields of the reply to such a verb, besides Success.
    pub fn fields(&self, call: &Call, settings: &Settings) -> Fields {
        if !self.adds(call.verb(), settings) {
            return Fields::default();
        }
        match call {
            Call::Attach { options, .. } | Call::WaitForAttach { options, .. } => {
                Fields { device: Some(self.device(options, settings)), ..Fields::default() }
            }
            Call::IsAttached { .. } => Fields { attached: Some(true), ..Fields::default() },
            _ => Fields::default(),
        }
    }

    /// Returns the device: without one, kubelet would forget the volume. `mount` reports mistakes
    /// in the options.
    fn device(&self, options: &Options, settings: &Settings) -> String {
        let Some(Device::Option(name)) = self.attach else { return String::new() };
        let translated = self.translate(options, &settings.options).ok();
        let value = translated.and_then(|translated| translated.options.own.get(name).cloned());
        value.unwrap_or_else(|| self.driver.name().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ALL, local};
    use super::*;

    fn options(json: &str) -> Options {
        Options::parse(json).unwrap()
    }

    #[test]
    fn what_is_attached_stays_attached_and_all_else_is_ours() {
        let settings = Settings::default();
        for profile in ALL {
            let held = profile.capabilities(&settings);
            assert_eq!(held.attach, profile.attach.is_some(), "{}", profile.name);
            assert!(!held.attach || profile.verbs(&settings).contains(Verb::Attach), "{}", profile.name);
            assert!(!profile.verbs(&settings).contains(Verb::GetVolumeName), "{}", profile.name);
        }
        assert!(local::LOOP.capabilities(&settings).attach && !local::DUMMY.capabilities(&settings).attach);
    }

    #[test]
    fn the_device_is_the_file() {
        let settings = Settings::default();
        let attach = Call::Attach {
            options: options(r#"{"file":"kube-volumes/test","share":"/srv"}"#),
            node: "n".into(),
        };
        assert_eq!(local::LOOP.fields(&attach, &settings).device.as_deref(), Some("/srv/kube-volumes/test"));
        assert!(local::LOOP.plan(&attach, &settings).unwrap().steps.is_empty());
        let wait = Call::WaitForAttach { device: String::new(), options: options("{}") };
        assert_eq!(local::LOOP.fields(&wait, &settings).device.as_deref(), Some("image"));
        let is_attached = Call::IsAttached { options: options("{}"), node: "n".into() };
        assert_eq!(local::LOOP.fields(&is_attached, &settings).attached, Some(true));
        assert!(local::DUMMY.plan(&attach, &settings).is_none());
        assert_eq!(local::DUMMY.fields(&attach, &settings), Fields::default());
    }
}

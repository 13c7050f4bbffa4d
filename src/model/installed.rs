//! One installed driver, and how its calls become plans. Nothing here touches the node.

use crate::driver::{Driver, Growth, Request};
use crate::drivers;
use crate::fencing::{self, fenced};
use crate::plan::{Goal, Plan};
use crate::profiles::{self, Profile, Translated};
use crate::schema::{self, OptionSpec};
use crate::settings::{SIDE_FILE, Settings};
use crate::side_file;
use flexvol_protocol::failure::{Code, Failure, Result};
use flexvol_protocol::{Call, Capabilities, DriverName, Fields, Options, Verb, VerbSet};

/// Driver with the dialect of its options and its admin's settings.
pub struct Installed {
    /// The driver.
    pub driver: &'static dyn Driver,
    /// Dialect of the options, if it is another driver's.
    pub profile: Option<&'static Profile>,
    /// Name of its directory, `vendor~driver`; `None` if a person runs it without naming a
    /// directory.
    pub directory: Option<String>,
    /// Side file, completed. If it does not say whether volumes are attached, the profile decides.
    /// If a CSI driver serves the volumes and no profile is named, the directory names the driver
    /// whose options they have.
    pub settings: Settings,
}

impl Installed {
    /// Wraps this driver. The side file or the directory chooses the profile.
    pub fn new(driver: &'static dyn Driver, directory: Option<String>, settings: Settings) -> Self {
        let profile = profiles::chosen(directory.as_deref(), &settings);
        Self::of(driver, profile, directory, settings)
    }

    fn of(
        driver: &'static dyn Driver,
        profile: Option<&'static Profile>,
        directory: Option<String>,
        mut settings: Settings,
    ) -> Self {
        let attaches = profile.and_then(|profile| profile.attach).map(|_| true);
        settings.attach = settings.attach.or(attaches);
        if settings.through_csi.is_some() && settings.profile.is_none() {
            let name = directory.as_deref().and_then(|name| DriverName::from_directory(name).ok());
            settings.profile = name.map(|name| name.to_string());
        }
        Self { driver, profile, directory, settings }
    }

    /// Finds the driver: the one that the side file names, else the profile's, else the one with
    /// the name of the executable.
    pub fn identify(directory: Option<String>, executable: &str, settings: Settings) -> Result<Self> {
        let profile = profiles::chosen(directory.as_deref(), &settings);
        let name = profile.map_or(executable, |profile| profile.driver.name());
        let driver = find(settings.driver.as_deref().unwrap_or(name), &settings)?;
        side_file::check_driver(&settings, driver.name())?;
        Ok(Self::of(driver, profile, directory, settings))
    }

    /// Returns the name for the log.
    pub fn name(&self) -> &str {
        self.directory.as_deref().unwrap_or(self.driver.name())
    }

    /// Returns its verbs. Under the name of another driver it may have more than its own.
    pub fn verbs(&self) -> VerbSet {
        let own = || self.driver.verbs(&self.settings);
        self.profile.map_or_else(own, |profile| profile.verbs(&self.settings))
    }

    /// Returns the answer to `init`. The side file's `fsGroup` overrides the driver and the
    /// profile.
    pub fn capabilities(&self) -> Capabilities {
        let own = || self.driver.capabilities(&self.settings);
        let held = self.profile.map_or_else(own, |profile| profile.capabilities(&self.settings));
        Capabilities { fs_group: self.settings.fs_group.unwrap_or(held.fs_group), ..held }
    }

    /// Makes the plan of any call but `init`. The options are in the installed dialect; options
    /// that the volume does not set come from the side file.
    pub fn plan(&self, call: &Call) -> Result<Plan> {
        if !matches!(call.verb(), Verb::Unmount | Verb::UnmountDevice | Verb::Detach) {
            self.check_attach()?;
            self.driver.check(&self.settings)?;
        }
        if let Some(plan) = self.profile.and_then(|profile| profile.plan(call, &self.settings)) {
            return Ok(plan);
        }
        let made = self.understood(call).and_then(|(call, _)| {
            let plan = self.planned(&call)?;
            fenced(plan, &call, &self.settings)
        });
        made.map_err(|why| match (self.profile, call.options()) {
            (Some(profile), Some(options)) => profile.in_its_words(why, &options.own),
            _ => why,
        })
    }

    /// Makes the plan of a call in the driver's own dialect.
    fn planned(&self, call: &Call) -> Result<Plan> {
        let (driver, settings) = (self.driver, &self.settings);
        match call {
            Call::Init => Err(Failure::call("init has no plan")),
            Call::GetVolumeName { options } => driver.get_volume_name(&Request { options, settings }),
            Call::Attach { options, node } => driver.attach(node, &Request { options, settings }),
            Call::Detach { volume, node } => driver.detach(volume, node, settings),
            Call::WaitForAttach { device, options } => {
                driver.wait_for_attach(device, &Request { options, settings })
            }
            Call::IsAttached { options, node } => driver.is_attached(node, &Request { options, settings }),
            Call::MountDevice { target, device, options } => {
                driver.mount_device(target, device, &Request { options, settings })
            }
            Call::UnmountDevice { target } => driver.unmount_device(target, settings),
            Call::Mount { target, options, .. } => driver.mount(target, &Request { options, settings }),
            Call::Unmount { target } => driver.unmount(target, settings),
            Call::ExpandVolume { options, target, new_bytes, old_bytes } => {
                let growth = Growth { device: "", new_bytes: *new_bytes, old_bytes: *old_bytes };
                driver.expand_volume(target, &growth, &Request { options, settings })
            }
            Call::ExpandFs { options, device, target, new_bytes, old_bytes } => {
                let growth = Growth { device, new_bytes: *new_bytes, old_bytes: *old_bytes };
                refuse_shrinking(&growth)?;
                driver.expand_fs(target, &growth, &Request { options, settings })
            }
        }
    }

    /// Returns a call as its driver reads it, with notes on options whose effect may surprise their
    /// author.
    pub fn understood(&self, call: &Call) -> Result<(Call, Vec<String>)> {
        let mut call = call.clone();
        let Some(options) = call.options_mut() else { return Ok((call, Vec::new())) };
        let Some(profile) = self.profile else {
            self.lay_defaults_under(options);
            return Ok((call, Vec::new()));
        };
        let Translated { options: translated, notes } = profile.translate(options, &self.settings.options)?;
        *options = translated;
        Ok((call, notes))
    }

    /// Returns the reason if a verb of the driver does nothing.
    pub fn idle(&self, verb: Verb, plan: &Plan) -> Option<&'static str> {
        let needs_attach = matches!(verb, Verb::MountDevice | Verb::ExpandFs);
        let is_idle = matches!(plan.goal, Goal::Performed) && plan.steps.is_empty();
        is_idle.then_some(match self.settings.attach {
            Some(true) => "it does nothing here: mount does it all",
            _ if needs_attach => {
                "it does nothing here, because the side file has no \"attach\": true: kubelet does not call it, and \
                 mount does it all"
            }
            _ => "it does nothing here but to succeed",
        })
    }

    /// Returns the fields of a reply besides Success, for a verb that only the profile has; `None`
    /// leaves them to the driver.
    pub fn fields(&self, call: &Call) -> Option<Fields> {
        let said = self.profile.map(|profile| profile.fields(call, &self.settings));
        said.filter(|fields| *fields != Fields::default())
    }

    /// Fails if the side file has a mistake that would show with the first volume. For code that
    /// writes side files.
    pub fn check(&self) -> Result<()> {
        self.check_attach()?;
        fencing::check(self.driver.name(), &self.settings)?;
        self.driver.check(&self.settings)?;
        if let Some(profile) = self.profile {
            return profile.check_defaults(&self.settings.options);
        }
        if self.settings.through_csi.is_some() {
            return Ok(());
        }
        // A driver without options of its own takes those of the side file, and has checked them.
        let specs = self.driver.options();
        if specs.is_empty() { Ok(()) } else { schema::check_defaults(&self.settings.options, specs) }
    }

    /// Refuses `attach` in a side file if it would have no effect.
    fn check_attach(&self) -> Result<()> {
        let text = match (self.settings.attach, self.driver.instead_of_attach()) {
            (Some(_), Some(instead)) => instead,
            (Some(true), None) if !self.verbs().contains(Verb::Attach) => {
                "this driver has nothing to attach: remove it"
            }
            _ => return Ok(()),
        };
        Err(Failure::options(format!("{SIDE_FILE}: \"attach\": {text}")))
    }

    /// Fills in the side file's options that the volume does not set, under any spelling of the
    /// option. An empty string counts as not set.
    fn lay_defaults_under(&self, options: &mut Options) {
        for (key, value) in &self.settings.options {
            if !is_given(self.driver.options(), options, key) {
                options.own.insert(key.clone(), value.clone());
            }
        }
    }
}

fn find(name: &str, settings: &Settings) -> Result<&'static dyn Driver> {
    drivers::find(name).ok_or_else(|| {
        let known = drivers::ALL.iter().map(|driver| driver.name()).collect::<Vec<_>>().join(", ");
        let place = if settings.driver.is_some() { "there" } else { "in a side file beside the executable" };
        let text = format!(
            "flexvol has no driver {name:?}: name one of {known} as \"driver\" {place} ({SIDE_FILE})"
        );
        Failure::new(Code::NotFound, text)
    })
}

fn is_given(specs: &[OptionSpec], options: &Options, key: &str) -> bool {
    let given = |key: &str| options.own.get(key).is_some_and(|value| !value.is_empty());
    let spec = specs.iter().find(|spec| spec.name == key || spec.aliases.contains(&key));
    let by_field = key == "fsType" && options.fs_type().is_some();
    by_field
        || given(key)
        || spec.is_some_and(|spec| given(spec.name) || spec.aliases.iter().any(|key| given(key)))
}

fn refuse_shrinking(Growth { new_bytes, old_bytes, .. }: &Growth<'_>) -> Result<()> {
    if new_bytes < old_bytes {
        return Err(Failure::options(format!(
            "cannot shrink from {old_bytes} to {new_bytes} bytes: make a new, smaller volume and copy"
        )));
    }
    Ok(())
}

/// Meaning of a driver's name.
#[derive(Clone, Copy)]
pub enum Meaning {
    /// Driver of flexvol, with its own options.
    Driver(&'static dyn Driver),
    /// Dialect of another driver.
    Profile(&'static Profile),
}

impl Meaning {
    /// Finds the profile or the driver with exactly this name.
    pub fn find(name: &str) -> Option<Self> {
        let driver = || drivers::find(name).map(Self::Driver);
        profiles::find(name).map(Self::Profile).or_else(driver)
    }
}

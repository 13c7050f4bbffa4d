//! What a storage driver is: a table of options, a few static facts, and a pure function from call to plan.
//!
//! docs/writing-a-driver.md has one in thirty lines, and `drivers::tmpfs` is the smallest real one.

use crate::plan::Plan;
use crate::profiles;
use crate::schema::{self, OptionSpec, SecretSpec};
use crate::settings::{SIDE_FILE, Settings};
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::{Call, Capabilities, Options, TargetPath, Verb, VerbSet};

/// What a verb with options is planned from.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What kubelet sent, the side file's defaults already under it.
    pub options: &'a Options,
    /// The side file.
    pub settings: &'a Settings,
}

/// What `expandfs` asks for.
#[derive(Clone, Copy, Debug)]
pub struct Growth<'a> {
    /// What waitforattach said; empty for drivers without attach.
    pub device: &'a str,
    /// The PV's new capacity.
    pub new_bytes: u64,
    /// Its old one; 0 if kubelet does not know it.
    pub old_bytes: u64,
}

/// One kind of storage. No method does I/O; each gives the same answer on every host and at any time.
pub trait Driver: Sync {
    /// The name people type and kubelet's executable is called by default.
    fn name(&self) -> &'static str;

    /// What it is, in half a line, for `flexvol drivers`.
    fn summary(&self) -> &'static str;

    /// The options it takes, for `explain`.
    fn options(&self) -> &'static [OptionSpec];

    /// The keys of a Secret it reads, for `explain`; the default is none.
    fn secrets(&self) -> &'static [SecretSpec] {
        &[]
    }

    /// The verbs it has. Every other one is answered `Not supported`, which kubelet remembers until the
    /// driver is probed again; so this must never depend on anything but the side file. The default is right for
    /// every driver that does everything in `mount`.
    fn verbs(&self, _settings: &Settings) -> VerbSet {
        VerbSet::MOUNTING
    }

    /// What `init` answers, in kubelet and in the controller-manager, as often as anything changes in the
    /// driver's directory. `attach` decides how kubelet names the volume and must not change while one is
    /// mounted.
    fn capabilities(&self, settings: &Settings) -> Capabilities;

    /// The programs of the node that it may run for some volume or other, each a plain name, or an absolute path
    /// where the side file gives one: for `install`, which warns of those that the node lacks. The default is
    /// none, right for every driver that asks nobody but the kernel.
    fn programs<'a>(&self, _settings: &'a Settings) -> Vec<&'a str> {
        Vec::new()
    }

    /// Mistakes of the side file that show without any volume: called before anything is attached, mounted or
    /// grown, so that a slip in the command for `unmount` shows with the first `mount`. Not before `init`,
    /// which must not fail.
    fn check(&self, _settings: &Settings) -> Result<()> {
        Ok(())
    }

    /// `mount`: kubelet calls it for each pod and volume, again after any failure, after its own restart, and
    /// at the same time as other verbs of other volumes. Secrets and the pod's names are in the options here
    /// and nowhere else.
    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan>;

    /// `unmount`: gets a path and nothing else, mounted or not, possibly years later on a rebooted node. The
    /// default unmounts whatever is there and is right for every driver that leaves nothing but a mount.
    fn unmount(&self, target: &TargetPath, _settings: &Settings) -> Result<Plan> {
        Ok(Plan::unmount(target))
    }

    /// `expandfs`: kubelet calls it for a mounted volume whose PV has grown, until it succeeds. Grows the
    /// store and the file system, since `expandvolume` never comes. Planned only if in
    /// [`verbs`](Self::verbs).
    fn expand_fs(&self, _target: &TargetPath, _growth: &Growth<'_>, _request: &Request<'_>) -> Result<Plan> {
        Err(unplanned(Verb::ExpandFs))
    }

    /// Every verb that is rarer: attach, detach, waitforattach, isattached, mountdevice, unmountdevice,
    /// getvolumename, expandvolume. Planned only if in [`verbs`](Self::verbs).
    fn other(&self, call: &Call, _settings: &Settings) -> Result<Plan> {
        Err(unplanned(call.verb()))
    }
}

/// The verbs a driver has with this side file: one under the name of another may have more.
pub fn verbs(driver: &dyn Driver, settings: &Settings) -> VerbSet {
    profiles::of(settings).map_or_else(|| driver.verbs(settings), |profile| profile.verbs(settings))
}

/// What it answers to `init` with this side file, which has the last word on fsGroup.
pub fn capabilities(driver: &dyn Driver, settings: &Settings) -> Capabilities {
    let of_profile = |profile: &profiles::Profile| profile.capabilities(settings);
    let held = profiles::of(settings).map_or_else(|| driver.capabilities(settings), of_profile);
    Capabilities { fs_group: settings.fs_group.unwrap_or(held.fs_group), ..held }
}

/// The plan of any call but `init`: of the options in the driver's own dialect, with the side file's default
/// options laid under the volume's.
pub fn plan(driver: &dyn Driver, call: &Call, settings: &Settings) -> Result<Plan> {
    if !matches!(call.verb(), Verb::Unmount | Verb::UnmountDevice | Verb::Detach) {
        check_attach(driver, settings)?;
        driver.check(settings)?;
    }
    if let Some(plan) = profiles::of(settings).and_then(|profile| profile.plan(call, settings)) {
        return Ok(plan);
    }
    let made = understood(driver, call, settings).and_then(|(call, _)| planned(driver, &call, settings));
    made.map_err(|why| match (profiles::of(settings), call.options()) {
        (Some(profile), Some(options)) => profile.in_its_words(why, &options.own),
        _ => why,
    })
}

/// The plan of a call in the driver's own dialect.
fn planned(driver: &dyn Driver, call: &Call, settings: &Settings) -> Result<Plan> {
    match call {
        Call::Mount { target, options, .. } => driver.mount(target, &Request { options, settings }),
        Call::Unmount { target } => driver.unmount(target, settings),
        Call::ExpandFs { options, device, target, new_bytes, old_bytes } => {
            let growth = Growth { device, new_bytes: *new_bytes, old_bytes: *old_bytes };
            refuse_shrinking(&growth)?;
            driver.expand_fs(target, &growth, &Request { options, settings })
        }
        _ => driver.other(call, settings),
    }
}

/// A call as its driver reads it, and what became of its options otherwise than their author may think.
pub fn understood(driver: &dyn Driver, call: &Call, settings: &Settings) -> Result<(Call, Vec<String>)> {
    let Some(profile) = profiles::of(settings) else {
        return Ok((with_defaults(driver.options(), call, settings), Vec::new()));
    };
    let mut call = call.clone();
    let Some(options) = call.options_mut() else { return Ok((call, Vec::new())) };
    let profiles::Translated { options: translated, notes } =
        profile.translate(options, &settings.options)?;
    *options = translated;
    Ok((call, notes))
}

/// Mistakes of a side file that would show with the first volume: for who writes one.
pub fn check_side_file(driver: &dyn Driver, settings: &Settings) -> Result<()> {
    check_attach(driver, settings)?;
    driver.check(settings)?;
    if let Some(profile) = profiles::of(settings) {
        return profile.check_defaults(&settings.options);
    }
    // One without options of its own has those of the side file, and has checked them.
    let specs = driver.options();
    if specs.is_empty() { Ok(()) } else { schema::check_defaults(&settings.options, specs) }
}

/// A word that would do nothing is refused.
fn check_attach(driver: &dyn Driver, settings: &Settings) -> Result<()> {
    let text = match settings.attach {
        Some(_) if driver.name() == "exec" => "set exec.capabilities.attach instead",
        Some(true) if !verbs(driver, settings).contains(Verb::Attach) => {
            "this driver has nothing to attach: remove it"
        }
        _ => return Ok(()),
    };
    Err(Failure::options(format!("{SIDE_FILE}: \"attach\": {text}")))
}

/// A volume says otherwise with any spelling of the option; with the empty string it says nothing.
fn with_defaults(specs: &[OptionSpec], call: &Call, settings: &Settings) -> Call {
    let mut call = call.clone();
    if let Some(options) = call.options_mut() {
        for (key, value) in &settings.options {
            if !is_given(specs, options, key) {
                options.own.insert(key.clone(), value.clone());
            }
        }
    }
    call
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

fn unplanned(verb: Verb) -> Failure {
    Failure::call(format!("{verb} is not a verb of this driver"))
}

//! Side file for a driver: the existing one, with the changes that the admin asked for.

use flexvol_linux::fs::fingerprint::Fingerprint;
use flexvol_model::driver::Driver;
use flexvol_model::drivers;
use flexvol_model::installed::Installed;
use flexvol_model::profiles;
use flexvol_model::schema;
use flexvol_model::settings::{Deadlines, Settings};
use flexvol_model::side_file;
use flexvol_protocol::DriverName;
use flexvol_protocol::failure::{Failure, Result};
use serde_json::{Map, Value, json};

/// Changes that the admin asked for. By default, nothing changes.
#[derive(Clone, Debug, Default)]
pub struct SideFileChanges {
    /// The driver, from `vendor/name=DRIVER`.
    pub driver: Option<String>,
    /// Name of the profile whose options it understands, or `none`.
    pub profile: Option<String>,
    /// The CSI driver that serves its volumes.
    pub through_csi: Option<String>,
    /// A whole side file that replaces the existing one.
    pub settings: Option<Value>,
    /// A `policy` that replaces the existing one.
    pub policy: Option<Value>,
    /// Single values by their keys: an option, `fsGroup`, `attach`, or a path of keys such as
    /// `deadlines.mount`.
    pub set: Vec<(String, String)>,
    /// Keys, spelt likewise, whose values return to the default. `set` takes precedence.
    pub unset: Vec<String>,
}

/// End of a message about an existing side file.
const OTHER_MEND: &str = ": fix it or install the driver again";

/// Keys of a side file with which a path of keys may begin. All other keys are options.
const ROOTS: [&str; 5] = ["options", "policy", "deadlines", "agent", "exec"];

/// Keys of a side file that are no options and have no keys below them.
const SWITCHES: [&str; 3] = ["fsGroup", "attach", "throughCsi"];

impl SideFileChanges {
    /// Reads `KEY=VALUE`.
    pub fn parse_set(text: &str) -> Result<(String, String)> {
        let (key, value) = text
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| Failure::options(format!("{text:?} is not KEY=VALUE: write it so")))?;
        Ok((key.to_owned(), value.to_owned()))
    }

    /// Checks whether flexvol would accept this for a driver that is not there yet; for an existing
    /// one, `install` checks it.
    pub fn check(&self, name: &DriverName) -> Result<()> {
        self.asked(name, None, true).map(|_| ())
    }

    /// Returns the settings for the driver. `own` is true if the program is this flexvol, whose
    /// drivers are known. Another program is unknown; but a driver with the name of one of ours
    /// counts as that one.
    pub fn settle(
        &self,
        name: &DriverName,
        existing: Option<&Settings>,
        program: &Fingerprint,
        own: bool,
    ) -> Result<Settings> {
        let settings = self.asked(name, existing, own)?;
        Ok(Settings { version: program.version.clone(), hash: Some(program.hash.clone()), ..settings })
    }

    /// Returns the settings without the version and the hash of the program.
    fn asked(&self, name: &DriverName, existing: Option<&Settings>, own: bool) -> Result<Settings> {
        let mut value = match (&self.settings, existing) {
            (Some(given), _) => given.clone(),
            (None, existing) => serde_json::to_value(existing.cloned().unwrap_or_default())
                .map_err(|error| Failure::options(error.to_string()))?,
        };
        if let Some(policy) = &self.policy {
            put(&mut value, &["policy"], policy.clone())?;
        }
        let missing: Vec<_> = self.unset.iter().filter(|key| !remove(&mut value, &unset_path(key))).collect();
        for (key, text) in &self.set {
            lay(&mut value, key, text)?;
        }
        if let Some(to) = &self.through_csi {
            send_through(&mut value, to)?;
        }
        let mut settings = side_file::parse(&value.to_string()).map_err(|failure| self.blamed(&failure))?;
        self.give_identity(&mut settings, name);
        side_file::check(&settings)?;
        let ours = if own { Some(known(name, settings.driver.as_deref())?) } else { None };
        if let Some(driver) = ours {
            let installed = Installed::new(driver, Some(name.directory()), settings.clone());
            missing.into_iter().try_for_each(|key| check_unset(key, &installed))?;
        }
        if self.says_something() {
            check_deadlines(&settings)?;
        }
        // Existing settings may be wrong, and an upgrade that fixes the driver must not wait until
        // they are corrected.
        if let Some(driver) = ours.filter(|_| self.says_something()) {
            Installed::new(driver, Some(name.directory()), settings.clone()).check()?;
        }
        Ok(settings)
    }

    /// Sets driver and profile: a later request for the one removes an earlier one for the other.
    fn give_identity(&self, settings: &mut Settings, name: &DriverName) {
        if let Some(profile) = &self.profile {
            settings.profile = Some(profile.clone());
            settings.driver = settings.driver.take().filter(|_| settings.through_csi.is_some());
        }
        if let Some(driver) = &self.driver {
            let fits = self.profile.is_some() || side_file::check_driver(settings, driver).is_ok();
            settings.profile = settings.profile.take().filter(|_| fits);
            settings.driver = Some(driver.clone());
        }
        if settings.driver.is_none() {
            settings.driver = implied(name, settings);
        }
    }

    /// Returns an error that asks to fix the request, as the existing side file is not the problem.
    fn blamed(&self, failure: &Failure) -> Failure {
        let message = failure.message();
        let why = message.trim_start_matches(".flexvol.json: ").trim_end_matches(OTHER_MEND);
        // Cut the position: it is in a text that the admin has never seen.
        let why = why.split(" at line ").next().unwrap_or(why);
        let asked = self.set.iter().map(|(key, _)| format!("--set {key}"));
        let asked = asked.chain(self.unset.iter().map(|key| format!("--unset {key}")));
        let asked = asked.chain(self.policy.iter().map(|_| "--policy".to_owned()));
        let asked: Vec<_> = asked.chain(self.settings.iter().map(|_| "--settings".to_owned())).collect();
        Failure::options(format!("the side file would be wrong: {why}: fix {}", asked.join(", ")))
    }

    fn says_something(&self) -> bool {
        self.driver.is_some()
            || self.profile.is_some()
            || self.through_csi.is_some()
            || self.settings.is_some()
            || self.policy.is_some()
            || !self.set.is_empty()
            || !self.unset.is_empty()
    }

    /// Returns a note if the admin names no driver, and another one is installed than the name
    /// implies.
    pub(super) fn stays(&self, name: &DriverName, settings: &Settings) -> Option<String> {
        let named = self.driver.is_some()
            || self.profile.is_some()
            || self.through_csi.is_some()
            || self.settings.is_some();
        let (is, would_be) = (settings.driver.as_deref()?, implied(name, &Settings::default())?);
        (!named && is != would_be).then(|| {
            format!(
                "{name} stays the driver {is}, as it was installed before: install {name}={would_be} to make it {would_be}, {name}={is} to confirm it"
            )
        })
    }
}

fn implied(name: &DriverName, settings: &Settings) -> Option<String> {
    let by_profile = profiles::chosen(Some(&name.directory()), settings).map(|profile| profile.driver);
    by_profile.or_else(|| drivers::find(name.driver())).map(|driver| driver.name().to_owned())
}

/// Returns the driver that the installed program will be.
fn known(name: &DriverName, driver: Option<&str>) -> Result<&'static dyn Driver> {
    if let Some(driver) = driver.and_then(drivers::find) {
        return Ok(driver);
    }
    if driver.is_none() && !profiles::rook(name).is_empty() {
        let text = format!(
            "Rook served block volumes and file systems as {name}: write {name}=rbd for the block volumes, {name}=cephfs for the file systems"
        );
        return Err(Failure::options(text));
    }
    let all = drivers::ALL.iter().map(|driver| driver.name()).collect::<Vec<_>>().join(", ");
    let wrong = driver.unwrap_or(name.driver());
    Err(Failure::options(format!("flexvol has no driver {wrong:?}: write {name}=DRIVER with one of {all}")))
}

/// Puts one `KEY=VALUE` into a side file. An option is always text; elsewhere a JSON value is taken
/// as JSON.
fn lay(side_file: &mut Value, key: &str, text: &str) -> Result<()> {
    let path = path_of(key);
    let is_text = matches!(path[..], ["options" | "agent", ..]);
    let json = || serde_json::from_str(text).unwrap_or_else(|_| json!(text));
    put(side_file, &path, if is_text { json!(text) } else { json() })
}

/// Sets the driver to `csi`, and adds that CSI driver to those that it may use.
fn send_through(side_file: &mut Value, to: &str) -> Result<()> {
    put(side_file, &["driver"], json!("csi"))?;
    put(side_file, &["throughCsi"], json!(to))?;
    let path = ["policy", "csiDrivers"];
    let mut allowed = match side_file.pointer("/policy/csiDrivers") {
        Some(Value::Array(allowed)) => allowed.clone(),
        Some(one @ Value::String(_)) => vec![one.clone()],
        _ => Vec::new(),
    };
    if !allowed.iter().any(|word| word == to || word == "*") {
        allowed.push(json!(to));
    }
    put(side_file, &path, allowed.into())
}

/// Returns the path of a key in a side file.
fn path_of(key: &str) -> Vec<&str> {
    match key.split_once('.').filter(|(root, _)| ROOTS.contains(root)) {
        None if SWITCHES.contains(&key) => vec![key],
        None => vec!["options", key],
        Some(("options", option)) => vec!["options", option],
        Some(_) => key.split('.').collect(),
    }
}

/// Returns the path of a key to unset: all options, or the whole policy, can be unset at once.
fn unset_path(key: &str) -> Vec<&str> {
    if ROOTS.contains(&key) { vec![key] } else { path_of(key) }
}

/// Removes the value at a path; returns true if there was one.
fn remove(value: &mut Value, path: &[&str]) -> bool {
    match (path, value) {
        ([last], Value::Object(members)) => members.remove(*last).is_some(),
        ([first, rest @ ..], Value::Object(members)) => {
            members.get_mut(*first).is_some_and(|member| remove(member, rest))
        }
        _ => false,
    }
}

/// Fails if a key to unset cannot exist. A valid key that is not set may be unset again.
fn check_unset(key: &str, installed: &Installed) -> Result<()> {
    let path = unset_path(key);
    let why = match (path.as_slice(), installed.profile, installed.driver.options()) {
        (["options", option], Some(profile), _) => profile.complaint(option),
        (["options", option], None, specs)
            if !specs.is_empty() && installed.settings.through_csi.is_none() =>
        {
            schema::complaint(option, specs)
        }
        (["policy" | "deadlines", name], ..) => unknown_below(path[0], name),
        _ => None,
    };
    why.map_or(Ok(()), |why| Err(Failure::options(format!("nothing is called {key:?}: {why}: fix --unset"))))
}

/// Returns what the reader of side files expects instead of an unknown name.
fn unknown_below(root: &str, name: &str) -> Option<String> {
    let why = side_file::parse(&json!({root: {name: null}}).to_string()).err()?.message();
    let (_, known) = why.split_once(&format!("unknown field `{name}`, "))?;
    Some(known.split(" at line ").next().unwrap_or(known).to_owned())
}

/// Fails for a deadline of 0 s, as every call of that verb would fail.
fn check_deadlines(settings: &Settings) -> Result<()> {
    let Deadlines { mount, unmount, other } = settings.deadlines;
    let named = [("mount", mount), ("unmount", unmount), ("other", other)];
    named.into_iter().find(|(_, seconds)| *seconds == 0).map_or(Ok(()), |(name, _)| {
        Err(Failure::options(format!(
            "deadlines.{name} is 0 seconds, in which no call is done: write at least 1, or --unset deadlines.{name} for the default"
        )))
    })
}

fn put(value: &mut Value, path: &[&str], new: Value) -> Result<()> {
    let Some((first, rest)) = path.split_first() else {
        *value = new;
        return Ok(());
    };
    match value {
        Value::Object(members) => put(members.entry(*first).or_insert_with(|| json!({})), rest, new),
        _ => Err(Failure::options(format!("{first:?} has no place in the side file: see flexvol explain"))),
    }
}

/// Returns the text of a side file, without default values, so that a later version's defaults
/// apply.
pub fn render(settings: &Settings) -> Result<String> {
    let value = |settings: &Settings| {
        serde_json::to_value(settings).map_err(|error| Failure::options(error.to_string()))
    };
    let mut own = value(settings)?;
    remove_equal(&mut own, &value(&Settings::default())?);
    Ok(format!("{own:#}\n"))
}

fn remove_equal(value: &mut Value, default: &Value) {
    let (Value::Object(members), Value::Object(defaults)) = (value, default) else { return };
    let old = std::mem::replace(members, Map::new());
    for (key, mut member) in old {
        match defaults.get(&key) {
            Some(default) if *default == member => {}
            default => {
                remove_equal(&mut member, default.unwrap_or(&Value::Null));
                members.insert(key, member);
            }
        }
    }
}

/// Returns the permissions of the side file. A default option may be a password: then only root may
/// read the file. Otherwise all users may, such as a controller-manager that is not root.
pub fn side_file_mode(settings: &Settings) -> u32 {
    if settings.options.is_empty() && settings.exec.is_none() { 0o644 } else { 0o600 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::{wording, wording_of};

    fn program() -> Fingerprint {
        Fingerprint::of(&b"program"[..]).unwrap()
    }

    fn settled(side_file_changes: &SideFileChanges, existing: &str) -> Result<Settings> {
        let existing = side_file::parse(existing).unwrap();
        side_file_changes.settle(&DriverName::parse("v/tmpfs").unwrap(), Some(&existing), &program(), true)
    }

    fn set(pairs: &[&str]) -> SideFileChanges {
        let set = pairs.iter().map(|pair| SideFileChanges::parse_set(pair).unwrap()).collect();
        SideFileChanges { set, ..SideFileChanges::default() }
    }

    #[test]
    fn what_nobody_asked_to_change_stays() {
        let text = r#"{"options":{"size":"1Mi"},"deadlines":{"mount":9},"policy":{"allowSuid":true}}"#;
        let kept = settled(&SideFileChanges::default(), text).unwrap();
        assert_eq!(kept.driver.as_deref(), Some("tmpfs"));
        assert_eq!(kept.hash, Some(program().hash));
        assert_eq!((kept.options["size"].as_str(), kept.deadlines.mount), ("1Mi", 9));
        let laid = settled(&set(&["mode=0700", "deadlines.unmount=5", "options.a/b.c=1"]), text).unwrap();
        assert_eq!(laid.options.len(), 3);
        assert_eq!((laid.options["a/b.c"].as_str(), laid.options["mode"].as_str()), ("1", "0700"));
        assert_eq!((laid.deadlines.mount, laid.deadlines.unmount), (9, 5));
        assert_eq!(
            (kept.fs_group, settled(&set(&["fsGroup=false"]), text).unwrap().fs_group),
            (None, Some(false))
        );
        assert!(laid.policy.allow_suid);
    }

    #[test]
    fn whole_files_replace() {
        let text = r#"{"driver":"image","options":{"size":"1Mi"},"policy":{"allowSuid":true}}"#;
        let policy =
            SideFileChanges { policy: Some(json!({"allowDev": true})), ..SideFileChanges::default() };
        let settings = settled(&policy, text).unwrap();
        assert!(settings.policy.allow_dev && !settings.policy.allow_suid && !settings.options.is_empty());
        assert_eq!(settings.driver.as_deref(), Some("image"));
        let whole = SideFileChanges {
            settings: Some(json!({"options": {"size": "2Mi"}})),
            ..SideFileChanges::default()
        };
        let settings = settled(&whole, text).unwrap();
        assert_eq!((settings.driver.as_deref(), settings.options.len()), (Some("tmpfs"), 1));
        let asked = SideFileChanges { driver: Some("bind".into()), ..SideFileChanges::default() };
        assert!(settled(&asked, text).unwrap_err().message().contains("unknown option \"size\""));
        assert_eq!(settled(&asked, "{}").unwrap().driver.as_deref(), Some("bind"));
    }

    #[test]
    fn mistakes_are_refused() {
        for (side_file_changes, fix) in [
            (set(&["deadlines.mount=soon"]), wording_of("expected-seconds", ["--set deadlines.mount"])),
            (set(&["fsGroup=no"]), "expected a boolean: fix --set fsGroup"),
            (set(&["sise=1Mi"]), "did you mean \"size\"?"),
            (set(&["size=much"]), "option \"size\": \"much\""),
            (set(&["policy.alowSuid=true"]), "alowSuid"),
            (set(&["deadlines.mount.x=1"]), "no place"),
            (
                SideFileChanges { driver: Some("tmpsf".into()), ..SideFileChanges::default() },
                "v/tmpfs=DRIVER",
            ),
            (SideFileChanges { policy: Some(json!([])), ..SideFileChanges::default() }, "expected an object"),
            (
                SideFileChanges { settings: Some(json!([])), ..SideFileChanges::default() },
                "expected an object: fix --settings",
            ),
            (set(&["exec.commands.mount=[\"/bin/x\"]"]), wording("exec-settings")),
        ] {
            let message = settled(&side_file_changes, "{}").unwrap_err().message();
            assert!(message.contains(fix), "{message}");
        }
        assert!(SideFileChanges::parse_set("size").is_err() && SideFileChanges::parse_set("=x").is_err());
    }

    fn unset(keys: &[&str]) -> SideFileChanges {
        let unset = keys.iter().map(|key| (*key).to_owned()).collect();
        SideFileChanges { unset, ..SideFileChanges::default() }
    }

    #[test]
    fn what_is_unset_has_its_default_again() {
        let text = r#"{"options":{"size":"1Mi","sise":"2","mode":"0700"},"deadlines":{"mount":9,"other":7},
            "policy":{"allowDev":true,"maxSize":"1Gi"},"fsGroup":false,"driver":"tmpfs"}"#;
        let keys = ["size", "options.sise", "deadlines.mount", "policy.maxSize", "fsGroup"];
        let settings = settled(&unset(&keys), text).unwrap();
        assert_eq!((settings.options.len(), settings.options["mode"].as_str()), (1, "0700"));
        assert_eq!((settings.deadlines.mount, settings.deadlines.other), (110, 7));
        assert_eq!(
            (settings.policy.allow_dev, settings.policy.max_size, settings.fs_group),
            (true, None, None)
        );
        let settings = settled(&unset(&["policy", "options", "deadlines", "agent", "exec"]), text).unwrap();
        assert_eq!((settings.policy, settings.options.len()), (Settings::default().policy, 0));
        // Unset can be repeated, and what is set takes precedence.
        let keys = ["size", "attach", "deadlines.other", "policy.volumeGroups", "agent.fence"];
        assert!(settled(&unset(&keys), "{}").is_ok());
        let both = SideFileChanges { unset: unset(&["size"]).unset, ..set(&["size=3Mi"]) };
        assert_eq!(settled(&both, text.replace("sise", "uid").as_str()).unwrap().options["size"], "3Mi");
        for (key, fix) in [
            ("sise", "did you mean \"size\"?"),
            ("policy.maxSise", "`maxSize`"),
            ("deadlines.mont", "`mount`"),
        ] {
            let message = settled(&unset(&[key]), "{}").unwrap_err().message();
            assert!(
                message.starts_with(wording_of("nothing-to-unset", [key])) && message.contains(fix),
                "{message}"
            );
        }
    }

    #[test]
    fn another_driver_than_the_name_says_is_told() {
        let stays = |name: &str, changes: &SideFileChanges, existing: &str| {
            let name = DriverName::parse(name).unwrap();
            changes.stays(&name, &side_file::parse(existing).unwrap())
        };
        let none = SideFileChanges::default();
        let told = stays("ex/cifs", &none, r#"{"driver":"nfs"}"#).unwrap();
        assert!(told.starts_with(wording_of("stays-the-driver", ["ex/cifs", "nfs"])), "{told}");
        assert!(told.contains("ex/cifs=cifs") && told.contains("ex/cifs=nfs"), "{told}");
        assert!(stays("fstab/cifs", &none, r#"{"driver":"exec"}"#).is_some());
        for (name, existing) in
            [("ex/cifs", r#"{"driver":"cifs"}"#), ("ex/share", r#"{"driver":"nfs"}"#), ("ex/cifs", "{}")]
        {
            assert_eq!(stays(name, &none, existing), None, "{name} {existing}");
        }
        let named = SideFileChanges { driver: Some("nfs".into()), ..none };
        assert_eq!(stays("ex/cifs", &named, r#"{"driver":"nfs"}"#), None);
    }

    #[test]
    fn no_time_at_all_is_no_deadline() {
        for name in ["mount", "unmount", "other"] {
            let message = settled(&set(&[&format!("deadlines.{name}=0")]), "{}").unwrap_err().message();
            assert!(message.starts_with(wording_of("deadline-zero", [name])), "{message}");
        }
        assert!(settled(&set(&["deadlines.other=1"]), "{}").is_ok());
        // An upgrade accepts it.
        assert!(settled(&SideFileChanges::default(), r#"{"deadlines":{"mount":0}}"#).is_ok());
    }

    #[test]
    fn what_the_agent_does_is_set_like_all_else() {
        let name = DriverName::parse("v/image").unwrap();
        let settle = |pair| set(&[pair]).settle(&name, None, &program(), true);
        assert_eq!(settle("agent.fence=pod").unwrap().agent["fence"], "pod");
        assert!(settle("agent.fense=pod").is_err() && settle("agent.fence=1").is_err());
    }

    #[test]
    fn names_of_others_bring_their_dialect() {
        let name = DriverName::parse("kvaps/loop").unwrap();
        let settle = |side_file_changes: &SideFileChanges, existing: &str| {
            let existing = side_file::parse(existing).unwrap();
            side_file_changes.settle(&name, Some(&existing), &program(), true)
        };
        let settings = settle(&SideFileChanges::default(), "{}").unwrap();
        assert_eq!((settings.driver.as_deref(), settings.profile), (Some("image"), None));
        assert!(settle(&set(&["share=/srv", "fsType=xfs"]), "{}").is_ok());
        let slip = settle(&set(&["shaer=/srv"]), "{}").unwrap_err().message();
        assert!(slip.contains("did you mean \"share\"?"), "{slip}");
        let exec = SideFileChanges { driver: Some("tmpfs".into()), ..SideFileChanges::default() };
        assert_eq!(settle(&exec, "{}").unwrap().driver.as_deref(), Some("tmpfs"));
        let rook = DriverName::parse("ceph.rook.io/rook-ceph").unwrap();
        let message = SideFileChanges::default().check(&rook).unwrap_err().message();
        assert!(message.starts_with(wording_of("rook-is-two", ["ceph.rook.io/rook-ceph"])), "{message}");
        let block = |key: &str| SideFileChanges { driver: Some("rbd".into()), ..set(&[key]) };
        assert!(block("blockPool=p").check(&rook).is_ok() && block("blokPool=p").check(&rook).is_err());
        let own = SideFileChanges {
            profile: Some("none".into()),
            driver: Some("image".into()),
            ..set(&["share=/srv"])
        };
        assert!(settle(&own, "{}").unwrap_err().message().contains("unknown option \"share\""));
    }

    #[test]
    fn a_profile_is_asked_for_and_given_up() {
        let asked = SideFileChanges { profile: Some("k8s/dummy".into()), ..SideFileChanges::default() };
        let name = DriverName::parse("v/frob").unwrap();
        let settle = |side_file_changes: &SideFileChanges, existing: &Settings| {
            side_file_changes.settle(&name, Some(existing), &program(), true)
        };
        let settings = settle(&asked, &Settings::default()).unwrap();
        assert_eq!(
            (settings.driver.as_deref(), settings.profile.as_deref()),
            (Some("tmpfs"), Some("k8s/dummy"))
        );
        assert_eq!(settle(&SideFileChanges::default(), &settings).unwrap(), settings);
        let other = SideFileChanges { driver: Some("image".into()), ..SideFileChanges::default() };
        assert_eq!(settle(&other, &settings).unwrap().profile, None);
        let both = SideFileChanges { driver: Some("image".into()), ..asked.clone() };
        assert!(
            settle(&both, &settings).unwrap_err().message().contains(wording("other-driver-in-side-file"))
        );
        let wrong = SideFileChanges { profile: Some("k8s/dumy".into()), ..SideFileChanges::default() };
        assert!(settle(&wrong, &settings).unwrap_err().message().contains("did you mean \"k8s/dummy\"?"));
    }

    #[test]
    fn a_csi_driver_takes_over_and_gives_back() {
        let name = DriverName::parse("fstab/cifs").unwrap();
        let settle = |changes: &SideFileChanges, existing: &Settings| {
            changes.settle(&name, Some(existing), &program(), true)
        };
        let through =
            |to: &str| SideFileChanges { through_csi: Some(to.into()), ..SideFileChanges::default() };
        let before = side_file::parse(r#"{"driver":"cifs","policy":{"csiDrivers":"a"}}"#).unwrap();
        let settings = settle(&through("smb.csi.k8s.io"), &before).unwrap();
        assert_eq!(
            (settings.driver.as_deref(), settings.through_csi.as_deref(), settings.profile.as_deref()),
            (Some("csi"), Some("smb.csi.k8s.io"), None)
        );
        assert_eq!(settings.policy.csi_drivers, ["a", "smb.csi.k8s.io"]);
        assert_eq!(settle(&through("smb.csi.k8s.io"), &settings).unwrap(), settings);
        assert_eq!(settle(&SideFileChanges::default(), &settings).unwrap(), settings);
        // Options of its own dialect are accepted as before.
        assert!(settle(&set(&["mountOptions=vers=3.0"]), &settings).is_ok());
        let back = SideFileChanges { driver: Some("cifs".into()), ..unset(&["throughCsi"]) };
        assert_eq!(settle(&back, &settings).unwrap().driver.as_deref(), Some("cifs"));
        let half = SideFileChanges { driver: Some("cifs".into()), ..SideFileChanges::default() };
        for changes in [half, through("nfs.csi.k8s.io"), through("*"), through("")] {
            assert!(settle(&changes, &settings).is_err(), "{changes:?}");
        }
        // Another driver with these options.
        let asked = SideFileChanges { profile: Some("juliohm/cifs".into()), ..through("smb.csi.k8s.io") };
        let renamed =
            asked.settle(&DriverName::parse("acme/share").unwrap(), None, &program(), true).unwrap();
        assert_eq!(
            (renamed.driver.as_deref(), renamed.profile.as_deref()),
            (Some("csi"), Some("juliohm/cifs"))
        );
        let none = through("smb.csi.k8s.io");
        assert!(none.settle(&DriverName::parse("acme/share").unwrap(), None, &program(), true).is_err());
    }

    #[test]
    fn another_program_may_be_any_driver() {
        let name = DriverName::parse("v/frob").unwrap();
        let settle = |own| SideFileChanges::default().settle(&name, None, &program(), own);
        assert!(settle(true).unwrap_err().message().contains("v/frob=DRIVER"));
        assert_eq!(settle(false).unwrap().driver, None);
    }

    #[test]
    fn the_text_has_what_is_not_default_and_reads_back() {
        let settings =
            settled(&set(&["size=1Mi", "deadlines.mount=9", "policy.bindRoots=[\"/srv\"]"]), "{}").unwrap();
        let text = render(&settings).unwrap();
        assert_eq!(side_file::parse(&text).unwrap(), settings);
        assert!(!text.contains("imageRoots") && !text.contains("unmount"), "{text}");
        assert_eq!((side_file_mode(&settings), side_file_mode(&Settings::default())), (0o600, 0o644));
    }
}

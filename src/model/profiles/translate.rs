//! Translation of the other driver's options to flexvol's.

use super::quirk::is_null;
use super::words::Work;
use super::{ALL, FsGroupUse, Profile};
use crate::schema::{self, OptionSpec, did_you_mean};
use flexvol_protocol::Options;
use flexvol_protocol::failure::{Code, Failure, Result};
use flexvol_protocol::ordered::filled;
use flexvol_protocol::secret::Secret;
use std::collections::BTreeMap;

/// Options in flexvol's dialect.
#[derive(Clone, Debug)]
pub struct Translated {
    /// Options that flexvol's driver reads.
    pub options: Options,
    /// Effects of options that their author may not expect: a line each, with keys and never a
    /// value.
    pub notes: Vec<String>,
}

/// Quality of the match of a key, the best first: the better spelling wins over the worse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    Theirs,
    Ours,
    AnyCase,
    Elsewhere,
}

impl Profile {
    /// Returns the options for flexvol's driver: the volume's options, below them the side file's,
    /// then the profile's own. The function is pure: the same options give the same result.
    pub fn translate(&self, given: &Options, side_file: &BTreeMap<String, String>) -> Result<Translated> {
        let mut notes = Vec::new();
        let mut options = given.clone();
        options.own = self.canonical(&given.own, &mut notes);
        options.secrets = self.canonical_secrets(&given.secrets);
        let mut work = Work { options, notes, order: self.order };
        self.lay_under(&mut work, side_file)?;
        for quirk in self.quirks {
            quirk.apply(&mut work)?;
        }
        let Work { mut options, notes, .. } = work;
        self.give_group(&mut options);
        // By now every option of flexvol has its main name.
        let is_ours = |key: &str| self.spec(key).is_some_and(|spec| first_name(spec, key) == key);
        options.own.retain(|key, value| !value.is_empty() && (key.contains('/') || is_ours(key)));
        for (key, value) in self.defaults {
            if !(*key == "fsType" && options.fs_type().is_some()) {
                options.own.entry((*key).to_owned()).or_insert_with(|| (*value).to_owned());
            }
        }
        Ok(Translated { options, notes })
    }

    /// Adds the side file's options that the volume does not set. Lists of words are split first,
    /// and values that become secrets are moved first: nothing in the side file may win over
    /// anything in the volume.
    fn lay_under(&self, work: &mut Work<'_>, side_file: &BTreeMap<String, String>) -> Result<()> {
        let own = self.canonical(side_file, &mut Vec::new());
        let options = Options { own, ..Options::default() };
        let mut under = Work { options, notes: Vec::new(), order: self.order };
        for quirk in self.quirks.iter().filter(|quirk| quirk.takes_apart()) {
            quirk.apply(&mut under)?;
            quirk.apply(work)?;
        }
        let Options { own, secrets, .. } = under.options;
        let field = work.options.fs_type().is_some();
        for (key, value) in own.into_iter().filter(|(key, _)| !(key == "fsType" && field)) {
            work.options.own.entry(key).or_insert(value);
        }
        for (key, secret) in secrets {
            work.options.secrets.entry(key).or_insert(secret);
        }
        Ok(())
    }

    /// Refuses default options of the admin that no volume could use: a mistake of an admin is not
    /// ignored, unlike one of a tenant.
    pub fn check_defaults(&self, side_file: &BTreeMap<String, String>) -> Result<()> {
        if let Some(key) = side_file.keys().find(|key| !key.contains('/') && self.known(key).is_none()) {
            let hint = self.hint(key);
            return Err(Failure::options(format!("unknown option {key:?} of {}: {hint}", self.name)));
        }
        let own = self.canonical(side_file, &mut Vec::new());
        let ours = filled(own.into_iter().filter(|(key, _)| self.spec(key).is_some()));
        schema::check_defaults(&ours, self.driver.options())
    }

    /// Returns the reason why an option has no effect; `None` if the option is known.
    pub fn complaint(&self, key: &str) -> Option<String> {
        let why = || format!("option {key:?} has no effect, {} has none such: {}", self.name, self.hint(key));
        self.known(key).is_none().then(why)
    }

    /// Rewrites an error for the volume's author. A missing option gets the name that it has in
    /// this dialect. The typo that caused this is named as well, since an unknown key alone is
    /// ignored.
    pub fn in_its_words(&self, why: Failure, given: &BTreeMap<String, String>) -> Failure {
        if why.code() != Code::BadOptions {
            return why;
        }
        let message = why.message();
        let missing = schema::missing_in(&message).and_then(|ours| self.spelt(ours));
        let said = missing.map_or_else(|| message.clone(), |(key, value)| schema::missing(key, value));
        match given.keys().find(|key| self.is_slip(key, given)).and_then(|key| self.complaint(key)) {
            Some(slip) => Failure::options(format!("{said}; {slip}")),
            None => Failure::options(said),
        }
    }

    /// Returns the spelling of a flexvol option in this dialect, and a value: that of the example,
    /// if there is one.
    fn spelt(&self, ours: &str) -> Option<(&'static str, &'static str)> {
        let theirs: Vec<_> =
            self.keys.iter().filter(|key| key.ours == Some(ours)).map(|key| key.theirs).collect();
        let shown = self.example.iter().find(|(key, _)| theirs.contains(key)).copied();
        shown.or_else(|| theirs.first().map(|key| (*key, "…")))
    }

    /// Reports whether an unknown key is similar to a key that is not given.
    fn is_slip(&self, key: &str, given: &BTreeMap<String, String>) -> bool {
        let meant = self.near(key).and_then(|near| self.known(near)).map(|(_, name)| name);
        let is_given = |name| given.keys().filter_map(|key| self.known(key)).any(|(_, known)| known == name);
        self.known(key).is_none() && meant.is_some_and(|name| !is_given(name))
    }

    /// Returns each option under flexvol's name, or under the other driver's name if flexvol has
    /// none. Unknown options are left out, as the other driver does.
    fn canonical(
        &self,
        given: &BTreeMap<String, String>,
        notes: &mut Vec<String>,
    ) -> BTreeMap<String, String> {
        let mut found: BTreeMap<String, (Fit, &str, &String)> = BTreeMap::new();
        for (key, value) in given.iter().filter(|(_, value)| !value.is_empty()) {
            if is_null(value) {
                notes.push(format!("option {key:?} is the word null and taken for absent: leave it out"));
                continue;
            }
            match self.known(key) {
                Some((fit, name)) => keep_better(&mut found, name, (fit, key, value), notes),
                None => notes.extend(self.complaint(key)),
            }
        }
        filled(found.into_iter().map(|(name, (_, _, value))| (name, value.clone())))
    }

    /// Returns the meaning of a key: first in this dialect, then in flexvol's, then in any case,
    /// then in other dialects of the same driver.
    fn known(&self, key: &str) -> Option<(Fit, String)> {
        let named = |name: &str| name.to_owned();
        let theirs = |key: &super::Key| named(key.ours.unwrap_or(key.theirs));
        let same = |other: &&super::Key| self.any_case && other.theirs.eq_ignore_ascii_case(key);
        let elsewhere = || {
            let alike = ALL.iter().filter(|other| other.driver.name() == self.driver.name());
            alike.flat_map(|other| other.keys).find(|other| other.theirs == key)?.ours
        };
        if key.contains('/') || key.is_empty() {
            return Some((Fit::Ours, named(key)));
        }
        self.keys
            .iter()
            .find(|other| other.theirs == key)
            .map(|key| (Fit::Theirs, theirs(key)))
            .or_else(|| self.spec(key).map(|spec| (Fit::Ours, named(first_name(spec, key)))))
            .or_else(|| self.keys.iter().find(same).map(|key| (Fit::AnyCase, theirs(key))))
            .or_else(|| elsewhere().map(|ours| (Fit::Elsewhere, named(ours))))
    }

    fn spec(&self, key: &str) -> Option<&'static OptionSpec> {
        self.driver.options().iter().find(|spec| spec.is_called(key))
    }

    fn near(&self, key: &str) -> Option<&'static str> {
        let ours = self.driver.options().iter().map(|spec| spec.name);
        did_you_mean(key, self.keys.iter().map(|key| key.theirs).chain(ours))
    }

    fn hint(&self, key: &str) -> String {
        self.near(key).map_or_else(
            || format!("see flexvol explain --profile {}", self.name),
            |near| format!("did you mean {near:?}?"),
        )
    }

    /// Renames the keys of secrets; the values stay secrets.
    fn canonical_secrets(&self, given: &BTreeMap<String, Secret>) -> BTreeMap<String, Secret> {
        let mut secrets = given.clone();
        for key in self.secrets {
            let same = |other: &&String| self.any_case && other.eq_ignore_ascii_case(key.theirs);
            let found = given.get_key_value(key.theirs).or_else(|| {
                let name = given.keys().find(same)?;
                given.get_key_value(name)
            });
            if let (Some((name, secret)), Some(ours)) = (found, key.ours) {
                if name != ours {
                    secrets.remove(name);
                }
                secrets.entry(ours.to_owned()).or_insert_with(|| secret.clone());
            }
        }
        secrets
    }

    fn give_group(&self, options: &mut Options) {
        let keys: &[&str] = match self.fs_group {
            FsGroupUse::Ours => return,
            FsGroupUse::Ignored => &[],
            FsGroupUse::Owner => &["uid", "gid"],
            FsGroupUse::Group => &["gid"],
        };
        if let Some(group) = options.fs_group.take() {
            for key in keys {
                options.own.entry((*key).to_owned()).or_insert_with(|| group.gid.to_string());
            }
        }
    }
}

/// Returns the name by which flexvol's driver reads a key; a key that matches a `*` name stays as
/// it is.
fn first_name<'a>(spec: &'static OptionSpec, key: &'a str) -> &'a str {
    if spec.name.ends_with('*') { key } else { spec.name }
}

/// Keeps the better known of two spellings of one option.
fn keep_better<'a>(
    found: &mut BTreeMap<String, (Fit, &'a str, &'a String)>,
    name: String,
    new: (Fit, &'a str, &'a String),
    notes: &mut Vec<String>,
) {
    let Some(old) = found.get(&name).copied() else {
        found.insert(name, new);
        return;
    };
    let (better, worse) = if new.0 < old.0 { (new, old) } else { (old, new) };
    notes.push(format!("options {:?} and {:?} mean the same, and the first counts", better.1, worse.1));
    found.insert(name, better);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles;
    use crate::schema::missing;

    fn said(profile: &str, why: &str, given: &[(&str, &str)]) -> String {
        let given = given.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        profiles::find(profile).unwrap().in_its_words(Failure::options(why), &given).message()
    }

    #[test]
    fn what_is_missing_bears_the_name_it_has_here() {
        let ours = missing("source", "//files.example.com/web");
        let theirs = missing("networkPath", "//server/share");
        assert_eq!(said("fstab/cifs", &ours, &[]), theirs);
        let slip =
            "option \"networkPaht\" has no effect, fstab/cifs has none such: did you mean \"networkPath\"?";
        assert_eq!(said("fstab/cifs", &ours, &[("networkPaht", "//h/s")]), format!("{theirs}; {slip}"));
        assert_eq!(said("fstab/cifs", &ours, &[("zzz", "1")]), theirs);
        assert_eq!(
            said("microsoft.com/smb", &ours, &[]),
            missing("source", "//account.file.core.windows.net/share")
        );
    }

    #[test]
    fn only_a_slip_for_what_is_not_given_is_named() {
        let given = [("networkPath", "//h/s"), ("networkPaht", "//h/t")];
        assert_eq!(said("fstab/cifs", "option \"uid\": bad", &given), "option \"uid\": bad");
        let needs = said("juliohm/cifs", "options need each other", &[("server", "h"), ("shrae", "s")]);
        assert!(
            needs.starts_with("options need each other; option \"shrae\"")
                && needs.ends_with("did you mean \"share\"?"),
            "{needs}"
        );
    }

    #[test]
    fn what_is_not_the_volume_s_fault_stays_as_it_is() {
        let denied = Failure::new(Code::Denied, missing("source", "x"));
        let profile = profiles::find("fstab/cifs").unwrap();
        assert_eq!(profile.in_its_words(denied.clone(), &BTreeMap::new()), denied);
    }
}

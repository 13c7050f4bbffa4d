//! Checks each option of a volume against the driver's table.

use super::finding::{
    Findings, MISSING_OPTION, NO_EFFECT, OPEN_SECRET, OPTION_VALUE, REPEATED_OPTION, UNKNOWN_OPTION,
};
use super::flex::Flex;
use super::known::Known;
use flexvol_model::installed::Installed;
use flexvol_model::profiles::Profile;
use flexvol_model::schema::{self, OptionSpec, did_you_mean};
use serde_json::Value;
use std::collections::BTreeMap;

/// Words in the name of an unknown option that suggest a secret, which any user could read there.
const SECRETIVE: [&str; 5] = ["pass", "secret", "token", "credential", "accountkey"];

impl Flex<'_> {
    /// Checks each option alone. Combinations of options are checked with the plan.
    pub(super) fn check_against(&self, known: &Known, findings: &mut Findings) {
        let own = self.own();
        self.check_open(findings);
        // Options of a profile can be checked only with the whole volume.
        if let Some(profile) = known.installed.profile {
            return self.check_keys(profile, findings);
        }
        for (key, node) in self.options().members() {
            if let Some(why) = self.complaint(key, known) {
                findings.add(self.object, node, UNKNOWN_OPTION, format!("unknown option {key:?}: {why}"));
            }
        }
        let mut all = own.clone();
        for (key, value) in &known.installed.settings.options {
            all.entry(key.clone()).or_insert_with(|| value.clone());
        }
        for spec in known.installed.driver.options() {
            self.check_option(spec, &own, &all, findings);
        }
    }

    /// Checks option names against a profile. Its original driver ignores unknown options, and so
    /// does ours; a misspelt name is reported as an error nevertheless.
    fn check_keys(&self, profile: &Profile, findings: &mut Findings) {
        for (key, node) in self.options().members() {
            let Some(why) = profile.complaint(key) else { continue };
            let rule = if why.contains("did you mean") { UNKNOWN_OPTION } else { NO_EFFECT };
            findings.add(self.object, node, rule, why);
        }
    }

    /// Reports a password among mount options, where older drivers accepted it.
    fn check_open(&self, findings: &mut Findings) {
        let is_open =
            |word: &str| ["password=", "passwd=", "pass="].iter().any(|start| word.starts_with(start));
        for (key, node) in self.options().members() {
            if node.text().is_some_and(|text| text.split([',', ' ']).any(is_open)) {
                let text = format!(
                    "option {key:?} holds a password that everybody may read who may read volumes: put it into \
                     the Secret"
                );
                findings.add(self.object, node, OPEN_SECRET, text);
            }
        }
    }

    /// Returns the options that are strings.
    fn own(&self) -> BTreeMap<String, String> {
        let text = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            _ => None,
        };
        self.options()
            .members()
            .filter_map(|(key, node)| Some((key.to_owned(), text(node.value())?)))
            .collect()
    }

    /// Returns the reason why the driver does not accept an option, if any.
    fn complaint(&self, key: &str, known: &Known) -> Option<String> {
        let Installed { driver, settings, .. } = &known.installed;
        let why = match driver.declared(settings) {
            Some(declared) => {
                let free = key.is_empty() || key.contains('/') || declared.contains(key);
                let near = || did_you_mean(key, declared.iter().map(String::as_str));
                let hint = || match near() {
                    Some(near) => format!("did you mean {near:?}?"),
                    None => "exec.options of the side file has the known ones".to_owned(),
                };
                if free { None } else { Some(hint()) }
            }
            None if driver.options().is_empty() => None,
            None => schema::complaint(key, driver.options()),
        }?;
        let of_secret = driver.secrets().iter().any(|spec| spec.keys.contains(&key));
        if of_secret && !why.starts_with("did you mean") {
            let kind = self.driver.as_ref().map(ToString::to_string).unwrap_or_default();
            return Some(format!(
                "it is a key of the Secret: put it into one of type {kind} that secretRef names"
            ));
        }
        let lower = key.to_ascii_lowercase();
        if SECRETIVE.iter().any(|word| lower.contains(word)) && !why.starts_with("did you mean") {
            let kind = self.driver.as_ref().map(ToString::to_string).unwrap_or_default();
            return Some(format!(
                "whoever may read volumes could read it: put it into a Secret of type {kind} that secretRef names"
            ));
        }
        Some(why)
    }

    fn check_option(
        &self,
        spec: &OptionSpec,
        own: &BTreeMap<String, String>,
        all: &BTreeMap<String, String>,
        findings: &mut Findings,
    ) {
        let given = |key: &&str| own.get(*key).is_some_and(|value| !value.is_empty());
        let keys: Vec<_> = std::iter::once(&spec.name).chain(spec.aliases).copied().filter(given).collect();
        for key in &keys {
            if let Err(why) = (spec.check)(&own[*key]) {
                let text = format!("option {key:?}: {why}");
                findings.add(self.object, self.options().get(key), OPTION_VALUE, text);
            }
        }
        if keys.len() > 1
            && let Err(why) = schema::find(own, spec)
            && let Some(last) = keys.iter().map(|key| self.options().get(key)).max_by_key(|node| node.line())
        {
            findings.add(self.object, last, REPEATED_OPTION, why.message());
        }
        // An option that is not a string is reported already; it does not count as missing.
        let mut names = std::iter::once(&spec.name).chain(spec.aliases);
        let odd = names.any(|key| !(self.options().get(key).is_absent() || own.contains_key(*key)));
        let missing = keys.is_empty() && !odd && schema::find(all, spec).is_ok_and(|value| value.is_none());
        if missing && spec.required() {
            let text = schema::missing(spec.name, spec.example);
            findings.add(self.object, self.options(), MISSING_OPTION, text);
        }
    }
}

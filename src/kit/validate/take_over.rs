//! Effects on volumes if our drivers take them over from other drivers: volumes that would be
//! refused, and volumes that would behave differently.

use super::KnownDrivers;
use super::finding::{
    Findings, MISSING_OPTION, NO_EFFECT, OPTION_VALUE, PLAN, POLICY, REPEATED_OPTION, UNKNOWN_OPTION,
};
use super::flex::Flex;
use super::known::Known;
use serde::Serialize;

/// Volumes of one driver.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TakenOver {
    /// Driver name in the volumes.
    pub driver: String,
    /// Our driver behind that name, if any.
    pub ours: Option<&'static str>,
    /// Profile whose options our driver would understand; `None` if it understands only its own.
    pub profile: Option<&'static str>,
    /// Number of volumes.
    pub volumes: usize,
    /// Number of volumes without an entry in `changes`.
    pub unchanged: usize,
    /// Changes for the other volumes, most severe first.
    pub changes: Vec<Change>,
    /// Differences that apply to all its volumes.
    pub always: &'static [&'static str],
}

/// One change for volumes.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// Kind of the change.
    pub what: Outcome,
    /// Description of the change, and the fix.
    pub message: String,
    /// Affected volumes, named by their objects.
    pub volumes: Vec<String>,
}

/// Outcome for a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It would not be mounted.
    Refused,
    /// The outcome is unknown, because it has errors of its own.
    Unknown,
    /// It would be mounted, but behave differently.
    Otherwise,
}

/// Rules for options that our own drivers enforce. A driver with a profile ignores such options, as
/// the original driver does.
const OF_OPTIONS: [&str; 4] = [UNKNOWN_OPTION.id, OPTION_VALUE.id, MISSING_OPTION.id, REPEATED_OPTION.id];

/// Groups all volumes by driver. `sound` is true for each volume without errors in its
/// `flexVolume`: only then can the driver be asked about it.
pub(super) fn of(
    flexes: &[Flex<'_>],
    sound: &[bool],
    installed: &KnownDrivers,
    findings: &Findings,
) -> Vec<TakenOver> {
    let mut all: Vec<TakenOver> = Vec::new();
    for (flex, sound) in flexes.iter().zip(sound) {
        let Some(driver) = flex.driver.as_ref().map(ToString::to_string) else { continue };
        let known = flex.known(installed);
        let changes = known.as_ref().map_or_else(Vec::new, |known| flex.changes(known, *sound, findings));
        let profile = known.as_ref().and_then(|known| known.installed.profile);
        let at = all.iter().position(|one| one.driver == driver).unwrap_or_else(|| {
            all.push(TakenOver {
                driver,
                ours: known.as_ref().map(|known| known.installed.driver.name()),
                profile: profile.map(|profile| profile.name),
                volumes: 0,
                unchanged: 0,
                changes: Vec::new(),
                always: profile.map_or(&[], |profile| profile.deviations),
            });
            all.len() - 1
        });
        all[at].add(flex, changes);
    }
    all.sort_by(|a, b| a.driver.cmp(&b.driver));
    all
}

impl TakenOver {
    fn add(&mut self, flex: &Flex<'_>, changes: Vec<(Outcome, String)>) {
        self.volumes += 1;
        self.unchanged += usize::from(changes.is_empty());
        for (what, message) in changes {
            let known = self.changes.iter_mut().find(|change| change.message == message);
            match known {
                Some(change) => change.volumes.push(flex.title()),
                None => self.changes.push(Change { what, message, volumes: vec![flex.title()] }),
            }
        }
        self.changes.sort_by_key(|change| change.what);
    }
}

/// Removes the list of allowed values, which may be long, from a message.
fn short(message: &str) -> String {
    match message.split_once(": allowed are ") {
        Some((what, _)) => format!("{what}: flexvol validate without --take-over lists what is"),
        None => message.to_owned(),
    }
}

impl Flex<'_> {
    /// Returns kind, namespace and name of its object.
    fn title(&self) -> String {
        let (namespace, name) = &self.object.key;
        match self.object.kind {
            "PersistentVolume" => format!("PersistentVolume {name}"),
            kind => format!("{kind} {namespace}/{name}"),
        }
    }

    fn changes(&self, known: &Known, sound: bool, findings: &Findings) -> Vec<(Outcome, String)> {
        let mut all = Vec::new();
        for finding in findings.within(self.object, self.node) {
            let own = known.installed.profile.is_none() && OF_OPTIONS.contains(&finding.rule);
            let what = match finding.rule {
                rule if own || rule == PLAN.id || rule == POLICY.id => Outcome::Refused,
                rule if rule == NO_EFFECT.id && !self.is_passed_over(known, &finding.message) => {
                    Outcome::Otherwise
                }
                _ => continue,
            };
            all.push((what, short(&finding.message)));
        }
        if !sound && all.is_empty() {
            let text =
                "it has errors of its own, with which nothing can be told: fix what validate names first";
            all.push((Outcome::Unknown, text.to_owned()));
        }
        all.sort();
        all.dedup();
        all
    }

    /// Reports whether a message is about an option that the profile does not know: such an option
    /// had no effect before, either.
    pub(super) fn is_passed_over(&self, known: &Known, message: &str) -> bool {
        let complaint = |key: &str| known.installed.profile.and_then(|profile| profile.complaint(key));
        self.options().members().any(|(key, _)| complaint(key).as_deref() == Some(message))
    }
}

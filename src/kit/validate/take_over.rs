//! What would become of volumes that drivers of ours took over from others: what would be refused,
//! and what would be done otherwise.

use super::KnownDrivers;
use super::finding::{
    Findings, MISSING_OPTION, NO_EFFECT, OPTION_VALUE, PLAN, POLICY, REPEATED_OPTION, UNKNOWN_OPTION,
};
use super::flex::Flex;
use super::known::Known;
use serde::Serialize;

/// The volumes of one driver.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TakenOver {
    /// As volumes name it.
    pub driver: String,
    /// The driver of ours behind that name; `None` if there is none.
    pub ours: Option<&'static str>,
    /// Whose options it would understand; `None` if only our own.
    pub profile: Option<&'static str>,
    /// How many volumes it has.
    pub volumes: usize,
    /// How many of them nothing is said of below.
    pub unchanged: usize,
    /// What becomes of the others, the worst first.
    pub changes: Vec<Change>,
    /// What is otherwise for all of them.
    pub always: &'static [&'static str],
}

/// One thing that would be otherwise.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// How bad it is.
    pub what: Outcome,
    /// What, and how to fix it.
    pub message: String,
    /// Of these volumes, by the objects they are in.
    pub volumes: Vec<String>,
}

/// What becomes of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It would not be mounted.
    Refused,
    /// It has mistakes for which nothing can be told.
    Unknown,
    /// It would be mounted, and is not quite what it was.
    Otherwise,
}

/// What our own drivers refuse; what the drivers of a profile pass over, ours does, too.
const OF_OPTIONS: [&str; 4] = [UNKNOWN_OPTION.id, OPTION_VALUE.id, MISSING_OPTION.id, REPEATED_OPTION.id];

/// All volumes, by their drivers. `sound` are those of which a driver could be asked.
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

/// Without the list of all that would be allowed instead, which may be long.
fn short(message: &str) -> String {
    match message.split_once(": allowed are ") {
        Some((what, _)) => format!("{what}: flexvol validate without --take-over lists what is"),
        None => message.to_owned(),
    }
}

impl Flex<'_> {
    /// The object that it is in.
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

    /// Whether it is about an option that nobody knows: it had no effect before, either.
    pub(super) fn is_passed_over(&self, known: &Known, message: &str) -> bool {
        let complaint = |key: &str| known.installed.profile.and_then(|profile| profile.complaint(key));
        self.options().members().any(|(key, _)| complaint(key).as_deref() == Some(message))
    }
}

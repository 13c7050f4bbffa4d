//! Plan of an installation, made from the actual and the desired state by pure code, so that it can
//! be shown.
//!
//! Each step leaves a state that kubelet may see permanently. Two rules give their order. First, a
//! newer program understands the side file of an older one, never the reverse: an upgrade changes
//! the program first, a downgrade the side file. Second, kubelet notices only the program, not the
//! side file: if the side file changes the answer to `init`, the program must be renamed into place
//! after it, if necessary once more.

use super::side_file_changes::side_file_mode;
use crate::plugin_dir::found::{Broken, Executable, Foreign, Found, Ours, PROGRAM_MODE, SideFile};
use crate::plugin_dir::refusal::{Reason, Refusal};
use flexvol_linux::fs::fingerprint::{Fingerprint, compare_versions, short};
use flexvol_model::settings::Settings;
use flexvol_protocol::DriverName;
use std::cmp::Ordering;

/// Desired state.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    /// The driver.
    pub name: &'a DriverName,
    /// The executable.
    pub program: &'a Fingerprint,
    /// The side file.
    pub settings: &'a Settings,
    /// The program's answer to `init` with the existing side file.
    pub with_old_side_file: Init,
    /// True if an installer was killed in the driver's directory, so that kubelet may have missed
    /// its last change.
    pub interrupted: bool,
}

/// Answer of a program to `init` with an older side file, compared to that with the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Init {
    /// The same.
    Same,
    /// A different answer: kubelet must ask again once the new side file is there.
    Other,
    /// An error: the program must not see the older side file.
    Failure,
}

/// Replacements that an admin must ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Replace a foreign driver.
    pub take_over: bool,
    /// Replace a newer version.
    pub downgrade: bool,
}

/// One step. Each is a single rename for kubelet, or invisible to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Copy the driver out of the plugin directory: a foreign one, or an installed version of one.
    Keep,
    /// Build a hidden directory and rename it into place.
    Appear,
    /// Rename the side file over the old one: kubelet ignores its name.
    WriteSideFile,
    /// Rename the executable over the old one.
    ReplaceProgram,
}

/// Outcome of the steps, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstallOutcome {
    /// The driver was not there.
    Installed,
    /// An older version was there, or another build of the same.
    Upgraded,
    /// A newer version was there.
    Downgraded,
    /// Only the side file differed.
    Configured,
    /// The driver was there, but damaged.
    Repaired,
    /// A foreign driver was there.
    TakenOver,
    /// Nothing had to be done.
    Unchanged,
}

/// Steps of an installation, and their outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Steps, in this order.
    pub steps: Vec<Step>,
    /// Outcome of all steps.
    pub outcome: InstallOutcome,
}

impl Step {
    /// Returns the step as a sentence for people, without its subject.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Keep => "copy the driver that is there out of the plugin directory",
            Self::Appear => "build a hidden directory and rename it into place",
            Self::WriteSideFile => "rename the new side file over the old one",
            Self::ReplaceProgram => "rename the new executable over the old one",
        }
    }

    /// Reports whether kubelet notices the step.
    pub fn is_visible(self) -> bool {
        matches!(self, Self::Appear | Self::ReplaceProgram)
    }
}

impl InstallOutcome {
    /// Returns the word for people and for JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Installed => "installed",
            Self::Upgraded => "upgraded",
            Self::Downgraded => "downgraded",
            Self::Configured => "configured",
            Self::Repaired => "repaired",
            Self::TakenOver => "taken over",
            Self::Unchanged => "unchanged",
        }
    }
}

/// Reports whether the plan depends on [`Wanted::with_old_side_file`]; otherwise the program is not
/// run for it.
pub fn asks_init(found: &Found, settings: &Settings) -> bool {
    let is_other = |ours: &Ours| without_stamp(&ours.settings) != without_stamp(settings);
    matches!(found, Found::Ours(ours) if ours.side_file.is_lost() || is_other(ours))
}

/// Returns the settings without the version and the hash of the installed program.
fn without_stamp(settings: &Settings) -> Settings {
    Settings { version: None, hash: None, ..settings.clone() }
}

impl Plan {
    /// Makes the plan, or refuses.
    pub fn new(found: &Found, wanted: &Wanted<'_>, allowed: Allowed) -> Result<Self, Refusal> {
        match found {
            Found::Absent => Ok(Self { steps: vec![Step::Appear], outcome: InstallOutcome::Installed }),
            Found::Broken(Broken::Empty) => Ok(Self {
                steps: vec![Step::WriteSideFile, Step::ReplaceProgram],
                outcome: InstallOutcome::Installed,
            }),
            Found::Broken(broken) => Err(in_the_way(wanted.name, broken)),
            Found::Foreign(foreign) if allowed.take_over && foreign.executable != Executable::Other => {
                Ok(Self {
                    steps: vec![Step::Keep, Step::WriteSideFile, Step::ReplaceProgram],
                    outcome: InstallOutcome::TakenOver,
                })
            }
            Found::Foreign(foreign) => Err(somebody_s(wanted.name, foreign)),
            Found::Ours(ours) => Self::over(ours, wanted, allowed),
        }
    }

    /// Plans the change of a driver of ours.
    fn over(ours: &Ours, wanted: &Wanted<'_>, allowed: Allowed) -> Result<Self, Refusal> {
        let order = age(ours.settings.version.as_deref(), wanted.program.version.as_deref());
        if order == Ordering::Less && !allowed.downgrade {
            return Err(newer(wanted, &ours.settings));
        }
        let change = Change::between(ours, wanted);
        // A program without its side file has no policy.
        let older_must_see_it =
            order == Ordering::Less || wanted.with_old_side_file == Init::Failure || ours.side_file.is_lost();
        let mut steps = change.steps(wanted, older_must_see_it || ours.program.is_none());
        if is_another_version_of_somebody_s(ours, wanted) {
            steps.insert(0, Step::Keep);
        }
        let installed_before = ours.settings.hash.as_ref() == Some(&wanted.program.hash);
        let outcome = match order {
            _ if steps.is_empty() => InstallOutcome::Unchanged,
            Ordering::Less => InstallOutcome::Downgraded,
            _ if installed_before && (change.program || !change.side_file || ours.side_file.is_lost()) => {
                InstallOutcome::Repaired
            }
            _ if installed_before => InstallOutcome::Configured,
            _ => InstallOutcome::Upgraded,
        };
        Ok(Self { steps, outcome })
    }
}

/// Reports whether the driver that is replaced has no other source: a driver of flexvol itself
/// comes back with `flexvol install` of an older flexvol.
fn is_another_version_of_somebody_s(ours: &Ours, wanted: &Wanted<'_>) -> bool {
    let is_whole = ours.is_intact() && ours.settings.is_beside_another_s();
    is_whole && ours.settings.hash.as_ref() != Some(&wanted.program.hash)
}

/// Differences from the desired state.
#[derive(Clone, Copy)]
struct Change {
    program: bool,
    side_file: bool,
}

impl Change {
    fn between(ours: &Ours, wanted: &Wanted<'_>) -> Self {
        let program_equal = ours.program.as_ref().is_some_and(|program| {
            program.fingerprint.hash == wanted.program.hash && program.mode == PROGRAM_MODE
        });
        let mode = side_file_mode(wanted.settings);
        let side_file_equal = ours.settings == *wanted.settings && ours.side_file == SideFile::Whole { mode };
        Self { program: !program_equal, side_file: !side_file_equal }
    }

    /// Returns the steps. `side_file_first`: the new program must not see the old side file.
    fn steps(self, wanted: &Wanted<'_>, side_file_first: bool) -> Vec<Step> {
        let side_file = self.side_file.then_some(Step::WriteSideFile);
        let replace = self.program.then_some(Step::ReplaceProgram);
        let again = self.side_file && wanted.with_old_side_file != Init::Same;
        let again = (again || wanted.interrupted).then_some(Step::ReplaceProgram);
        let steps = match (self.program, side_file_first) {
            (false, _) => [side_file, again, None],
            (true, true) => [side_file, replace, None],
            (true, false) => [replace, side_file, again.filter(|_| self.side_file)],
        };
        steps.into_iter().flatten().collect()
    }
}

/// Compares the wanted version to the installed one; equal if one of them is unknown.
fn age(installed: Option<&str>, wanted: Option<&str>) -> Ordering {
    match (installed, wanted) {
        (Some(installed), Some(wanted)) => compare_versions(wanted, installed),
        _ => Ordering::Equal,
    }
}

fn newer(wanted: &Wanted<'_>, installed: &Settings) -> Refusal {
    let version = |version: Option<&str>| version.unwrap_or("unknown").to_owned();
    let text = format!(
        "{} is installed in version {}, newer than {}: use that flexvol, or add --allow-downgrade",
        wanted.name,
        version(installed.version.as_deref()),
        version(wanted.program.version.as_deref())
    );
    Refusal::new(Reason::Newer, text)
}

fn in_the_way(name: &DriverName, broken: &Broken) -> Refusal {
    let directory = name.directory();
    let text = match broken {
        Broken::Link(target) => format!(
            "{directory} is a symlink to {}, which kubelet skips when it starts: remove the symlink",
            target.display()
        ),
        _ => format!("{directory} is not a directory: remove it"),
    };
    Refusal::new(Reason::Preflight, text)
}

fn somebody_s(name: &DriverName, foreign: &Foreign) -> Refusal {
    let what = match (&foreign.side_file, &foreign.executable) {
        (_, Executable::Other) => {
            let text = format!("{name}: what has the executable's name is no file: remove it");
            return Refusal::new(Reason::Foreign, text);
        }
        (Some(Err(why)), _) => {
            let fix = "fix it, or add --take-over to keep it aside and start over";
            return Refusal::new(
                Reason::Foreign,
                format!("{name}: the side file cannot be read: {why}: {fix}"),
            );
        }
        (_, Executable::File(program)) => format!("an executable, {}", short(&program.fingerprint.hash)),
        (_, Executable::Link(target)) => format!("a symlink to {}", target.display()),
        (_, Executable::Missing) => "a directory without an executable".to_owned(),
    };
    let text = format!(
        "{name} is there already, and flexvol did not install it ({what}): add --take-over to replace it and keep it aside"
    );
    Refusal::new(Reason::Foreign, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin_dir::found::Program;
    use Step::{Appear, Keep, ReplaceProgram, WriteSideFile};
    use flexvol_model::side_file;

    fn program(version: &str) -> Fingerprint {
        Fingerprint::of(format!("flexvol-build-version={version};").as_bytes()).unwrap()
    }

    fn settings(version: &str, text: &str) -> Settings {
        let said = side_file::parse(text).unwrap();
        Settings { version: Some(version.into()), hash: Some(program(version).hash), ..said }
    }

    fn ours(version: &str) -> Ours {
        let program = Program { fingerprint: program(version), mode: PROGRAM_MODE, owner: 0 };
        let settings = settings(version, "{}");
        let side_file = SideFile::Whole { mode: 0o644 };
        Ours { settings, side_file, program: Some(program), others: Vec::new() }
    }

    struct Case {
        found: Found,
        version: &'static str,
        text: &'static str,
        with_old_side_file: Init,
        interrupted: bool,
        allowed: Allowed,
    }

    impl Case {
        fn new(found: Found) -> Self {
            let allowed = Allowed::default();
            let with_old_side_file = Init::Same;
            Self { found, version: "1.0.0", text: "{}", with_old_side_file, interrupted: false, allowed }
        }

        fn plan(&self) -> Result<(InstallOutcome, Vec<Step>), Refusal> {
            let (name, program) = (DriverName::parse("v/d").unwrap(), program(self.version));
            let wanted = Wanted {
                name: &name,
                program: &program,
                settings: &settings(self.version, self.text),
                with_old_side_file: self.with_old_side_file,
                interrupted: self.interrupted,
            };
            Plan::new(&self.found, &wanted, self.allowed).map(|plan| (plan.outcome, plan.steps))
        }
    }

    #[test]
    fn equal_content_is_no_event() {
        assert_eq!(
            Case::new(Found::Ours(ours("1.0.0"))).plan().unwrap(),
            (InstallOutcome::Unchanged, vec![])
        );
    }

    #[test]
    fn what_is_missing_appears() {
        assert_eq!(Case::new(Found::Absent).plan().unwrap(), (InstallOutcome::Installed, vec![Appear]));
        let empty = Case::new(Found::Broken(Broken::Empty)).plan().unwrap();
        assert_eq!(empty, (InstallOutcome::Installed, vec![WriteSideFile, ReplaceProgram]));
    }

    #[test]
    fn the_program_is_never_older_than_its_side_file() {
        let upgrade = |with_old_side_file| Case { with_old_side_file, ..Case::new(Found::Ours(ours("0.9"))) };
        let plan = upgrade(Init::Same).plan().unwrap();
        assert_eq!(plan, (InstallOutcome::Upgraded, vec![ReplaceProgram, WriteSideFile]));
        let plan = upgrade(Init::Failure).plan().unwrap();
        assert_eq!(plan.1, [WriteSideFile, ReplaceProgram]);
        let plan = upgrade(Init::Other).plan().unwrap();
        assert_eq!(plan.1, [ReplaceProgram, WriteSideFile, ReplaceProgram]);
        let mut downgrade = Case::new(Found::Ours(ours("1.1")));
        let refusal = downgrade.plan().unwrap_err();
        assert!(refusal.reason == Reason::Newer && refusal.message.contains("1.1, newer than 1.0.0"));
        downgrade.allowed.downgrade = true;
        let plan = downgrade.plan().unwrap();
        assert_eq!(plan, (InstallOutcome::Downgraded, vec![WriteSideFile, ReplaceProgram]));
    }

    #[test]
    fn kubelet_hears_of_a_side_file_that_matters() {
        let text = r#"{"options":{"size":"1Mi"}}"#;
        let case =
            |with_old_side_file| Case { text, with_old_side_file, ..Case::new(Found::Ours(ours("1.0.0"))) };
        assert_eq!(case(Init::Same).plan().unwrap(), (InstallOutcome::Configured, vec![WriteSideFile]));
        for init in [Init::Other, Init::Failure] {
            let plan = case(init).plan().unwrap();
            assert_eq!(plan, (InstallOutcome::Configured, vec![WriteSideFile, ReplaceProgram]));
        }
        let interrupted = Case { interrupted: true, ..Case::new(Found::Ours(ours("1.0.0"))) };
        assert_eq!(interrupted.plan().unwrap(), (InstallOutcome::Repaired, vec![ReplaceProgram]));
    }

    #[test]
    fn damage_is_repaired_unasked() {
        let case = |change: fn(&mut Ours)| {
            let mut found = ours("1.0.0");
            change(&mut found);
            Case::new(Found::Ours(found)).plan().unwrap()
        };
        let repaired = (InstallOutcome::Repaired, vec![ReplaceProgram]);
        assert_eq!(case(|found| found.program = None), repaired);
        assert_eq!(case(|found| found.program.as_mut().unwrap().mode = 0o644), repaired);
        assert_eq!(case(|found| found.program.as_mut().unwrap().fingerprint = program("7")), repaired);
        assert_eq!(
            case(|found| found.side_file = SideFile::Whole { mode: 0o666 }),
            (InstallOutcome::Configured, vec![WriteSideFile])
        );
    }

    #[test]
    fn somebody_s_driver_needs_a_word() {
        let foreign = |executable, side_file| {
            Case::new(Found::Foreign(Foreign { executable, side_file, others: vec!["jq".into()] }))
        };
        let file = || {
            let program = Program { fingerprint: program("x"), mode: 0o755, owner: 0 };
            foreign(Executable::File(program), None)
        };
        let refusal = file().plan().unwrap_err();
        assert!(refusal.reason == Reason::Foreign && refusal.message.contains("--take-over"), "{refusal}");
        let take_over = Allowed { take_over: true, downgrade: false };
        for case in [
            file(),
            foreign(Executable::Missing, None),
            foreign(Executable::Link("/x".into()), Some(Err("bad".into()))),
        ] {
            assert_eq!(case.plan().unwrap_err().reason, Reason::Foreign);
            let plan = Case { allowed: take_over, ..case }.plan().unwrap();
            assert_eq!(plan, (InstallOutcome::TakenOver, vec![Keep, WriteSideFile, ReplaceProgram]));
        }
        let odd = Case { allowed: take_over, ..foreign(Executable::Other, None) };
        assert!(odd.plan().unwrap_err().message.ends_with("remove it"));
    }

    #[test]
    fn what_is_no_directory_is_never_touched() {
        for broken in [Broken::Link("/x".into()), Broken::NotADirectory] {
            let refusal = Case::new(Found::Broken(broken)).plan().unwrap_err();
            assert!(
                refusal.reason == Reason::Preflight && refusal.message.contains(": remove "),
                "{refusal}"
            );
        }
    }
}

//! Choice among all claims. Pure.

use crate::platform::{ObstacleKind, Platform};
use flexvol_linux::fs::exec_dir::{Condition, ExecDirState};
use flexvol_protocol::ordered;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Origins of a directory, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// `--plugin-dir`.
    Explicit,
    /// The environment.
    Environment,
    /// A running kubelet.
    Kubelet,
    /// Kubelet's configuration on this node, while no kubelet runs.
    Configuration,
    /// A controller-manager, running or configured.
    ControllerManager,
    /// Table of platforms.
    Platform,
    /// Kubelet's default.
    Default,
}

impl Origin {
    /// Returns the name, for people and programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Explicit => "--plugin-dir",
            Self::Environment => "environment",
            Self::Kubelet => "kubelet",
            Self::Configuration => "configuration",
            Self::ControllerManager => "controller-manager",
            Self::Platform => "platform",
            Self::Default => "default",
        }
    }
}

/// One directory in two views.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenDirectory {
    /// Path in the view of this process.
    pub directory: PathBuf,
    /// Path in the view of kubelet.
    pub inside: PathBuf,
}

/// Reason why a claim names no directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// The origin is not trusted, or its setting cannot be read. The next origin is used.
    Refused(String),
    /// The origin takes precedence, but cannot be understood with certainty. A lower origin would
    /// be a guess.
    Unclear(String),
}

/// Statement of one origin about the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Origin of the statement.
    pub origin: Origin,
    /// Evidence, for display.
    pub evidence: String,
    /// Directory, or the reason why there is none.
    pub place: Result<SeenDirectory, NoPlace>,
    /// Additional facts about the directory.
    pub notes: Vec<String>,
}

/// Decision about a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Kubelet reads this directory.
    Chosen,
    /// Another origin takes precedence.
    PassedOver(Origin),
    /// The claim does not count; with the reason.
    Refused(String),
    /// The claim would count, but cannot be understood with certainty; with the reason.
    Unclear(String),
}

/// A claim, the decision about it, and the condition of its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Origin of the claim.
    pub origin: Origin,
    /// Evidence, for display.
    pub evidence: String,
    /// Directory; `None` if the claim was refused before its directory was known.
    pub place: Option<SeenDirectory>,
    /// Decision, with the reason if it was not chosen.
    pub verdict: Verdict,
    /// Additional facts about the directory.
    pub notes: Vec<String>,
    /// Condition of the directory; `None` if it was not inspected.
    pub condition: Option<Condition>,
}

/// All candidates, the most important first, and the platform.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Located {
    /// Candidates in order of precedence.
    pub candidates: Vec<Candidate>,
    /// Platform that was recognised.
    pub platform: Option<&'static Platform>,
}

/// Chooses all directories of the best origin that names one; none, if a better origin is unclear.
pub fn choose(mut claims: Vec<Claim>, platform: Option<&'static Platform>) -> Located {
    ordered::sort(&mut claims, |claim| claim.origin);
    let said = claims.iter().find(|claim| !matches!(claim.place, Err(NoPlace::Refused(_))));
    let best = said.map(|claim| claim.origin);
    let judge = |claim: Claim| {
        let (place, verdict) = match (claim.place, best) {
            (Ok(place), Some(best)) if claim.origin != best => (Some(place), Verdict::PassedOver(best)),
            (Ok(place), _) => (Some(place), Verdict::Chosen),
            (Err(NoPlace::Refused(reason)), _) => (None, Verdict::Refused(reason)),
            (Err(NoPlace::Unclear(reason)), _) => (None, Verdict::Unclear(reason)),
        };
        let Claim { origin, evidence, notes, .. } = claim;
        Candidate { origin, evidence, place, verdict, notes, condition: None }
    };
    Located { candidates: claims.into_iter().map(judge).collect(), platform }
}

impl Located {
    /// Returns the chosen candidates, each directory once; empty if there is none.
    pub fn chosen(&self) -> Vec<&Candidate> {
        let mut chosen: Vec<&Candidate> = Vec::new();
        for candidate in self.candidates.iter().filter(|candidate| candidate.verdict == Verdict::Chosen) {
            if chosen.iter().all(|known| known.directory() != candidate.directory()) {
                chosen.push(candidate);
            }
        }
        chosen
    }

    /// Returns one line per candidate: the decision, the directory, its origin and the evidence.
    pub fn explain(&self) -> Vec<String> {
        self.candidates.iter().map(Candidate::explain).collect()
    }

    /// Returns why chosen directories cannot be used as they are, with the fix; empty if all can.
    pub fn problems(&self) -> Vec<String> {
        self.chosen().into_iter().filter_map(|candidate| candidate.problem(self.platform)).collect()
    }

    /// Returns warnings for the admin: origins that were not used, and a controller-manager with
    /// another directory.
    pub fn warnings(&self) -> Vec<String> {
        let chosen = self.chosen();
        let of_kubelets = chosen.first().is_some_and(|first| first.origin != Origin::ControllerManager);
        let elsewhere = self.candidates.iter().filter(|candidate| {
            let is_known = chosen.iter().any(|known| known.inside() == candidate.inside());
            candidate.origin == Origin::ControllerManager && of_kubelets && !is_known
        });
        let elsewhere = elsewhere.filter_map(|candidate| {
            let inside = candidate.inside()?.display();
            Some(format!(
                "the controller-manager looks in {inside}: a driver with attach is needed there too"
            ))
        });
        let refused = self.candidates.iter().filter_map(|candidate| match &candidate.verdict {
            Verdict::Refused(reason) if candidate.origin != Origin::Platform => {
                Some(format!("not believed: {}: {reason}", candidate.evidence))
            }
            Verdict::Unclear(reason) => Some(format!("not understood: {}: {reason}", candidate.evidence)),
            _ => None,
        });
        let notes = chosen.iter().flat_map(|candidate| candidate.notes.iter().cloned());
        notes.chain(elsewhere).chain(refused).collect()
    }
}

impl Candidate {
    /// Returns the directory in the view of this process.
    pub fn directory(&self) -> Option<&Path> {
        self.place.as_ref().map(|place| place.directory.as_path())
    }

    /// Returns the directory in the view of kubelet.
    pub fn inside(&self) -> Option<&Path> {
        self.place.as_ref().map(|place| place.inside.as_path())
    }

    /// Returns the directory in the view of the node whose root is mounted at `root`, which can
    /// differ from the view of a kubelet in a container. A directory that can only be reached
    /// through a process has no such path; kubelet's path is returned instead.
    pub fn below(&self, root: &Path) -> Option<PathBuf> {
        let below = Path::new("/").join(self.directory()?.strip_prefix(root).ok()?);
        if below.starts_with("/proc") { self.inside().map(Path::to_owned) } else { Some(below) }
    }

    /// Returns why nothing can be installed into the directory as it is, with the fix; `None` if it
    /// can be, or if the directory was not inspected.
    pub fn problem(&self, platform: Option<&Platform>) -> Option<String> {
        let (directory, condition) = (self.directory()?.display(), self.condition.as_ref()?);
        let fix = |kind: ObstacleKind| {
            let known = platform.and_then(|platform| platform.obstacle).filter(|known| known.kind == kind);
            known.map(|known| known.fix)
        };
        match &condition.kind {
            ExecDirState::Other(in_the_way) => Some(in_the_way.to_string()),
            ExecDirState::Unseen(reason) => {
                Some(format!("{directory} cannot be seen ({reason}): run as root"))
            }
            _ if condition.read_only => {
                let set =
                    platform.map_or("start kubelet with another --volume-plugin-dir", |known| known.set);
                let fix = fix(ObstacleKind::ReadOnly).unwrap_or(set);
                Some(format!("{directory} is on a read-only file system: {fix}"))
            }
            _ if condition.no_exec => {
                let fix = fix(ObstacleKind::NoExec).unwrap_or("remount it with exec");
                Some(format!("{directory} is mounted noexec, kubelet cannot run a driver there: {fix}"))
            }
            _ => None,
        }
    }

    /// Describes the condition of the directory in a few words.
    pub fn state(&self) -> String {
        let Some(condition) = &self.condition else { return String::new() };
        let mut text = match &condition.kind {
            ExecDirState::Directory => drivers(condition.directories),
            ExecDirState::SymlinkToDirectory(target) => {
                format!("symlink to {}, {}", target.display(), drivers(condition.directories))
            }
            ExecDirState::Missing(_) => "not there yet".to_owned(),
            ExecDirState::Other(_) => "not a directory".to_owned(),
            ExecDirState::Unseen(reason) => format!("cannot be seen: {reason}"),
        };
        for (is_so, word) in [
            (condition.read_only, "read-only"),
            (condition.no_exec, "noexec"),
            (!condition.may_write, "not writable for you"),
        ] {
            if is_so {
                // Writing to a String cannot fail.
                let _ = write!(text, ", {word}");
            }
        }
        text
    }

    fn explain(&self) -> String {
        let directory = self.directory().map_or("?".into(), Path::to_string_lossy);
        let start = match &self.verdict {
            Verdict::Chosen => format!("chosen: {directory}"),
            Verdict::PassedOver(better) => format!("not chosen, {} counts more: {directory}", better.name()),
            Verdict::Refused(reason) => format!("not believed, {reason}"),
            Verdict::Unclear(reason) => format!("not understood, {reason}"),
        };
        format!("{start} ({}: {})", self.origin.name(), self.evidence)
    }
}

fn drivers(count: usize) -> String {
    match count {
        0 => "no drivers".to_owned(),
        1 => "1 driver".to_owned(),
        count => format!("{count} drivers"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::find;
    use flexvol_linux::fs::exec_dir::InTheWay;

    fn claim(origin: Origin, path: &str) -> Claim {
        let place = SeenDirectory { directory: path.into(), inside: path.into() };
        Claim { origin, evidence: format!("as {path}"), place: Ok(place), notes: Vec::new() }
    }

    fn refused(origin: Origin) -> Claim {
        Claim { place: Err(NoPlace::Refused("a pod's".into())), ..claim(origin, "/x") }
    }

    fn unclear(origin: Origin) -> Claim {
        Claim { place: Err(NoPlace::Unclear("line 4".into())), ..claim(origin, "/x") }
    }

    fn chosen(claims: &[Claim]) -> Vec<String> {
        let located = choose(claims.to_vec(), None);
        located
            .chosen()
            .iter()
            .map(|candidate| candidate.directory().unwrap().display().to_string())
            .collect()
    }

    #[test]
    fn the_best_origin_wins_whatever_the_order() {
        use Origin::{Configuration, ControllerManager, Default, Environment, Explicit, Kubelet, Platform};
        let order = [Explicit, Environment, Kubelet, Configuration, ControllerManager, Platform, Default];
        let mut claims: Vec<_> = order.map(|origin| claim(origin, origin.name())).into();
        claims.reverse();
        for origin in order {
            assert_eq!(chosen(&claims), [origin.name()]);
            claims.retain(|claim| claim.origin != origin);
        }
        assert!(chosen(&claims).is_empty());
    }

    #[test]
    fn all_of_one_origin_are_chosen_each_directory_once() {
        let claims = [
            claim(Origin::Kubelet, "/a"),
            claim(Origin::Kubelet, "/b"),
            claim(Origin::Kubelet, "/a"),
            claim(Origin::Platform, "/c"),
        ];
        assert_eq!(chosen(&claims), ["/a", "/b"]);
    }

    #[test]
    fn who_is_refused_is_shown_and_never_chosen() {
        let claims = [refused(Origin::Kubelet), claim(Origin::Platform, "/p")];
        assert_eq!(chosen(&claims), ["/p"]);
        let located = choose(claims.to_vec(), None);
        assert_eq!(located.warnings(), ["not believed: as /x: a pod's"]);
        assert_eq!(
            located.explain(),
            ["not believed, a pod's (kubelet: as /x)", "chosen: /p (platform: as /p)"]
        );
        assert!(chosen(&[refused(Origin::Kubelet), refused(Origin::Platform)]).is_empty());
    }

    #[test]
    fn below_an_unclear_word_that_counts_nothing_is_chosen() {
        let claims = [unclear(Origin::Kubelet), claim(Origin::Platform, "/p")];
        assert!(chosen(&claims).is_empty());
        let located = choose(claims.to_vec(), None);
        assert_eq!(located.warnings(), ["not understood: as /x: line 4"]);
        assert_eq!(
            located.explain(),
            [
                "not understood, line 4 (kubelet: as /x)",
                "not chosen, kubelet counts more: /p (platform: as /p)"
            ]
        );
        assert_eq!(chosen(&[claims[0].clone(), claim(Origin::Explicit, "/e")]), ["/e"]);
        assert_eq!(chosen(&[claims[0].clone(), claim(Origin::Kubelet, "/k")]), ["/k"]);
        assert_eq!(chosen(&[claim(Origin::Platform, "/p"), unclear(Origin::Default)]), ["/p"]);
    }

    #[test]
    fn a_controller_manager_that_looks_elsewhere_is_named() {
        let kubelet = claim(Origin::Kubelet, "/a");
        let warnings =
            |path| choose(vec![kubelet.clone(), claim(Origin::ControllerManager, path)], None).warnings();
        assert!(warnings("/b")[0].contains("/b"));
        assert!(warnings("/a").is_empty());
        assert!(choose(vec![claim(Origin::ControllerManager, "/b")], None).warnings().is_empty());
    }

    #[test]
    fn problems_come_with_the_fix_of_the_platform() {
        let fine = Condition {
            kind: ExecDirState::Directory,
            may_write: true,
            read_only: false,
            no_exec: false,
            directories: 2,
        };
        let problem = |condition: Condition, platform: Option<&str>| {
            let mut located = choose(vec![claim(Origin::Platform, "/p")], platform.and_then(find));
            located.candidates[0].condition = Some(condition);
            located.problems().pop().unwrap_or_default()
        };
        assert_eq!(problem(fine.clone(), None), "");
        assert_eq!(problem(Condition { kind: ExecDirState::Missing("/".into()), ..fine.clone() }, None), "");
        let no_exec = Condition { no_exec: true, ..fine.clone() };
        assert!(problem(no_exec.clone(), Some("cos")).contains("remount,exec /home/kubernetes/flexvolume"));
        assert!(problem(no_exec, None).ends_with("remount it with exec"));
        let read_only = Condition { read_only: true, ..fine.clone() };
        assert!(problem(read_only.clone(), Some("k3s")).contains("kubelet-arg"));
        assert!(problem(read_only.clone(), Some("rke2")).contains("/etc/rancher/rke2/config.yaml"));
        assert!(problem(read_only, None).contains("--volume-plugin-dir"));
        let other = ExecDirState::Other(InTheWay { path: "/a".into(), leads_to: None });
        assert!(problem(Condition { kind: other, ..fine.clone() }, None).contains("not a directory"));
        assert!(
            problem(Condition { kind: ExecDirState::Unseen("no".into()), ..fine }, None)
                .contains("run as root")
        );
    }

    #[test]
    fn the_state_is_said_in_a_few_words() {
        let mut candidate = choose(vec![claim(Origin::Platform, "/p")], None).candidates.remove(0);
        assert_eq!(candidate.state(), "");
        let mut state = |kind, read_only: bool, directories| {
            candidate.condition =
                Some(Condition { kind, may_write: !read_only, read_only, no_exec: read_only, directories });
            candidate.state()
        };
        assert_eq!(state(ExecDirState::Directory, false, 1), "1 driver");
        assert_eq!(
            state(ExecDirState::SymlinkToDirectory("/q".into()), false, 0),
            "symlink to /q, no drivers"
        );
        let text = "not there yet, read-only, noexec, not writable for you";
        assert_eq!(state(ExecDirState::Missing("/".into()), true, 0), text);
    }
}

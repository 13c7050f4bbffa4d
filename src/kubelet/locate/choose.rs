//! The choice among everything that was said. Pure.

use crate::platform::{ObstacleKind, Platform};
use flexvol_linux::fs::exec_dir::{Condition, ExecDirState};
use flexvol_protocol::ordered;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Who names a directory; the first counts most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// `--plugin-dir`.
    Explicit,
    /// The environment.
    Environment,
    /// A running kubelet.
    Kubelet,
    /// kubelet's configuration on this node, while none runs.
    Configuration,
    /// A controller-manager, running or configured.
    ControllerManager,
    /// The platform table.
    Platform,
    /// kubelet's default.
    Default,
}

impl Origin {
    /// For people and programs.
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

/// A directory, as two see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenDirectory {
    /// As this process sees it.
    pub directory: PathBuf,
    /// As kubelet sees it.
    pub inside: PathBuf,
}

/// Why a claim names no directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// Its word does not count, or cannot be had. Whoever counts less is asked.
    Refused(String),
    /// Its word counts, and cannot be understood for sure. Whoever counts less could only guess.
    Unclear(String),
}

/// What somebody says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who.
    pub origin: Origin,
    /// How it is known, for people.
    pub evidence: String,
    /// The directory, or why there is none.
    pub place: Result<SeenDirectory, NoPlace>,
    /// What else there is to know about it.
    pub notes: Vec<String>,
}

/// What became of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// kubelet reads this one.
    Chosen,
    /// Somebody else's word counts more.
    PassedOver(Origin),
    /// It does not count; why.
    Refused(String),
    /// It would count, and cannot be understood for sure; why.
    Unclear(String),
}

/// A claim, what became of it, and what its directory is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Who says so.
    pub origin: Origin,
    /// How it is known, for people.
    pub evidence: String,
    /// The directory; `None` if it was refused before it was known.
    pub place: Option<SeenDirectory>,
    /// Whether it was chosen, and why not.
    pub verdict: Verdict,
    /// What else there is to know about it.
    pub notes: Vec<String>,
    /// What the directory is like; `None` if nobody looked.
    pub condition: Option<Condition>,
}

/// Every candidate, the most important first, and the platform.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Located {
    /// All of them.
    pub candidates: Vec<Candidate>,
    /// What the node was recognised as.
    pub platform: Option<&'static Platform>,
}

/// Chooses all directories of the best origin that names one; none, if a better one is unclear.
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
    /// The candidates chosen, each directory once; none if nobody names one.
    pub fn chosen(&self) -> Vec<&Candidate> {
        let mut chosen: Vec<&Candidate> = Vec::new();
        for candidate in self.candidates.iter().filter(|candidate| candidate.verdict == Verdict::Chosen) {
            if chosen.iter().all(|known| known.directory() != candidate.directory()) {
                chosen.push(candidate);
            }
        }
        chosen
    }

    /// One line a candidate: whether it is chosen, the directory, who says so and how that is
    /// known.
    pub fn explain(&self) -> Vec<String> {
        self.candidates.iter().map(Candidate::explain).collect()
    }

    /// Why a chosen directory cannot be used as it is, with the fix; empty if all can.
    pub fn problems(&self) -> Vec<String> {
        self.chosen().into_iter().filter_map(|candidate| candidate.problem(self.platform)).collect()
    }

    /// What an admin should know besides: whose word was not taken, and a controller-manager that
    /// looks elsewhere.
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
    /// The directory as this process sees it.
    pub fn directory(&self) -> Option<&Path> {
        self.place.as_ref().map(|place| place.directory.as_path())
    }

    /// The directory as kubelet sees it.
    pub fn inside(&self) -> Option<&Path> {
        self.place.as_ref().map(|place| place.inside.as_path())
    }

    /// The directory as the node whose root is here calls it: not what a kubelet in a container
    /// says. What can only be reached through a process has no such name.
    pub fn below(&self, root: &Path) -> Option<PathBuf> {
        let below = Path::new("/").join(self.directory()?.strip_prefix(root).ok()?);
        if below.starts_with("/proc") { self.inside().map(Path::to_owned) } else { Some(below) }
    }

    /// Why nothing can be installed into the directory as it is, with the fix; `None` if it can, or
    /// if nobody looked.
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

    /// What the directory is like, in a few words.
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

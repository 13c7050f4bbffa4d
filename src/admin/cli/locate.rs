//! `flexvol locate`.

use anyhow::Result;
use clap::Args;
use flexvol_kubelet::locate::{Candidate, LocateRequest, Located, Origin, Verdict, locate};
use flexvol_protocol::text::one_line;
use flexvol_terminal::exit::say;
use flexvol_terminal::screen::{Screen, Tone};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Show which plugin directory kubelet reads, and how that is known
#[derive(Args)]
#[command(after_help = "\
Who is asked, in the order of what counts more:
  1. --plugin-dir
  2. FLEXVOL_PLUGIN_DIR in the environment, several with colons in between
  3. a running kubelet: its --volume-plugin-dir, its configuration file and drop-in directory,
     also inside hyperkube, k3s, MicroK8s, MicroShift, KubeEdge and OpenShift 3, and through
     /proc/<pid>/root in a container
  4. kubelet's configuration on this node, while no kubelet runs
  5. kube-controller-manager's --flex-volume-plugin-dir
  6. what is known of the platform
  7. /usr/libexec/kubernetes/kubelet-plugins/volume/exec
Every directory that the first of them names is chosen: a node may have two kubelets. Only root sees all of a \
kubelet; a process that calls itself kubelet in a pod is not believed. Of a file that cannot be read with \
certainty nothing is guessed: name the directory with --plugin-dir then.

Examples:
  sudo flexvol locate
  DIR=$(sudo flexvol locate -q)
  sudo flexvol locate --json | jq -r '.candidates[] | \"\\(.origin) \\(.directory) \\(.evidence)\"'
  flexvol locate --root /mnt/image        of an image, or of a node mounted into a container

Exit status: 0 chosen and usable (a directory that is not there yet is made by kubelet, and by flexvol install), \
1 nothing chosen, or nothing can be installed there as it is: the message says what to do, 2 wrong usage.")]
pub(super) struct Locate {
    /// Use this directory; may be repeated
    #[arg(long, value_name = "DIR")]
    plugin_dir: Vec<PathBuf>,
    /// Root directory to work on; other directories are as seen inside it
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Print only the chosen directories, one per line
    #[arg(long, short)]
    quiet: bool,
}

impl Locate {
    pub(super) fn run(self, screen: &mut Screen) -> Result<ExitCode> {
        let root = self.root.clone();
        let located = locate(&LocateRequest { explicit: self.plugin_dir, root: self.root })?;
        let problems = problems(&located);
        if screen.wants_json() {
            screen.json(&as_json(&located, &problems))?;
        } else if self.quiet {
            for candidate in located.chosen() {
                screen.line(&text(candidate.directory()))?;
            }
        } else {
            show(&located, root.as_deref(), screen)?;
        }
        if !screen.wants_json() {
            for problem in &problems {
                say(problem, false);
            }
        }
        Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn problems(located: &Located) -> Vec<String> {
    if located.chosen().is_empty() {
        let reasons = located.candidates.iter().filter_map(|candidate| match &candidate.verdict {
            Verdict::Refused(reason) | Verdict::Unclear(reason) => {
                Some(format!("{}: {reason}", candidate.evidence))
            }
            _ => None,
        });
        let reasons: Vec<_> = reasons.collect();
        return vec![format!("no plugin directory ({}): name it with --plugin-dir", reasons.join("; "))];
    }
    located.problems()
}

fn show(located: &Located, root: Option<&Path>, screen: &mut Screen) -> Result<()> {
    let heading = ["", "DIRECTORY", "KNOWN FROM", "STATE", "HOW"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(heading).chain(located.candidates.iter().map(row)).collect();
    screen.table(&rows)?;
    for warning in located.warnings() {
        let painted = screen.paint(Tone::Warning, "note:");
        screen.line(&format!("{painted} {}", one_line(&warning, usize::MAX)))?;
    }
    let usable = located.chosen().into_iter().filter(|found| found.problem(located.platform).is_none());
    usable.into_iter().try_for_each(|candidate| screen.line(&one_line(&next(candidate, root), usize::MAX)))
}

/// Returns how certain the directory is, and what to do with it.
fn next(candidate: &Candidate, root: Option<&Path>) -> String {
    let directory = text(candidate.inside());
    let sure = match candidate.origin {
        Origin::Explicit | Origin::Environment => format!("{directory} is taken as you say"),
        Origin::Kubelet => format!("kubelet reads {directory}"),
        _ => format!("no running kubelet says so, but {directory} is likely"),
    };
    let place = match root {
        Some(root) => format!("--root {}", root.display()),
        None => format!("--plugin-dir {}", text(candidate.directory())),
    };
    format!("{sure}: put drivers there with flexvol install {place} DRIVER")
}

fn row(candidate: &Candidate) -> [String; 5] {
    let (mark, how) = match &candidate.verdict {
        Verdict::Chosen => ("*", candidate.evidence.clone()),
        Verdict::PassedOver(_) => ("", candidate.evidence.clone()),
        Verdict::Refused(reason) => ("!", format!("{}, not believed: {reason}", candidate.evidence)),
        Verdict::Unclear(reason) => ("!", format!("{}, not understood: {reason}", candidate.evidence)),
    };
    let directory = text(candidate.directory());
    let inside = candidate.inside().filter(|inside| Some(*inside) != candidate.directory());
    let directory =
        inside.map_or(directory.clone(), |inside| format!("{directory} ({} to kubelet)", inside.display()));
    let directory = if directory.is_empty() { "-".to_owned() } else { directory };
    let origin = candidate.origin.name().to_owned();
    [mark.to_owned(), directory, origin, candidate.state(), how]
}

fn text(path: Option<&Path>) -> String {
    path.map_or_else(String::new, |path| path.display().to_string())
}

fn as_json(located: &Located, problems: &[String]) -> Value {
    let chosen: Vec<_> = located.chosen().iter().map(|candidate| text(candidate.directory())).collect();
    json!({
        "chosen": chosen,
        "platform": located.platform.map(|platform| platform.name),
        "candidates": located.candidates.iter().map(|candidate| candidate_as_json(candidate, located)).collect::<Vec<_>>(),
        "warnings": located.warnings(),
        "problems": problems,
    })
}

fn candidate_as_json(candidate: &Candidate, located: &Located) -> Value {
    let (verdict, reason) = match &candidate.verdict {
        Verdict::Chosen => ("chosen", None),
        Verdict::PassedOver(better) => ("passed over", Some(format!("{} counts more", better.name()))),
        Verdict::Refused(reason) => ("refused", Some(reason.clone())),
        Verdict::Unclear(reason) => ("unclear", Some(reason.clone())),
    };
    json!({
        "directory": candidate.directory().map(Path::to_string_lossy),
        "directoryOfKubelet": candidate.inside().map(Path::to_string_lossy),
        "origin": candidate.origin.name(),
        "evidence": candidate.evidence,
        "verdict": verdict,
        "reason": reason,
        "notes": candidate.notes,
        "state": candidate.condition.as_ref().map(|condition| json!({
            "text": candidate.state(),
            "exists": condition.is_there(),
            "symlinkTo": condition.leads_to().map(Path::to_string_lossy),
            "writable": condition.may_write && !condition.read_only,
            "readOnly": condition.read_only,
            "noexec": condition.no_exec,
            "drivers": condition.directories,
            "problem": candidate.problem(located.platform),
        })),
    })
}

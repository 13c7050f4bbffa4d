//! Plugin directory: which one it is, whether drivers can be executed there, and whether drivers
//! lie where kubelet does not look.

use super::finding::halves;
use super::{DoctorRequest, Finding};
use anyhow::Result;
use flexvol_kubelet::locate::{Located, Origin};
use flexvol_kubelet::{platform, scan};
use flexvol_linux::fs::exec_dir::{self, ExecDirState};
use flexvol_linux::fs::{directory, listing};
use flexvol_protocol::ordered::filled;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

pub(super) fn look(request: &DoctorRequest) -> Result<Vec<Finding>> {
    let located = request.located()?;
    let mut findings = Vec::new();
    if located.chosen().is_empty() {
        let evidence = format!("no plugin directory is known here: {}", located.explain().join("; "));
        findings.push(Finding::error(
            "plugin-dir-none",
            &evidence,
            "name it with --plugin-dir, flexvol locate says why",
        ));
        return Ok(findings);
    }
    for candidate in located.chosen() {
        if let Some(problem) = candidate.problem(located.platform) {
            let (evidence, fix) = halves(&problem);
            findings.push(Finding::error(id_of(&problem), evidence, fix));
        } else if let Some(missing) = candidate.condition.as_ref().filter(|found| !found.is_there()) {
            let path = candidate.directory().unwrap_or(Path::new("?")).display();
            findings.push(absent(&path.to_string(), &missing.kind));
        }
        findings.extend(candidate.directory().iter().flat_map(|path| open_to_others(path)));
    }
    findings.extend(elsewhere(&located));
    findings.extend(located.warnings().iter().map(|warning| noted(warning)));
    Ok(findings)
}

/// Finds paths that others can write to: kubelet runs the drivers there as root.
fn open_to_others(plugins: &Path) -> Vec<Finding> {
    let of_driver = |name: String| [plugins.join(&name), scan::executable(plugins, name.as_ref())];
    let drivers = drivers_in(plugins).into_iter().flat_map(of_driver);
    let all = std::iter::once(plugins.to_owned()).chain(drivers);
    let is_open = |path: &PathBuf| path.metadata().is_ok_and(|found| found.mode() & 0o022 != 0);
    let finding = |path: PathBuf| {
        let path = path.display();
        let evidence =
            format!("{path} can be written by others than its owner, and kubelet runs as root what is there");
        Finding::error(
            "open-to-others",
            &evidence,
            &format!("chmod go-w {path}; check that what is there was not changed"),
        )
    };
    all.filter(is_open).map(finding).collect()
}

/// Turns a warning about a directory into a note. The warning may end with a fix, or with a cause.
fn noted(warning: &str) -> Finding {
    Finding::note(
        "plugin-dir-note",
        warning,
        "flexvol locate says what was found and believed; --plugin-dir names another directory",
    )
}

/// Reports a plugin directory that is missing, cannot be read, or is not a directory.
fn absent(path: &str, kind: &ExecDirState) -> Finding {
    let finding = |what: &str, fix: &str| {
        Finding::warning("plugin-dir-missing", &format!("plugin directory {path} {what}"), fix)
    };
    match kind {
        ExecDirState::Other(in_the_way) => {
            let text = in_the_way.to_string();
            let (what, fix) = halves(&text);
            finding(&format!("cannot be there: {what}"), fix)
        }
        ExecDirState::Unseen(why) => finding(&format!("cannot be seen: {why}"), "run this as root"),
        _ => finding(
            "is not there, so kubelet has no driver",
            "flexvol install makes it, and puts drivers there",
        ),
    }
}

fn id_of(problem: &str) -> &'static str {
    match () {
        () if problem.contains("noexec") => "plugin-dir-noexec",
        () if problem.contains("read-only") => "plugin-dir-read-only",
        () => "plugin-dir-unusable",
    }
}

/// Finds drivers in a directory that kubelets elsewhere read, but not the one here.
fn elsewhere(located: &Located) -> Vec<Finding> {
    let read = located.chosen();
    let directories: Vec<_> = read.iter().filter_map(|each| each.directory()).collect();
    let chosen: Vec<_> = directories.iter().filter_map(|path| path.canonicalize().ok()).collect();
    let told = [Origin::Kubelet, Origin::Explicit, Origin::Environment];
    let sure = read.iter().any(|each| told.contains(&each.origin));
    let read = directories.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    let known = platform::all().iter().filter_map(platform::Platform::directory).map(PathBuf::from);
    let claimed = located.candidates.iter().filter_map(|candidate| candidate.directory().map(Path::to_owned));
    let others: BTreeSet<_> = filled(known.chain(claimed).filter_map(|path| path.canonicalize().ok()));
    let others = others.into_iter().filter(|path| !chosen.contains(path) && exec_dir::look(path).is_there());
    let found = others.filter_map(|path| {
        let drivers = drivers_in(&path);
        (!drivers.is_empty()).then_some((path, drivers))
    });
    found
        .map(|(path, drivers)| {
            let lie = if drivers.len() == 1 { "lies" } else { "lie" };
            let evidence = format!("{} {lie} in {}, and kubelet reads {read}", drivers.join(", "), path.display());
            let fix = "install it where kubelet looks (flexvol install), or start kubelet with that --volume-plugin-dir";
            if sure { Finding::error("plugin-dir-wrong", &evidence, fix) } else { Finding::warning("plugin-dir-wrong", &evidence, fix) }
        })
        .collect()
}

/// Returns the drivers with an executable: an empty directory belongs to no driver.
fn drivers_in(path: &Path) -> Vec<String> {
    let entries = listing::list(path).unwrap_or_default();
    let named = entries
        .into_iter()
        .filter(|entry| entry.kind == directory::Kind::Directory)
        .filter_map(|entry| entry.name.into_string().ok());
    let has_executable = |name: &String| {
        name.contains('~') && scan::executable(path, name.as_ref()).symlink_metadata().is_ok()
    };
    named.filter(has_executable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::{wording, wording_of};
    use flexvol_linux::fs::exec_dir::InTheWay;

    #[test]
    fn why_there_is_no_plugin_directory_is_said_in_words() {
        let evidence = |kind: ExecDirState| {
            let found = absent("/p", &kind);
            assert!(!found.evidence.contains(['(', '"']) && !found.fix.is_empty(), "{found:?}");
            format!("{}: {}", found.evidence, found.fix)
        };
        assert!(evidence(ExecDirState::Missing("/".into())).starts_with("plugin directory /p is not there"));
        let file = InTheWay { path: "/p".into(), leads_to: None };
        assert!(evidence(ExecDirState::Other(file)).ends_with(wording_of("path-is-no-directory", ["/p"])));
        assert!(evidence(ExecDirState::Unseen("permission denied".into())).ends_with(wording("run-as-root")));
    }

    #[test]
    fn why_a_directory_is_not_believed_is_no_fix() {
        let warning = "not believed: kubelet, pid 7: \"plugins\" is relative";
        let note = noted(warning);
        assert_eq!(note.evidence, warning);
        assert!(note.fix.contains("flexvol locate"), "{}", note.fix);
    }
}

//! The node's agent, if the side file of a driver names it: does it answer, does it reach the
//! locks, what has it lost, and what waits for it?

use super::{DoctorRequest, Finding, installed};
use anyhow::Result;
use flexvol_linux::errno::Errno;
use flexvol_linux::fs::files;
use flexvol_linux::mount::mount_table::{Entry, Tables};
use flexvol_linux::mount::place::path_in_table;
use flexvol_linux::net::daemon_socket;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_model::{agent, paths};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Deadline for its answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Age limit for a pending release: an older one waits for an agent that does not run.
const OVERDUE: Duration = Duration::from_mins(1);

pub(super) fn look(request: &DoctorRequest) -> Result<Vec<Finding>> {
    let mut drivers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for installed in installed::all(request)? {
        if let Ok(Some(agent)) = agent::settings(&installed.settings.agent) {
            drivers.entry(agent.socket.to_owned()).or_default().push(installed.name());
        }
    }
    let mut findings: Vec<_> =
        drivers.iter().flat_map(|(socket, drivers)| of_agent(socket, &drivers.join(", "))).collect();
    findings.extend(overdue());
    Ok(findings)
}

fn of_agent(socket: &str, drivers: &str) -> Vec<Finding> {
    let request = format!(r#"{{"v":{},"method":"status"}}"#, agent::PROTOCOL);
    let answer = daemon_socket::ask(Path::new(socket), &request, &Deadline::after(PATIENCE));
    let answer = answer.and_then(|answer| Ok(serde_json::from_slice::<Value>(&answer)?));
    let status = match &answer {
        Err(error) if error.downcast_ref() == Some(&Errno::ACCESS) => {
            return vec![Finding::note("agent-unseen", socket, "run this as root")];
        }
        Err(error) => return vec![missing(socket, drivers, &format!("{error:#}"))],
        Ok(answer) if !answer["ok"].is_object() => {
            return vec![missing(socket, drivers, text(&answer["err"], "msg"))];
        }
        Ok(answer) => &answer["ok"],
    };
    let holds = status["holds"].as_array().map_or(&[][..], Vec::as_slice);
    // If the tables cannot be read, no target is reported as gone.
    let mounts = Tables::open(std::iter::empty()).and_then(|mut tables| tables.read()).ok();
    let mut findings: Vec<_> = holds.iter().filter_map(|hold| of_hold(hold, mounts.as_deref())).collect();
    if status["ready"] != true {
        let evidence = format!("the agent at {socket} does not reach its locks in {}", text(status, "store"));
        let fix = "read its log, and look at what the locks are in: until then nothing new is mounted";
        findings.push(Finding::error("agent-unready", &evidence, fix));
    }
    findings
}

fn missing(socket: &str, drivers: &str, why: &str) -> Finding {
    let evidence = format!("{drivers} hold storage with the agent at {socket}, which does not answer: {why}");
    let fix = "start flexvold agent on this node; volumes are unmounted without it, and not mounted";
    Finding::error("agent-missing", &evidence, fix)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn of_hold(hold: &Value, mounts: Option<&[Entry]>) -> Option<Finding> {
    let [handle, pod, target] = ["handle", "pod", "target"].map(|key| text(hold, key));
    match text(hold, "phase") {
        "lost" => {
            let evidence = format!("{handle} was given to another node, and is mounted here at {target}");
            let fix = format!("delete pod {pod}: until then nothing new is mounted on this node");
            Some(Finding::error("agent-lost", &evidence, &fix))
        }
        "releasing" => {
            let evidence = format!("{handle} of pod {pod} is unmounted, and not released yet");
            let fix = "look what still uses its device, and whether the locks can be reached";
            Some(Finding::warning("agent-releasing", &evidence, fix))
        }
        "held" if mounts.is_some_and(|mounts| is_gone(target, mounts)) => {
            let evidence = format!("{handle} is held for pod {pod}, whose {target} is gone");
            let fix = "wait a quarter of an hour: then the agent releases it";
            Some(Finding::warning("agent-stale", &evidence, fix))
        }
        _ => None,
    }
}

/// Reports whether a target is neither mounted nor there. Never touches a mounted one: it may hang.
fn is_gone(target: &str, mounts: &[Entry]) -> bool {
    let target = path_in_table(Path::new(target));
    mounts.iter().all(|mount| mount.target != target) && !target.exists()
}

/// Reports releases that drivers have noted while no agent answered.
fn overdue() -> Option<Finding> {
    let directory = paths::run(paths::HOLDS);
    let notes = directory.read_dir().ok()?.flatten().map(|note| note.path());
    let notes = notes.filter(|note| note.extension().is_some_and(|end| end == "released"));
    let late = notes.filter(|note| files::age(note).is_some_and(|age| age > OVERDUE)).count();
    let evidence =
        format!("{late} volumes are unmounted, and no agent has heard of it: {}", directory.display());
    let fix = "start flexvold agent on this node: until then others are kept from that storage";
    (late > 0).then(|| Finding::warning("agent-unheard", &evidence, fix))
}

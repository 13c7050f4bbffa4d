//! `--dry-run`: prints the calls, and executes no driver.

use crate::cli::objects::title;
use anyhow::Result;
use flexvol_kubelet::{PodVolume, masked};
use flexvol_protocol::Verb;
use flexvol_protocol::shell::words;
use flexvol_terminal::screen::Screen;
use serde::Serialize;
use std::process::ExitCode;

/// Placeholder for the device that `attach` would return.
const DEVICE: &str = "<device>";

/// One call that would be made.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Planned {
    pod: Option<String>,
    namespace: Option<String>,
    volume: String,
    driver: String,
    arguments: Vec<String>,
    /// True if the call is made only for a driver whose `init` says that it attaches.
    if_it_attaches: bool,
}

/// Prints the calls for all volumes: those that bring them up, or those that take them down.
pub(super) fn print(screen: &mut Screen, volumes: &[PodVolume], node: &str, up: bool) -> Result<ExitCode> {
    let planned = plan(volumes, node, up)?;
    if screen.wants_json() {
        screen.json(&planned)?;
        return Ok(ExitCode::SUCCESS);
    }
    for volume in volumes {
        screen.heading(&format!("{}, driver {}", title(volume), volume.driver))?;
        let of_pod = |call: &&Planned| call.volume == volume.name && call.pod == volume.options.pod.name;
        for call in planned.iter().filter(of_pod) {
            let mark = if call.if_it_attaches { "*" } else { " " };
            screen.line(&format!("{mark} {}", words(&call.arguments)))?;
        }
    }
    screen.line("\n* only for a driver whose init says attach")?;
    Ok(ExitCode::SUCCESS)
}

fn plan(volumes: &[PodVolume], node: &str, up: bool) -> Result<Vec<Planned>> {
    let mut planned = Vec::new();
    for volume in volumes {
        for (call, if_it_attaches) in volume.calls(node, DEVICE)? {
            let takes_down = matches!(call.verb(), Verb::Unmount | Verb::UnmountDevice | Verb::Detach);
            if takes_down != up {
                planned.push(Planned {
                    pod: volume.options.pod.name.clone(),
                    namespace: volume.options.pod.namespace.clone(),
                    volume: volume.name.clone(),
                    driver: volume.driver.to_string(),
                    arguments: masked(&call),
                    if_it_attaches,
                });
            }
        }
    }
    Ok(planned)
}

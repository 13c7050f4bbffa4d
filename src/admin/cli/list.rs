//! `flexvol list`: prints the content of plugin directories.

use super::placing::{self, Placing};
use crate::plugin_dir::list::{Item, Owner, list_noted};
use crate::plugin_dir::opened::PluginDirPath;
use anyhow::Result;
use clap::Args;
use flexvol_kubelet::scan::{self, Finding};
use flexvol_linux::proc::signal;
use flexvol_terminal::capabilities;
use flexvol_terminal::exit::say;
use flexvol_terminal::probing::{self, plain, printable};
use flexvol_terminal::screen::{Screen, Tone};
use serde_json::{Value, json};
use std::process::ExitCode;

/// List all drivers in a plugin directory, not only flexvol's
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo flexvol list
  flexvol list --plugin-dir /var/lib/kubelet/volumeplugins
  flexvol list --no-init                  without running foreign programs
  flexvol list --json | jq -r '.[].drivers[] | select(.problems != []) | .directory'

Whose a driver is: flexvol put it there and it is unchanged (flexvol) or not (altered), a flexvol was copied there by \
hand (by hand), it is somebody else's (foreign), or you may not look at it (unknown). Its init is run as kubelet runs it, so that what kubelet would log \
can be shown. MOUNTED counts the volumes on this node that would have no driver without it.

Exit status: 0 nothing to complain about, 1 a driver is broken or a directory cannot be read, 2 wrong usage.")]
pub(super) struct List {
    #[command(flatten)]
    placing: Placing,
    /// Execute no driver; capabilities and what kubelet would log are then unknown
    #[arg(long)]
    no_init: bool,
}

impl List {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        signal::install()?;
        let terms = (!self.no_init).then(scan::terms);
        let mut whole = Vec::new();
        let mut healthy = true;
        for place in self.placing.places(screen)? {
            let items = list_noted(&place, &self.placing.state, terms.as_ref());
            healthy &= matches!(&items, Ok(items) if items.iter().all(|item| item.problems().is_empty()));
            match items {
                Ok(items) if screen.wants_json() => whole.push(as_json(&place, &items)),
                Ok(items) => show(&place, &items, screen)?,
                Err(error) if screen.wants_json() => {
                    let error = placing::message(&error);
                    whole.push(json!({"pluginDir": place.directory, "error": error}));
                }
                Err(error) => say(&placing::message(&error), false),
            }
        }
        if screen.wants_json() {
            screen.json(&whole)?;
        }
        Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn show(place: &PluginDirPath, items: &[Item], screen: &mut Screen) -> Result<()> {
    screen.line(&format!("{}:", plain(place.directory.as_os_str())))?;
    if items.is_empty() {
        return screen.line("nothing: flexvol install puts a driver there");
    }
    let heading = ["DIRECTORY", "WHOSE", "DRIVER", "VERSION", "SHA-256", "MOUNTED", "CAPABILITIES"];
    let rows: Vec<_> = std::iter::once(heading.map(str::to_owned)).chain(items.iter().map(row)).collect();
    screen.table(&rows)?;
    for item in items {
        for problem in item.problems() {
            let name = screen.paint(Tone::Bad, &plain(&item.directory));
            screen.line(&format!("{name}: {}", printable(&problem)))?;
        }
    }
    Ok(())
}

fn row(item: &Item) -> [String; 7] {
    let or_none = |text: Option<&str>| text.unwrap_or("-").to_owned();
    let seen = match &item.finding {
        Some(Finding::Loaded(loaded)) => probing::in_service(loaded),
        Some(Finding::Failed(_)) => "not loaded".to_owned(),
        Some(Finding::Ignored(why)) => format!("ignored: {why}"),
        None => String::new(),
    };
    [
        plain(&item.directory),
        whose(&item.owner).to_owned(),
        or_none(item.driver.as_deref()),
        or_none(item.version()),
        or_none(item.program.as_ref().map(|program| program.fingerprint.short_hash())),
        item.volumes.len().to_string(),
        seen,
    ]
}

fn whose(owner: &Owner) -> &'static str {
    match owner {
        Owner::Flexvol => "flexvol",
        Owner::Altered(_) => "altered",
        Owner::ByHand => "by hand",
        Owner::Foreign => "foreign",
        Owner::Nobody(_) => "-",
        Owner::Unknown(_) => "unknown",
    }
}

fn as_json(place: &PluginDirPath, items: &[Item]) -> Value {
    json!({
        "pluginDir": place.directory,
        "drivers": items.iter().map(item_as_json).collect::<Vec<_>>(),
    })
}

fn item_as_json(item: &Item) -> Value {
    let (state, held) = match &item.finding {
        Some(Finding::Loaded(loaded)) => ("loaded", Some(capabilities::json(loaded.capabilities))),
        Some(Finding::Failed(_)) => ("failed", None),
        Some(Finding::Ignored(_)) => ("ignored", None),
        None => ("not asked", None),
    };
    json!({
        "directory": item.directory.to_string_lossy(),
        "owner": whose(&item.owner),
        "driver": item.driver,
        "version": item.version(),
        "sha256": item.program.as_ref().map(|program| &program.fingerprint.hash),
        "state": state,
        "capabilities": held,
        "volumes": item.volumes.iter().map(|volume| json!({
            "target": volume.target.to_string_lossy(),
            "pod": volume.pod,
        })).collect::<Vec<_>>(),
        "problems": item.problems(),
    })
}

//! `flexvol uninstall`: removes drivers from plugin directories.

use super::placing::{self, Placing, Shown};
use crate::plugin_dir::uninstall::{Busy, Removed, UninstallRequest, uninstall};
use anyhow::Result;
use clap::Args;
use flexvol_protocol::DriverName;
use flexvol_terminal::screen::Screen;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

/// Default wait of `--when-idle`, in seconds.
const IDLE: &str = "600";

/// Remove drivers that flexvol installed, unless volumes need them
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo flexvol uninstall tmpfs                      flexvol/tmpfs
  sudo flexvol uninstall example.com/scratch --when-idle
  sudo flexvol uninstall example.com/scratch --when-idle=60

Without its driver no volume can be unmounted, and its pod never ends: so this refuses while one is mounted. Only what \
flexvol put there is removed, and nothing of it is left; a driver of somebody else stays. One that is not there is fine.

Exit status: 0 gone, 1 failed, 2 wrong usage, 4 somebody else's driver or file is there, 6 volumes are mounted, or may be, \
10 another installer holds the directory. Of several drivers all are tried, and the highest status counts.")]
pub(super) struct Uninstall {
    /// Driver to remove: [VENDOR/]NAME
    #[arg(required = true, value_name = "DRIVER", value_parser = placing::name)]
    drivers: Vec<DriverName>,
    #[command(flatten)]
    placing: Placing,
    /// Wait up to SECONDS until no volume of the driver is mounted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = IDLE, conflicts_with = "force")]
    when_idle: Option<u64>,
    /// Remove it even if volumes are or may be mounted: their pods cannot end until it is back
    #[arg(long)]
    force: bool,
}

impl Uninstall {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        let mut done = Vec::new();
        for place in self.placing.places(screen)? {
            for name in &self.drivers {
                let (name, state) = (name.clone(), self.placing.state.clone());
                let request = UninstallRequest { name, place: place.clone(), state, busy: self.busy() };
                let result = uninstall(&request).map(|removed| Gone { name: request.name.clone(), removed });
                done.push((request.name, request.place, result));
            }
        }
        placing::conclude(screen, &done)
    }

    fn busy(&self) -> Busy {
        match self.when_idle {
            _ if self.force => Busy::Ignore,
            Some(seconds) => Busy::Wait(Duration::from_secs(seconds)),
            None => Busy::Refuse,
        }
    }
}

/// Result for one driver.
struct Gone {
    name: DriverName,
    removed: Removed,
}

impl Gone {
    fn word(&self) -> &'static str {
        if self.removed.was_there { "removed" } else { "not there" }
    }
}

impl Shown for Gone {
    fn text(&self) -> String {
        format!("{} {}", self.name, self.word())
    }

    fn json(&self) -> Value {
        json!({"action": self.word()})
    }

    fn warnings(&self) -> &[String] {
        &self.removed.warnings
    }
}

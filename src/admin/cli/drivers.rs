//! `flexvol drivers`: prints the table of drivers.

use super::dialect;
use anyhow::Result;
use clap::Args;
use flexvol_model::driver::Driver;
use flexvol_model::drivers::ALL;
use flexvol_model::settings::Settings;
use flexvol_protocol::Verb;
use flexvol_terminal::capabilities;
use flexvol_terminal::screen::Screen;
use serde_json::{Value, json};
use std::process::ExitCode;

/// List the drivers in this binary, with their verbs and capabilities
#[derive(Args)]
#[command(after_help = "\
What a driver's options are says `flexvol explain DRIVER`, what those of another driver become `flexvol explain \
--profile NAME`.")]
pub(super) struct Drivers {
    /// List other drivers whose options flexvol understands, and its own driver for each
    #[arg(long)]
    profiles: bool,
}

impl Drivers {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        if self.profiles {
            dialect::list(screen)?;
        } else if screen.wants_json() {
            screen.json(&ALL.iter().map(|driver| summary(*driver)).collect::<Vec<_>>())?;
        } else {
            let heading = ["DRIVER", "WHAT IT MOUNTS", "VERBS", "CAPABILITIES"].map(str::to_owned);
            let rows: Vec<_> =
                std::iter::once(heading).chain(ALL.iter().map(|driver| row(*driver))).collect();
            screen.table(&rows)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn row(driver: &dyn Driver) -> [String; 4] {
    let held = driver.capabilities(&Settings::default());
    let verbs = verbs(driver).join(" ");
    [driver.name().to_owned(), driver.summary().to_owned(), verbs, capabilities::names(held)]
}

/// Returns the names of a driver's verbs, in the order of a volume's life.
pub(super) fn verbs(driver: &dyn Driver) -> Vec<&'static str> {
    driver.verbs(&Settings::default()).iter().map(Verb::name).collect()
}

/// Returns one driver for programs.
pub(super) fn summary(driver: &dyn Driver) -> Value {
    json!({
        "driver": driver.name(),
        "summary": driver.summary(),
        "verbs": verbs(driver),
        "programs": driver.programs(&Settings::default()),
        "capabilities": capabilities::json(driver.capabilities(&Settings::default())),
    })
}

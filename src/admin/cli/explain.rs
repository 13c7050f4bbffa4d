//! `flexvol explain`: describes one driver before it is used.

use super::dialect;
use super::drivers::summary;
use super::example;
use anyhow::Result;
use clap::Args;
use flexvol_model::driver::Driver;
use flexvol_model::installed::Meaning;
use flexvol_model::profiles::{self, Profile};
use flexvol_model::schema::{OptionSpec, SecretSpec};
use flexvol_model::settings::Settings;
use flexvol_protocol::Verb;
use flexvol_terminal::arguments::{profile_parser, subject};
use flexvol_terminal::capabilities;
use flexvol_terminal::screen::{Screen, wrap};
use serde_json::{Value, json};
use std::process::ExitCode;

/// Explain a driver: its options, verbs and capabilities, with manifests to copy
#[derive(Args)]
#[command(after_help = "\
Examples:
  flexvol explain image
  flexvol explain --profile kvaps/loop          the options of another driver, and what differs
  flexvol explain tmpfs --json | jq -r .manifest | kubectl apply --dry-run=client -f -")]
pub(super) struct Explain {
    /// The driver
    #[arg(value_parser = subject(), required_unless_present = "profile", conflicts_with = "profile")]
    driver: Option<Meaning>,
    /// Another driver whose options flexvol understands (flexvol drivers --profiles)
    #[arg(long, value_name = "PROFILE", value_parser = profile_parser())]
    profile: Option<&'static Profile>,
}

impl Explain {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        match self.profile.map(Meaning::Profile).or(self.driver) {
            Some(Meaning::Profile(profile)) if screen.wants_json() => screen.json(&dialect::json(profile))?,
            Some(Meaning::Profile(profile)) => dialect::print(screen, profile)?,
            Some(Meaning::Driver(driver)) if screen.wants_json() => screen.json(&json(driver))?,
            Some(Meaning::Driver(driver)) => print(screen, driver)?,
            // The command line requires one of them.
            None => {}
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn print(screen: &mut Screen, driver: &dyn Driver) -> Result<()> {
    screen.heading(&format!("{}: {}", driver.name(), driver.summary()))?;
    if let Some(hint) = driver.hint() {
        screen.text(&format!("\n{}", wrap(&hint, 0, screen.width())))?;
    }
    screen.heading("\nOptions (flexVolume.options)")?;
    for option in driver.options() {
        screen.line(&format!("  {}  {}", option.name, about(option)))?;
        screen.text(&wrap(&doc(option), 6, screen.width()))?;
    }
    if driver.options().is_empty() {
        screen.line("  those that the side file names")?;
    }
    dialect::secrets(screen, driver)?;
    screen.heading("\nVerbs")?;
    for verb in driver.verbs(&Settings::default()).iter() {
        screen.line(&format!("  {verb:<10} {}", verb.spec().doc))?;
    }
    screen.heading("\nCapabilities")?;
    for (name, value, doc) in capabilities::all(driver.capabilities(&Settings::default())) {
        screen.line(&format!("  {name:<16} {value:<5}  {doc}"))?;
    }
    if driver.verbs(&Settings::default()).contains(Verb::Attach) {
        screen.text(&wrap(MAY_ATTACH, 2, screen.width()))?;
    }
    let dialects: Vec<_> =
        profiles::ALL.iter().filter(|other| other.driver.name() == driver.name()).collect();
    if !dialects.is_empty() {
        screen.heading("\nDrivers whose options it understands (flexvol explain --profile NAME)")?;
    }
    for profile in dialects {
        screen.line(&format!("  {:<24} {}", profile.name, profile.summary))?;
    }
    screen.heading("\nExample: a PV with its claim, and a pod with it")?;
    screen.text(&example::example(driver))
}

/// Help for a driver that attaches if the admin asks for it.
const MAY_ATTACH: &str = "Install it with --set attach=true where Kubernetes itself shall keep a ReadWriteOnce volume \
    from a second node: kube-controller-manager then needs the driver, too, and volumes have to be \
    PersistentVolumes. End the pods with volumes of the driver before you change it.";

/// Returns, for example, `(size, optional, or nr_inodes)`.
fn about(option: &OptionSpec) -> String {
    let default = match option.default {
        Some(default) => format!("default {default}"),
        None if option.required() => "required".to_owned(),
        None => "optional".to_owned(),
    };
    let aliases =
        if option.aliases.is_empty() { String::new() } else { format!(", or {}", option.aliases.join(", ")) };
    format!("({}, {default}{aliases})", option.kind)
}

fn doc(option: &OptionSpec) -> String {
    option.doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

fn json(driver: &dyn Driver) -> Value {
    let option = |option: &OptionSpec| {
        json!({
            "name": option.name,
            "aliases": option.aliases,
            "kind": option.kind,
            "default": option.default,
            "required": option.required(),
            "example": (!option.example.is_empty()).then_some(option.example),
            "doc": doc(option),
        })
    };
    let secret = |secret: &SecretSpec| json!({"keys": secret.keys, "doc": secret.doc});
    let mut all = summary(driver);
    all["options"] = driver.options().iter().map(option).collect();
    all["secretKeys"] = driver.secrets().iter().map(secret).collect();
    all["hint"] = driver.hint().into();
    all["manifest"] = example::example(driver).into();
    all
}

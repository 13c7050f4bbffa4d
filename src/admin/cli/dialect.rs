//! Dialects of other drivers, for people: the output of `drivers --profiles` and `explain
//! --profile`.

use super::example;

use anyhow::Result;
use flexvol_model::driver::Driver;
use flexvol_model::profiles::{ALL, DEVIATIONS, Key, Profile};
use flexvol_model::settings::Settings;
use flexvol_terminal::capabilities;
use flexvol_terminal::screen::{Screen, wrap};
use serde_json::{Value, json};

/// Prints the table of all profiles.
pub(super) fn list(screen: &mut Screen) -> Result<()> {
    if screen.wants_json() {
        return screen.json(&ALL.iter().map(|profile| summary(profile)).collect::<Vec<_>>());
    }
    let heading = ["PROFILE", "DRIVER", "WHAT IT MOUNTS", "CAPABILITIES"].map(str::to_owned);
    let row = |profile: &&Profile| {
        let held = profile.capabilities(&Settings::default());
        let texts = [profile.name, profile.driver.name(), profile.summary];
        let [name, driver, summary] = texts.map(str::to_owned);
        [name, driver, summary, capabilities::names(held)]
    };
    let rows: Vec<_> = std::iter::once(heading).chain(ALL.iter().map(row)).collect();
    screen.table(&rows)
}

/// Prints everything about one profile.
pub(super) fn print(screen: &mut Screen, profile: &Profile) -> Result<()> {
    let driver = profile.driver.name();
    screen.heading(&format!("{}: {}, by the driver {driver}", profile.name, profile.summary))?;
    let text = format!(
        "Installed under this name, or with --profile {0}, flexvol understands the options below and those of \
         {driver}. What neither has, has no effect",
        profile.name
    );
    screen.text(&format!("\n{}", wrap(&text, 0, screen.width())))?;
    keys(screen, "\nOptions (flexVolume.options)", profile.keys)?;
    match profile.secrets {
        [] => secrets(screen, profile.driver)?,
        own => keys(screen, "\nKeys of the Secret (flexVolume.secretRef)", own)?,
    }
    if !profile.defaults.is_empty() {
        screen.heading("\nDefaults")?;
    }
    for (name, value) in profile.defaults {
        screen.line(&format!("  {name}: {value}"))?;
    }
    if profile.order.len() > 1 {
        let order: Vec<_> = profile.order.iter().map(|layer| layer.name()).collect();
        screen.heading("\nWhat wins")?;
        screen.line(&format!("  {}: each over those before it, and read-only over all", order.join(", ")))?;
    }
    screen.heading("\nCapabilities")?;
    for (name, value, doc) in capabilities::all(profile.capabilities(&Settings::default())) {
        screen.line(&format!("  {name:<16} {value:<5}  {doc}"))?;
    }
    screen.text(&wrap(
        "Of fsGroup the admin may say otherwise: install with --set fsGroup=true or false",
        2,
        screen.width(),
    ))?;
    screen.heading("\nWhere it does otherwise than the driver of that name")?;
    for line in profile.deviations.iter().chain(DEVIATIONS) {
        screen.text(&item(line, screen.width()))?;
    }
    screen.heading("\nExample: a PV with its claim, and a pod that says it inline")?;
    screen.text(&example::of_profile(profile))
}

/// Returns a paragraph with a bullet.
fn item(line: &str, width: usize) -> String {
    wrap(line, 4, width).replacen("    ", "  * ", 1)
}

fn keys(screen: &mut Screen, heading: &str, keys: &[Key]) -> Result<()> {
    if !keys.is_empty() {
        screen.heading(heading)?;
    }
    for key in keys {
        let ours = key.ours.filter(|ours| *ours != key.theirs);
        let ours = ours.map_or_else(String::new, |ours| format!(" → {ours}"));
        screen.line(&format!("  {}{ours}", key.theirs))?;
        screen.text(&wrap(key.doc, 6, screen.width()))?;
    }
    Ok(())
}

fn summary(profile: &Profile) -> Value {
    json!({
        "profile": profile.name,
        "driver": profile.driver.name(),
        "summary": profile.summary,
        "capabilities": capabilities::json(profile.capabilities(&Settings::default())),
    })
}

/// Returns one profile for programs.
pub(super) fn json(profile: &Profile) -> Value {
    let key = |key: &Key| json!({"name": key.theirs, "ours": key.ours, "doc": key.doc});
    let pairs = |pairs: &[(&str, &str)]| -> Value {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), Value::from(*value))).collect()
    };
    let mut all = summary(profile);
    all["options"] = profile.keys.iter().map(key).collect();
    all["secretKeys"] = profile.secrets.iter().map(key).collect();
    all["defaults"] = pairs(profile.defaults);
    all["order"] = profile.order.iter().map(|layer| Value::from(layer.name())).collect();
    all["deviations"] = profile.deviations.iter().chain(DEVIATIONS).map(|line| Value::from(*line)).collect();
    all["manifest"] = example::of_profile(profile).into();
    all
}

/// Prints the keys of the Secret that a driver reads.
pub(super) fn secrets(screen: &mut Screen, driver: &dyn Driver) -> Result<()> {
    if !driver.secrets().is_empty() {
        screen.heading("\nKeys of the Secret (flexVolume.secretRef)")?;
    }
    for secret in driver.secrets() {
        screen.line(&format!("  {}", secret.keys.join(" or ")))?;
        screen.text(&wrap(secret.doc, 6, screen.width()))?;
    }
    Ok(())
}

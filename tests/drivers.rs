//! DRIVERS.md says of each driver what its table of options says. `UPDATE=1` writes it anew.
#![cfg(test)]
#![expect(clippy::disallowed_methods, reason = "UPDATE=1 writes a file")]

use flexvol::driver::Driver;
use flexvol::drivers;
use flexvol::schema::{OptionSpec, SecretSpec};
use flexvol::settings::Settings;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// What follows it is written by this test.
const MARK: &str = "<!-- From here on `UPDATE=1 cargo test --test drivers` writes. -->\n";

fn document() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("DRIVERS.md")
}

/// As a cell of a table: a bar would end it.
fn cell(text: &str) -> String {
    text.trim().replace('|', "\\|")
}

fn row(spec: &OptionSpec) -> String {
    let doc: Vec<_> = spec.doc.iter().map(|line| line.trim()).collect();
    let aliases: Vec<_> = spec.aliases.iter().map(|alias| format!("`{alias}`")).collect();
    let name = if spec.required() { format!("**`{}`**", spec.name) } else { format!("`{}`", spec.name) };
    let default = spec.default.map(|default| format!("`{default}`")).unwrap_or_default();
    let cells = [name, aliases.join(" "), cell(spec.kind), default, cell(&doc.join(" "))];
    format!("| {} |\n", cells.join(" | ")).replace("|  |", "| |").replace("|  |", "| |")
}

fn section(driver: &dyn Driver) -> String {
    let settings = Settings::default();
    let said = driver.capabilities(&settings);
    let capabilities = [
        (said.attach, "attach"),
        (said.fs_group, "fsGroup"),
        (said.requires_fs_resize, "requiresFSResize"),
        (said.selinux_relabel, "selinuxRelabel"),
        (said.supports_metrics, "supportsMetrics"),
    ];
    let capabilities: Vec<_> =
        capabilities.into_iter().filter_map(|(said, name)| said.then_some(name)).collect();
    let capabilities = if capabilities.is_empty() { "none".to_owned() } else { capabilities.join(", ") };
    let mut text = format!("\n## {}\n\nStorage: {}. ", driver.name(), driver.summary());
    let _ = writeln!(text, "Capabilities: {capabilities}.");
    if !driver.options().is_empty() {
        text.push_str("\n| option | also | value | default | meaning |\n|---|---|---|---|---|\n");
        text.extend(driver.options().iter().map(row));
    }
    if !driver.secrets().is_empty() {
        text.push_str("\n| key of the Secret | also | meaning |\n|---|---|---|\n");
        text.extend(driver.secrets().iter().map(secret));
    }
    text
}

fn secret(spec: &SecretSpec) -> String {
    let keys: Vec<_> = spec.keys.iter().map(|key| format!("`{key}`")).collect();
    let (first, others) = keys.split_first().expect("a key");
    format!("| {first} | {} | {} |\n", others.join(" "), cell(spec.doc)).replace("|  |", "| |")
}

#[test]
fn the_document_says_what_the_drivers_do() {
    let kept = fs::read_to_string(document()).unwrap();
    let (written, _) = kept.split_once(MARK).expect("the mark");
    let sections: String = drivers::ALL.iter().map(|driver| section(*driver)).collect();
    let text = format!("{written}{MARK}{sections}");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(document(), &text).unwrap();
    }
    assert_eq!(fs::read_to_string(document()).unwrap(), text, "run with UPDATE=1 and look at the diff");
}

/// A driver without a row has no proof.
#[test]
fn every_driver_has_its_row_of_proofs() {
    let kept = fs::read_to_string(document()).unwrap();
    let (written, _) = kept.split_once(MARK).expect("the mark");
    for driver in drivers::ALL {
        let start = format!("| `{}` |", driver.name());
        let row = written.lines().find(|line| line.starts_with(&start));
        let row = row.unwrap_or_else(|| panic!("no row for {}", driver.name()));
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert!(cells.len() == 5 && cells.iter().all(|cell| cell.len() > 3), "{row}");
    }
}

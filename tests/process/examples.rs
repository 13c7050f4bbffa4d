//! The files in examples/ are what `flexvol explain` prints, and `flexvol validate` finds nothing
//! in them. `UPDATE=1` rewrites them.

use crate::support::{BINARY, release};
use flexvol::{drivers, profiles};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

fn explained(arguments: &[&str]) -> String {
    let output = Command::new(BINARY).arg("explain").args(arguments).arg("--json").output().unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    said["manifest"].as_str().unwrap_or_else(|| panic!("{arguments:?}: no manifest")).to_owned()
}

/// Every file that belongs there, with its text.
fn expected() -> BTreeMap<PathBuf, String> {
    let of_driver = |name: &str| (directory().join(format!("{name}.yaml")), explained(&[name]));
    let of_profile = |name: &str| {
        let file = format!("profiles/{}.yaml", name.replace('/', "~"));
        (directory().join(file), explained(&["--profile", name]))
    };
    let drivers = drivers::ALL.iter().map(|driver| of_driver(driver.name()));
    drivers.chain(profiles::ALL.iter().map(|profile| of_profile(profile.name))).collect()
}

fn found() -> BTreeMap<PathBuf, String> {
    let entries = [directory(), directory().join("profiles")];
    let paths =
        entries.iter().flat_map(|entry| fs::read_dir(entry).unwrap()).map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
        .collect()
}

#[test]
fn they_are_what_explain_prints() {
    let expected = expected();
    if std::env::var_os("UPDATE").is_some() {
        for path in found().into_keys().filter(|path| !expected.contains_key(path)) {
            fs::remove_file(path).unwrap();
        }
        for (path, text) in &expected {
            fs::write(path, text).unwrap();
        }
    }
    assert_eq!(found(), expected, "UPDATE=1 accepts");
}

/// On a node where the driver is installed as the file's first line says.
#[test]
fn nothing_is_wrong_with_them() {
    let binary = release().unwrap_or_else(|| BINARY.into());
    for path in found().keys() {
        let output = Command::new("sh").args(["-c", CHECK]).args([&binary, path]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}:\n{said}", path.display());
    }
}

const CHECK: &str = r#"
node=$(mktemp -d) && trap 'rm -r "$node"' EXIT
plugins=$node/plugins
flexvol() { "$0" "$@"; }
eval "$(sed -n '1s/^# On each node: //p' "$1") --plugin-dir $plugins --state-dir $node/state" && flexvol validate --strict --plugin-dir "$plugins" -f "$1"
"#;

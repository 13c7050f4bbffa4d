//! PROFILES.md, made of the table of profiles.

use flexvol::profiles::{ALL, DEVIATIONS, Profile};
use flexvol::settings::Settings;
use std::fmt::Write as _;

fn section(profile: &Profile) -> String {
    let held = profile.capabilities(&Settings::default());
    let mut text = format!("\n## {}\n\n", profile.name);
    let driver = profile.driver.name();
    let summary = capital(profile.summary);
    let said =
        format!("{summary}, by the driver `{driver}`; attach {}, fsGroup {}.", held.attach, held.fs_group);
    wrapped(&mut text, "", &said);
    text.push('\n');
    if !profile.keys.is_empty() {
        text += "| option | ours | meaning |\n|---|---|---|\n";
    }
    for key in profile.keys {
        let ours = key.ours.map(|ours| format!("`{ours}`")).unwrap_or_default();
        let _ = writeln!(text, "| `{}` | {ours} | {} |", key.theirs, key.doc.replace('|', "\\|"));
    }
    for key in profile.secrets {
        let ours = key.ours.map(|ours| format!("`{ours}`")).unwrap_or_default();
        let _ = writeln!(text, "| secret `{}` | {ours} | {} |", key.theirs, key.doc);
    }
    if !profile.defaults.is_empty() {
        let words: Vec<_> = profile.defaults.iter().map(|(key, value)| format!("`{key}: {value}`")).collect();
        let _ = writeln!(text, "\nDefaults: {}.", words.join(", "));
    }
    if profile.order.len() > 1 {
        let layers: Vec<_> = profile.order.iter().map(|layer| layer.name()).collect();
        let _ = writeln!(text, "\nWhat wins: {}, the later over the earlier.", layers.join(", "));
    }
    text += "\nOtherwise than the driver of that name:\n\n";
    for line in profile.deviations {
        wrapped(&mut text, "* ", line);
    }
    text.replace("\n\n\n", "\n\n")
}

/// A paragraph or a point of a list, in lines of 120 columns.
fn wrapped(text: &mut String, mark: &str, prose: &str) {
    let mut line = mark.to_owned();
    for word in prose.split_inclusive(' ') {
        if line.chars().count() + word.trim_end().chars().count() > 120 {
            let _ = writeln!(text, "{}", line.trim_end());
            line = " ".repeat(mark.len());
        }
        line += word;
    }
    let _ = writeln!(text, "{line}");
}

fn capital(text: &str) -> String {
    text[..1].to_uppercase() + &text[1..]
}

/// What PROFILES.md has to be.
pub(crate) fn document() -> String {
    let mut text = String::from(
        "\
# Profiles

The drivers whose options flexvol understands, so that their volumes stay as they are. Install flexvol under the
driver's own name (`flexvol install fstab/cifs --take-over`), or under another with `--profile`. The options of our
driver are understood beside those listed. What nobody knows has no effect, as it had none before, and `flexvol plan`
and `flexvol explain --profile` say so.

attach must be what it was: volumes that are in use are named by it. fsGroup, by which kubelet gives all files to the
pod's group, is what it was too where pods may rely on it; `flexvol install k8s/nfs --set fsGroup=false` switches it
off, `=true` on.

Written by `tests/pure/profiles.rs`; do not edit.

| profile | driver | attach | fsGroup |
|---|---|---|---|
",
    );
    for profile in ALL {
        let held = profile.capabilities(&Settings::default());
        let driver = profile.driver.name();
        let _ = writeln!(text, "| {} | `{driver}` | {} | {} |", profile.name, held.attach, held.fs_group);
    }
    text += "\nOtherwise than any of them:\n\n";
    for line in DEVIATIONS {
        wrapped(&mut text, "* ", line);
    }
    text + &ALL.iter().map(|profile| section(profile)).collect::<String>()
}

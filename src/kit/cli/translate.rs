//! `flexvol-kit translate`.

use super::objects;
use super::validate::manifests;
use crate::translate::{self, Direction, Object, To, Translated};
use anyhow::{Context as _, Result};
use clap::Args;
use flexvol_model::translate::Refusal;
use flexvol_protocol::failure::Failure;
use flexvol_terminal::exit::say;
use flexvol_terminal::screen::Screen;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Translate FlexVolume volumes in YAML files into volumes of a CSI driver, and back
#[derive(Args)]
#[command(
    override_usage = "flexvol-kit translate [OPTIONS] -f FILE...",
    after_help = "\
A PersistentVolume with flexVolume becomes one with csi for flexvold csi, which serves the same
driver with the same options: what mounts the data stays what it is. Nothing else of the file
changes, comments stay, and other objects are passed through. What the volume was is kept in the
annotation flexvol.dev/flex-source, by which --reverse makes it again exactly.
Volumes in pods and pod templates (Deployment, CronJob, ...) go the same way, in place.

A PersistentVolume's source cannot be changed in a cluster: the volume is created again, under the
same name. So what only the API server writes (status, uid, resourceVersion) is left out, and the
reclaim policy becomes Retain: nothing deletes the data. docs/migrate.md has the steps.

Warnings are printed on standard error. If one volume is refused, nothing is written: each that
is refused is named, with why and the fix. Options that hold credentials are refused: Secrets are
referred to by name, and never read.

Examples:
  flexvol-kit translate -f pv.yaml > pv-csi.yaml
  kubectl get pv web -o yaml | flexvol-kit translate -f - > web-csi.yaml
  flexvol-kit translate -f volumes/ --output volumes-csi/     each file of a directory, for GitOps
  flexvol-kit translate -f pv.yaml --to smb.csi.k8s.io        for csi-driver-smb, option by option
  flexvol-kit translate -f pv-csi.yaml --reverse              the FlexVolume that it was

Exit status: 0 done, 1 a volume was refused or a file could not be read, 2 wrong usage."
)]
pub(super) struct Translate {
    /// YAML or JSON, or a directory of such files; may be repeated, - for standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true, num_args = 1..)]
    files: Vec<PathBuf>,
    /// Third-party CSI driver to translate to, such as smb.csi.k8s.io or ebs.csi.aws.com; volumes
    /// that it cannot take over stay unchanged [default: flexvold csi with the same driver]
    #[arg(long, value_name = "DRIVER", value_parser = target)]
    to: Option<String>,
    /// Translate volumes of the CSI driver back to the original ones
    #[arg(long, conflicts_with = "to")]
    reverse: bool,
    /// Write each file under its name into this directory, which is created, instead of standard
    /// output; no file is replaced
    #[arg(short = 'o', long, value_name = "DIR")]
    output: Option<PathBuf>,
}

fn target(name: &str) -> Result<String, Failure> {
    if translate::is_target(name) {
        return Ok(name.to_owned());
    }
    let all = translate::target_names().join(", ");
    Err(Failure::options(format!("no volume goes to {name:?}: write one of {all}, or leave out --to")))
}

/// File with its translation.
type Done = (PathBuf, Translated);

impl Translate {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        let all = self.translated()?;
        let is_refused = all.iter().any(|(_, done)| !done.refusals.is_empty());
        if screen.wants_json() {
            screen.json(&report(&all))?;
        } else {
            for (file, done) in &all {
                tell(file, done);
            }
        }
        if is_refused {
            return Ok(ExitCode::FAILURE);
        }
        match &self.output {
            Some(directory) => write(directory, &all)?,
            None if screen.wants_json() => {}
            None => print(screen, &all)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn translated(&self) -> Result<Vec<Done>> {
        let to = self.to.as_deref().map_or(To::Flexvold, To::Driver);
        let direction = if self.reverse { Direction::ToFlex } else { Direction::ToCsi(to) };
        let mut paths = Vec::new();
        for path in &self.files {
            if path.is_dir() { paths.extend(manifests(path)?) } else { paths.push(path.clone()) }
        }
        let mut all = Vec::new();
        for path in paths {
            let text = objects::read_text(&path)?;
            let done = translate::translate(&text, direction)
                .map_err(|why| Failure::options(format!("{}: {}", objects::name(&path), why.message())))?;
            all.push((path, done));
        }
        Ok(all)
    }
}

fn tell(file: &Path, done: &Translated) {
    let name = objects::name(file);
    for Object { line, title, translation } in &done.objects {
        for warning in &translation.warnings {
            say(&format!("{name}:{line}: warning: {title}: {warning} [{}]", warning.id()), false);
        }
    }
    for (line, refusal) in &done.refusals {
        say(&format!("{name}:{line}: error: {refusal} [{}]", refusal.reason.id()), false);
    }
}

fn report(all: &[Done]) -> Value {
    let mut files = Vec::new();
    for (file, done) in all {
        let mut report =
            json!({"file": objects::name(file), "text": done.text, "translated": [], "refused": []});
        for Object { line, title, translation } in &done.objects {
            let csi = translation.object.pointer("/spec/csi");
            let mut object = json!({"line": line, "object": title, "warnings": []});
            for field in ["driver", "volumeHandle"] {
                object[field] = csi.map(|csi| csi[field].clone()).unwrap_or_default();
            }
            for warning in &translation.warnings {
                push(
                    &mut object["warnings"],
                    json!({"warning": warning.id(), "message": warning.to_string()}),
                );
            }
            push(&mut report["translated"], object);
        }
        for (line, Refusal { object, reason }) in &done.refusals {
            let (id, message, fix) = (reason.id(), reason.to_string(), reason.fix());
            let refusal =
                json!({"line": line, "object": object, "reason": id, "message": message, "fix": fix});
            push(&mut report["refused"], refusal);
        }
        files.push(report);
    }
    json!({"files": files})
}

fn push(list: &mut Value, entry: Value) {
    if let Some(list) = list.as_array_mut() {
        list.push(entry);
    }
}

/// Prints all texts as documents of one stream. A program that reads them gets them unchanged.
fn print(screen: &mut Screen, all: &[Done]) -> Result<()> {
    let mut text = String::new();
    for (_, done) in all {
        if !text.is_empty() {
            let line_break = if text.ends_with('\n') { "" } else { "\n" };
            text.extend([line_break, if done.text.starts_with("---") { "" } else { "---\n" }]);
        }
        text.push_str(&done.text);
    }
    if screen.is_terminal() {
        return screen.text(&text);
    }
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("write to standard output")
}

fn write(directory: &Path, all: &[Done]) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
    for (file, done) in all {
        let name = file.file_name().filter(|_| file != Path::new("-")).unwrap_or("stdin.yaml".as_ref());
        let place = directory.join(name);
        let written = File::create_new(&place).and_then(|mut file| file.write_all(done.text.as_bytes()));
        written.with_context(|| format!("write {}", place.display()))?;
    }
    Ok(())
}

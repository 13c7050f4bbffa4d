//! `kubectl flexvol migrate`: moves volumes of a cluster to CSI, and back.

mod carry_out;

use super::cluster::Cluster;
use crate::kubectl::session::Session;
use crate::migrate::make::make;
use crate::migrate::plan::{Claim, Plan, Selection, Workload};
use crate::migrate::read::read;
use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, Subcommand};
use flexvol_linux::fs::files;
use flexvol_linux::proc::clock;
use flexvol_model::translate::{is_target, target_names};
use flexvol_protocol::failure::Failure;
use flexvol_terminal::screen::{Screen, counted};
use std::path::PathBuf;
use std::process::ExitCode;

/// Move the volumes of a cluster from FlexVolume drivers to CSI drivers, and back
#[derive(Args)]
pub(super) struct Migrate {
    #[command(subcommand)]
    step: Step,
}

#[derive(Subcommand)]
enum Step {
    Plan(MakePlan),
    Apply(carry_out::Apply),
    Status(carry_out::Status),
    Rollback(carry_out::Rollback),
}

/// Show what would be done, and write it into a file; nothing is changed
#[derive(Args)]
#[command(after_help = "\
Examples:
  kubectl flexvol migrate plan --driver fstab/cifs -o plan.json        to flexvold csi over the same driver
  kubectl flexvol migrate plan --all --to smb.csi.k8s.io -o plan.json  what has a way to csi-driver-smb
  kubectl flexvol migrate plan --volume web --reverse -o back.json     a volume that was migrated, back

Each volume that is refused is named, with why and the fix. A plan says what it was made of: it is carried out only as
long as nothing of that has changed.

Exit status: 0 done, 1 something was refused or could not be read, 2 wrong usage.")]
pub(super) struct MakePlan {
    /// Only volumes of this driver: VENDOR/DRIVER, with --reverse the CSI driver; may be repeated
    #[arg(long, value_name = "DRIVER")]
    driver: Vec<String>,
    /// Only volumes of this StorageClass; may be repeated
    #[arg(long, value_name = "NAME")]
    class: Vec<String>,
    /// Only volumes of claims and of workloads in this namespace; may be repeated
    #[arg(short, long, value_name = "NAME")]
    namespace: Vec<String>,
    /// Only this PersistentVolume; may be repeated
    #[arg(long, value_name = "NAME")]
    volume: Vec<String>,
    /// All volumes of the cluster
    #[arg(long, conflicts_with_all = ["driver", "class", "namespace", "volume"])]
    all: bool,
    /// Third-party CSI driver to move them to, such as smb.csi.k8s.io [default: flexvold csi with
    /// the same driver]
    #[arg(long, value_name = "DRIVER", value_parser = target)]
    to: Option<String>,
    /// Move them back to the original flex volumes
    #[arg(long, conflicts_with = "to")]
    reverse: bool,
    /// Delete pods that have ended, such as those of Jobs: they also keep a volume in use
    #[arg(long)]
    delete_completed: bool,
    /// File to write the plan to; no file is replaced
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    cluster: Cluster,
}

fn target(name: &str) -> Result<String, Failure> {
    if is_target(name) {
        return Ok(name.to_owned());
    }
    let all = target_names().join(", ");
    Err(Failure::options(format!("no volume goes to {name:?}: write one of {all}, or leave out --to")))
}

impl Migrate {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        match &self.step {
            Step::Plan(step) => step.run(screen),
            Step::Apply(step) => step.run(screen),
            Step::Status(step) => step.run(screen),
            Step::Rollback(step) => step.run(screen),
        }
    }
}

impl MakePlan {
    fn selection(&self) -> Selection {
        Selection {
            drivers: self.driver.clone(),
            classes: self.class.clone(),
            namespaces: self.namespace.clone(),
            volumes: self.volume.clone(),
            to: self.to.clone(),
            reverse: self.reverse,
            delete_completed: self.delete_completed,
        }
    }

    fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        let selection = self.selection();
        let of_some = [&self.driver, &self.class, &self.namespace, &self.volume];
        if !self.all && of_some.iter().all(|names| names.is_empty()) {
            bail!(Failure::options(
                "which volumes? name a --driver, --class, --namespace or --volume, or write --all"
            ));
        }
        if let Some(output) = &self.output {
            ensure!(!output.exists(), "{} is there already: name another file", output.display());
        }
        let session = Session::start(&self.cluster.kubectl()?)?;
        let plan = make(&read(&session, &selection)?, &selection, clock::now());
        if let Some(output) = self.output.as_ref().filter(|_| !plan.is_empty()) {
            let written = files::write_new(output, &plan.text()?);
            written.with_context(|| format!("write {}", output.display()))?;
        }
        let shown = if screen.wants_json() { screen.json(&plan) } else { self.print(screen, &plan) };
        shown?;
        let is_well = plan.refused.is_empty();
        Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn print(&self, screen: &mut Screen, plan: &Plan) -> Result<()> {
        show(screen, plan)?;
        match (&self.output, plan.is_empty()) {
            (_, true) => screen.line("there is nothing to migrate"),
            (Some(output), _) => {
                let file = output.display();
                screen.line(&format!("{file}: plan {}. Next: kubectl flexvol migrate apply {file}", plan.id))
            }
            (None, _) => screen.line("nothing is written: --output FILE keeps the plan"),
        }
    }
}

/// Prints the volumes by the workloads that stop for them, the volumes inside workloads, and the
/// refused ones.
fn show(screen: &mut Screen, plan: &Plan) -> Result<()> {
    if !plan.groups.is_empty() {
        let mut rows = vec![["GROUP", "VOLUME", "CLAIM", "FROM", "TO", "STOPS"].map(str::to_owned)];
        for (number, group) in plan.groups.iter().enumerate() {
            let stops: Vec<_> = group.workloads.iter().map(Workload::shown).collect();
            for volume in &group.volumes {
                let claim = volume.claim.as_ref().map_or_else(|| "-".to_owned(), Claim::shown);
                let stops = if stops.is_empty() { "-".to_owned() } else { stops.join(", ") };
                let (name, from, to) = (volume.name.clone(), volume.from.clone(), volume.to.clone());
                rows.push([(number + 1).to_string(), name, claim, from, to, stops]);
            }
        }
        screen.table(&rows)?;
    }
    for inline in &plan.inline {
        let volumes = counted(inline.changes.len().saturating_sub(1), "volume");
        screen.line(&format!("{}: {volumes} in its template", inline.workload.shown()))?;
    }
    for volume in plan.groups.iter().flat_map(|group| &group.volumes) {
        for warning in &volume.warnings {
            screen.line(&format!("warning: PersistentVolume {}: {warning}", volume.name))?;
        }
    }
    for inline in &plan.inline {
        for warning in &inline.warnings {
            screen.line(&format!("warning: {}: {warning}", inline.workload.shown()))?;
        }
    }
    for refused in &plan.refused {
        let [object, message, fix, id] = [&refused.object, &refused.message, &refused.fix, &refused.reason];
        screen.line(&format!("refused: {object}: {message}: {fix} [{id}]"))?;
    }
    Ok(())
}

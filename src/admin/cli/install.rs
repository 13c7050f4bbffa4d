//! `flexvol install`: puts drivers into plugin directories.

use super::placing::{self, Placing, Shown};
use crate::plugin_dir::install::{
    self, Allowed, InstallRequest, Report, RolledBack, SideFileChanges, Source, Step,
};
use crate::plugin_dir::opened::PluginDirPath;
use crate::plugin_dir::refusal::{Reason, Refusal};
use crate::plugin_dir::witness::{Witness, prove};
use anyhow::{Context as _, Result};
use clap::Args;
use flexvol_linux::fs::files;
use flexvol_linux::fs::fingerprint::short;
use flexvol_model::settings::SIZE_LIMIT;
use flexvol_protocol::DriverName;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_terminal::arguments::profile_or_none;
use flexvol_terminal::screen::Screen;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Default wait of `--wait`, in seconds.
const DEFAULT_WAIT: &str = "60";

/// Limit for the wait: a longer one cannot be intended, and the clock has a limit, too.
const LONGEST: Duration = Duration::from_hours(24 * 365);

/// Install drivers atomically: kubelet never sees a partial one
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo flexvol install tmpfs image                    as flexvol/tmpfs and flexvol/image
  sudo flexvol install example.com/scratch=tmpfs      the driver tmpfs under another name
  sudo flexvol install fstab/cifs --take-over         in place of another driver, for its volumes
  sudo flexvol install acme/cifs=juliohm/cifs         the same, installed under another name
  sudo flexvol install fstab/cifs --take-over --through-csi smb.csi.k8s.io
                                                      the same, by the CSI driver, if an agent runs on the node
  sudo flexvol install image --set size=1Gi --set deadlines.mount=90 --set policy.maxSize=20Gi
  sudo flexvol install image --unset size             the default again
  sudo flexvol install tmpfs image --set image:size=1Gi --set tmpfs:mode=0700
  sudo flexvol install example.com/gluster --binary ./gluster.sh
  sudo flexvol install fstab/cifs=exec --take-over --settings cifs.json
  sudo flexvol install --roll-back fstab/cifs         put back what was replaced last
  sudo flexvol install image --wait                   and prove that kubelet has called it
  flexvol install image --dry-run                     only say what would be done

kubelet sees one event for a new or changed driver and none when nothing changes, so it is safe to run this again and \
again; what was killed midway is fixed and cleaned by the next run. Settings stay as they are unless asked for here: \
--settings replaces all of them, --policy the policy, --set single ones, and --unset gives single ones their default \
back. Both are for every driver of the command line, or with DRIVER: before the key for one. A secret belongs into \
--settings, not into --set: a command line is seen by everybody.

--wait proves that it worked: a kubelet watches the directory, and its child has executed the new file. kubelet does \
that when it next works on a pod with volumes, so start one.

Exit status: 0 done or nothing to do, 1 failed, 2 wrong usage, 4 somebody else's driver is in the way, 5 a newer \
version is installed, 7 the node or the directory is not fit for it, 8 the driver fails its own init, 9 installed, but \
kubelet does not read the directory or did not call it in time, 10 another installer holds the directory. Of several drivers all are tried, and the highest status counts.")]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(super) struct Install {
    /// Driver to install: [VENDOR/]NAME, or [VENDOR/]NAME=DRIVER to give it another name
    #[arg(required = true, value_name = "DRIVER", value_parser = Choice::parse)]
    drivers: Vec<Choice>,
    #[command(flatten)]
    placing: Placing,
    /// Set one value in the side file: an option, fsGroup, or a path such as deadlines.mount; may
    /// be repeated
    #[arg(long, value_name = "[DRIVER:]KEY=VALUE", value_parser = SideFileChanges::parse_set)]
    set: Vec<(String, String)>,
    /// Reset one value in the side file to its default; may be repeated
    #[arg(long, value_name = "[DRIVER:]KEY", conflicts_with = "settings")]
    unset: Vec<String>,
    /// Accept the options of this driver (flexvol drivers --profiles); none for flexvol's own
    #[arg(long, value_name = "PROFILE", value_parser = profile_or_none())]
    profile: Option<String>,
    /// Serve the volumes, unchanged, through this CSI driver: docs/drivers/csi.md
    #[arg(long, value_name = "CSI-DRIVER", conflicts_with = "binary")]
    through_csi: Option<String>,
    /// Replace the policy with this JSON object
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Replace the whole side file with this JSON object
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// Install this executable instead of flexvol itself: another build, or any driver in any
    /// language
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Replace a driver of the same name that flexvol did not install; it is kept in the state
    /// directory
    #[arg(long)]
    take_over: bool,
    /// Restore what was replaced last: the driver that was taken over, or the version that another
    /// --binary replaced
    #[arg(long, conflicts_with_all = ["take_over", "set", "unset", "policy", "settings", "binary", "profile", "through_csi"])]
    roll_back: bool,
    /// Replace a newer version
    #[arg(long)]
    allow_downgrade: bool,
    /// Wait up to SECONDS until kubelet itself has called the driver
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = DEFAULT_WAIT)]
    #[arg(conflicts_with = "roll_back")]
    wait: Option<u64>,
    /// Change nothing; print what would be done
    #[arg(long)]
    dry_run: bool,
}

/// One driver of the command line.
#[derive(Clone)]
pub(super) struct Choice {
    name: DriverName,
    driver: Option<String>,
    profile: Option<String>,
}

impl Choice {
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        let (name, what) = text.split_once('=').map_or((text, None), |(name, what)| (name, Some(what)));
        // A driver of ours has no vendor, a profile has one.
        let profile = what.filter(|what| what.contains('/')).map(str::to_owned);
        let driver = what.filter(|what| !what.contains('/')).map(str::to_owned);
        Ok(Self { name: placing::name(name)?, driver, profile })
    }

    /// Returns the changes that are requested for all drivers, and those for this one.
    fn side_file_changes(&self, all: &SideFileChanges) -> SideFileChanges {
        SideFileChanges {
            driver: self.driver.clone(),
            profile: self.profile.clone().or_else(|| all.profile.clone()),
            set: all.set.iter().filter_map(|(key, value)| Some((self.key(key)?, value.clone()))).collect(),
            unset: all.unset.iter().filter_map(|key| self.key(key)).collect(),
            ..all.clone()
        }
    }

    /// Returns the key of `[DRIVER:]KEY`, if it is for this driver. Names of drivers and keys have
    /// no colon, while both have dots and slashes.
    fn key(&self, key: &str) -> Option<String> {
        let Some((driver, key)) = key.split_once(':') else { return Some(key.to_owned()) };
        (placing::name(driver).ok()? == self.name).then(|| key.to_owned())
    }

    /// Fails if a `DRIVER:` is not one of these.
    pub(super) fn check_keys(choices: &[Self], all: &SideFileChanges) -> Result<()> {
        let mut keys = all.set.iter().map(|(key, _)| key).chain(&all.unset);
        let Some(key) = keys.find(|key| choices.iter().all(|choice| choice.key(key).is_none())) else {
            return Ok(());
        };
        let names: Vec<_> = choices.iter().map(|choice| choice.name.to_string()).collect();
        let text =
            format!("{key:?} is for none of the drivers: write one of {} before its colon", names.join(", "));
        Err(Refusal::new(Reason::Usage, text).into())
    }

    /// Fails if its installation would be refused as wrong usage, wherever that will be.
    pub(super) fn check(&self, all: &SideFileChanges) -> Result<()> {
        let checked = self.side_file_changes(all).check(&self.name);
        Ok(checked.map_err(|failure| Refusal::new(Reason::Usage, failure.message()))?)
    }
}

impl Install {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        let (side_file_changes, source) = (self.side_file_changes()?, self.source()?);
        let places = self.placing.places(screen)?;
        let mut started = Vec::new();
        for (place, choice) in
            places.iter().flat_map(|place| self.drivers.iter().map(move |choice| (place, choice)))
        {
            let request = self.request(choice, place, &side_file_changes);
            let result = self.perform(&request, &source);
            started.push((request.name, request.place, result));
        }
        // One deadline for all: kubelet calls them one after the other.
        let patience = Duration::from_secs(self.wait.unwrap_or_default()).min(LONGEST);
        let deadline = Instant::now() + patience;
        let done: Vec<_> = started
            .into_iter()
            .map(|(name, place, result)| {
                (name, place, result.and_then(|outcome| self.proven(outcome, deadline)))
            })
            .collect();
        placing::conclude(screen, &done)
    }

    fn proven(&self, mut outcome: DriverRow, deadline: Instant) -> Result<DriverRow> {
        if let (What::Installed(report), true) = (&outcome.what, self.wait.is_some() && !self.dry_run) {
            let patience = deadline.saturating_duration_since(Instant::now());
            outcome.proof = Some(prove(report, outcome.witness.take(), patience)?);
        }
        Ok(outcome)
    }

    fn perform(&self, request: &InstallRequest, source: &Source) -> Result<DriverRow> {
        let mut witness = None;
        let what = if self.roll_back {
            What::RolledBack(install::roll_back(request)?)
        } else {
            let mut mark = |hidden: &Path| {
                witness = self.wait.map(|_| Witness::of(hidden));
                Ok(())
            };
            What::Installed(Box::new(install::install_marked(request, source, &mut mark)?))
        };
        Ok(DriverRow { name: request.name.clone(), dry_run: self.dry_run, what, witness, proof: None })
    }

    /// Reports whether a flag was given that makes sense only for a single installation.
    pub(super) fn is_once_only(&self) -> bool {
        self.dry_run || self.roll_back || self.wait.is_some()
    }

    /// Returns one request for each driver and plugin directory, and the executable: for `deploy`.
    pub(super) fn requests(&self, screen: &Screen) -> Result<(Source, Vec<InstallRequest>)> {
        let side_file_changes = self.side_file_changes()?;
        let mut requests = Vec::new();
        for place in self.placing.places(screen)? {
            requests
                .extend(self.drivers.iter().map(|choice| self.request(choice, &place, &side_file_changes)));
        }
        Ok((self.source()?, requests))
    }

    fn side_file_changes(&self) -> Result<SideFileChanges> {
        let all = SideFileChanges {
            driver: None,
            profile: self.profile.clone(),
            through_csi: self.through_csi.clone(),
            settings: self.settings.as_deref().map(read_json).transpose()?,
            policy: self.policy.as_deref().map(read_json).transpose()?,
            set: self.set.clone(),
            unset: self.unset.clone(),
        };
        Choice::check_keys(&self.drivers, &all)?;
        Ok(all)
    }

    fn source(&self) -> Result<Source> {
        self.binary.as_deref().map_or_else(Source::own, Source::at)
    }

    fn request(
        &self,
        choice: &Choice,
        place: &PluginDirPath,
        side_file_changes: &SideFileChanges,
    ) -> InstallRequest {
        InstallRequest {
            state: self.placing.state.clone(),
            side_file_changes: choice.side_file_changes(side_file_changes),
            allowed: Allowed { take_over: self.take_over, downgrade: self.allow_downgrade },
            dry_run: self.dry_run,
            ..InstallRequest::new(choice.name.clone(), place.clone())
        }
    }
}

/// Result for one driver.
struct DriverRow {
    name: DriverName,
    dry_run: bool,
    what: What,
    witness: Option<Witness>,
    /// Proof that kubelet has called it.
    proof: Option<String>,
}

enum What {
    Installed(Box<Report>),
    RolledBack(RolledBack),
}

impl DriverRow {
    fn word(&self) -> &'static str {
        match &self.what {
            What::Installed(report) => report.plan.outcome.word(),
            What::RolledBack(RolledBack { steps, .. }) if steps.is_empty() => "unchanged",
            What::RolledBack(_) => "rolled back",
        }
    }

    fn steps(&self) -> &[Step] {
        match &self.what {
            What::Installed(report) => &report.plan.steps,
            What::RolledBack(back) => &back.steps,
        }
    }
}

impl Shown for DriverRow {
    /// Returns one line, and in a dry run one for each step.
    fn text(&self) -> String {
        let detail = match &self.what {
            What::Installed(report) => {
                let version = report.settings.version.as_deref().unwrap_or("of unknown version");
                format!("{version}, {}", short(report.settings.hash.as_deref().unwrap_or_default()))
            }
            What::RolledBack(back) => format!("from {}", back.copy.display()),
        };
        let would = if self.dry_run { "would be " } else { "" };
        let text = format!("{} {would}{} ({detail})", self.name, self.word());
        let steps = self.steps().iter().filter(|_| self.dry_run).map(|step| {
            let seen = if step.is_visible() { ": kubelet sees it" } else { "" };
            format!("\n  {}{seen}", step.describe())
        });
        let proof = self.proof.iter().map(|proof| format!("\n  {proof}"));
        text + &steps.chain(proof).collect::<String>()
    }

    fn json(&self) -> Value {
        let steps: Vec<_> = self.steps().iter().map(|step| step.describe()).collect();
        let mut value = json!({"action": self.word(), "dryRun": self.dry_run, "steps": steps});
        match &self.what {
            What::Installed(report) => {
                value["version"] = json!(report.settings.version);
                value["hash"] = json!(report.settings.hash);
            }
            What::RolledBack(back) => value["copy"] = json!(back.copy),
        }
        if let Some(proof) = &self.proof {
            value["proof"] = json!(proof);
        }
        value
    }

    fn warnings(&self) -> &[String] {
        match &self.what {
            What::Installed(report) => &report.warnings,
            What::RolledBack(back) => &back.warnings,
        }
    }
}

/// Reads an admin's file with one JSON value.
fn read_json(path: &Path) -> Result<Value> {
    let text = files::read_small(path, SIZE_LIMIT)?;
    let missing = || Failure::new(Code::NotFound, format!("there is no file {}", path.display()));
    let text = text.ok_or_else(missing)?;
    // The parser's message may repeat a value.
    let malformed = || Refusal::new(Reason::Usage, format!("{} is not JSON: fix it", path.display()));
    serde_json::from_str(&text).ok().with_context(malformed)
}

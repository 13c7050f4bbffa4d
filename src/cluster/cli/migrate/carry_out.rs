//! `kubectl flexvol migrate apply`, `status` and `rollback`.

use super::super::cluster::Cluster;
use crate::kubectl::session::Session;
use crate::migrate::begin::{Told, carry_out, state, unchanged};
use crate::migrate::context::Run;
use crate::migrate::decide::Goal;
use crate::migrate::exclusive::Exclusive;
use crate::migrate::found::text;
use crate::migrate::journal::Journal;
use crate::migrate::kept;
use crate::migrate::plan::{Claim, LONGEST, Plan, VOLUMES};
use crate::migrate::read::{cluster, read};
use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use flexvol_linux::fs::files;
use flexvol_terminal::screen::{Screen, counted};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Options of both directions.
#[derive(Args)]
struct Way {
    /// Namespace of started plans, and of the lease that prevents parallel runs
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    keep_in: String,
    /// Groups that may be stopped at the same time
    #[arg(long, value_name = "N", default_value = "1")]
    max_unavailable: usize,
    /// Seconds to wait for pods to end
    #[arg(long, value_name = "SECONDS", default_value = "600")]
    stop_timeout: u64,
    /// Seconds to wait for pods to be ready again; 0 does not wait
    #[arg(long, value_name = "SECONDS", default_value = "600")]
    ready_timeout: u64,
    #[command(flatten)]
    cluster: Cluster,
}

/// Carry out a plan, or continue it
#[derive(Args)]
#[command(after_help = "\
Group by group: the reclaim policy becomes Retain, the workloads are stopped, and once nobody uses a volume it is made
again under its name with its new source. Then the workloads are started, and waited for. If it is interrupted, run it
again, or go back: kubectl flexvol migrate rollback. FILE.journal says what was done.

Examples:
  kubectl flexvol migrate apply plan.json --canary 1       one group; run it again for the others
  kubectl flexvol migrate apply plan.json                  all, one group after the other

Exit status: 0 done, 1 something failed or has changed since the plan was made, 2 wrong usage.")]
pub(super) struct Apply {
    /// The plan
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Only N groups, for you to check
    #[arg(long, value_name = "N")]
    canary: Option<usize>,
    #[command(flatten)]
    way: Way,
}

/// Restore the original volumes of a migration, whether finished or not
#[derive(Args)]
pub(super) struct Rollback {
    /// The plan's file, or the id that status names
    #[arg(value_name = "FILE|ID")]
    plan: PathBuf,
    /// Only N groups
    #[arg(long, value_name = "N")]
    canary: Option<usize>,
    #[command(flatten)]
    way: Way,
}

/// Show started migrations, and the state of each volume
#[derive(Args)]
pub(super) struct Status {
    /// Only this plan: its file or its id
    #[arg(value_name = "FILE|ID")]
    plan: Option<PathBuf>,
    /// Namespace of started plans
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    keep_in: String,
    #[command(flatten)]
    cluster: Cluster,
}

fn from_file(path: &Path) -> Result<Plan> {
    let what = || format!("read {}", path.display());
    let size = path.metadata().with_context(what)?.len();
    ensure!(size <= LONGEST as u64, "{} is too large for a plan", path.display());
    Plan::parse(&files::read(path).with_context(what)?).with_context(what)
}

/// Finds a plan by its file or by its id; also returns the path of its journal.
fn find(session: &Session, keep_in: &str, named: &Path) -> Result<(Plan, PathBuf)> {
    let id = named.to_string_lossy();
    if kept::is_id(&id) && !named.exists() {
        let plan = kept::load(session, keep_in, &id)?;
        return Ok((plan, PathBuf::from(format!("flexvol-migration-{id}.journal"))));
    }
    Ok((from_file(named)?, Journal::beside(named)))
}

impl Apply {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        let plan = from_file(&self.file)?;
        let journal = Journal::open(&Journal::beside(&self.file))?;
        let session = Session::start(&self.way.cluster.kubectl()?)?;
        let exclusive = Exclusive::take(session.api(), &self.way.keep_in, &journal.identity)?;
        unchanged(&plan, &read(&session, &plan.selection)?)?;
        exclusive.check()?;
        kept::keep(&session, &self.way.keep_in, &plan)?;
        let run = self.way.begin(&session, &plan, Goal::Forward, &journal, &exclusive);
        self.way.play(screen, &run, self.canary)
    }
}

impl Rollback {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        let session = Session::start(&self.way.cluster.kubectl()?)?;
        let (plan, journal) = find(&session, &self.way.keep_in, &self.plan)?;
        let journal = Journal::open(&journal)?;
        ensure!(cluster(&session)? == plan.cluster, "the plan is of another cluster");
        let exclusive = Exclusive::take(session.api(), &self.way.keep_in, &journal.identity)?;
        let run = self.way.begin(&session, &plan, Goal::Back, &journal, &exclusive);
        let done = self.way.play(screen, &run, self.canary)?;
        if self.canary.is_none() {
            kept::forget(&session, &self.way.keep_in, &plan);
        }
        Ok(done)
    }
}

impl Way {
    fn begin<'a>(
        &self,
        session: &'a Session,
        plan: &'a Plan,
        goal: Goal,
        journal: &'a Journal,
        exclusive: &'a Exclusive,
    ) -> Run<'a> {
        let [stop_wait, ready_wait] = [self.stop_timeout, self.ready_timeout].map(Duration::from_secs);
        Run { session, plan, goal, journal, exclusive, stop_wait, ready_wait }
    }

    fn play(&self, screen: &mut Screen, run: &Run<'_>, canary: Option<usize>) -> Result<ExitCode> {
        let (begun, all) = (Instant::now(), run.plan.groups.len() + run.plan.inline.len());
        let (mut count, mut moved, mut failed, mut printed) = (0, Vec::new(), Vec::new(), Ok(()));
        carry_out(run, self.max_unavailable, canary, |told| {
            count += 1;
            let line = match told {
                Told::Done(name, was_to_do) => {
                    let what = if was_to_do { "done" } else { "was done" };
                    moved.push(name.clone());
                    format!("[{count}/{all}] {name}: {what}{}", left(begun, count, all))
                }
                Told::Failed(name, error) => {
                    let why = format!("{error:#}");
                    failed.push(json!({"what": name, "why": why}));
                    format!("[{count}/{all}] {name}: failed: {why}")
                }
            };
            if !screen.wants_json() && printed.is_ok() {
                printed = screen.line(&line);
            }
        });
        printed?;
        let rest = all - count;
        if screen.wants_json() {
            screen.json(&json!({"id": run.plan.id, "done": moved, "failed": failed, "left": rest}))?;
        } else if rest > 0 && failed.is_empty() {
            screen.line(&format!(
                "{} left: look at what was done, and run this again",
                counted(rest, "group")
            ))?;
        }
        if !failed.is_empty() {
            bail!(
                "migration {} is not done: fix that and run this again, or go back: kubectl flexvol migrate rollback {}",
                run.plan.id,
                run.plan.id
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Estimates the time for the rest; empty if that is not possible.
fn left(begun: Instant, done: usize, all: usize) -> String {
    let each = begun.elapsed().as_secs() / u64::try_from(done).unwrap_or(1).max(1);
    let seconds = each * u64::try_from(all.saturating_sub(done)).unwrap_or(0);
    match seconds {
        0 => String::new(),
        1..120 => format!(" (about {seconds} s left)"),
        _ => format!(" (about {} min left)", seconds / 60),
    }
}

impl Status {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        let session = Session::start(&self.cluster.kubectl()?)?;
        let plans = if let Some(named) = &self.plan {
            vec![find(&session, &self.keep_in, named)?.0]
        } else {
            let ids = kept::ids(&session, &self.keep_in)?;
            ids.iter().map(|id| kept::load(&session, &self.keep_in, id)).collect::<Result<_>>()?
        };
        let mut volumes: HashMap<String, Value> = HashMap::new();
        session.list(VOLUMES, |object| {
            let name = text(&object["metadata"], "name");
            volumes.insert(name, object);
        })?;
        if screen.wants_json() {
            let all: Vec<_> = plans.iter().map(|plan| as_json(plan, &volumes)).collect();
            screen.json(&json!({"migrations": all}))?;
        } else if plans.is_empty() {
            screen.line("no migration has begun")?;
        } else {
            let mut rows = vec![["MIGRATION", "VOLUME", "CLAIM", "FROM", "TO", "STATE"].map(str::to_owned)];
            for plan in &plans {
                for volume in plan.groups.iter().flat_map(|group| &group.volumes) {
                    let claim = volume.claim.as_ref().map_or_else(|| "-".to_owned(), Claim::shown);
                    let [name, from, to] = [&volume.name, &volume.from, &volume.to].map(Clone::clone);
                    let state = state(plan, volume, volumes.get(&volume.name)).to_owned();
                    rows.push([plan.id.clone(), name, claim, from, to, state]);
                }
            }
            screen.table(&rows)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn as_json(plan: &Plan, volumes: &HashMap<String, Value>) -> Value {
    let all = plan.groups.iter().flat_map(|group| &group.volumes);
    let rows = all.map(|volume| {
        let state = state(plan, volume, volumes.get(&volume.name));
        json!({"volume": volume.name, "from": volume.from, "to": volume.to, "state": state,
            "claim": volume.claim.as_ref().map(Claim::shown)})
    });
    json!({"id": plan.id, "made": plan.made, "volumes": rows.collect::<Vec<_>>()})
}

//! Execution of a plan, or its rollback: look, decide, one write, look again.
//!
//! Each write is in the journal on disk before it is sent, and is sent only while the lease is
//! ours. A write whose reply is lost is not sent again: a look at the objects decides.

use super::context::{AGAIN, Run};
use super::decide::{Goal, Move, Next};
use super::plan::{Group, VOLUMES, Volume};
use super::unused::Unused;
use super::{inline, stop};
use crate::controllers::blocking::Answer;
use anyhow::{Result, anyhow, bail, ensure};
use serde_json::Value;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Limit for a step without progress, before a person has to look.
const STUCK: Duration = Duration::from_mins(2);

impl Run<'_> {
    /// Moves a group. Returns true if anything was left to do.
    ///
    /// # Errors
    ///
    /// Fails if something differs from the plan, or does not happen.
    pub fn group(&self, group: &Group) -> Result<bool> {
        let mut is_to_swap = false;
        let mut is_done = true;
        for volume in &group.volumes {
            let next =
                self.until(volume, self.goal, |next| !matches!(next, Next::Prepare(_) | Next::MarkClaim(_)))?;
            is_to_swap |= matches!(next, Next::Delete(_));
            is_done &= matches!(next, Next::Done);
        }
        if is_to_swap {
            for volume in &group.volumes {
                self.try_out(volume)?;
            }
            for workload in &group.workloads {
                stop::stop(self, workload)?;
            }
            Unused::of(self, group).wait(self.stop_wait)?;
        }
        for volume in &group.volumes {
            self.swap(volume)?;
        }
        let mut started = false;
        for workload in &group.workloads {
            started |= stop::start(self, workload)?;
        }
        if started {
            stop::wait_ready(self, &group.workloads)?;
        }
        Ok(started || !is_done)
    }

    /// Changes the volumes in the template of a workload. Returns true if anything was left to do.
    ///
    /// # Errors
    ///
    /// Fails if something differs from the plan.
    pub fn inline(&self, number: usize) -> Result<bool> {
        inline::change(self, &self.plan.inline[number])
    }

    /// Checks by a dry run that the API server would accept the new volume, and would not change
    /// it: under a name that no volume has, and nothing is stored.
    fn try_out(&self, volume: &Volume) -> Result<()> {
        let mut object = self.of(volume, self.goal).created();
        let name = format!("flexvol-try-{}", self.plan.id);
        object["metadata"]["name"] = name.into();
        let source = super::make::source(&object).clone();
        let path = format!("{VOLUMES}?dryRun=All");
        match self.session.ask("POST", &path, Some(object)) {
            Answer::Done(made) => {
                let is_kept = source.as_object().into_iter().flatten().all(|(key, value)| {
                    let made = &super::make::source(&made)[key];
                    made == value || (made.is_null() && (value == &Value::Bool(false) || value == ""))
                });
                ensure!(
                    is_kept,
                    "PersistentVolume {}: something in the cluster changes volumes that are made: \
                    find the admission webhook, and exclude it",
                    volume.name
                );
                Ok(())
            }
            Answer::Missing(why) | Answer::Refused(why) | Answer::Unsure(why) => {
                bail!("PersistentVolume {}: the API server does not take the new one: {why}", volume.name)
            }
            Answer::Conflict => bail!("PersistentVolume {}: another run tries it out", volume.name),
        }
    }

    /// Replaces the old volume by the new one, up to the last step.
    fn swap(&self, volume: &Volume) -> Result<()> {
        let next = self.until(volume, self.goal, |next| matches!(next, Next::Create(_) | Next::Done))?;
        if matches!(next, Next::Done) {
            return Ok(());
        }
        // The old volume is gone, so no pod can begin to use it now, but one may have begun before.
        if let Some(pod) = Unused::pod_of(self, volume)? {
            let back = match self.goal {
                Goal::Forward => Goal::Back,
                Goal::Back => Goal::Forward,
            };
            self.until(volume, back, |next| matches!(next, Next::Wait | Next::UnmarkClaim(_) | Next::Done))?;
            bail!(
                "PersistentVolume {}: pod {pod} began to use it: it is as it was; stop that, and run this again",
                volume.name
            );
        }
        self.until(volume, self.goal, |next| matches!(next, Next::Done)).map(drop)
    }

    fn of<'b>(&'b self, volume: &'b Volume, goal: Goal) -> Move<'b> {
        let begun = self.journal.has_begun(&volume.name);
        Move { volume, run: &self.plan.id, goal, begun }
    }

    /// Carries out the steps before the first one for which `is_end` is true. Returns that one.
    fn until(&self, volume: &Volume, goal: Goal, is_end: impl Fn(&Next) -> bool) -> Result<Next> {
        let mut looked = Looked::default();
        let mut last: Option<(Next, Instant)> = None;
        loop {
            looked.look(self, volume)?;
            let next = self
                .of(volume, goal)
                .next(looked.volume.as_ref(), looked.claim.as_ref())
                .map_err(|why| anyhow!(why.0))?;
            if is_end(&next) {
                return Ok(next);
            }
            match &last {
                Some((before, since)) if *before == next => {
                    ensure!(
                        since.elapsed() < STUCK,
                        "PersistentVolume {}: nothing comes of {}: see \
                        kubectl describe pv,pvc, and run this again",
                        volume.name,
                        next.name()
                    );
                    sleep(AGAIN);
                }
                _ => last = Some((next.clone(), Instant::now())),
            }
            self.carry_out(volume, next, &mut looked)?;
        }
    }

    fn carry_out(&self, volume: &Volume, next: Next, looked: &mut Looked) -> Result<()> {
        let name = next.name();
        let (path, of_claim) = (volume.path(), volume.claim.as_ref().map(super::plan::Claim::path));
        let answer = match next {
            Next::Prepare(change) | Next::Release(change) | Next::Finish(change) => {
                self.write(&volume.name, name, ("PATCH", &path, Some(change)))?
            }
            Next::MarkClaim(change) | Next::UnmarkClaim(change) => {
                let path = of_claim.unwrap_or_default();
                let answer = self.write(&volume.name, name, ("PATCH", &path, Some(change)))?;
                looked.claim = None;
                return refused(volume, answer, |claim| looked.claim = Some(claim));
            }
            Next::Delete(options) => self.write(&volume.name, name, ("DELETE", &path, Some(options)))?,
            Next::Create(object) => self.write(&volume.name, name, ("POST", VOLUMES, Some(object)))?,
            Next::Wait => {
                (looked.volume, looked.claim) = (None, None);
                sleep(AGAIN);
                return Ok(());
            }
            Next::Done => return Ok(()),
        };
        looked.volume = None;
        looked.is_gone = name == Next::RELEASE && matches!(&answer, Answer::Done(left) if is_gone(left));
        refused(volume, answer, |made| {
            looked.volume = Some(made).filter(|made| made["kind"] == "PersistentVolume");
        })?;
        if looked.is_gone {
            looked.volume = None;
        }
        Ok(())
    }
}

/// Reports whether the reply to a release shows that the object is gone.
fn is_gone(left: &Value) -> bool {
    let metadata = &left["metadata"];
    !metadata["deletionTimestamp"].is_null() && metadata["finalizers"].as_array().is_none_or(Vec::is_empty)
}

/// Takes the object of an answer as the present state. Fails if the write was refused; after any
/// other answer the caller looks again.
fn refused(volume: &Volume, answer: Answer, take: impl FnOnce(Value)) -> Result<()> {
    match answer {
        Answer::Done(object) => take(object),
        Answer::Refused(why) => bail!("PersistentVolume {}: {why}", volume.name),
        Answer::Missing(_) | Answer::Conflict | Answer::Unsure(_) => {}
    }
    Ok(())
}

/// Objects at the last look, or as known since then.
#[derive(Default)]
struct Looked {
    volume: Option<Value>,
    claim: Option<Value>,
    /// True if the volume is known to be gone.
    is_gone: bool,
}

impl Looked {
    fn look(&mut self, run: &Run<'_>, volume: &Volume) -> Result<()> {
        if self.volume.is_none() && !self.is_gone {
            self.volume = run.session.get(&volume.path())?;
        }
        self.is_gone = false;
        if let (None, Some(claim)) = (&self.claim, &volume.claim) {
            self.claim = run.session.get(&claim.path())?;
        }
        Ok(())
    }
}

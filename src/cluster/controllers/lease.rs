//! One of several processes is active: a Lease, by the rules of Kubernetes' own leader election.
//!
//! A lease is another's until its holder has not renewed it for its duration *by our clock*, from
//! when we saw it change: clocks of two machines are never compared. Every write carries the
//! version that was read, so that of two who take it at the same moment one gets it.

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How long a lease is its holder's who does not renew it.
const DURATION: Duration = Duration::from_secs(15);

/// Who cannot renew it for so long stops: before another may take it.
const RENEW_WITHIN: Duration = Duration::from_secs(10);

/// How often it is renewed, or looked at by those who wait.
const AGAIN: Duration = Duration::from_secs(2);

/// A lease that we want.
#[derive(Debug)]
pub struct Election {
    api: Api<Lease>,
    name: String,
    identity: String,
    /// The lease as last seen to change, and when that was.
    seen: Option<(Lease, Instant)>,
}

impl Election {
    /// For one of several processes, which has a name that no other has.
    pub fn new(api: Api<Lease>, name: String, identity: String) -> Self {
        Self { api, name, identity, seen: None }
    }

    /// Waits until the lease is ours.
    pub async fn win(&mut self) {
        loop {
            match timeout(RENEW_WITHIN, self.attempt()).await {
                Ok(Ok(true)) => return tracing::info!(lease = self.name, "leading"),
                Ok(Ok(false)) => (),
                Ok(Err(error)) => {
                    let reason = format!("{error:#}");
                    tracing::warn!(lease = self.name, reason, "cannot take the lease");
                }
                Err(_) => tracing::warn!(lease = self.name, "the API server does not answer"),
            }
            sleep(AGAIN).await;
        }
    }

    /// Renews it, for as long as that succeeds.
    ///
    /// # Errors
    ///
    /// It is another's, or may soon be: what it was for has to stop at once.
    pub async fn hold(&mut self) -> Result<()> {
        let mut renewed = Instant::now();
        loop {
            sleep(AGAIN).await;
            let left = RENEW_WITHIN.saturating_sub(renewed.elapsed());
            match timeout(left, self.attempt()).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => bail!("another process leads: lease {} was lost", self.name),
                Ok(Err(error)) if renewed.elapsed() < RENEW_WITHIN => {
                    let reason = format!("{error:#}");
                    tracing::warn!(lease = self.name, reason, "cannot renew the lease");
                }
                Ok(Err(_)) | Err(_) => {
                    bail!("lease {} could not be renewed for {} s", self.name, RENEW_WITHIN.as_secs())
                }
            }
        }
    }

    /// Gives it back, so that another need not wait. Whoever waits takes it a little later if that
    /// fails.
    pub async fn release(&mut self) {
        if let Ok(Err(error)) = timeout(AGAIN, self.give_back()).await {
            tracing::warn!(lease = self.name, reason = %error, "cannot give the lease back");
        }
        self.seen = None;
    }

    /// It is read first: a write of ours may have been cut short.
    async fn give_back(&self) -> kube::Result<()> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else { return Ok(()) };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() == Some(self.identity.as_str()) {
            spec.holder_identity = None;
            self.api.replace(&self.name, &PostParams::default(), &lease).await?;
        }
        Ok(())
    }

    /// Whether it is ours now.
    async fn attempt(&mut self) -> Result<bool> {
        let found = self.api.get_opt(&self.name).await.context("read the lease")?;
        let now = Timestamp::now();
        let Some(found) = found else {
            let lease = self.taken(Lease::default(), now);
            let made = self.api.create(&PostParams::default(), &lease).await;
            return self.written(made);
        };
        self.see(&found);
        if !self.may_take(&found) {
            return Ok(false);
        }
        let lease = self.taken(found, now);
        let replaced = self.api.replace(&self.name, &PostParams::default(), &lease).await;
        self.written(replaced)
    }

    fn see(&mut self, found: &Lease) {
        let known = self.seen.as_ref().is_some_and(|(lease, _)| lease.spec == found.spec);
        if !known {
            self.seen = Some((found.clone(), Instant::now()));
        }
    }

    fn may_take(&self, found: &Lease) -> bool {
        let holder = found.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        match holder {
            None | Some("") => true,
            Some(holder) if holder == self.identity => true,
            Some(_) => {
                let seconds = found.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
                let lasts = seconds
                    .and_then(|seconds| u64::try_from(seconds).ok())
                    .map_or(DURATION, Duration::from_secs);
                self.seen.as_ref().is_some_and(|(_, since)| since.elapsed() > lasts)
            }
        }
    }

    fn taken(&self, mut lease: Lease, now: Timestamp) -> Lease {
        lease.metadata.name = Some(self.name.clone());
        let before = lease.spec.take().unwrap_or_default();
        let ours = before.holder_identity.as_deref() == Some(self.identity.as_str());
        let transitions = before.lease_transitions.unwrap_or_default();
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: if ours { before.acquire_time } else { Some(MicroTime(now)) },
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(if ours { transitions } else { transitions.saturating_add(1) }),
            ..before
        });
        lease
    }

    fn written(&mut self, written: kube::Result<Lease>) -> Result<bool> {
        match written {
            Ok(lease) => {
                self.seen = Some((lease, Instant::now()));
                Ok(true)
            }
            // Another was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error).context("write the lease"),
        }
    }
}

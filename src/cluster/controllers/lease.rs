//! Leader election: a Lease and the rules of Kubernetes keep one of several processes active.
//!
//! A lease belongs to its holder until the holder has not renewed it for its duration, measured *by
//! our clock* from when we saw it change: clocks of two machines are never compared. Every write
//! carries the version that was read, so that only one of two simultaneous writers gets the lease.
//!
//! The holder renews it with one request each time. A waiting process watches it: no request is
//! needed while another process has it, and a release is seen at once. Without the permission to
//! watch, the lease is read as often as a holder renews it.

use anyhow::{Context as _, Result, bail};
use futures_util::TryStreamExt as _;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{PostParams, WatchEvent, WatchParams};
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

/// Lease duration: another process may take over after this.
const DURATION: Duration = Duration::from_secs(15);

/// Renewal deadline: a holder that could not renew it for so long stops, before another begins.
const RENEW_WITHIN: Duration = Duration::from_secs(10);

/// Pause between two renewals, and between two looks where it cannot be watched.
const PERIOD: Duration = Duration::from_secs(5);

/// Pause after a renewal that failed.
const AGAIN: Duration = Duration::from_secs(2);

/// Lease that this process competes for.
#[derive(Debug)]
pub struct Election {
    api: Api<Lease>,
    name: String,
    identity: String,
    /// The lease as last seen to change, and when that was.
    seen: Option<(Lease, Instant)>,
}

impl Election {
    /// Creates the election for one process; no other process may have its `identity`.
    pub fn new(api: Api<Lease>, name: String, identity: String) -> Self {
        Self { api, name, identity, seen: None }
    }

    /// Waits until the lease is ours.
    pub async fn win(&mut self) {
        loop {
            match timeout(RENEW_WITHIN, self.attempt()).await {
                Ok(Ok(true)) => return tracing::info!(lease = self.name, "leading"),
                Ok(Ok(false)) => {
                    self.wait().await;
                    continue;
                }
                Ok(Err(error)) => {
                    let reason = format!("{error:#}");
                    tracing::warn!(lease = self.name, reason, "cannot take the lease");
                }
                Err(_) => tracing::warn!(lease = self.name, "the API server does not answer"),
            }
            sleep(AGAIN).await;
        }
    }

    /// Renews the lease, for as long as that succeeds.
    ///
    /// # Errors
    ///
    /// Fails if another process has the lease, or may have it soon: the work that it protects has
    /// to stop at once.
    pub async fn hold(&mut self) -> Result<()> {
        let mut renewed = Instant::now();
        let mut pause = PERIOD;
        loop {
            sleep(pause).await;
            match timeout_at(renewed + RENEW_WITHIN, self.renew()).await {
                Ok(Ok(true)) => (renewed, pause) = (Instant::now(), PERIOD),
                Ok(Ok(false)) => bail!("another process leads: lease {} was lost", self.name),
                Ok(Err(error)) if renewed.elapsed() < RENEW_WITHIN => {
                    let reason = format!("{error:#}");
                    tracing::warn!(lease = self.name, reason, "cannot renew the lease");
                    pause = AGAIN;
                }
                Ok(Err(_)) | Err(_) => {
                    bail!("lease {} could not be renewed for {} s", self.name, RENEW_WITHIN.as_secs())
                }
            }
        }
    }

    /// Releases the lease, so that another process need not wait. If that fails, the other process
    /// gets it a little later.
    pub async fn release(&mut self) {
        if let Ok(Err(error)) = timeout(AGAIN, self.give_back()).await {
            tracing::warn!(lease = self.name, reason = %error, "cannot give the lease back");
        }
        self.seen = None;
    }

    /// Reads the lease first: a write of ours may have been interrupted.
    async fn give_back(&self) -> kube::Result<()> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else { return Ok(()) };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() == Some(self.identity.as_str()) {
            spec.holder_identity = None;
            self.api.replace(&self.name, &PostParams::default(), &lease).await?;
        }
        Ok(())
    }

    /// Writes the lease as it was last written. If that fails, reads it first: the answer to a
    /// write of ours may have been lost.
    async fn renew(&mut self) -> Result<bool> {
        let last = self.seen.as_ref().map(|(lease, _)| lease.clone());
        let renewed = match last {
            Some(last) => self.replace(last).await.unwrap_or(false),
            None => false,
        };
        if renewed { Ok(true) } else { self.attempt().await }
    }

    /// Tries to take the lease. Reports whether it is ours now.
    async fn attempt(&mut self) -> Result<bool> {
        let found = self.api.get_opt(&self.name).await.context("read the lease")?;
        let Some(found) = found else {
            let lease = self.taken(Lease::default(), Timestamp::now());
            let made = self.api.create(&PostParams::default(), &lease).await;
            return self.written(made);
        };
        self.see(&found);
        if self.may_take(&found) { self.replace(found).await } else { Ok(false) }
    }

    async fn replace(&mut self, found: Lease) -> Result<bool> {
        let lease = self.taken(found, Timestamp::now());
        let replaced = self.api.replace(&self.name, &PostParams::default(), &lease).await;
        self.written(replaced)
    }

    /// Waits until the lease of another process may be taken, or must be read again.
    async fn wait(&mut self) {
        if self.is_free() {
            // Another process was faster just now.
            return sleep(AGAIN / 20).await;
        }
        let pause = match self.follow().await {
            Ok(()) => return,
            // The watch has ended.
            Err(None) => AGAIN,
            Err(Some(error)) => {
                tracing::debug!(lease = self.name, reason = %error, "cannot watch the lease");
                PERIOD
            }
        };
        sleep_until(self.ends().map_or_else(Instant::now, |ends| ends.min(Instant::now() + pause))).await;
    }

    /// Watches the lease until it may be taken. Fails if it cannot; `None` if the watch has ended.
    async fn follow(&mut self) -> Result<(), Option<kube::Error>> {
        let version = self.seen.as_ref().and_then(|(lease, _)| lease.metadata.resource_version.clone());
        let only = WatchParams::default().fields(&format!("metadata.name={}", self.name));
        let events = self.api.watch(&only, version.as_deref().unwrap_or("0")).await?;
        let mut events = pin!(events);
        while let Some(ends) = self.ends() {
            let Ok(event) = timeout_at(ends, events.try_next()).await else { return Ok(()) };
            match event? {
                Some(WatchEvent::Added(lease) | WatchEvent::Modified(lease)) => self.see(&lease),
                Some(WatchEvent::Bookmark(_)) => (),
                Some(WatchEvent::Deleted(_)) => return Ok(()),
                Some(WatchEvent::Error(status)) => return Err(Some(kube::Error::Api(status))),
                None => return Err(None),
            }
        }
        Ok(())
    }

    fn see(&mut self, found: &Lease) {
        match &mut self.seen {
            Some((lease, _)) if lease.spec == found.spec => *lease = found.clone(),
            seen => *seen = Some((found.clone(), Instant::now())),
        }
    }

    fn may_take(&self, found: &Lease) -> bool {
        let holder = found.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        holder == Some(self.identity.as_str()) || self.is_free()
    }

    fn is_free(&self) -> bool {
        self.ends().is_none_or(|ends| ends <= Instant::now())
    }

    /// Returns the time when the lease as last seen expires; `None` if it has no holder.
    fn ends(&self) -> Option<Instant> {
        let (lease, since) = self.seen.as_ref()?;
        let spec = lease.spec.as_ref()?;
        spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())?;
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        Some(*since + seconds.map_or(DURATION, Duration::from_secs))
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
            // Another process was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error).context("write the lease"),
        }
    }
}

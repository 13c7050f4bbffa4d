//! Reports unhealthy volumes as Events of their claims, like upstream's external-health-monitor.
//!
//! The driver is asked periodically, one call at a time. Changes are reported to the API server; a
//! condition that lasts is reported again after a long time, because the API server deletes old
//! Events. After a restart the earlier reports are unknown, so the Events are read once.

use super::api;
use super::driver::{Conditions, Driver, failed, in_words, within};
use super::events::{Events, Kind};
use super::volumes::PersistentVolume;
use super::watches::Watches;
use crate::wire::before::{ControllerGetVolumeRequest, ListVolumesRequest, VolumeStatus};
use crate::wire::csi::volume_health::VolumeHealthEntry;
use crate::wire::csi::{ControllerListVolumeHealthRequest, VolumeHealthErrorType};
use flexvol_protocol::text::one_line;
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tonic::Status;

const ABNORMAL: &str = "VolumeConditionAbnormal";
const NORMAL: &str = "VolumeConditionNormal";

/// Message of upstream for a volume that has recovered.
const WELL_AGAIN: &str = "The Volume returns to the healthy state";

/// Interval for reporting a lasting condition again: the API server keeps an Event for an hour.
const STILL: Duration = Duration::from_mins(30);

/// Limit for one call about one volume: the next call waits for it.
const ONE: Duration = Duration::from_secs(15);

/// Condition of a volume, as its driver reports it; `None` if the volume is healthy.
type Condition = Option<String>;

/// Page of a driver's list: handles with conditions, and the token of the next page.
type Page = (Vec<(String, Condition)>, String);

/// Conditions of one driver's volumes.
struct Health {
    driver: Driver,
    timeout: Duration,
    events: Events,
    watches: Watches,
    /// Last report about each claim, by its uid, and the time of the report.
    told: HashMap<String, (String, Instant)>,
}

/// Reports conditions until it is dropped. Asks the driver after each period.
pub async fn run(client: Client, watches: Watches, driver: Driver, timeout: Duration, period: Duration) {
    watches.volumes.begin(&client);
    watches.volumes.known().await;
    // Upstream reports under this name too, so that each knows the reports of the other.
    let source = format!("csi-pv-monitor-controller-{}", driver.name);
    let told = told_before(&client, &source).await;
    let mut health = Health { driver, timeout, events: Events::new(client, source), watches, told };
    loop {
        health.look().await;
        // The pause does not depend on the time that the calls took: a slow driver gets the same
        // rest.
        sleep(period).await;
    }
}

/// Reads from the Events which claims were reported to have unhealthy volumes.
async fn told_before(client: &Client, source: &str) -> HashMap<String, (String, Instant)> {
    let of = ListParams::default().fields(&format!("source={source}"));
    let events = match Api::<Event>::all(client.clone()).list(&of).await {
        Ok(events) => events.items,
        Err(error) => {
            tracing::warn!(reason = api::reason(&error), "cannot read what was told of volumes");
            return HashMap::new();
        }
    };
    let mut newest: HashMap<_, (_, Option<String>)> = HashMap::new();
    for event in events {
        let time = event.last_timestamp.map(|time| time.0);
        let message = event.message.filter(|_| event.reason.as_deref() == Some(ABNORMAL));
        let known = newest.entry(event.involved_object.uid.unwrap_or_default()).or_default();
        if known.0 <= time {
            *known = (time, message);
        }
    }
    let abnormal =
        newest.into_iter().filter_map(|(uid, (_, message))| Some((uid, (message?, Instant::now()))));
    abnormal.collect()
}

impl Health {
    /// Asks for the conditions of all volumes, and reports changes.
    async fn look(&mut self) {
        let bound = self.bound();
        let claims: HashSet<_> = bound.iter().filter_map(|volume| Some(claim(volume)?.uid)).collect();
        self.told.retain(|uid, _| claims.contains(&Some(uid.clone())));
        match self.driver.known().await.conditions {
            None => {
                let driver = self.driver.name.as_str();
                tracing::warn!(driver, "the driver says nothing of its volumes' health");
            }
            Some(Conditions::OfEach) => self.each(&bound).await,
            Some(how) => {
                if let Err(status) = self.list(how, &bound).await {
                    tracing::warn!(reason = in_words(&failed(status)), "the health of volumes is not known");
                }
            }
        }
    }

    /// Returns the driver's volumes that are bound to claims.
    fn bound(&self) -> Vec<Arc<PersistentVolume>> {
        self.watches.volumes.filtered(|volume| self.is_bound(volume))
    }

    fn is_bound(&self, volume: &PersistentVolume) -> bool {
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some("Bound") && handle(volume, &self.driver.name).is_some()
    }

    /// Asks for the volumes one after the other.
    async fn each(&mut self, bound: &[Arc<PersistentVolume>]) {
        for volume in bound {
            // The volume may be gone since the list was made.
            let volume = self.watches.volumes.get(&volume.name_any());
            let Some(volume) = volume.filter(|volume| self.is_bound(volume)) else { continue };
            let volume_id = handle(&volume, &self.driver.name).unwrap_or_default().to_owned();
            let request = within(ControllerGetVolumeRequest { volume_id }, self.timeout.min(ONE));
            match self.driver.older_controller().controller_get_volume(request).await {
                Ok(answer) => self.hear(&volume, condition(answer.into_inner().status)).await,
                Err(status) => {
                    let reason = in_words(&failed(status));
                    tracing::warn!(volume = volume.metadata.name, reason, "its health is not known");
                }
            }
        }
    }

    /// Lists conditions page by page. Ends even if the driver's list does not.
    async fn list(&mut self, how: Conditions, bound: &[Arc<PersistentVolume>]) -> Result<(), Status> {
        let end = Instant::now() + self.timeout;
        let names = bound.iter().filter_map(|volume| handle(volume, &self.driver.name));
        let names: HashSet<_> = names.collect();
        let (mut found, mut token) = (HashMap::new(), String::new());
        loop {
            let (page, next) = self.page(how, &token).await?;
            found.extend(page.into_iter().filter(|(name, _)| names.contains(name.as_str())));
            if next.is_empty() {
                break;
            }
            if next == token || Instant::now() > end {
                return Err(Status::internal("the driver's list of volumes has no end"));
            }
            token = next;
        }
        for volume in bound {
            match found.get(handle(volume, &self.driver.name).unwrap_or_default()) {
                Some(condition) => self.hear(volume, condition.clone()).await,
                // A list of unhealthy volumes means that a missing one is healthy. In a list of all
                // volumes, nothing is known of a missing one.
                None if how == Conditions::OfTheIll => self.hear(volume, None).await,
                None => (),
            }
        }
        Ok(())
    }

    async fn page(&self, how: Conditions, token: &str) -> Result<Page, Status> {
        let starting_token = token.to_owned();
        if how == Conditions::OfTheIll {
            let request = ControllerListVolumeHealthRequest { starting_token, ..Default::default() };
            let mut controller = self.driver.controller();
            let page = controller.controller_list_volume_health(within(request, self.timeout)).await?;
            let page = page.into_inner();
            let ill = page.entries.into_iter();
            let ill = ill.map(|entry| (entry.volume_id, in_one(&entry.health_statuses)));
            return Ok((ill.collect(), page.next_token));
        }
        let request = ListVolumesRequest { starting_token, ..ListVolumesRequest::default() };
        let page = self.driver.older_controller().list_volumes(within(request, self.timeout)).await?;
        let page = page.into_inner();
        let all = page.entries.into_iter();
        let all = all.map(|entry| (entry.volume.unwrap_or_default().volume_id, condition(entry.status)));
        Ok((all.collect(), page.next_token))
    }

    /// Reports a condition of a volume if it is new.
    async fn hear(&mut self, volume: &PersistentVolume, condition: Condition) {
        let Some(claim) = claim(volume) else { return };
        let uid = claim.uid.clone().unwrap_or_default();
        match (condition, self.told.get(&uid)) {
            (Some(message), Some((before, when))) if message == *before && when.elapsed() < STILL => (),
            (Some(message), _) => {
                tracing::warn!(volume = volume.metadata.name, reason = message, "a volume is not well");
                if self.events.tell_now(&claim, Kind::Warning, ABNORMAL, &message).await {
                    self.told.insert(uid, (message, Instant::now()));
                }
            }
            (None, Some(_)) => {
                if self.events.tell_now(&claim, Kind::Normal, NORMAL, WELL_AGAIN).await {
                    self.told.remove(&uid);
                }
            }
            (None, None) => (),
        }
    }
}

/// Returns the claim of a bound volume.
fn claim(volume: &PersistentVolume) -> Option<ObjectReference> {
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    claim.uid.as_ref()?;
    Some(ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        ..claim.clone()
    })
}

/// Returns the driver's own name of a volume, if the volume belongs to the driver.
fn handle<'a>(volume: &'a PersistentVolume, driver: &str) -> Option<&'a str> {
    let source = volume.spec.as_ref()?.csi.as_ref()?;
    Some(source.volume_handle.as_str()).filter(|_| source.driver == driver)
}

/// Reads a condition in the form of drivers up to CSI 1.12.
fn condition(status: Option<VolumeStatus>) -> Condition {
    let condition = status?.volume_condition?;
    condition.abnormal.then(|| in_words_of(&condition.message))
}

fn in_words_of(message: &str) -> String {
    let message = one_line(message, super::events::MESSAGE_LIMIT);
    if message.is_empty() { "the driver says that it is abnormal, and no more".to_owned() } else { message }
}

/// Reads a condition in the form of drivers from CSI 1.13 on; ignores unknown types.
fn in_one(entries: &[VolumeHealthEntry]) -> Condition {
    let known = entries.iter().filter_map(|entry| {
        let status = match entry.status() {
            VolumeHealthErrorType::UnknownVolumeHealthType => return None,
            VolumeHealthErrorType::Degraded => "Degraded",
            VolumeHealthErrorType::Inaccessible => "Inaccessible",
            VolumeHealthErrorType::DataLoss => "DataLoss",
        };
        Some(format!("{status}: {}: {}", entry.reason, entry.message))
    });
    let mut known: Vec<_> = known.collect();
    known.sort();
    (!known.is_empty()).then(|| in_words_of(&known.join("; ")))
}

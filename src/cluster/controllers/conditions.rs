//! Tells of volumes that a driver says are not well, as Events of their claims: what upstream's
//! external-health-monitor does.
//!
//! The driver is asked once in a while, one call at a time; the API server is told what has
//! changed, and after a long time what still is so, because it forgets Events. After a restart
//! nothing is known of what was told: the Events themselves are read, once.

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

/// As upstream says it.
const WELL_AGAIN: &str = "The Volume returns to the healthy state";

/// What still is so is told again after this: the API server keeps an Event for an hour.
const STILL: Duration = Duration::from_mins(30);

/// What one call for one volume may take: the next one waits for it.
const ONE: Duration = Duration::from_secs(15);

/// What a driver says of a volume: nothing if it is well.
type Condition = Option<String>;

/// What a driver says of volumes, and where it goes on.
type Page = (Vec<(String, Condition)>, String);

/// The conditions of one driver's volumes.
struct Health {
    driver: Driver,
    timeout: Duration,
    events: Events,
    watches: Watches,
    /// What was told of claims, by their uids, and when.
    told: HashMap<String, (String, Instant)>,
}

/// Tells until it is dropped. The driver is asked after each period.
pub async fn run(client: Client, watches: Watches, driver: Driver, timeout: Duration, period: Duration) {
    watches.volumes.begin(&client);
    watches.volumes.known().await;
    // The name under which upstream tells it, so that either knows what the other has told.
    let source = format!("csi-pv-monitor-controller-{}", driver.name);
    let told = told_before(&client, &source).await;
    let mut health = Health { driver, timeout, events: Events::new(client, source), watches, told };
    loop {
        health.look().await;
        // However long that took: a slow driver has as long a rest.
        sleep(period).await;
    }
}

/// Of which claims it is told that their volumes are not well.
async fn told_before(client: &Client, source: &str) -> HashMap<String, (String, Instant)> {
    let of = ListParams::default().fields(&format!("source={source}"));
    let mut events = match Api::<Event>::all(client.clone()).list(&of).await {
        Ok(events) => events.items,
        Err(error) => {
            tracing::warn!(reason = api::reason(&error), "cannot read what was told of volumes");
            return HashMap::new();
        }
    };
    events.sort_by_key(|event| event.last_timestamp.as_ref().map(|time| time.0));
    let mut told = HashMap::new();
    for event in events {
        let uid = event.involved_object.uid.unwrap_or_default();
        match event.message.filter(|_| event.reason.as_deref() == Some(ABNORMAL)) {
            Some(message) => drop(told.insert(uid, (message, Instant::now()))),
            None => drop(told.remove(&uid)),
        }
    }
    told
}

impl Health {
    /// Asks for all volumes, and tells what has changed.
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

    /// The driver's volumes that claims have.
    fn bound(&self) -> Vec<Arc<PersistentVolume>> {
        self.watches.volumes.filtered(|volume| self.is_bound(volume))
    }

    fn is_bound(&self, volume: &PersistentVolume) -> bool {
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some("Bound") && handle(volume, &self.driver.name).is_some()
    }

    /// One after the other.
    async fn each(&mut self, bound: &[Arc<PersistentVolume>]) {
        for volume in bound {
            // It may have gone while others were asked for.
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

    /// Page by page. Whatever the driver answers, it has an end.
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
                // Those are listed that are not well, and nothing is known of one that is missing
                // in a list of all.
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

    /// Tells what is new of a volume.
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

/// The claim of a volume that is bound.
fn claim(volume: &PersistentVolume) -> Option<ObjectReference> {
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    claim.uid.as_ref()?;
    Some(ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        ..claim.clone()
    })
}

/// The driver's own name of a volume, if it is the driver's.
fn handle<'a>(volume: &'a PersistentVolume, driver: &str) -> Option<&'a str> {
    let source = volume.spec.as_ref()?.csi.as_ref()?;
    Some(source.volume_handle.as_str()).filter(|_| source.driver == driver)
}

/// As drivers up to CSI 1.12 say it.
fn condition(status: Option<VolumeStatus>) -> Condition {
    let condition = status?.volume_condition?;
    condition.abnormal.then(|| in_words_of(&condition.message))
}

fn in_words_of(message: &str) -> String {
    let message = one_line(message, super::events::MESSAGE_LIMIT);
    if message.is_empty() { "the driver says that it is abnormal, and no more".to_owned() } else { message }
}

/// As drivers from CSI 1.13 on say it: what cannot be understood is no condition.
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

//! Finds the volume of a claim as the cluster's binder would: by name, by the volume's own
//! reference, or the smallest volume that fits.

use super::pod::Pod;
use super::volume::{Claim, PersistentVolume};
use super::{Key, Objects};
use flexvol_protocol::failure::{Failure, Result};

impl Objects {
    /// Returns the volume behind a claim of a pod.
    pub(super) fn bound_to(&self, key: &Key, pod: &Pod) -> Result<&PersistentVolume> {
        let title = format!("{}: claim {}/{}", pod.title(), key.0, key.1);
        let reserved = self.volumes.values().find(|volume| volume.claim.as_ref() == Some(key));
        let Some(claim) = self.claims.get(key) else {
            return reserved.ok_or_else(|| {
                let fix = "add the PersistentVolumeClaim's file with -f";
                Failure::options(format!("{title} is in no file: {fix}"))
            });
        };
        match &claim.volume {
            Some(name) => self.named(name, key, &title),
            None => reserved.or_else(|| self.best_for(claim)).ok_or_else(|| {
                let fix = "set its volumeName, or add the PersistentVolume's file with -f";
                Failure::options(format!("{title} fits no PersistentVolume: {fix}"))
            }),
        }
    }

    /// Returns the claim of a volume, if these objects contain one.
    pub(super) fn claim_of(&self, volume: &PersistentVolume) -> Option<&Claim> {
        let names_it = |claim: &&Claim| claim.volume.as_ref() == Some(&volume.name);
        volume.claim.as_ref().and_then(|key| self.claims.get(key)).or_else(|| {
            let gets_it = |claim: &&Claim| self.best_for(claim).is_some_and(|best| best.name == volume.name);
            self.claims.values().find(names_it).or_else(|| self.claims.values().find(gets_it))
        })
    }

    /// Returns the claims that name a `FlexVolume`, or seem to want one, and cannot be bound to it,
    /// with the reason.
    pub fn misfits(&self) -> Vec<(Key, String)> {
        let why = |claim: &Claim| match &claim.volume {
            Some(name) => {
                let volume = self.volumes.get(name).filter(|volume| volume.flex.is_some())?;
                misfit(volume, claim).or_else(|| takes_default(volume, claim))
            }
            None => self.unbound(claim),
        };
        self.claims.values().filter_map(|claim| Some((claim.key.clone(), why(claim)?))).collect()
    }

    /// Explains why a claim that names no volume finds none of the existing ones.
    fn unbound(&self, claim: &Claim) -> Option<String> {
        let volumes = || self.volumes.values().filter(|volume| volume.flex.is_some());
        let reserved = volumes().find(|volume| volume.claim.as_ref() == Some(&claim.key));
        if let Some(found) = reserved.or_else(|| self.best_for(claim).filter(|best| best.flex.is_some())) {
            return takes_default(found, claim);
        }
        let is_free = |volume: &&PersistentVolume| volume.claim.is_none();
        // Prefer the class of the claim: a different class may be one that provisions volumes.
        let near = volumes().filter(is_free).find(|volume| volume.class == claim.class);
        let else_fits = |volume: &&PersistentVolume| {
            let same = Claim { class: volume.class.clone(), ..claim.clone() };
            fits(volume, &same)
        };
        let near = near.or_else(|| volumes().filter(is_free).find(else_fits))?;
        self.best_for(claim).is_none().then(|| misfit(near, claim))?
    }

    fn named(&self, name: &str, key: &Key, title: &str) -> Result<&PersistentVolume> {
        let Some(volume) = self.volumes.get(name) else {
            let text =
                format!("{title} names the PersistentVolume {name}, which is in no file: add it with -f");
            return Err(Failure::options(text));
        };
        match &volume.claim {
            Some(other) if other != key => Err(Failure::options(format!(
                "{title} names the PersistentVolume {name}, which is bound to {}/{}: fix one of them",
                other.0, other.1
            ))),
            _ => Ok(volume),
        }
    }

    fn best_for(&self, claim: &Claim) -> Option<&PersistentVolume> {
        let taken = |volume: &PersistentVolume| {
            volume.claim.is_some()
                || self.claims.values().any(|other| other.volume.as_ref() == Some(&volume.name))
        };
        let fitting = self.volumes.values().filter(|volume| fits(volume, claim) && !taken(volume));
        fitting.min_by_key(|volume| (volume.capacity, &volume.name))
    }
}

/// Returns the binder's objection to a volume that a claim names. The binder ignores labels then.
fn misfit(volume: &PersistentVolume, claim: &Claim) -> Option<String> {
    let name = &volume.name;
    if volume.claim.as_ref().is_some_and(|other| *other != claim.key) {
        return Some(format!("PersistentVolume {name} is bound to another claim: fix its claimRef"));
    }
    if volume.class != claim.class {
        return Some(format!(
            "PersistentVolume {name} is of another storage class: write the same storageClassName in both"
        ));
    }
    if !claim.modes.is_subset(&volume.modes) {
        return Some(format!("PersistentVolume {name} lacks an access mode of the claim: add it to one"));
    }
    if volume.capacity.is_some_and(|capacity| capacity < claim.request) {
        return Some(format!("PersistentVolume {name} is smaller than the claim asks for: fix one of them"));
    }
    None
}

/// Warns of a claim without a class: it gets the default class, if there is one, and then a new
/// volume.
fn takes_default(volume: &PersistentVolume, claim: &Claim) -> Option<String> {
    (claim.takes_default && volume.class.is_empty()).then(|| {
        format!(
            "the claim says no storageClassName: a cluster with a default class makes a new volume for it instead of \
             PersistentVolume {}: write storageClassName: \"\" in both",
            volume.name
        )
    })
}

fn fits(volume: &PersistentVolume, claim: &Claim) -> bool {
    let labelled = claim.labels.iter().all(|(key, value)| volume.labels.get(key) == Some(value));
    let large = volume.capacity.unwrap_or_default() >= claim.request;
    volume.class == claim.class && claim.modes.is_subset(&volume.modes) && labelled && large
}

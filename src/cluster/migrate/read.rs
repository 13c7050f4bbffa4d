//! Input of a plan, read from a cluster: page by page, each kind once.

use super::found::{APPLICATION, Found, KUSTOMIZATION, RELEASE, text};
use super::make::secrets_of;
use super::plan::{Kind, Selection, VOLUMES};
use crate::kubectl::session::Session;
use anyhow::{Context as _, Result};
use flexvol_model::translate::{self, To};
use serde_json::Value;
use std::collections::BTreeSet;

/// Reads all input.
///
/// # Errors
///
/// Fails if something may not be read, or if there is no answer.
pub fn read(session: &Session, selection: &Selection) -> Result<Found> {
    let mut found = Found { cluster: cluster(session)?, ..Found::default() };
    session.list(VOLUMES, |object| found.add_volume(object))?;
    session.list("/api/v1/persistentvolumeclaims", |object| found.add_claim(&object))?;
    session.list("/api/v1/pods", |object| found.add_pod(&object))?;
    session.list("/api/v1/nodes", |object| found.add_node(&object))?;
    session.list("/apis/storage.k8s.io/v1/csidrivers", |object| found.add_driver(&object))?;
    session.list("/apis/storage.k8s.io/v1/csinodes", |object| found.add_csi_node(&object))?;
    session.list("/apis/batch/v1/jobs", |object| found.add_job(&object))?;
    for (kind, path) in [
        (APPLICATION, "/apis/argoproj.io/v1alpha1/applications"),
        (KUSTOMIZATION, "/apis/kustomize.toolkit.fluxcd.io/v1/kustomizations"),
        (RELEASE, "/apis/helm.toolkit.fluxcd.io/v2/helmreleases"),
    ] {
        session.list(path, |object| found.add_gitops(kind, &object))?;
    }
    for kind in Kind::ALL {
        let (api, plural) = kind.place();
        session.list(&format!("{api}/{plural}"), |object| found.add_workload(kind, object))?;
    }
    for (namespace, name) in secrets(&found, selection) {
        let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
        if let Some(secret) = session.get(&path)? {
            found.add_secret(&secret);
        }
    }
    Ok(found)
}

/// Returns the identity of a cluster, which no other cluster has.
///
/// # Errors
///
/// Fails if it may not be read.
pub fn cluster(session: &Session) -> Result<String> {
    let system =
        session.get("/api/v1/namespaces/kube-system")?.context("there is no namespace kube-system")?;
    Ok(text(&system["metadata"], "uid"))
}

/// Returns the Secrets that the translated volumes would name.
fn secrets(found: &Found, selection: &Selection) -> BTreeSet<(String, String)> {
    if selection.reverse {
        return BTreeSet::new();
    }
    let to = selection.to.as_deref().map_or(To::Flexvold, To::Driver);
    let translated = found.volumes.iter().filter_map(|object: &Value| translate::to_csi(object, to).ok()?);
    flexvol_protocol::ordered::filled(
        translated.flat_map(|translation| secrets_of(&translation.object["spec"]["csi"])),
    )
}

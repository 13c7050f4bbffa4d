//! Plans that were begun, kept in the cluster in `ConfigMaps`: without the plan's file, a user can
//! still continue or roll back.

use super::found::text;
use super::plan::{MARK, Plan};
use crate::controllers::blocking::Answer;
use crate::kubectl::session::Session;
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Size of a part, in bytes: the API server accepts at most a mebibyte.
const PART: usize = 700 << 10;

/// Annotation on the parts of a plan: the number of parts.
const PARTS: &str = "flexvol.dev/parts";

fn path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

fn name(id: &str, number: usize) -> String {
    format!("flexvol-migration-{id}-{number}")
}

/// Keeps a plan. A plan that is already kept is the same: its id is derived from its content.
///
/// # Errors
///
/// Fails if it cannot be kept.
pub fn keep(session: &Session, namespace: &str, plan: &Plan) -> Result<()> {
    let text = serde_json::to_string(plan)?;
    let parts = parts(&text);
    for (number, part) in parts.iter().enumerate() {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "immutable": true,
            "metadata": {"name": name(&plan.id, number), "labels": { MARK: plan.id },
                "annotations": { PARTS: parts.len().to_string() }},
            "data": {"plan": part}});
        loop {
            match session.ask("POST", &path(namespace), Some(object.clone())) {
                Answer::Done(_) | Answer::Conflict => break,
                Answer::Missing(why) | Answer::Refused(why) => bail!("keep the plan in the cluster: {why}"),
                // The result is unknown: the object may exist.
                Answer::Unsure(_) => {
                    let path = format!("{}/{}", path(namespace), name(&plan.id, number));
                    if session.get(&path)?.is_some() {
                        break;
                    }
                }
            }
        }
    }
    Ok(())
}

fn parts(text: &str) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while rest.len() > PART {
        let end = (0..=PART).rev().find(|at| rest.is_char_boundary(*at)).unwrap_or(PART);
        let (part, more) = rest.split_at(end);
        parts.push(part);
        rest = more;
    }
    parts.push(rest);
    parts
}

/// Returns the ids of the kept plans.
///
/// # Errors
///
/// Fails if they may not be read.
pub fn ids(session: &Session, namespace: &str) -> Result<BTreeSet<String>> {
    let mut ids = BTreeSet::new();
    session.list(&path(namespace), |object| {
        if let Some(id) = object["metadata"]["labels"][MARK].as_str() {
            ids.insert(id.to_owned());
        }
    })?;
    Ok(ids)
}

/// Reads a kept plan.
///
/// # Errors
///
/// Fails if it is missing or not complete.
pub fn load(session: &Session, namespace: &str, id: &str) -> Result<Plan> {
    ensure!(is_id(id), "{id:?} is no migration: kubectl flexvol migrate status names them");
    let mut parts: BTreeMap<usize, String> = BTreeMap::new();
    let mut count = 1;
    let mut number = 0;
    while number < count {
        let part = session.get(&format!("{}/{}", path(namespace), name(id, number)))?;
        let part: Value = part.with_context(|| format!("migration {id} is not in namespace {namespace}"))?;
        count =
            part["metadata"]["annotations"][PARTS].as_str().and_then(|text| text.parse().ok()).unwrap_or(1);
        parts.insert(number, text(&part["data"], "plan"));
        number += 1;
    }
    let text: String = parts.into_values().collect();
    let plan = Plan::parse(text.as_bytes())?;
    ensure!(plan.id == id, "what is kept as migration {id} is another one");
    Ok(plan)
}

/// Removes a plan that is done. A part that cannot be removed stays, and status shows the plan.
pub fn forget(session: &Session, namespace: &str, plan: &Plan) {
    let count = serde_json::to_string(plan).map_or(0, |text| parts(&text).len());
    for number in 0..count {
        session.ask("DELETE", &format!("{}/{}", path(namespace), name(&plan.id, number)), None);
    }
}

/// Reports whether a text can be the id of a plan.
pub fn is_id(text: &str) -> bool {
    text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

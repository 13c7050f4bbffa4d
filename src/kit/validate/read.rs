//! Reads the objects of all files one by one; lists are split into their items.

use super::finding::{Findings, OBJECT, SYNTAX, Severity};
use super::node::Node;
use super::object::Object;
use crate::objects::{Key, rules};
use crate::yaml::{self, Lines};
use flexvol_model::schema::did_you_mean;
use serde_json::Value;
use std::rc::Rc;

/// Text to validate, with the name that findings give it.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Name of the file.
    pub name: &'a str,
    /// Content of the file.
    pub text: &'a str,
}

/// A document of a file.
pub(super) struct Document {
    pub(super) file: Rc<str>,
    pub(super) value: Value,
    pub(super) lines: Lines,
}

/// Message for a document that is not an object.
pub(super) const NO_MAPPING: &str =
    "a document must be a mapping: write one Kubernetes object, and --- before the next";

/// Returns the documents of a file; none, and a finding, if the file cannot be parsed.
pub(super) fn read(file: &Rc<str>, text: &str, findings: &mut Findings) -> Vec<Document> {
    match yaml::parse_with_lines(text) {
        Ok(documents) => {
            let document = |(value, lines)| Document { file: Rc::clone(file), value, lines };
            documents.into_iter().map(document).collect()
        }
        Err(mistake) => {
            let message = if text.contains("{{") && text.contains("}}") {
                "this is a template of Helm: render it first (helm template … | flexvol validate -f -)"
                    .to_owned()
            } else {
                format!("not valid YAML at column {}: {}", mistake.column, mistake.what)
            };
            findings.push(file, mistake.line, SYNTAX, Severity::Error, message);
            Vec::new()
        }
    }
}

/// Returns every object of the documents.
pub(super) fn objects<'a>(documents: &'a [Document], findings: &mut Findings) -> Vec<Object<'a>> {
    let mut all = Vec::new();
    for document in documents {
        add(&document.file, Node::root(&document.value, &document.lines), &mut all, findings);
    }
    all
}

fn add<'a>(file: &'a str, node: Node<'a>, all: &mut Vec<Object<'a>>, findings: &mut Findings) {
    let mut refuse = |why: &str| findings.push(file, node.line(), OBJECT, Severity::Error, why);
    if !node.value().is_object() {
        return refuse(NO_MAPPING);
    }
    let Some(kind) = node.get("kind").text() else {
        return refuse("an object has no kind: it is no Kubernetes object");
    };
    let items = node.get("items");
    if kind.ends_with("List") && items.value().is_array() {
        items.entries().for_each(|item| add(file, item, all, findings));
        return;
    }
    all.push(Object { file, kind, node, key: key(node) });
}

/// Returns namespace and name of an object.
pub(super) fn key(node: Node<'_>) -> Key {
    let metadata = node.get("metadata");
    // The API server generates a name; any name will do here.
    let generated = metadata.get("generateName").text().map(|start| format!("{start}x"));
    let name = metadata.get("name").text().map(str::to_owned).or(generated).unwrap_or_default();
    (metadata.get("namespace").text().unwrap_or("default").to_owned(), name)
}

/// Returns the pod itself, or the pod template of another object.
pub(super) fn pod<'a>(node: Node<'a>, kind: &str) -> Option<Node<'a>> {
    if kind == "Pod" {
        return Some(node);
    }
    let templates = rules::TEMPLATES.iter().map(|path| node.at(path));
    templates.into_iter().find(|template| !template.at(&["spec", "containers"]).is_absent())
}

impl<'a> Object<'a> {
    /// Returns the pod itself, or the pod template of another object.
    pub(super) fn pod(&self) -> Option<Node<'a>> {
        pod(self.node, self.kind)
    }

    /// Returns the key of the pod that has the volumes; for a `StatefulSet` that of its first pod.
    pub(super) fn pod_key(&self) -> Key {
        let mut key = self.key.clone();
        if self.kind == "StatefulSet" {
            key.1 += "-0";
        }
        key
    }

    /// Returns the object; a generated name is replaced by a placeholder.
    pub(super) fn named(&self) -> Value {
        let mut value = self.node.value().clone();
        if self.node.at(&["metadata", "name"]).is_absent()
            && let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut)
            && !self.key.1.is_empty()
        {
            metadata.insert("name".to_owned(), self.key.1.clone().into());
        }
        value
    }
}

/// Describes an object that is named `at` a place and does not exist. The fix mentions an object of
/// the same name in `all` (in another namespace), or one of a similar name in `likely`.
pub(super) fn missing<'a>(
    at: Node<'_>,
    (kind, key): (&str, &Key),
    mut all: impl Iterator<Item = &'a Key>,
    likely: impl Iterator<Item = &'a Key>,
) -> String {
    let (namespace, name) = key;
    let elsewhere = all.find(|other| other.1 == *name);
    // A node without a line belongs to an object of a cluster.
    let (place, otherwise) = match at.line() {
        0 => ("not in the cluster", "create it, or correct the name"),
        _ => ("in no file", "add its file, and it is checked too"),
    };
    let fix = match (elsewhere, did_you_mean(name, likely.map(|other| other.1.as_str()))) {
        (Some(other), _) => format!("there is one in namespace {}: fix one of them", other.0),
        (None, Some(near)) => format!("did you mean {near}?"),
        (None, None) => otherwise.to_owned(),
    };
    format!("{kind} {namespace}/{name} is {place}: {fix}")
}

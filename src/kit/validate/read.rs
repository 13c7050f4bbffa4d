//! The objects of all files, one by one: lists are taken apart.

use super::finding::{Findings, OBJECT, SYNTAX, Severity};
use super::node::Node;
use super::object::Object;
use crate::objects::{Key, rules};
use crate::yaml::{self, Lines};
use flexvol_model::schema::did_you_mean;
use serde_json::Value;

/// A text to look at, under the name that findings shall give it.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The name of the file.
    pub name: &'a str,
    /// What is in it.
    pub text: &'a str,
}

/// A document of a file.
pub(super) struct Document<'a> {
    file: &'a str,
    value: Value,
    lines: Lines,
}

/// Every document that can be read.
pub(super) fn read<'a>(sources: &[Source<'a>], findings: &mut Findings) -> Vec<Document<'a>> {
    let mut all = Vec::new();
    for Source { name: file, text } in sources {
        match yaml::parse_with_lines(text) {
            Ok(documents) => {
                all.extend(documents.into_iter().map(|(value, lines)| Document { file, value, lines }));
            }
            Err(mistake) => {
                let message = if text.contains("{{") && text.contains("}}") {
                    "this is a template of Helm: render it first (helm template … | flexvol validate -f -)"
                        .to_owned()
                } else {
                    format!("not valid YAML at column {}: {}", mistake.column, mistake.what)
                };
                findings.push(file, mistake.line, SYNTAX, Severity::Error, message);
            }
        }
    }
    all
}

/// Every object of the documents.
pub(super) fn objects<'a>(documents: &'a [Document<'a>], findings: &mut Findings) -> Vec<Object<'a>> {
    let mut all = Vec::new();
    for document in documents {
        add(document.file, Node::root(&document.value, &document.lines), &mut all, findings);
    }
    all
}

fn add<'a>(file: &'a str, node: Node<'a>, all: &mut Vec<Object<'a>>, findings: &mut Findings) {
    let mut refuse = |why: &str| findings.push(file, node.line(), OBJECT, Severity::Error, why);
    if !node.value().is_object() {
        return refuse("a document must be a mapping: write one Kubernetes object, and --- before the next");
    }
    let Some(kind) = node.get("kind").text() else {
        return refuse("an object has no kind: it is no Kubernetes object");
    };
    let items = node.get("items");
    if kind.ends_with("List") && items.value().is_array() {
        items.entries().for_each(|item| add(file, item, all, findings));
        return;
    }
    let metadata = node.get("metadata");
    // The API server makes a name up; any will do here.
    let generated = metadata.get("generateName").text().map(|start| format!("{start}x"));
    let name = metadata.get("name").text().map(str::to_owned).or(generated).unwrap_or_default();
    let namespace = metadata.get("namespace").text().unwrap_or("default").to_owned();
    all.push(Object { file, kind, node, key: (namespace, name) });
}

impl<'a> Object<'a> {
    /// The pod itself or the template of one.
    pub(super) fn pod(&self) -> Option<Node<'a>> {
        if self.kind == "Pod" {
            return Some(self.node);
        }
        let templates = rules::TEMPLATES.iter().map(|path| self.node.at(path));
        templates.into_iter().find(|template| !template.at(&["spec", "containers"]).is_absent())
    }

    /// The pod that the volumes are found under; of several that a set makes, the first.
    pub(super) fn pod_key(&self) -> Key {
        let mut key = self.key.clone();
        if self.kind == "StatefulSet" {
            key.1 += "-0";
        }
        key
    }

    /// The object with the name that would be made up for it.
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

/// Of an object that is named and in no file: which of `all` of its kind may be meant, those of
/// `likely` by their names, or `otherwise`.
pub(super) fn in_no_file<'a>(
    kind: &str,
    key: &Key,
    mut all: impl Iterator<Item = &'a Key>,
    likely: impl Iterator<Item = &'a Key>,
    otherwise: &str,
) -> String {
    let (namespace, name) = key;
    let elsewhere = all.find(|other| other.1 == *name);
    let fix = match (elsewhere, did_you_mean(name, likely.map(|other| other.1.as_str()))) {
        (Some(other), _) => format!("there is one in namespace {}: fix one of them", other.0),
        (None, Some(near)) => format!("did you mean {near}?"),
        (None, None) => otherwise.to_owned(),
    };
    format!("{kind} {namespace}/{name} is in no file: {fix}")
}

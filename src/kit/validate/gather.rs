//! Gathers what is to be validated, from whole texts and from streams. From a stream, only objects
//! that concern a FlexVolume are kept, in packed form: a cluster has many objects, and a tree of
//! values takes ten times the size of its text.
//!
//! These objects are known only at the end, because objects come in any order. Until then, every
//! candidate is kept in the form that [`prune`] leaves.

use super::finding::{Findings, NOTHING, OBJECT, SECRET_MISSING, SYNTAX, Severity};
use super::node::Node;
use super::prune::{has_process_1, prune};
use super::read::{self, Document};
use super::stream::{Piece, pieces};
use super::{KnownDrivers, Report, validated};
use crate::objects::Key;
use crate::yaml::{self, Lines};
use flexvol_protocol::failure::Result;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::BufRead;
use std::rc::Rc;

/// Words that mark objects which may concern a `FlexVolume`. The many objects without any of them
/// need not be parsed.
const MARKS: [&str; 7] = [
    "flexVolume",
    "persistentVolumeClaim",
    "PersistentVolume",
    "volumeClaimTemplates",
    "Secret",
    "StorageClass",
    // Process 1 of a mount pod.
    "mounter",
];

/// Texts that are read so far.
#[derive(Default)]
pub struct Gathered {
    findings: Findings,
    /// Names of files and objects, in the order of the input.
    files: Vec<Rc<str>>,
    documents: Vec<Document>,
    packed: Vec<Packed>,
}

/// Packed object of a stream.
struct Packed {
    file: Rc<str>,
    kind: String,
    key: Key,
    /// Objects that it refers to: volumes of a claim, claims of a pod or a volume, Secrets of a
    /// `FlexVolume`.
    leads_to: Vec<String>,
    /// Drivers of its `FlexVolumes`; for a Secret, its type.
    drivers: Vec<String>,
    /// True if it is a mount pod, which is validated even without a `FlexVolume`.
    is_mount_pod: bool,
    text: Box<str>,
    /// Line of every value in `text`, in the order of the values.
    lines: Box<[u32]>,
}

impl Gathered {
    /// Adds a whole text, with the name that findings give it.
    pub fn text(&mut self, file: &str, text: &str) {
        let file = self.file(file);
        let read = read::read(&file, text, &mut self.findings);
        self.documents.extend(read);
    }

    /// Adds a text of any length. With `by_object`, findings name objects instead of lines, for
    /// users who have no file.
    pub fn stream(&mut self, file: &str, by_object: bool, input: &mut dyn BufRead) -> Result<()> {
        let file = self.file(file);
        if by_object {
            // A cluster without any FlexVolume is valid.
            self.findings.leave_out(NOTHING);
        }
        pieces(input, &mut |Piece { line, text }| {
            if MARKS.iter().any(|mark| text.contains(mark)) {
                self.piece(&file, by_object, line, &text);
            }
            Ok(())
        })
    }

    /// Declares that no Secrets were added, though some may exist: missing ones are not reported.
    pub fn without_secrets(&mut self) {
        self.findings.leave_out(SECRET_MISSING);
    }

    fn file(&mut self, file: &str) -> Rc<str> {
        let file: Rc<str> = file.into();
        self.files.push(Rc::clone(&file));
        file
    }

    fn piece(&mut self, file: &Rc<str>, by_object: bool, line: usize, text: &str) {
        let before = line - 1;
        match yaml::parse_with_lines(text) {
            Ok(documents) => {
                for (value, mut lines) in documents {
                    lines.shift(before);
                    self.object(file, by_object, value, lines);
                }
            }
            Err(mistake) => {
                let message = format!("not valid YAML at column {}: {}", mistake.column, mistake.what);
                self.findings.push(file, before + mistake.line, SYNTAX, Severity::Error, message);
            }
        }
    }

    fn object(&mut self, file: &Rc<str>, by_object: bool, mut value: Value, mut lines: Lines) {
        if !value.is_object() {
            return self.findings.push(file, lines.line(), OBJECT, Severity::Error, read::NO_MAPPING);
        }
        if !prune(&mut value, &mut lines) {
            return;
        }
        let node = Node::root(&value, &lines);
        let (kind, key) = (node.get("kind").text().unwrap_or_default().to_owned(), read::key(node));
        let is_named = by_object && !key.1.is_empty();
        let file = match (is_named, kind.as_str()) {
            (false, _) => Rc::clone(file),
            (true, "PersistentVolume" | "StorageClass") => self.file(&format!("{kind} {}", key.1)),
            (true, _) => self.file(&format!("{kind} {}/{}", key.0, key.1)),
        };
        let mut all = Vec::new();
        number(&value, Some(&lines), &mut |line| {
            all.push(if is_named { 0 } else { u32::try_from(line).unwrap_or(u32::MAX) });
        });
        let (leads_to, drivers) = (leads_to(node, &kind, &key), drivers(node, &kind));
        let is_mount_pod = read::pod(node, &kind).is_some_and(|pod| has_process_1(pod.get("spec").value()));
        let (text, lines) = (value.to_string().into(), all.into());
        self.packed.push(Packed { file, kind, key, leads_to, drivers, is_mount_pod, text, lines });
    }

    /// Validates all gathered objects together.
    pub fn report(mut self, installed: &KnownDrivers) -> Report {
        if !self.packed.is_empty() {
            self.pack_texts();
            self.unpack();
        }
        validated(&self.documents, &self.files, self.findings, installed)
    }

    /// Packs whole texts, too: they may refer to objects of the streams.
    fn pack_texts(&mut self) {
        for Document { file, value, lines } in std::mem::take(&mut self.documents) {
            self.object(&file, false, value, lines);
        }
    }

    fn unpack(&mut self) {
        let wanted = wanted(&self.packed);
        for (packed, _) in
            std::mem::take(&mut self.packed).into_iter().zip(wanted).filter(|(_, wanted)| *wanted)
        {
            let value = serde_json::from_str(&packed.text).unwrap_or_default();
            let lines = numbered(&value, 0, &mut packed.lines.iter().copied());
            self.documents.push(Document { file: packed.file, value, lines });
        }
    }
}

/// Returns the name of an object as in the references of other objects.
fn name(kind: &str, (namespace, name): &Key) -> String {
    match kind {
        "PersistentVolume" => format!("{kind} {name}"),
        _ => format!("{kind} {namespace}/{name}"),
    }
}

/// Returns every `flexVolume` of a volume, a pod or a pod template.
fn flexes<'a>(node: Node<'a>, kind: &str) -> Vec<Node<'a>> {
    let inline = read::pod(node, kind).into_iter().flat_map(|pod| pod.at(&["spec", "volumes"]).entries());
    let inline = inline.map(|volume| volume.get("flexVolume"));
    let all =
        inline.chain([node.at(&["spec", "flexVolume"])].into_iter().filter(|_| kind == "PersistentVolume"));
    all.filter(|flex| !flex.is_absent()).collect()
}

fn drivers(node: Node<'_>, kind: &str) -> Vec<String> {
    let of_secret = (kind == "Secret").then(|| node.get("type"));
    let all = flexes(node, kind).into_iter().map(|flex| flex.get("driver")).chain(of_secret);
    all.filter_map(|node| node.text().map(str::to_owned)).collect()
}

fn leads_to(node: Node<'_>, kind: &str, key: &Key) -> Vec<String> {
    let claim = |namespace: &str, claim: &str| format!("PersistentVolumeClaim {namespace}/{claim}");
    let mut all: Vec<_> = match kind {
        "PersistentVolumeClaim" => {
            let volume = node.at(&["spec", "volumeName"]).text();
            volume.map(|volume| format!("PersistentVolume {volume}")).into_iter().collect()
        }
        "PersistentVolume" => {
            let reference = node.at(&["spec", "claimRef"]);
            let namespace = reference.get("namespace").text().unwrap_or("default");
            reference.get("name").text().map(|name| claim(namespace, name)).into_iter().collect()
        }
        _ => {
            let volumes =
                read::pod(node, kind).into_iter().flat_map(|pod| pod.at(&["spec", "volumes"]).entries());
            let named =
                volumes.filter_map(|volume| volume.at(&["persistentVolumeClaim", "claimName"]).text());
            let named = named.map(|name| claim(&key.0, name));
            let templates = node.at(&["spec", "volumeClaimTemplates"]).entries();
            let templates = templates.filter_map(|claim| claim.at(&["metadata", "name"]).text());
            named.chain(templates.map(|name| claim(&key.0, &format!("{name}-{}-0", key.1)))).collect()
        }
    };
    // The namespace of the Secret does not matter here.
    let secrets = flexes(node, kind).into_iter().filter_map(|flex| flex.at(&["secretRef", "name"]).text());
    all.extend(secrets.map(|name| format!("Secret {name}")));
    all
}

/// Reports for each object whether it concerns a `FlexVolume`.
fn wanted(all: &[Packed]) -> Vec<bool> {
    let is_flex = |packed: &Packed| packed.kind != "Secret" && !packed.drivers.is_empty();
    let names: Vec<_> = all.iter().map(|packed| name(&packed.kind, &packed.key)).collect();
    let known: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let lacks_claim = |packed: &Packed| {
        let mut claims = packed.leads_to.iter().filter(|to| to.starts_with("PersistentVolumeClaim"));
        packed.kind != "PersistentVolume" && claims.any(|claim| !known.contains(claim.as_str()))
    };
    let mut wanted: Vec<_> =
        all.iter().map(|packed| is_flex(packed) || packed.is_mount_pod || lacks_claim(packed)).collect();
    let of_flex = || all.iter().filter(|packed| is_flex(packed));
    let drivers: BTreeSet<_> = of_flex().flat_map(|packed| &packed.drivers).collect();
    let secrets: BTreeSet<_> = of_flex().flat_map(|packed| &packed.leads_to).collect();
    // From volumes to claims to pods, and from pods to all objects that they refer to.
    for _ in 0..3 {
        let there: BTreeSet<&str> =
            names.iter().zip(&wanted).filter(|(_, wanted)| **wanted).map(|(name, _)| name.as_str()).collect();
        let led_to = all.iter().zip(&wanted).filter(|(_, wanted)| **wanted);
        let led_to: BTreeSet<_> =
            led_to.flat_map(|(packed, _)| &packed.leads_to).map(String::as_str).collect();
        wanted = (all.iter().zip(&names).zip(&wanted))
            .map(|((packed, name), wanted)| {
                let leads = packed.leads_to.iter().any(|to| there.contains(to.as_str()));
                *wanted || led_to.contains(name.as_str()) || leads && packed.kind != "Secret"
            })
            .collect();
    }
    for (packed, wanted) in all.iter().zip(&mut wanted) {
        *wanted |= match packed.kind.as_str() {
            "StorageClass" => true,
            // An unbound claim may be bound to any volume later.
            "PersistentVolumeClaim" => packed.leads_to.is_empty(),
            "Secret" => {
                packed.drivers.iter().any(|kind| drivers.contains(kind))
                    || secrets.contains(&format!("Secret {}", packed.key.1))
            }
            _ => false,
        };
    }
    wanted
}

/// Passes the line of a value, and of all values below it, to `tell`; 0 for a value without a line.
fn number(value: &Value, lines: Option<&Lines>, tell: &mut dyn FnMut(usize)) {
    tell(lines.map_or(0, Lines::line));
    match value {
        Value::Array(entries) => entries.iter().enumerate().for_each(|(index, entry)| {
            number(entry, lines.and_then(|lines| lines.entry(index)), tell);
        }),
        Value::Object(members) => members.iter().for_each(|(key, member)| {
            number(member, lines.and_then(|lines| lines.member(key)), tell);
        }),
        _ => {}
    }
}

/// Restores the lines from `number`; a value without a line gets the line of the value around it.
fn numbered(value: &Value, around: usize, told: &mut dyn Iterator<Item = u32>) -> Lines {
    let line = told.next().map_or(0, |line| line as usize);
    let line = if line == 0 { around } else { line };
    match value {
        Value::Array(entries) => {
            Lines::of_entries(line, entries.iter().map(|entry| numbered(entry, line, told)).collect())
        }
        Value::Object(members) => {
            let members = members.iter().map(|(key, member)| (key.clone(), numbered(member, line, told)));
            Lines::of_members(line, members.collect())
        }
        _ => Lines::of_entries(line, Vec::new()),
    }
}

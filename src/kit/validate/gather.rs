//! What is to be validated, gathered from whole texts and from streams. Of a stream only what
//! belongs to a FlexVolume is kept, packed: a cluster's objects are many, and each tree of values
//! takes ten times its text.
//!
//! Which objects that are is known at the end only, since they come in any order. Until then there
//! is of each that might be one what [`prune`] leaves.

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

/// Words without which no object has to do with a `FlexVolume`: those that are large in number do
/// not have to be parsed.
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

/// Texts, as far as they are read.
#[derive(Default)]
pub struct Gathered {
    findings: Findings,
    /// In their order.
    files: Vec<Rc<str>>,
    documents: Vec<Document>,
    packed: Vec<Packed>,
}

/// An object of a stream.
struct Packed {
    file: Rc<str>,
    kind: String,
    key: Key,
    /// The objects it leads to: volumes of a claim, claims of a pod or a volume, Secrets of a
    /// `FlexVolume`.
    leads_to: Vec<String>,
    /// The drivers of its `FlexVolumes`; of a Secret, its type.
    drivers: Vec<String>,
    /// Whether it is looked at for its own sake.
    is_mount_pod: bool,
    text: Box<str>,
    /// Of every value in `text`, in its order.
    lines: Box<[u32]>,
}

impl Gathered {
    /// Adds a whole text, under the name that findings shall give it.
    pub fn text(&mut self, file: &str, text: &str) {
        let file = self.file(file);
        let read = read::read(&file, text, &mut self.findings);
        self.documents.extend(read);
    }

    /// Adds a text of any length. With `by_object` findings name objects instead of lines, for who
    /// has no file.
    pub fn stream(&mut self, file: &str, by_object: bool, input: &mut dyn BufRead) -> Result<()> {
        let file = self.file(file);
        if by_object {
            // A cluster without any is in order.
            self.findings.leave_out(NOTHING);
        }
        pieces(input, &mut |Piece { line, text }| {
            if MARKS.iter().any(|mark| text.contains(mark)) {
                self.piece(&file, by_object, line, &text);
            }
            Ok(())
        })
    }

    /// Secrets are not among what was added, though there may be some.
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

    /// Looks at all of it together.
    pub fn report(mut self, installed: &KnownDrivers) -> Report {
        if !self.packed.is_empty() {
            self.pack_texts();
            self.unpack();
        }
        validated(&self.documents, &self.files, self.findings, installed)
    }

    /// Whole texts may lead to objects of the streams.
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

/// The name of an object among those that others lead to.
fn name(kind: &str, (namespace, name): &Key) -> String {
    match kind {
        "PersistentVolume" => format!("{kind} {name}"),
        _ => format!("{kind} {namespace}/{name}"),
    }
}

/// Every `flexVolume` of an object that is a volume or has a pod.
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
    // In whichever namespace.
    let secrets = flexes(node, kind).into_iter().filter_map(|flex| flex.at(&["secretRef", "name"]).text());
    all.extend(secrets.map(|name| format!("Secret {name}")));
    all
}

/// Which of the objects have to do with a `FlexVolume`.
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
    // From volumes to claims to pods, and from pods to all that they have.
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
            // One that is not bound yet may be bound to any volume.
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

/// Tells the line of a value and of all below it, 0 where it has none of its own.
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

/// What was told, back; what has no line has that of what it is in.
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

//! `flexvol-kit translate`: files both ways, and every volume of the tree's examples and of other
//! drivers' documentation.
//!
//! `UPDATE=1 cargo test --test pure translate::` rewrites what is in `golden/` of
//! `data/translate/`: the text that comes out, or why none does, and what is said of it.

use flexvol::translate::{Direction, TARGETS, To, Translated, through, translate};
use flexvol::yaml;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn files(folder: &str) -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let ours = entries.filter(|path| path.extension().is_some_and(|kind| kind == "yaml" || kind == "json"));
    let mut all: Vec<_> = ours.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect();
    all.sort();
    all
}

fn to_csi(text: &str) -> Translated {
    translate(text, Direction::ToCsi(To::Flexvold)).unwrap()
}

/// What is said, and the text if there is one.
fn shown(done: &Translated) -> String {
    let mut said = String::new();
    for object in &done.objects {
        for warning in &object.translation.warnings {
            writeln!(said, "# {}: {}: {warning} [{}]", object.line, object.title, warning.id()).unwrap();
        }
    }
    for (line, refusal) in &done.refusals {
        writeln!(said, "# {line}: {refusal} [{}]", refusal.reason.id()).unwrap();
    }
    if done.refusals.is_empty() { said + &done.text } else { said }
}

#[test]
fn files_are_translated_as_ever() {
    let update = std::env::var_os("UPDATE").is_some();
    let mut wrong = Vec::new();
    for (path, text) in files("tests/pure/data/translate") {
        let golden = path.with_file_name("golden").join(path.file_name().unwrap()).with_extension("txt");
        let said = shown(&to_csi(&text));
        assert!(text.contains("stringData") || !said.contains("hunter2"), "{said}");
        if update {
            fs::create_dir_all(golden.parent().unwrap()).unwrap();
            fs::write(&golden, &said).unwrap();
        }
        if fs::read_to_string(&golden).ok().as_ref() != Some(&said) {
            wrong.push(format!("{}:\n{said}", golden.display()));
        }
    }
    assert!(wrong.is_empty(), "not as before (UPDATE=1 accepts):\n{}", wrong.join("\n"));
}

/// Every object of a text, those of lists too.
fn objects(text: &str) -> Vec<Value> {
    let all = yaml::parse(text).unwrap().into_iter();
    let items = |object: Value| match object.get("items").and_then(Value::as_array) {
        Some(items) => items.clone(),
        None => vec![object],
    };
    all.flat_map(items).collect()
}

/// Without what only the API server writes.
fn to_create(mut object: Value) -> Value {
    let server = ["creationTimestamp", "resourceVersion", "uid", "generation", "managedFields", "selfLink"];
    if object["kind"] == "PersistentVolume" && !object["spec"]["flexVolume"].is_null() {
        object.as_object_mut().unwrap().remove("status");
        object["metadata"].as_object_mut().unwrap().retain(|key, _| !server.contains(&key.as_str()));
        if let Some(claim) = object["spec"].get_mut("claimRef").and_then(Value::as_object_mut) {
            claim.remove("resourceVersion");
        }
    }
    object
}

/// Volumes that were translated, and back.
fn there_and_back(text: &str) -> usize {
    let there = to_csi(text);
    assert_eq!(there.refusals, []);
    let back = translate(&there.text, Direction::ToFlex).unwrap();
    let before: Vec<_> = objects(text).into_iter().map(to_create).collect();
    assert_eq!(objects(&back.text), before, "{}", there.text);
    assert_eq!(back.objects.len(), there.objects.len());
    // The same text again, whichever way it has gone.
    assert_eq!(objects(&to_csi(&back.text).text), objects(&there.text));
    assert_eq!(to_csi(&there.text).text, there.text, "what is translated is left alone");
    there.objects.len()
}

#[test]
fn files_come_back_as_they_were() {
    for (path, text) in files("tests/pure/data/translate") {
        if path.file_stem().unwrap() != "refused" {
            assert_eq!(there_and_back(&text), 1, "{}", path.display());
        }
    }
}

/// Every volume of our examples, and of other drivers' documents, there and back; what is refused
/// holds credentials, or nobody says where its Secret is.
#[test]
fn every_known_volume_comes_back_or_is_refused_for_a_reason() {
    let folders = ["examples", "examples/profiles", "tests/pure/data", "tests/pure/data/validate"];
    let (mut translated, mut handles, mut reasons) = (0, BTreeSet::new(), BTreeSet::new());
    for (path, text) in folders.iter().flat_map(|folder| files(folder)) {
        // Files of `validate` are wrong on purpose, some no YAML at all.
        let Ok(documents) = yaml::parse(&text) else { continue };
        for (index, document) in documents.into_iter().enumerate() {
            let text = document.to_string();
            let done = to_csi(&text);
            if done.refusals.is_empty() {
                translated += there_and_back(&text);
                for object in done.objects {
                    let handle = object.translation.object["spec"]["csi"]["volumeHandle"].to_string();
                    handles.insert(format!("{}:{index}:{} {handle}", path.display(), object.title));
                }
            }
            reasons.extend(done.refusals.iter().map(|(_, refusal)| refusal.reason.id()));
            if path.to_string_lossy().contains("examples") {
                let known = ["secret-namespace", "mount-options", "credential-in-option"];
                assert!(
                    done.refusals.iter().all(|(_, refusal)| known.contains(&refusal.reason.id())),
                    "{}: {:?}",
                    path.display(),
                    done.refusals
                );
            }
        }
    }
    println!("{translated} volumes there and back, refused for {reasons:?}");
    assert!(translated >= 60 && handles.len() == translated, "{translated} of {}", handles.len());
}

/// What a cluster has is one list: it goes through as it is, but for its volumes.
#[test]
fn a_list_of_many_is_one_text() {
    let volume = |n: usize| json!({"kind": "PersistentVolume", "metadata": {"name": format!("v{n}")}, "spec": {"flexVolume": {"driver": "x/y"}}});
    let list = json!({"kind": "List", "items": (0..500).map(volume).collect::<Vec<_>>()});
    assert_eq!(there_and_back(&list.to_string()), 500);
}

/// Every volume that is known of a driver with a row goes there and comes back, or is refused for
/// an option that the row refuses.
#[test]
fn known_volumes_of_a_row_go_there_and_back() {
    let folders = ["examples", "examples/profiles", "tests/pure/data"];
    let mut done = BTreeSet::new();
    for (path, text) in folders.iter().flat_map(|folder| files(folder)) {
        for document in yaml::parse(&text).into_iter().flatten() {
            let before = document.to_string();
            for row in TARGETS {
                let there = translate(&before, Direction::ToCsi(To::Driver(row.to))).unwrap();
                let is_there = there.text.contains(&format!("\"driver\": \"{}\"", row.to));
                if is_there && there.refusals.is_empty() {
                    let back = translate(&there.text, Direction::ToFlex).unwrap();
                    let before: Vec<_> = objects(&before).into_iter().map(to_create).collect();
                    assert_eq!(objects(&back.text), before, "{}", path.display());
                    done.extend(row.from.iter().filter(|name| text.contains(**name)));
                }
            }
        }
    }
    let all: BTreeSet<_> = TARGETS.iter().flat_map(|row| row.from).collect();
    assert_eq!(done.len(), all.len(), "{:?}", all.difference(&done).collect::<Vec<_>>());
}

/// Who looks for a driver there finds each that a CSI driver can serve as it is, and no other.
#[test]
fn the_page_has_every_way_through_a_csi_driver() {
    let page = fs::read_to_string("docs/drivers/csi.md").unwrap();
    let table: Vec<_> =
        page.lines().filter(|line| line.starts_with("| `") && line.contains(".csi.")).collect();
    let ways = |from: &str| through::ways(from).collect::<Vec<_>>();
    let (mut named, mut open) = (0, 0);
    for (row, from) in TARGETS.iter().flat_map(|row| row.from.iter().map(move |from| (row, *from))) {
        let is_named = |line: &&&str| {
            line.contains(&format!("`{from}`")) && line.ends_with(&format!("| `{}` |", row.to))
        };
        assert_eq!(table.iter().any(|line| is_named(&line)), ways(from).contains(&row.to), "{from}");
        open += ways(from).len();
    }
    for line in table {
        named += line.split(['|']).nth(1).unwrap().split(',').count();
    }
    assert_eq!(named, open, "the page names drivers that have no way");
}

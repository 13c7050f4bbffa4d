//! `flexvol validate`: a file for each thing that is looked for, with what is said of it; and the
//! volumes of other drivers' documentation.
//!
//! `UPDATE=1 cargo test --test pure validate::` rewrites the texts of `data/validate/`; the diff
//! is what a reviewer reads. In the head of a file stand the side files: `# Side file of
//! vendor/driver: {…}`.

use flexvol::protocol::DriverName;
use flexvol::side_file;
use flexvol::validate::{Finding, Gathered, KnownDrivers, RULES, Report, Severity, Source, validate};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// What is hidden in secrets, and in what should have been one: raw, and in base64.
const SECRETS: [&str; 4] = ["hunter2", "aHVudGVyMg", "w!o", "my-secret-password"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pure/data/validate")
}

/// Name and text of every file.
fn files() -> Vec<(String, String)> {
    let entries = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let yaml = entries.filter(|path| path.extension().is_some_and(|kind| kind == "yaml"));
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let mut all: Vec<_> = yaml.map(|path| (name(&path), std::fs::read_to_string(&path).unwrap())).collect();
    all.sort();
    all
}

/// What the head of a file says about the nodes.
fn installed(text: &str) -> KnownDrivers {
    let mut installed = KnownDrivers::default();
    for line in text.lines().take_while(|line| line.starts_with('#')) {
        if let Some((_, rest)) = line.split_once("ide file of ") {
            let (name, json) = rest.split_once(": ").unwrap();
            installed.add(DriverName::parse(name).unwrap(), side_file::parse(json).unwrap());
        }
        if let Some((_, directory)) = line.split_once("Plugin directory: ") {
            installed.set_directory(directory.to_owned());
        }
    }
    installed
}

fn report(name: &str, text: &str) -> Report {
    validate(&[Source { name, text }], &installed(text))
}

/// Findings, and the plans in short.
fn shown(report: &Report) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        writeln!(text, "{finding}").unwrap();
    }
    for planned in &report.plans {
        let steps: Vec<_> =
            planned.steps.iter().map(|call| format!("{} {}", call.verb, call.plan.steps.len())).collect();
        let (volume, pod) = (&planned.volume, &planned.pod);
        writeln!(
            text,
            "plan: line {}: {volume} of {pod}: {}: {}",
            planned.line,
            planned.kind,
            steps.join(", ")
        )
        .unwrap();
    }
    text
}

#[test]
fn what_is_said_is_as_ever() {
    let update = std::env::var_os("UPDATE").is_some();
    let mut wrong = Vec::new();
    for (name, text) in files() {
        let (golden, said) = (folder().join(name.replace(".yaml", ".txt")), shown(&report(&name, &text)));
        if update {
            std::fs::write(&golden, &said).unwrap();
        }
        if std::fs::read_to_string(&golden).ok().as_ref() != Some(&said) {
            wrong.push(said);
        }
    }
    assert!(wrong.is_empty(), "not as in tests/pure/data/validate (UPDATE=1 accepts):\n{}", wrong.join("\n"));
}

#[test]
fn every_rule_is_broken_by_its_file_and_by_no_other() {
    let rules: BTreeSet<_> = RULES.iter().map(|rule| rule.id).collect();
    assert_eq!(rules.len(), RULES.len());
    for rule in RULES {
        let text = std::fs::read_to_string(folder().join(format!("{}.yaml", rule.id)))
            .unwrap_or_else(|error| panic!("{}: {error}", rule.id));
        let broken: BTreeSet<_> = report("x", &text).findings.iter().map(|finding| finding.rule).collect();
        assert_eq!(broken, BTreeSet::from([rule.id]));
    }
    let texts = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let texts = texts.filter(|path| path.extension().is_some_and(|kind| kind == "txt")).count();
    assert!(texts == files().len() || std::env::var_os("UPDATE").is_some(), "each file has its text");
}

#[test]
fn the_line_is_that_of_the_key() {
    for (file, found) in [
        (
            "unknown-option.yaml",
            &[("sise", 14), ("Mode", 15), ("server", 16), ("password", 17), ("sevrer", 22)][..],
        ),
        ("option-type.yaml", &[("size", 9), ("mode", 10), ("noswap", 11), ("mountOptions", 13)]),
        ("mount-options.yaml", &[("mountOptions", 6), ("mountOptions", 15)]),
        ("plan.yaml", &[("fsType", 12), ("partition", 18), ("mountOptions", 29)]),
        ("secret-data.yaml", &[("username", 5), ("password", 6), ("pin", 8), ("a b", 11)]),
    ] {
        let text = std::fs::read_to_string(folder().join(file)).unwrap();
        let report = report(file, &text);
        for (word, line) in found {
            let is_it = |message: &str| message.contains(word);
            assert!(
                report.findings.iter().any(|finding| finding.line == *line && is_it(&finding.message)),
                "{file}:{line}: {word}\n{}",
                shown(&report)
            );
        }
    }
}

#[test]
fn what_is_good_has_a_plan_and_nothing_else() {
    let (name, text) = files().into_iter().find(|(name, _)| name == "good.yaml").unwrap();
    let report = report(&name, &text);
    assert!(report.findings.is_empty(), "{}", shown(&report));
    assert_eq!((report.volumes, report.plans.len()), (6, 6));
    let plans = serde_json::to_string(&report.plans).unwrap();
    // The group of the pod, the options of the side file and the word of the claim are in it.
    assert!(plans.contains("\"gid=2000\"") && plans.contains(r#""format":{"fileSystem":"xfs""#), "{plans}");
}

/// What is too large to be held is read object by object, and the same is said of it: in YAML, as a
/// List, and in JSON. Left out are files about objects that no cluster takes.
#[test]
fn a_stream_says_the_same() {
    let streamed = |name: &str, text: &str, known: &str| {
        let mut gathered = Gathered::default();
        gathered.stream(name, false, &mut text.as_bytes()).unwrap();
        gathered.report(&installed(known))
    };
    let no_cluster_s = [
        "name.yaml",
        "nothing.yaml",
        "object.yaml",
        "shape.yaml",
        "syntax-helm.yaml",
        "syntax.yaml",
        "unknown-field-indent.yaml",
        "unknown-field.yaml",
        "volume-mount.yaml",
    ];
    let mut compared = 0;
    for (name, text) in files() {
        if no_cluster_s.contains(&name.as_str()) {
            continue;
        }
        let whole = report(&name, &text);
        assert_eq!(shown(&streamed(&name, &text, &text)), shown(&whole), "{name}");
        let said = |report: &Report| -> BTreeSet<String> {
            report.findings.iter().map(|finding| format!("{} [{}]", finding.message, finding.rule)).collect()
        };
        let documents = flexvol::yaml::parse(&text).unwrap();
        let list = serde_json::json!({"apiVersion": "v1", "items": documents, "kind": "List"});
        let list = serde_json::to_string_pretty(&list).unwrap();
        assert_eq!(said(&streamed(&name, &list, &text)), said(&whole), "{name} as JSON");
        compared += 1;
    }
    assert!(compared > 30, "{compared}");
}

/// The volumes of other drivers' documentation.
const PEERS: [(&str, &str); 2] =
    [("peers.yaml", include_str!("data/peers.yaml")), ("profiles.yaml", include_str!("data/profiles.yaml"))];

/// Other tests make plans of these volumes, of which users have many; what a driver refuses is told
/// there. Those that are attached are inline in their documentation, which kubelets of today do not
/// stand.
#[test]
fn volumes_that_work_elsewhere_are_no_errors() {
    let mut plans = 0;
    for (name, text) in PEERS {
        let report = report(name, text);
        let wrong = |finding: &&Finding| {
            finding.severity == Severity::Error && !["plan", "inline-attached"].contains(&finding.rule)
        };
        assert_eq!(report.findings.iter().find(wrong), None);
        plans += report.plans.len();
        for secret in ["p,a\"s's", "hunter2"] {
            assert!(!format!("{report:?}").contains(secret), "{secret}");
        }
    }
    assert!(plans >= 58, "{plans}");
}

#[test]
fn volumes_of_others_are_answered_as_ever() {
    let golden = folder().with_file_name("peers-validated.txt");
    let said: String = PEERS.iter().map(|(name, text)| shown(&report(name, text))).collect();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&golden, &said).unwrap();
    }
    let kept = std::fs::read_to_string(&golden).unwrap_or_default();
    assert!(kept == said, "not as in tests/pure/data/peers-validated.txt (UPDATE=1 accepts):\n{said}");
}

/// Each is planned, refused with the reason, or told what else there is.
#[test]
fn every_volume_of_others_has_an_answer() {
    let mut names = BTreeSet::new();
    for (name, text) in PEERS {
        let report = report(name, text);
        let said =
            report.findings.iter().filter(|finding| ["plan", "unknown-driver"].contains(&finding.rule));
        let said = said.map(|finding| finding.line).chain(report.plans.iter().map(|planned| planned.line));
        let said: BTreeSet<_> = said.collect();
        let mut first = 1;
        for document in text.split("---\n") {
            let last = first + document.lines().count();
            let is_volume = document.contains("flexVolume:");
            assert!(!is_volume || said.range(first..last).next().is_some(), "{name}:{first}: {document}");
            names.extend(
                document
                    .split("metadata: {name: ")
                    .nth(1)
                    .and_then(|rest| rest.split(['}', ',', '-']).next()),
            );
            first = last + 1;
        }
    }
    for (group, last) in [("c", 18), ("n", 8), ("b", 13), ("f", 13), ("o", 8)] {
        for number in 1..=last {
            assert!(names.contains(format!("{group}{number:02}").as_str()), "{group}{number:02}");
        }
    }
}

#[test]
fn nothing_of_a_secret_is_said() {
    for (name, text) in files() {
        let report = report(&name, &text);
        let all = format!("{}{report:?}{}", shown(&report), serde_json::to_string(&report).unwrap());
        for secret in SECRETS {
            assert!(!all.contains(secret), "{name}: {secret}\n{all}");
        }
    }
}

#[test]
fn messages_are_in_house_style() {
    for (name, text) in files() {
        for finding in report(&name, &text).findings {
            let message = &finding.message;
            let end = message.strip_suffix(" ..").unwrap_or(message);
            assert!(!message.contains(['\n', '\r']) && !end.ends_with(['.', '!', ' ', ':']), "{message}");
            assert!(message.len() > 20 && message.contains([':', ',']), "no fix: {message}");
        }
    }
}

/// Cut anywhere, a file is a syntax error, or less of an object; never a panic.
#[test]
fn half_a_file_is_no_panic() {
    for (name, text) in files() {
        let ends: Vec<_> = text.char_indices().map(|(at, _)| at).step_by(37).collect();
        for end in ends {
            let report = validate(&[Source { name: &name, text: &text[..end] }], &installed(&text));
            assert!(report.findings.iter().all(|finding| finding.line > 0), "{name} to {end}");
        }
    }
}

#[test]
fn severities_are_what_they_say() {
    let doc = |rule: &flexvol::validate::Rule| rule.doc.len() > 15 && !rule.doc.ends_with('.');
    assert!(RULES.iter().all(doc));
    assert!(RULES.iter().filter(|rule| rule.severity == Severity::Error).count() > 15);
}

//! What every driver makes of every option: golden plans, and the exact text of every refusal.
//!
//! `UPDATE=1 cargo test --test pure plans::` rewrites the plans of `golden/`; the diff is what a
//! reviewer reads.

use flexvol::drivers;
use flexvol::failure::{Failure, MESSAGE_LIMIT};
use flexvol::installed::Installed;
use flexvol::plan::Plan;
use flexvol::protocol::{Call, Verb};
use flexvol::settings::Settings;
use flexvol::side_file;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::plan_cases::{Case, PLAIN, SHARE, SRV, cases};

const TARGET: &str = "/var/lib/kubelet/pods/7/volumes/example~x/data";

/// What the cases below hide in their secrets, raw and as kubelet sends it.
const SECRETS: [&str; 4] = ["hunter2", "aHVudGVyMg", "s3cr3t", "czNjcjN0"];

/// What a driver refuses, and in which words.
struct Refusal {
    driver: &'static str,
    settings: &'static str,
    argv: Vec<&'static str>,
    message: &'static str,
}

/// The rows of `data/refusals.tsv`: message, driver, side file, verb, arguments.
fn refusals() -> impl Iterator<Item = Refusal> {
    include_str!("data/refusals.tsv").lines().map(|line| {
        let mut fields = line.split('\t');
        let mut next = || fields.next().expect("a field");
        let (message, driver, settings) = (next(), next(), next());
        let settings = match settings {
            "$SRV" => SRV,
            "$SHARE" => SHARE,
            "$PLAIN" => PLAIN,
            "$LIMITED" => r#"{"policy":{"maxSize":"64Mi"}}"#,
            json => json,
        };
        Refusal { driver, settings, argv: fields.collect(), message }
    })
}

/// Whoever calls it by hand hears that it proves nothing, and when it would.
#[test]
fn a_verb_that_does_nothing_says_why() {
    let idle = |settings: &str, words: &[&str]| {
        let words: Vec<_> = words.iter().map(OsString::from).collect();
        let (verb, settings) = (Verb::parse(&words[0]).unwrap(), side_file::parse(settings).unwrap());
        let installed = Installed::new(drivers::find("lvm").unwrap(), None, settings);
        installed.idle(verb, &installed.plan(&Call::parse(verb, &words[1..]).unwrap()).unwrap())
    };
    let mount_device = ["mountdevice", TARGET, "", r#"{"volumeGroup":"data","volume":"web"}"#];
    assert!(idle("{}", &mount_device).unwrap().contains("no \"attach\": true"));
    assert!(idle("{}", &["detach", "web", "node-1"]).is_some());
    assert_eq!(idle(r#"{"attach":true}"#, &mount_device), None);
}

/// Side file, call, plan and policy: all that happens before the node is touched.
fn planned(driver: &str, settings: &str, argv: &[&str]) -> Result<Plan, Failure> {
    let settings = side_file::parse(settings)?;
    let arguments = argv.iter().map(|word| OsString::from(if *word == "@" { TARGET } else { word }));
    let arguments: Vec<_> = arguments.collect();
    let verb = Verb::parse(&arguments[0]).expect("a verb");
    let driver = drivers::find(driver).expect("a driver");
    assert!(driver.verbs(&settings).contains(verb), "{} lacks {verb}", driver.name());
    let plan = Installed::new(driver, None, settings.clone()).plan(&Call::parse(verb, &arguments[1..])?)?;
    settings.policy.check(&plan)?;
    Ok(plan)
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pure/golden").join(format!("{name}.json"))
}

#[test]
fn plans_are_the_golden_ones() {
    let update = std::env::var_os("UPDATE").is_some();
    let mut wrong = Vec::new();
    for Case { name, driver, settings, argv } in cases() {
        let plan = planned(driver, settings, argv).unwrap_or_else(|failure| panic!("{name}: {failure}"));
        let text = serde_json::to_string_pretty(&plan).unwrap() + "\n";
        if update {
            std::fs::write(golden(name), &text).unwrap();
        }
        if std::fs::read_to_string(golden(name)).ok().as_ref() != Some(&text) {
            wrong.push(format!("{name}:\n{text}"));
        }
    }
    assert!(wrong.is_empty(), "not as in tests/pure/golden (UPDATE=1 accepts):\n{}", wrong.join("\n"));
}

#[test]
fn every_golden_plan_has_its_case() {
    let named: BTreeSet<_> = cases().map(|case| golden(case.name)).collect();
    assert_eq!(named.len(), cases().count(), "two cases with one name");
    let entries = std::fs::read_dir(golden("x").parent().unwrap()).unwrap();
    let found: BTreeSet<_> = entries.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(named, found);
}

#[test]
fn no_plan_shows_a_secret() {
    let mut with_secrets = 0;
    for Case { name, driver, settings, argv } in cases() {
        with_secrets += usize::from(argv.iter().any(|word| word.contains("kubernetes.io/secret/")));
        let plan = planned(driver, settings, argv).unwrap();
        for text in [serde_json::to_string(&plan).unwrap(), format!("{plan:?}")] {
            assert!(!SECRETS.iter().any(|secret| text.contains(secret)), "{name}: {text}");
        }
    }
    assert!(with_secrets > 2, "only {with_secrets} cases have secrets");
}

/// Every verb of every driver that makes plans has a golden one.
#[test]
fn no_verb_goes_without_a_plan() {
    let planned: BTreeSet<_> = cases().map(|case| (case.driver, case.argv[0])).collect();
    for driver in drivers::ALL {
        for verb in driver.verbs(&Settings::default()).iter().filter(|verb| *verb != Verb::Init) {
            assert!(planned.contains(&(driver.name(), verb.name())), "{} {verb}", driver.name());
        }
    }
    let of_exec = planned.iter().filter(|(driver, _)| *driver == "exec").count();
    assert_eq!(of_exec, Verb::ALL.len() - 1, "every verb but init");
}

/// A driver is a pure function: the same call, the same plan.
#[test]
fn plans_do_not_depend_on_the_moment() {
    for Case { driver, settings, argv, .. } in cases() {
        let text = || serde_json::to_string(&planned(driver, settings, argv).unwrap()).unwrap();
        assert_eq!(text(), text());
    }
}

#[test]
fn refusals_say_exactly_this() {
    let mut wrong = Vec::new();
    let mut rows = 0;
    for Refusal { driver, settings, argv, message } in refusals() {
        rows += 1;
        match planned(driver, settings, &argv) {
            Ok(plan) => wrong.push(format!("{argv:?}\n  made {}", serde_json::to_string(&plan).unwrap())),
            Err(failure) if failure.message() == message => {}
            Err(failure) => wrong.push(format!("{driver} {argv:?}\n  is: {failure}\n not: {message}")),
        }
    }
    assert!(wrong.is_empty() && rows >= 110, "{rows}\n{}", wrong.join("\n"));
}

#[test]
fn refusals_are_in_house_style() {
    for Refusal { driver, settings, argv, .. } in refusals() {
        let message = planned(driver, settings, &argv).unwrap_err().message();
        let first = message.chars().next().unwrap();
        assert!(!first.is_uppercase(), "begins with a capital: {message}");
        let last = message.strip_suffix(" ..").unwrap_or(&message);
        assert!(!last.ends_with(['.', '!', ' ', ':']), "ends like a sentence: {message}");
        assert!(!message.contains(['\n', '\r', '\0']) && message.len() <= MESSAGE_LIMIT, "{message}");
        assert!(!SECRETS.iter().any(|secret| message.contains(secret)), "{message}");
    }
}

/// Long and hostile values: still one bounded, printable line.
#[test]
fn refusals_of_anything_are_bounded_lines() {
    let long = "x".repeat(5000);
    for value in
        [long.as_str(), "\u{1b}[31m\u{7}", "a\nb\r\nc", "\u{202e}\u{feff}ä\u{10ffff}", "%s%n$(id)`id`'\""]
    {
        for key in ["size", "mode", "mountOptions", "source", "file", "fsType", "mkfsOptions", value] {
            for driver in ["tmpfs", "bind", "image", "exec"] {
                let json = serde_json::to_string(
                    &[(key, value)].into_iter().collect::<std::collections::BTreeMap<_, _>>(),
                );
                let Err(failure) = planned(
                    driver,
                    r#"{"exec":{"commands":{"mount":["/m"]}}}"#,
                    &["mount", "@", &json.unwrap()],
                ) else {
                    continue;
                };
                let message = failure.message();
                assert!(message.len() <= MESSAGE_LIMIT, "{} bytes", message.len());
                assert!(!message.chars().any(char::is_control), "{message:?}");
            }
        }
    }
}

//! Options that would like to be more than one: each string of each option of every driver and
//! every dialect, with what separates words, lines, options and paths. A plan refuses it, or holds
//! it whole in one place where it means nothing.

use crate::plan_cases::{Case, cases};
use crate::report::Report;
use flexvol::driver;
use flexvol::drivers;
use flexvol::installed::Installed;
use flexvol::plan::Plan;
use flexvol::profiles;
use flexvol::protocol::{Call, Verb};
use flexvol::settings::Settings;
use flexvol::side_file;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

const TARGET: &str = "/var/lib/kubelet/pods/7/volumes/example~x/data";

/// In every payload, and in nothing else.
const MARK: &str = "zq9";

/// What is put in the place of a value: `{}` is what was there, or something harmless.
const PAYLOADS: &[&str] = &[
    "{}zq9",
    "{},zq9=x",
    "{},suid,zq9",
    "{}\nzq9 x",
    "{}\r\nzq9",
    "{}\0zq9",
    "-zq9",
    "--zq9={}",
    "-ozq9,suid",
    "../../etc/zq9",
    "{}/../../../etc/zq9",
    "/etc/zq9/..",
    "{} zq9",
    "{}\tzq9",
    "{}\"zq9",
    "{}'zq9",
    "{}\\zq9",
    "{}=zq9",
    "{}:zq9",
    "{};zq9",
    "{}|zq9",
    "{}#zq9",
    "{}$(zq9)",
    "{}`zq9`",
    "{}%zq9",
    "{}%(zq9)s",
    "{}\u{85}zq9",
    "{}\u{2028}zq9",
    "[zq9]\n{}",
    "@zq9",
];

/// Every call of the golden plans that has options.
pub(crate) fn calls() -> Vec<(&'static str, Settings, Call)> {
    let cases = cases().filter_map(|Case { driver, settings, argv, .. }| {
        let words = argv.iter().map(|word| OsString::from(if *word == "@" { TARGET } else { word }));
        let words: Vec<_> = words.collect();
        let call = Call::parse(Verb::parse(&words[0]).unwrap(), &words[1..]).unwrap();
        call.options()?;
        Some((*driver, side_file::parse(settings).unwrap(), call))
    });
    cases.collect()
}

/// A text of a plan, and where it stands.
pub(crate) struct Leaf {
    /// The keys that lead to it, without numbers.
    pub path: String,
    /// All of it.
    pub text: String,
    /// The text before it in the same list.
    pub before: String,
}

/// Every text of a plan.
pub(crate) fn leaves(value: &Value) -> Vec<Leaf> {
    fn walk(value: &Value, path: &str, before: &str, found: &mut Vec<Leaf>) {
        match value {
            Value::String(text) => {
                found.push(Leaf { path: path.to_owned(), text: text.clone(), before: before.to_owned() });
            }
            Value::Array(list) => {
                let mut before = String::new();
                for value in list {
                    walk(value, path, &before, found);
                    value.as_str().unwrap_or_default().clone_into(&mut before);
                }
            }
            Value::Object(members) => {
                members.iter().for_each(|(key, value)| walk(value, &format!("{path}.{key}"), "", found));
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    walk(value, "", "", &mut found);
    found
}

fn holds(path: &str, keys: &[&str]) -> bool {
    path.split('.').any(|part| keys.contains(&part))
}

/// Paths of the node; what `..` or a swapped component would lead out of.
const NODE_PATHS: &[&str] =
    &["node", "image", "file", "lower", "upper", "directory", "keyring", "traces", "subPath"];

/// What a value does where it stands, if that is more than to stand there.
fn wrong(leaf: &Leaf) -> Option<&'static str> {
    let Leaf { path, text, before } = leaf;
    let words = holds(path, &["words", "probe", "argv"]);
    let lines = holds(path, &["files", "stdin", "config"]);
    let own_line = text.lines().any(|line| line.trim_start_matches(['[', '@']).starts_with(MARK));
    match () {
        () if text.contains('\0') => Some("holds a NUL"),
        () if lines && own_line => Some("is a line of its own in a file"),
        () if words
            && text.starts_with('-')
            && text.trim_start_matches(['-', 'o']).starts_with(MARK)
            && before != "--" =>
        {
            Some("is an option of a program")
        }
        // The admin's own commands say what follows what, and what their programs make of it.
        () if words
            && !holds(path, &["argv"])
            && ["-o", "--opt"].contains(&before.as_str())
            && text.contains(',') =>
        {
            Some("adds a mount option")
        }
        () if holds(path, NODE_PATHS) && text.split('/').any(|part| part == "..") => Some("leaves its root"),
        () if ["pool", "image", "snapshot", "user"]
            .iter()
            .any(|key| path.ends_with(&format!("rbd.{key}")))
            && text.contains([' ', ',', '\t', '\n']) =>
        {
            Some("adds a word to what the kernel reads")
        }
        () => None,
    }
}

/// Lines are what these are.
const LINES: &[(&str, &str)] = &[("sshfs", "knownHosts"), ("git", "knownHosts")];

/// Where a list is one by its own meaning, each part checked on its own.
fn is_list(name: &str, option: &str) -> bool {
    LINES.contains(&(name, option))
}

fn plan(driver: &'static dyn driver::Driver, call: &Call, settings: &Settings) -> Option<Plan> {
    let plan = Installed::new(driver, None, settings.clone()).plan(call).ok()?;
    settings.policy.check(&plan).ok()?;
    Some(plan)
}

/// How often a payload came through, and where it did harm.
#[derive(Default)]
struct Tally {
    tried: usize,
    planned: usize,
    wrong: BTreeSet<String>,
}

impl Tally {
    /// Tries all payloads as this option of the call.
    fn with(
        &mut self,
        name: &str,
        option: &str,
        (driver, settings, call): (&'static dyn driver::Driver, &Settings, &Call),
    ) {
        for payload in PAYLOADS {
            let mut call = call.clone();
            let Some(options) = call.options_mut() else { return };
            let there = options.own.get(option).cloned().unwrap_or_else(|| "a".to_owned());
            let value = payload.replace("{}", &there);
            if option == "fsType" {
                options.fs_type = Some(value);
            } else {
                options.own.insert(option.to_owned(), value);
            }
            self.tried += 1;
            let Some(plan) = plan(driver, &call, settings) else { continue };
            self.planned += 1;
            for leaf in
                leaves(&serde_json::to_value(&plan).unwrap()).iter().filter(|leaf| leaf.text.contains(MARK))
            {
                if let Some(why) = wrong(leaf).filter(|_| !is_list(name, option)) {
                    self.wrong.insert(format!(
                        "{name}: {option}={payload:?} {why}: {}: {:?}",
                        leaf.path, leaf.text
                    ));
                }
            }
        }
    }

    fn judge(self, kind: &str, least: usize) {
        println!("NOTE injection {kind}: {} of {} made a plan", self.planned, self.tried);
        let mut report = Report::begin("injection", kind, "option", PAYLOADS.len());
        (self.wrong.len()..self.tried).for_each(|_| report.tried(None));
        self.wrong.into_iter().for_each(|wrong| report.tried(Some(wrong)));
        report.end();
        assert!(
            self.planned > least,
            "only {} of {} made a plan: nothing is shown",
            self.planned,
            self.tried
        );
    }
}

#[test]
fn no_option_of_a_driver_is_more_than_one() {
    let mut tally = Tally::default();
    for (name, settings, call) in calls() {
        let driver = drivers::find(name).unwrap();
        let own = driver
            .options()
            .iter()
            .flat_map(|spec| [spec.name].into_iter().chain(spec.aliases.iter().copied()));
        let said = call.options().unwrap().own.keys().cloned().collect::<Vec<_>>();
        let names = own.map(str::to_owned).chain(["fsType".to_owned()]).chain(said);
        for option in names.collect::<BTreeSet<_>>() {
            tally.with(name, &option, (driver, &settings, &call));
        }
    }
    tally.judge("drivers", 3000);
}

#[test]
fn no_option_of_a_dialect_is_more_than_one() {
    let mut tally = Tally::default();
    let mut silent = BTreeMap::new();
    for profile in profiles::ALL {
        let mut settings =
            side_file::parse(r#"{"policy":{"bindRoots":["/srv"],"imageRoots":["/"]}}"#).unwrap();
        settings.profile = Some(profile.name.to_owned());
        let mut example: BTreeMap<_, _> =
            profile.example.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))).collect();
        let secret = profile
            .example_secret
            .iter()
            .map(|key| (format!("kubernetes.io/secret/{key}"), "YWJjZA==".into()));
        example.extend(secret);
        let json = serde_json::to_string(&example).unwrap();
        let call = Call::parse(Verb::Mount, &[TARGET.into(), json.into()]).unwrap();
        let before = tally.planned;
        for key in profile.keys.iter().map(|key| key.theirs).chain(["fsType", "mountOptions"]) {
            tally.with(profile.name, key, (profile.driver, &settings, &call));
        }
        silent.insert(profile.name, tally.planned - before);
    }
    silent.retain(|_, planned| *planned == 0);
    println!("NOTE dialects whose example makes no plan on its own: {:?}", silent.keys());
    tally.judge("dialects", 1000);
}

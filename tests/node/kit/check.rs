//! `flexvol check` as its users run it: what it says, in which form, and its exit status.

use crate::support::pace::{deadline, slow_seconds};
use crate::support::stand_in::{Said, Site};
use crate::support::wording::{wording, wording_of};
use crate::support::{BINARY, skip};
use flexvol_linux::proc::signal;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Does what there is to do, in a few lines. A shell complains about a directory that was removed.
const GOOD: &str = r#"#!/usr/bin/env -S -C / /bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
exec 3>&1 >/dev/null 2>&1
say() { printf '%s\n' "$1" >&3; exit 0; }
case $1 in
init) say '{"status":"Success","capabilities":{"attach":false,"requiresFSResize":false}}';;
mount)
    [ $# -eq 3 ] || say '{"status":"Failure","message":"mount takes two arguments"}'
    mountpoint -q "$2" || mount -t tmpfs -o nosuid,nodev tmpfs "$2" || say '{"status":"Failure","message":"see mount(8)"}'
    say '{"status":"Success"}';;
unmount)
    [ $# -eq 2 ] || say '{"status":"Failure","message":"unmount takes one argument"}'
    while mountpoint -q "$2"; do umount "$2" || say '{"status":"Failure","message":"see umount(8)"}'; done
    say '{"status":"Success"}';;
*) say '{"status":"Not supported"}';;
esac
"#;

const LABELS: [&str; 7] = ["expected", "seen", "sent", "got", "kubelet", "because", "fix"];

/// Whether there can be mounts in sandboxes here.
fn is_root(name: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip(name, "needs root for sandboxes");
    }
    root
}

/// A site with the good driver, `from` in it replaced.
fn site(from: &str, to: &str) -> Site {
    assert!(from.is_empty() || GOOD.contains(from), "{from}");
    let site = Site::new();
    site.script("driver", &GOOD.replacen(from, to, usize::from(!from.is_empty())));
    site
}

#[test]
fn a_template_is_for_any_shell_and_holds() {
    if !is_root("check::a_template_is_for_any_shell_and_holds") {
        return;
    }
    let site = site("", "");
    for kind in ["tmpfs", "loop", "keeper"] {
        let template = site.flexvol(&["check", "template", kind]).good().out;
        assert!(template.starts_with("#!/bin/sh\n"), "{template}");
        site.script("driver", &template);
        let few =
            ["-t", "init::*", "-t", "environment::*", "-t", "unmount::works", "-t", "output::one_object"];
        let options = if kind == "loop" { r#"{"file":"disk.img","size":"8Mi"}"# } else { "{}" };
        let words = ["check", "./driver", "--level", "should", "--repeat", "1", "--options", options];
        let said = site.flexvol(&[&words[..], &few[..if kind == "tmpfs" { 8 } else { 6 }]].concat());
        assert_eq!(said.status, 0, "{kind}: {said:?}");
    }
}

/// `flexvol check ./driver`, with a volume, for a few cases that take no time.
fn mount(site: &Site, words: &[&str]) -> Said {
    let few = ["check", "./driver", "--options", "{}", "-t", "mount::works", "-t", "mount::twice"];
    site.flexvol(&[&few[..], words].concat())
}

fn last_line(said: &Said) -> &str {
    said.out.lines().last().unwrap_or_default()
}

#[test]
fn a_good_driver_is_told_so() {
    if !is_root("check::a_good_driver_is_told_so") {
        return;
    }
    let said = mount(&site("", ""), &[]).good();
    assert_eq!(
        last_line(&said),
        "2 must, 0 should and 0 harden cases hold, 0 failed, 0 not judged, 0 skipped"
    );
    assert!(said.err.is_empty() && !said.out.contains('\x1b'), "{said:?}");
    for case in ["mount::works", "mount::twice"] {
        assert!(said.out.lines().any(|line| line.starts_with("ok ") && line.contains(case)), "{said:?}");
    }
}

#[test]
fn a_failure_is_told_with_all_that_an_author_needs() {
    if !is_root("check::a_failure_is_told_with_all_that_an_author_needs") {
        return;
    }
    let said = mount(&site(r#"mountpoint -q "$2" || mount"#, "mount"), &["--seed", "7"]);
    assert_eq!((said.status, said.err.as_str()), (1, ""), "{said:?}");
    assert!(said.out.contains("\nFAIL mount::twice  must\n"), "{said:?}");
    for label in LABELS {
        assert!(said.out.lines().any(|line| line.starts_with(&format!("  {label} "))), "{label}: {said:?}");
    }
    assert!(said.out.contains("\n  seen      1 mounts became 2\n"), "{said:?}");
    assert!(said.out.contains("--seed 7 replays exactly this"), "{said:?}");
    assert_eq!(
        last_line(&said),
        "1 must, 0 should and 0 harden cases hold, 1 failed, 0 not judged, 0 skipped"
    );
}

#[test]
fn what_cannot_be_judged_is_no_failure_of_its_own() {
    if !is_root("check::what_cannot_be_judged_is_no_failure_of_its_own") {
        return;
    }
    let said = mount(&site(r#"mountpoint -q "$2" || mount"#, "false"), &[]);
    assert_eq!(said.status, 1);
    assert!(
        said.out.contains("1 case not judged, because mount::works does not hold: mount::twice\n"),
        "{said:?}"
    );
    assert_eq!(
        last_line(&said),
        "0 must, 0 should and 0 harden cases hold, 1 failed, 1 not judged, 0 skipped"
    );
}

#[test]
fn without_a_volume_it_says_what_was_left_out_and_what_to_give() {
    if !is_root("check::without_a_volume_it_says_what_was_left_out_and_what_to_give") {
        return;
    }
    let noisy = site(r"printf '%s\n'", r"printf 'driver: %s\n'");
    let said = noisy.flexvol(&["check", "./driver", "--repeat", "1"]);
    assert_eq!(said.status, 1, "{said:?}");
    assert!(said.out.contains(&["skipped, ", wording("check-needs-volume"), ": "].concat()), "{said:?}");
    assert!(said.out.contains("mount::*"), "{said:?}");
    assert!(said.out.contains("FAIL output::no_noise  must\n"), "{said:?}");
    let good = site("", "").flexvol(&["check", "./driver", "--repeat", "1", "--level", "must"]).good();
    assert!(
        good.out.contains("mount::*") && last_line(&good).contains(" 0 failed, 0 not judged"),
        "{good:?}"
    );
}

#[test]
fn every_form_of_the_report_can_be_read() {
    if !is_root("check::every_form_of_the_report_can_be_read") {
        return;
    }
    let site = site(r#"mountpoint -q "$2" || mount"#, "mount");
    let report = mount(&site, &["--json"]).json();
    assert_eq!(report["must"], json!({"passed": 1, "failed": 1, "blocked": 0, "skipped": 0, "broken": 0}));
    assert_eq!((&report["exitStatus"], &report["isolation"]), (&json!(1), &json!("full")));
    assert_eq!(report["cases"][1]["evidence"][0]["problem"], "1 mounts became 2");
    assert_eq!(mount(&site, &["--format", "json"]).json()["must"], report["must"]);

    let tap = mount(&site, &["--format", "tap"]);
    assert_eq!((tap.status, tap.err.as_str()), (1, ""));
    let tests = tap.out.lines().filter(|line| line.starts_with("ok ") || line.starts_with("not ok ")).count();
    assert!(tap.out.starts_with(&format!("TAP version 14\n1..{tests}\n")), "{tap:?}");

    let junit = mount(&site, &["--format", "junit"]);
    assert_eq!(junit.status, 1);
    let elements = elements(&junit.out);
    let count = |name: &str| elements.iter().filter(|element| *element == name).count();
    assert_eq!((count("testsuite"), count("testcase"), count("failure")), (1, 2, 1), "{junit:?}");
}

/// The names of all elements of a document, which must be closed in order.
fn elements(xml: &str) -> Vec<String> {
    let (mut all, mut open) = (Vec::new(), Vec::new());
    let body = xml.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n").unwrap();
    for tag in body.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').unwrap_or_else(|| panic!("no end of <{tag}"));
        assert!(!text.contains('>'), "{text}");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap().to_owned();
        if tag.starts_with('/') {
            assert_eq!(open.pop().as_ref(), Some(&name));
            continue;
        }
        all.push(name.clone());
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
    all
}

#[test]
fn a_report_goes_to_a_file_and_the_text_to_the_terminal() {
    if !is_root("check::a_report_goes_to_a_file_and_the_text_to_the_terminal") {
        return;
    }
    let site = site("", "");
    let said = mount(&site, &["--format", "junit", "-o", "report.xml"]).good();
    assert!(last_line(&said).starts_with("2 must"), "{said:?}");
    assert_eq!(elements(&fs::read_to_string(site.path("report.xml")).unwrap())[0], "testsuites");
    let said = mount(&site, &["-o", "no/report"]);
    assert_eq!(said.status, 2);
    assert!(said.err.contains("no/report"), "{said:?}");
}

#[test]
fn the_same_seed_says_the_same() {
    if !is_root("check::the_same_seed_says_the_same") {
        return;
    }
    let site = site(r#"mountpoint -q "$2" || mount"#, "echo once more >&2; mount");
    let once = || {
        let few = ["check", "./driver", "--options", "{}", "--seed", "42", "--repeat", "1", "--json"];
        let more = ["-t", "output::no_noise", "-t", "mount::works", "-t", "mount::twice", "--level", "must"];
        // Told to unmount /, it tries for ever.
        let mut report =
            site.flexvol(&[&few[..], &more, &["--timeout", &slow_seconds(2).to_string()]].concat()).json();
        forget_times(&mut report);
        report
    };
    let (first, second) = (once(), once());
    assert_eq!(first["seed"], 42);
    assert_eq!(first, second);
}

fn forget_times(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|key, _| key != "seconds" && !key.ends_with("Took"));
            members.values_mut().for_each(forget_times);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_times),
        _ => {}
    }
}

#[test]
fn cases_are_listed_by_pattern_and_level() {
    let site = Site::new();
    let all = site.flexvol(&["check", "list", "--json"]).good().json();
    let all = all.as_array().unwrap();
    let keys = ["claim", "fix", "id", "items", "level", "needs", "reason", "run", "scope"];
    assert!(all.iter().all(|case| case.as_object().unwrap().keys().eq(keys)), "{:?}", all[0]);
    let must = site.flexvol(&["check", "list", "--json", "--level", "must"]).good().json();
    assert!(must.as_array().unwrap().len() < all.len());
    assert!(must.as_array().unwrap().iter().all(|case| case["level"] == "must"));
    let table = site.flexvol(&["check", "list", "-t", "mount::twi*", "-t", "output::size"]).good().out;
    let ids: Vec<_> = table.lines().skip(1).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(ids, ["output::size", "mount::twice"], "{table}");
}

#[test]
fn what_cannot_be_checked_is_refused_with_a_fix() {
    let site = site("", "");
    site.file("text", "no program");
    fs::create_dir(site.path("example.com~nothing")).unwrap();
    site.file("secret.yaml", SECRET);
    site.file("pv.yaml", &pv("example.com/driver", "pv"));
    let two = format!("{}---\n{}", pv("example.com/driver", "a"), pv("example.com/driver", "b"));
    site.file("two.yaml", &two);
    site.script("example.com~nfs/nfs", GOOD);
    for (words, fix) in [
        (&["./nowhere"][..], "name an executable"),
        (&["./text"], "chmod +x"),
        (&["example.com~nothing"], wording_of("directory-without-driver", ["…", "nothing"])),
        (&["./driver", "-t", "moutn::*"], "did you mean 'mount::*'?"),
        (&["./driver", "-t", "mount::twic"], "did you mean mount::twice?"),
        (&["./driver", "-t", "nonsense"], "the groups are "),
        (&["./driver", "-t", "output::size", "-t", "output::message", "-t", "x"], "\"x\""),
        (&["./driver", "-t", "output::message", "--level", "must"], wording("leave-out-level")),
        (&["./driver", "--options", "{"], "options"),
        (&["./driver", "--options", "@nowhere.json"], wording_of("no-file", ["nowhere.json"])),
        (&["./driver", "--options", "{}", "--volume", "pv.yaml"], "cannot be used with"),
        (&["./driver", "--volume", "two.yaml", "--secret", "secret.yaml"], "one of default/a a, default/b b"),
        (&["./driver", "--volume", "pv.yaml"], wording_of("no-secret", ["default", "s"])),
        (
            &["example.com~nfs", "--volume", "pv.yaml", "--secret", "secret.yaml"],
            wording_of("other-driver-of-volume", ["example.com/driver", "example.com/nfs"]),
        ),
        (&["./driver", "--expose", "/nowhere"], "there is no /nowhere to expose"),
        (&["./driver", "--json", "--format", "tap"], wording("json-and-format")),
        (&["./driver", "--repeat", "0"], "0"),
        (&[], "<DRIVER>"),
    ] {
        let said = site.flexvol(&[&["check"], words].concat());
        assert_eq!(said.status, 2, "{words:?}: {said:?}");
        assert!(said.all().contains(fix), "{words:?}: {said:?}");
    }
}

const SECRET: &str = "kind: Secret\nmetadata: {name: s}\ntype: example.com/driver\n\
                      data: {password: aHVudGVyMi1hbmQtbW9yZQ==}\n";

fn pv(driver: &str, name: &str) -> String {
    format!(
        "kind: PersistentVolume\nmetadata: {{name: {name}}}\nspec:\n  capacity: {{storage: 1Gi}}\n  \
         accessModes: [ReadWriteMany]\n  flexVolume: {{driver: {driver}, secretRef: {{name: s}}}}\n"
    )
}

#[test]
fn no_secret_is_printed_whatever_the_driver_says() {
    if !is_root("check::no_secret_is_printed_whatever_the_driver_says") {
        return;
    }
    let tells =
        r#"say "{\"status\":\"Failure\",\"message\":\"cannot parse $(printf %s "$3" | tr -d '\042')\"}""#;
    let site = site(r#"mountpoint -q "$2" || mount"#, &format!("{tells}; mount"));
    site.file("pv.yaml", &pv("example.com/driver", "pv"));
    site.file("secret.yaml", SECRET);
    for form in ["text", "json", "junit", "tap"] {
        let volume = ["--volume", "pv.yaml", "--secret", "secret.yaml", "--format", form];
        let said = site.flexvol(&[&["check", "./driver", "-t", "mount::works"], &volume[..]].concat());
        assert!(said.status == 1 && said.out.contains("cannot parse"), "{said:?}");
        for secret in ["hunter2-and-more", "aHVudGVyMi1hbmQtbW9yZQ"] {
            assert!(!said.all().contains(secret), "{form}: {said:?}");
        }
    }
}

#[test]
fn a_directory_stands_for_its_driver_wherever_it_is() {
    if !is_root("check::a_directory_stands_for_its_driver_wherever_it_is") {
        return;
    }
    let site = Site::new();
    site.script("plugins/example.com~nfs/nfs", GOOD);
    site.file("pod.yaml", "{kind: Pod, metadata: {name: p}, spec: {volumes: [{name: v, flexVolume: {driver: example.com/nfs}}]}}");
    let words = ["check", "plugins/example.com~nfs", "--volume", "pod.yaml", "-t", "mount::works", "--json"];
    let report = site.flexvol(&words).good().json();
    let path = site.path("plugins/example.com~nfs/nfs");
    assert_eq!(report["driver"], path.to_str().unwrap());
}

#[test]
fn interrupted_it_leaves_no_process() {
    if !is_root("check::interrupted_it_leaves_no_process") {
        return;
    }
    // A shell without job control has what it starts in the background ignore SIGINT, and that is
    // inherited.
    signal::forget();
    let site = site(r#"mountpoint -q "$2" || mount"#, "sleep 1000; mount");
    let driver = site.path("driver");
    let mut check = Command::new(BINARY)
        .arg("check")
        .arg(&driver)
        .args(["--options", "{}", "-t", "mount::works"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    await_that("the driver runs", || !calls(&driver, &["mount"]).is_empty());
    let pid = rustix::process::Pid::from_child(&check);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    await_that("the check ends", || check.try_wait().unwrap().is_some());
    assert!(!check.wait().unwrap().success());
    await_that("everything is gone", || calls(&driver, &[]).is_empty());
}

/// The processes with these words on their command line, the driver first. That is also `flexvol
/// check`, if there are no more.
fn calls(driver: &Path, words: &[&str]) -> Vec<PathBuf> {
    let words: Vec<_> = [&[driver.to_str().unwrap()], words].concat();
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let is_call = |path: &PathBuf| {
        let line = fs::read(path.join("cmdline")).unwrap_or_default();
        let line: Vec<_> = line.split(|byte| *byte == 0).collect();
        line.windows(words.len()).any(|part| part.iter().zip(&words).all(|(a, b)| *a == b.as_bytes()))
    };
    processes.filter(is_call).collect()
}

fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + deadline(30);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

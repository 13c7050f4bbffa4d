//! From YAML to argv: against the calls of a live kubelet, and for the volumes of other drivers'
//! documentation.
//!
//! `UPDATE=1 cargo test --test pure objects::` rewrites `data/peers-calls.tsv`; the diff is what
//! a reviewer reads.

use crate::wording::wording;
use flexvol::kubelet::PodVolume;
use flexvol::objects::{Objects, Secrets};
use flexvol::protocol::{Call, Verb};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

const ROOT: &str = "/var/lib/kubelet";

/// The sections whose objects are in `data/recorded-objects.yaml`.
const SECTIONS: [&str; 5] = ["0", "A", "B", "C", "H"];

/// One line of `data/kubelet-calls.jsonl`.
#[derive(Deserialize)]
struct Recorded {
    section: String,
    argv: Vec<String>,
}

fn volumes(text: &str) -> Vec<PodVolume> {
    let mut objects = Objects::default();
    objects.add(text).unwrap();
    objects.pod_volumes(Path::new(ROOT), Secrets::Wanted).unwrap()
}

fn words(call: &Call) -> Vec<String> {
    let text = |word: OsString| word.into_string().unwrap();
    call.to_arguments().into_iter().map(text).collect()
}

/// Driver directory and arguments of every call in a volume's life, growth to the recorded size
/// included.
fn rendered() -> BTreeSet<(String, Vec<String>)> {
    let volumes = volumes(include_str!("data/recorded-objects.yaml"));
    assert_eq!(volumes.len(), 8);
    let mut all = BTreeSet::new();
    for volume in &volumes {
        let device = if volume.driver.driver() == "bare" { "" } else { "/dev/loop0" };
        let mut calls: Vec<_> =
            volume.calls("vm", device).unwrap().into_iter().map(|(call, _)| call).collect();
        calls.extend(volume.expand_call(device, 50_331_648));
        all.extend(calls.iter().map(|call| (volume.driver.directory(), words(call))));
    }
    all
}

#[test]
fn recorded_calls_are_rendered_byte_for_byte() {
    let (rendered, mut compared) = (rendered(), BTreeSet::new());
    for line in include_str!("data/kubelet-calls.jsonl").lines() {
        let Recorded { section, argv } = serde_json::from_str(line).unwrap();
        let executable = PathBuf::from(&argv[0]);
        let directory = executable.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        let ours = SECTIONS.contains(&section.as_str()) || section == "I" && directory == "example~dummy";
        if argv[1] == "init" || !ours {
            continue;
        }
        let (verb, call) = (argv[1].clone(), (directory, argv[1..].to_vec()));
        assert!(rendered.contains(&call), "{section}: {call:?} is not among\n{rendered:#?}");
        compared.insert(verb);
    }
    let never_sent = BTreeSet::from(["init", "expandvolume"].map(str::to_owned));
    let all: BTreeSet<_> = Verb::ALL.iter().map(|verb| verb.name().to_owned()).collect();
    assert_eq!(compared, all.difference(&never_sent).cloned().collect::<BTreeSet<_>>());
}

/// A pod and its volumes get one `mount` for each target, whatever its section, and it is the one
/// that kubelet sent.
#[test]
fn each_target_gets_the_one_mount_that_was_recorded() {
    let mut recorded = BTreeMap::<_, BTreeSet<_>>::new();
    for line in include_str!("data/kubelet-calls.jsonl").lines() {
        let Recorded { section, argv } = serde_json::from_str(line).unwrap();
        if argv[1] == "mount" {
            recorded.entry((section, argv[2].clone())).or_default().insert(argv[1..].to_vec());
        }
    }
    let of_sections = include_str!("data/recorded-pods.yaml").split("# Section ").skip(1);
    let mut texts: Vec<_> = of_sections.map(|text| text.split_once('\n').unwrap()).collect();
    texts.push(("0ABCHI", include_str!("data/recorded-objects.yaml")));
    let mut compared = 0;
    for (sections, text) in texts {
        let mut rendered = BTreeMap::<_, Vec<_>>::new();
        for volume in volumes(text) {
            let call = words(&volume.mount_call().unwrap());
            rendered.entry(call[1].clone()).or_default().push(call);
        }
        let of_these = recorded.iter().filter(|((section, _), _)| sections.contains(section.as_str()));
        for ((section, target), calls) in of_these {
            let ours = rendered.remove(target).unwrap_or_default();
            assert!(calls.iter().eq(&ours), "{section}: {ours:#?}\n instead of {calls:#?}");
            compared += 1;
        }
        // Its `mount` was left out of the recording as a repeat.
        let unseen = |target: &&String| !target.contains("/548adf89-2749-4090-9c02-7bb657887543/");
        assert_eq!(rendered.keys().find(unseen), None, "{sections}");
    }
    assert_eq!(compared, recorded.len());
}

/// Pod, driver and the `mount` call of every volume.
fn peers() -> String {
    let line = |volume: &PodVolume| {
        let call = words(&volume.mount_call().unwrap());
        let pod = volume.options.pod.name.clone().unwrap();
        format!("{pod}\t{}\t{}\t{}\n", volume.driver, call[1], call[2])
    };
    volumes(include_str!("data/peers.yaml")).iter().map(line).collect()
}

#[test]
fn other_drivers_volumes_are_rendered_as_ever() {
    let (text, path) =
        (peers(), Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pure/data/peers-calls.tsv"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert!(golden == text, "not as in tests/pure/data/peers-calls.tsv (UPDATE=1 accepts):\n{text}");
    assert!(text.lines().count() > 30, "{text}");
}

/// What is easily got wrong, said by hand.
#[test]
fn other_drivers_volumes_mean_what_they_say() {
    let text = peers();
    let json = |pod: &str| {
        let line = text.lines().find(|line| line.split('\t').next() == Some(pod)).unwrap();
        line.rsplit('\t').next().unwrap().to_owned()
    };
    for (pod, part) in [
        // A final newline is part of the secret; a driver may take it off.
        ("c02", r#""kubernetes.io/secret/password":"c2VjcmV0Cg==""#),
        ("c02", r#""mountOptions":"""#),
        ("c04", r#""kubernetes.io/pvOrVolumeName":"c04""#),
        ("c06", r#""kubernetes.io/fsType":"""#),
        ("c06", r#""kubernetes.io/secret/password":"YSxiKWMkZCFcZQ==""#),
        ("c08", r#""kubernetes.io/mounterArgs.FsGroup":"333""#),
        ("c10", r#""opts":"domain=…,rw,file_mode=0770,dir_mode=0770""#),
        ("c13", r#""kubernetes.io/secret/debug":"dHJ1ZQ==""#),
        ("c18", r#""kubernetes.io/readwrite":"ro""#),
        // Of a PV only the claim's word counts.
        ("b10", r#""kubernetes.io/readwrite":"ro""#),
        ("b07", r#""doNotPlaceWithRegex":".*","encryptVolumes":"yes""#),
        ("f04", r#""akId":"","akSecret":"""#),
        ("f07", r#""kubernetes.io/pvOrVolumeName":"f07","kubernetes.io/readwrite":"rw""#),
        ("f09", r#""dir":"00/01""#),
        ("n05", r#""vers":"4.0""#),
        ("o06", r#""volume-mode":"0750""#),
        ("o08", r#""keyvaultobjectnames":"testsecret;testkey""#),
    ] {
        assert!(json(pod).contains(part), "{pod}: {part} is not in {}", json(pod));
    }
}

/// As kubelet 1.36.2 was seen to do it: one `mount`, as the last of the two says it.
#[test]
fn a_claim_that_a_pod_names_twice_is_one_volume_as_the_last_entry_says() {
    let pod = |first: &str, second: &str| {
        let rest = format!("claimName: flexpvc, readOnly: {first}");
        include_str!("data/recorded-objects.yaml").to_owned()
            + &format!(
                "---\nkind: Pod\nmetadata: {{name: twice, uid: 548adf89-2749-4090-9c02-7bb657887544}}\nspec:\n  volumes:\n  \
                 - {{name: one, persistentVolumeClaim: {{{rest}}}}}\n  \
                 - {{name: two, persistentVolumeClaim: {{claimName: flexpvc, readOnly: {second}}}}}\n"
            )
    };
    for (first, second, access) in [("false", "true", "ro"), ("true", "false", "rw")] {
        let all = volumes(&pod(first, second));
        let twice: Vec<_> =
            all.iter().filter(|volume| volume.options.pod.name.as_deref() == Some("twice")).collect();
        let calls: Vec<_> =
            twice.iter().map(|volume| words(&volume.mount_call().unwrap()).join(" ")).collect();
        let expected = format!(
            "mount {ROOT}/pods/548adf89-2749-4090-9c02-7bb657887544/volumes/example~att/flexpv \
             {{\"kubernetes.io/fsType\":\"ext4\",\"kubernetes.io/pod.name\":\"twice\",\
             \"kubernetes.io/pod.namespace\":\"default\",\
             \"kubernetes.io/pod.uid\":\"548adf89-2749-4090-9c02-7bb657887544\",\
             \"kubernetes.io/pvOrVolumeName\":\"flexpv\",\"kubernetes.io/readwrite\":\"{access}\",\
             \"kubernetes.io/secret/key\":\"azE=\",\"kubernetes.io/serviceAccount.name\":\"default\",\
             \"volid\":\"vol-2\"}}"
        );
        assert_eq!(calls, [expected], "{first}, {second}");
    }
}

#[test]
fn a_long_text_is_not_repeated_without_end() {
    let bomb = format!("a: &a \"{}\"\nb: [{}]\n", "x".repeat(100_000), "*a,".repeat(20_000));
    let error = flexvol::yaml::parse(&bomb).unwrap_err().message();
    assert!(error.contains(wording("too-many-values")), "{error}");
    let nested = format!("{}1{}", "[&a ".repeat(100), "]".repeat(100));
    assert!(flexvol::yaml::parse(&nested).is_ok());
}

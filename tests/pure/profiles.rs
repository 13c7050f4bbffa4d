//! The options of other drivers: the plans of their users' volumes, and that no secret gets lost in
//! translation.
//!
//! `UPDATE=1 cargo test --test pure profiles::` writes the plans of `golden_profiles/` and
//! PROFILES.md; the diff is what a reviewer reads.

use crate::wording::wording_of;
use flexvol::installed::Installed;
use flexvol::kubelet::PodVolume;
use flexvol::objects::{Objects, Secrets};
use flexvol::profiles::{self, ALL, Device, Profile};
use flexvol::protocol::{Call, Options, Verb};
use flexvol::schema::OptionSpec;
use flexvol::secret::Secret;
use flexvol::settings::Settings;
use flexvol::side_file;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::profiles_document::document;

/// What an admin allows who has these volumes.
const ALLOWED: &str = r#"{"policy":{"volumeGroups":"*","keyringRoots":"/etc/ceph","bindRoots":["/srv/local","/srv/file-sync"],"imageRoots":["/"]}}"#;

fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn update() -> bool {
    std::env::var_os("UPDATE").is_some()
}

/// What an admin has to say besides, without an edit of any volume.
const SAID: [(&str, &[(&str, &str)]); 4] = [
    (
        "ceph.rook.io/rook",
        &[("monitors", "10.0.0.1:6789,10.0.0.2:6789"), ("key", "AQ-hunter2-of-the-admin==")],
    ),
    (
        "ceph.rook.io/block",
        &[("monitors", "10.0.0.1:6789,10.0.0.2:6789"), ("key", "AQ-hunter2-of-the-admin==")],
    ),
    ("nect.com/sshflex", &[("hostKeyCheck", "off")]),
    ("piersharding/gitrepo", &[("hostKeyCheck", "off")]),
];

/// The settings of an installed driver.
fn settings(profile: &Profile) -> Settings {
    let said = SAID.iter().filter(|(name, _)| *name == profile.name).flat_map(|(_, said)| *said);
    let options = said.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Settings { profile: Some(profile.name.into()), options, ..side_file::parse(ALLOWED).unwrap() }
}

fn installed(profile: &Profile) -> Installed {
    Installed::new(profile.driver, None, settings(profile))
}

// --- golden plans -------------------------------------------------------------------------------

/// The volumes of `data/peers.yaml` and `data/profiles.yaml` whose driver has a profile.
fn volumes() -> Vec<(PodVolume, &'static Profile)> {
    let volumes = |text: &str| {
        let mut objects = Objects::default();
        objects.add(text).unwrap();
        objects.pod_volumes(Path::new("/var/lib/kubelet"), Secrets::Wanted).unwrap()
    };
    let texts = [include_str!("data/peers.yaml"), include_str!("data/profiles.yaml")];
    let volumes = texts.into_iter().flat_map(volumes);
    let known = |volume: PodVolume| Some((profiles::find(&volume.driver.to_string())?, volume));
    volumes.filter_map(known).map(|(profile, volume)| (volume, profile)).collect()
}

/// Calls as they were recorded of others: name, profile, target, options.
const CALLS: [(&str, &str, &str, &str); 2] = [
    // A bridge passes on no pod.
    (
        "o09",
        "awprice/gcs",
        "/var/lib/k0s/kubelet/pods/7/volumes/awprice~gcs/v",
        r#"{"bucket":"web","kubernetes.io/fsType":"","kubernetes.io/pvOrVolumeName":"v","kubernetes.io/readwrite":"ro"}"#,
    ),
    (
        "o10",
        "alicloud/nas",
        "/var/snap/microk8s/common/var/lib/kubelet/pods/7/volumes/alicloud~nas/nas1",
        r#"{"kubernetes.io/fsType":"","kubernetes.io/pod.name":"nas-1","kubernetes.io/pod.namespace":"default",
            "kubernetes.io/pod.uid":"7","kubernetes.io/pvOrVolumeName":"nas1","kubernetes.io/readwrite":"rw",
            "kubernetes.io/serviceAccount.name":"default","mode":"755","path":"/k8s/sub",
            "server":"0cd8b4a576-grs79.cn-hangzhou.nas.aliyuncs.com","vers":"3"}"#,
    ),
];

/// Name, call and profile of all of them.
fn calls() -> Vec<(String, Call, &'static Profile)> {
    let of_volume = |(volume, profile): (PodVolume, &'static Profile)| {
        let pod = volume.options.pod.name.clone().unwrap();
        // What the driver itself brings to a node is brought by this.
        let brings = |call: &Call| call.verb() == Verb::MountDevice && profile.attach == Some(Device::Ours);
        let device = volume.calls("node", "").unwrap().into_iter().map(|(call, _)| call).find(brings);
        let device = device.map(|call| (format!("{pod}-device"), call, profile));
        [(pod, volume.mount_call().unwrap(), profile)].into_iter().chain(device)
    };
    let recorded = CALLS.iter().map(|(name, profile, target, json)| {
        let call = Call::parse(Verb::Mount, &[(*target).into(), (*json).into()]).unwrap();
        ((*name).to_owned(), call, profiles::find(profile).unwrap())
    });
    volumes().into_iter().flat_map(of_volume).chain(recorded).collect()
}

fn planned(call: &Call, profile: &Profile) -> String {
    let installed = installed(profile);
    let shown = match installed.plan(call) {
        Ok(plan) => {
            installed.settings.policy.check(&plan).unwrap();
            let (_, notes) = installed.understood(call).unwrap();
            serde_json::json!({"driver": profile.name, "plan": plan, "notes": notes})
        }
        Err(failure) => serde_json::json!({"driver": profile.name, "refusal": failure.message()}),
    };
    serde_json::to_string_pretty(&shown).unwrap() + "\n"
}

fn golden(pod: &str) -> PathBuf {
    home().join("tests/pure/golden_profiles").join(format!("{pod}.json"))
}

#[test]
fn volumes_of_other_drivers_have_the_golden_plans() {
    let (mut wrong, mut names) = (Vec::new(), BTreeSet::new());
    for (name, call, profile) in calls() {
        let path = golden(&name);
        let text = planned(&call, profile);
        if update() {
            std::fs::write(&path, &text).unwrap();
        }
        if std::fs::read_to_string(&path).ok().as_ref() != Some(&text) {
            wrong.push(format!("{}:\n{text}", path.display()));
        }
        assert!(names.insert(path), "two pods with one name");
    }
    assert!(
        wrong.is_empty(),
        "not as in tests/pure/golden_profiles (UPDATE=1 accepts):\n{}",
        wrong.join("\n")
    );
    let entries = std::fs::read_dir(golden("x").parent().unwrap()).unwrap();
    let found: BTreeSet<_> = entries.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(names, found);
}

#[test]
fn every_profile_has_a_volume_among_them() {
    let tried: BTreeSet<_> = volumes().iter().map(|(_, profile)| profile.name).collect();
    for profile in ALL {
        assert!(tried.contains(profile.name), "data/peers.yaml has no volume of {}", profile.name);
    }
}

#[test]
fn no_plan_or_note_shows_a_secret() {
    for (volume, profile) in volumes() {
        let text = planned(&volume.mount_call().unwrap(), profile);
        for secret in volume.options.secrets.values().filter(|secret| secret.expose().len() > 4) {
            let secret = String::from_utf8_lossy(secret.expose()).trim().to_owned();
            // The name of a user is no secret to be hidden, nor is a server's.
            let open = ["example", "my-user", "blobs.blob.core.chinacloudapi.cn"];
            let shown = text.contains(&secret) && !open.contains(&secret.as_str());
            assert!(!shown, "{text}");
        }
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn the_example_of_every_profile_is_a_plan() {
    for profile in ALL {
        let own = profile.example.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let secrets = profile.example_secret.iter().map(|key| ((*key).into(), Secret::new(b"x".to_vec())));
        let given = Options { own, secrets: secrets.collect(), ..pod() };
        let call = mount(&given);
        installed(profile).plan(&call).unwrap_or_else(|failure| panic!("{}: {failure}", profile.name));
        let (_, notes) = installed(profile).understood(&call).unwrap();
        assert_eq!(notes, [""; 0], "{}", profile.name);
    }
}

// --- translation --------------------------------------------------------------------------------

/// What kubelet says about the pod.
fn pod() -> Options {
    Options::parse(
        r#"{"kubernetes.io/fsType":"","kubernetes.io/pod.name":"p","kubernetes.io/pod.namespace":"ns",
            "kubernetes.io/pod.uid":"7","kubernetes.io/pvOrVolumeName":"v","kubernetes.io/readwrite":"rw"}"#,
    )
    .unwrap()
}

fn mount(options: &Options) -> Call {
    let arguments = ["/pods/7/volumes/a~b/v".into(), options.to_json().into()];
    Call::parse(Verb::Mount, &arguments).unwrap()
}

/// Every word that means something to anybody, as a key.
fn words() -> Vec<String> {
    let theirs = ALL.iter().flat_map(|profile| profile.keys.iter().chain(profile.secrets));
    let ours = ALL.iter().flat_map(|profile| profile.driver.options()).map(|spec| spec.name);
    let further = ["user", "pass", "passwd", "USERNAME", "Password", "debug", "x", "a/b", ""];
    theirs.map(|key| key.theirs).chain(ours).chain(further).map(str::to_owned).collect()
}

/// Values with a meaning somewhere, and others.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~]{0,12}",
        Just("null".to_owned()),
        Just("//host/share".to_owned()),
        Just(r"\\host\share".to_owned()),
        Just("username=u,password=p,domain=d,uid=7,vers=3.0,ro,context=x,,=".to_owned()),
        Just("1".to_owned()),
        Just("true".to_owned()),
        any::<String>(),
    ]
}

proptest! {
    /// What comes as a secret never leaves as an option, a note or a refusal.
    #[test]
    fn no_secret_is_lost_into_an_option(
        profile in prop::sample::select(ALL.to_vec()),
        own in prop::collection::btree_map(prop::sample::select(words()), value(), 0..6),
        keys in prop::collection::btree_set(prop::sample::select(words()), 0..5),
        newline in any::<bool>(),
    ) {
        const MARK: &str = "5ecr3t-mark";
        let text = if newline { format!("{MARK}\r\n") } else { MARK.to_owned() };
        let secrets: BTreeMap<_, _> =
            keys.into_iter().map(|key| (key, Secret::new(text.clone().into_bytes()))).collect();
        let given = Options { own, secrets: secrets.clone(), ..pod() };
        match profile.translate(&given, &BTreeMap::new()) {
            Err(failure) => prop_assert!(!failure.message().contains(MARK)),
            Ok(translated) => {
                let options = &translated.options;
                let shown = format!("{:?} {:?}", options.own, translated.notes);
                prop_assert!(!shown.contains(MARK), "{}", shown);
                let known = |key: &String| {
                    let is_it = |spec: &OptionSpec| spec.name == key || spec.name.ends_with('*') && spec.is_called(key);
                    profile.driver.options().iter().any(is_it) || key.contains('/')
                };
                prop_assert!(options.own.keys().all(known), "{:?}", options.own);
                prop_assert!(options.secrets.len() <= secrets.len() + 3);
            }
        }
    }

    /// Of any options a plan or a refusal, and the same at any time.
    #[test]
    fn a_translation_is_pure_and_never_panics(
        profile in prop::sample::select(ALL.to_vec()),
        own in prop::collection::btree_map(any::<String>(), value(), 0..4),
        more in prop::collection::btree_map(prop::sample::select(words()), value(), 0..6),
    ) {
        let given = Options { own: own.into_iter().chain(more).collect(), ..pod() };
        let plan = || {
            let plan = installed(profile).plan(&mount(&given));
            plan.map(|plan| serde_json::to_string(&plan).unwrap())
        };
        prop_assert_eq!(plan(), plan());
    }
}

/// Options and notes after a translation.
fn translated(profile: &str, json: &str, side_file: &str) -> (BTreeMap<String, String>, Vec<String>) {
    let side_file: BTreeMap<_, _> = serde_json::from_str(side_file).unwrap();
    let given = Options { own: Options::parse(json).unwrap().own, ..pod() };
    let done = profiles::find(profile).unwrap().translate(&given, &side_file).unwrap();
    (done.options.own, done.notes)
}

fn pairs(given: &[(&str, &str)]) -> BTreeMap<String, String> {
    given.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn the_volume_is_over_the_side_file_is_over_the_profile() {
    let image = |json, side| translated("kvaps/loop", json, side).0;
    let base = [("file", "/a"), ("format", "ifBlank"), ("fsType", "ext4")];
    assert_eq!(image(r#"{"file":"/a"}"#, "{}"), pairs(&base));
    let side = r#"{"fsType":"xfs","mount_options":"noatime","size":"1g"}"#;
    let with = [&base[..2], &[("fsType", "xfs"), ("mountOptions", "noatime"), ("size", "1Gi")]].concat();
    assert_eq!(image(r#"{"file":"/a"}"#, side), pairs(&with));
    let own = r#"{"file":"/a","mountOptions":"","size":"2G"}"#;
    let with = [&base[..2], &[("fsType", "xfs"), ("mountOptions", "noatime"), ("size", "2Gi")]].concat();
    assert_eq!(image(own, side), pairs(&with), "empty is absent");
}

/// Nothing of the side file wins over anything of the volume, not even what becomes a word or a
/// secret.
#[test]
fn the_volume_s_words_and_secrets_are_over_the_side_file_s() {
    let blobfuse = |json, side| translated("azure/blobfuse", json, side).0;
    let side = r#"{"mountoptions":"-o uid=7 --file-cache-timeout-in-seconds=9"}"#;
    let own = r#"{"container":"c","mountoptions":"-o uid=8"}"#;
    let expected = [("cacheTimeout", "9"), ("container", "c"), ("mountOptions", ""), ("uid", "8")];
    assert_eq!(blobfuse(own, side), pairs(&expected[..2]).into_iter().chain(pairs(&expected[3..])).collect());
    let rook = profiles::find("ceph.rook.io/rook").unwrap();
    let side = pairs(&[("key", "of-the-admin"), ("monitors", "10.0.0.1")]);
    let secret = |given: &Options| {
        let done = rook.translate(given, &side).unwrap();
        assert_eq!((done.options.own.contains_key("key"), done.notes.len()), (false, 0));
        String::from_utf8(done.options.secrets["key"].expose().to_vec()).unwrap()
    };
    let with =
        Options { secrets: [("key".to_owned(), Secret::new(b"of-the-volume".to_vec()))].into(), ..pod() };
    assert_eq!((secret(&pod()).as_str(), secret(&with).as_str()), ("of-the-admin", "of-the-volume"));
}

#[test]
fn what_nobody_knows_has_no_effect_and_a_note() {
    let (own, notes) = translated("kvaps/loop", r#"{"file":"/a","sise":"1g","x/y":"z","fsck":"null"}"#, "{}");
    assert_eq!(own, pairs(&[("file", "/a"), ("format", "ifBlank"), ("fsType", "ext4"), ("x/y", "z")]));
    assert_eq!(
        notes,
        [
            wording_of("null-option", ["fsck"]),
            "option \"sise\" has no effect, kvaps/loop has none such: did you mean \"size\"?",
        ]
    );
    let (own, notes) =
        translated("kvaps/loop", r#"{"file":"/a","mountOptions":"x","mount_options":"y"}"#, "{}");
    assert_eq!((own["mountOptions"].as_str(), notes.len()), ("y", 1), "{notes:?}");
}

// --- the document -------------------------------------------------------------------------------

#[test]
fn the_document_is_the_table() {
    let path = home().join("PROFILES.md");
    if update() {
        std::fs::write(&path, document()).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == document(), "UPDATE=1 cargo test --test pure profiles:: rewrites PROFILES.md");
}

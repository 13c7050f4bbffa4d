//! Names that others choose (of pods, volumes, keys of a Secret, targets) where they become names
//! of files.

use super::injection::{Leaf, leaves};
use flexvol::drivers;
use flexvol::executor::record;
use flexvol::installed::Installed;
use flexvol::plan::Step;
use flexvol::protocol::{Call, Options, TargetPath, Verb};
use flexvol::settings::Settings;
use proptest::collection::vec;
use proptest::prelude::*;
use std::path::Path;

const TARGET: &str = "/var/lib/kubelet/pods/7/volumes/example~x/data";

/// What leads elsewhere, and what only looks so.
fn name() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("..".to_owned()),
        Just(".".to_owned()),
        Just("/".to_owned()),
        Just("\\".to_owned()),
        Just("\0".to_owned()),
        Just("\n".to_owned()),
        Just("~".to_owned()),
        Just("%2e%2e%2f".to_owned()),
        "[a-z.]{0,3}",
    ];
    vec(part, 0..6).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::report::rounds(512, 100_000), failure_persistence: None, ..ProptestConfig::default() })]

    /// A file of a Secret's key lies in the volume, or there is none.
    #[test]
    fn a_key_of_a_secret_is_a_plain_name(key in name(), more in name()) {
        let options = serde_json::json!({
            format!("kubernetes.io/secret/{key}"): "YQ==", format!("kubernetes.io/secret/{more}"): "Yg==",
        });
        let call = Call::parse(Verb::Mount, &[TARGET.into(), options.to_string().into()]).unwrap();
        let Ok(plan) = Installed::new(&drivers::secretfiles::SecretFiles, None, Settings::default()).plan(&call) else {
            return Ok(());
        };
        for step in plan.steps {
            let Step::MountFiles { files, .. } = step else { continue };
            for file in files {
                let plain = Path::new(&file.name).file_name().is_some_and(|name| *name == *file.name);
                prop_assert!(plain && !file.name.contains(['/', '\0']), "{:?}", file.name);
            }
        }
    }

    /// Whatever a target is called, its lock and its record are files of ours.
    #[test]
    fn a_target_s_files_are_in_their_directory(target in name()) {
        let Ok(target) = TargetPath::parse(format!("/{target}").as_ref()) else { return Ok(()) };
        let path = record::lock_path(&target);
        prop_assert_eq!(path.parent(), Some(Path::new("/run/flexvol/locks")), "{:?}", path);
        prop_assert!(path.file_name().is_some_and(|name| name.len() < 255), "{:?}", path);
    }

    /// What pods and volumes are called is no part of any path or word of ours: only the admin's
    /// own commands get it, and the node's agent, which shows it.
    #[test]
    fn a_pod_s_name_is_in_no_plan(name in name()) {
        let mark = format!("zq9{name}");
        let pod = flexvol::protocol::PodRef {
            name: Some(mark.clone()), namespace: Some(mark.clone()), uid: Some(mark.clone()), service_account: Some(mark.clone()),
        };
        for (driver, settings, call) in super::injection::calls().into_iter().filter(|(driver, ..)| *driver != "exec") {
            let mut call = call;
            let Some(options) = call.options_mut() else { continue };
            *options = Options { pod: pod.clone(), volume_name: Some(mark.clone()), ..options.clone() };
            let Ok(plan) = Installed::new(drivers::find(driver).unwrap(), None, settings).plan(&call) else { continue };
            for Leaf { path, text, .. } in leaves(&serde_json::to_value(&plan).unwrap()) {
                let told = [".steps.hold.hold.pod", ".steps.csiPublish.volume.podInfo."];
                let told_the_agent = told.iter().any(|start| path.starts_with(start));
                prop_assert!(told_the_agent || !text.contains("zq9"), "{driver}: {path}: {text}");
            }
        }
    }
}

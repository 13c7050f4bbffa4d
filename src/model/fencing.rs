//! Steps of a plan that hold a volume's storage while it is mounted.
//!
//! The hold is on the storage, under one name for all its volumes and on every node. Drivers do not
//! take part in this: the plan already names the storage.

use crate::agent::{self, AgentSettings};
use crate::plan::{Nbd, NbdServer, Plan, Step, Store, StoreStep};
use crate::settings::{SIDE_FILE, Settings};
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::ordered::filled;
use flexvol_protocol::{Call, Options, TargetPath};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Adds these steps to the plan if the side file names the agent. With the fence off, nothing new
/// is held, but earlier holds are still released.
pub(crate) fn fenced(mut plan: Plan, call: &Call, settings: &Settings) -> Result<Plan> {
    let Some(AgentSettings { fence, socket, .. }) = agent::settings(&settings.agent)? else {
        return Ok(plan);
    };
    let socket = || PathBuf::from(socket);
    match call {
        Call::Mount { target, options, .. } | Call::MountDevice { target, options, .. } if fence != "off" => {
            if let Some(handle) = held(&plan)? {
                let hold = hold(handle, target, options, fence)?;
                plan.steps.insert(0, Step::Hold { socket: socket(), hold });
            }
        }
        Call::Unmount { target } | Call::UnmountDevice { target } => {
            plan.steps.push(Step::Release { socket: socket(), target: target.clone() });
        }
        _ => {}
    }
    Ok(plan)
}

/// Returns the name of the storage that a plan attaches. `None` if the plan shows a staged volume,
/// whose storage was held when it was mounted for the node.
fn held(plan: &Plan) -> Result<Option<String>> {
    let shows = |step: &Step| matches!(step, Step::ShowStaged { .. });
    match plan.steps.iter().find_map(handle) {
        None if !plan.steps.is_empty() && !plan.steps.iter().any(shows) => Err(nothing_held()),
        found => Ok(found),
    }
}

fn nothing_held() -> Failure {
    let text = format!("{SIDE_FILE}: \"agent\": this driver has no storage that can be held: remove it");
    Failure::options(text)
}

/// Drivers whose plans attach storage that can be held.
const HOLDERS: [&str; 6] = ["image", "qcow2", "rbd", "lvm", "nbd", "iscsi"];

/// Refuses a fence for a driver if it would be refused for each of its volumes.
pub(crate) fn check(driver: &str, settings: &Settings) -> Result<()> {
    let holds = agent::settings(&settings.agent)?.is_some_and(|agent| agent.fence != "off");
    if !holds || HOLDERS.contains(&driver) { Ok(()) } else { Err(nothing_held()) }
}

fn hold(
    handle: String,
    target: &TargetPath,
    options: &Options,
    fence: &str,
) -> Result<BTreeMap<String, String>> {
    let text = target.as_path().to_str();
    let target = text.ok_or_else(|| Failure::call("target must be UTF-8 to be held by the agent"))?;
    let of_pod = |part: &Option<String>| part.clone().unwrap_or_default();
    let pod = &options.pod;
    let words = [
        ("handle", handle),
        ("fence", fence.to_owned()),
        ("target", target.to_owned()),
        ("access", options.access().word().to_owned()),
        ("podNamespace", of_pod(&pod.namespace)),
        ("podName", of_pod(&pod.name)),
        ("podUid", pod.uid.clone().unwrap_or_else(|| target.to_owned())),
    ];
    Ok(filled(words.map(|(key, word)| (key.to_owned(), word))))
}

/// Returns the storage that a step attaches, under the name that all nodes use for it.
fn handle(step: &Step) -> Option<String> {
    match step {
        Step::AttachLoop { file, .. } => Some(of_file(file)),
        Step::Store(StoreStep::Attach { attachment, .. }) => Some(of_store(&attachment.store)),
        _ => None,
    }
}

/// Names a store. For Ceph, the name omits the monitors, because two volumes of one image may list
/// different ones. So equal names in two clusters cause a refusal, but one image never has two
/// names.
fn of_store(store: &Store) -> String {
    match store {
        Store::Qcow2(image) | Store::Nbd(Nbd { from: NbdServer::Image { image, .. }, .. }) => {
            of_file(&image.file)
        }
        Store::Rbd(image) => format!("rbd:{}", image.spec()),
        Store::Lvm(_) | Store::Nbd(_) | Store::Iscsi(_) => store.name(),
    }
}

/// Names a file. The file is the storage, whatever it contains and whichever driver shows it.
fn of_file(file: &Path) -> String {
    let plain: PathBuf = file.components().collect();
    format!("file:{}", plain.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{Fence, Hold, HoldAccess};
    use crate::drivers;
    use crate::installed::Installed;
    use crate::paths::AGENT_SOCKET;
    use crate::side_file;
    use flexvol_protocol::Verb;
    use std::ffi::OsString;

    const TARGET: &str = "/k/pods/1/volumes/example~x/v";

    fn plan(driver: &str, agent: &str, options: &str) -> Result<Plan> {
        let settings = side_file::parse(&format!(
            r#"{{"agent":{agent},"policy":{{"volumeGroups":"*","keyringRoots":"/etc/ceph"}}}}"#
        ))?;
        let arguments = [TARGET, options].map(OsString::from);
        let installed = Installed::new(drivers::find(driver).unwrap(), None, settings);
        installed.plan(&Call::parse(Verb::Mount, &arguments)?)
    }

    fn held(driver: &str, options: &str) -> Hold {
        match plan(driver, r#"{"fence":"pod"}"#, options).unwrap().steps.swap_remove(0) {
            Step::Hold { hold, .. } => serde_json::from_value(serde_json::json!(hold)).unwrap(),
            other => panic!("{driver} begins with {other:?}"),
        }
    }

    /// Two spellings of the same storage give one name, whichever driver shows it.
    #[test]
    fn storage_has_one_name() {
        let file = |driver, file: &str| held(driver, &format!(r#"{{"file":"{file}","size":"1Gi"}}"#)).handle;
        assert_eq!(file("image", "a.img"), "file:/var/lib/flexvol/images/a.img");
        assert_eq!(file("image", "/var/lib/flexvol//images/./a.img"), file("image", "a.img"));
        assert_eq!(file("qcow2", "a.img"), file("image", "a.img"));
        assert_ne!(file("image", "b.img"), file("image", "a.img"));
        for (driver, options, handle) in [
            ("nbd", r#"{"file":"a.img"}"#, "file:/var/lib/flexvol/images/a.img"),
            ("nbd", r#"{"server":"nas","export":"db"}"#, "nbd://nas:10809/db"),
            ("lvm", r#"{"volumeGroup":"data","volume":"db"}"#, "lvm:data/db"),
            (
                "iscsi",
                r#"{"iqn":"iqn.2001-04.com.example:a","targetPortal":"nas","lun":"3"}"#,
                "iscsi:iqn.2001-04.com.example:a:3",
            ),
            (
                "rbd",
                r#"{"monitors":"m1,m2","pool":"p","image":"i","user":"u","kubernetes.io/secret/key":"aHVudGVyMg=="}"#,
                "rbd:p/i",
            ),
        ] {
            assert_eq!(held(driver, options).handle, handle, "{driver}");
        }
    }

    /// A fence that no volume of a driver could use is refused before there is a volume.
    #[test]
    fn who_can_hold_is_known_beforehand() {
        for driver in drivers::ALL {
            let settings =
                |fence: &str| side_file::parse(&format!(r#"{{"agent":{{"fence":"{fence}"}}}}"#)).unwrap();
            let attaches = driver.verbs(&Settings::default()).contains(Verb::Attach);
            let holds = check(driver.name(), &settings("pod")).is_ok();
            assert!(holds || !attaches || driver.instead_of_attach().is_some(), "{}", driver.name());
            assert_eq!(holds, HOLDERS.contains(&driver.name()));
            assert!(check(driver.name(), &settings("off")).is_ok());
        }
        assert!(HOLDERS.iter().all(|name| drivers::find(name).is_some()));
    }

    #[test]
    fn the_pod_and_its_access_are_said() {
        let options = r#"{"file":"a","kubernetes.io/readwrite":"ro","kubernetes.io/pod.name":"web-0",
            "kubernetes.io/pod.namespace":"shop","kubernetes.io/pod.uid":"u1"}"#;
        let hold = held("image", options);
        let pod = [hold.pod_namespace, hold.pod_name, hold.pod_uid];
        assert_eq!(
            (pod, hold.access, hold.fence),
            (["shop", "web-0", "u1"].map(str::to_owned), HoldAccess::ReadOnly, Fence::Pod)
        );
        // Two holds that do not name their pods must not count as one pod.
        let hold = held("image", r#"{"file":"a"}"#);
        assert_eq!((hold.pod_uid.as_str(), hold.access), (TARGET, HoldAccess::ReadWrite));
    }

    #[test]
    fn nothing_is_held_unless_the_side_file_says_so() {
        let steps = |agent: &str| plan("image", agent, r#"{"file":"a"}"#).unwrap().steps;
        assert!(
            !steps("{}")
                .iter()
                .chain(&steps(r#"{"fence":"off"}"#))
                .any(|step| matches!(step, Step::Hold { .. }))
        );
        let Step::Hold { socket, .. } = &steps(r#"{"fence":"node"}"#)[0] else { panic!() };
        assert_eq!(socket, Path::new(AGENT_SOCKET));
        let Step::Hold { socket, .. } = &steps(r#"{"fence":"node","socket":"/s"}"#)[0] else { panic!() };
        assert_eq!(socket, Path::new("/s"));
        let message = plan("tmpfs", r#"{"fence":"pod"}"#, "{}").unwrap_err().message();
        assert!(message.contains("\"agent\""), "{message}");
        assert!(side_file::parse(r#"{"agent":{"fense":"pod"}}"#).is_err());
        assert!(
            side_file::parse(r#"{"agent":[]}"#).is_err()
                && side_file::parse(r#"{"agent":{"fence":"all"}}"#).is_err()
        );
    }

    #[test]
    fn released_last_also_with_the_fence_off() {
        for (driver, agent, released) in [
            ("image", "{}", false),
            ("image", r#"{"fence":"off"}"#, true),
            ("rbd", r#"{"fence":"pod"}"#, true),
        ] {
            let settings = side_file::parse(&format!(r#"{{"agent":{agent}}}"#)).unwrap();
            let installed = Installed::new(drivers::find(driver).unwrap(), None, settings);
            let call = Call::parse(Verb::Unmount, &[OsString::from(TARGET)]).unwrap();
            let plan = installed.plan(&call).unwrap();
            let last = plan.steps.last().unwrap();
            assert_eq!(matches!(last, Step::Release { .. }), released, "{driver} {agent}");
        }
    }
}

//! Advice for the admin about the kubelets that read the plugin directory and about the programs of
//! the node. None of it prevents the installation: kubelet may be restarted later, and most volumes
//! need few of the programs.

use super::{InstallRequest, programs};
use flexvol_kubelet::locate::{KubeletProcess, kubelets};
use flexvol_kubelet::release::Release;
use flexvol_kubelet::scan::{self, Finding, Stage};
use flexvol_linux::fs::directory::Directory;
use flexvol_linux::fs::files;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_model::driver::Driver;
use flexvol_model::drivers;
use flexvol_model::installed::Installed;
use flexvol_model::settings::Settings;
use flexvol_protocol::{Capabilities, DriverName};
use std::ffi::OsStr;
use std::time::Duration;

/// Deadline for all kubelets together to print their version, one line each.
const VERSION_WAIT: Duration = Duration::from_secs(5);

/// A running kubelet that reads the plugin directory.
#[derive(Clone, Copy, Debug)]
struct Reader {
    pid: u32,
    /// `None` if it is unknown.
    release: Option<Release>,
    /// True if it calls `attach` itself.
    attaches: bool,
}

/// Gathers the advice for a driver that was just put in place, or would be.
pub(super) fn gather(
    request: &InstallRequest,
    plugins: &Directory,
    settings: &Settings,
    capabilities: Option<Capabilities>,
) -> Vec<String> {
    let name = &request.name;
    let driver = own_driver(settings);
    let capabilities = capabilities.or_else(|| {
        let installed = Installed::new(driver?, Some(name.directory()), settings.clone());
        Some(installed.capabilities())
    });
    let readers = readers(plugins);
    let mut advice = started_anew(name, &readers);
    advice.extend(outshone(name, &readers, || failing(plugins, name)));
    if capabilities.is_some_and(|capabilities| capabilities.attach) {
        advice.extend(attaching(name, &readers));
    }
    // A pod has the plugin directory as a mount, and does not see the node's programs.
    if let Some(driver) = driver.filter(|_| !files::is_mount_root(plugins.path())) {
        advice.extend(programs::of(name, driver, settings, request.place.root()));
    }
    advice
}

/// Returns which of our drivers it is. Another program may have the name of one of ours.
fn own_driver(settings: &Settings) -> Option<&'static dyn Driver> {
    settings.version.as_ref().and_then(|_| drivers::find(settings.driver.as_deref()?))
}

/// Returns the kubelets that read this directory; others do not matter.
fn readers(plugins: &Directory) -> Vec<Reader> {
    // Missing information is no reason to stop the installation.
    let (all, identity) = (kubelets().unwrap_or_default(), plugins.identity().ok());
    let deadline = Deadline::after(VERSION_WAIT);
    let reads = |kubelet: &&KubeletProcess| {
        let directory = kubelet.directory.as_deref().and_then(|path| Directory::open(path).ok().flatten());
        identity.is_some() && directory.and_then(|directory| directory.identity().ok()) == identity
    };
    let reader = |kubelet: &KubeletProcess| Reader {
        pid: kubelet.pid,
        release: kubelet.release(&deadline),
        attaches: kubelet.attaches,
    };
    all.iter().filter(reads).map(reader).collect()
}

/// Returns the first other driver in the directory whose `init` fails, and the reason.
fn failing(plugins: &Directory, name: &DriverName) -> Option<(String, String)> {
    let names = plugins.names().unwrap_or_default().into_iter();
    let others = names.filter(|other| other.as_os_str() != OsStr::new(&name.directory()));
    others.into_iter().find_map(|other| match scan::look(plugins.path(), &other, &scan::terms())? {
        Finding::Failed(failed) if failed.stage == Stage::Init => {
            Some((other.to_string_lossy().into_owned(), failed.fix.unwrap_or(failed.logged)))
        }
        _ => None,
    })
}

fn started_anew(name: &DriverName, readers: &[Reader]) -> Vec<String> {
    let old = readers.iter().filter_map(|reader| Some((reader.pid, reader.release?)));
    old.filter(|(_, release)| !release.sees_changes())
        .map(|(pid, release)| {
            format!(
                "kubelet (pid {pid}) is of Kubernetes {release} and looks for drivers only when it starts: restart kubelet to use {name}"
            )
        })
        .collect()
}

/// Warns of another driver that makes kubelet miss this one. `failing` is called only if needed, as
/// it runs the other drivers.
fn outshone(
    name: &DriverName,
    readers: &[Reader],
    failing: impl FnOnce() -> Option<(String, String)>,
) -> Option<String> {
    let mut known = readers.iter().filter_map(|reader| Some((reader.pid, reader.release?)));
    let (pid, release) = known.find(|(_, release)| release.sees_changes() && !release.keeps_others())?;
    let (other, why) = failing()?;
    Some(format!(
        "{other} in the same directory fails ({why}), and kubelet (pid {pid}) of Kubernetes {release} may then miss {name} until it is restarted: fix or remove {other}"
    ))
}

/// Names the programs that call `attach` and therefore need the driver.
fn attaching(name: &DriverName, readers: &[Reader]) -> Vec<String> {
    let own = readers.iter().filter(|reader| reader.attaches).map(|reader| {
        format!(
            "{name} attaches volumes: kubelet (pid {}) has enableControllerAttachDetach false, so it calls attach and detach itself, on this node",
            reader.pid
        )
    });
    let left = (readers.is_empty() || readers.iter().any(|reader| !reader.attaches)).then(|| {
        format!(
            "{name} attaches volumes: kube-controller-manager needs it in its --flex-volume-plugin-dir, too"
        )
    });
    own.chain(left).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::{wording, wording_of};
    use std::cell::Cell;

    fn name() -> DriverName {
        DriverName::parse("v/d").unwrap()
    }

    fn reader(pid: u32, version: &str, attaches: bool) -> Reader {
        Reader { pid, release: Release::told(&format!("Kubernetes {version}")), attaches }
    }

    #[test]
    fn a_kubelet_that_does_not_watch_is_to_be_restarted() {
        let readers = [reader(1, "v1.7.16", false), reader(2, "v1.8.0", false), reader(3, "", false)];
        let advice = started_anew(&name(), &readers);
        assert_eq!(advice.len(), 1, "{advice:?}");
        assert!(advice[0].contains("(pid 1) is of Kubernetes 1.7") && advice[0].contains("restart kubelet"));
    }

    #[test]
    fn another_that_fails_matters_to_old_kubelets_only() {
        let asked = Cell::new(0);
        let advice = |version: &str, failing: Option<&str>| {
            outshone(&name(), &[reader(7, version, false)], || {
                asked.set(asked.get() + 1);
                failing.map(|other| (other.to_owned(), "why".to_owned()))
            })
        };
        for version in ["v1.7.1", "v1.24.0", "v1.36.2", "v1.99.0", "v2.0.0", "unknown"] {
            assert_eq!(advice(version, Some("w~e")), None, "{version}");
        }
        assert_eq!(asked.get(), 0, "nobody's init is run for nothing");
        for version in ["v1.8.0", "v1.22.6", "v1.23.17"] {
            let advice = advice(version, Some("w~e")).unwrap();
            assert!(advice.contains(wording_of("other-driver-fails", ["w~e", "why"])), "{advice}");
            assert!(
                advice.ends_with("fix or remove w~e") && advice.contains("may then miss v/d"),
                "{advice}"
            );
        }
        assert_eq!((advice("v1.22.6", None), asked.get()), (None, 4));
    }

    #[test]
    fn who_calls_attach_is_told() {
        let (manager, own) = ("kube-controller-manager needs it", wording("kubelet-attaches"));
        for (readers, expected) in [
            (vec![], vec![manager]),
            (vec![reader(1, "", false)], vec![manager]),
            (vec![reader(1, "", true)], vec![own]),
            (vec![reader(1, "", true), reader(2, "", false)], vec![own, manager]),
        ] {
            let advice = attaching(&name(), &readers);
            assert_eq!(advice.len(), expected.len(), "{advice:?}");
            assert!(advice.iter().zip(expected).all(|(line, words)| line.contains(words)), "{advice:?}");
        }
    }

    #[test]
    fn only_our_own_drivers_have_known_programs() {
        let settings = |version: Option<&str>| Settings {
            driver: Some("image".into()),
            version: version.map(str::to_owned),
            ..Settings::default()
        };
        assert!(own_driver(&settings(None)).is_none());
        assert_eq!(own_driver(&settings(Some("1.0"))).map(Driver::name), Some("image"));
    }
}

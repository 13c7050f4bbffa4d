//! Programs that come from a mount pod, or from a directory, instead of the node itself: the source
//! of each, and whether it can be used.
//!
//! A driver looks for its pod only when it mounts. Until then a broken pod stays unnoticed.

use super::{DoctorRequest, Finding, installed};
use crate::inventory;
use anyhow::Result;
use flexvol_linux::errno::Errno;
use flexvol_linux::fs::directory::Directory;
use flexvol_linux::fs::listing;
use flexvol_linux::mount::mount_table;
use flexvol_linux::proc::process_table::{Process, ProcessTable};
use flexvol_linux::proc::{orphans, process};
use flexvol_model::driver::Driver;
use flexvol_model::mounter::{self, DIRECTORY, Process1};
use flexvol_model::settings::Settings;
use flexvol_node::executor::mount_pod::{self, Answer, Seen};
use flexvol_node::hints::{lacks, to_failure};
use flexvol_protocol::text::one_line;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Deadline for the answer of a pod.
const PATIENCE: Duration = Duration::from_secs(3);

/// Longest possible name of a pod, in bytes.
const LONGEST: usize = 253;

/// Fix for two mount pods of one driver.
const ONE: &str = "one mount pod a node for each driver: delete a DaemonSet, or take --plugin out of one";

/// Installed driver that can take its programs from elsewhere.
struct Served {
    /// Name of its directory.
    name: String,
    driver: &'static dyn Driver,
    settings: Settings,
}

pub(super) fn look(request: &DoctorRequest) -> Result<Vec<Finding>> {
    let (drivers, mut findings) = (served(request)?, Vec::new());
    findings.extend(drivers.iter().filter_map(of_directory));
    for root in inventory::roots(&request.kubelet_root)? {
        let directory = root.join(DIRECTORY);
        match Directory::open_of_root(&directory) {
            Ok(None) => {}
            Ok(Some(_)) => {
                findings.extend(drivers.iter().flat_map(|served| of_pod(&root, served)));
                findings.extend(unused(&directory, &drivers));
            }
            Err(error) if is_denied(&error) => {
                let evidence = format!("{} cannot be read", directory.display());
                findings.push(Finding::note("mount-pod-unseen", &evidence, "run this as root"));
            }
            Err(error) => findings.extend(not_believed(&drivers, &to_failure(error).message())),
        }
    }
    Ok(findings)
}

fn is_denied(error: &anyhow::Error) -> bool {
    error.downcast_ref() == Some(&Errno::ACCESS)
}

/// Reports whether a mount pod or a directory is to provide a driver's programs: then it is no
/// problem that the node lacks them.
pub(super) fn brings(request: &DoctorRequest, name: &str, driver: &dyn Driver, settings: &Settings) -> bool {
    let Some(said) = mounter::settings(settings).ok().filter(|_| driver.serves()) else { return false };
    let is_registered = |root: &Path| {
        let seen = mount_pod::seen(root, name, settings);
        let answers = |mut seen: Seen| !said.falls_back || seen.ask(settings, PATIENCE).is_ok();
        // Without a fallback the node's own programs are not used, also if the pod is broken.
        seen.map_or(!said.falls_back, |seen| seen.is_some_and(answers))
    };
    let roots = || inventory::roots(&request.kubelet_root).unwrap_or_default();
    said.root.is_some() || said.asks && roots().iter().any(|root| is_registered(root))
}

fn served(request: &DoctorRequest) -> Result<Vec<Served>> {
    let all = installed::all(request)?.into_iter();
    let served = all.filter_map(|installed| {
        let driver = installed.driver().filter(|driver| driver.serves())?;
        Some(Served { name: installed.name(), driver, settings: installed.settings })
    });
    Ok(served.collect())
}

impl Served {
    fn programs(&self) -> Vec<&str> {
        self.driver.programs(&self.settings)
    }

    /// Reports whether the node's own programs are used if the pod cannot be. A driver with an
    /// invalid side file mounts nothing; another check reports that.
    fn falls_back(&self) -> bool {
        mounter::settings(&self.settings).is_ok_and(|said| said.falls_back)
    }

    fn asks(&self) -> bool {
        mounter::settings(&self.settings).is_ok_and(|said| said.asks)
    }

    /// Returns an error, as nothing is mounted; a warning, if the node's own programs are used.
    fn broken(&self, id: &str, evidence: &str, fix: &str) -> Finding {
        if self.falls_back() {
            let evidence = format!("{evidence}; until then the node's own programs are used");
            return Finding::warning(id, &evidence, fix);
        }
        Finding::error(id, evidence, fix)
    }
}

/// Checks the directory of `"mounter": "chroot:DIR"`.
fn of_directory(served: &Served) -> Option<Finding> {
    let root = mounter::settings(&served.settings).ok()?.root.map(PathBuf::from)?;
    let (name, at) = (&served.name, root.display());
    match Directory::open_of_root(&root) {
        Err(error) if is_denied(&error) => None,
        Err(error) => {
            let evidence = format!("{name} takes its programs from {at}: {}", to_failure(error).message());
            Some(Finding::error("tools-root-broken", &evidence, "only root may write to that directory"))
        }
        Ok(None) => {
            let evidence = format!("{name} takes its programs from {at}, which is not there");
            let fix = "unpack an image there, or set \"mounter\": \"host\" in its side file";
            Some(Finding::error("tools-root-broken", &evidence, fix))
        }
        Ok(Some(_)) => {
            let lacking =
                served.programs().into_iter().find_map(|program| Some((program, lacks(&root, program)?)));
            let (program, fix) = lacking?;
            let evidence = format!("{name} runs {program} in {at}, which is not there");
            Some(Finding::error("tools-root-broken", &evidence, &fix))
        }
    }
}

/// Reports that all registrations are rejected: others may have written to the directory itself.
fn not_believed(drivers: &[Served], why: &str) -> Option<Finding> {
    let names: Vec<_> = drivers.iter().filter(|served| served.asks()).map(|served| &*served.name).collect();
    let evidence = format!("no mount pod is believed: {why}");
    let fix = format!("until then nothing is mounted by {}", names.join(", "));
    (!names.is_empty()).then(|| Finding::error("mount-pod-broken", &evidence, &fix))
}

fn of_pod(root: &Path, served: &Served) -> Vec<Finding> {
    let mut seen = match mount_pod::seen(root, &served.name, &served.settings) {
        Ok(None) => return Vec::new(),
        Ok(Some(seen)) => seen,
        Err(error) => {
            let file = root.join(DIRECTORY).join(format!("{}.json", served.name));
            let evidence = format!("{}: {}", file.display(), to_failure(error).message());
            let fix = "delete the file: a mount pod that runs writes its own again within 10 s";
            return vec![served.broken("mount-pod-broken", &evidence, fix)];
        }
    };
    let mut findings: Vec<_> = beside(&seen).into_iter().collect();
    match seen.ask(&served.settings, PATIENCE) {
        Ok(answer) => findings.extend(answered(root, served, &seen, &answer)),
        Err(error) => findings.push(silent(served, &seen, &to_failure(error).message())),
    }
    findings
}

fn beside(seen: &Seen) -> Option<Finding> {
    let other = seen.beside.as_ref()?;
    let evidence = format!(
        "{} names another pod than {}, which counts and is {}",
        other.display(),
        seen.file.display(),
        seen
    );
    Some(Finding::warning("mount-pod-twice", &evidence, "remove the file that is not meant"))
}

/// Reports a pod that is registered and cannot be used.
fn silent(served: &Served, seen: &Seen, why: &str) -> Finding {
    let name = &served.name;
    if let Some(uid) = seen.listener(PATIENCE).filter(|uid| *uid != seen.pod.pod_uid) {
        let evidence = format!("{name}: {seen} is registered, and pod {uid} listens");
        return served.broken("mount-pod-twice", &evidence, ONE);
    }
    let evidence = format!("the programs of {name} are to come from {seen}, which cannot be used: {why}");
    let fix = format!(
        "look at it: kubectl -n {} describe pod {}; if it is gone for good, rm {}, and the node's own programs are used",
        seen.pod.pod_namespace,
        seen.pod.pod_name,
        seen.file.display()
    );
    served.broken("mount-pod-broken", &evidence, &fix)
}

/// Checks a pod that answers: are the programs in it, and do its mounts appear on this node?
fn answered(root: &Path, served: &Served, seen: &Seen, answer: &Answer) -> Vec<Finding> {
    let name = &served.name;
    let processes = match answer {
        Answer::Process1(pid) => pid.iter().copied().collect(),
        Answer::Agent(container) => process::in_groups_of(container),
    };
    let mut findings: Vec<_> = others(root, served, seen).into_iter().collect();
    let appears: Vec<_> =
        processes.iter().filter_map(|pid| mount_table::appears_here(*pid, root).ok().flatten()).collect();
    if !appears.is_empty() && appears.iter().all(|appears| !appears) {
        let evidence = format!("what {seen} mounts for {name} below {} stays in it", root.display());
        let fix = "give that directory to its container with mountPropagation: Bidirectional";
        findings.push(Finding::error("mount-pod-private", &evidence, fix));
    }
    let lacking = |pid: u32| {
        let its = PathBuf::from(format!("/proc/{pid}/root"));
        // A process that is gone, or that we may not inspect, gives no result.
        its.exists().then(|| {
            let of = |program: &&str| Some(((*program).to_owned(), lacks(&its, program)?));
            served.programs().iter().filter_map(of).collect::<Vec<_>>()
        })
    };
    // The processes of a container share one root, or have roots of their own.
    let lacking = processes.iter().filter_map(|pid| lacking(*pid)).min_by_key(Vec::len);
    let programs = served.programs().join(", ");
    match lacking.as_deref() {
        None | Some([]) => {
            let by = if matches!(answer, Answer::Agent(_)) {
                ", by the agent and the container runtime"
            } else {
                ""
            };
            let evidence = format!("{name}: {programs} come from {seen}{by}");
            let fix = "nothing is to be done; what serves its volumes ends with that pod";
            findings.push(Finding::note("mount-pod", &evidence, fix));
        }
        Some([(program, fix), ..]) => {
            let evidence = format!("{name} runs {program}, which is not in {seen}");
            let fix = format!("{fix} in its image, and replace the pod");
            findings.push(Finding::error("mount-pod-lacks", &evidence, &fix));
        }
    }
    findings
}

/// Finds another process 1 that is to run the programs of the same driver. Any process can have
/// such a command line, so this is a warning.
fn others(root: &Path, served: &Served, seen: &Seen) -> Option<Finding> {
    let table = ProcessTable::open(Path::new("/proc")).ok()??;
    let plugin = served.name.replacen('~', "/", 1);
    let is_one = |words: &[String], _: Option<&Path>| {
        let process_1 = Process1::of(words.iter().map(String::as_str));
        process_1.is_some_and(|it| Path::new(&it.root) == root && it.plugins.contains(&plugin))
    };
    let of_root = |process: &Process| process.identity.users == (0, 0);
    let other = table.matching(is_one).ok()?.filter(of_root).find_map(|process| {
        let variable = |name| orphans::variable(process.pid.cast_signed(), name);
        variable("POD_UID").filter(|uid| *uid != seen.pod.pod_uid)?;
        // Any process can have any text in these variables.
        let name = |key| one_line(&variable(key).unwrap_or_default(), LONGEST);
        Some(format!("{}/{} (pid {})", name("POD_NAMESPACE"), name("POD_NAME"), process.pid))
    })?;
    let evidence = format!("{}: {seen} is registered, and {other} runs for it, too", served.name);
    Some(Finding::warning("mount-pod-twice", &evidence, ONE))
}

/// Finds registrations that no driver reads: the name is wrong, or the driver uses no mount pod.
fn unused(directory: &Path, drivers: &[Served]) -> Vec<Finding> {
    let names = listing::list(directory).unwrap_or_default();
    let names =
        names.iter().filter_map(|entry| entry.name.to_str()?.strip_suffix(".json").map(str::to_owned));
    let asks = |name: &String| {
        let name = name.strip_prefix("flexvolume-").unwrap_or(name);
        drivers.iter().any(|served| served.name == name && served.asks())
    };
    names
        .filter(|name| !name.starts_with('.') && !asks(name))
        .map(|name| {
            let path = directory.join(format!("{name}.json"));
            let evidence = format!("{} is read by no driver that is installed", path.display());
            let fix = "a mount pod is for drivers whose volumes a program serves, by the name of their directory; where the side file says \"mounter\": \"host\" none is used";
            Finding::note("mount-pod-unused", &evidence, fix)
        })
        .collect()
}

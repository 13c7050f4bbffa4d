//! Volume that is mounted in the cases: from options, or from objects that kubectl applies.

use super::wrong;
use crate::cli::objects::{self, read_text, title};
use crate::objects::Secrets;
use anyhow::Result;
use clap::Args;
use flexvol_kubelet::PodVolume;
use flexvol_protocol::ordered::filled;
use flexvol_protocol::{DriverName, Options, PodRef};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Kubelet's root directory; replaced in each case.
const ROOT: &str = "/var/lib/kubelet";

/// Vendor of a driver whose directory does not name one.
const VENDOR: &str = "check.example";

/// Description of the volume.
#[derive(Args)]
#[command(next_help_heading = "Volume to mount; without one, only cases that need none are run")]
pub(super) struct VolumeArguments {
    /// flexVolume.options as a JSON object, or @FILE; keys of kubernetes.io/ are allowed
    #[arg(long, value_name = "JSON", conflicts_with = "volume")]
    options: Option<String>,
    /// flexVolume.fsType
    #[arg(long, value_name = "TYPE", requires = "options")]
    fs_type: Option<String>,
    /// YAML with the PV or the pod; may be repeated, - for standard input
    #[arg(long, value_name = "FILE")]
    volume: Vec<PathBuf>,
    /// YAML with the Secret that it names; may be repeated
    #[arg(long, value_name = "FILE", requires = "volume")]
    secret: Vec<PathBuf>,
}

impl VolumeArguments {
    /// Returns the volume; `None` if none is described.
    pub(super) fn read(&self, driver: &Path) -> Result<Option<PodVolume>> {
        if let Some(options) = &self.options {
            return self.of_options(options, driver).map(Some);
        }
        if self.volume.is_empty() {
            return Ok(None);
        }
        let objects = objects::read(self.volume.iter().chain(&self.secret))?;
        let volumes = objects.pod_volumes(Path::new(ROOT), Secrets::Wanted)?;
        choose(volumes, driver).map(Some)
    }

    fn of_options(&self, text: &str, driver: &Path) -> Result<PodVolume> {
        let json = match text.strip_prefix('@') {
            Some(file) => read_text(Path::new(file))?,
            None => text.to_owned(),
        };
        let mut options = Options::parse(json.trim())?;
        if self.fs_type.is_some() {
            options.fs_type.clone_from(&self.fs_type);
        }
        let word = |word: &str| Some(word.to_owned());
        let pod = PodRef {
            name: options.pod.name.take().or_else(|| word("check")),
            namespace: options.pod.namespace.take().or_else(|| word("default")),
            uid: None,
            service_account: options.pod.service_account.take().or_else(|| word("default")),
        };
        let name = options.volume_name.clone().unwrap_or_else(|| "data".to_owned());
        Ok(PodVolume {
            kubelet_root: ROOT.into(),
            pod_uid: String::new(),
            driver: named(driver).map_or_else(|| made_up(driver), Ok)?,
            name,
            options: Options { pod, ..options },
            capacity: None,
        })
    }
}

/// Reports whether the value of an option is a list of mount options, judged by its name.
pub(super) fn is_list(key: &str) -> bool {
    let key = key.to_lowercase();
    let rest = key.strip_prefix("mount").map_or(key.as_str(), |rest| rest.trim_start_matches(['_', '-']));
    ["options", "option", "opts", "opt"].contains(&rest)
}

/// Returns the driver name that the directory states.
fn named(driver: &Path) -> Option<DriverName> {
    let directory = driver.parent()?.file_name()?;
    let named = directory.to_string_lossy().contains('~')
        && Some(DriverName::executable_in(directory)) == driver.file_name();
    if named { DriverName::from_directory(directory).ok() } else { None }
}

/// Makes a driver name of the file name; if that is not valid, the name is `driver`.
fn made_up(driver: &Path) -> Result<DriverName> {
    let file = driver.file_name().unwrap_or_default().to_string_lossy();
    let name = DriverName::parse(&format!("{VENDOR}/{file}"));
    Ok(name.or_else(|_| DriverName::parse(&format!("{VENDOR}/driver")))?)
}

/// Returns the volume that is meant for the driver.
fn choose(volumes: Vec<PodVolume>, driver: &Path) -> Result<PodVolume> {
    let all: BTreeSet<_> = filled(volumes.iter().map(|volume| volume.driver.to_string()));
    let (several, named) = (all.len() > 1, named(driver));
    let name = driver.file_stem().unwrap_or_default();
    let is_meant = |volume: &PodVolume| match &named {
        Some(named) => volume.driver == *named,
        None => !several || OsStr::new(volume.driver.driver()) == name,
    };
    let mut meant: Vec<PodVolume> = Vec::new();
    for volume in volumes.into_iter().filter(is_meant) {
        // Pods may share a volume: any of these pods will do.
        if meant.iter().all(|other| other.name != volume.name || other.options.own != volume.options.own) {
            meant.push(volume);
        }
    }
    let all = all.into_iter().collect::<Vec<_>>().join(", ");
    match (meant.len(), meant.pop()) {
        (1, Some(volume)) => Ok(volume),
        (0, _) => {
            let name = named.map_or_else(|| name.to_string_lossy().into_owned(), |named| named.to_string());
            Err(wrong(format!(
                "the volume is of {all}, and the driver is {name}: give a volume of this driver"
            )))
        }
        (_, last) => {
            let titles: Vec<_> = meant.iter().chain(&last).map(title).collect();
            Err(wrong(format!("several volumes are meant: give a file with one of {}", titles.join(", "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(options: &str, fs_type: Option<&str>, driver: &str) -> Result<PodVolume> {
        let arguments = VolumeArguments {
            options: Some(options.to_owned()),
            fs_type: fs_type.map(str::to_owned),
            volume: Vec::new(),
            secret: Vec::new(),
        };
        arguments.of_options(options, Path::new(driver))
    }

    #[test]
    fn options_are_those_of_a_pod_s_volume() {
        let json = r#"{"kubernetes.io/readwrite":"ro","kubernetes.io/pod.name":"web","size":"1Mi"}"#;
        let volume = volume(json, Some("xfs"), "/p/example.com~nfs/nfs").unwrap();
        assert_eq!((volume.driver.to_string().as_str(), volume.name.as_str()), ("example.com/nfs", "data"));
        let call = volume.mount_call().unwrap().to_arguments().pop().unwrap().into_string().unwrap();
        for member in [
            r#""kubernetes.io/fsType":"xfs""#,
            r#""kubernetes.io/pod.name":"web""#,
            r#""kubernetes.io/pod.namespace":"default""#,
            r#""kubernetes.io/readwrite":"ro""#,
            r#""size":"1Mi""#,
        ] {
            assert!(call.contains(member), "{call}");
        }
    }

    #[test]
    fn a_driver_without_a_directory_gets_a_vendor() {
        let name = |path: &str| volume("{}", None, path).unwrap().driver.to_string();
        assert_eq!(name("/p/driver.sh"), "check.example/driver.sh");
        assert_eq!(name("/p/my driver"), "check.example/driver");
        assert_eq!(name("/p/example.com~nfs/other"), "check.example/other");
    }

    #[test]
    fn options_for_mount_are_known_by_their_name() {
        for (key, is) in [
            ("mountOptions", true),
            ("mount_options", true),
            ("opts", true),
            ("Options", true),
            ("option", true),
            ("adopts", false),
            ("mount", false),
            ("optional", false),
        ] {
            assert_eq!(is_list(key), is, "{key}");
        }
    }

    /// Returns a volume of this driver, for a pod.
    fn of(driver: &str, name: &str, pod: &str) -> PodVolume {
        let mut volume = volume("{}", None, "/p/x").unwrap();
        volume.driver = DriverName::parse(driver).unwrap();
        volume.name = name.to_owned();
        volume.options.pod.name = Some(pod.to_owned());
        volume
    }

    #[test]
    fn the_volume_of_the_driver_is_chosen() {
        let chosen = |volumes: &[PodVolume], driver: &str| match choose(volumes.to_vec(), Path::new(driver)) {
            Ok(volume) => volume.name,
            Err(error) => format!("{error:#}"),
        };
        let (nfs, cifs) = (of("example.com/nfs", "a", "p"), of("example.com/cifs", "b", "p"));
        let both = [nfs.clone(), cifs];
        assert_eq!(chosen(&both, "/p/example.com~nfs/nfs"), "a");
        assert_eq!(chosen(&both, "/src/cifs.sh"), "b", "the file's name says so");
        assert_eq!(chosen(&both[..1], "/src/driver.sh"), "a", "the only one");
        assert!(chosen(&both, "/src/driver.sh").contains("of example.com/cifs, example.com/nfs, and"));
        assert_eq!(
            chosen(&[nfs.clone(), of("example.com/nfs", "a", "q")], "/src/x"),
            "a",
            "two pods share it"
        );
        let other = of("example.com/nfs", "c", "q");
        assert!(chosen(&[nfs, other], "/src/x").contains("one of default/p a, default/q c"));
    }
}

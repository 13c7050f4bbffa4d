//! Programs of a driver: their source, and which are missing. `install` reports it and continues.

use crate::inventory;
use flexvol_model::driver::Driver;
use flexvol_model::mounter;
use flexvol_model::settings::Settings;
use flexvol_node::executor::mount_pod;
use flexvol_node::hints::{lacks, to_failure};
use flexvol_protocol::DriverName;
use std::path::{Path, PathBuf};

/// Returns one line, if there is something to report. `root` is the root of the node's file system.
pub(super) fn of(name: &DriverName, driver: &dyn Driver, settings: &Settings, root: &Path) -> Option<String> {
    let programs = driver.programs(settings);
    let said = mounter::settings(settings).ok().filter(|_| driver.serves());
    if let Some(directory) = said.and_then(|said| said.root) {
        let at = root.join(directory.trim_start_matches('/'));
        let lacking = lacking(&programs, &at)?;
        return Some(format!("{name} runs programs that are not in {directory}: {lacking}"));
    }
    if said.is_some_and(|said| said.asks)
        && let Some(line) = from_pod(name, &programs, settings, root)
    {
        return Some(line);
    }
    let lacking = lacking(&programs, root)?;
    let or = if said.is_some() { "; or let a mount pod bring them: docs/mounter.md" } else { "" };
    Some(format!("{name} runs programs for some volumes that this node lacks: {lacking}{or}"))
}

/// Reports a mount pod that has registered. A mount, and doctor, find out whether it answers.
fn from_pod(name: &DriverName, programs: &[&str], settings: &Settings, root: &Path) -> Option<String> {
    let kubelets: Vec<PathBuf> = if root == Path::new("/") {
        inventory::roots(&[]).unwrap_or_default().into_iter().collect()
    } else {
        vec![root.join(mounter::KUBELET.trim_start_matches('/'))]
    };
    kubelets.iter().find_map(|kubelet| match mount_pod::seen(kubelet, &name.directory(), settings) {
        Ok(seen) => Some(format!("{name} takes its programs ({}) from {}", programs.join(", "), seen?)),
        Err(error) => {
            let why = to_failure(error).message();
            Some(format!("a mount pod has registered for {name}, and is not believed: {why}"))
        }
    })
}

fn lacking(programs: &[&str], root: &Path) -> Option<String> {
    let lacking = programs.iter().filter_map(|program| Some((program, lacks(root, program)?)));
    let lacking: Vec<_> = lacking.map(|(program, fix)| format!("{program} ({fix})")).collect();
    (!lacking.is_empty()).then(|| lacking.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::wording_of;
    use flexvol_linux::proc::process;
    use flexvol_model::{drivers, side_file};
    use std::fs;
    use std::io::Write as _;

    fn said(driver: &str, text: &str, root: &Path) -> Option<String> {
        let settings = side_file::parse(text).unwrap();
        of(&DriverName::parse("v/d").unwrap(), drivers::find(driver).unwrap(), &settings, root)
    }

    #[test]
    fn what_the_node_lacks_is_one_line() {
        let root = tempfile::tempdir().unwrap();
        let programs = ["mkfs.xfs", "/opt/x"];
        let lacking = |programs: &[&str], root: &Path| lacking(programs, root);
        assert_eq!(
            lacking(&programs, root.path()).as_deref(),
            Some("mkfs.xfs (install xfsprogs), /opt/x (put it there)")
        );
        assert_eq!(lacking(&["sh"], Path::new("/")), None);
        assert_eq!(lacking(&[], root.path()), None);
        assert_eq!(said("tmpfs", "{}", root.path()), None);
    }

    /// Programs of this node, of a directory, of a pod, as the driver would use them.
    #[test]
    fn where_programs_come_from_is_said() {
        let root = tempfile::tempdir().unwrap();
        let said = |side_file: &str| said("s3", side_file, root.path());
        let lacks = wording_of("programs-lacking", ["v/d", "s3fs"]);
        assert!(said("{}").unwrap().starts_with(lacks));
        assert!(said("{}").unwrap().ends_with("docs/mounter.md"));
        let chroot = r#"{"mounter":"chroot:/srv/tools"}"#;
        assert!(said(chroot).unwrap().contains(wording_of("not-in-directory", ["/srv/tools"])));
        let place = root.path().join("var/lib/kubelet/plugin-containers");
        fs::create_dir_all(&place).unwrap();
        let pod = r#"{"podNamespace":"a","podName":"b","podUID":"c","containerName":"d"}"#;
        let put = |text: &str| {
            let mut file = fs::File::create(place.join("v~d.json")).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        put(pod);
        if process::own_user() != 0 {
            return println!("SKIP where_programs_come_from_is_said: needs root");
        }
        assert_eq!(
            said("{}").unwrap(),
            wording_of("takes-from-mount-pod", ["v/d", "s3fs", "mount pod a/b (container d)"])
        );
        assert!(said(r#"{"mounter":"host"}"#).unwrap().starts_with(lacks));
        assert!(said(chroot).unwrap().contains("/srv/tools"));
        put("[]");
        assert!(said("{}").unwrap().contains("no registration"));
    }
}

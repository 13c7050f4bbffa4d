//! Every name in the plugin directories, as kubelet sees it.

use super::{DoctorRequest, Finding};
use crate::plugin_dir::list::{Item, Owner, list};
use crate::plugin_dir::opened::PluginDirPath;
use crate::plugin_dir::receipt::Receipts;
use anyhow::Result;
use flexvol_kubelet::scan::{self, Failed, Stage};
use flexvol_model::paths;

pub(super) fn look(request: &DoctorRequest) -> Result<Vec<Finding>> {
    let terms = (!request.no_init).then(scan::terms);
    let mut findings = Vec::new();
    for directory in request.plugin_dirs()?.into_iter().filter(|path| path.exists()) {
        let place = PluginDirPath::new(directory);
        let items = list(&place, terms.as_ref())?;
        // Without the right to read receipts, the check sees only what is installed.
        let noted = Receipts::all(&place, paths::STATE.as_ref()).unwrap_or_default();
        let is_there = |name: &String| items.iter().any(|item| *item.directory == **name);
        findings.extend(noted.iter().filter(|name| !is_there(name)).map(|name| gone(name, &place)));
        findings.extend(items.iter().flat_map(|item| of_item(item, &place)));
    }
    Ok(findings)
}

/// Reports a driver that has a receipt and no directory. An uninstalled driver has no receipt.
fn gone(name: &str, place: &PluginDirPath) -> Finding {
    let evidence = format!("{name} was installed in {}, and was removed by hand", place.directory.display());
    Finding::warning("driver-gone", &evidence, &put_back(name, place))
}

fn put_back(name: &str, place: &PluginDirPath) -> String {
    let noted = Receipts::of(place, paths::STATE.as_ref(), name).and_then(|receipts| receipts.read());
    let is_another_s = noted.ok().flatten().is_some_and(|noted| noted.settings.is_beside_another_s());
    let (file, how) = if is_another_s {
        (" --binary FILE", ", FILE being the driver's executable")
    } else {
        ("", ", as deploy does")
    };
    format!(
        "flexvol install '{name}'{file} puts it back with the settings it had{how}; flexvol uninstall takes it away for good"
    )
}

fn of_item(item: &Item, place: &PluginDirPath) -> Vec<Finding> {
    let (name, mut findings) = (item.directory.to_string_lossy(), Vec::new());
    match (&item.finding, &item.owner) {
        (Some(scan::Finding::Failed(failed)), _) => findings.push(failed_init(&name, failed)),
        (None, Owner::Nobody(what)) => {
            findings.push(Finding::error(
                "driver-fails",
                &format!("{name}: {what}"),
                "remove it, or install a driver there",
            ));
        }
        (Some(scan::Finding::Loaded(loaded)), _) if loaded.capabilities.attach => {
            let evidence = format!("{name} attaches its volumes");
            let fix = "kube-controller-manager needs it, too, in its --flex-volume-plugin-dir; if there is nothing to attach, let init answer attach: false; pods get its volumes by PersistentVolumes, never inline";
            findings.push(Finding::note("driver-attaches", &evidence, fix));
        }
        _ => {}
    }
    match &item.owner {
        Owner::Altered(what) => {
            findings.push(Finding::warning(
                "driver-altered",
                &format!("{name}: {what}"),
                &put_back(&name, place),
            ));
        }
        Owner::Unknown(why) => {
            findings.push(Finding::warning("driver-unseen", &format!("{name}: {why}"), "run this as root"));
        }
        _ => {}
    }
    // The pods check reports a driver that is missing altogether.
    if !item.volumes.is_empty() && item.program.is_some() && item.is_unusable() {
        let evidence =
            format!("{} volumes of {name} are mounted, and kubelet cannot unmount them", item.volumes.len());
        findings.push(Finding::error(
            "driver-lost",
            &evidence,
            "put the driver back: until then their pods stay in Terminating",
        ));
    }
    findings
}

fn failed_init(name: &str, failed: &Failed) -> Finding {
    let id = match failed.stage {
        Stage::Init => "driver-fails",
        Stage::Name => "driver-name",
    };
    let fix = failed.fix.as_deref().unwrap_or("call it by hand: flexvol call DRIVER init");
    Finding::error(id, &format!("kubelet does not load {name}: {}", failed.logged), fix)
}

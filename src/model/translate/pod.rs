//! Translation of volumes in a pod, or in a pod template, for a CSI driver, and back.

use super::flex_volume::FlexVolume;
use super::original::{self, Rewrite};
use super::way::{Csi, Place, To, Way};
use super::{Reason, Translation, Warning, credential};
use crate::{drivers, profiles};
use flexvol_protocol::DriverName;
use serde_json::Value;

/// Paths of the pod in all kinds but Pod itself.
const TEMPLATES: [&str; 3] =
    ["/spec/template/spec", "/spec/jobTemplate/spec/template/spec", "/template/spec"];

/// Returns the path of the volumes, if there are any.
fn place(object: &Value) -> Option<String> {
    let is_pod = object.get("kind").and_then(Value::as_str) == Some("Pod");
    let pods = if is_pod { &["/spec"][..] } else { &TEMPLATES };
    pods.iter()
        .map(|pod| format!("{pod}/volumes"))
        .find(|path| object.pointer(path).is_some_and(Value::is_array))
}

/// Returns the names of the volumes with this source.
fn named(object: &Value, place: &str, source: &str) -> Result<Vec<String>, Reason> {
    let all = object.pointer(place).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut names = Vec::new();
    for volume in all.iter().filter(|volume| !volume[source].is_null()) {
        let name = volume["name"].as_str().unwrap_or_default();
        // These characters have a meaning in a path, and no valid name contains them.
        let is_path = name.is_empty() || name.contains(['/', '~']);
        if is_path || all.iter().filter(|other| other["name"].as_str() == Some(name)).count() != 1 {
            return Err(Reason::VolumeName);
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

pub(super) fn to_csi(object: &Value, to: To<'_>) -> Result<Option<Translation>, Reason> {
    let Some(place) = place(object) else { return Ok(None) };
    let names = named(object, &place, "flexVolume")?;
    if names.is_empty() {
        return Ok(None);
    }
    if original::is_in(object) {
        return Err(Reason::HasOriginal);
    }
    if let Some(key) = credential::in_pod(object) {
        return Err(Reason::CredentialInAnnotation(key.to_owned()));
    }
    let (mut rewrite, mut warnings) = (Rewrite::new(object.clone()), Vec::new());
    for name in names {
        let of_it = |reason| Reason::Volume(name.clone(), Box::new(reason));
        let path = format!("{place}/{name}");
        let said = match source(object, &path, to).map_err(of_it)? {
            Ok(csi) => {
                rewrite.set(&format!("{path}/flexVolume"), None);
                rewrite.set(&format!("{path}/csi"), Some(csi.source));
                csi.warnings
            }
            Err(left) => vec![left],
        };
        for warning in said {
            warnings.push(Warning::Volume(name.clone(), Box::new(warning)));
        }
    }
    let object = if rewrite.is_changed() { rewrite.finish()? } else { object.clone() };
    Ok(Some(Translation { object, warnings }))
}

/// Returns the volume, or the warning why it stays as it is.
fn source(object: &Value, path: &str, to: To<'_>) -> Result<Result<Csi, Warning>, Reason> {
    let of = |field: &str| original::at(object, &format!("{path}/{field}")).unwrap_or(&Value::Null);
    if !of("csi").is_null() {
        return Err(Reason::TwoSources);
    }
    let flex = FlexVolume::read(of("flexVolume"))?;
    let Some(way) = Way::of(&flex.driver, to) else {
        return Ok(Err(Warning::Left(flex.driver.to_string())));
    };
    if profiles::find(&flex.driver.to_string()).is_some_and(|profile| profile.attach.is_some()) {
        return Err(Reason::AttachedInline);
    }
    let mut csi = way.csi(&flex, Place::Pod)?;
    if matches!(way, Way::Served) && !is_known(&flex.driver) {
        csi.warnings.push(Warning::MayAttach);
    }
    Ok(Ok(csi))
}

/// Reports whether flexvol knows the driver.
fn is_known(driver: &DriverName) -> bool {
    let own = driver.vendor() == Some("flexvol") && drivers::find(driver.driver()).is_some();
    own || profiles::find(&driver.to_string()).is_some()
}

pub(super) fn to_flex(object: &Value) -> Result<Option<Translation>, Reason> {
    if !original::is_in(object) {
        return Ok(None);
    }
    let place = place(object).ok_or(Reason::NotCsi)?;
    let csi = named(object, &place, "csi")?;
    let path = |name: &str, field: &str| format!("{place}/{name}/{field}");
    let is_changed =
        |at: &str| csi.iter().any(|name| at == path(name, "csi") || at == path(name, "flexVolume"));
    let Some(restored) = original::restored(object, is_changed)? else { return Ok(None) };
    let mut to = To::Flexvold;
    for name in &csi {
        let is_ours = original::at(&restored, &path(name, "flexVolume")).is_some();
        if let (true, driver @ To::Driver(_)) = (is_ours, To::of(original::at(object, &path(name, "csi")))) {
            to = driver;
        }
    }
    let again = to_csi(&restored, to)?.ok_or(Reason::OriginalForeign)?;
    let csi_of = |object: &Value, name: &str| original::given(object, &path(name, "csi"));
    let mut warnings = Vec::new();
    if csi.iter().any(|name| csi_of(object, name) != csi_of(&again.object, name)) {
        warnings.push(Warning::Drift);
    }
    Ok(Some(Translation { object: restored, warnings }))
}

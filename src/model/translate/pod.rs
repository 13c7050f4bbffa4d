//! Volumes that stand in pods and in templates of pods.

use super::Translation;
use super::object::{Outcome, left, no_way};
use super::volume::{Csi, FlexVolume, Owner, is_subdomain, way};
use super::was::Change;
use super::words::Wrong;
use serde_json::{Map, Value};

/// Where a kind keeps its pod, for all kinds but Pod itself.
const TEMPLATES: [&[&str]; 3] = [
    &["spec", "template", "spec"],
    &["spec", "jobTemplate", "spec", "template", "spec"],
    &["template", "spec"],
];

/// The way to the volumes' pod, if there is one. Other kinds may use the words for anything.
pub(super) fn place(object: &Value) -> Option<&'static [&'static str]> {
    if super::object::kind(object) == "Pod" {
        return Some(&["spec"]);
    }
    let at = |path: &&&[&str]| path.iter().try_fold(object, |at, key| at.get(*key));
    TEMPLATES.iter().find(|path| at(path).is_some_and(|spec| spec.get("volumes").is_some())).copied()
}

pub(super) fn volumes<'a>(object: &'a Value, place: &[&str]) -> impl Iterator<Item = (usize, &'a Value)> {
    let spec = place.iter().try_fold(object, |at, key| at.get(*key));
    let list = spec.and_then(|spec| spec.get("volumes")).and_then(Value::as_array);
    list.into_iter().flatten().enumerate()
}

pub(super) fn translate(object: &Value, drivers: &[&str]) -> Outcome {
    let Some(place) = place(object) else { return Ok(None) };
    let has_flex = |volume: &Value| volume.get("flexVolume").is_some_and(|flex| !flex.is_null());
    let mut work = Work { change: Change::new(object), was: Map::new(), warnings: Vec::new() };
    for (index, volume) in volumes(object, place).filter(|(_, volume)| has_flex(volume)) {
        let name = volume.get("name").and_then(Value::as_str).filter(|name| is_subdomain(name));
        let Some(name) = name else {
            return Err(("a volume has no name".to_owned(), "name it".to_owned()));
        };
        let of_it = |(reason, fix): Wrong| (format!("volume {name}: {reason}"), fix);
        work.volume(place, index, name, &volume["flexVolume"], drivers).map_err(of_it)?;
    }
    work.finish(object)
}

struct Work {
    change: Change,
    was: Map<String, Value>,
    warnings: Vec<String>,
}

impl Work {
    fn volume(
        &mut self,
        place: &[&str],
        index: usize,
        name: &str,
        flex_volume: &Value,
        drivers: &[&str],
    ) -> Result<(), Wrong> {
        let flex = FlexVolume::read(flex_volume)?;
        let Some(way) = way(&flex.driver, drivers) else {
            self.warnings.push(format!("volume {name}: {}", no_way(&flex.driver.to_string())));
            return Ok(());
        };
        let Csi { source, warnings, .. } = flex.to_csi(&way, &Owner::Pod)?;
        self.warnings.extend(warnings.into_iter().map(|why| format!("volume {name}: {why}")));
        if self.was.insert(name.to_owned(), flex_volume.clone()).is_some() {
            return Err(("two volumes have its name".to_owned(), "rename one".to_owned()));
        }
        let spec = place.iter().try_fold(&mut self.change.object, |at, key| at.get_mut(*key));
        let volume = spec.and_then(|spec| spec.get_mut("volumes")?.get_mut(index)?.as_object_mut());
        if let Some(volume) = volume {
            volume.remove("flexVolume");
            if volume.insert("csi".to_owned(), source).is_some_and(|before| !before.is_null()) {
                return Err(("it has two sources".to_owned(), "remove one".to_owned()));
            }
        }
        Ok(())
    }

    fn finish(mut self, object: &Value) -> Outcome {
        if self.was.is_empty() {
            let why = self.warnings.into_iter().next();
            return Ok(why.map(|why| left(object, why)));
        }
        self.change.note("volumes", self.was.into());
        let object = self.change.finish()?;
        Ok(Some(Translation { object, warnings: self.warnings, handle: None, secrets: Vec::new() }))
    }
}

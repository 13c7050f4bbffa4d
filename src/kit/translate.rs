//! Translates FlexVolume volumes to volumes of CSI drivers, and back, in their files.
//! [`flexvol_model::translate`] translates each object.
//!
//! The module is pure: its input and its output are texts. It is all or nothing: if one object is
//! refused, the text stays as it is.

use crate::yaml::{self, Lines};
pub use flexvol_model::translate::{TARGETS, To, is_target, target_names, through};

use flexvol_model::translate::{self, Refusal, Translation};
use flexvol_protocol::failure::Failure;
use serde_json::Value;

/// Direction of a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction<'a> {
    /// To a CSI driver.
    ToCsi(To<'a>),
    /// To the original FlexVolume.
    ToFlex,
}

/// Result of a translation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Translated {
    /// Whole text; unchanged if there are refusals.
    pub text: String,
    /// Objects that were translated.
    pub objects: Vec<Object>,
    /// Objects that were refused, with line and reason.
    pub refusals: Vec<(usize, Refusal)>,
}

/// Object that was translated.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Line of the object, counted from 1.
    pub line: usize,
    /// Kind and name.
    pub title: String,
    /// New object, and information for its reader.
    pub translation: Translation,
}

/// Translates every object of a text, also those in lists. An object that is not a FlexVolume, or
/// was not one, stays as it is.
pub fn translate(text: &str, direction: Direction<'_>) -> Result<Translated, Failure> {
    let documents = yaml::parse_with_lines(text)?;
    let mut all = Translated::default();
    let after: Vec<_> =
        documents.iter().map(|(object, lines)| all.object(object, lines, direction)).collect();
    let is_changed = all.refusals.is_empty() && !all.objects.is_empty();
    all.text = if is_changed { yaml::rewrite(text, &documents, &after)? } else { text.to_owned() };
    Ok(all)
}

impl Translated {
    /// Translates an object. Returns the new object, if it differs.
    fn object(&mut self, object: &Value, lines: &Lines, direction: Direction<'_>) -> Option<Value> {
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
        if let Some(items) = object.get("items").and_then(Value::as_array).filter(|_| kind.ends_with("List"))
        {
            return self.list(object, items, lines, direction);
        }
        let done = match direction {
            Direction::ToCsi(to) => translate::to_csi(object, to),
            Direction::ToFlex => translate::to_flex(object),
        };
        match done {
            Ok(translation) => {
                let translation = translation?;
                let after = translation.object.clone();
                self.objects.push(Object {
                    line: lines.line(),
                    title: translate::title(object),
                    translation,
                });
                Some(after)
            }
            Err(refusal) => {
                self.refusals.push((lines.line(), refusal));
                None
            }
        }
    }

    fn list(
        &mut self,
        list: &Value,
        items: &[Value],
        lines: &Lines,
        direction: Direction<'_>,
    ) -> Option<Value> {
        let places = lines.member("items");
        let mut after = list.clone();
        let mut is_changed = false;
        for (index, item) in items.iter().enumerate() {
            let place = places.and_then(|places| places.entry(index)).unwrap_or(lines);
            if let Some(item) = self.object(item, place, direction) {
                after["items"][index] = item;
                is_changed = true;
            }
        }
        is_changed.then_some(after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: &str = "\
# The shop's.
kind: PersistentVolume
metadata:
  name: web            # keep
spec:
  persistentVolumeReclaimPolicy: Delete
  # where it is
  flexVolume:
    driver: fstab/cifs
    options: {networkPath: //server/share}
  capacity: {storage: 1Gi}
";

    const TO_CSI: Direction<'_> = Direction::ToCsi(To::Flexvold);

    fn translated(text: &str, direction: Direction<'_>) -> Translated {
        let done = translate(text, direction).unwrap();
        assert_eq!(done.refusals, [], "{text}");
        done
    }

    #[test]
    fn the_rest_of_a_file_stays_as_it_is() {
        let text = format!("kind: Secret\nmetadata: {{name: s}}   # untouched\n---\n{VOLUME}");
        let done = translated(&text, TO_CSI);
        assert_eq!((done.objects.len(), done.objects[0].line), (1, 5));
        for line in [
            "metadata: {name: s}   # untouched\n",
            "# The shop's.\n",
            "  name: web            # keep\n",
            "  # where it is\n  csi:\n",
            "  capacity: {storage: 1Gi}\n",
        ] {
            assert!(done.text.contains(line), "{line}: {}", done.text);
        }
        let back = translated(&done.text, Direction::ToFlex);
        assert_eq!(yaml::parse(&back.text).unwrap(), yaml::parse(&text).unwrap());
        assert!(back.text.contains("  # where it is\n  flexVolume:\n"), "{}", back.text);
    }

    #[test]
    fn a_list_is_translated_entry_by_entry() {
        let item = VOLUME.lines().skip(1).flat_map(|line| ["  ", line, "\n"]).collect::<String>();
        let list = format!("kind: List\nitems:\n- kind: Pod # a pod\n- {}", &item[2..]);
        let done = translated(&list, TO_CSI);
        assert_eq!(done.objects[0].line, 4);
        assert!(
            done.text.starts_with("kind: List\nitems:\n- kind: Pod # a pod\n- kind: PersistentVolume\n"),
            "{}",
            done.text
        );
        let json = yaml::parse(&list).unwrap()[0].to_string();
        let done = translated(&json, TO_CSI);
        let back = translated(&done.text, Direction::ToFlex);
        assert_eq!(yaml::parse(&back.text).unwrap(), yaml::parse(&list).unwrap());
    }

    #[test]
    fn it_is_all_or_nothing() {
        let wrong = VOLUME.replace("name: web", "name: ../web");
        let text = format!("{VOLUME}---\n{wrong}");
        let done = translate(&text, TO_CSI).unwrap();
        assert_eq!((done.refusals[0].0, done.refusals[0].1.reason.id(), &*done.text), (14, "name", &*text));
        let nothing = "kind: Pod # as it is\n---\n- no object\n";
        assert_eq!(translated(nothing, TO_CSI), Translated { text: nothing.into(), ..Translated::default() });
        assert!(translate("a: [", TO_CSI).is_err());
    }
}

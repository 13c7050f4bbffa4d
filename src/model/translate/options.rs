//! A volume's options by the table of its target.

use super::Becomes;
use super::words::Wrong;
use std::collections::BTreeMap;

/// What became of them.
#[derive(Default)]
pub(super) struct Applied {
    pub(super) attributes: BTreeMap<String, String>,
    pub(super) mount_options: Vec<String>,
    /// Values by the option's name in the table.
    pub(super) parts: BTreeMap<&'static str, String>,
    pub(super) warnings: Vec<String>,
}

impl Becomes {
    /// Whether this is what fills an attribute.
    pub(super) fn is_attribute(self, key: &str) -> bool {
        matches!(self, Self::Attribute(name, _) if name == key)
    }
}

/// Every option by its row; without a row there is no translation.
pub(super) fn apply(
    options: &BTreeMap<String, String>,
    table: &'static [(&'static str, Becomes)],
    any_case: bool,
) -> Result<Applied, Wrong> {
    let mut applied = Applied::default();
    for (key, value) in options {
        let exact = table.iter().find(|(name, _)| name == key);
        let loose = || table.iter().find(|(name, _)| any_case && name.eq_ignore_ascii_case(key));
        let Some((name, becomes)) = exact.or_else(loose) else {
            return Err((
                format!("option {key:?} is not known of this driver, and what it does would be lost"),
                "remove it if it does nothing, or leave out --to".to_owned(),
            ));
        };
        // Two spellings of one option: which of them a driver takes is its own affair.
        if exact.is_none() && options.contains_key(*name) {
            return Err((format!("option {name:?} is there twice"), "remove one".to_owned()));
        }
        applied.take(name, *becomes, value).map_err(|(why, fix)| (format!("option {key:?}: {why}"), fix))?;
    }
    for (name, becomes) in table {
        match becomes {
            Becomes::Part(_) if !applied.parts.contains_key(name) => {
                return Err((format!("option {name:?} is missing"), "write it".to_owned()));
            }
            Becomes::PartOr(_, otherwise) => {
                applied.parts.entry(name).or_insert_with(|| (*otherwise).to_owned());
            }
            _ => {}
        }
    }
    Ok(applied)
}

impl Applied {
    fn take(&mut self, name: &'static str, becomes: Becomes, value: &str) -> Result<(), Wrong> {
        match becomes {
            // Like one that is not there.
            _ if value.is_empty() => {}
            Becomes::Attribute(attribute, form) => {
                let value = form.read(value)?;
                let before = self.attributes.insert(attribute.to_owned(), value.clone());
                if before.is_some_and(|before| before != value) {
                    let reason = format!("another option says something else for {attribute}");
                    return Err((reason, "remove one of them".to_owned()));
                }
            }
            Becomes::Part(form) | Becomes::PartOr(form, _) => {
                self.parts.insert(name, form.read(value)?);
            }
            Becomes::MountOptions(words) => self.mount_options.extend(words.read(value, &mut self.warnings)?),
            Becomes::MountOption(option, form) => {
                self.mount_options.push(format!("{option}={}", form.read(value)?));
            }
            Becomes::Nothing(why) => self.warnings.push(format!("option {name:?} is left out: {why}")),
            Becomes::Refused(why, fix) => return Err((why.to_owned(), fix.to_owned())),
        }
        Ok(())
    }
}

/// A template with its parts; one that is not there is nothing.
pub(super) fn filled(template: &str, parts: &BTreeMap<&'static str, String>) -> String {
    let mut rest = template;
    let mut text = String::new();
    while let Some((before, after)) = rest.split_once('{') {
        text.push_str(before);
        let (name, behind) = after.split_once('}').unwrap_or((after, ""));
        text.push_str(parts.get(name).map_or("", String::as_str));
        rest = behind;
    }
    text + rest
}

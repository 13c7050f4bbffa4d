//! Translation of a volume's options by a row of the table.

use super::form::{Form, Word, Words};
use super::target::{Becomes, Target};
use super::{Reason, Warning};
use serde_json::{Map, Value};

/// Translated options.
#[derive(Default)]
pub(super) struct Applied {
    pub(super) attributes: Map<String, Value>,
    pub(super) mount_options: Vec<Value>,
    pub(super) warnings: Vec<Warning>,
    /// Values, with the option's name in the table.
    parts: Vec<(&'static str, String)>,
}

/// Translates every option by the row. An option that the row does not list is refused.
pub(super) fn apply(options: &Map<String, Value>, target: &'static Target) -> Result<Applied, Reason> {
    let mut applied = Applied::default();
    for word in target.mount_options {
        applied.mount_options.push((*word).into());
    }
    for (key, value) in options {
        let is_same = |name: &str| name == key || target.any_case && name.eq_ignore_ascii_case(key);
        let Some((name, becomes)) = target.options.iter().find(|(name, _)| is_same(name)) else {
            return Err(Reason::OptionUnknown(key.clone(), target.to));
        };
        // It is not known which of two spellings the driver takes.
        if options.keys().any(|other| other != key && is_same(other)) {
            return Err(Reason::OptionTwice(key.clone()));
        }
        applied.take(name, *becomes, value.as_str().unwrap_or_default())?;
    }
    applied.complete(target)?;
    Ok(applied)
}

impl Applied {
    /// Returns the value of a [`Becomes::Part`].
    pub(super) fn part(&self, option: &'static str) -> Result<&str, Reason> {
        let part = self.parts.iter().find(|(name, _)| *name == option);
        part.map(|(_, value)| value.as_str()).ok_or(Reason::OptionMissing(option))
    }

    fn take(&mut self, name: &'static str, becomes: Becomes, value: &str) -> Result<(), Reason> {
        // An empty value counts as absent.
        if value.is_empty() {
            return Ok(());
        }
        match becomes {
            Becomes::Attribute(attribute, form) => {
                let value = Value::from(read(name, form, value)?);
                if self.attributes.get(attribute).is_some_and(|before| *before != value) {
                    return Err(Reason::OptionTwice(name.to_owned()));
                }
                self.attributes.insert(attribute.to_owned(), value);
            }
            Becomes::Part(form) | Becomes::Option(form) | Becomes::PartOr(form, _) => {
                self.parts.push((name, read(name, form, value)?));
            }
            Becomes::MountOptions(words) => self.take_words(words, value.split(','))?,
            Becomes::Flags(words) => self.take_flags(words, value)?,
            Becomes::FlagsAttribute(attribute, words) => {
                let before = self.mount_options.len();
                self.take_flags(words, value)?;
                let flags = self.mount_options.split_off(before);
                let flags: Vec<_> = flags.iter().filter_map(Value::as_str).collect();
                self.attributes.insert(attribute.to_owned(), flags.join(" ").into());
            }
            Becomes::MountOption(option, form) => {
                self.mount_options.push(format!("{option}={}", read(name, form, value)?).into());
            }
            Becomes::Nothing(why) => self.warnings.push(Warning::Ignored(name.to_owned(), why)),
            Becomes::Refused(why, fix) => return Err(Reason::OptionRefused(name, why, fix)),
        }
        Ok(())
    }

    fn take_words<'a>(
        &mut self,
        words: &'static Words,
        list: impl Iterator<Item = &'a str>,
    ) -> Result<(), Reason> {
        for word in list.map(str::trim).filter(|word| !word.is_empty()) {
            self.take_word(words, "", word)?;
        }
        Ok(())
    }

    /// Translates a word of a list; `before` is the text that precedes it in the result.
    fn take_word(&mut self, words: &'static Words, before: &str, word: &str) -> Result<(), Reason> {
        match words.read(word) {
            Word::Kept => self.mount_options.push(format!("{before}{word}").into()),
            Word::Ignored(key, why) => self.warnings.push(Warning::Ignored(key.to_owned(), why)),
            Word::Unknown(key) => return Err(Reason::MountOption(key.to_owned())),
        }
        Ok(())
    }

    /// Translates a command line. Each word is an entry of its own; `-o` is joined with the next
    /// word.
    fn take_flags(&mut self, words: &'static Words, line: &str) -> Result<(), Reason> {
        let mut line = line.split_ascii_whitespace();
        while let Some(word) = line.next() {
            if let Some(long) = word.strip_prefix("--").filter(|long| !long.is_empty()) {
                self.take_word(words, "--", long)?;
                continue;
            }
            let list = match word.strip_prefix("-o") {
                Some("") => line.next().unwrap_or_default(),
                Some(list) => list,
                None => return Err(Reason::MountOption(word.to_owned())),
            };
            for word in list.split(',').filter(|word| !word.is_empty()) {
                self.take_word(words, "-o ", word)?;
            }
        }
        Ok(())
    }

    /// Adds defaults and composed attributes, and checks that everything required is there.
    fn complete(&mut self, target: &Target) -> Result<(), Reason> {
        for (name, becomes) in target.options {
            let is_there = self.parts.iter().any(|(part, _)| part == name);
            match becomes {
                Becomes::Part(_) if !is_there => return Err(Reason::OptionMissing(name)),
                Becomes::PartOr(_, otherwise) if !is_there => {
                    self.parts.push((name, (*otherwise).to_owned()));
                }
                _ => {}
            }
        }
        for (key, template) in target.attributes {
            let mut text = (*template).to_owned();
            for (name, value) in &self.parts {
                text = text.replace(&format!("{{{name}}}"), value);
            }
            self.attributes.insert((*key).to_owned(), text.into());
        }
        match target.needs.iter().find(|key| !self.attributes.contains_key(**key)) {
            Some(key) => Err(Reason::OptionMissing(option_of(target, key))),
            None => Ok(()),
        }
    }
}

fn read(name: &'static str, form: Form, value: &str) -> Result<String, Reason> {
    form.read(value).ok_or(Reason::OptionForm(name, form.fix()))
}

/// Returns the option that becomes the attribute.
fn option_of(target: &Target, attribute: &'static str) -> &'static str {
    let is_it = |becomes: &Becomes| matches!(becomes, Becomes::Attribute(name, _) if *name == attribute);
    target.options.iter().find(|(_, becomes)| is_it(becomes)).map_or(attribute, |(name, _)| name)
}

//! The options of a driver, declared once.
//!
//! [`options!`](crate::options!) turns a struct with doc comments into the struct, its parser, the
//! table that `flexvol explain` prints, and the hint for a mistyped key. A driver never looks at
//! raw strings.
//!
//! All drivers' options share these rules. The empty string means absent. An alias is equal to the
//! name, but both together are an error. A key with a `/` is another program's annotation and is
//! ignored. Any other unknown key is an error, because an option that is silently ignored loses
//! data.

use flexvol_protocol::failure::{Failure, Result};
use std::collections::BTreeMap;

/// Parsed options, or the reason why they cannot be parsed.
pub type Parsed<T> = Result<T>;

/// One option, as `explain` and the error texts show it.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// The key in `flexVolume.options`.
    pub name: &'static str,
    /// Other accepted spellings.
    pub aliases: &'static [&'static str],
    /// Form of the value, for people.
    pub kind: &'static str,
    /// Default as text; `None` if the doc comment describes what happens.
    pub default: Option<&'static str>,
    /// True if the type has a value for "left out"; see [`OptionSpec::required`].
    pub optional: bool,
    /// Value for the example YAML; empty if the example omits the option.
    pub example: &'static str,
    /// Checks that a value can be parsed. The error follows the option's name in a message.
    pub check: fn(&str) -> Result<(), String>,
    /// Lines of the doc comment.
    pub doc: &'static [&'static str],
}

impl OptionSpec {
    /// Reports whether a key is one of its spellings. An option whose name ends in `.*` has every
    /// key with that prefix, and its driver parses them.
    pub fn is_called(&self, key: &str) -> bool {
        let begins =
            |start: &str| key.strip_prefix(start).is_some_and(|rest| !rest.is_empty() && rest != "*");
        match self.name.strip_suffix('*').filter(|start| start.ends_with('.')) {
            Some(start) => begins(start),
            None => self.name == key || self.aliases.contains(&key),
        }
    }

    /// Reports whether it is an error to leave the option out.
    pub fn required(&self) -> bool {
        !self.optional && self.default.is_none()
    }
}

/// Key of a Secret that a driver reads.
#[derive(Clone, Copy, Debug)]
pub struct SecretSpec {
    /// Name, and other accepted spellings.
    pub keys: &'static [&'static str],
    /// Description.
    pub doc: &'static str,
    /// True if the example YAML has the key.
    pub example: bool,
}

/// Type of an option.
pub trait OptionValue: Sized {
    /// Form of a value, for people: `size`, `octal mode`, `true or false`.
    const KIND: &'static str;

    /// True if [`absent`](Self::absent) returns a value.
    const OPTIONAL: bool = false;

    /// Parses a non-empty value. The error follows the option's name in a message.
    fn parse(text: &str) -> Result<Self, String>;

    /// Returns the value of an option that was left out and has no default; `None` makes it
    /// required.
    fn absent() -> Option<Self> {
        None
    }
}

impl<T: OptionValue> OptionValue for Option<T> {
    const KIND: &'static str = T::KIND;
    const OPTIONAL: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        T::parse(text).map(Some)
    }

    fn absent() -> Option<Self> {
        Some(None)
    }
}

impl OptionValue for String {
    const KIND: &'static str = "text";

    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
}

impl OptionValue for bool {
    const KIND: &'static str = "true or false";

    /// Accepts every spelling that the older drivers accepted.
    fn parse(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Ok(true),
            "false" | "0" | "no" | "off" => Ok(false),
            _ => Err(format!("{text:?} is neither true nor false")),
        }
    }
}

impl OptionValue for u32 {
    const KIND: &'static str = "number";

    fn parse(text: &str) -> Result<Self, String> {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| digits).ok_or_else(|| format!("{text:?} is not a number below 2^32"))
    }
}

impl OptionValue for flexvol_protocol::quantity::Quantity {
    const KIND: &'static str = "size";

    fn parse(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}

/// A uid or gid. The all-ones value is refused: for chown(2) it means "leave unchanged".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id(pub u32);

impl OptionValue for Id {
    const KIND: &'static str = "numeric id";

    fn parse(text: &str) -> Result<Self, String> {
        u32::parse(text).ok().filter(|&id| id != u32::MAX).map(Self).ok_or_else(|| {
            format!(
                "{text:?} is not an id: write a number from 0 to 4294967294, names differ from node to node"
            )
        })
    }
}

/// Permission bits, written in octal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(pub u32);

impl OptionValue for Mode {
    const KIND: &'static str = "octal mode";

    fn parse(text: &str) -> Result<Self, String> {
        let octal = text.len() <= 5 && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
        u32::from_str_radix(text, 8)
            .ok()
            .filter(|&mode| octal && mode <= 0o7777)
            .map(Self)
            .ok_or_else(|| format!("{text:?} is not an octal mode such as 0750"))
    }
}

/// Finds an option by its name and its aliases. Fails if two of them are given.
pub fn find<'a>(own: &'a BTreeMap<String, String>, spec: &OptionSpec) -> Result<Option<&'a str>> {
    let given = |key: &&str| own.get(*key).is_some_and(|value| !value.is_empty());
    let mut keys = std::iter::once(&spec.name).chain(spec.aliases).copied().filter(given);
    match (keys.next(), keys.next()) {
        (Some(one), Some(two)) => {
            Err(Failure::options(format!("options {one:?} and {two:?} mean the same: keep one of them")))
        }
        (first, _) => Ok(first.and_then(|key| own.get(key)).map(String::as_str)),
    }
}

/// Returns the value of one option: the given one, else its default, else the type's absent value.
pub fn value<T: OptionValue>(own: &BTreeMap<String, String>, spec: &OptionSpec) -> Result<T> {
    match find(own, spec)?.or(spec.default) {
        Some(text) => without_nul(text).and_then(T::parse).map_err(|why| malformed(spec, &why)),
        None => T::absent().ok_or_else(|| Failure::options(missing(spec.name, spec.example))),
    }
}

/// Returns the message that an option is missing, with the name that its author would write.
pub fn missing(name: &str, example: &str) -> String {
    format!("option {name:?} is missing: add it to flexVolume.options, e.g. {name}: {example:?}")
}

/// Returns the option that is missing according to such a message.
pub fn missing_in(message: &str) -> Option<&str> {
    let (name, _) = message.strip_prefix("option \"")?.split_once("\" is missing: add it to ")?;
    Some(name)
}

/// Refuses defaults of an admin that no volume could use. Options that are left out are fine.
pub fn check_defaults(own: &BTreeMap<String, String>, specs: &[OptionSpec]) -> Result<()> {
    refuse_unknown(own, specs)?;
    specs.iter().try_for_each(|spec| match find(own, spec)? {
        None => Ok(()),
        Some(text) => without_nul(text).and_then(spec.check).map_err(|why| malformed(spec, &why)),
    })
}

/// Refuses a NUL byte in any option: no path, no argument and no mount option can contain one.
fn without_nul(text: &str) -> Result<&str, String> {
    if text.contains('\0') { Err("holds a NUL byte".into()) } else { Ok(text) }
}

fn malformed(spec: &OptionSpec, why: &str) -> Failure {
    Failure::options(format!("option {:?}: {why}", spec.name))
}

/// Refuses keys that no option has. The error suggests the nearest option.
pub fn refuse_unknown(own: &BTreeMap<String, String>, specs: &[OptionSpec]) -> Result<()> {
    let mut unknown = own.keys().filter_map(|key| Some((key, complaint(key, specs)?)));
    match unknown.next() {
        Some((key, why)) => Err(Failure::options(format!("unknown option {key:?}: {why}"))),
        None => Ok(()),
    }
}

/// Returns the hint for a key that no option has; `None` for any other key.
pub fn complaint(key: &str, specs: &[OptionSpec]) -> Option<String> {
    let known = specs.iter().any(|spec| spec.is_called(key));
    let ours = !key.is_empty() && !key.contains('/');
    (ours && !known).then(|| hint(key, specs))
}

fn hint(key: &str, specs: &[OptionSpec]) -> String {
    let names = || specs.iter().flat_map(|spec| std::iter::once(&spec.name).chain(spec.aliases)).copied();
    did_you_mean(key, names()).map_or_else(
        || format!("this driver has {}", specs.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", ")),
        |near| format!("did you mean {near:?}?"),
    )
}

/// Returns the name nearest to the typed text; `None` if none is near.
pub fn did_you_mean<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let typed = typed.to_lowercase();
    let score = |name: &&str| strsim::jaro_winkler(&typed, &name.to_lowercase());
    names
        .map(|name| (score(&name), name))
        .filter(|(score, _)| *score > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// Declares the options of a driver. See [`crate::drivers::tmpfs`] for a real one.
///
/// ```
/// flexvol_model::options! {
///     /// Options of a PV for this driver.
///     pub struct ShareOptions {
///         /// Where the data is.
///         server: String = "server" { example: "files.example.com" },
///         /// Port to connect to.
///         port: u32 = "port" { default: "2049" },
///         /// Path below the export.
///         path: Option<String> = "path" { aliases: ["share"] },
///     }
/// }
/// let own = [("server".to_owned(), "a".to_owned()), ("share".to_owned(), "b".to_owned())].into();
/// let options = ShareOptions::parse(&own).unwrap();
/// assert_eq!((options.port, options.path.as_deref()), (2049, Some("b")));
/// assert!(ShareOptions::parse(&[("sevrer".to_owned(), "a".to_owned())].into()).unwrap_err().message().contains("did you mean \"server\""));
/// ```
#[macro_export]
macro_rules! options {
    (@aliases) => { &[] };
    (@aliases aliases: [$($alias:literal),*] $(, $($rest:tt)*)?) => { &[$($alias),*] };
    (@aliases $other:ident: $value:tt $(, $($rest:tt)*)?) => { $crate::options!(@aliases $($($rest)*)?) };
    (@default) => { None };
    (@default default: $text:literal $(, $($rest:tt)*)?) => { Some($text) };
    (@default $other:ident: $value:tt $(, $($rest:tt)*)?) => { $crate::options!(@default $($($rest)*)?) };
    (@example) => { "" };
    (@example example: $text:literal $(, $($rest:tt)*)?) => { $text };
    (@example $other:ident: $value:tt $(, $($rest:tt)*)?) => { $crate::options!(@example $($($rest)*)?) };
    ($(#[$outer:meta])* $visibility:vis struct $name:ident {
        $($(#[doc = $doc:literal])* $field:ident: $type:ty = $key:literal { $($attributes:tt)* },)*
    }) => {
        $(#[$outer])*
        #[derive(Clone, Debug)]
        $visibility struct $name { $($(#[doc = $doc])* pub $field: $type,)* }

        impl $name {
            /// Table for the parser, `explain` and the hints.
            $visibility const SPECS: &'static [$crate::schema::OptionSpec] = &[$($crate::schema::OptionSpec {
                name: $key,
                aliases: $crate::options!(@aliases $($attributes)*),
                kind: <$type as $crate::schema::OptionValue>::KIND,
                default: $crate::options!(@default $($attributes)*),
                optional: <$type as $crate::schema::OptionValue>::OPTIONAL,
                example: $crate::options!(@example $($attributes)*),
                check: |text| <$type as $crate::schema::OptionValue>::parse(text).map(drop),
                doc: &[$($doc),*],
            }),*];

            /// Parses the options, or reports which one is wrong and how to fix it.
            $visibility fn parse(own: &std::collections::BTreeMap<String, String>) -> $crate::schema::Parsed<Self> {
                $crate::schema::refuse_unknown(own, Self::SPECS)?;
                let mut specs = Self::SPECS.iter();
                Ok(Self { $($field: $crate::schema::value(own, specs.next().unwrap_or(&Self::SPECS[0]))?,)* })
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::{wording, wording_of};

    crate::options! {
        /// For the tests.
        struct Sample {
            /// First.
            size: Option<flexvol_protocol::quantity::Quantity> = "size" {},
            /// Second.
            source: String = "source" { aliases: ["path", "hostPath"], example: "/srv/a" },
            /// Third.
            mode: Mode = "mode" { default: "0755" },
        }
    }

    fn own(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn error(pairs: &[(&str, &str)]) -> String {
        Sample::parse(&own(pairs)).unwrap_err().message()
    }

    #[test]
    fn reads_names_aliases_and_defaults() {
        let sample =
            Sample::parse(&own(&[("path", "/a"), ("size", ""), ("example.com/owner", "me"), ("", "x")]))
                .unwrap();
        assert_eq!((sample.source.as_str(), sample.mode, sample.size), ("/a", Mode(0o755), None));
    }

    #[test]
    fn defaults_are_checked_and_may_be_left_out() {
        let check = |pairs: &[(&str, &str)]| check_defaults(&own(pairs), Sample::SPECS);
        assert!(check(&[]).is_ok(), "what is required, a volume may say");
        assert!(check(&[("size", "1Gi"), ("hostPath", "/a")]).is_ok());
        let refused = |pairs: &[(&str, &str)]| check(pairs).unwrap_err().message();
        assert!(refused(&[("sise", "1")]).contains("did you mean \"size\"?"));
        assert!(refused(&[("size", "much")]).contains("option \"size\": \"much\""));
        assert!(refused(&[("source", "a"), ("path", "b")]).contains(wording("keep-one")));
    }

    #[test]
    fn every_mistake_names_the_fix() {
        assert!(error(&[]).contains("option \"source\" is missing"));
        assert_eq!(missing_in(&error(&[])), Some("source"));
        assert_eq!(missing_in("option \"source\": is missing"), None);
        assert!(error(&[("path", "a"), ("source", "b")]).contains(wording("keep-one")));
        assert!(error(&[("source", "a"), ("sise", "1")]).contains("did you mean \"size\"?"));
        assert!(error(&[("source", "a"), ("zzz", "1")]).contains("this driver has size, source, mode"));
        assert!(error(&[("source", "a"), ("SIZE", "1")]).contains("did you mean \"size\"?"));
        assert!(
            error(&[("source", "a"), ("mode", "888")])
                .contains(wording_of("no-octal-mode", ["\"mode\"", "\"888\""]))
        );
        assert!(error(&[("source", "a\0b")]).contains("NUL"));
    }

    #[test]
    fn the_table_says_what_is_required() {
        let required: Vec<_> = Sample::SPECS.iter().map(OptionSpec::required).collect();
        assert_eq!(required, [false, true, false]);
    }
}

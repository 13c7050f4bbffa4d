//! Comma list of mount options with some words that are options of flexvol.
//!
//! In such a list the later word wins, and the list wins over the Secret if the profile's order
//! says so. A word that is an option of flexvol is removed from the list, so that each setting has
//! one place and no order can be wrong. The rest goes to flexvol's driver, which knows the allowed
//! words.

use super::Layer;
use flexvol_protocol::Options;
use flexvol_protocol::secret::Secret;

/// Options during the translation.
pub(super) struct Work<'a> {
    pub(super) options: Options,
    pub(super) notes: Vec<String>,
    /// Sources of mount options, the weakest first.
    pub(super) order: &'a [Layer],
}

/// Word and its translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub &'static str, pub To);

/// Translation of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Its value becomes the value of this option.
    Option(&'static str),
    /// Its value becomes the value of this option, and overrides the Secret's values under these
    /// keys.
    OptionNotSecret(&'static str, &'static [&'static str]),
    /// It sets this option to this value.
    Set(&'static str, &'static str),
    /// Its value becomes the secret under the first of these keys.
    Secret(&'static [&'static str]),
    /// It is replaced by this word.
    Instead(&'static str),
    /// It has no effect, because it always applies.
    Always,
    /// It has no effect.
    Nothing,
}

/// Converts shell words to a comma list: the text after each `-o`, and every other word as it is.
pub(super) fn from_shell(text: &str) -> String {
    let words = text.split_whitespace().map(|word| match word.strip_prefix("-o") {
        Some(options) => options,
        None => word,
    });
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(",")
}

/// Splits the list in `mountOptions`. An empty list stays, because it was given.
pub(super) fn take(work: &mut Work<'_>, table: &[Word]) {
    let Some(list) = work.options.own.get("mountOptions").cloned() else { return };
    let mut rest = Vec::new();
    for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        match table.iter().find(|Word(known, _)| *known == name) {
            Some(Word(_, to)) => rest.extend(give(work, *to, word, value)),
            None => rest.push(word),
        }
    }
    work.options.own.insert("mountOptions".to_owned(), rest.join(","));
}

/// Translates a word, and returns what stays in the list.
fn give<'a>(work: &mut Work<'_>, to: To, given: &'a str, value: Option<&str>) -> Option<&'a str> {
    let own = &mut work.options.own;
    match (to, value) {
        (To::Option(option) | To::OptionNotSecret(option, _), Some(value)) => {
            own.insert(option.to_owned(), value.to_owned());
            if let To::OptionNotSecret(_, keys) = to {
                forget(work, keys);
            }
        }
        (To::Secret(keys), Some(value)) => secret(work, keys, value),
        (To::Set(option, value), None) => {
            own.insert(option.to_owned(), value.to_owned());
        }
        (To::Instead(other), None) => return Some(other),
        (To::Always, None) => {}
        (To::Nothing, _) => {
            let name = given.split('=').next().unwrap_or_default();
            work.notes.push(format!("mount option {name:?} has no effect: leave it out"));
        }
        // A word without its value, or with a value that it cannot have: flexvol's driver reports
        // it.
        _ => return Some(given),
    }
    None
}

/// Stores a secret from the list, unless the Secret wins over the list.
fn secret(work: &mut Work<'_>, keys: &[&'static str], value: &str) {
    if !work.options_win() && keys.iter().any(|key| work.options.secrets.contains_key(*key)) {
        return;
    }
    forget(work, keys);
    let first = keys.first().copied().unwrap_or_default();
    work.options.secrets.insert(first.to_owned(), Secret::new(value.as_bytes().to_vec()));
    if first == "password" {
        let text =
            "a password among mount options is open to whoever reads the volume: put it into the Secret";
        work.notes.push(text.to_owned());
    }
}

fn forget(work: &mut Work<'_>, keys: &[&'static str]) {
    if work.options_win() {
        work.options.secrets.retain(|key, _| !keys.contains(&key.as_str()));
    }
}

impl Work<'_> {
    /// Reports whether the volume's options win over the Secret.
    fn options_win(&self) -> bool {
        let place = |layer| self.order.iter().position(|other| *other == layer);
        place(Layer::Options) > place(Layer::Secrets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::wording_of;
    use flexvol_protocol::Options;

    const TABLE: &[Word] = &[
        Word("uid", To::Option("uid")),
        Word("domain", To::OptionNotSecret("domain", &["domain"])),
        Word("user", To::Secret(&["username", "user"])),
        Word("pass", To::Secret(&["password"])),
        Word("guest", To::Set("guest", "true")),
        Word("strict", To::Instead("cache=strict")),
        Word("intr", To::Nothing),
        Word("allow_other", To::Always),
    ];

    const OPTIONS_WIN: &[Layer] = &[Layer::Secrets, Layer::Options];

    fn taken(json: &str, order: &[Layer]) -> (String, Vec<String>) {
        let mut work = Work { options: Options::parse(json).unwrap(), notes: Vec::new(), order };
        take(&mut work, TABLE);
        (work.options.to_json(), work.notes)
    }

    #[test]
    fn words_go_where_they_belong_and_the_later_wins() {
        let (json, notes) =
            taken(r#"{"mountOptions":"uid=1, seal,strict,uid=2,,allow_other,guest,intr"}"#, OPTIONS_WIN);
        assert_eq!(json, r#"{"guest":"true","mountOptions":"seal,cache=strict","uid":"2"}"#);
        assert_eq!(notes, [wording_of("mount-option-ignored", ["intr"])]);
        assert_eq!(taken(r#"{"mountOptions":"uid=1"}"#, OPTIONS_WIN).0, r#"{"mountOptions":"","uid":"1"}"#);
        assert_eq!(
            taken(r#"{"mountOptions":"uid,guest=1,strict=2"}"#, OPTIONS_WIN).0,
            r#"{"mountOptions":"uid,guest=1,strict=2"}"#,
            "for our driver to refuse"
        );
    }

    #[test]
    fn words_of_a_shell_are_a_list() {
        for (shell, list) in [
            ("-o gid=1000 -o uid=1000", "gid=1000,uid=1000"),
            ("-oro,noexec  --cache-timeout=120\t-o", "ro,noexec,--cache-timeout=120"),
            ("noexec,ro", "noexec,ro"),
            ("-d -s", "-d,-s"),
            (" ", ""),
        ] {
            assert_eq!(from_shell(shell), list);
            assert_eq!(from_shell(list), list, "once more changes nothing");
        }
    }

    /// `YQ==` is a, `Yg==` is b, `eA==` is x.
    #[test]
    fn the_list_wins_over_the_secret_where_it_did() {
        let json = r#"{"kubernetes.io/secret/domain":"eA==","kubernetes.io/secret/user":"eA==","mountOptions":"user=a,pass=b,domain=d"}"#;
        let (after, notes) = taken(json, OPTIONS_WIN);
        assert_eq!(
            after,
            r#"{"domain":"d","kubernetes.io/secret/password":"Yg==","kubernetes.io/secret/username":"YQ==","mountOptions":""}"#
        );
        assert!(notes[0].starts_with("a password") && !notes[0].contains("=b"), "{notes:?}");
        let (after, _) = taken(json, &[Layer::Options, Layer::Secrets]);
        assert!(
            after.contains(r#""kubernetes.io/secret/user":"eA==""#) && !after.contains("YQ=="),
            "{after}"
        );
    }
}

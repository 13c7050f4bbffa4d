//! Words of a command and their placeholders.

use super::Values;
use crate::plan::Word;
use crate::settings::SIDE_FILE;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::{Argument, Verb};

/// Part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Value { name: String, optional: bool },
}

const SECRET: &str = "secret.";

/// Checks that `verb` can have a value for every placeholder; an optional one is just dropped.
pub(super) fn check(verb: Verb, words: &[String]) -> Result<()> {
    let complain = |why: String| Failure::options(format!("{SIDE_FILE}: exec.commands.{verb}: {why}"));
    for word in words {
        let parts = parse(word).map_err(complain)?;
        let last = parts.len().saturating_sub(1);
        for (index, part) in parts.iter().enumerate() {
            let Part::Value { name, optional } = part else { continue };
            if !optional && !is_available(verb, name) {
                return Err(complain(format!("{verb} has no {{{name}}}")));
            }
            if name.starts_with(SECRET) && index != last {
                return Err(complain(format!("{{{name}}} must be the end of its argument")));
            }
        }
    }
    Ok(())
}

/// Checks the template for the name of a volume: it may use options only, which every verb has.
pub(super) fn check_identity(word: &str) -> Result<()> {
    let complain = |why: String| Failure::options(format!("{SIDE_FILE}: exec.identity: {why}"));
    for part in parse(word).map_err(complain)? {
        let Part::Value { name, .. } = part else { continue };
        if !name.starts_with("option.") {
            return Err(complain(format!("{{{name}}} does not name the volume: use {{option.NAME}}")));
        }
    }
    Ok(())
}

/// Returns the words of one call; an optional placeholder without a value drops its word.
pub(super) fn fill(words: &[String], values: &Values<'_>) -> Result<Vec<Word>> {
    words.iter().filter_map(|word| fill_word(word, values).transpose()).collect()
}

pub(super) fn fill_word(word: &str, values: &Values<'_>) -> Result<Option<Word>> {
    let mut filled = String::new();
    for part in parse(word).map_err(Failure::options)? {
        let (name, optional) = match part {
            Part::Text(text) => {
                filled.push_str(&text);
                continue;
            }
            Part::Value { name, optional } => (name, optional),
        };
        if let Some(key) = name.strip_prefix(SECRET).filter(|key| values.has_secret(key)) {
            return Ok(Some(Word::Secret { before: without_nul(filled)?, key: key.into() }));
        }
        match values.value(&name) {
            Some(value) if filled.is_empty() && value.starts_with('-') => {
                return Err(Failure::options(format!("the value of {{{name}}} must not begin with \"-\"")));
            }
            Some(value) => filled.push_str(value),
            None if optional => return Ok(None),
            None => return Err(missing(&name)),
        }
    }
    without_nul(filled).map(Word::Text).map(Some)
}

fn without_nul(text: String) -> Result<String> {
    if text.contains('\0') {
        return Err(Failure::options("an option holds a NUL byte: no command can be given one"));
    }
    Ok(text)
}

/// Splits a word into its parts. `{{` and `}}` are one brace; a single brace stands for itself.
fn parse(word: &str) -> Result<Vec<Part>, String> {
    let (mut parts, mut text, mut rest) = (Vec::new(), String::new(), word);
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(at);
        text.push_str(before);
        let doubled = ["{{", "}}"].iter().any(|brace| from.starts_with(brace));
        let name = from.strip_prefix('{').filter(|_| !doubled).and_then(|from| from.split_once('}'));
        rest = if let Some((name, after)) = name {
            parts.extend((!text.is_empty()).then(|| Part::Text(std::mem::take(&mut text))));
            parts.push(value(name)?);
            after
        } else {
            text.push_str(&from[..1]);
            &from[if doubled { 2 } else { 1 }..]
        };
    }
    text.push_str(rest);
    parts.extend((!text.is_empty()).then_some(Part::Text(text)));
    Ok(parts)
}

fn value(name: &str) -> Result<Part, String> {
    let (name, optional) = name.strip_suffix('?').map_or((name, false), |name| (name, true));
    let known = Verb::ALL.into_iter().any(|verb| is_available(verb, name));
    if !known {
        return Err(format!("exec knows no placeholder {{{name}}}: write {{{{ for a brace"));
    }
    Ok(Part::Value { name: name.into(), optional })
}

/// Reports whether kubelet ever sends `verb` with such a value.
fn is_available(verb: Verb, name: &str) -> bool {
    let has = |argument: Argument| verb.spec().arguments.contains(&argument);
    match name {
        "target" => has(Argument::Target),
        "device" => has(Argument::Device),
        "node" => has(Argument::Node),
        "newBytes" => has(Argument::NewBytes),
        "oldBytes" => has(Argument::OldBytes),
        "volume" => has(Argument::Volume) || has(Argument::Options),
        "fsType" | "access" => has(Argument::Options),
        "fsGroup" | "pod.name" | "pod.namespace" | "pod.uid" | "serviceAccount" => verb == Verb::Mount,
        name => match name.split_once('.') {
            Some(("option", key)) => !key.is_empty() && has(Argument::Options),
            Some(("secret", key)) => !key.is_empty() && verb == Verb::Mount,
            _ => false,
        },
    }
}

fn missing(name: &str) -> Failure {
    match name.split_once('.') {
        Some(("option", key)) => {
            Failure::options(format!("option {key:?} is missing: add it to flexVolume.options"))
        }
        Some(("secret", key)) => Failure::options(format!(
            "secret key {key:?} is missing: add it to the Secret, and check secretRef and that its type is the driver's name"
        )),
        _ => Failure::options(format!("this call has no {{{name}}}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::{wording, wording_of};
    use flexvol_protocol::Options;

    fn options(json: &str) -> Options {
        Options::parse(json).unwrap()
    }

    fn filled(word: &str, json: &str) -> Result<Option<Word>> {
        let options = options(json);
        fill_word(word, &Values::default().set("target", "/t").options(&options))
    }

    fn text(word: &str, json: &str) -> Option<String> {
        match filled(word, json).unwrap_or_else(|failure| panic!("{word}: {failure}")) {
            Some(Word::Text(text)) => Some(text),
            None => None,
            word => panic!("{word:?}"),
        }
    }

    const GIVEN: &str = r#"{"a":"1","b":"{target}","c":"","d":"-x","e":"=-x","kubernetes.io/pvOrVolumeName":"v","kubernetes.io/secret/k":"aHVudGVyMg==","kubernetes.io/secret/a.b":""}"#;

    #[test]
    fn words_without_placeholders_stay() {
        for word in ["", "plain", "}", "a}b", "{", "a{b", "$1", "-x", "ü", "}{"] {
            assert_eq!(text(word, GIVEN).as_deref(), Some(word));
        }
    }

    #[test]
    fn placeholders_are_filled_once() {
        for (word, expected) in [
            ("{target}", "/t"),
            ("{option.a}{option.a}", "11"),
            ("x{option.b}y", "x{target}y"),
            ("{option.a}{", "1{"),
            ("{access},{volume}", "rw,v"),
            ("--d={option.d}", "--d=-x"),
            ("{option.a}{option.d}", "1-x"),
            ("{option.e}", "=-x"),
            ("{option.b?}", "{target}"),
        ] {
            assert_eq!(text(word, GIVEN).as_deref(), Some(expected), "{word}");
        }
    }

    #[test]
    fn an_optional_one_without_value_drops_its_argument() {
        for word in
            ["{option.c?}", "--c={option.c?}", "{option.none?}", "{fsGroup?}", "{device?}", "{secret.none?}"]
        {
            assert_eq!(filled(word, GIVEN), Ok(None), "{word}");
        }
        assert_eq!(filled("{option.none?}{secret.k}", GIVEN), Ok(None));
    }

    #[test]
    fn a_secret_is_the_end_of_its_argument() {
        let secret =
            |before: &str, key: &str| Ok(Some(Word::Secret { before: before.into(), key: key.into() }));
        assert_eq!(filled("{secret.k}", GIVEN), secret("", "k"));
        assert_eq!(filled("--p={option.a}:{secret.k?}", GIVEN), secret("--p=1:", "k"));
        assert_eq!(filled("{secret.a.b}", GIVEN), secret("", "a.b"));
        for word in
            ["{secret.k}x", "{secret.k}{option.a}", "{secret.k}{secret.k}", "{secret.}", "{secret.k}{{"]
        {
            assert!(check(Verb::Mount, &[word.into()]).is_err(), "{word}");
        }
        assert!(filled("{secret.none}", GIVEN).is_err());
    }

    #[test]
    fn doubled_braces_are_braces() {
        for (word, expected) in [
            ("{{target}}", "{target}"),
            ("${{x:-1}}", "${x:-1}"),
            ("{{\"a\":\"{target}\"}}", "{\"a\":\"/t\"}"),
            ("{{{target}}}", "{/t}"),
            ("{{", "{"),
        ] {
            assert_eq!(text(word, GIVEN).as_deref(), Some(expected), "{word}");
        }
    }

    #[test]
    fn what_a_verb_never_has_is_found_beforehand() {
        let error = |verb, word: &str| check(verb, &["/bin/x".into(), word.into()]).unwrap_err().message();
        assert!(error(Verb::Unmount, "{volume}").ends_with("exec.commands.unmount: unmount has no {volume}"));
        for (verb, word) in [
            (Verb::Unmount, "{option.a}"),
            (Verb::Unmount, "{secret.k}"),
            (Verb::Attach, "{target}"),
            (Verb::Attach, "{secret.k}"),
            (Verb::MountDevice, "{pod.name}"),
            (Verb::Mount, "{node}"),
            (Verb::Mount, "{taget}"),
        ] {
            assert!(error(verb, word).contains("exec.commands."), "{verb} {word}");
        }
        for (verb, word) in [
            (Verb::Mount, "{pod.uid}{fsGroup?}{option.a}{secret.k}"),
            (Verb::Unmount, "{target}{option.a?}{secret.k?}"),
            (Verb::Detach, "{volume}{node}"),
            (Verb::ExpandFs, "{device}{oldBytes}{newBytes}{target}{option.a}"),
        ] {
            assert_eq!(check(verb, &[word.into()]), Ok(()), "{verb} {word}");
        }
    }

    #[test]
    fn no_value_begins_an_argument_with_a_dash() {
        for word in ["{option.d}", "{option.d?}", "{option.d}x"] {
            assert!(
                filled(word, GIVEN).unwrap_err().message().contains(wording("begins-with-dash")),
                "{word}"
            );
        }
        assert!(filled("{option.d}{secret.k}", GIVEN).is_err());
    }

    #[test]
    fn what_is_missing_or_unknown_is_named() {
        for (word, expected) in [
            ("{option.none}", "option \"none\" is missing"),
            ("{option.}", wording_of("no-placeholder", ["option."])),
            ("{fsGroup}", wording_of("placeholder-absent", ["fsGroup"])),
            ("{}", wording_of("no-placeholder", [""])),
            ("{Target}", wording_of("no-placeholder", ["Target"])),
            ("{target }", wording_of("no-placeholder", ["target "])),
            ("{target??}", wording_of("no-placeholder", ["target?"])),
            ("{secret.none}", "secret key \"none\" is missing"),
        ] {
            let message = filled(word, GIVEN).unwrap_err().message();
            assert!(message.contains(expected), "{word}: {message}");
        }
        assert!(filled("x{option.a}", r#"{"a":"b\u0000"}"#).unwrap_err().message().contains("NUL"));
    }
}

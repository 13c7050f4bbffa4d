//! Forms that values must have before they go to another driver: tenants write them, and it is not
//! known here what a driver does with a flag, a path or a template.

use flexvol_protocol::mount_options::{self, MountFlags, Rule};

/// Limit for a value, in bytes: no valid name is longer.
const LIMIT: usize = 4096;

/// Form of a value. A value without the form is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Name or address of a machine.
    Host,
    /// The same, optionally after `http://` or `https://`.
    Endpoint,
    /// `//server/share`, optionally with a directory, with either kind of slash; without `..`.
    Share,
    /// Path without `..`; a leading slash is added.
    Path,
    /// Identifier of a storage system: letters, digits, `.`, `_` and `-`.
    Id,
    /// One of these.
    OneOf(&'static [&'static str]),
}

impl Form {
    /// Returns the fix for a value without the form.
    pub(super) fn fix(self) -> &'static str {
        match self {
            Self::Host | Self::Endpoint => "write the name or the address of a machine",
            Self::Share => "write //server/share, without .. and without ${",
            Self::Path => "write a path such as /exports/web, without .. and without ${",
            Self::Id => "write letters, digits, '.', '_' and '-', at most 128",
            Self::OneOf(_) => "write one that the driver takes",
        }
    }

    /// Returns the value for the CSI driver; `None` if it does not have the form.
    pub(super) fn read(self, value: &str) -> Option<String> {
        if value.len() > LIMIT || value.chars().any(char::is_control) {
            return None;
        }
        match self {
            Self::Host => is_host(value).then(|| value.to_owned()),
            Self::Endpoint => {
                let host = ["https://", "http://"].iter().find_map(|scheme| value.strip_prefix(scheme));
                is_host(host.unwrap_or(value)).then(|| value.to_owned())
            }
            Self::Share => share(value),
            Self::Path => path(value),
            Self::Id => is_id(value).then(|| value.to_owned()),
            Self::OneOf(words) => words.contains(&value).then(|| value.to_owned()),
        }
    }
}

/// Reports whether this is a host; `[::1]` and `192.168.0.1@tcp` are hosts, too.
fn is_host(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:[]@%".contains(&byte);
    let first = text.bytes().next();
    first.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'[') && text.bytes().all(plain)
}

/// Reports whether this is an identifier, which no driver can read as a path. Handles must be one.
fn is_id(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let first = text.bytes().next();
    first.is_some_and(|byte| byte.is_ascii_alphanumeric()) && text.bytes().all(plain) && text.len() <= 128
}

fn share(text: &str) -> Option<String> {
    let text = text.replace('\\', "/");
    let (host, rest) = text.strip_prefix("//")?.split_once('/')?;
    let rest = path(rest)?;
    (is_host(host) && rest.len() > 1).then(|| format!("//{host}{rest}"))
}

/// Returns the path with one leading slash and no trailing one. Refuses templates, because a driver
/// would fill them in.
fn path(text: &str) -> Option<String> {
    let parts: Vec<_> = text.split('/').filter(|part| !part.is_empty()).collect();
    let plain = parts.iter().all(|part| ![".", ".."].contains(part)) && !text.contains("${");
    plain.then(|| format!("/{}", parts.join("/")))
}

/// Words allowed in a comma list of mount options.
#[derive(Debug)]
pub struct Words {
    /// Allowed words.
    pub allowed: &'static [&'static [Rule]],
    /// Ignored words, each with the reason.
    pub ignored: &'static [(&'static str, &'static str)],
}

/// Result for a word of a list of mount options.
pub(super) enum Word<'a> {
    Kept,
    /// The word's key, and the reason why nothing is lost.
    Ignored(&'a str, &'static str),
    /// The word's key: it is not known to be safe. The value may be anything.
    Unknown(&'a str),
}

impl Words {
    pub(super) fn read<'a>(&'static self, word: &'a str) -> Word<'a> {
        let key = word.split('=').next().unwrap_or_default();
        match self.ignored.iter().find(|(name, _)| [key, word].contains(name)) {
            Some((_, why)) => Word::Ignored(key, why),
            None if self.allowed.iter().any(|rules| is_allowed(word, rules)) => Word::Kept,
            None => Word::Unknown(key),
        }
    }
}

/// Reports whether a rule allows the word. `suid` and `dev` are never allowed.
fn is_allowed(word: &str, rules: &[Rule]) -> bool {
    let parsed = mount_options::parse(word, MountFlags::DEFAULT, rules);
    !word.starts_with('-')
        && !word.chars().any(char::is_control)
        && parsed.is_ok_and(|(flags, _)| !flags.suid && !flags.dev)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_their_form_or_are_refused() {
        let is = |text: &str| Some(text.to_owned());
        assert_eq!(Form::Share.read(r"\\server\share\a b"), is("//server/share/a b"));
        assert_eq!(Form::Share.read("//s/apps$/INTERN/"), is("//s/apps$/INTERN"));
        assert_eq!(Form::Path.read("share//x/"), is("/share/x"));
        assert_eq!(Form::Path.read(""), is("/"));
        assert_eq!(Form::Host.read("[fd00::1]"), is("[fd00::1]"));
        for (form, value) in [
            (Form::Share, "//s"),
            (Form::Share, "//s/"),
            (Form::Share, "/s/x"),
            (Form::Share, "//s/x/../y"),
            (Form::Share, r"\\s\x\..\y"),
            (Form::Share, "//-s/x"),
            (Form::Share, "//s,a/x"),
            (Form::Share, "//s/${pvc.metadata.name}"),
            (Form::Path, "/a/../b"),
            (Form::Path, "/a\nb"),
            (Form::Path, &"a".repeat(5000)),
            (Form::Host, "-oProxyCommand=x"),
            (Form::Host, "a b"),
            (Form::Host, ""),
            (Form::Endpoint, "ftp://a"),
            (Form::Endpoint, "https://a/b"),
            (Form::OneOf(&["3"]), "4"),
            (Form::Id, "a/b"),
            (Form::Id, "a#b"),
            (Form::Id, "-a"),
            (Form::Id, ".."),
            (Form::Id, &"a".repeat(129)),
        ] {
            assert_eq!(form.read(value), None, "{form:?} {value:?}");
        }
    }
}

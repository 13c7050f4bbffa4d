//! Mount options on their way into `mountOptions`, word by word against a list; and what else a
//! value must look like.

use super::{Form, Split, Words};
use flexvol_protocol::mount_options::{self, MountFlags, Rule};

/// What a value is not, and what it should be.
pub(super) type Wrong = (String, String);

impl Words {
    /// The words that are kept, and a warning for each that is not.
    pub(super) fn read(&self, list: &str, warnings: &mut Vec<String>) -> Result<Vec<String>, Wrong> {
        let mut kept = Vec::new();
        for (prefix, word) in self.split.words(list)? {
            let key = word.split('=').next().unwrap_or_default();
            if let Some((_, why)) = self.ignored.iter().find(|(name, _)| [key, word].contains(name)) {
                warnings.push(format!("mount option {key:?} is left out: {why}"));
            } else if self.allowed.iter().any(|rules| is_allowed(word, rules)) {
                kept.push(format!("{prefix}{word}"));
            } else {
                // The value may be anything.
                return Err((
                    format!("mount option {key:?} is not known to be safe, or its value is not"),
                    "remove it, or leave out --to: flexvold csi hands it to the driver as it is".to_owned(),
                ));
            }
        }
        Ok(kept)
    }
}

impl Split {
    /// Each word, and what stands before it in the list of a PersistentVolume.
    fn words(self, list: &str) -> Result<Vec<(&'static str, &str)>, Wrong> {
        let parts = |text| str::split(text, ',').map(str::trim).filter(|word| !word.is_empty());
        if self == Self::Comma {
            return Ok(parts(list).map(|word| ("", word)).collect());
        }
        let (mut all, mut words) = (Vec::new(), list.split_whitespace());
        while let Some(word) = words.next() {
            match word.strip_prefix("-o") {
                Some("") => all.extend(parts(words.next().unwrap_or_default()).map(|word| ("-o ", word))),
                Some(joined) => all.extend(parts(joined).map(|word| ("-o ", word))),
                None if word.starts_with("--") => all.push(("", word)),
                None => {
                    let fix = "write -o NAME=VALUE or --name=value".to_owned();
                    return Err(("its mount options have a word that is no option".to_owned(), fix));
                }
            }
        }
        Ok(all)
    }
}

/// `suid` and `dev` are for no tenant.
fn is_allowed(word: &str, rules: &[Rule]) -> bool {
    mount_options::parse(word, MountFlags::DEFAULT, rules).is_ok_and(|(flags, _)| !flags.suid && !flags.dev)
        && !word.starts_with('-')
        || word.starts_with("--") && rules.iter().any(|rule| is_flag(word, *rule))
}

fn is_flag(word: &str, rule: Rule) -> bool {
    word.split('=').next() == Some(rule.0) && mount_options::parse(word, MountFlags::DEFAULT, &[rule]).is_ok()
}

impl Form {
    /// The value as the CSI driver shall have it.
    pub(super) fn read(self, value: &str) -> Result<String, Wrong> {
        let wrong = |fix: &str| Err(("its value is not what it must be".to_owned(), fix.to_owned()));
        let one_line = !value.chars().any(char::is_control) && value.len() <= 4096;
        match self {
            _ if !one_line => wrong("write one line of at most 4096 bytes"),
            Self::Text => Ok(value.to_owned()),
            Self::Name if is_name(value) => Ok(value.to_owned()),
            Self::Name => wrong("write letters, digits, '.', '_' and '-', a letter or digit first"),
            Self::Host if is_host(value) => Ok(value.to_owned()),
            Self::Host => wrong("write the name or the address of a machine"),
            Self::Share => share(value).map_or_else(|| wrong("write //server/share, without .. and ${"), Ok),
            Self::Path => {
                path(value).map_or_else(|| wrong("write a path like /exports/web, without .. and ${"), Ok)
            }
            Self::Url if is_url(value) => Ok(value.to_owned()),
            Self::Url => wrong("write a host, or https:// and a host"),
            Self::Number
                if !value.is_empty() && value.len() < 10 && value.bytes().all(|b| b.is_ascii_digit()) =>
            {
                Ok(value.to_owned())
            }
            Self::Number => wrong("write digits"),
            Self::OneOf(words) if words.contains(&value) => Ok(value.to_owned()),
            Self::OneOf(words) => wrong(&format!("write {}", words.join(" or "))),
        }
    }
}

fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric()) && text.bytes().all(plain)
}

/// Also `[::1]` and `192.168.0.1@tcp`.
fn is_host(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:[]@%".contains(&byte);
    text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'[')
        && text.bytes().all(plain)
}

fn is_url(text: &str) -> bool {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text);
    is_host(host.trim_end_matches('/')) && !host.contains('@')
}

/// `//server/share/directory`.
fn share(text: &str) -> Option<String> {
    let text = text.replace('\\', "/");
    let (host, rest) = text.strip_prefix("//")?.split_once('/')?;
    let rest = path(rest)?;
    (is_host(host) && rest.len() > 1).then(|| format!("//{host}{rest}"))
}

/// With one slash before it and none behind it; a template of the driver's is none.
fn path(text: &str) -> Option<String> {
    let parts: Vec<_> = text.split('/').filter(|part| !part.is_empty()).collect();
    let plain = parts.iter().all(|part| ![".", ".."].contains(part)) && !text.contains("${");
    plain.then(|| format!("/{}", parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_their_form_or_are_refused() {
        let read = |form: Form, value: &str| form.read(value).ok();
        let is = |text: &str| Some(text.to_owned());
        assert_eq!(read(Form::Share, r"\\server\share\a b"), is("//server/share/a b"));
        assert_eq!(read(Form::Share, "//s/apps$/INTERN/"), is("//s/apps$/INTERN"));
        assert_eq!(read(Form::Path, "share//x/"), is("/share/x"));
        assert_eq!(read(Form::Path, ""), is("/"));
        assert_eq!(read(Form::Url, "https://a.example/"), is("https://a.example/"));
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
            (Form::Host, "-oProxyCommand=x"),
            (Form::Host, "a b"),
            (Form::Host, ""),
            (Form::Url, "https://me:x@host"),
            (Form::Name, "--flag"),
            (Form::Name, "../x"),
            (Form::Number, "1e3"),
            (Form::Text, "a\0b"),
            (Form::OneOf(&["3"]), "4"),
        ] {
            assert_eq!(read(form, value), None, "{form:?} {value:?}");
        }
    }
}

//! Common parts of the drivers whose mounts are served by a program: values that can carry neither
//! a second option nor a second line, secrets under any of their names, owners, and the shape of
//! the plan.

use super::share;
use crate::plan::{Content, Daemon, Goal, Plan, Source, Step, View, Word};
use crate::schema::{Id, Mode, OptionValue, SecretSpec};
use crate::server;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::mount_options::{self, Atime, FsOption, MountFlags, Rule};
use flexvol_protocol::secret::Secret;
use flexvol_protocol::{Options, TargetPath};
use std::collections::BTreeMap;

/// Time for a program with nothing to write back to exit after its unmount, in seconds.
pub(super) const EXIT_WAIT: u32 = 5;

/// Time for a program that may write back, in seconds: all the time that an unmount has.
pub(super) const WRITING_BACK: u32 = 600;

/// Returns a program that serves `target`; all other fields are empty.
pub(super) fn daemon(program: &'static str, from: &str, target: &TargetPath, flags: MountFlags) -> Daemon {
    Daemon {
        program,
        from: from.to_owned(),
        servers: Vec::new(),
        words: Vec::new(),
        files: BTreeMap::new(),
        stdin: None,
        scratch: false,
        probe: Vec::new(),
        futile: "",
        log: "",
        traces: Vec::new(),
        target: target.clone(),
        flags,
    }
}

/// Returns the plan of a mount; `file_system` is the type in the mount table, or empty if it is not
/// known for sure.
pub(super) fn mount(file_system: &str, source: Source, daemon: Daemon) -> Plan {
    let file_system = (!file_system.is_empty()).then(|| file_system.into());
    let view = View { file_system, source, access: super::access(daemon.flags) };
    Plan {
        goal: Goal::Mounted { target: daemon.target.clone(), view },
        steps: vec![Step::PrepareTarget { target: daemon.target.clone() }, Step::Serve(daemon)],
    }
}

/// Returns the texts as literal words.
pub(super) fn texts<T: Into<String>>(words: impl IntoIterator<Item = T>) -> Vec<Word> {
    words.into_iter().map(|word| Word::Text(word.into())).collect()
}

/// Returns `-o key=value` for each text; none of them may hold a comma.
pub(super) fn options<T: ToString>(words: impl IntoIterator<Item = T>) -> Vec<Word> {
    texts(words.into_iter().flat_map(|word| ["-o".to_owned(), word.to_string()]))
}

/// Returns the flags as the words that libfuse knows.
pub(super) fn flag_words(flags: MountFlags) -> Vec<String> {
    let words = [
        (flags.read_only, "ro"),
        (!flags.suid, "nosuid"),
        (!flags.dev, "nodev"),
        (!flags.exec, "noexec"),
        (flags.atime == Atime::Never, "noatime"),
    ];
    words.into_iter().filter(|(set, _)| *set).map(|(_, word)| word.to_owned()).collect()
}

/// Parses `mountOptions`, and refuses what these programs cannot do.
pub(super) fn further(
    list: Option<&str>,
    options: &Options,
    rules: &[Rule],
) -> Result<(MountFlags, Vec<FsOption>)> {
    let (flags, further) = mount_options::parse(list.unwrap_or_default(), super::flags(options), rules)?;
    let common = further.iter().find(|option| ["sync", "dirsync", "lazytime"].contains(&option.key.as_str()));
    let refused = match common {
        Some(option) => Some(option.key.as_str()),
        None if flags.atime == Atime::Strict => Some("strictatime"),
        None if !flags.diratime => Some("nodiratime"),
        None => None,
    };
    match refused {
        Some(word) => {
            Err(Failure::options(format!("mountOptions: {word:?} has no meaning here: leave it out")))
        }
        None => Ok((flags, further)),
    }
}

/// Umask with an fsGroup if the kernel checks group membership: other users get no access.
pub(super) const BY_KERNEL: u32 = 0o007;

/// Umask with an fsGroup if the program checks the node's list of groups, which has no groups of
/// containers: every user of the pod gets access, and only the pod can see the volume.
pub(super) const BY_PROGRAM: u32 = 0o000;

/// Returns the owner and the mask to show, as far as given: `uid=…`, `gid=…`, `umask=…`.
/// A pod's fsGroup gets the files, and may write them; then `others` is the default mask.
pub(super) fn owner_words(
    uid: Option<Id>,
    gid: Option<Id>,
    umask: Option<Mode>,
    (options, others): (&Options, u32),
) -> Vec<String> {
    let group = options.fs_group.as_ref().map(|group| Id(group.gid));
    let umask = umask.map(|mode| mode.0).or(group.map(|_| others));
    let words = [
        uid.map(|uid| format!("uid={}", uid.0)),
        gid.or(group).map(|gid| format!("gid={}", gid.0)),
        umask.map(|umask| format!("umask={umask:04o}")),
    ];
    words.into_iter().flatten().collect()
}

/// Returns the key of `spec` that is in the Secret and not empty, with its value.
fn named<'a>(options: &'a Options, spec: &SecretSpec) -> Result<Option<(&'static str, &'a Secret)>> {
    let given = |key: &str| options.secrets.get(key).filter(|secret| !secret.expose().is_empty());
    let mut found = spec.keys.iter().filter_map(|key| Some((*key, given(key)?)));
    match (found.next(), found.next()) {
        (Some((one, _)), Some((two, _))) => {
            Err(Failure::options(format!("secret keys {one:?} and {two:?} mean the same: keep one of them")))
        }
        (first, _) => Ok(first),
    }
}

/// Returns the Secret's value under one of these keys; an empty value counts as none.
pub(super) fn secret<'a>(options: &'a Options, spec: &SecretSpec) -> Result<Option<&'a Secret>> {
    Ok(named(options, spec)?.map(|(_, secret)| secret))
}

/// Returns the same value as one line.
pub(super) fn secret_line(options: &Options, spec: &SecretSpec) -> Result<Option<Secret>> {
    let Some((key, secret)) = named(options, spec)? else { return Ok(None) };
    let line = share::one_line(key, secret)?;
    Ok((!line.expose().is_empty()).then_some(line))
}

/// Returns text as the content of a file.
pub(super) fn content(text: impl Into<String>) -> Content {
    Content::default().text(text)
}

/// Name or address of a server; an IPv6 address has brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host(pub String);

impl OptionValue for Host {
    const KIND: &'static str = "host name or address";

    fn parse(text: &str) -> Result<Self, String> {
        server::host(text).map(Self)
    }
}

/// URL of HTTP without a user. Its characters have no meaning for a program that reads options or
/// lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url(pub String);

impl OptionValue for Url {
    const KIND: &'static str = "URL";

    /// Parses a URL; without a scheme it is https.
    fn parse(text: &str) -> Result<Self, String> {
        server::of_url(text)?;
        Ok(Self(if text.contains("://") { text.to_owned() } else { format!("https://{text}") }))
    }
}

impl Url {
    /// Returns the server's name or address.
    pub fn host(&self) -> String {
        // The text was parsed before, so this cannot fail.
        server::of_url(&self.0).unwrap_or_default()
    }
}

/// Word without characters that mean something to a program that reads options, lines or quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plain(pub String);

impl OptionValue for Plain {
    const KIND: &'static str = "word";

    fn parse(text: &str) -> Result<Self, String> {
        let harmless = |c: char| c.is_alphanumeric() || "._-+@$".contains(c);
        if text.chars().all(harmless) && !text.starts_with('-') {
            return Ok(Self(text.to_owned()));
        }
        Err(format!("{text:?} must consist of letters, digits and ._-+@$, and not begin with -"))
    }
}

/// Path on a server: one line that cannot be taken for an option.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemotePath(pub String);

impl OptionValue for RemotePath {
    const KIND: &'static str = "path on the server";
    const OPTIONAL: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        if text.chars().any(char::is_control) || text.starts_with('-') {
            return Err(format!("{text:?} must be one line and not begin with -"));
        }
        Ok(Self(text.to_owned()))
    }

    fn absent() -> Option<Self> {
        Some(Self::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::wording_of;

    #[test]
    fn no_value_carries_a_second_option() {
        for text in
            ["-oProxyCommand=x", "a,b", "a b", "a\nb", "a\"b", "a'b", "[::1", "a:b", "a/b", "é", "a=b"]
        {
            assert!(Host::parse(text).is_err(), "{text}");
        }
        for text in ["-l", "a,b", "a b", "a\nb", "a\"b", "a'b", "a=b", "a:b", "a\\b", "a#"] {
            assert!(Plain::parse(text).is_err(), "{text}");
        }
        for text in ["-o", "a\nb", "a\rb", "a\0b", "a\u{85}b"] {
            assert!(RemotePath::parse(text).is_err(), "{text}");
        }
        let hosts =
            ["files.example.com", "10.0.0.1", "fe80::1", "[::1]"].map(|text| Host::parse(text).unwrap());
        assert_eq!(hosts.map(|host| host.0), ["files.example.com", "10.0.0.1", "[fe80::1]", "[::1]"]);
    }

    #[test]
    fn the_host_of_a_place() {
        let host = |text| Url::parse(text).map(|url| url.host());
        assert_eq!(host("https://dav.example.com:8443/x?y").as_deref(), Ok("dav.example.com"));
        for text in [
            "http://",
            "ftp://a",
            "http://u@a",
            "http://a b",
            "http://a,b",
            "-o",
            "http://-a",
            "http://a\"",
            "http://a#b",
        ] {
            assert!(Url::parse(text).is_err(), "{text}");
        }
        assert_eq!(Url::parse("oss.example.com").unwrap().0, "https://oss.example.com");
    }

    fn with_secret(bytes: &[u8]) -> Options {
        let secrets = [("password".to_owned(), Secret::new(bytes.to_vec()))].into();
        Options { secrets, ..Options::default() }
    }

    #[test]
    fn a_password_is_any_line() {
        let spec = |keys| SecretSpec { keys, doc: "", example: false };
        let line = |bytes: &[u8]| secret_line(&with_secret(bytes), &spec(&["passwd", "password"]));
        let odd = b"p,a\"s's $w!o\\rd \xff";
        assert_eq!(line(odd).unwrap().unwrap().expose(), odd);
        for bytes in [&b"a\r\n"[..], b"a\n\n"] {
            assert_eq!(line(bytes).unwrap().unwrap().expose(), b"a");
        }
        assert!(line(b"\n").unwrap().is_none() && line(b"").unwrap().is_none());
        for bytes in [&b"a\nb"[..], b"a\n\n\0", b"a\0b", b"a\rb"] {
            let message = line(bytes).unwrap_err().message();
            assert!(message.starts_with(wording_of("secret-one-line", ["password"])), "{message}");
        }
        let both = Options {
            secrets: ["a", "b"].map(|key| (key.to_owned(), Secret::new(b"x".to_vec()))).into(),
            ..Options::default()
        };
        assert!(secret(&both, &spec(&["a", "b"])).unwrap_err().message().contains("mean the same"));
    }
}

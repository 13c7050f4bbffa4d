//! Oddities of drivers, each a small pure function on the options.

use super::Layer;
use super::words::{self, Word};
use crate::failure::{Failure, Result};
use crate::protocol::{Access, Options};
use crate::secret::Secret;

/// What else is to be done to the options of a dialect. The keys are ours already, or theirs where we have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quirk {
    /// `file` lies below `share`, if that is given, and something must be mounted there.
    FileOnShare,
    /// Sizes as truncate(1) takes them: 1G is 2^30 bytes, 1GB is 10^9.
    TruncateSize(&'static str),
    /// Line breaks around secrets are no part of them.
    TrimSecrets,
    /// Words of `mountOptions` that are options of ours.
    Words(&'static [Word]),
    /// Who logs in to an SMB server, and how; nobody without a name if `anonymous`.
    Login {
        /// Whether a Secret may be left out without a further word.
        anonymous: bool,
    },
    /// This path begins with a slash.
    LeadingSlash(&'static str),
    /// Mount options before those of the volume, which win.
    WordsBefore(&'static str),
    /// A mount option that is there unless this key of theirs is true.
    WordUnless(&'static str, &'static str),
    /// Read-only if this key of theirs is true.
    ReadOnlyIf(&'static str),
    /// `mountOptions` of NAS drivers: by default what the version needs, and none for none.
    NasOptions,
    /// A `path` below one of these exports is a directory of the export's that is made if it is missing.
    MadeBelow(&'static [&'static str]),
    /// `source` is the directory of namespace and volume below the driver's own.
    DirectoryOfVolume,
}

/// Options under translation.
pub(super) struct Work<'a> {
    pub(super) options: Options,
    pub(super) notes: Vec<String>,
    /// The weakest first.
    pub(super) order: &'a [Layer],
}

impl Quirk {
    /// Does it.
    pub(super) fn apply(self, work: &mut Work<'_>) -> Result<()> {
        let options = &mut work.options;
        match self {
            Self::FileOnShare => file_on_share(options)?,
            Self::TruncateSize(key) => change(options, key, truncated),
            Self::TrimSecrets => trim_secrets(options),
            Self::Words(table) => words::take(work, table),
            Self::Login { anonymous } => login(work, anonymous),
            Self::LeadingSlash(key) => {
                change(options, key, |path| format!("/{}", path.trim_start_matches('/')));
            }
            Self::WordsBefore(words) => put_before(options, words),
            Self::WordUnless(option, key) => {
                if !options.own.remove(key).is_some_and(|value| is_true(&value)) {
                    put_before(options, option);
                }
            }
            Self::ReadOnlyIf(key) => {
                if options.own.remove(key).is_some_and(|value| is_true(&value)) {
                    options.access = Some(Access::ReadOnly);
                }
            }
            Self::NasOptions => nas_options(options),
            Self::MadeBelow(exports) => made_below(options, exports),
            Self::DirectoryOfVolume => directory_of_volume(work)?,
        }
        Ok(())
    }
}

fn change(options: &mut Options, key: &str, how: impl Fn(&str) -> String) {
    if let Some(value) = options.own.get_mut(key) {
        *value = how(value);
    }
}

/// Whatever is no clear no.
fn is_true(value: &str) -> bool {
    !["", "0", "false", "no", "off"].contains(&value.to_ascii_lowercase().as_str())
}

fn put_before(options: &mut Options, words: &str) {
    let given = options.own.entry("mountOptions".to_owned()).or_default();
    *given = if given.is_empty() { words.to_owned() } else { format!("{words},{given}") };
}

fn trim_secrets(options: &mut Options) {
    for secret in options.secrets.values_mut() {
        let is_break = |byte: &u8| b"\r\n".contains(byte);
        let bytes = secret.expose();
        let start = bytes.iter().position(|byte| !is_break(byte)).unwrap_or(bytes.len());
        let end = bytes.iter().rposition(|byte| !is_break(byte)).map_or(start, |last| last + 1);
        *secret = Secret::new(bytes[start..end].to_vec());
    }
}

/// The keys of a Secret that say who somebody is, in all their spellings.
const CREDENTIALS: [&str; 5] = ["username", "user", "password", "pass", "passwd"];

fn login(work: &mut Work<'_>, anonymous: bool) {
    let Work { options, notes, .. } = work;
    let sec = options.own.get("sec").cloned().unwrap_or_default();
    let today = match sec.as_str() {
        "ntlm" | "ntlmv2" => Some("ntlmssp"),
        "ntlmi" | "ntlmv2i" => Some("ntlmsspi"),
        _ => None,
    };
    if let Some(today) = today {
        notes.push(format!("sec={sec} is gone from kernels and taken for {today}: leave it out"));
        options.own.insert("sec".to_owned(), today.to_owned());
    }
    split_name(options);
    let name = ["username", "user"].into_iter().find_map(|key| options.secrets.get(key));
    let named = name.is_some_and(|name| !name.expose().trim_ascii().is_empty());
    let nobody = anonymous && !named && !sec.starts_with("krb5");
    if sec == "none" || nobody {
        options.own.insert("guest".to_owned(), "true".to_owned());
    }
    if options.own.get("guest").is_some_and(|guest| is_true(guest)) {
        options.secrets.retain(|key, _| !CREDENTIALS.contains(&key.as_str()));
    }
}

/// mount.cifs takes `DOMAIN/user` and `DOMAIN\\user` apart, and so many a Secret has it.
fn split_name(options: &mut Options) {
    let Some(key) = ["username", "user"].into_iter().find(|key| options.secrets.contains_key(*key)) else {
        return;
    };
    let name = options.secrets.get(key).map(Secret::expose).unwrap_or_default();
    let slash = [b'/', b'\\'].into_iter().find_map(|slash| name.iter().position(|byte| *byte == slash));
    let Some(slash) = slash else { return };
    let [domain, user] = [&name[..slash], &name[slash + 1..]].map(|part| Secret::new(part.to_vec()));
    options.secrets.insert(key.to_owned(), user);
    let given = ["domain", "workgroup"].into_iter().any(|key| options.secrets.contains_key(key));
    if !given && !options.own.contains_key("domain") && !domain.expose().is_empty() {
        options.secrets.insert("domain".to_owned(), domain);
    }
}

fn nas_options(options: &mut Options) {
    let third = options.own.get("version").is_none_or(|version| version.starts_with('3'));
    let needed = if third { "noresvport,nolock,tcp" } else { "noresvport" };
    let given = options.own.remove("mountOptions");
    if given.as_deref() != Some("none") {
        let words = given.unwrap_or_else(|| needed.to_owned());
        options.own.insert("mountOptions".to_owned(), words);
    }
}

fn made_below(options: &mut Options, exports: &[&str]) {
    let Some(path) = options.own.get("path").filter(|_| !options.own.contains_key("subDir")) else { return };
    let below = |export: &&str| {
        let rest = path.strip_prefix(*export)?;
        // /shared is not below /share.
        let apart = export.ends_with('/') || rest.starts_with('/');
        let rest = rest.trim_matches('/');
        (apart && !rest.is_empty()).then(|| ((*export).to_owned(), rest.to_owned()))
    };
    if exports.contains(&path.trim_end_matches('/')) {
        return;
    }
    let Some((export, rest)) = exports.iter().find_map(below) else { return };
    options.own.insert("path".to_owned(), export);
    options.own.insert("subDir".to_owned(), rest);
    options.own.entry("createSubDir".to_owned()).or_insert_with(|| "true".to_owned());
}

/// What jq makes of a key that is not there.
pub(super) fn is_null(value: &str) -> bool {
    value == "null"
}

fn file_on_share(options: &mut Options) -> Result<()> {
    let Some(share) = options.own.remove("share") else { return Ok(()) };
    let Some(file) = options.own.get_mut("file") else { return Ok(()) };
    if !share.starts_with('/') {
        return Err(Failure::options("option \"share\" must be a path from / on"));
    }
    *file = format!("{}/{}", share.trim_end_matches('/'), file.trim_start_matches('/'));
    options.own.insert("mountPoint".to_owned(), share);
    Ok(())
}

fn truncated(size: &str) -> String {
    let digits = size.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffix = &size[digits.len()..];
    let unit = match suffix.to_ascii_uppercase().as_str() {
        "K" | "KIB" => "Ki",
        "M" | "MIB" => "Mi",
        "G" | "GIB" => "Gi",
        "T" | "TIB" => "Ti",
        "KB" => "e3",
        "MB" => "M",
        "GB" => "G",
        "TB" => "T",
        // As it stands: what is wrong with it says the driver.
        _ => suffix,
    };
    format!("{digits}{unit}")
}

fn directory_of_volume(work: &mut Work<'_>) -> Result<()> {
    let options = &mut work.options;
    if ["source", "subPath"].into_iter().any(|key| options.own.remove(key).is_some()) {
        work.notes
            .push("options \"source\" and \"subPath\" have no effect: the directory is the volume's".into());
    }
    let root = if options.own.remove("file-sync").is_some() { "/srv/file-sync" } else { "/srv/local" };
    let volume = options.own.remove("pvc-name").or_else(|| options.volume_name.clone());
    let per_pod = options.own.remove("pod-local").is_some_and(|value| value != "false");
    let pod = per_pod.then(|| options.pod.name.clone().unwrap_or_default());
    let parts = [options.pod.namespace.clone(), volume].map(Option::unwrap_or_default);
    let mut source = root.to_owned();
    for part in parts.iter().chain(&pod) {
        if !is_plain_name(part) {
            return Err(Failure::options(format!(
                "{part:?} is no name of a directory: namespace, volume, option \"pvc-name\" and pod must be plain \
                 names"
            )));
        }
        source = format!("{source}/{part}");
    }
    options.own.insert("source".into(), source);
    Ok(())
}

/// One component of a path, and none that means anything else.
fn is_plain_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._,@=+-".contains(c);
    (1..=253).contains(&name.len()) && !name.starts_with(['.', '-']) && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(json: &str) -> Work<'static> {
        let options = Options::parse(json).unwrap();
        Work { options, notes: Vec::new(), order: &[] }
    }

    fn after(quirk: Quirk, json: &str) -> Result<String> {
        let mut work = work(json);
        quirk.apply(&mut work).map(|()| work.options.to_json())
    }

    #[test]
    fn a_file_lies_below_its_share() {
        let joined = |json| after(Quirk::FileOnShare, json).unwrap();
        assert_eq!(
            joined(r#"{"file":"a/b","share":"/srv/"}"#),
            r#"{"file":"/srv/a/b","mountPoint":"/srv/"}"#
        );
        assert_eq!(joined(r#"{"file":"/a","share":"/srv"}"#), r#"{"file":"/srv/a","mountPoint":"/srv"}"#);
        assert_eq!(joined(r#"{"file":"/a"}"#), r#"{"file":"/a"}"#);
        assert_eq!(joined(r#"{"share":"/srv"}"#), "{}");
        assert!(after(Quirk::FileOnShare, r#"{"file":"a","share":"srv"}"#).is_err());
    }

    #[test]
    fn sizes_are_truncate_s() {
        for (theirs, ours) in [
            ("1g", "1Gi"),
            ("1G", "1Gi"),
            ("512K", "512Ki"),
            ("512k", "512Ki"),
            ("10MB", "10M"),
            ("3kb", "3e3"),
            ("2TiB", "2Ti"),
            ("1048576", "1048576"),
            ("1x", "1x"),
            ("ä", "ä"),
            ("", ""),
        ] {
            let json = after(Quirk::TruncateSize("size"), &format!(r#"{{"size":"{theirs}"}}"#)).unwrap();
            assert_eq!(json, format!(r#"{{"size":"{ours}"}}"#));
        }
    }

    fn becomes(quirk: Quirk, json: &str, expected: &str) {
        assert_eq!(after(quirk, json).unwrap(), expected, "{quirk:?} of {json}");
    }

    #[test]
    fn exports_are_mounted_as_theirs_are() {
        let k8s = Quirk::WordUnless("noatime", "atime");
        becomes(k8s, "{}", r#"{"mountOptions":"noatime"}"#);
        becomes(k8s, r#"{"atime":"0","mountOptions":"hard"}"#, r#"{"mountOptions":"noatime,hard"}"#);
        becomes(k8s, r#"{"atime":"1"}"#, "{}");
        let read_only = Quirk::ReadOnlyIf("readonly");
        becomes(read_only, r#"{"readonly":"True"}"#, r#"{"kubernetes.io/readwrite":"ro"}"#);
        becomes(
            read_only,
            r#"{"kubernetes.io/readwrite":"ro","readonly":"false"}"#,
            r#"{"kubernetes.io/readwrite":"ro"}"#,
        );
        becomes(Quirk::LeadingSlash("path"), r#"{"path":"a/b"}"#, r#"{"path":"/a/b"}"#);
        becomes(Quirk::LeadingSlash("path"), r#"{"path":"//a"}"#, r#"{"path":"/a"}"#);
        becomes(Quirk::WordsBefore("soft"), "{}", r#"{"mountOptions":"soft"}"#);
        for (given, words) in [
            ("", r#""mountOptions":"noresvport,nolock,tcp""#),
            (r#""mountOptions":"none""#, ""),
            (r#""mountOptions":"hard""#, r#""mountOptions":"hard""#),
        ] {
            becomes(Quirk::NasOptions, &format!("{{{given}}}"), &format!("{{{words}}}"));
        }
        becomes(
            Quirk::NasOptions,
            r#"{"version":"4.0"}"#,
            r#"{"mountOptions":"noresvport","version":"4.0"}"#,
        );
    }

    #[test]
    fn directories_are_made_below_an_export() {
        for (path, base, sub) in [
            ("/k8s/a/", "/", Some("k8s/a")),
            ("/share/sub", "/share", Some("sub")),
            ("/shared", "/", Some("shared")),
            ("/share", "/share", None),
            ("/share/", "/share/", None),
            ("/", "/", None),
            ("//", "//", None),
            ("k8s", "k8s", None),
        ] {
            let sub = sub.map_or_else(String::new, |sub| format!(r#","subDir":"{sub}""#));
            let made = if sub.is_empty() { "" } else { r#""createSubDir":"true","# };
            let expected = format!(r#"{{{made}"path":"{base}"{sub}}}"#);
            becomes(Quirk::MadeBelow(&["/share", "/"]), &format!(r#"{{"path":"{path}"}}"#), &expected);
        }
        let given = r#"{"path":"/a","subDir":"b"}"#;
        becomes(Quirk::MadeBelow(&["/"]), given, given);
    }

    /// `eA==` is x, and `DQp4DQo=` is x among line breaks.
    #[test]
    fn who_logs_in_is_who_did() {
        const USER: &str = r#""kubernetes.io/secret/user":"eA==""#;
        let (forgiving, strict) = (Quirk::Login { anonymous: true }, Quirk::Login { anonymous: false });
        becomes(forgiving, "{}", r#"{"guest":"true"}"#);
        becomes(strict, "{}", "{}");
        becomes(forgiving, &format!("{{{USER}}}"), &format!("{{{USER}}}"));
        becomes(forgiving, r#"{"kubernetes.io/secret/username":"Cg=="}"#, r#"{"guest":"true"}"#);
        becomes(forgiving, r#"{"sec":"krb5i"}"#, r#"{"sec":"krb5i"}"#);
        becomes(strict, &format!(r#"{{{USER},"sec":"none"}}"#), r#"{"guest":"true","sec":"none"}"#);
        becomes(strict, &format!(r#"{{"guest":"true",{USER}}}"#), r#"{"guest":"true"}"#);
        becomes(strict, r#"{"sec":"ntlmi"}"#, r#"{"sec":"ntlmsspi"}"#);
        // RFx1 is D\u, ZC91 is d/u, RA== is D, dQ== is u.
        let split = r#"{"kubernetes.io/secret/domain":"RA==","kubernetes.io/secret/user":"dQ=="}"#;
        becomes(strict, r#"{"kubernetes.io/secret/user":"RFx1"}"#, split);
        let given = r#"{"domain":"x","kubernetes.io/secret/user":"dQ=="}"#;
        becomes(strict, r#"{"domain":"x","kubernetes.io/secret/user":"ZC91"}"#, given);
        becomes(Quirk::TrimSecrets, r#"{"kubernetes.io/secret/user":"DQp4DQo="}"#, &format!("{{{USER}}}"));
        becomes(
            Quirk::TrimSecrets,
            r#"{"kubernetes.io/secret/user":"Cg=="}"#,
            r#"{"kubernetes.io/secret/user":""}"#,
        );
    }

    #[test]
    fn each_volume_has_its_directory() {
        let source = |own: &str| {
            let json = format!(
                r#"{{{own}"kubernetes.io/pod.name":"p-1","kubernetes.io/pod.namespace":"ns","kubernetes.io/pvOrVolumeName":"v"}}"#
            );
            let mut work = work(&json);
            Quirk::DirectoryOfVolume.apply(&mut work).map(|()| work.options.own["source"].clone())
        };
        assert_eq!(source("").unwrap(), "/srv/local/ns/v");
        assert_eq!(source(r#""pvc-name":"c","file-sync":"1","#).unwrap(), "/srv/file-sync/ns/c");
        assert_eq!(source(r#""pod-local":"true","#).unwrap(), "/srv/local/ns/v/p-1");
        assert_eq!(source(r#""pod-local":"false","#).unwrap(), "/srv/local/ns/v");
        assert_eq!(source(r#""source":"/etc","subPath":"x","#).unwrap(), "/srv/local/ns/v");
        for name in ["..", "a/b", ".", "-x", "a b", "", "a\\nb", ".hidden"] {
            let own = format!(r#""pvc-name":"{name}","#);
            assert!(source(&own).is_err(), "{name}");
        }
    }
}

//! Oddities of drivers, each a small pure function on the options.

use super::words::{self, Word, Work};
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::secret::Secret;
use flexvol_protocol::{Access, Options};

/// Further change to the options of a dialect. Keys have flexvol's names already, or the other
/// driver's names if flexvol has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quirk {
    /// `file` lies below `share`, if `share` is given, and something must be mounted there.
    FileOnShare,
    /// Sizes as truncate(1) takes them: 1G is 2^30 bytes, 1GB is 10^9.
    TruncateSize(&'static str),
    /// Sizes as lvcreate(8) takes them: 1G and 1g are 2^30 bytes, 1000 is 1000 MiB.
    LvmSize(&'static str),
    /// This key has no effect, although flexvol's driver has an option of that name.
    Dropped(&'static str),
    /// Line breaks around secrets are removed.
    TrimSecrets,
    /// Words of `mountOptions` that are options of flexvol.
    Words(&'static [Word]),
    /// Login to an SMB server; as guest if the user name is missing and `anonymous` is set.
    Login {
        /// True if a Secret may be left out without any further option.
        anonymous: bool,
    },
    /// This path gets a slash at its beginning.
    LeadingSlash(&'static str),
    /// Mount options that are put before those of the volume; those of the volume win.
    WordsBefore(&'static str),
    /// Mount option that is set unless this key of the other driver is true.
    WordUnless(&'static str, &'static str),
    /// Read-only if this key of the other driver is true.
    ReadOnlyIf(&'static str),
    /// `mountOptions` of NAS drivers: by default what the version needs; `none` means no options.
    NasOptions,
    /// A `path` below one of these exports is a directory of the export, which is created if it is
    /// missing.
    MadeBelow(&'static [&'static str]),
    /// `source` is the directory of namespace and volume below the other driver's directory.
    DirectoryOfVolume,
    /// `mountOptions` hold shell words: `-o a=b --c=d`.
    ShellWords,
    /// Further mount options in this key of the other driver, separated by commas or spaces; they
    /// win.
    WordsAfter(&'static str),
    /// Each of these keys of the other driver is a mount option of that name, with its value.
    KeysAsWords(&'static [(&'static str, &'static str)]),
    /// Each of these keys of the other driver, if true, is a mount option of that name.
    KeysAsFlags(&'static [(&'static str, &'static str)]),
    /// Read-only if this key of the other driver has that value.
    ReadOnlyAs(&'static str, &'static str),
    /// This key moves to the Secret, under that key, and wins over the Secret's own value.
    KeyAsSecret(&'static str, &'static str),
    /// Without this key in the Secret, this option has that value by default.
    WithoutSecret(&'static str, &'static str, &'static str),
    /// This option is the volume's name by default.
    NameOfVolume(&'static str),
    /// This list has colons where flexvol's lists have commas.
    ColonList(&'static str),
    /// The rest of this path after the first name becomes that option.
    RestOfPath(&'static str, &'static str),
    /// This option is made of two keys of the other driver, the second below the first.
    PathOf(&'static str, [&'static str; 2]),
    /// Refusal with this message if this key of the other driver is true.
    RefusedIf(&'static str, &'static str),
    /// Refusal with this message if this option is missing.
    RefusedWithout(&'static str, &'static str),
}

impl Quirk {
    /// Reports whether the quirk separates options, mount options and secrets. The side file's
    /// options are separated before they are put under those of the volume.
    pub(super) fn takes_apart(self) -> bool {
        matches!(self, Self::Words(_) | Self::ShellWords | Self::KeyAsSecret(..))
    }

    /// Applies the quirk.
    pub(super) fn apply(self, work: &mut Work<'_>) -> Result<()> {
        let options = &mut work.options;
        match self {
            Self::FileOnShare => file_on_share(options)?,
            Self::TruncateSize(key) => change(options, key, truncated),
            Self::LvmSize(key) => change(options, key, of_lvm),
            Self::Dropped(key) => drop(options.own.remove(key)),
            Self::TrimSecrets => trim_secrets(options),
            Self::Words(table) => words::take(work, table),
            Self::Login { anonymous } => login(work, anonymous),
            Self::LeadingSlash(key) => {
                change(options, key, |path| format!("/{}", path.trim_start_matches('/')));
            }
            Self::WordsBefore(words) => put_before(options, words),
            Self::WordUnless(option, key) => {
                if !takes(options, key, is_true) {
                    put_before(options, option);
                }
            }
            Self::ReadOnlyIf(key) => read_only_if(options, key, is_true),
            Self::ReadOnlyAs(key, value) => read_only_if(options, key, |given| given == value),
            Self::NasOptions => nas_options(options),
            Self::MadeBelow(exports) => made_below(options, exports),
            Self::DirectoryOfVolume => directory_of_volume(work)?,
            Self::ShellWords => change(options, "mountOptions", words::from_shell),
            Self::WordsAfter(key) => words_after(options, key),
            Self::KeysAsWords(table) => keys_as_words(options, table),
            Self::KeysAsFlags(table) => keys_as_flags(options, table),
            Self::KeyAsSecret(key, secret) => key_as_secret(work, key, secret),
            Self::WithoutSecret(secret, option, value) => {
                if !options.secrets.contains_key(secret) {
                    options.own.entry(option.to_owned()).or_insert_with(|| value.to_owned());
                }
            }
            Self::NameOfVolume(option) => {
                if let Some(name) = options.volume_name.clone() {
                    options.own.entry(option.to_owned()).or_insert(name);
                }
            }
            Self::ColonList(key) => change(options, key, commas),
            Self::RestOfPath(path, rest) => rest_of_path(options, path, rest),
            Self::PathOf(option, keys) => path_of(options, option, keys),
            Self::RefusedIf(key, why) => refuse(takes(options, key, is_true), why)?,
            Self::RefusedWithout(option, why) => refuse(!options.own.contains_key(option), why)?,
        }
        Ok(())
    }
}

/// Removes a key of the other driver, and reports whether it was there with such a value.
fn takes(options: &mut Options, key: &str, is_so: impl Fn(&str) -> bool) -> bool {
    options.own.remove(key).is_some_and(|value| is_so(&value))
}

fn refuse(is_so: bool, why: &str) -> Result<()> {
    if is_so { Err(Failure::options(why)) } else { Ok(()) }
}

fn read_only_if(options: &mut Options, key: &str, is_so: impl Fn(&str) -> bool) {
    if takes(options, key, is_so) {
        options.access = Some(Access::ReadOnly);
    }
}

fn change(options: &mut Options, key: &str, how: impl Fn(&str) -> String) {
    if let Some(value) = options.own.get_mut(key) {
        *value = how(value);
    }
}

/// Reports whether a value is anything but a clear no.
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

/// Keys of a Secret that belong to a login, in all their spellings.
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

/// Splits `DOMAIN/user` and `DOMAIN\\user`, as mount.cifs does: many Secrets have this form.
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

/// Appends the words of a key to the words of the volume.
fn words_after(options: &mut Options, key: &str) {
    let Some(list) = options.own.remove(key) else { return };
    let given = options.own.remove("mountOptions").unwrap_or_default();
    let words = given.split(',').chain(list.split([',', ' '])).map(str::trim);
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    options.own.insert("mountOptions".to_owned(), words.join(","));
}

/// Turns keys into mount options. The value `default` leaves the choice to the program.
fn keys_as_words(options: &mut Options, table: &[(&str, &str)]) {
    for (key, word) in table {
        if let Some(value) = options.own.remove(*key).filter(|value| value != "default") {
            put_before(options, &format!("{word}={value}"));
        }
    }
}

fn keys_as_flags(options: &mut Options, table: &[(&str, &str)]) {
    for (key, word) in table {
        if takes(options, key, is_true) {
            put_before(options, word);
        }
    }
}

fn key_as_secret(work: &mut Work<'_>, key: &'static str, secret: &str) {
    let Some(value) = work.options.own.remove(key).filter(|value| !value.is_empty()) else { return };
    work.options.secrets.insert(secret.to_owned(), Secret::new(value.into_bytes()));
    work.notes.push(format!("option {key:?} is open to whoever reads the volume: put it into the Secret"));
}

/// Replaces colons with commas, except in a list that has commas, as flexvol's lists do, or IPv6
/// addresses in brackets, which have colons of their own.
fn commas(list: &str) -> String {
    if list.contains([',', '[']) { list.to_owned() } else { list.replace(':', ",") }
}

fn rest_of_path(options: &mut Options, path: &str, rest: &str) {
    let Some(whole) = options.own.get_mut(path) else { return };
    let trimmed = whole.trim_matches('/').to_owned();
    let (first, below) = trimmed.split_once('/').unwrap_or((&trimmed, ""));
    first.clone_into(whole);
    if !below.is_empty() {
        options.own.entry(rest.to_owned()).or_insert_with(|| below.to_owned());
    }
}

fn path_of(options: &mut Options, option: &str, keys: [&str; 2]) {
    let parts = keys.map(|key| options.own.remove(key).unwrap_or_default());
    let parts = parts.iter().map(|part| part.trim_matches('/')).filter(|part| !part.is_empty());
    let path = parts.collect::<Vec<_>>().join("/");
    if !path.is_empty() {
        options.own.insert(option.to_owned(), path);
    }
}

/// Reports whether the value is jq's output for a missing key.
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
        // Unchanged: the driver reports any mistake in it.
        _ => suffix,
    };
    format!("{digits}{unit}")
}

/// Converts a size of lvcreate(8): as for truncate(1), but a bare number is in MiB, and there are
/// no units of a thousand.
fn of_lvm(size: &str) -> String {
    let bare = size.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if bare && !size.is_empty() { format!("{size}Mi") } else { truncated(size) }
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

/// Reports whether a name is a single component of a path without any special meaning.
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

    #[test]
    fn sizes_are_lvm_s() {
        for (theirs, ours) in
            [("10g", "10Gi"), ("1000m", "1000Mi"), ("1.5T", "1.5Ti"), ("1000", "1000Mi"), ("", "")]
        {
            let json = format!(r#"{{"size":"{theirs}"}}"#);
            becomes(Quirk::LvmSize("size"), &json, &format!(r#"{{"size":"{ours}"}}"#));
        }
        becomes(Quirk::Dropped("size"), r#"{"size":"1g","x":"y"}"#, r#"{"x":"y"}"#);
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
    fn keys_become_words() {
        let table = Quirk::KeysAsWords(&[("a-b", "a_b"), ("c", "d")]);
        becomes(table, r#"{"a-b":"1","c":"default"}"#, r#"{"mountOptions":"a_b=1"}"#);
        becomes(
            table,
            r#"{"a-b":"1","c":"2","mountOptions":"a_b=3"}"#,
            r#"{"mountOptions":"d=2,a_b=1,a_b=3"}"#,
        );
        let flags = Quirk::KeysAsFlags(&[("a-b", "a_b"), ("c", "d")]);
        becomes(flags, r#"{"a-b":"True","c":"false"}"#, r#"{"mountOptions":"a_b"}"#);
        let after = Quirk::WordsAfter("more");
        becomes(after, r#"{"more":"x y, z","mountOptions":"a"}"#, r#"{"mountOptions":"a,x,y,z"}"#);
        becomes(after, r#"{"mountOptions":"a"}"#, r#"{"mountOptions":"a"}"#);
        becomes(Quirk::ShellWords, r#"{"mountOptions":"-o a --b=c"}"#, r#"{"mountOptions":"a,--b=c"}"#);
        let many = Quirk::ReadOnlyAs("mode", "Many");
        becomes(many, r#"{"mode":"Many"}"#, r#"{"kubernetes.io/readwrite":"ro"}"#);
        becomes(many, r#"{"mode":"Once"}"#, "{}");
    }

    /// `eA==` is x, and `eQ==` is y.
    #[test]
    fn a_key_that_was_open_is_a_secret() {
        let quirk = Quirk::KeyAsSecret("k", "key");
        becomes(quirk, r#"{"k":"x"}"#, r#"{"kubernetes.io/secret/key":"eA=="}"#);
        becomes(
            quirk,
            r#"{"k":"x","kubernetes.io/secret/key":"eQ=="}"#,
            r#"{"kubernetes.io/secret/key":"eA=="}"#,
        );
        becomes(quirk, r#"{"kubernetes.io/secret/key":"eQ=="}"#, r#"{"kubernetes.io/secret/key":"eQ=="}"#);
        let without = Quirk::WithoutSecret("key", "public", "true");
        becomes(without, "{}", r#"{"public":"true"}"#);
        becomes(without, r#"{"kubernetes.io/secret/key":"eQ=="}"#, r#"{"kubernetes.io/secret/key":"eQ=="}"#);
    }

    #[test]
    fn names_and_paths_are_put_together_and_apart() {
        let name = Quirk::NameOfVolume("path");
        becomes(
            name,
            r#"{"kubernetes.io/pvOrVolumeName":"v"}"#,
            r#"{"kubernetes.io/pvOrVolumeName":"v","path":"v"}"#,
        );
        becomes(name, r#"{"path":"/"}"#, r#"{"path":"/"}"#);
        let list = Quirk::ColonList("servers");
        becomes(list, r#"{"servers":"a:b:c"}"#, r#"{"servers":"a,b,c"}"#);
        becomes(list, r#"{"servers":"a,[::1]"}"#, r#"{"servers":"a,[::1]"}"#);
        let rest = Quirk::RestOfPath("volume", "subDir");
        becomes(rest, r#"{"volume":"/v/a/b/"}"#, r#"{"subDir":"a/b","volume":"v"}"#);
        becomes(rest, r#"{"subDir":"c","volume":"v/a"}"#, r#"{"subDir":"c","volume":"v"}"#);
        becomes(rest, r#"{"volume":"v"}"#, r#"{"volume":"v"}"#);
        let path = Quirk::PathOf("path", ["bucket", "subPath"]);
        becomes(path, r#"{"bucket":"b","subPath":"/a/b/"}"#, r#"{"path":"b/a/b"}"#);
        becomes(path, r#"{"bucket":"b"}"#, r#"{"path":"b"}"#);
        becomes(path, r#"{"path":"b"}"#, r#"{"path":"b"}"#);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let encrypted = Quirk::RefusedIf("encrypt", "why: fix");
        assert_eq!(after(encrypted, r#"{"encrypt":"yes"}"#).unwrap_err().message(), "why: fix");
        becomes(encrypted, r#"{"encrypt":"false"}"#, "{}");
        let servers = Quirk::RefusedWithout("servers", "why: fix");
        assert!(after(servers, r#"{"endpoints":"e"}"#).is_err());
        becomes(servers, r#"{"servers":"a"}"#, r#"{"servers":"a"}"#);
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

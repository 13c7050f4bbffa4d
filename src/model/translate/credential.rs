//! Options and annotations that hold a credential, found by their names. Anyone who may read a
//! volume can read it, and a translation would copy it to more places.

use serde_json::Value;

/// Ends of the names of credentials, with letters and digits only.
const ENDS: &[&str] = &[
    "accesskey",
    "accesskeyid",
    "accountkey",
    "akid",
    "aksecret",
    "apikey",
    "clientkey",
    "credential",
    "credentials",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "sas",
    "secret",
    "secretkey",
    "signature",
    "sshkey",
    "storagekey",
    "token",
    "userkey",
];
/// Words that name a credential only if they are the whole name.
const WHOLE: &[&str] = &["cred", "key", "pass", "pin", "psk", "pw", "pwd"];
/// Rook's option for the name of a Secret, which is not a credential.
const NOT_ONE: &str = "mountsecret";
/// Mappings with a tenant's words in an annotation that is an object, such as the one in which
/// kubectl keeps what was applied.
const OPTIONS: &[&str] = &["options", "volumeAttributes", "parameters", "data", "stringData"];

/// Reports whether an option holds a credential: by its name, or by its value, such as
/// `password=…` among mount options or `user:password@` in an address.
pub(super) fn is_held_by(key: &str, value: &str) -> bool {
    !value.is_empty() && (is_name(key) || holds_pair(value) || holds_login(value))
}

/// Returns the first annotation of a `PersistentVolume` that holds a credential, also inside JSON.
pub(super) fn in_volume(object: &Value) -> Option<&str> {
    annotation(object, |key, text| match serde_json::from_str(text) {
        Ok(value @ (Value::Object(_) | Value::Array(_))) => is_in(&value, false),
        _ => is_held_by(key.rsplit('/').next().unwrap_or_default(), text),
    })
}

/// Returns the first annotation of another object that contains a `flexVolume` with a credential.
/// Other content in annotations of a Deployment is not the concern of this program.
pub(super) fn in_pod(object: &Value) -> Option<&str> {
    annotation(object, |_, text| serde_json::from_str(text).is_ok_and(|value| is_in_flex(&value)))
}

fn annotation(object: &Value, holds: impl Fn(&str, &str) -> bool) -> Option<&str> {
    let all = object.pointer("/metadata/annotations")?.as_object()?;
    let mut texts = all.iter().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)));
    texts.find(|(key, text)| holds(key, text)).map(|(key, _)| key)
}

fn is_in_flex(value: &Value) -> bool {
    match value {
        Value::Object(members) => members.iter().any(|(key, value)| match key.as_str() {
            "flexVolume" => is_in(value, false),
            _ => is_in_flex(value),
        }),
        Value::Array(items) => items.iter().any(is_in_flex),
        _ => false,
    }
}

/// Reports whether JSON holds a credential. `options` is true inside a mapping whose keys are a
/// tenant's; elsewhere `key` and `pass` may have any meaning.
fn is_in(value: &Value, options: bool) -> bool {
    match value {
        Value::Object(members) => members.iter().any(|(key, value)| match value {
            Value::String(text) if options => is_held_by(key, text),
            Value::String(text) => !text.is_empty() && ends(&letters(key)) || is_in(value, options),
            _ => is_in(value, OPTIONS.contains(&key.as_str())),
        }),
        Value::Array(items) => items.iter().any(|item| is_in(item, options)),
        Value::String(text) => holds_pair(text) || holds_login(text),
        _ => false,
    }
}

fn is_name(key: &str) -> bool {
    let letters = letters(key);
    ends(&letters) || WHOLE.contains(&letters.as_str())
}

fn letters(key: &str) -> String {
    key.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

fn ends(letters: &str) -> bool {
    letters != NOT_ONE && ENDS.iter().any(|end| letters.ends_with(end))
}

/// Finds `password=x`, `--token=x` and `"password":"x"`, also with a blank after the colon.
fn holds_pair(value: &str) -> bool {
    let apart = |c: char| c.is_whitespace() || c.is_control() || ",;&?{}".contains(c);
    let mut words = value.split(apart).filter(|word| !word.is_empty()).peekable();
    while let Some(word) = words.next() {
        let Some((key, value)) = word.split_once(['=', ':']) else { continue };
        let follows = word.ends_with(':') && words.peek().is_some();
        if is_name(key) && (!value.is_empty() || follows) {
            return true;
        }
    }
    false
}

/// Finds `scheme://user:password@host`.
fn holds_login(value: &str) -> bool {
    value.split("://").skip(1).any(|rest| {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

    #[test]
    fn credentials_are_found_by_name_and_in_values() {
        for (key, value) in [
            ("password", "x"),
            ("Password", "x"),
            ("akSecret", "x"),
            ("akId", "x"),
            ("secret_access_key", "x"),
            ("api-key", "x"),
            ("key", "x"),
            ("mountOptions", "vers=3.0,password=x"),
            ("mountOptions", "vers=3.0, pass=x"),
            ("mountoptions", "-o credentials=/root/x"),
            ("args", "--token=x"),
            ("json", "{\"password\":\"x\"}"),
            ("connection", "AccountName=a;AccountKey=x"),
            ("repo", "https://me:x@example.com/a"),
        ] {
            assert!(is_held_by(key, value), "{key}={value}");
        }
    }

    #[test]
    fn what_is_none_is_none() {
        for (key, value) in [
            ("password", ""),
            ("mountSecret", "rook-ceph-secret"),
            ("passwdMethod", "env"),
            ("source", "//server/password"),
            ("mountOptions", "vers=3.0,username=a,domain=b"),
            ("mountOptions", "password="),
            ("repo", "git@github.com:a/b"),
            ("repo", "https://me@example.com/a:b"),
            ("bypass", "x"),
            ("keyvaultname", "x"),
        ] {
            assert!(!is_held_by(key, value), "{key}={value}");
        }
    }

    #[test]
    fn annotations_are_searched_also_within_json() {
        let held =
            |key: &str, value: &str| in_volume(&json!({"metadata": {"annotations": {key: value}}})).is_some();
        let applied = |options: Value| json!({"spec": {"flexVolume": {"options": options}}}).to_string();
        for (key, value) in [
            (APPLIED, &*applied(json!({"akSecret": "x"}))),
            (APPLIED, &applied(json!({"key": "x"}))),
            (APPLIED, &applied(json!({"mountOptions": "vers=3,password=x"}))),
            ("a.example/token", "x"),
            ("note", "mounted with password=x"),
            ("note", "user: a\npassword: x\n"),
            ("a", r#"[{"url": "https://me:x@host"}]"#),
            ("a", r#"{"b": {"password": "x"}}"#),
            ("a", r#"{"password": "x""#),
        ] {
            assert!(held(key, value), "{key}: {value}");
        }
        let affinity = json!({"nodeAffinity": {"required": [{"key": "zone", "values": ["a"]}]}}).to_string();
        for (key, value) in [
            (APPLIED, &*applied(json!({"networkPath": "//server/share", "mountSecret": "rook"}))),
            (APPLIED, &affinity),
            ("pv.kubernetes.io/provisioned-by", "ceph.rook.io/block"),
            ("volume.kubernetes.io/provisioner-deletion-secret-name", "rook-csi"),
            ("a.example/token", ""),
        ] {
            assert!(!held(key, value), "{key}: {value}");
        }
        assert_eq!(in_volume(&json!({"metadata": {"annotations": null}})), None);
        let of_pod =
            |text: Value| in_pod(&json!({"metadata": {"annotations": {"a": text.to_string()}}})).is_some();
        assert!(of_pod(json!({"volumes": [{"flexVolume": {"options": {"key": "x"}}}]})));
        assert!(!of_pod(json!({"args": ["--token=$(TOKEN)"], "flexVolume": {"options": {"a": "b"}}})));
    }
}

//! Options that hold a credential, by their names: whoever may read a PersistentVolume could read
//! it, and a translation would copy it further.

/// What the name of a credential ends with, in small letters alone.
const ENDS: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "apikey",
    "accesskey",
    "secretkey",
    "privatekey",
    "accountkey",
    "sshkey",
    "userkey",
    "clientkey",
    "credential",
    "credentials",
    "accesskeyid",
    "akid",
    "aksecret",
];
/// What is one only as a whole.
const WHOLE: &[&str] = &["key", "pass", "pwd", "pw", "cred", "pin"];
/// Names of objects, and ways to hand something over.
const OTHERS: &[&str] = &["mountsecret"];

/// Whether an option is one that holds a credential: by its name, or by what stands in its value,
/// as `password=…` among mount options or `user:password@` in a URL.
pub(super) fn is_held_by(key: &str, value: &str) -> bool {
    !value.is_empty() && (is_name(key) || holds_pair(value) || holds_login(value))
}

fn is_name(key: &str) -> bool {
    let letters: String =
        key.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    let ends = ENDS.iter().any(|end| letters.ends_with(end));
    (ends || WHOLE.contains(&letters.as_str())) && !OTHERS.contains(&letters.as_str())
}

fn holds_pair(value: &str) -> bool {
    let apart = |c: char| c.is_whitespace() || ",;&?{}".contains(c);
    let mut words = value.split(apart).filter_map(|word| word.split_once(['=', ':']));
    words.any(|(key, value)| !value.is_empty() && is_name(key))
}

/// `scheme://user:password@host`.
fn holds_login(value: &str) -> bool {
    value.split("://").skip(1).any(|rest| {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
}

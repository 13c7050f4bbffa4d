//! Shares of a server: what a plan says about the network.
//!
//! Which address a name has, and whether the server answers, is known only when the plan is carried
//! out; until then a plan says `{server}` where the address will stand, as it says `***` where a
//! secret will.

use super::Ownership;
use core::net::IpAddr;
use flexvol_protocol::mount_options::{FsOption, MountFlags};
use flexvol_protocol::secret::{MASK, Secret};
use serde::{Serialize, Serializer};
use std::fmt;
use std::path::PathBuf;

/// Find the first server that answers.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reach {
    /// Names or addresses, tried in this order.
    pub servers: Vec<String>,
    /// The TCP port that must answer.
    pub port: u16,
    /// Asked for the names instead of the node's resolver, which does not know a cluster's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nameserver: Option<IpAddr>,
    /// How long each server has to accept a connection, in seconds; 0 only looks up the name.
    pub patience: u32,
}

/// A share as the kernel mounts it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// What the mount table shows as its source.
    pub source: Named,
    /// Versions of the protocol, tried in this order until the server speaks one.
    pub dialects: Vec<Dialect>,
    /// What every dialect is given.
    pub options: Vec<ShareOption>,
    /// Per-mount flags.
    pub flags: MountFlags,
}

/// A directory of a share, and how it is made where it is missing.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DirectoryOnShare {
    /// What holds the directory; it is mounted only while the directory is made.
    pub share: Share,
    /// Relative, of plain names only.
    pub path: PathBuf,
    /// Mode and owner of each directory that is made.
    pub owner: Ownership,
}

/// A text with the name of the server that was reached in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// What precedes the name.
    pub before: &'static str,
    /// What follows it.
    pub after: String,
}

/// A version of a protocol.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Dialect {
    /// The kernel's name of the file system.
    pub file_system: &'static str,
    /// Its own options.
    pub options: Vec<FsOption>,
}

/// An option of a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareOption {
    /// Its name.
    pub key: &'static str,
    /// Its value.
    pub value: ShareValue,
}

/// What an option of a share is set to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShareValue {
    /// Nothing: it is a mere word.
    Word,
    /// This.
    Text(String),
    /// What is secret.
    Secret(Secret),
    /// The address of the server that was reached.
    Server,
    /// The address of this node, as that server sees it.
    Client,
}

impl Named {
    /// With this name in it.
    pub fn with(&self, server: &str) -> String {
        format!("{}{server}{}", self.before, self.after)
    }
}

impl Share {
    /// Whether a ticket of the node's says who logs in.
    pub fn has_ticket(&self) -> bool {
        self.options.iter().any(|option| match (option.key, &option.value) {
            ("sec", ShareValue::Text(sec)) => sec.starts_with("krb5"),
            (key, _) => key == "cruid",
        })
    }

    /// Whether someone logs in by name and with no password, though no ticket says who it is.
    pub fn lacks_password(&self) -> bool {
        let value =
            |key: &str| self.options.iter().find(|option| option.key == key).map(|option| &option.value);
        let by_ticket = matches!(value("sec"), Some(ShareValue::Text(sec)) if sec.starts_with("krb5"));
        let named = matches!(value("username"), Some(ShareValue::Secret(_)));
        named && !by_ticket && matches!(value("password"), Some(ShareValue::Text(_)))
    }
}

impl ShareOption {
    /// An option with a value.
    pub fn new(key: &'static str, value: impl fmt::Display) -> Self {
        Self { key, value: ShareValue::Text(value.to_string()) }
    }

    /// An option that is a mere word.
    pub fn flag(key: &'static str) -> Self {
        Self { key, value: ShareValue::Word }
    }

    /// An option whose value is secret.
    pub fn secret(key: &'static str, secret: Secret) -> Self {
        Self { key, value: ShareValue::Secret(secret) }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.with("{server}"))
    }
}

impl fmt::Display for ShareOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = match &self.value {
            ShareValue::Word => return f.write_str(self.key),
            ShareValue::Text(text) => text,
            ShareValue::Secret(_) => MASK,
            ShareValue::Server => "{server}",
            ShareValue::Client => "{client}",
        };
        write!(f, "{}={value}", self.key)
    }
}

impl Serialize for Named {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for ShareOption {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_needs_a_password_or_a_ticket() {
        let name = || ShareOption::secret("username", Secret::new(b"anna".to_vec()));
        let lacks = |options: Vec<ShareOption>| {
            let source = Named { before: "//", after: "/share".to_owned() };
            Share { source, dialects: Vec::new(), options, flags: MountFlags::DEFAULT }.lacks_password()
        };
        let none = || ShareOption::new("password", "");
        assert!(lacks(vec![name(), none()]));
        assert!(!lacks(vec![name(), ShareOption::secret("password", Secret::new(b"p".to_vec()))]));
        assert!(!lacks(vec![name(), none(), ShareOption::new("sec", "krb5i")]));
        assert!(!lacks(vec![ShareOption::new("username", ""), none()]), "a guest has neither");
    }

    #[test]
    fn a_plan_shows_neither_secret_nor_address() {
        let shown = |option: ShareOption| option.to_string();
        assert_eq!(shown(ShareOption::secret("password", Secret::new(b"hunter2".to_vec()))), "password=***");
        assert_eq!(shown(ShareOption { key: "addr", value: ShareValue::Server }), "addr={server}");
        assert_eq!(shown(ShareOption::new("vers", 3)), "vers=3");
        assert_eq!(shown(ShareOption::flag("nolock")), "nolock");
        let named = Named { before: "//", after: "/share".to_owned() };
        assert_eq!(
            (named.to_string().as_str(), named.with("nas").as_str()),
            ("//{server}/share", "//nas/share")
        );
    }
}

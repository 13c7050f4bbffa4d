//! Shares of a server: the network part of a plan.
//!
//! The address of a name, and the answer of the server, are known only when the plan is carried
//! out. Until then a plan shows `{server}` in place of the address, as it shows `***` in place of a
//! secret.

use super::Ownership;
use core::net::IpAddr;
use flexvol_protocol::mount_options::{FsOption, MountFlags};
use flexvol_protocol::secret::{MASK, Secret};
use serde::{Serialize, Serializer};
use std::fmt;
use std::path::PathBuf;

/// Search for the first server that answers.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reach {
    /// Names or addresses in the order in which they are tried.
    pub servers: Vec<String>,
    /// TCP port that must answer.
    pub port: u16,
    /// Nameserver for the names, instead of the node's resolver, which does not know names of the
    /// cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nameserver: Option<IpAddr>,
    /// Time for each server to accept a connection, in seconds; 0 only looks up the name.
    pub patience: u32,
}

/// Share as the kernel mounts it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// Source that the mount table shows.
    pub source: Named,
    /// Versions of the protocol, tried in this order until the server speaks one.
    pub dialects: Vec<Dialect>,
    /// Options for every dialect.
    pub options: Vec<ShareOption>,
    /// Per-mount flags.
    pub flags: MountFlags,
}

/// Directory of a share, and how to make it if it is missing.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DirectoryOnShare {
    /// Share that holds the directory; it is mounted only while the directory is made.
    pub share: Share,
    /// Relative path of plain names only.
    pub path: PathBuf,
    /// Mode and owner of each directory that is made.
    pub owner: Ownership,
}

/// Text that contains the name of the server that was reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Text before the name.
    pub before: &'static str,
    /// Text after the name.
    pub after: String,
}

/// Version of a protocol.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Dialect {
    /// Name of the file system in the kernel.
    pub file_system: &'static str,
    /// Options for this dialect only.
    pub options: Vec<FsOption>,
}

/// Option of a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareOption {
    /// Name of the option.
    pub key: &'static str,
    /// Value of the option.
    pub value: ShareValue,
}

/// Value of an option of a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShareValue {
    /// No value: the option is a single word.
    Word,
    /// Plain text.
    Text(String),
    /// Secret value.
    Secret(Secret),
    /// Address of the server that was reached.
    Server,
    /// Address of this node, as that server sees it.
    Client,
}

impl Named {
    /// Returns the text with this server name in it.
    pub fn with(&self, server: &str) -> String {
        format!("{}{server}{}", self.before, self.after)
    }
}

impl Share {
    /// Reports whether a Kerberos ticket of the node identifies the user.
    pub fn has_ticket(&self) -> bool {
        self.options.iter().any(|option| match (option.key, &option.value) {
            ("sec", ShareValue::Text(sec)) => sec.starts_with("krb5"),
            (key, _) => key == "cruid",
        })
    }

    /// Reports whether a named user logs in without a password and without a ticket.
    pub fn lacks_password(&self) -> bool {
        let value =
            |key: &str| self.options.iter().find(|option| option.key == key).map(|option| &option.value);
        let by_ticket = matches!(value("sec"), Some(ShareValue::Text(sec)) if sec.starts_with("krb5"));
        let named = matches!(value("username"), Some(ShareValue::Secret(_)));
        named && !by_ticket && matches!(value("password"), Some(ShareValue::Text(_)))
    }
}

impl ShareOption {
    /// Creates an option with a value.
    pub fn new(key: &'static str, value: impl fmt::Display) -> Self {
        Self { key, value: ShareValue::Text(value.to_string()) }
    }

    /// Creates an option that is a single word.
    pub fn flag(key: &'static str) -> Self {
        Self { key, value: ShareValue::Word }
    }

    /// Creates an option whose value is secret.
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

//! Commands of the side file, and the words of programs.

use super::Named;
use flexvol_protocol::TargetPath;
use flexvol_protocol::mount_options::MountFlags;
use flexvol_protocol::secret::Secret;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// A command of the side file, its placeholders filled in.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// Program and arguments.
    pub argv: Vec<Word>,
    /// Offered as private files, and as one JSON object on standard input if `secrets_on_stdin`.
    pub secrets: BTreeMap<String, Secret>,
    /// Whether standard input carries the secrets, base64 as kubelet sends them; else it is empty.
    pub secrets_on_stdin: bool,
    /// The target the command mounts on: unmounted again if a later step fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mounts: Option<TargetPath>,
    /// Per-mount flags that mount gets, whatever the command gave it: stricter ones of its own
    /// stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flags: Option<MountFlags>,
    /// The target the command unmounts: not run unless something is mounted there, and its failure
    /// is forgiven, because the unmount step that follows decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmounts: Option<TargetPath>,
    /// What its output means.
    pub answer: Answer,
}

/// One argument of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// As it stands; braces in it mean nothing any more.
    Text(String),
    /// The plain name of a program, which is looked for in fixed directories. Never from options.
    Program(&'static str),
    /// Text with the name of the server that was reached in it.
    Server(Named),
    /// Text, and the path of a private file that holds one secret.
    Secret {
        /// What precedes the path.
        before: String,
        /// The key of the Secret.
        key: String,
    },
    /// Text, and the path of a private file of a [`Daemon`](super::Daemon).
    File {
        /// What precedes the path.
        before: String,
        /// The file's name.
        name: &'static str,
    },
    /// Text, and the path of a [`Daemon`](super::Daemon)'s directory on disk.
    Scratch {
        /// What precedes the path.
        before: String,
    },
}

impl Run {
    /// The same as [`Share::has_ticket`](super::Share::has_ticket), for the program that mounts
    /// NFS.
    pub fn has_ticket(&self) -> bool {
        let asks = |word: &Word| matches!(word, Word::Text(list) if list.split(',').any(|option| option.starts_with("sec=krb5")));
        self.argv.first() == Some(&Word::Program("mount.nfs")) && self.argv.iter().any(asks)
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Program(name) => f.write_str(name),
            Self::Server(named) => write!(f, "{named}"),
            Self::Secret { before, key } => write!(f, "{before}{{secret.{key}}}"),
            Self::File { before, name } => write!(f, "{before}{{file.{name}}}"),
            Self::Scratch { before } => write!(f, "{before}{{scratch}}"),
        }
    }
}

impl Serialize for Word {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What the reply takes from a command's standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// Nothing: its exit status says it all.
    Nothing,
    /// Its one line is the device.
    Device,
    /// Its one line is the volume's name.
    VolumeName,
    /// Its one line is `true` or `false`: attached or not.
    Attached,
}

//! Commands of the side file, and the words of programs.

use super::Named;
use flexvol_protocol::TargetPath;
use flexvol_protocol::mount_options::MountFlags;
use flexvol_protocol::secret::Secret;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// Command of the side file with its placeholders replaced.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// Program and arguments.
    pub argv: Vec<Word>,
    /// Secrets for private files, and for one JSON object on standard input if `secrets_on_stdin`.
    pub secrets: BTreeMap<String, Secret>,
    /// True if standard input carries the secrets, base64 as kubelet sends them; else it is empty.
    pub secrets_on_stdin: bool,
    /// Target that the command mounts on; it is unmounted if a later step fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mounts: Option<TargetPath>,
    /// Per-mount flags for that mount, whatever the command set; stricter flags of the command
    /// stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flags: Option<MountFlags>,
    /// Target that the command unmounts. The command runs only if something is mounted there. Its
    /// failure is ignored, because the unmount step that follows decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmounts: Option<TargetPath>,
    /// Meaning of its output.
    pub answer: Answer,
}

/// One argument of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// Literal text; braces in it have no meaning any more.
    Text(String),
    /// Plain name of a program, which is searched in fixed directories. It never comes from
    /// options.
    Program(&'static str),
    /// Text that contains the name of the server that was reached.
    Server(Named),
    /// Text, followed by the path of a private file that holds one secret.
    Secret {
        /// Text before the path.
        before: String,
        /// Key of the Secret.
        key: String,
    },
    /// Text, followed by the path of a private file of a [`Daemon`](super::Daemon).
    File {
        /// Text before the path.
        before: String,
        /// Name of the file.
        name: &'static str,
    },
    /// Text, followed by the path of a [`Daemon`](super::Daemon)'s directory on disk.
    Scratch {
        /// Text before the path.
        before: String,
    },
}

impl Run {
    /// Reports for the program that mounts NFS what [`Share::has_ticket`](super::Share::has_ticket)
    /// reports for a share.
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

/// Meaning of a command's standard output for the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// None: only the exit status counts.
    Nothing,
    /// Its one line names the device.
    Device,
    /// Its one line is the name of the volume.
    VolumeName,
    /// Its one line is `true` or `false`: attached or not.
    Attached,
}

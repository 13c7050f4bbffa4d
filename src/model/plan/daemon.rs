//! Programs that serve mounts, and what they read.

use super::Word;
use flexvol_protocol::TargetPath;
use flexvol_protocol::mount_options::MountFlags;
use flexvol_protocol::secret::{MASK, Secret};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Program that mounts and then serves the mount, as FUSE programs do.
///
/// The executor does not wait for its exit, unlike for a [`Run`](super::Run): success is a mount
/// that answers. The program is told to stay in the foreground if it can, so that its last messages
/// are received. It runs in its own session and control group, which its unmount ends. It can read
/// its files again at any time, because ssh and other programs do so.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Daemon {
    /// Plain name of the program, which is searched in fixed directories.
    pub program: &'static str,
    /// Source for people, with the server's name in it.
    pub from: String,
    /// Servers that it talks to, for the policy.
    pub servers: Vec<String>,
    /// Arguments. Every user of the node can read them.
    pub words: Vec<Word>,
    /// Arguments with which it first checks that the server has what is to be mounted; empty for a
    /// program whose mount checks this itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub probe: Vec<Word>,
    /// Private files by their names: in memory, for root alone, kept until the unmount.
    pub files: BTreeMap<&'static str, Content>,
    /// Content of standard input; `None` means empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<Content>,
    /// True if it gets a directory on disk for temporary data, which is removed with the unmount.
    pub scratch: bool,
    /// Message of a program that has given up but does not exit: davfs2 mounts although the server
    /// does not answer, ceph-fuse waits for one of its own threads. Empty for a program that exits.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub futile: &'static str,
    /// Private file for its last messages, if it cannot print them. The file is in a small memory
    /// of its own: what a program logs for years fills nothing else.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub log: &'static str,
    /// Further leftovers on the node: a file below /run, removed before the program starts; or,
    /// with `*` for the beginning of its name, a cache, removed once the server has all of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub traces: Vec<PathBuf>,
    /// Mount point.
    pub target: TargetPath,
    /// Per-mount flags for the mount, whatever the program set.
    pub flags: MountFlags,
}

/// Content of a private file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content(pub Vec<Piece>);

/// Part of a private file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Literal text.
    Text(String),
    /// The bytes of a secret.
    Secret(Secret),
    /// Output of a program that reads a secret from standard input: the program's own notation of
    /// the secret.
    Printed(&'static [&'static str], Secret),
    /// The path of another private file.
    File(&'static str),
    /// The path of the directory on disk.
    Scratch,
}

impl Content {
    /// Appends text to the content.
    #[must_use]
    pub fn text(self, text: impl Into<String>) -> Self {
        self.piece(Piece::Text(text.into()))
    }

    /// Appends a secret to the content.
    #[must_use]
    pub fn secret(self, secret: &Secret) -> Self {
        self.piece(Piece::Secret(secret.clone()))
    }

    /// Appends a piece to the content.
    #[must_use]
    pub fn piece(mut self, piece: Piece) -> Self {
        self.0.push(piece);
        self
    }
}

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Secret(_) => MASK.to_owned(),
            Piece::Printed(argv, _) => format!("{{{}: {MASK}}}", argv.join(" ")),
            Piece::File(name) => format!("{{file.{name}}}"),
            Piece::Scratch => "{scratch}".to_owned(),
        };
        serializer.serialize_str(&self.0.iter().map(text).collect::<String>())
    }
}

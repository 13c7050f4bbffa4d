//! Programs that serve mounts, and what they read.

use super::Word;
use flexvol_protocol::TargetPath;
use flexvol_protocol::mount_options::MountFlags;
use flexvol_protocol::secret::{MASK, Secret};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A program that mounts and then serves the mount, as those of FUSE do.
///
/// Unlike a [`Run`](super::Run) it is not waited for: success is a mount that answers. It is told
/// to stay in the foreground where it can, so that its last words are heard; it runs in a session
/// and a control group of its own, which its unmount ends. What it reads from files it can read
/// again at any time, because ssh and others do.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Daemon {
    /// Its plain name, which is looked for in fixed directories.
    pub program: &'static str,
    /// What it serves, for people: the server's name is in it.
    pub from: String,
    /// Whom it talks to, for the policy.
    pub servers: Vec<String>,
    /// Its arguments. Everybody on the node can read them.
    pub words: Vec<Word>,
    /// Arguments with which it first says whether the server has what is to be mounted, if it would
    /// mount without asking; empty if it asks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub probe: Vec<Word>,
    /// Its private files by their names: in memory, for root alone, there until it is unmounted.
    pub files: BTreeMap<&'static str, Content>,
    /// What it reads from standard input; without this, nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<Content>,
    /// Whether it gets a directory on disk for what it has to keep meanwhile, gone with the
    /// unmount.
    pub scratch: bool,
    /// What it says when it has given up and goes on all the same: davfs2 mounts although the
    /// server does not answer, ceph-fuse waits for a thread of its own. Empty for one that ends.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub futile: &'static str,
    /// The private file that it writes its last words to, if it cannot say them aloud. It is in a
    /// memory of its own that is soon full: what a program says for years fills nothing else.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub log: &'static str,
    /// What else it leaves on the node: a file below /run, not there when it starts, or, with `*`
    /// for the beginning of its name, a cache that is removed once the server has all of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub traces: Vec<PathBuf>,
    /// Where it mounts.
    pub target: TargetPath,
    /// Per-mount flags the mount gets, whatever the program gave it.
    pub flags: MountFlags,
}

/// The content of a private file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content(pub Vec<Piece>);

/// A part of a private file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// As it stands.
    Text(String),
    /// The bytes of a secret.
    Secret(Secret),
    /// What a program prints when it reads a secret from standard input: its own way to write it
    /// down.
    Printed(&'static [&'static str], Secret),
    /// The path of another private file.
    File(&'static str),
    /// The path of the directory on disk.
    Scratch,
}

impl Content {
    /// The same with some text at its end.
    #[must_use]
    pub fn text(self, text: impl Into<String>) -> Self {
        self.piece(Piece::Text(text.into()))
    }

    /// The same with a secret at its end.
    #[must_use]
    pub fn secret(self, secret: &Secret) -> Self {
        self.piece(Piece::Secret(secret.clone()))
    }

    /// The same with one more piece at its end.
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

//! A node without a cluster: a plugin directory with drivers made of a few lines of sh that log
//! their calls, and `flexvol` at work on it.

use super::{BINARY, write_executable};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Says Success, with what `$1` adds to it.
const PRELUDE: &str = r#"ok() { printf '{"status":"Success"%s}' "$1"; }
no() { printf '{"status":"Not supported"}'; exit 1; }
fail() { printf '{"status":"Failure","message":"%s"}' "$1"; }
"#;

/// A directory with `plugins`, a `kubelet` root, and files.
pub(crate) struct Site {
    directory: TempDir,
}

/// How a command of ours ended.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    /// Both outputs.
    pub(crate) fn all(&self) -> String {
        format!("{}{}", self.out, self.err)
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Its one line on standard error.
    pub(crate) fn complaint(&self) -> &str {
        assert_eq!((self.status, self.err.lines().count()), (1, 1), "{self:?}");
        self.err.trim_end()
    }

    pub(crate) fn good(self) -> Self {
        assert_eq!(self.status, 0, "{self:?}");
        self
    }
}

impl Site {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("plugins")).unwrap();
        Self { directory }
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.directory.path().join(below)
    }

    /// Installs a driver `vendor~name`: the cases of a `case "$1"`, with `$LOG` for files.
    pub(crate) fn driver(&self, directory: &str, cases: &str) -> PathBuf {
        let log = self.directory.path().display();
        let body = format!(
            "#!/bin/sh\nLOG={log}\n{{ printf '%s\\037' \"$@\"; printf '\\036'; }} >> {log}/calls\n{PRELUDE}case $1 in\n{cases}\n*) no;;\nesac\n"
        );
        self.script(&format!("plugins/{directory}/{}", directory.rsplit('~').next().unwrap()), &body)
    }

    /// An executable file.
    pub(crate) fn script(&self, below: &str, text: &str) -> PathBuf {
        let path = self.path(below);
        write_executable(&path, text);
        path
    }

    /// Installs one of our own, with its side file.
    pub(crate) fn own(&self, directory: &str, side_file: &str) {
        let home = self.path("plugins").join(directory);
        fs::create_dir(&home).unwrap();
        fs::write(home.join(".flexvol.json"), side_file).unwrap();
        symlink(BINARY, home.join(directory.rsplit('~').next().unwrap())).unwrap();
    }

    /// Writes a file.
    pub(crate) fn file(&self, below: &str, text: &str) -> PathBuf {
        fs::write(self.path(below), text).unwrap();
        self.path(below)
    }

    /// The calls so far, and none from now on.
    pub(crate) fn calls(&self) -> Vec<Vec<String>> {
        let path = self.path("calls");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        let call = |call: &str| call.split_terminator('\u{1f}').map(str::to_owned).collect();
        text.split_terminator('\u{1e}').map(call).collect()
    }

    /// The verbs of the calls.
    pub(crate) fn verbs(&self) -> Vec<String> {
        self.calls().into_iter().map(|call| call[0].clone()).collect()
    }

    pub(crate) fn flexvol(&self, line: &[&str]) -> Said {
        let output = Command::new(BINARY)
            .args(line)
            .current_dir(self.directory.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Said { status: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// `flexvol pod <words> --driver-dir … --root …`.
    pub(crate) fn pod(&self, words: &[&str]) -> Said {
        let more = ["--driver-dir", "plugins", "--root", "kubelet", "--node", "vm"];
        self.flexvol(&[&["pod"], words, &more].concat())
    }

    /// Every file and directory below kubelet's root that is a volume or a note of one.
    pub(crate) fn left(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        walk(&self.path("kubelet/pods"), &mut found);
        walk(&self.path("kubelet/attached"), &mut found);
        walk(&self.path("kubelet/plugins"), &mut found);
        let frame = ["attached", "plugins", "kubernetes.io", "flexvolume", "mounts"];
        found.retain(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            let of_driver = path.components().any(|part| part.as_os_str() == "flexvolume")
                && !path.parent().unwrap().ends_with("mounts");
            !frame.contains(&name) && !of_driver && !name.contains('~')
        });
        found
    }
}

fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        found.push(path.clone());
        if path.is_dir() {
            walk(&path, found);
        }
    }
}

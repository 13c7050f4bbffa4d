//! A node of its own for each test: a plugin directory, a state directory, an empty /run, the
//! command.

use crate::support::{BINARY, namespace, release, write_executable};
use flexvol::protocol::{DriverStatus, StatusKind};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

/// A driver that does nothing and claims something, as a script.
pub(crate) fn script(capabilities: &str) -> String {
    format!("#!/bin/sh\necho '{{\"status\":\"Success\",\"capabilities\":{{{capabilities}}}}}'\n")
}

/// The command under test: the release if there is one, else ours without its debug information,
/// which is most of it.
pub(crate) fn command() -> &'static Path {
    static COMMAND: OnceLock<PathBuf> = OnceLock::new();
    COMMAND.get_or_init(|| release().unwrap_or_else(stripped))
}

fn stripped() -> PathBuf {
    // The kit lies beside it, for the commands that are of the kit.
    strip(&format!("{BINARY}-kit"), "flexvol-kit")
        .and_then(|_| strip(BINARY, "flexvol"))
        .unwrap_or(BINARY.into())
}

fn strip(program: &str, name: &str) -> Option<PathBuf> {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Other test processes may be doing the same, and have the same number in namespaces of their
    // own.
    let own = tempfile::NamedTempFile::new_in(place).unwrap().into_temp_path();
    let done = Command::new("strip").arg("-o").args([&*own, Path::new(program)]).status();
    if !done.is_ok_and(|status| status.success()) {
        return None;
    }
    // Made for root alone, and everybody shall run it.
    fs::set_permissions(&own, fs::metadata(program).unwrap().permissions()).unwrap();
    let all = place.join(name);
    own.persist(&all).unwrap();
    Some(all)
}

pub(crate) struct Node {
    dir: TempDir,
}

/// What the command said about the only driver it was given.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: i32,
    pub(crate) json: Value,
}

impl Answer {
    pub(crate) fn action(&self) -> &str {
        assert_eq!(self.status, 0, "{self:?}");
        self.json["action"].as_str().unwrap()
    }

    /// The message of a refusal with this exit status.
    pub(crate) fn error(&self, status: i32) -> &str {
        assert_eq!(self.status, status, "{self:?}");
        let message = self.json["error"].as_str().unwrap();
        assert!(!message.contains('\n') && !message.ends_with('.'), "{message}");
        message
    }
}

impl Node {
    /// In a mount namespace with an empty /run; `None`, and SKIP, where that cannot be had.
    pub(crate) fn new(name: &str) -> Option<Self> {
        namespace::enter(name).then(|| {
            let node = Self { dir: tempfile::tempdir().unwrap() };
            fs::create_dir(node.plugins()).unwrap();
            node
        })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn plugins(&self) -> PathBuf {
        self.path("plugins")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// An executable file.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        write_executable(&path, text);
        path
    }

    /// A file that nobody executes.
    pub(crate) fn file_quietly(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// `flexvol <command> --plugin-dir … --state-dir … <words>`.
    pub(crate) fn flexvol(&self, command_name: &str, words: &[&str]) -> Command {
        let mut command = Command::new(command());
        command.args([command_name, "--json", "--plugin-dir"]).arg(self.plugins());
        command.arg("--state-dir").arg(self.state()).args(words).stdin(Stdio::null());
        command
    }

    pub(crate) fn install(&self, words: &[&str]) -> Answer {
        answer(&mut self.flexvol("install", words))
    }

    pub(crate) fn uninstall(&self, words: &[&str]) -> Answer {
        answer(&mut self.flexvol("uninstall", words))
    }

    /// Every file and directory, hidden ones too, by their paths in the plugin directory.
    pub(crate) fn listing(&self) -> Vec<String> {
        listing(&self.plugins())
    }

    /// What is left of work: hidden names but side files, half copies, and what checks need.
    pub(crate) fn litter(&self) -> Vec<String> {
        let places = [self.plugins(), self.state(), "/run/flexvol/check".into()];
        let all = places.iter().flat_map(|place| listing(place));
        all.filter(|path| {
            path.contains(".flexvol-")
                || path.contains(".partial")
                || path.starts_with(char::is_numeric) && !path.contains('~') && path.contains('-')
        })
        .collect()
    }

    /// The capabilities that the installed driver answers with; kubelet must always be able to load
    /// it.
    pub(crate) fn init(&self, driver: &str) -> DriverStatus {
        let executable =
            self.plugins().join(driver.replace('/', "~")).join(driver.split('/').nth(1).unwrap());
        init(&executable)
    }
}

/// Asks a driver as kubelet does; whatever it answers must be good.
pub(crate) fn init(executable: &Path) -> DriverStatus {
    let output = Command::new(executable).arg("init").env_clear().stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", executable.display()));
    let status = DriverStatus::parse(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert!(output.status.success() && status.outcome() == StatusKind::Success, "{output:?}");
    status
}

pub(crate) fn answer(command: &mut Command) -> Answer {
    let output = command.output().unwrap();
    let json: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let json = if json.is_array() { json[0].clone() } else { json };
    Answer { status: output.status.code().unwrap_or(-1), json }
}

pub(crate) fn listing(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.extend(listing(&entry.path()).into_iter().map(|below| format!("{name}/{below}")));
        }
        found.push(name);
    }
    found.sort();
    found
}

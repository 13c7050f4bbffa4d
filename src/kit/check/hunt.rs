//! Search for secrets in places where they must not be: unchanged, in the encodings of common
//! tools, and in part.

use super::answer::Answer;
use super::evidence::Evidence;
use super::subject::KUBELET_ROOT;
use crate::sandbox::Inside;
use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use flexvol_kubelet::PodVolume;
use flexvol_linux::mount::mount_table;
use flexvol_protocol::Options;
use flexvol_protocol::secret::Secret;
use rustix::fs::{Mode, OFlags};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Length of a part that gives a secret away, in bytes.
const PART: usize = 8;

/// Shortest secret that is searched for, in bytes: shorter texts occur everywhere.
const SHORTEST: usize = 4;

/// Keys whose value names an account. That is not secret, and kernels show it in the mount table.
const NAMES: [&str; 6] = ["username", "user", "userid", "domain", "accountname", "azurestorageaccountname"];

/// Limit for the part of a file that is read, in bytes.
const READ: u64 = 4 << 20;

/// Secrets to search for.
#[derive(Clone, Debug, Default)]
pub(super) struct Hunt {
    /// Every part of a long secret, with the index of its key and its form.
    parts: HashMap<[u8; PART], (usize, Form)>,
    /// Secrets that are shorter than a part.
    short: Vec<(Vec<u8>, usize, Form)>,
    keys: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
enum Form {
    Raw,
    Base64,
    Percent,
}

/// A file with a secret in it.
#[derive(Clone, Debug)]
pub(super) struct Find {
    pub(super) path: PathBuf,
    /// Description of the secret.
    pub(super) what: String,
    /// True if any user of the node can read it.
    pub(super) open: bool,
}

impl Hunt {
    /// Prepares to find the secrets of one volume.
    /// Text that is also in other arguments is not secret.
    pub(super) fn of(volume: &PodVolume) -> Self {
        let plain = Options { secrets: BTreeMap::new(), ..volume.options.clone() };
        let target = volume.target().map(|target| target.to_string()).unwrap_or_default();
        Self::new(&volume.options.secrets, &format!("{}\n{target}", plain.to_json()))
    }

    /// Prepares to find the secrets of all calls.
    pub(super) fn of_answers(answers: &[Answer]) -> Self {
        let mut secrets = BTreeMap::new();
        for answer in answers {
            for (key, secret) in &answer.asked.secrets {
                secrets.insert((key.clone(), secret.expose().to_vec()), secret.clone());
            }
        }
        let shown: BTreeSet<_> = answers.iter().flat_map(|answer| &answer.asked.shown).cloned().collect();
        let harmless: Vec<_> = shown.into_iter().collect();
        Self::new_of(secrets.iter().map(|((key, _), secret)| (key, secret)), &harmless.join("\n"))
    }

    /// Prepares to find these secrets.
    /// Text that is also in `harmless`, such as names, is not secret.
    pub(super) fn new(secrets: &BTreeMap<String, Secret>, harmless: &str) -> Self {
        let names: Vec<_> = secrets.keys().map(|key| format!("kubernetes.io/secret/{key}")).collect();
        Self::new_of(secrets.iter(), &format!("{}\n{harmless}", names.join("\n")))
    }

    fn new_of<'a>(secrets: impl Iterator<Item = (&'a String, &'a Secret)>, harmless: &str) -> Self {
        let mut hunt = Self::default();
        for (key, secret) in secrets.filter(|(key, _)| !is_name(key)) {
            for (form, text) in forms(secret.expose()) {
                hunt.add(&text, form);
            }
            hunt.keys.push(key.clone());
        }
        let harmless = harmless.as_bytes();
        hunt.parts.retain(|part, _| !contains(harmless, part));
        hunt.short.retain(|(text, ..)| !contains(harmless, text));
        hunt
    }

    fn add(&mut self, text: &[u8], form: Form) {
        let key = self.keys.len();
        if text.len() < PART {
            if text.len() >= SHORTEST {
                self.short.push((text.to_vec(), key, form));
            }
            return;
        }
        for part in text.windows(PART) {
            if let Ok(part) = part.try_into() {
                self.parts.entry(part).or_insert((key, form));
            }
        }
    }

    /// Reports whether there is nothing to search for: no secret can be told from other text.
    pub(super) fn is_vain(&self) -> bool {
        self.parts.is_empty() && self.short.is_empty()
    }

    /// Describes the first secret in a text, without repeating it.
    pub(super) fn found(&self, text: &[u8]) -> Option<String> {
        let part = || {
            let parts = text.windows(PART).filter_map(|part| <[u8; PART]>::try_from(part).ok());
            parts.filter_map(|part| self.parts.get(&part)).copied().next()
        };
        let short = || self.short.iter().find(|(short, ..)| contains(text, short));
        let (key, form) = part().or_else(|| short().map(|(_, key, form)| (*key, *form)))?;
        let form = match form {
            Form::Raw => "",
            Form::Base64 => ", in base64",
            Form::Percent => ", percent-encoded",
        };
        Some(format!("secret {:?}{form}", self.keys.get(key).map_or("", String::as_str)))
    }

    /// Replaces texts that hold a secret, which must not be shown to anyone.
    pub(super) fn masked(&self, mut evidence: Evidence) -> Evidence {
        let texts = [&mut evidence.problem, &mut evidence.came_back, &mut evidence.kubelet];
        for text in texts.into_iter().chain(&mut evidence.sent) {
            if self.found(text.as_bytes()).is_some() {
                "not shown, for the secret in it".clone_into(text);
            }
        }
        evidence
    }

    /// Finds the files of the sandbox that were made or changed since it began and hold a secret,
    /// except files in volumes.
    pub(super) fn files(&self, inside: &Inside) -> Result<Vec<Find>> {
        let mut paths = inside.changed()?;
        in_directory(Path::new(KUBELET_ROOT), &mounted(), &mut paths);
        let find = |path: PathBuf| {
            let (text, data) = read(&path)?;
            let what = self.found(&text)?;
            let open = data.mode() & 0o004 != 0 && is_reachable(&path);
            Some(Find { path, what, open })
        };
        Ok(paths.into_iter().filter_map(find).collect())
    }
}

fn is_name(key: &str) -> bool {
    NAMES.iter().any(|name| key.eq_ignore_ascii_case(name))
}

fn forms(raw: &[u8]) -> Vec<(Form, Vec<u8>)> {
    let trimmed = raw.trim_ascii();
    let percent = raw.iter().fold(String::new(), |text, &byte| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
            text + char::from(byte).encode_utf8(&mut [0; 4])
        }
        _ => text + &format!("%{byte:02X}"),
    });
    let base64 = |text: String| (Form::Base64, text.trim_end_matches('=').as_bytes().to_vec());
    vec![
        (Form::Raw, trimmed.to_vec()),
        base64(STANDARD.encode(raw)),
        base64(URL_SAFE.encode(raw)),
        (Form::Percent, percent.into_bytes()),
    ]
}

pub(super) fn contains(text: &[u8], part: &[u8]) -> bool {
    !part.is_empty() && text.windows(part.len()).any(|window| window == part)
}

fn mounted() -> BTreeSet<PathBuf> {
    mount_table::below(Path::new(KUBELET_ROOT)).into_iter().flatten().map(|entry| entry.target).collect()
}

/// Finds all files below a directory, but not in mounts there.
pub(super) fn in_directory(directory: &Path, mounted: &BTreeSet<PathBuf>, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type());
        match kind {
            Ok(kind) if kind.is_dir() && !mounted.contains(&path) => in_directory(&path, mounted, found),
            Ok(kind) if kind.is_file() => found.push(path),
            _ => {}
        }
    }
}

/// Reads the beginning of a regular file. Does not wait for other kinds of files.
pub(super) fn read(path: &Path) -> Option<(Vec<u8>, fs::Metadata)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let data = file.metadata().ok().filter(fs::Metadata::is_file)?;
    let mut text = Vec::new();
    file.take(READ).read_to_end(&mut text).ok()?;
    Some((text, data))
}

/// Reports whether any user may pass all directories above a path.
fn is_reachable(path: &Path) -> bool {
    path.ancestors().skip(1).all(|above| fs::metadata(above).is_ok_and(|data| data.mode() & 0o001 != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hunt(secret: &str, harmless: &str) -> Hunt {
        let secrets = BTreeMap::from([("pass".to_owned(), Secret::new(secret.as_bytes().to_vec()))]);
        Hunt::new(&secrets, harmless)
    }

    #[test]
    fn a_secret_is_found_in_every_form_and_in_part() {
        let hunt = hunt("hunter2/horse battery\n", "");
        for (text, found) in [
            ("xhunter2/horse batteryx", Some("secret \"pass\"")),
            ("horse batt", Some("secret \"pass\"")),
            ("aHVudGVyMi9ob3JzZSBiYXR0ZXJ5Cg==", Some("secret \"pass\", in base64")),
            ("hunter2%2Fhorse", Some("secret \"pass\", percent-encoded")),
            ("hunter2", None),
            ("", None),
        ] {
            assert_eq!(hunt.found(text.as_bytes()).as_deref(), found, "{text}");
        }
    }

    #[test]
    fn what_is_elsewhere_too_is_no_secret() {
        assert!(hunt("ab", "").is_vain());
        assert!(hunt("password", "").found(b"the password of x").is_some());
        assert!(hunt("password", "secret/password").found(b"the password of x").is_none());
        assert!(hunt("s3cr3t", "").found(b"is s3cr3t").is_some());
    }

    #[test]
    fn who_logs_in_is_no_secret() {
        let of = |key: &str| {
            let secrets = BTreeMap::from([(key.to_owned(), Secret::new(b"alice-in-chains".to_vec()))]);
            Hunt::new(&secrets, "").is_vain()
        };
        assert!(of("username") && of("userName") && of("azurestorageaccountname"));
        assert!(!of("password") && !of("userKey"));
    }

    #[test]
    fn evidence_shows_no_secret() {
        let evidence = Evidence { came_back: "it is hunter2hunter2".to_owned(), ..Evidence::new("leaks") };
        let masked = hunt("hunter2hunter2", "").masked(evidence);
        assert_eq!((masked.problem.as_str(), masked.came_back.contains("hunter")), ("leaks", false));
    }
}

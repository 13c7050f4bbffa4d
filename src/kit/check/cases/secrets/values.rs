//! Secrets that are odd or missing, or that stand in malformed options.

use crate::check::attempt::plainly;
use crate::check::cases::options::names;
use crate::check::evidence::Played;
use crate::check::hunt::{Hunt, contains, in_directory, read};
use crate::check::spelling::{object, pairs, quoted, with_value};
use crate::check::subject::Subject;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flexvol_kubelet::PodVolume;
use flexvol_protocol::Options;
use flexvol_protocol::secret::Secret;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

const PREFIX: &str = "kubernetes.io/secret/";

/// Limit for the number of files in a volume that are checked.
const LOOKED_AT: usize = 200;

/// Returns the volume with random secrets.
pub(super) fn with_canaries(mut volume: PodVolume, random: &mut fastrand::Rng) -> PodVolume {
    for secret in volume.options.secrets.values_mut() {
        let text: String = (0..24).map(|_| random.alphanumeric()).collect();
        *secret = Secret::new(text.into_bytes());
    }
    volume
}

pub(super) fn binary(subject: &mut Subject<'_>) -> Played {
    let mut volume = subject.volume()?;
    let mut bytes = BTreeMap::new();
    for (key, secret) in &mut volume.options.secrets {
        let mut part = || (0..16).map(|_| subject.random.alphanumeric()).collect::<String>().into_bytes();
        let (head, middle, tail) = (part(), part(), part());
        let whole = [head.as_slice(), b"\0", &middle, b"\xff\xfe\n", &tail, b"\n"].concat();
        *secret = Secret::new(whole.clone());
        bytes.insert(key.clone(), (head, whole));
    }
    subject.stage(&volume)?;
    let attempt = subject.attempt_mount(&volume, &plainly)?;
    if !attempt.answer.is_success() {
        attempt.answer.refuses("a secret of any bytes must be taken or refused")?;
        return subject.clear(&volume);
    }
    // A driver may write a secret into any file of the volume.
    let mut files = Vec::new();
    in_directory(volume.target()?.as_path(), &BTreeSet::new(), &mut files);
    for (text, _) in files.iter().take(LOOKED_AT).filter_map(|path| read(path)) {
        for (key, (head, whole)) in &bytes {
            let encoded = STANDARD.encode(whole);
            let problem = match () {
                // A driver may keep or drop the last line break of a password.
                () if contains(&text, &whole[..whole.len() - 1]) => continue,
                () if contains(&text, head) => "is not complete",
                () if contains(&text, encoded.as_bytes()) => "is not decoded",
                () => continue,
            };
            return Err(attempt.answer.fails(format!("secret {key:?} is in the volume, and {problem}")));
        }
    }
    subject.clear(&volume)
}

pub(super) fn bad_base64(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    subject.stage(&volume)?;
    let mut taken = None;
    for key in volume.options.secrets.keys() {
        let text: String = (0..20).map(|_| subject.random.alphanumeric()).collect();
        let spelling = |options: &Options| {
            with_value(options, &format!("{PREFIX}{key}"), &quoted(&format!("%{text}%"))).into()
        };
        let attempt = subject.attempt_mount(&volume, &spelling)?;
        if !attempt.answer.is_success() {
            attempt.answer.refuses(&format!("secret {key:?} is no base64, which is to be refused"))?;
            return subject.clear(&volume);
        }
        // This driver may have no use for this secret.
        taken = Some(attempt.answer.fails(format!("secret {key:?} is no base64, and it said Success")));
        subject.clear_mount(&volume)?;
    }
    match taken {
        Some(taken) => Err(taken),
        None => subject.clear(&volume),
    }
}

pub(super) fn missing(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    let keys: Vec<_> = volume.options.secrets.keys().cloned().collect();
    subject.stage(&volume)?;
    let mut side_file_changes: Vec<_> =
        keys.iter().map(|key| (format!("secret {key:?} is missing"), vec![key.clone()], false)).collect();
    if keys.len() > 1 {
        side_file_changes.push(("no secret is there".to_owned(), keys.clone(), false));
    }
    side_file_changes
        .extend(keys.iter().map(|key| (format!("secret {key:?} is empty"), vec![key.clone()], true)));
    for (what, keys, empty) in side_file_changes {
        let mut changed = volume.clone();
        for key in &keys {
            changed.options.secrets.remove(key);
            if empty {
                changed.options.secrets.insert(key.clone(), Secret::new(Vec::new()));
            }
        }
        let attempt = subject.attempt_mount(&changed, &plainly)?;
        if attempt.answer.is_success() {
            subject.clear_mount(&volume)?;
            continue;
        }
        let answer = attempt.answer.refuses(&format!("{what}: it must be mounted, or the key named"))?;
        let named = |key: &String| names(answer.message(), key);
        // If all secrets are missing, a message about the missing secretRef is enough.
        let none = changed.options.secrets.is_empty() && names(answer.message(), "secretRef");
        if !none && !keys.iter().any(named) {
            return Err(answer.fails(format!("{what}, and the message does not name it")));
        }
    }
    subject.clear(&volume)
}

pub(super) fn malformed_options(subject: &mut Subject<'_>) -> Played {
    let volume = with_canaries(subject.volume()?, &mut subject.random);
    subject.stage(&volume)?;
    let hunt = Hunt::of(&volume);
    let options = volume.mount_call()?.options().cloned().unwrap_or_default();
    for text in spoilt(&options) {
        let attempt = subject.attempt_mount(&volume, &|_| text.clone())?;
        if let Some(what) = hunt.found(&attempt.answer.run.output) {
            let text = format!("the options cannot be read, and the output holds {what}");
            return Err(hunt.masked(attempt.answer.evidence(text)).into());
        }
        subject.clear_mount(&volume)?;
    }
    subject.clear(&volume)
}

/// Builds options that no parser accepts, but that its error message may quote.
fn spoilt(options: &Options) -> Vec<OsString> {
    let good = options.to_json();
    let open = good.trim_end_matches('}');
    let listed = object(pairs(options).into_iter().map(|(key, value)| {
        let value = if key.starts_with(PREFIX) { format!("[{}]", quoted(&value)) } else { quoted(&value) };
        (quoted(&key), value)
    }));
    let texts = [
        open.to_owned(),
        format!("{good}x"),
        format!("[{good}]"),
        quoted(&good),
        good.replace('"', "'"),
        format!("{open},\"number\":1}}"),
        listed,
    ];
    texts.into_iter().map(OsString::from).collect()
}

//! Answers that are hard to write: with text that JSON must escape, and for a reader that is slow.

use crate::check::answer::Answer;
use crate::check::case::{How, Scene};
use crate::check::evidence::{Played, Stopped};
use crate::check::staging::{make_directory, put, remove_directory};
use crate::check::subject::{KUBELET_ROOT, Subject};
use flexvol_kubelet::{PodVolume, Reader};
use flexvol_protocol::{Call, TargetPath};
use serde_json::{Map, Value};
use std::ffi::{OsStr, OsString};
use std::mem::discriminant;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

/// Text that breaks a JSON string that was put together by hand.
const NASTY: &str = "quo\"te, back\\slash, \\u12, new\nline, tab\t, bell\u{7}, \u{1f600}";

/// The same as a file name, which is not valid UTF-8 either.
const NASTY_NAME: &[u8] = b"quo\"te back\\slash new\nline \xff";

/// Limit for the number of the user's options that are tried.
const OPTIONS: usize = 8;

/// Size that is more than the smallest possible pipe holds, in bytes.
const LARGE: usize = 60 << 10;

/// Directory of a volume that does not exist.
const TARGET: &str = "pods/0c8e1f5a-1d5b-4a2e-9c53-000000000000/volumes/check.example~driver";

pub(in crate::check) const SCENES: &[Scene] =
    &[("output::escapes", How::Played(escapes)), ("output::slow_reader", How::Played(slow_reader))];

fn escapes(subject: &mut Subject<'_>) -> Played {
    let directory = Path::new(KUBELET_ROOT).join(TARGET);
    let target: OsString = directory.join("data").into();
    let nasty = |before: &[u8]| OsString::from(OsStr::from_bytes(&[before, NASTY_NAME].concat()));
    let path: OsString = directory.join(nasty(b"")).into();
    subject.excused = true;
    for words in [
        vec![NASTY.into()],
        vec![NASTY.into(), "{}".into()],
        vec!["mount".into(), path.clone(), "no JSON".into()],
        vec!["mount".into(), target, format!("{{\"{NASTY}\": \"{NASTY}").into()],
        // A driver may refuse such a path even if nothing is mounted there.
        vec!["unmount".into(), path.clone()],
        vec!["unmount".into(), nasty(b"")],
        vec!["unmount".into(), nasty(b"/no/such/directory/../")],
        vec!["unmount".into(), path, NASTY.into()],
    ] {
        is_valid(&subject.execute(&words))?;
    }
    if subject.facts.mounts && subject.is_contained() {
        escapes_a_file(subject)?;
        escapes_options(subject)?;
    }
    subject.excused = false;
    Ok(())
}

/// Puts a file in the place of a directory, with a name that breaks JSON.
fn escapes_a_file(subject: &mut Subject<'_>) -> Played {
    let mut volume = subject.volume()?;
    NASTY.clone_into(&mut volume.name);
    let target = volume.target()?;
    let above = target.as_path().parent().unwrap_or(Path::new("/"));
    make_directory(above)?;
    put(target.as_path(), "")?;
    let answer = subject.call(&volume.mount_call()?);
    is_valid(&answer)?;
    if subject.layers(&volume)? > 0 {
        subject.unmount(&volume)?.or_blocked("unmount::works")?;
    }
    // A driver may have made a directory there.
    let _ = std::fs::remove_file(target.as_path()).or_else(|_| std::fs::remove_dir(target.as_path()));
    Ok(())
}

/// Gives each option in turn a value that breaks JSON, so that the driver complains about it.
fn escapes_options(subject: &mut Subject<'_>) -> Played {
    let volume = subject.volume()?;
    let own = volume.options.own.keys().take(OPTIONS).map(String::as_str);
    let keys: Vec<_> =
        ["kubernetes.io/fsType", "kubernetes.io/readwrite", NASTY].into_iter().chain(own).collect();
    for key in keys {
        let volume = subject.volume()?;
        let target = volume.target()?;
        make_directory(target.as_path())?;
        let before = subject.inside.changed()?;
        let json = with(&volume.mount_call()?, key, NASTY)?;
        let answer = subject.execute(&["mount".into(), target.as_path().into(), json.into()]);
        is_valid(&answer)?;
        take_back(subject, &volume, &target, &answer)?;
        // A driver may take the text for the name of a file.
        for path in subject.inside.changed()?.iter().filter(|path| !before.contains(path)) {
            let _ = std::fs::remove_file(path);
        }
    }
    Ok(())
}

fn take_back(subject: &mut Subject<'_>, volume: &PodVolume, target: &TargetPath, answer: &Answer) -> Played {
    if subject.layers(volume)? > 0 {
        subject.unmount(volume)?.or_blocked("unmount::works")?;
    }
    match remove_directory(target.as_path()) {
        Ok(()) => Ok(()),
        Err(error) => {
            let problem = format!("the directory must be removed, but {error}");
            Err(Stopped::Blocked("unmount::works", Box::new(answer.evidence(problem))))
        }
    }
}

/// Returns the options of a call with one of them changed.
fn with(call: &Call, key: &str, value: &str) -> Result<String, Stopped> {
    let json = call.options().map(flexvol_protocol::Options::to_json).unwrap_or_default();
    let mut options: Map<String, Value> =
        serde_json::from_str(&json).map_err(|error| Stopped::Broken(error.into()))?;
    options.insert(key.to_owned(), value.into());
    Ok(Value::from(options).to_string())
}

/// Fails unless the answer is JSON and text. Other cases check whether kubelet can use it.
fn is_valid(answer: &Answer) -> Played {
    let is_text = std::str::from_utf8(&answer.run.output).is_ok();
    // Without any object, the escapes are not the problem.
    let tried = answer.run.output.contains(&b'{');
    if !tried || is_text && answer.object().is_some() {
        return Ok(());
    }
    let what = if is_text { answer.reading() } else { "it is not UTF-8".to_owned() };
    Err(answer.fails(format!("an answer about odd text must be valid JSON, but {what}")))
}

fn slow_reader(subject: &mut Subject<'_>) -> Played {
    let large = format!("{{\"{}\"", "large ".repeat(LARGE / 6));
    let target = Path::new(KUBELET_ROOT).join(TARGET).join("data");
    let calls: [&[OsString]; 3] =
        [&["init".into()], &["foo".into()], &["mount".into(), target.into(), large.into()]];
    for words in calls {
        let usual = subject.execute(words);
        subject.terms.reader = Reader::Slow { pause: Duration::from_millis(1) };
        let slow = subject.execute(words);
        subject.terms.reader = Reader::All;
        let same = discriminant(&usual.meant) == discriminant(&slow.meant);
        if !same || usual.is_readable() && !slow.is_readable() {
            return Err(slow.fails(format!("read slowly, the answer must be the same, but {}", slow.shown())));
        }
    }
    Ok(())
}

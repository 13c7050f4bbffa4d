//! Logs that a driver writes of its calls, if any.
//! They are the author's choice as long as they harm no one.

use crate::check::answer::Answer;
use crate::check::attempt::plainly;
use crate::check::case::{How, Scene};
use crate::check::cases::options::places;
use crate::check::evidence::{Played, Stopped, skip};
use crate::check::hunt::read;
use crate::check::subject::{KUBELET_ROOT, Subject};
use crate::sandbox::Isolation;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Limit for the size of a log, in bytes: no driver needs a larger one.
const LARGE: u64 = 128 << 20;

/// Limit for the number of calls that log at the same moment.
const CROWD: usize = 20;

/// Configuration of logrotate(8), which keeps logs small.
const ROTATED: &str = "/etc/logrotate.d";

pub(in crate::check) const SCENES: &[Scene] = &[
    ("log::bounded", How::Played(bounded)),
    ("log::unwritable", How::Played(unwritable)),
    ("log::forged_lines", How::Played(forged_lines)),
    ("log::concurrent", How::Played(concurrent)),
];

/// Makes several kinds of call; with a volume, also plays a whole life cycle.
fn chatter(subject: &mut Subject<'_>) -> Result<Vec<Answer>, Stopped> {
    let directory = nowhere("check");
    let directory = directory.to_string_lossy();
    let mut answers = vec![
        subject.words(&["init"]),
        subject.words(&["check-unknown"]),
        subject.words(&["mount", &directory, "{"]),
        subject.words(&["unmount", &directory]),
    ];
    if subject.given.volume.is_some() {
        let volume = subject.volume()?;
        answers.push(subject.attempt(&volume, &plainly)?.answer);
        subject.clear(&volume)?;
    }
    Ok(answers)
}

/// Returns the directory of a volume that does not exist.
fn nowhere(name: &str) -> PathBuf {
    Path::new(KUBELET_ROOT)
        .join("pods/0c8e1f5a-1d5b-4a2e-9c53-000000009999/volumes/check.example~check")
        .join(name)
}

/// Lists the files that were written, with their sizes.
fn sizes(subject: &Subject<'_>) -> Result<BTreeMap<PathBuf, u64>, Stopped> {
    let size = |path: PathBuf| {
        let data = path.symlink_metadata().ok().filter(fs::Metadata::is_file)?;
        Some((path, data.len()))
    };
    Ok(subject.inside.changed()?.into_iter().filter_map(size).collect())
}

/// Finds the files that grow from call to call.
fn logs(subject: &mut Subject<'_>) -> Result<(Vec<PathBuf>, Vec<Answer>), Stopped> {
    if subject.inside.isolation() == Isolation::None {
        return skip("needs root, or a user namespace, to see what is written");
    }
    chatter(subject)?;
    let before = sizes(subject)?;
    let answers = chatter(subject)?;
    let after = sizes(subject)?;
    let grown = after.into_iter().filter(|(path, size)| before.get(path).is_some_and(|before| size > before));
    Ok((grown.map(|(path, _)| path).collect(), answers))
}

fn bounded(subject: &mut Subject<'_>) -> Played {
    let (logs, _) = logs(subject)?;
    for log in logs {
        if is_rotated(&log) {
            continue;
        }
        OpenOptions::new().write(true).open(&log)?.set_len(LARGE)?;
        let mut answers = chatter(subject)?;
        answers.extend(chatter(subject)?);
        let is_large = fs::metadata(&log).is_ok_and(|data| data.len() > LARGE);
        if let (true, Some(answer)) = (is_large, answers.pop()) {
            return Err(answer.fails(format!("{} has {LARGE} bytes and goes on growing", log.display())));
        }
    }
    Ok(())
}

/// Reports whether logrotate(8) keeps the file small.
fn is_rotated(log: &Path) -> bool {
    let directory = log.parent().map(|directory| directory.join("*"));
    let named = [Some(log.to_owned()), directory];
    let named: Vec<_> = named.iter().flatten().filter_map(|path| path.to_str()).collect();
    fs::read_dir(ROTATED).into_iter().flatten().flatten().any(|entry| {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        named.iter().any(|name| text.contains(name))
    })
}

fn unwritable(subject: &mut Subject<'_>) -> Played {
    let (logs, before) = logs(subject)?;
    if logs.is_empty() {
        return Ok(());
    }
    for log in &logs {
        fs::remove_file(log)?;
        // Root may write to every file, but not to a directory.
        fs::create_dir(log)?;
        subject.ours(log);
    }
    let after = chatter(subject)?;
    for (before, after) in before.iter().zip(after) {
        if std::mem::discriminant(&before.meant) != std::mem::discriminant(&after.meant) {
            let (log, shown) = (logs.first().map(|log| log.display().to_string()), after.shown());
            let text = format!("{} cannot be written, and {shown}", log.unwrap_or_default());
            return Err(after.fails(text));
        }
    }
    for log in logs {
        // The driver may have removed the directory itself.
        let _ = fs::remove_dir(log);
    }
    Ok(())
}

fn forged_lines(subject: &mut Subject<'_>) -> Played {
    let marker = format!("check{:08x}", subject.random.u32(..));
    let end = Subject::budget();
    let mut last = None;
    for place in places(subject)? {
        if Instant::now() > end {
            break;
        }
        let volume = place.with(subject.volume()?, &format!("x\n{marker} forged\r{marker} forged\n"));
        last = Some(subject.attempt(&volume, &plainly)?.answer);
        subject.clear(&volume)?;
    }
    let files = subject.inside.changed()?;
    for (path, text) in files.iter().filter_map(|path| Some((path, read(path)?.0))) {
        let mut lines = text.split(|byte| matches!(byte, b'\n' | b'\r'));
        if lines.any(|line| line.starts_with(marker.as_bytes()))
            && let Some(answer) = last
        {
            return Err(answer.fails(format!("an option has begun a line of its own in {}", path.display())));
        }
    }
    Ok(())
}

fn concurrent(subject: &mut Subject<'_>) -> Played {
    if subject.inside.isolation() == Isolation::None {
        return skip("needs root, or a user namespace, to see what is written");
    }
    let marker = |number: usize| format!("check-call-{number:03}-end");
    let call = |number: usize| -> Vec<OsString> { vec!["unmount".into(), nowhere(&marker(number)).into()] };
    subject.execute(&call(0));
    let alone = lines_with(subject, &marker(0))?.len();
    let crowd = CROWD.min(9 + subject.repeat());
    let calls: Vec<_> = (1..=crowd).map(call).collect();
    let answers = subject.at_once(&calls);
    for (number, answer) in (1..).zip(answers) {
        let lines = lines_with(subject, &marker(number))?;
        if lines.len() != alone {
            let text = format!(
                "a call alone has {alone} lines in the log, and one of {crowd} at once {}",
                lines.len()
            );
            return Err(answer.fails(text));
        }
        let others =
            |line: &String| (1..=crowd).any(|other| other != number && line.contains(&marker(other)));
        if lines.iter().any(others) {
            return Err(answer.fails(format!("of {crowd} calls at once, two share a line of the log")));
        }
    }
    Ok(())
}

fn lines_with(subject: &Subject<'_>, marker: &str) -> Result<Vec<String>, Stopped> {
    let texts = subject.inside.changed()?.into_iter().filter_map(|path| read(&path));
    let texts: Vec<_> = texts.map(|(text, _)| String::from_utf8_lossy(&text).into_owned()).collect();
    let lines = texts.iter().flat_map(|text| text.lines()).filter(|line| line.contains(marker));
    Ok(lines.map(str::to_owned).collect())
}

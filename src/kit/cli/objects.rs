//! Reads the objects that kubectl applies from files; used by `pod`, `check` and others.

use crate::objects::Objects;
use anyhow::{Context as _, Result};
use flexvol_kubelet::PodVolume;
use flexvol_linux::fs::files;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::text::one_line;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Limit for a file, in bytes: the most that an API server accepts.
pub(super) const FILE_LIMIT: usize = 3 << 20;

/// Name of standard input, as in kubectl.
const STDIN: &str = "-";

/// Reads the objects of all files together; `-` is standard input.
pub(super) fn read<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Result<Objects> {
    let mut objects = Objects::default();
    for path in paths {
        let text = read_text(path)?;
        objects
            .add(&text)
            .map_err(|why| Failure::options(format!("{}: {}", path.display(), why.message())))?;
    }
    Ok(objects)
}

/// Reads a file that a user wrote, or standard input; fails if it is too large.
pub(super) fn read_text(file: &Path) -> Result<String> {
    let name = name(file);
    let mut text = String::new();
    let start = open(file)?.take(FILE_LIMIT as u64 + 1).read_to_string(&mut text);
    start.with_context(|| format!("read {name}"))?;
    anyhow::ensure!(text.len() <= FILE_LIMIT, "{name} is larger than {FILE_LIMIT} bytes");
    Ok(text)
}

/// Returns the name of a file for messages.
pub(super) fn name(file: &Path) -> String {
    let is_stdin = file == Path::new(STDIN);
    if is_stdin { "standard input".to_owned() } else { one_line(&file.display().to_string(), usize::MAX) }
}

/// Opens a regular file, or standard input.
pub(super) fn open(file: &Path) -> Result<Box<dyn Read>> {
    if file == Path::new(STDIN) {
        return Ok(Box::new(std::io::stdin()));
    }
    let missing = || Failure::new(Code::NotFound, format!("there is no file {}", name(file)));
    Ok(Box::new(files::open_regular(file)?.ok_or_else(missing)?))
}

/// Returns the title of a pod's volume, for people.
pub(super) fn title(volume: &PodVolume) -> String {
    let pod = &volume.options.pod;
    let word = |word: &Option<String>| word.clone().unwrap_or_default();
    format!("{}/{} {}", word(&pod.namespace), word(&pod.name), volume.name)
}

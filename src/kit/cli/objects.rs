//! What kubectl applies, read from files: what `pod` and `check` have in common.

use crate::objects::Objects;
use anyhow::{Context as _, Result};
use flexvol_kubelet::PodVolume;
use flexvol_linux::fs::files;
use flexvol_protocol::failure::{Code, Failure};
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// What an API server takes at most.
const FILE_LIMIT: usize = 3 << 20;

/// The objects of all files together; `-` is standard input.
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

/// A file of an author, or standard input.
pub(super) fn read_text(file: &Path) -> Result<String> {
    if file != Path::new("-") {
        let missing = || Failure::new(Code::NotFound, format!("there is no file {}", file.display()));
        return files::read_small(file, FILE_LIMIT)?.ok_or_else(|| missing().into());
    }
    let mut text = String::new();
    let limit = FILE_LIMIT as u64 + 1;
    std::io::stdin().take(limit).read_to_string(&mut text).context("read standard input")?;
    anyhow::ensure!(text.len() <= FILE_LIMIT, "standard input is larger than {FILE_LIMIT} bytes");
    Ok(text)
}

/// A volume of a pod, for people.
pub(super) fn title(volume: &PodVolume) -> String {
    let pod = &volume.options.pod;
    let word = |word: &Option<String>| word.clone().unwrap_or_default();
    format!("{}/{} {}", word(&pod.namespace), word(&pod.name), volume.name)
}

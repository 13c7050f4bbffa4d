//! The inputs in `fuzz/corpus`, for the tests of each crate that has readers of its own.

use crate::pace::deadline;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What reads foreign bytes.
type Reader = fn(&[u8]);

/// The package of the fuzzers: the tests of every crate of this tree find it above their own.
fn home() -> PathBuf {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    above.map(|directory| directory.join("fuzz")).find(|fuzz| fuzz.is_dir()).unwrap()
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path())
}

/// The inputs of a reader.
pub(crate) fn of(name: &str) -> impl Iterator<Item = PathBuf> + use<> {
    entries(&home().join("corpus").join(name))
}

/// Reads one of them, which takes milliseconds: one that takes long takes longer for each byte.
pub(crate) fn read(reader: Reader, path: &Path) {
    let (bytes, start) = (fs::read(path).unwrap(), Instant::now());
    println!("{}", path.display());
    reader(&bytes);
    assert!(start.elapsed() < deadline(10), "{}: {:?}", path.display(), start.elapsed());
}

/// A reader without a target is never fuzzed, and one without an input begins with nothing. `ours`
/// says which targets are of these readers.
pub(crate) fn are_complete(readers: &[(&str, Reader)], ours: impl Fn(&str) -> bool) {
    let names: BTreeSet<_> = readers.iter().map(|(name, _)| (*name).to_owned()).collect();
    let stems = |below: &str| {
        let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
        entries(&home().join(below)).map(stem).filter(|stem| ours(stem)).collect::<BTreeSet<_>>()
    };
    assert_eq!(stems("targets"), names);
    assert_eq!(stems("corpus"), names);
    let manifest = fs::read_to_string(home().join("Cargo.toml")).unwrap();
    for name in names {
        let text = fs::read_to_string(home().join("targets").join(format!("{name}.rs"))).unwrap();
        assert!(text.contains(&format!("target!(\"{name}\")")), "{name}: {text}");
        assert!(manifest.contains(&format!("path = \"targets/{name}.rs\"")), "{name} is not built");
    }
}

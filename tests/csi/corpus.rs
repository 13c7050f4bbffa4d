//! The inputs in `fuzz/corpus` of the readers of `flexvold`, those that once crashed one among
//! them.

use super::readers::READERS;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path())
}

#[test]
fn every_input_is_read() {
    for (name, reader) in READERS {
        let mut inputs = 0;
        for path in entries(&home().join("corpus").join(name)) {
            let (bytes, start) = (fs::read(&path).unwrap(), Instant::now());
            println!("{}", path.display());
            reader(&bytes);
            assert!(start.elapsed() < Duration::from_secs(5), "{}: {:?}", path.display(), start.elapsed());
            inputs += 1;
        }
        assert!(inputs > 2, "{name}: only {inputs}");
    }
}

/// A reader without a target is never fuzzed, and one without an input begins with nothing.
#[test]
fn every_reader_has_a_target_and_inputs() {
    let names: BTreeSet<_> = READERS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let stems = |below: &str| {
        let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
        let ours = |stem: &String| stem.starts_with("csi_");
        entries(&home().join(below)).map(stem).filter(ours).collect::<BTreeSet<_>>()
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

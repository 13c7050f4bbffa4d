//! The inputs in `fuzz/corpus`, those that once crashed a reader among them, through the functions
//! the fuzzers call.

use crate::readers::READERS;
use crate::report::Report;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path())
}

#[test]
fn every_input_is_read() {
    let (mut inputs, mut report) = (0, Report::begin("inputs", "fuzz/corpus", "read", READERS.len()));
    for (name, reader) in READERS {
        for path in entries(&home().join("corpus").join(name)) {
            let (bytes, start) = (fs::read(&path).unwrap(), Instant::now());
            println!("{}", path.display());
            reader(&bytes);
            assert!(start.elapsed() < Duration::from_secs(5), "{}: {:?}", path.display(), start.elapsed());
            report.tried(None);
            inputs += 1;
        }
    }
    report.end();
    assert!(inputs > 200, "only {inputs}");
}

/// A reader without a target is never fuzzed, and one without an input begins with nothing.
#[test]
fn every_reader_has_a_target_and_inputs() {
    let names: BTreeSet<_> = READERS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let stems = |below: &str| {
        let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
        // Those of `flexvold` are for the tests of that crate.
        let ours = |stem: &String| !stem.starts_with("csi_");
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

/// The parts of inputs in other orders: what a fuzzer does, for those who have none.
#[test]
fn crossed_inputs_are_read() {
    let mut random = fastrand::Rng::with_seed(7);
    for (name, reader) in READERS {
        let inputs: Vec<_> =
            entries(&home().join("corpus").join(name)).map(|path| fs::read(path).unwrap()).collect();
        for _ in 0..crate::report::rounds(200, 20_000) {
            let mut bytes = Vec::new();
            for _ in 0..random.usize(1..4) {
                let input = &inputs[random.usize(..inputs.len())];
                let (a, b) = (random.usize(..=input.len()), random.usize(..=input.len()));
                bytes.extend_from_slice(&input[a.min(b)..a.max(b)]);
            }
            if let Some(at) = (!bytes.is_empty()).then(|| random.usize(..bytes.len())) {
                bytes[at] = random.u8(..);
            }
            reader(&bytes);
        }
    }
}

//! The inputs in `fuzz/corpus`, those that once crashed a reader among them, through the functions
//! the fuzzers call.

use crate::inputs;
use crate::readers::READERS;
use crate::report::Report;
use std::fs;

#[test]
fn every_input_is_read() {
    let (mut inputs, mut report) = (0, Report::begin("inputs", "fuzz/corpus", "read", READERS.len()));
    for (name, reader) in READERS {
        for path in inputs::of(name) {
            inputs::read(*reader, &path);
            report.tried(None);
            inputs += 1;
        }
    }
    report.end();
    assert!(inputs > 200, "only {inputs}");
}

#[test]
fn every_reader_has_a_target_and_inputs() {
    // Those of `flexvold` are for the tests of that crate.
    inputs::are_complete(READERS, |name| !name.starts_with("csi_"));
}

/// The parts of inputs in other orders: what a fuzzer does, for those who have none.
#[test]
fn crossed_inputs_are_read() {
    let mut random = fastrand::Rng::with_seed(7);
    for (name, reader) in READERS {
        let inputs: Vec<_> = inputs::of(name).map(|path| fs::read(path).unwrap()).collect();
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

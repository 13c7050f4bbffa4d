//! The inputs in `fuzz/corpus` of the readers of `flexvold`, those that once crashed one among
//! them.

use super::inputs;
use super::readers::READERS;

#[test]
fn every_input_is_read() {
    for (name, reader) in READERS {
        let mut inputs = 0;
        for path in inputs::of(name) {
            inputs::read(*reader, &path);
            inputs += 1;
        }
        assert!(inputs > 2, "{name}: only {inputs}");
    }
}

#[test]
fn every_reader_has_a_target_and_inputs() {
    inputs::are_complete(READERS, |name| name.starts_with("csi_"));
}

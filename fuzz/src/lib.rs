//! Every reader of bytes that others write, each behind one function: for the fuzzers, and for the
//! tests that give them the committed inputs.

pub mod cluster;
pub mod node;

/// What libFuzzer calls: a target of this name.
#[macro_export]
macro_rules! target {
    ($name:literal) => {
        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| $crate::reader($name)(bytes));
    };
}

/// The reader of that name.
///
/// # Panics
///
/// If there is none.
pub fn reader(name: &str) -> fn(&[u8]) {
    let mut readers = node::READERS.iter().chain(cluster::READERS);
    readers.find(|reader| reader.0 == name).expect("the name of a reader").1
}

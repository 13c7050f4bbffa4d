//! Whatever others write: the committed inputs of the fuzzers, options that would like to be more
//! than one, names that would like to be paths.

mod corpus;
mod injection;
mod names;

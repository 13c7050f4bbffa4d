//! What no node and no process is needed for: plans, dialects, protocol, tables, documents and the
//! house rules. Nothing is started but git, nothing is mounted, and only files of the tree are read
//! (with `UPDATE=1` written).
#![cfg(test)]
#![allow(clippy::disallowed_methods, reason = "golden files are written with UPDATE=1")]
#![allow(unreachable_pub, reason = "the readers are a library for fuzzers")]

mod agent_tests;
mod conformance;
mod drivers;
mod error_texts;
mod hostile;
#[path = "../support/inputs.rs"]
mod inputs;
mod objects;
#[path = "../support/pace.rs"]
mod pace;
mod pictures;
mod plain_words;
mod plan_cases;
mod plans;
mod profiles;
mod profiles_document;
mod promises;
mod protocol;
#[path = "../../fuzz/src/node.rs"]
#[allow(dead_code, reason = "some of it is for fuzzers")]
mod readers;
#[path = "../support/trust/report.rs"]
#[allow(dead_code, reason = "some of it is for crashes and races")]
mod report;
mod site;
mod tidy;
mod translate;
mod validate;
mod verbs;
#[path = "../support/wording.rs"]
mod wording;
mod yaml;

//! Whether a driver is what kubelet needs: a conformance kit for FlexVolume drivers in any
//! language.
//!
//! ```text
//! Given ──▶ survey ──▶ Facts ──▶ Plan: which cases ──▶ one sandbox a case ──▶ CaseResult ──▶ Report
//! ```
//!
//! A [`Case`] is data: what holds, why kubelet cares, how to fix it, and a function. There are two
//! kinds. A *played* case does to the driver what kubelet does, through [`Subject`], and looks at
//! what becomes of it. A *watched* case has nothing to play: it looks at every call of every other
//! case and at what each left behind, so that a driver that prints a warning each time fails one
//! case and not a hundred. For the same reason a played case takes an answer for what it was
//! *meant* to be ([`Meant`]): only the watched cases are strict about its form.
//!
//! What has to work before a case can begin, such as a first mount, is no failure of that case: it
//! is *blocked*, and the case that is about the first mount fails.
//!
//! Every case is played in a process that is the first of a new PID namespace, with a mount table
//! and a network of its own and a copy of the machine's files to write to
//! ([`crate::sandbox`]). When it ends, everything it made ends with it; what the driver
//! made and should have undone is found before that ([`Left`]).
//!
//! The cases follow what pkg/volume/flexvolume of Kubernetes 1.13 to 1.36 does; CONFORMANCE.md
//! lists them. Each that must hold cites a run of a real one ([`RUNS`]).

mod answer;
mod attempt;
mod case;
mod cases;
mod chosen;
mod device_calls;
mod evidence;
mod facts;
mod footprint;
mod given;
mod hunt;
mod in_time;
mod left;
mod reboot;
mod replica;
mod report;
mod runner;
mod runs;
pub mod self_test;
mod spelling;
mod staging;
mod subject;
mod survey;

pub use answer::{Answer, Meant};
pub use case::{Case, How, Level, Scope, Seen, matching};
pub use cases::CASES;
pub use chosen::Chosen;
pub use evidence::{Evidence, Played, Stopped};
pub use facts::Facts;
pub use given::{Given, Nature};
pub use left::Left;
#[cfg(test)]
pub(crate) use report::tests::made_up;
pub use report::{CaseOutcome, CaseResult, Group, Report};
pub use runner::run;
pub use runs::{RELEASE, RUNS, Run};
pub use subject::Subject;

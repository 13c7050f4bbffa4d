//! Conformance kit for FlexVolume drivers in any language: checks whether a driver meets kubelet's
//! needs.
//!
//! ```text
//! Given ──▶ survey ──▶ Facts ──▶ chosen cases ──▶ one sandbox a case ──▶ CaseResult ──▶ Report
//! ```
//!
//! A [`Case`] is data: a claim, why kubelet cares, how to fix a failure, and a function. There are
//! two kinds. A *played* case calls the driver as kubelet does, through [`Subject`], and checks the
//! result. A *watched* case plays nothing: it checks every call of every other case, and what each
//! case left behind. So a driver that prints a warning at each call fails one case, not a hundred.
//! For the same reason a played case judges an answer by what it was *meant* to be ([`Meant`]):
//! only the watched cases are strict about its form.
//!
//! A step that must work before a case can begin, such as a first mount, does not fail that case.
//! The case is *blocked* instead, and the case about the first mount fails.
//!
//! Each case is played in a new PID namespace, with its own mount table, its own network and a
//! writable copy of the machine's files ([`crate::sandbox`]). Everything made in the namespace ends
//! with it. Leftovers that the driver should have cleaned up are found before that ([`Left`]).
//!
//! The cases follow the behaviour of pkg/volume/flexvolume in Kubernetes 1.13 to 1.36;
//! CONFORMANCE.md lists them. Each case that must hold cites a run of a real kubelet.

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
mod spelling;
mod staging;
mod subject;
mod survey;

pub use answer::{Answer, Meant};
pub use case::{Case, How, Level, Scope, Seen, matching};
pub use chosen::Chosen;
pub use evidence::{Evidence, Played, Stopped};
pub use facts::Facts;
pub use given::{Given, Nature};
pub use left::Left;
#[cfg(test)]
pub(crate) use report::tests::made_up;
pub use report::{CaseOutcome, CaseResult, Group, Report};
pub use runner::run;
pub use subject::Subject;

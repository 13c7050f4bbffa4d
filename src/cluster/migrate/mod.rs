//! Migration of a cluster's volumes from one driver to another, without copying data: the
//! `PersistentVolume` is created again under its name with another source, and its claim stays.
//!
//! ```text
//! read ─▶ make ─▶ Plan (a file) ─▶ apply: look ─▶ decide ─▶ one write ─▶ look …
//! ```
//!
//! [`found`] is the input of a plan, [`make`] makes the plan or refuses, [`plan`] is the file. All
//! of them are pure, and so is [`decide`]: the existing objects decide the next step. So a run that
//! was killed at any point can continue, and a look at the objects resolves a lost reply. Nothing
//! here deletes a claim. A volume is deleted only if its reclaim policy is `Retain`, if it is
//! unused, and if its replacement is kept in the cluster.

pub mod begin;
pub mod context;
pub mod decide;
pub mod exclusive;
pub mod found;
pub mod groups;
mod inline;
pub mod journal;
pub mod kept;
pub mod make;
pub mod plan;
pub mod read;
pub mod refusal;
mod run;
mod stop;
mod unused;
pub mod users;

#[cfg(test)]
mod tests;

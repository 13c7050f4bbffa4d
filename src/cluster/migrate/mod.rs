//! Volumes of a cluster moved from one driver to another, without moving a byte: the
//! `PersistentVolume` is made again under its name with another source, and its claim stays.
//!
//! ```text
//! read ─▶ make ─▶ Plan (a file) ─▶ apply: look ─▶ decide ─▶ one write ─▶ look …
//! ```
//!
//! [`found`] is what a plan is made of, [`make`] makes it or refuses, [`plan`] is the file; all of
//! them are pure, and so is [`decide`]: what is there says what is next, so whoever was killed
//! anywhere goes on, and a lost reply is found out by looking. Nothing here deletes a claim, and a
//! volume is deleted only when its reclaim policy is `Retain`, nobody uses it, and what will be
//! there instead is kept in the cluster.

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

//! What a volume is and what becomes of it, without touching a node: drivers turn options into
//! plans.
//!
//! 1. A [`driver`] turns a call's options, declared once with [`options!`](crate::options!), into a
//!    [`plan`]. [`drivers`] has them all; read [`drivers::tmpfs`] first.
//! 2. [`profiles`] has the options of other drivers, translated before a driver sees them.
//! 3. [`installed`] is a driver with its profile and its [`settings`], and makes the plan of a
//!    call. [`settings`] is what an admin says about one installed driver, and [`policy`] what its
//!    tenants may ask for: it is checked on the finished plan.
//! 4. [`diagnostics`] knows what an error text means and how it is fixed, [`packages`] which
//!    package brings which program.
//! 5. [`translate`] makes volumes of CSI drivers of FlexVolume volumes, and back; [`csi`] has the
//!    names they have there.
//! 6. [`schema`] and [`server`] are knowledge about words, [`paths`] about where things are,
//!    [`csi_journal`] about what the CSI server notes there, [`agent`] about what the node's agent is
//!    asked, [`mounter`] about what mount pods are.
//!
//! Nothing here does I/O, and the compiler shows it of system calls: no crate that makes one is a
//! dependency.

pub mod agent;
pub mod csi;
pub mod csi_journal;
pub mod diagnostics;
pub mod driver;
pub mod drivers;
mod fencing;
pub mod installed;
mod json_object;
pub mod mounter;
pub mod packages;
pub mod paths;
pub mod plan;
pub mod policy;
pub mod profiles;
pub mod schema;
pub mod server;
pub mod settings;
pub mod side_file;
pub mod translate;

#[cfg(test)]
#[path = "../../tests/support/wording.rs"]
mod wording;

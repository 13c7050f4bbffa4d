//! Pure model of volumes and drivers, without access to a node: drivers turn options into plans.
//!
//! 1. A [`driver`] turns a call's options, declared once with [`options!`](crate::options!), into a
//!    [`plan`]. [`drivers`] has them all; read [`drivers::tmpfs`] first.
//! 2. [`profiles`] has the options of other drivers. They are translated before a driver sees them.
//! 3. [`installed`] is a driver with its profile and its [`settings`]; it makes the plan of a call.
//!    [`settings`] is the admin's side file for one installed driver. [`policy`] limits what its
//!    tenants may ask for; it is checked on the finished plan.
//! 4. [`diagnostics`] finds the cause of an error text and its fix, [`packages`] the package that
//!    contains a program.
//! 5. [`translate`] turns FlexVolume volumes into volumes of CSI drivers, and back; [`csi`] has the
//!    CSI names of drivers and volumes.
//! 6. [`schema`] parses options, [`server`] names of servers. [`paths`] has the paths on a node,
//!    [`csi_journal`] the CSI server's files there. [`agent`] is the protocol of the node's agent,
//!    [`mounter`] that of mount pods.
//!
//! Nothing here does I/O. For system calls the compiler ensures it: no crate that makes one is a
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

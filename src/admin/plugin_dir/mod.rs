//! Plugin directory, from which kubelet reads drivers: at any time it sees only complete ones.
//!
//! ```text
//! <plugin directory>/<vendor>~<driver>/<driver>          what kubelet executes
//! <plugin directory>/<vendor>~<driver>/.flexvol.json     per-driver configuration file; ignored by kubelet
//! ```
//!
//! kubelet watches the directory (pkg/volume/flexvolume/probe.go). After every change of a name
//! without a leading dot, its next probe runs the driver's `init` again; if `init` fails, kubelet
//! keeps the old object and retries for ever. So a driver appears by one rename of a complete
//! directory, changes by one rename of a complete file, and disappears by one unlink and one rmdir.
//!
//! An installer holds the flock(2) of the plugin directory that it works on: two installers in two
//! containers share nothing else.

pub mod found;
pub mod in_use;
pub mod install;
pub mod list;
pub mod litter;
pub mod opened;
pub mod receipt;
pub mod refusal;
pub mod uninstall;
pub mod witness;

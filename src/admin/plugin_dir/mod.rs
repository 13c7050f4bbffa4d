//! The directory kubelet reads drivers from, changed so that kubelet only ever sees whole drivers.
//!
//! ```text
//! <plugin directory>/<vendor>~<driver>/<driver>          what kubelet executes
//! <plugin directory>/<vendor>~<driver>/.flexvol.json     per-driver configuration file; ignored by kubelet
//! ```
//!
//! kubelet watches the directory (pkg/volume/flexvolume/probe.go): at every change of a name
//! without a leading dot it runs the driver's `init` again at its next look, and of a driver whose
//! `init` fails it keeps the old object and tries for ever. So a driver appears by one rename of a
//! complete directory, changes by one rename of a complete file, and goes by one unlink and one
//! rmdir.
//!
//! Who works on a plugin directory holds its flock(2): two installers in two containers share
//! nothing else.

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

//! FlexVolume wire protocol: the arguments that kubelet passes, and how it reads the answer.
//!
//! A driver is an executable `<plugin directory>/<vendor>~<driver>/<driver>` ([`DriverName`]).
//! Kubelet runs it with a [`Verb`] and its arguments; together they are a [`Call`]. Most carry the
//! [`Options`] of the volume, some the directory to mount on, a [`TargetPath`]. The driver prints
//! one [`Reply`], which kubelet reads as a [`DriverStatus`].
//!
//! The values of options are defined here, too: [`mount_options`], [`mkfs_options`],
//! [`file_system`], [`quantity`], [`ownership`].
//!
//! The module serves both sides, the driver's and kubelet's, and does no I/O. Each side parses what
//! the other renders.
//!
//! ```
//! # use std::ffi::OsString;
//! use flexvol_protocol::{Access, Call, DriverStatus, StatusKind, Reply, Verb};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let argv = ["mount", "/var/lib/kubelet/pods/7/volumes/example~nfs/data",
//!     r#"{"kubernetes.io/fsType":"","kubernetes.io/readwrite":"ro","server":"10.0.0.1"}"#].map(OsString::from);
//!
//! // The driver's side.
//! let verb = Verb::parse(&argv[0]).ok_or("answer Not supported")?;
//! let call = Call::parse(verb, &argv[1..])?;
//! let options = call.options().ok_or("mount has options")?;
//! assert_eq!((options.access(), options.fs_type()), (Access::ReadOnly, None));
//! assert_eq!(options.own["server"], "10.0.0.1");
//! let line = Reply::success().to_line();
//! assert_eq!(line, "{\"status\":\"Success\"}\n");
//!
//! // Kubelet's side.
//! assert_eq!(call.to_arguments(), argv);
//! assert_eq!(DriverStatus::parse(line.as_bytes())?.outcome(), StatusKind::Success);
//! # Ok(())
//! # }
//! ```

mod backoff;
mod call;
pub mod errno_words;
pub mod failure;
pub mod file_system;
mod go_json;
pub mod mkfs_options;
pub mod mount_options;
mod name;
mod options;
pub mod ordered;
pub mod ownership;
pub mod quantity;
mod reply;
pub mod secret;
pub mod shell;
mod status;
mod target;
pub mod text;
mod verb;
pub mod volume_dir;

pub use backoff::backoff;
pub use call::Call;
pub use go_json::Malformed;
pub use name::DriverName;
pub use options::{Access, FsGroup, FsGroupSpelling, Options, PodRef, SECRET};
pub use reply::{Capabilities, Fields, Reply};
pub use status::{DriverStatus, StatusKind};
pub use target::TargetPath;
pub use verb::{Argument, Caller, VERBS, Verb, VerbSet, VerbSpec};

use std::str::FromStr;

/// Parses a number as Go's `FormatInt` writes one that is not negative: digits only, where Rust
/// also accepts a `+`.
fn decimal<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
#[path = "../../tests/support/wording.rs"]
mod wording;

//! Name of a driver: `vendor/driver` in manifests, `vendor~driver` on disk.

use crate::failure::{Failure, Result};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::str::FromStr;

/// Limit for the vendor, which is a DNS subdomain.
const VENDOR_LIMIT: usize = 253;
/// Limit for the driver, which is the last part of a qualified name.
const DRIVER_LIMIT: usize = 63;

/// Name of a driver as kubelet accepts it after `init`: a Kubernetes qualified name.
///
/// Every value follows these rules, so [`DriverName::directory`] and [`DriverName::executable`] are
/// always plain file names without a slash or a leading dot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverName {
    vendor: Option<String>,
    driver: String,
}

impl DriverName {
    /// Parses a name from a manifest or a command line: `vendor/driver`, or `driver` alone.
    pub fn parse(name: &str) -> Result<Self> {
        let (vendor, driver) = match name.split_once('/') {
            Some((vendor, driver)) => (Some(vendor), driver),
            None => (None, name),
        };
        let complaint = if driver.contains('/') {
            "has more than one slash: write vendor/driver"
        } else if !vendor.is_none_or(is_subdomain) {
            "needs a lower-case DNS name before the slash: write one such as example.com/driver"
        } else if let Some(meant) = of_directory(name) {
            let text = format!("driver name {name:?} is that of its directory: write {meant}");
            return Err(Failure::options(text));
        } else if !is_last_part(driver) {
            "needs 1 to 63 letters, digits, '-', '_' or '.' for the driver, a letter or digit first and last: rename it"
        } else {
            return Ok(Self { vendor: vendor.map(Into::into), driver: driver.into() });
        };
        Err(Failure::options(format!("driver name {name:?} {complaint}")))
    }

    /// Parses the name of a directory in the plugin directory, `vendor~driver`, as kubelet's prober
    /// does.
    pub fn from_directory(directory: impl AsRef<OsStr>) -> Result<Self> {
        let directory = directory.as_ref().to_string_lossy();
        if directory.contains('/') {
            return Err(Failure::options(format!(
                "driver directory {directory:?} has a slash: write vendor~driver"
            )));
        }
        Self::parse(&directory.replace('~', "/"))
    }

    /// Returns the part before the slash. Without it, the controller-manager cannot recover
    /// attachments after a restart.
    pub fn vendor(&self) -> Option<&str> {
        self.vendor.as_deref()
    }

    /// Returns the part after the slash.
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// Returns the name of the driver's directory in the plugin directory.
    pub fn directory(&self) -> String {
        self.to_string().replace('/', "~")
    }

    /// Returns the name of the file in that directory that kubelet executes.
    pub fn executable(&self) -> &str {
        &self.driver
    }

    /// Returns the file that kubelet executes in a directory of any name, including names that
    /// Kubernetes refuses: the part after the last `~`.
    pub fn executable_in(directory: &OsStr) -> &OsStr {
        let last = directory.as_bytes().rsplit(|byte| *byte == b'~').next();
        OsStr::from_bytes(last.unwrap_or_default())
    }
}

impl fmt::Display for DriverName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(vendor) = &self.vendor {
            write!(f, "{vendor}/")?;
        }
        f.write_str(&self.driver)
    }
}

impl FromStr for DriverName {
    type Err = Failure;

    fn from_str(name: &str) -> Result<Self> {
        Self::parse(name)
    }
}

/// Returns the driver, if the text is the name of a driver's directory instead of a driver's name.
fn of_directory(name: &str) -> Option<DriverName> {
    name.contains('~').then(|| DriverName::from_directory(name).ok())?
}

/// Checks RFC 1123 as Kubernetes reads it: only the whole length is limited, not that of a label.
fn is_subdomain(text: &str) -> bool {
    let label = |label: &str| framed(label, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit(), b"-");
    text.len() <= VENDOR_LIMIT && text.split('.').all(label)
}

fn is_last_part(text: &str) -> bool {
    text.len() <= DRIVER_LIMIT && framed(text, |byte| byte.is_ascii_alphanumeric(), b"-_.")
}

/// Reports whether a text is not empty, has `edge` bytes first and last, and `edge` or `inner`
/// bytes between them.
fn framed(text: &str, edge: impl Fn(u8) -> bool, inner: &[u8]) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    ends.into_iter().all(|end| end.copied().is_some_and(&edge))
        && bytes.iter().all(|byte| edge(*byte) || inner.contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::wording_of;

    #[test]
    fn manifest_and_disk_name_the_same() {
        for (name, directory, executable) in [
            ("example.com/nfs", "example.com~nfs", "nfs"),
            ("k8s/My_Driver.v2", "k8s~My_Driver.v2", "My_Driver.v2"),
            ("cifs", "cifs", "cifs"),
        ] {
            let parsed = DriverName::parse(name).unwrap();
            assert_eq!((parsed.directory().as_str(), parsed.executable()), (directory, executable));
            assert_eq!(DriverName::executable_in(directory.as_ref()), executable);
            assert_eq!(
                (parsed.to_string().as_str(), DriverName::from_directory(directory)),
                (name, Ok(parsed))
            );
        }
    }

    #[test]
    fn refusals_name_the_fix() {
        let long = format!("v/{}", "a".repeat(64));
        let long_vendor = format!("{}/d", "a".repeat(254));
        for (name, fix) in [
            ("a/b/c", "write vendor/driver"),
            ("Foo/x", "example.com/driver"),
            ("a_b/x", "example.com/driver"),
            ("/x", "example.com/driver"),
            ("a..b/x", "example.com/driver"),
            (".foo/x", "example.com/driver"),
            (&long_vendor, "example.com/driver"),
            ("", "rename it"),
            ("v/", "rename it"),
            ("v/.x", "rename it"),
            ("v/x-", "rename it"),
            ("v/x y", "rename it"),
            ("v/x~y", "rename it"),
            ("a~b~c", "rename it"),
            ("flexvol~tmpfs", wording_of("directory-name", ["…", "flexvol/tmpfs"])),
            ("..", "rename it"),
            (&long, "rename it"),
        ] {
            let message = DriverName::parse(name).unwrap_err().message();
            assert!(message.ends_with(fix), "{message}");
        }
    }

    #[test]
    fn directories_kubelet_refuses_are_refused() {
        for directory in ["a~b~c", "Foo~x", ".git", "v~", "~x", "v/x", "..", ""] {
            assert!(DriverName::from_directory(directory).is_err(), "{directory}");
        }
    }
}

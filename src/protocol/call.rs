//! One call of a driver, as typed data and as argv.

use super::{Argument, Options, TargetPath, Verb, decimal};
use crate::failure::{Failure, Result};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Verb with its arguments.
///
/// The driver's side parses it from argv, and kubelet's side renders it to argv:
/// `parse(render(call)) == call`. Its `Debug` masks the secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "Argument documents the fields")]
pub enum Call {
    /// [`Verb::Init`]
    Init,
    /// [`Verb::GetVolumeName`]
    GetVolumeName { options: Options },
    /// [`Verb::Attach`]
    Attach { options: Options, node: String },
    /// [`Verb::Detach`]
    Detach { volume: String, node: String },
    /// [`Verb::WaitForAttach`]
    WaitForAttach { device: String, options: Options },
    /// [`Verb::IsAttached`]
    IsAttached { options: Options, node: String },
    /// [`Verb::MountDevice`]
    MountDevice { target: TargetPath, device: String, options: Options },
    /// [`Verb::UnmountDevice`]
    UnmountDevice { target: TargetPath },
    /// [`Verb::Mount`]. Kubernetes before 1.6 put the device between target and options.
    Mount { target: TargetPath, device: Option<String>, options: Options },
    /// [`Verb::Unmount`]
    Unmount { target: TargetPath },
    /// [`Verb::ExpandVolume`]. The controller would send a relative target, because it does not
    /// know the plugin directory.
    ExpandVolume { options: Options, target: PathBuf, new_bytes: u64, old_bytes: u64 },
    /// [`Verb::ExpandFs`]. The target is the pod's directory; in some releases it was the global
    /// directory at first.
    ExpandFs { options: Options, device: String, target: TargetPath, new_bytes: u64, old_bytes: u64 },
}

/// Returns the options of the verbs that have some, borrowed in the same way as the call.
macro_rules! options_of {
    ($call:expr) => {
        match $call {
            Self::GetVolumeName { options }
            | Self::Attach { options, .. }
            | Self::WaitForAttach { options, .. }
            | Self::IsAttached { options, .. }
            | Self::MountDevice { options, .. }
            | Self::Mount { options, .. }
            | Self::ExpandVolume { options, .. }
            | Self::ExpandFs { options, .. } => Some(options),
            Self::Init | Self::Detach { .. } | Self::UnmountDevice { .. } | Self::Unmount { .. } => None,
        }
    };
}

impl Call {
    /// Parses the arguments after the verb in argv. `init` accepts and ignores any arguments, for
    /// future kubelets.
    ///
    /// A wrong number of arguments or an argument of the wrong form is a [`Failure`] that names the
    /// argument and never repeats it.
    pub fn parse(verb: Verb, arguments: &[OsString]) -> Result<Self> {
        Ok(match (verb, arguments) {
            (Verb::Init, _) => Self::Init,
            (Verb::GetVolumeName, [options]) => Self::GetVolumeName { options: Options::parse(options)? },
            (Verb::Attach, [options, node]) => {
                Self::Attach { options: Options::parse(options)?, node: name(Argument::Node, node)? }
            }
            (Verb::Detach, [volume, node]) => {
                Self::Detach { volume: name(Argument::Volume, volume)?, node: name(Argument::Node, node)? }
            }
            (Verb::WaitForAttach, [device, options]) => {
                Self::WaitForAttach { device: self::device(device)?, options: Options::parse(options)? }
            }
            (Verb::IsAttached, [options, node]) => {
                Self::IsAttached { options: Options::parse(options)?, node: name(Argument::Node, node)? }
            }
            (Verb::MountDevice, [target, device, options]) => Self::MountDevice {
                target: TargetPath::parse(target)?,
                device: self::device(device)?,
                options: Options::parse(options)?,
            },
            (Verb::UnmountDevice, [target]) => Self::UnmountDevice { target: TargetPath::parse(target)? },
            (Verb::Mount, [target, device @ .., options]) if device.len() <= 1 => Self::Mount {
                target: TargetPath::parse(target)?,
                device: device.first().map(|device| self::device(device)).transpose()?,
                options: Options::parse(options)?,
            },
            (Verb::Unmount, [target]) => Self::Unmount { target: TargetPath::parse(target)? },
            (Verb::ExpandVolume, [options, target, new, old]) => Self::ExpandVolume {
                options: Options::parse(options)?,
                target: nonempty(Argument::Target, target)?.into(),
                new_bytes: bytes(Argument::NewBytes, new)?,
                old_bytes: bytes(Argument::OldBytes, old)?,
            },
            (Verb::ExpandFs, [options, device, target, new, old]) => Self::ExpandFs {
                options: Options::parse(options)?,
                device: self::device(device)?,
                target: TargetPath::parse(target)?,
                new_bytes: bytes(Argument::NewBytes, new)?,
                old_bytes: bytes(Argument::OldBytes, old)?,
            },
            (verb, arguments) => return Err(wrong_count(verb, arguments.len())),
        })
    }

    /// Returns the verb alone.
    pub fn verb(&self) -> Verb {
        match self {
            Self::Init => Verb::Init,
            Self::GetVolumeName { .. } => Verb::GetVolumeName,
            Self::Attach { .. } => Verb::Attach,
            Self::Detach { .. } => Verb::Detach,
            Self::WaitForAttach { .. } => Verb::WaitForAttach,
            Self::IsAttached { .. } => Verb::IsAttached,
            Self::MountDevice { .. } => Verb::MountDevice,
            Self::UnmountDevice { .. } => Verb::UnmountDevice,
            Self::Mount { .. } => Verb::Mount,
            Self::Unmount { .. } => Verb::Unmount,
            Self::ExpandVolume { .. } => Verb::ExpandVolume,
            Self::ExpandFs { .. } => Verb::ExpandFs,
        }
    }

    /// Returns the options; `None` for verbs without options. `unmount` and `unmountdevice` have
    /// none, so what they need must have been recorded before.
    pub fn options(&self) -> Option<&Options> {
        options_of!(self)
    }

    /// Returns [`options`](Self::options) for code that fills in defaults.
    pub fn options_mut(&mut self) -> Option<&mut Options> {
        options_of!(self)
    }

    /// Wipes the secrets out of memory, after their use.
    pub fn forget_secrets(&mut self) {
        if let Some(options) = self.options_mut() {
            options.secrets.clear();
        }
    }

    /// Returns the directory of the verbs that have one on this node; `expandvolume` runs
    /// elsewhere.
    pub fn target(&self) -> Option<&TargetPath> {
        match self {
            Self::MountDevice { target, .. }
            | Self::UnmountDevice { target }
            | Self::Mount { target, .. }
            | Self::Unmount { target }
            | Self::ExpandFs { target, .. } => Some(target),
            _ => None,
        }
    }

    /// Returns argv from the verb on, byte for byte as kubelet passes it. It contains the secrets
    /// and is for exec only.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let json = || self.options().map(Options::to_json).unwrap_or_default().into();
        let path = |target: &TargetPath| target.as_path().into();
        let mut arguments: Vec<OsString> = vec![self.verb().name().into()];
        match self {
            Self::Init => {}
            Self::GetVolumeName { .. } => arguments.push(json()),
            Self::Attach { node, .. } | Self::IsAttached { node, .. } => {
                arguments.extend([json(), node.into()]);
            }
            Self::Detach { volume, node } => arguments.extend([volume.into(), node.into()]),
            Self::WaitForAttach { device, .. } => arguments.extend([device.into(), json()]),
            Self::MountDevice { target, device, .. } => {
                arguments.extend([path(target), device.into(), json()]);
            }
            Self::UnmountDevice { target } | Self::Unmount { target } => arguments.push(path(target)),
            Self::Mount { target, device, .. } => {
                arguments.push(path(target));
                arguments.extend(device.iter().map(OsString::from));
                arguments.push(json());
            }
            Self::ExpandVolume { target, new_bytes, old_bytes, .. } => {
                let sizes = [new_bytes, old_bytes].map(|bytes| bytes.to_string().into());
                arguments.extend([json(), target.into()].into_iter().chain(sizes));
            }
            Self::ExpandFs { device, target, new_bytes, old_bytes, .. } => {
                let sizes = [new_bytes, old_bytes].map(|bytes| bytes.to_string().into());
                arguments.extend([json(), device.into(), path(target)].into_iter().chain(sizes));
            }
        }
        arguments
    }
}

fn wrong_count(verb: Verb, got: usize) -> Failure {
    let expected = verb.spec().arguments;
    let names: Vec<_> = expected.iter().map(|argument| argument.name()).collect();
    let plural = if expected.len() == 1 { "" } else { "s" };
    Failure::call(format!(
        "{verb} needs {} argument{plural} ({}), got {got}",
        expected.len(),
        names.join(", ")
    ))
}

fn text(argument: Argument, value: &OsStr) -> Result<String> {
    let text = value.to_str().ok_or_else(|| Failure::call(format!("{} must be UTF-8", argument.name())))?;
    Ok(text.to_owned())
}

fn nonempty(argument: Argument, value: &OsStr) -> Result<&OsStr> {
    if value.is_empty() {
        return Err(Failure::call(format!("{} must not be empty", argument.name())));
    }
    Ok(value)
}

fn name(argument: Argument, value: &OsStr) -> Result<String> {
    text(argument, nonempty(argument, value)?)
}

/// Parses the device. It may be empty: a driver without devices has none to pass on from `attach`.
fn device(value: &OsStr) -> Result<String> {
    text(Argument::Device, value)
}

/// Parses a size. It is Go's int64 in kubelet, of which sizes use the positive half.
fn bytes(argument: Argument, value: &OsStr) -> Result<u64> {
    value.to_str().and_then(decimal::<i64>).map(i64::unsigned_abs).ok_or_else(|| {
        Failure::call(format!("{} must be a decimal number of bytes below 2^63", argument.name()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Code;
    use crate::wording::wording_of;

    fn parse(verb: Verb, arguments: &[&str]) -> Result<Call> {
        Call::parse(verb, &arguments.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn wrong_counts_name_the_shape() {
        for (verb, arguments, expected) in [
            (
                Verb::Mount,
                &["{\"password\":\"hunter2\"}"][..],
                "mount needs 2 arguments (target, options), got 1",
            ),
            (Verb::Mount, &["/a", "", "{}", "x"], "mount needs 2 arguments (target, options), got 4"),
            (Verb::Unmount, &[], "unmount needs 1 argument (target), got 0"),
            (
                Verb::ExpandFs,
                &["{}", "", "/a", "1"],
                "expandfs needs 5 arguments (options, device, target, new size, old size), got 4",
            ),
        ] {
            let failure = parse(verb, arguments).unwrap_err();
            assert_eq!((failure.code(), failure.message().as_str()), (Code::BadCall, expected));
        }
    }

    #[test]
    fn every_verb_has_the_arguments_of_its_table_row() {
        for verb in Verb::ALL.into_iter().skip(1) {
            let arguments: Vec<_> = verb
                .spec()
                .arguments
                .iter()
                .map(|argument| match argument {
                    Argument::Options => "{}",
                    Argument::Node | Argument::Volume => "n",
                    Argument::Device => "",
                    Argument::Target => "/a",
                    Argument::NewBytes => "2",
                    Argument::OldBytes => "1",
                })
                .collect();
            let call = parse(verb, &arguments).unwrap();
            assert_eq!(call.verb(), verb);
            assert_eq!(call.to_arguments()[1..], arguments, "{verb}");
            assert_eq!(call.options().is_some(), arguments.contains(&"{}"), "{verb}");
            for count in 0..arguments.len() {
                assert!(parse(verb, &arguments[..count]).is_err(), "{verb} with {count}");
            }
        }
    }

    #[test]
    fn init_takes_anything() {
        assert_eq!(parse(Verb::Init, &["x", ""]), Ok(Call::Init));
    }

    #[test]
    fn mount_before_1_6_had_a_device() {
        let call = parse(Verb::Mount, &["/a", "/dev/sdb", "{}"]).unwrap();
        assert!(matches!(&call, Call::Mount { device: Some(device), .. } if device == "/dev/sdb"));
        assert_eq!(call.to_arguments(), ["mount", "/a", "/dev/sdb", "{}"]);
    }

    #[test]
    fn arguments_are_checked_one_by_one() {
        for (verb, arguments, expected) in [
            (Verb::Attach, &["{}", ""][..], wording_of("empty-argument", ["node"])),
            (Verb::Detach, &["", "n"], wording_of("empty-argument", ["volume"])),
            (Verb::ExpandVolume, &["{}", "", "1", "1"], wording_of("empty-argument", ["target"])),
            (
                Verb::ExpandVolume,
                &["{}", "v/d/mounts/x", "-1", "1"],
                wording_of("no-decimal-size", ["new size"]),
            ),
            (
                Verb::ExpandVolume,
                &["{}", "v/d/mounts/x", "1", "9223372036854775808"],
                wording_of("no-decimal-size", ["old size"]),
            ),
        ] {
            assert_eq!(parse(verb, arguments).unwrap_err().message(), expected);
        }
    }

    #[test]
    fn debug_masks_secrets() {
        let call = parse(Verb::Mount, &["/a", r#"{"kubernetes.io/secret/k":"aHVudGVyMg=="}"#]).unwrap();
        let debug = format!("{call:?}");
        assert!(
            debug.contains("***") && !debug.contains("aHVudGVyMg") && !debug.contains("hunter2"),
            "{debug}"
        );
    }
}

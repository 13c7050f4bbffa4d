//! Answer of a driver, and the single line that is written. For kubelet's reading of it see
//! [`super::DriverStatus`].

use super::DriverStatus;
use super::go_json::{object, quote};
use crate::failure::Failure;
use serde_json::{Map, Value};

/// Capabilities by which kubelet and the controller-manager know a driver. They are the answer to
/// `init`, and must be the same on every host and never change: a change of `attach` changes the
/// identity of volumes in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the wire has five independent switches")]
pub struct Capabilities {
    /// Volumes are attached to nodes and mounted in two stages. Without it, only `mount` and
    /// `unmount` are called.
    pub attach: bool,
    /// The runtime may relabel the volume. Not for file systems without extended attributes.
    pub selinux_relabel: bool,
    /// Kubelet may statfs the mount every minute. A server that hangs then blocks one of its
    /// workers.
    pub supports_metrics: bool,
    /// Kubelet changes owner and mode of every file to the pod's `fsGroup` after `mount`.
    pub fs_group: bool,
    /// Kubelet calls `expandfs` when the PV has grown.
    pub requires_fs_resize: bool,
}

impl Capabilities {
    /// Capabilities that kubelet assumes for a driver that names none.
    pub const KUBELET_DEFAULT: Self = Self {
        attach: true,
        selinux_relabel: true,
        supports_metrics: false,
        fs_group: true,
        requires_fs_resize: true,
    };

    /// Capabilities of a volume for which kubelet shall do nothing but mount it.
    pub const NONE: Self = Self {
        attach: false,
        selinux_relabel: false,
        supports_metrics: false,
        fs_group: false,
        requires_fs_resize: false,
    };

    /// Writes all five, always: a default may change, and differs from what most drivers need.
    fn to_json(self) -> String {
        let members = [
            ("attach", self.attach),
            ("selinuxRelabel", self.selinux_relabel),
            ("supportsMetrics", self.supports_metrics),
            ("fsGroup", self.fs_group),
            ("requiresFSResize", self.requires_fs_resize),
        ];
        object(members.map(|(key, value)| (key, value.to_string())))
    }
}

/// Fields of a `Success` besides its status. Absent fields are not written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// For `attach` and `waitforattach`. If the latter leaves it out, the device is forgotten.
    pub device: Option<String>,
    /// For `getvolumename`; kubelet does not read it.
    pub volume_name: Option<String>,
    /// For `isattached`. If it is left out, the volume counts as detached.
    pub attached: Option<bool>,
    /// For `init`.
    pub capabilities: Option<Capabilities>,
    /// For `expandvolume`; kubelet does not read it.
    pub volume_new_size: Option<i64>,
}

/// Answer of a driver to one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The requested state holds.
    Success(Fields),
    /// The requested state does not hold; the text is the reason and reaches the pod's Events.
    /// Kubelet tries again.
    Failure(String),
    /// The driver does not have the verb. Kubelet never asks again, so this must not vary with
    /// time.
    NotSupported,
}

impl Reply {
    /// Returns success without fields.
    pub fn success() -> Self {
        Self::Success(Fields::default())
    }

    /// Returns the answer to `init`.
    pub fn capabilities(capabilities: Capabilities) -> Self {
        Self::Success(Fields { capabilities: Some(capabilities), ..Fields::default() })
    }

    /// Returns the answer to `attach` and `waitforattach`.
    pub fn device(device: impl Into<String>) -> Self {
        Self::Success(Fields { device: Some(device.into()), ..Fields::default() })
    }

    /// Returns the answer to `isattached`.
    pub fn attached(attached: bool) -> Self {
        Self::Success(Fields { attached: Some(attached), ..Fields::default() })
    }

    /// Returns the whole output of a call: one JSON object with the status first, and a line feed.
    /// It contains no other line feed, whatever the message contains.
    pub fn to_line(&self) -> String {
        let members = match self {
            Self::Success(fields) => fields.members(),
            Self::Failure(message) => vec![("message", quote_bounded(message))],
            Self::NotSupported => Vec::new(),
        };
        let mut line = object([("status", quote(self.status()))].into_iter().chain(members));
        line.push('\n');
        line
    }

    /// Parses a line that [`to_line`](Self::to_line) made; `None` for any other line. A worker
    /// passes its reply to its supervisor in this form. Answers of other drivers are parsed by
    /// [`DriverStatus`].
    pub fn from_line(line: &str) -> Option<Self> {
        let object: Map<String, Value> = serde_json::from_str(line).ok()?;
        let text = |key: &str| object.get(key).and_then(Value::as_str).map(str::to_owned);
        match text("status")?.as_str() {
            "Success" => Some(Self::Success(Fields {
                device: text("device"),
                volume_name: text("volumeName"),
                attached: object.get("attached").and_then(Value::as_bool),
                capabilities: object
                    .get("capabilities")
                    .and(DriverStatus::parse(line.as_bytes()).ok()?.capabilities),
                volume_new_size: object.get("volumeNewSize").and_then(Value::as_i64),
            })),
            "Failure" => text("message").map(Self::Failure),
            "Not supported" => Some(Self::NotSupported),
            _ => None,
        }
    }

    /// Returns the status in the spelling that kubelet compares with.
    pub fn status(&self) -> &'static str {
        match self {
            Self::Success(_) => "Success",
            Self::Failure(_) => "Failure",
            Self::NotSupported => "Not supported",
        }
    }
}

impl Fields {
    fn members(&self) -> Vec<(&'static str, String)> {
        let members = [
            ("device", self.device.as_deref().map(quote)),
            ("volumeName", self.volume_name.as_deref().map(quote)),
            ("attached", self.attached.map(|attached| attached.to_string())),
            ("capabilities", self.capabilities.map(Capabilities::to_json)),
            ("volumeNewSize", self.volume_new_size.map(|size| size.to_string())),
        ];
        members.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }
}

/// Limit for a message in a line, in bytes. Escapes can make six bytes of one, and the line must
/// fit into `PIPE_BUF` bytes, because only so much is written without waiting for the reader.
const QUOTED_LIMIT: usize = 4000;

/// Returns the message as a JSON string, cut off where it would get too long.
fn quote_bounded(message: &str) -> String {
    let whole = quote(message);
    if whole.len() <= QUOTED_LIMIT {
        return whole;
    }
    let mut room = QUOTED_LIMIT - quote("…").len();
    let fits = |c: &char| {
        let left = room.checked_sub(quote(c.encode_utf8(&mut [0; 4])).len() - quote("").len());
        room = left.unwrap_or(0);
        left.is_some()
    };
    quote(&message.chars().take_while(fits).chain(['…']).collect::<String>())
}

impl From<Failure> for Reply {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure.message())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_back_as_it_was() {
        let full = Fields {
            device: Some("/dev/a\n".into()),
            volume_name: Some(String::new()),
            attached: Some(false),
            capabilities: Some(Capabilities { attach: false, ..Capabilities::KUBELET_DEFAULT }),
            volume_new_size: Some(-1),
        };
        for reply in
            [Reply::Success(full), Reply::success(), Reply::Failure("\"é\u{1}".into()), Reply::NotSupported]
        {
            assert_eq!(Reply::from_line(&reply.to_line()), Some(reply));
        }
        assert_eq!(Reply::from_line("{\"status\":\"Succ"), None);
    }

    #[test]
    fn a_failure_fits_into_a_pipe_at_once() {
        for text in ["\u{1}", "\"", "<", "\u{2028}", "ä", "a\\\u{7f}é"] {
            for count in [1, 500, 667, 1024, 5000] {
                let line = Reply::Failure(text.repeat(count)).to_line();
                assert!(line.len() <= 4096, "{text:?} {count}: {}", line.len());
                let Some(Reply::Failure(message)) = Reply::from_line(&line) else { panic!("{line}") };
                assert!(message == text.repeat(count) || (message.ends_with('…') && line.len() > 3990));
            }
        }
    }

    #[test]
    fn lines_are_compact_with_the_status_first() {
        let init = Capabilities { attach: false, ..Capabilities::KUBELET_DEFAULT };
        let all = Fields {
            device: Some("/dev/sdb".into()),
            volume_name: Some(String::new()),
            attached: Some(false),
            capabilities: None,
            volume_new_size: Some(-1),
        };
        for (reply, expected) in [
            (Reply::success(), r#"{"status":"Success"}"#),
            (Reply::NotSupported, r#"{"status":"Not supported"}"#),
            (Reply::device(""), r#"{"status":"Success","device":""}"#),
            (Reply::attached(true), r#"{"status":"Success","attached":true}"#),
            (
                Reply::capabilities(init),
                concat!(
                    r#"{"status":"Success","capabilities":{"attach":false,"selinuxRelabel":true,"#,
                    r#""supportsMetrics":false,"fsGroup":true,"requiresFSResize":true}}"#
                ),
            ),
            (
                Reply::Success(all),
                r#"{"status":"Success","device":"/dev/sdb","volumeName":"","attached":false,"volumeNewSize":-1}"#,
            ),
            (Reply::Failure("a\n\"b\"".into()), r#"{"status":"Failure","message":"a\n\"b\""}"#),
            (Failure::options("size: no").into(), r#"{"status":"Failure","message":"size: no"}"#),
        ] {
            assert_eq!(reply.to_line(), format!("{expected}\n"));
        }
    }
}

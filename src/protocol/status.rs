//! Reply as kubelet reads it: Go's `json.Unmarshal` into its `DriverStatus`, with every leniency
//! and trap.

use super::Capabilities;
use super::go_json::{self, Malformed, Value};

/// Kubelet's view of a driver's output. Fields that the output leaves out have kubelet's default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverStatus {
    /// Any text. [`DriverStatus::outcome`] returns its meaning.
    pub status: String,
    /// Shown when the call failed, otherwise ignored.
    pub message: String,
    /// Used by `attach` and `waitforattach`.
    pub device: String,
    /// Never used.
    pub volume_name: String,
    /// Used by `isattached`.
    pub attached: bool,
    /// Used by `init`. `None` is an explicit `null`, at which kubelet panics.
    pub capabilities: Option<Capabilities>,
    /// Never used.
    pub volume_new_size: i64,
}

/// Meaning of a status for kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusKind {
    /// The call succeeded, if the exit code is also 0.
    Success,
    /// The verb is not called again until the driver is probed again.
    NotSupported,
    /// The call failed and is retried.
    Failure,
}

impl Default for DriverStatus {
    /// Returns the meaning of `{}`.
    fn default() -> Self {
        Self {
            status: String::new(),
            message: String::new(),
            device: String::new(),
            volume_name: String::new(),
            attached: false,
            capabilities: Some(Capabilities::KUBELET_DEFAULT),
            volume_new_size: 0,
        }
    }
}

impl DriverStatus {
    /// Parses the whole combined output of a call.
    ///
    /// Known keys match in any case, and the last of several wins. Unknown keys are ignored, and
    /// `null` keeps the default. A single known key with a value of the wrong type makes the whole
    /// answer invalid, in any verb.
    pub fn parse(output: &[u8]) -> Result<Self, Malformed> {
        let mut status = Self::default();
        match go_json::parse(output)? {
            Value::Null => {}
            Value::Object(object) => {
                for (key, value) in object.members()? {
                    status.set(&key, value)?;
                }
            }
            other => return Err(Malformed::wrong_type(&other, "Go value of type flexvolume.DriverStatus")),
        }
        Ok(status)
    }

    /// Returns the meaning of the status. Kubelet compares the exact text, so `success` is a
    /// failure.
    pub fn outcome(&self) -> StatusKind {
        match self.status.as_str() {
            "Success" => StatusKind::Success,
            "Not supported" => StatusKind::NotSupported,
            _ => StatusKind::Failure,
        }
    }

    fn set(&mut self, key: &str, value: Value) -> Result<(), Malformed> {
        match fold(key).as_str() {
            "status" => assign(&mut self.status, &value, "DriverStatus.status"),
            "message" => assign(&mut self.message, &value, "DriverStatus.message"),
            "device" => assign(&mut self.device, &value, "DriverStatus.device"),
            "volumename" => assign(&mut self.volume_name, &value, "DriverStatus.volumeName"),
            "attached" => assign(&mut self.attached, &value, "DriverStatus.attached"),
            "capabilities" => self.set_capabilities(value),
            "volumenewsize" => assign(&mut self.volume_new_size, &value, "DriverStatus.volumeNewSize"),
            _ => Ok(()),
        }
    }

    /// Sets the only pointer of the struct: `null` clears it. An object is merged over the current
    /// value, or over `false` everywhere if a `null` came before. Go names this field with a
    /// capital letter, because it has no key of its own.
    fn set_capabilities(&mut self, value: Value) -> Result<(), Malformed> {
        match value {
            Value::Null => self.capabilities = None,
            Value::Object(object) => {
                let mut capabilities = self.capabilities.unwrap_or(NONE);
                for (key, value) in object.members()? {
                    capabilities.set(&key, &value)?;
                }
                self.capabilities = Some(capabilities);
            }
            other => {
                let target =
                    "Go struct field DriverStatus.Capabilities of type flexvolume.DriverCapabilities";
                return Err(Malformed::wrong_type(&other, target));
            }
        }
        Ok(())
    }
}

/// Go's zero value.
const NONE: Capabilities = Capabilities {
    attach: false,
    selinux_relabel: false,
    supports_metrics: false,
    fs_group: false,
    requires_fs_resize: false,
};

impl Capabilities {
    fn set(&mut self, key: &str, value: &Value) -> Result<(), Malformed> {
        let (field, name) = match fold(key).as_str() {
            "attach" => (&mut self.attach, "attach"),
            "selinuxrelabel" => (&mut self.selinux_relabel, "selinuxRelabel"),
            "supportsmetrics" => (&mut self.supports_metrics, "supportsMetrics"),
            "fsgroup" => (&mut self.fs_group, "fsGroup"),
            "requiresfsresize" => (&mut self.requires_fs_resize, "requiresFSResize"),
            _ => return Ok(()),
        };
        assign(field, value, &format!("DriverCapabilities.Capabilities.{name}"))
    }
}

/// Returns a key as Go compares it: with simple case folding, by which two letters outside ASCII
/// equal one inside. Go's preference for the exact spelling has no effect: no two fields fold to
/// the same key.
fn fold(key: &str) -> String {
    let fold = |c| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    key.chars().map(fold).collect()
}

/// Go type of a field of the structs.
trait Decode: Sized {
    const GO_TYPE: &'static str;

    fn decode(value: &Value) -> Option<Self>;
}

impl Decode for String {
    const GO_TYPE: &'static str = "string";

    fn decode(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(text.clone()),
            _ => None,
        }
    }
}

impl Decode for bool {
    const GO_TYPE: &'static str = "bool";

    fn decode(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }
}

impl Decode for i64 {
    const GO_TYPE: &'static str = "int64";

    fn decode(value: &Value) -> Option<Self> {
        match value {
            Value::Number(number) => *number,
            _ => None,
        }
    }
}

fn assign<T: Decode>(field: &mut T, value: &Value, name: &str) -> Result<(), Malformed> {
    if *value != Value::Null {
        let target = || format!("Go struct field {name} of type {}", T::GO_TYPE);
        *field = T::decode(value).ok_or_else(|| Malformed::wrong_type(value, &target()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> DriverStatus {
        DriverStatus::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn what_is_left_out_or_null_has_the_default() {
        let nulls = r#"{"status":null,"message":null,"device":null,"volumeName":null,"attached":null,
            "capabilities":{"attach":null},"volumeNewSize":null}"#;
        for text in ["{}", "null", " \r\n\t{ } \n", nulls, r#"{"unknown":[{"status":"x"}],"statu":1}"#] {
            assert_eq!(parse(text), DriverStatus::default(), "{text}");
        }
        assert_eq!(parse("{}").outcome(), StatusKind::Failure);
    }

    #[test]
    fn keys_match_in_any_case_and_the_last_wins() {
        let status = parse(
            r#"{"Status":"no","STATUS":"Success","status":null,"VOLUMENAME":"v","deVice":"d","Attached":true,
            "volumenewsize":-5,"\u017ftatus":"Not supported"}"#,
        );
        assert_eq!(status.outcome(), StatusKind::NotSupported);
        assert_eq!((status.volume_name.as_str(), status.device.as_str()), ("v", "d"));
        assert_eq!((status.attached, status.volume_new_size), (true, -5));
        assert_eq!(fold("K\u{212a}ſſ"), "kkss");
        assert_eq!(parse("{\"status\":\"Success\",\"ſtatuſ\":\"Failed\"}").outcome(), StatusKind::Failure);
    }

    #[test]
    fn only_the_exact_words_succeed() {
        for (word, outcome) in [
            ("Success", StatusKind::Success),
            ("Not supported", StatusKind::NotSupported),
            ("success", StatusKind::Failure),
            ("Success ", StatusKind::Failure),
            ("Not Supported", StatusKind::Failure),
            ("Failure", StatusKind::Failure),
        ] {
            assert_eq!(parse(&format!("{{\"status\":\"{word}\"}}")).outcome(), outcome, "{word}");
        }
    }

    #[test]
    fn capabilities_are_merged_over_the_defaults() {
        let capabilities = |text: &str| parse(&format!("{{{text}}}")).capabilities;
        let default = Capabilities::KUBELET_DEFAULT;
        let detached = Capabilities { attach: false, ..default };
        assert_eq!(capabilities(r#""capabilities":{"ATTACH":false,"new":"x"}"#), Some(detached));
        let relabel = "\"Capabilities\":{\"\u{17f}elinuxRelabel\":false}";
        assert_eq!(capabilities(relabel), Some(Capabilities { selinux_relabel: false, ..default }));
        let twice = r#""capabilities":{"attach":false},"Capabilities":{"supportsMetrics":true}"#;
        assert_eq!(capabilities(twice), Some(Capabilities { supports_metrics: true, ..detached }));
        assert_eq!(capabilities(r#""capabilities":{"attach":false},"capabilities":null"#), None);
        let after_null = r#""capabilities":null,"capabilities":{"fsGroup":true}"#;
        assert_eq!(capabilities(after_null), Some(Capabilities { fs_group: true, ..NONE }));
    }

    #[test]
    fn one_wrong_type_voids_everything() {
        let field = "Go struct field";
        for (text, expected) in [
            (r#"{"attached":"true"}"#, format!("string into {field} DriverStatus.attached of type bool")),
            (r#"{"attached":1}"#, format!("number into {field} DriverStatus.attached of type bool")),
            (r#"{"status":true}"#, format!("bool into {field} DriverStatus.status of type string")),
            (r#"{"Message":["x"]}"#, format!("array into {field} DriverStatus.message of type string")),
            (r#"{"device":{}}"#, format!("object into {field} DriverStatus.device of type string")),
            (
                r#"{"volumeNewSize":"1"}"#,
                format!("string into {field} DriverStatus.volumeNewSize of type int64"),
            ),
            (
                r#"{"volumeNewSize":1.0}"#,
                format!("number into {field} DriverStatus.volumeNewSize of type int64"),
            ),
            (
                r#"{"volumeNewSize":9223372036854775808}"#,
                format!("number into {field} DriverStatus.volumeNewSize of type int64"),
            ),
            (
                r#"{"capabilities":true}"#,
                format!("bool into {field} DriverStatus.Capabilities of type flexvolume.DriverCapabilities"),
            ),
            (
                r#"{"status":"Success","capabilities":{"attach":"false"}}"#,
                format!("string into {field} DriverCapabilities.Capabilities.attach of type bool"),
            ),
            ("[]", "array into Go value of type flexvolume.DriverStatus".into()),
            ("\"Success\"", "string into Go value of type flexvolume.DriverStatus".into()),
        ] {
            let error = DriverStatus::parse(text.as_bytes()).unwrap_err().to_string();
            assert_eq!(error, format!("json: cannot unmarshal {expected}"), "{text}");
        }
    }

    #[test]
    fn bad_syntax_goes_before_bad_types() {
        let error = DriverStatus::parse(br#"{"attached":"true"} x"#).unwrap_err().to_string();
        assert_eq!(error, "invalid character 'x' after top-level value");
    }

    #[test]
    fn invalid_text_is_fixed_not_refused() {
        let status = DriverStatus::parse(b"{\"status\":\"Success\",\"message\":\"\xff\\ud800\"}").unwrap();
        assert_eq!((status.outcome(), status.message.as_str()), (StatusKind::Success, "\u{fffd}\u{fffd}"));
    }
}

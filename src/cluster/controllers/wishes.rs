//! Settings for new volumes, beyond their classes and claims: the flags of upstream's provisioner,
//! with the same names.

use clap::ArgAction::Set;
use clap::Args;

/// Flags of provisioning. A Boolean flag may have a value, as upstream: `--flag=false`.
#[derive(Args, Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "as many as upstream's provisioner has flags that matter here"
)]
pub struct Wishes {
    /// With provisioning: tell the driver the names of claim and volume, as parameters
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = false,
        default_missing_value = "true", value_name = "BOOL")]
    pub extra_create_metadata: bool,
    /// File system of volumes whose class, or PersistentVolume, names none
    #[arg(long, value_name = "NAME")]
    pub default_fstype: Option<String>,
    /// With provisioning: prefix of the names of volumes
    #[arg(long, value_name = "PREFIX", default_value = "pvc", value_parser = prefix)]
    pub volume_name_prefix: String,
    /// With provisioning: letters of the claim's uid in the names of volumes [default: all]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=32))]
    pub volume_name_uuid_length: Option<u8>,
    /// With provisioning: request a volume only where the selected node is
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = false,
        default_missing_value = "true", value_name = "BOOL")]
    pub strict_topology: bool,
    /// With provisioning: without a selected node, request a volume where the driver's nodes are
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = true,
        default_missing_value = "true", value_name = "BOOL")]
    pub immediate_topology: bool,
    /// With provisioning: attach volumes of `ReadOnlyMany` claims read-only
    #[arg(long, action = Set, num_args = 0..=1, require_equals = true, default_value_t = false,
        default_missing_value = "true", value_name = "BOOL")]
    pub controller_publish_readonly: bool,
}

/// Behavior of upstream without flags.
impl Default for Wishes {
    fn default() -> Self {
        Self {
            extra_create_metadata: false,
            default_fstype: None,
            volume_name_prefix: "pvc".to_owned(),
            volume_name_uuid_length: None,
            strict_topology: false,
            immediate_topology: true,
            controller_publish_readonly: false,
        }
    }
}

impl Wishes {
    /// Returns the name of a claim's volume. Shortened names of two claims may be equal: then the
    /// second claim is refused.
    pub fn volume_name(&self, claim_uid: &str) -> String {
        let prefix = &self.volume_name_prefix;
        let Some(length) = self.volume_name_uuid_length else { return format!("{prefix}-{claim_uid}") };
        let letters = claim_uid.chars().filter(|letter| *letter != '-').take(length.into());
        format!("{prefix}-{}", letters.collect::<String>())
    }
}

/// Checks the prefix for the names of `PersistentVolumes`.
fn prefix(text: &str) -> Result<String, String> {
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    if begins && text.len() <= 200 && text.bytes().all(is_plain) {
        return Ok(text.to_owned());
    }
    Err("a name has small letters, digits, - and ., and begins with a letter or digit".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_named_as_upstream_names_them() {
        let uid = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";
        let name = |volume_name_uuid_length| {
            let volume_name_prefix = "k8s".to_owned();
            Wishes { volume_name_prefix, volume_name_uuid_length, ..Wishes::default() }.volume_name(uid)
        };
        assert_eq!(name(None), format!("k8s-{uid}"));
        assert_eq!(name(Some(10)), "k8s-0a1b2c3d4e");
        assert_eq!(Wishes::default().volume_name(uid), format!("pvc-{uid}"));
    }

    #[test]
    fn a_prefix_begins_a_name() {
        for (text, is_one) in
            [("pvc", true), ("a.b-c1", true), ("", false), ("-a", false), ("A", false), ("a/b", false)]
        {
            assert_eq!(prefix(text).is_ok(), is_one, "{text:?}");
        }
    }
}

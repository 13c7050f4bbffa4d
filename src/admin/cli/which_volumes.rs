//! Selection of volumes by parts of their names, for `status` and `logs`.

use clap::Args;

/// Filters for volumes. A filter that is not given matches every volume.
#[derive(Args)]
pub(super) struct WhichVolumes {
    /// Only volumes of this pod: a part of its namespace/name or uid
    #[arg(long, value_name = "POD")]
    pub(super) pod: Option<String>,
    /// Only volumes of this name, or a part of it
    #[arg(long, value_name = "VOLUME")]
    pub(super) volume: Option<String>,
    /// Only volumes of this driver: a part of vendor/driver
    #[arg(long, value_name = "DRIVER")]
    pub(super) driver: Option<String>,
}

/// Reports whether the requested text, if there is one, is a part of any of the texts.
pub(super) fn asked_for(asked: Option<&str>, texts: &[&str]) -> bool {
    asked.is_none_or(|asked| texts.iter().any(|text| text.contains(asked)))
}

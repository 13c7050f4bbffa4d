//! Limits for the resources of the node that a volume's options may request from rclone.

use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::mount_options::FsOption;
use flexvol_protocol::quantity::Quantity;

/// Limit for rclone's buffer in memory, in bytes, for each file that is open for reading.
const BUFFER: u64 = 128 << 20;

/// Limit for files that rclone stores at the same time.
const TRANSFERS: u64 = 64;

/// Parses a size as rclone does, rounded up: without a unit it is in KiB, and every unit is a power
/// of 1024.
fn bytes(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let exponent = match unit.to_ascii_lowercase().as_str() {
        "b" => 0,
        "" | "k" | "ki" | "kib" => 1,
        "m" | "mi" | "mib" => 2,
        "g" | "gi" | "gib" => 3,
        _ => return None,
    };
    let whole: u64 = number.split('.').next()?.parse().ok()?;
    let whole = if number.contains('.') { whole.checked_add(1)? } else { whole };
    whole.checked_mul(1 << (10 * exponent))
}

/// Refuses options that request more of the node than a volume may have.
pub(super) fn check(further: &[FsOption], cache: u64) -> Result<()> {
    for (key, limit) in [("vfs-cache-max-size", cache), ("buffer-size", BUFFER), ("transfers", TRANSFERS)] {
        let given = further.iter().filter(|option| option.key == key);
        let given = given.filter_map(|option| option.value.as_deref());
        let count = key == "transfers";
        let fits = |text: &&str| {
            if count { text.parse().ok() } else { bytes(text) }.is_some_and(|size: u64| size <= limit)
        };
        if let Some(text) = given.into_iter().find(|text| !fits(text)) {
            let limit = if count { limit.to_string() } else { Quantity(limit).to_string() };
            let fix =
                if key == "vfs-cache-max-size" { ", or let the admin raise policy.maxCache" } else { "" };
            return Err(Failure::options(format!(
                "mountOptions: \"{key}={text}\" is more than {limit}: ask for less{fix}"
            )));
        }
    }
    Ok(())
}

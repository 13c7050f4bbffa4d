//! Sizes in the notation of Kubernetes' API. Pure.

use flexvol_protocol::quantity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Billionths in one: a billionth is the smallest unit of Kubernetes.
const NANO: u128 = 1_000_000_000;

/// Suffixes of an amount, and the number of billionths that each stands for. Unlike FlexVolume's
/// drivers, Kubernetes has `m` for a thousandth, and `k` for a thousand.
const SUFFIXES: [(&str, u128); 15] = [
    ("Ki", NANO << 10),
    ("Mi", NANO << 20),
    ("Gi", NANO << 30),
    ("Ti", NANO << 40),
    ("Pi", NANO << 50),
    ("Ei", NANO << 60),
    ("n", 1),
    ("u", 1_000),
    ("m", 1_000_000),
    ("k", NANO * 1_000),
    ("M", NANO * 1_000_000),
    ("G", NANO * 1_000_000_000),
    ("T", NANO * 1_000_000_000_000),
    ("P", NANO * 1_000_000_000_000_000),
    ("E", NANO * 1_000_000_000_000_000_000),
];

/// Converts an amount to bytes, rounded up. `None` if it is not an amount, or is too large.
pub fn bytes(amount: &Quantity) -> Option<i64> {
    let text = amount.0.as_str();
    let suffix = SUFFIXES.iter().find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)));
    let (number, unit) = match suffix {
        Some(found) => found,
        None => match text.split_once(['e', 'E']) {
            Some((number, power)) => (number, NANO.checked_mul(10_u128.checked_pow(power.parse().ok()?)?)?),
            None => (text, NANO),
        },
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: String = [whole, fraction].concat();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let parts = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?.checked_mul(NANO)?;
    let bytes = digits.parse::<u128>().ok()?.checked_mul(unit)?.div_ceil(parts);
    i64::try_from(bytes).ok()
}

/// Converts bytes to an amount, in the largest binary unit that divides them.
pub fn amount(bytes: i64) -> Quantity {
    Quantity(quantity::Quantity(u64::try_from(bytes).unwrap_or_default()).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_those_of_kubernetes() {
        for (text, bytes_of) in [
            ("0", Some(0)),
            ("1Gi", Some(1 << 30)),
            ("1.5Gi", Some(3 << 29)),
            ("1M", Some(1_000_000)),
            ("1k", Some(1_000)),
            ("1500m", Some(2)),
            ("1n", Some(1)),
            ("1e3", Some(1_000)),
            ("12E6", Some(12_000_000)),
            ("2E", Some(2_000_000_000_000_000_000)),
            ("0.1", Some(1)),
            ("1048577", Some(1_048_577)),
            ("9Ei", None),
            ("", None),
            ("Gi", None),
            ("-1", None),
            ("1K", None),
            ("1e99", None),
            ("1e-3", None),
        ] {
            assert_eq!(bytes(&Quantity(text.to_owned())), bytes_of, "{text}");
        }
    }

    #[test]
    fn an_amount_has_the_largest_unit() {
        for (bytes, text) in [(1 << 30, "1Gi"), (3 << 29, "1536Mi"), (1_000_000_000, "1000000000"), (0, "0")]
        {
            assert_eq!(amount(bytes).0, text);
        }
    }
}

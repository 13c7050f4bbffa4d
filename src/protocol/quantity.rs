//! Sizes as people write them in a PV: `64Mi`, `1.5G`, `512k`, `1e9`, `1048576`.
//!
//! Kubernetes' suffixes have the same meaning as there: `Ki Mi Gi Ti Pi Ei` are powers of 1024, `M
//! G T P E` are powers of 1000. The lower-case `k m g t` are those of the kernel and of `truncate`:
//! powers of 1024, for the PVs of older drivers. `K` alone is refused, because the two conventions
//! disagree about it.

use std::fmt;

/// A size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(pub u64);

/// Suffix and factor, longest suffix first.
const SUFFIXES: &[(&str, u64)] = &[
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
];

impl Quantity {
    /// Parses a size. The error names the fix and follows the option's name in a message.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (digits, factor) = split_suffix(text);
        let (number, exponent) = match digits.split_once(['e', 'E']) {
            Some((number, exponent)) => {
                (number, exponent.parse::<u32>().ok().filter(|&exponent| exponent <= 18))
            }
            None => (digits, Some(0)),
        };
        let scaled = exponent.and_then(|exponent| scale(number, u128::from(factor) * 10u128.pow(exponent)));
        let bytes =
            scaled.ok_or_else(|| format!("{text:?} is not a size: write it like 64Mi, 1G or 1048576"))?;
        u64::try_from(bytes)
            .ok()
            .filter(|&bytes| i64::try_from(bytes).is_ok())
            .map(Self)
            .ok_or_else(|| format!("{text:?} is too large: a size must be below 8Ei"))
    }
}

fn split_suffix(text: &str) -> (&str, u64) {
    SUFFIXES
        .iter()
        .find_map(|(suffix, factor)| text.strip_suffix(suffix).map(|digits| (digits, *factor)))
        .unwrap_or((text, 1))
}

/// Multiplies `number` (digits with at most one point) by `factor`, rounded up as Kubernetes does.
fn scale(number: &str, factor: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !digits(whole) || !digits(fraction) || fraction.len() > 9
    {
        return None;
    }
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let unit = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    whole.checked_mul(factor)?.checked_add(part.checked_mul(factor)?.div_ceil(unit))
}

impl fmt::Display for Quantity {
    /// Writes the largest binary unit that divides the size, so that `67108864` reads `64Mi`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = SUFFIXES[..6]
            .iter()
            .rev()
            .find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        match unit {
            Some((suffix, factor)) => write!(f, "{}{suffix}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_kubernetes_and_older_drivers_write() {
        let cases = [
            ("0", 0),
            ("1048576", 1 << 20),
            ("64Mi", 64 << 20),
            ("1G", 1_000_000_000),
            ("1g", 1 << 30),
            ("512k", 512 << 10),
            ("1.5Gi", 3 << 29),
            ("0.1k", 103),
            ("1e3", 1000),
            ("2E", 2_000_000_000_000_000_000),
            (".5Ki", 512),
        ];
        for (text, bytes) in cases {
            assert_eq!(Quantity::parse(text), Ok(Quantity(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_everything_else_with_the_fix() {
        for text in
            ["", "Mi", "-1", "1K", "1 Mi", "1,uid=0", "0x10", "1.2.3", "1e99", "9Ei", "١", "1e3Mi5", "+1"]
        {
            let error = Quantity::parse(text).unwrap_err();
            assert!(error.contains("write it like") || error.contains("below 8Ei"), "{text}: {error}");
        }
    }

    #[test]
    fn prints_the_largest_unit() {
        assert_eq!(Quantity(64 << 20).to_string(), "64Mi");
        assert_eq!(Quantity(1000).to_string(), "1000");
        assert_eq!(Quantity(0).to_string(), "0");
    }
}

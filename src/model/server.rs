//! Names and addresses of servers in volumes and policies. Every driver uses this one parser.
//!
//! It accepts less than the programs that read the text afterwards. It refuses everything that two
//! parsers could read differently: user names, escapes, unusual spellings of addresses. So the
//! server that the policy compares is the server that is connected to.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Names that mean the local node on every node, and names of clouds' metadata services.
const LOCAL_NAMES: [&str; 8] = [
    "localhost",
    "localhost.localdomain",
    "localhost4",
    "localhost6",
    "ip6-localhost",
    "ip6-loopback",
    "metadata.google.internal",
    "metadata",
];

/// Metadata services of clouds outside the link-local networks: AWS, Alibaba, Azure.
const METADATA: [IpAddr; 3] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
];

/// Parses a host name, an IPv4 address, or an IPv6 address with or without brackets. The result has
/// brackets around an IPv6 address.
pub fn host(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if bare.parse::<Ipv6Addr>().is_ok() {
        return Ok(format!("[{bare}]"));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let labels = text.strip_suffix('.').unwrap_or(text);
    let named = text.len() <= 253
        && !text.starts_with('-')
        && text.chars().all(plain)
        && labels.split('.').all(|label| !label.is_empty());
    if !named {
        return Err(format!("{text:?} is neither a host name nor an address"));
    }
    // getaddrinfo also reads these as addresses: 127.1, 0x7f000001, 2130706433, 0177.0.0.1.
    if labels.rsplit('.').next().is_some_and(is_number) && text.parse::<Ipv4Addr>().is_err() {
        return Err(format!(
            "{text:?} is not an address: write it as four decimal numbers, such as 10.0.0.1"
        ));
    }
    Ok(text.to_owned())
}

fn is_number(label: &str) -> bool {
    let hexadecimal = label.strip_prefix("0x").or_else(|| label.strip_prefix("0X"));
    hexadecimal.map_or_else(
        || label.bytes().all(|byte| byte.is_ascii_digit()),
        |digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
    )
}

/// Parses a TCP or UDP port.
pub fn port(text: &str) -> Result<u16, String> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|port| *port > 0 && digits);
    number.ok_or_else(|| format!("{text:?} is not a port between 1 and 65535"))
}

/// Parses `host`, `host:port` or `[address]:port`. An IPv6 address without a port needs no
/// brackets.
pub fn host_and_port(text: &str) -> Result<(String, Option<u16>), String> {
    match text.rsplit_once(':') {
        Some((name, number)) if !name.contains(':') || name.ends_with(']') => {
            Ok((host(name)?, Some(port(number)?)))
        }
        _ => Ok((host(text)?, None)),
    }
}

/// Returns the host of an HTTP URL, whose scheme may be missing. Refuses a user, and characters
/// that have a meaning for programs that read options, lines or quotes.
pub fn of_url(text: &str) -> Result<String, String> {
    let wrong = || format!("{text:?} is not a URL such as https://files.example.com/web, without a user");
    let rest = ["https://", "http://"].iter().find_map(|scheme| text.strip_prefix(scheme)).unwrap_or(text);
    let harmless = |c: char| c.is_ascii_alphanumeric() || "._~:/%?&=+[]-".contains(c);
    if rest.contains("://") || !rest.chars().all(harmless) {
        return Err(wrong());
    }
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    // An IPv6 address in a URL needs brackets; otherwise its end would be read as a port.
    let bracketed = authority.starts_with('[') || authority.matches(':').count() < 2;
    let (host, _) = host_and_port(authority).ok().filter(|_| bracketed).ok_or_else(wrong)?;
    Ok(host)
}

/// Reports whether the text is one label, from which a host name can be built.
pub fn is_label(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    !text.is_empty() && text.len() <= 63 && !text.starts_with('-') && text.bytes().all(plain)
}

/// Returns the one spelling for all spellings of a server.
fn canonical(server: &str) -> String {
    match address(server) {
        Some(address) => address.to_string(),
        None => server.strip_suffix('.').unwrap_or(server).to_ascii_lowercase(),
    }
}

/// Parses the address of a server that is written as an address.
fn address(server: &str) -> Option<IpAddr> {
    let bare = server.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(server);
    bare.parse().ok()
}

/// Reports whether a word of the admin's matches a server: its name or address, `*.` and a domain,
/// or `*`.
pub fn is_meant(word: &str, server: &str) -> bool {
    match word.strip_prefix('*') {
        Some("") => true,
        Some(domain) if domain.starts_with('.') => {
            let (domain, server) = (domain.to_ascii_lowercase(), canonical(server));
            address(&server).is_none() && server.len() > domain.len() && server.ends_with(&domain)
        }
        _ => is_named(word, server),
    }
}

/// Reports whether a word of the admin's names exactly this server, or a network that contains it.
pub fn is_named(word: &str, server: &str) -> bool {
    is_within(word, server).unwrap_or_else(|| canonical(word) == canonical(server))
}

/// Reports the same for a network such as `10.0.0.0/8`; `None` if the text is not a network. A
/// network with more than 1/256 of all addresses matches no server.
fn is_within(network: &str, server: &str) -> Option<bool> {
    let (first, bits) = network.split_once('/')?;
    let bits = bits.parse::<u32>().ok().filter(|bits| *bits >= 8);
    let same = |first: u128, other: u128, length: u32, bits: u32| {
        bits <= length && (first ^ other).checked_shr(length - bits).unwrap_or(0) == 0
    };
    Some(match (address(first), address(server), bits) {
        (Some(IpAddr::V4(first)), Some(IpAddr::V4(other)), Some(bits)) => {
            same(first.to_bits().into(), other.to_bits().into(), 32, bits)
        }
        (Some(IpAddr::V6(first)), Some(IpAddr::V6(other)), Some(bits)) => {
            same(first.to_bits(), other.to_bits(), 128, bits)
        }
        _ => false,
    })
}

/// Reports whether a server is the node itself, link-local or its cloud's metadata service, as far
/// as the name shows it.
pub fn is_local(server: &str) -> bool {
    let name = canonical(server);
    let local_name = || LOCAL_NAMES.contains(&name.as_str()) || name.ends_with(".localhost");
    address(&name).map_or_else(local_name, is_local_address)
}

/// Reports the same for an address.
pub fn is_local_address(address: IpAddr) -> bool {
    let of_four = |address: Ipv4Addr| {
        address.is_loopback() || address.is_link_local() || address.octets()[0] == 0 || address.is_broadcast()
    };
    METADATA.contains(&address)
        || match address {
            IpAddr::V4(address) => of_four(address),
            IpAddr::V6(address) => match embedded(address) {
                _ if address.is_unspecified() || address.is_loopback() => true,
                Some(four) => of_four(four) || METADATA.contains(&four.into()),
                None => address.segments()[0] & 0xffc0 == 0xfe80,
            },
        }
}

/// Returns the IPv4 address in a mapped, compatible, translated (`64:ff9b::`) or 6to4 address.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let four = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff | 0, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            Some(four(high, low))
        }
        [0x2002, high, low, ..] => Some(four(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_spelling() {
        for text in [
            "127.1",
            "0x7f000001",
            "2130706433",
            "0177.0.0.1",
            "127.0.0.1.",
            "0x7f.0.0.1",
            "1.2.3",
            "0x",
            "10.0.0.256",
            "017700000001",
            "a.0x7f",
        ] {
            assert!(host(text).unwrap_err().contains("four decimal numbers"), "{text}");
        }
        for text in [
            "",
            ".",
            "a..b",
            ".a",
            "-a",
            "a b",
            "a@b",
            "a:1",
            "a/b",
            "[a]",
            "[::1",
            "fe80::1%eth0",
            "ä",
            "a%2e",
        ] {
            assert!(host(text).is_err(), "{text}");
        }
        for text in ["nas", "nas.example.com.", "10.0.0.1", "1password.example.com", "7.example", "a_b"] {
            assert_eq!(host(text).as_deref(), Ok(text));
        }
        assert_eq!(host("fd00::7").as_deref(), Ok("[fd00::7]"));
    }

    #[test]
    fn a_url_has_one_host() {
        for (text, expected) in [
            ("https://dav.example.com:8443/x?y", "dav.example.com"),
            ("10.0.0.1", "10.0.0.1"),
            ("http://[::1]:80/", "[::1]"),
            ("minio:9000", "minio"),
        ] {
            assert_eq!(of_url(text).as_deref(), Ok(expected));
        }
        for text in [
            "127.0.0.1:18080/x://allowed",
            "http://allowed@127.0.0.1/",
            "http://allowed:80@127.0.0.1/",
            "http://127.0.0.1#@allowed/",
            "http://127.0.0.1\\@allowed/",
            "http://a:b/",
            "http://a:/",
            "http://::1/",
            "http:///a",
            "http://%31/",
            "ftp://a/",
            "http://http://a",
            "http://0x7f.1/",
            "a/x://b",
            "",
        ] {
            assert!(of_url(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_node_itself_is_local_in_every_spelling() {
        for server in [
            "127.0.0.1",
            "127.8.9.1",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "[::1]",
            "::",
            "[fe80::1]",
            "febf::1",
            "[::ffff:127.0.0.1]",
            "::ffff:a9fe:a9fe",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "0:0:0:0:0:0:0:1",
            "LOCALHOST",
            "localhost.",
            "a.localhost",
            "localhost.localdomain",
            "fd00:ec2::254",
            "100.100.100.200",
            "metadata.google.internal",
            "::ffff:100.100.100.200",
        ] {
            assert!(is_local(server), "{server}");
        }
        for server in
            ["10.0.0.1", "nas", "fd00::7", "fec0::1", "::ffff:10.0.0.1", "128.0.0.1", "mylocalhost", ""]
        {
            assert!(!is_local(server), "{server}");
        }
    }

    #[test]
    fn a_word_of_the_admin_s_means_servers() {
        for (word, server) in [
            ("NAS.example.com", "nas.example.com."),
            ("*.example.com", "a.b.EXAMPLE.com"),
            ("::1", "[0:0:0:0:0:0:0:1]"),
            ("*", "anything"),
            ("10.0.0.0/8", "10.200.0.1"),
            ("10.0.0.7/32", "10.0.0.7"),
            ("fd00::/64", "[fd00::7]"),
            ("127.0.0.0/8", "127.0.6.1"),
        ] {
            assert!(is_meant(word, server), "{word} {server}");
        }
        for (word, server) in [
            ("*.example.com", "example.com"),
            ("*.example.com", "xexample.com"),
            ("*.0.0.1", "127.0.0.1"),
            ("nas", "nas2"),
            ("*a", "a"),
            ("0.0.0.0/0", "127.0.0.1"),
            ("::/7", "::1"),
            ("10.0.0.0/8", "11.0.0.1"),
            ("10.0.0.0/33", "10.0.0.1"),
            ("fd00::/64", "fd00:0:0:1::7"),
            ("10.0.0.0/8", "nas"),
            ("nas/8", "nas"),
        ] {
            assert!(!is_meant(word, server), "{word} {server}");
        }
    }
}

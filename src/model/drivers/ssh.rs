//! Common parts of the drivers that reach a server through ssh: the server's identity, and the
//! login.
//!
//! ssh reads neither the node's configuration nor root's keys.

use super::fuse;
use crate::plan::{Content, Piece};
use crate::schema::{OptionValue, SecretSpec};
use flexvol_protocol::Options;
use flexvol_protocol::failure::{Failure, Result};

/// Names of ssh's private files.
pub(super) const CONFIG: &str = "ssh_config";
pub(super) const KNOWN_HOSTS: &str = "known_hosts";
pub(super) const KEY: &str = "key";

pub(super) const PRIVATE_KEY: SecretSpec = SecretSpec {
    keys: &["ssh-privatekey", "privateKey", "privatekey", "sshKey", "key"],
    doc: "private key in OpenSSH's form, without a passphrase",
    example: true,
};

pub(super) const KNOWN_SERVERS: SecretSpec = SecretSpec {
    keys: &["known_hosts", "knownHosts"],
    doc: "lines of a known_hosts file instead of an option",
    example: false,
};

/// Name under which the server's key is looked up, whatever its address and port.
const ALIAS: &str = "volume-server";

/// Public keys as ssh-keyscan prints them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostKeys(Vec<String>);

impl OptionValue for HostKeys {
    const KIND: &'static str = "public host key";

    fn parse(text: &str) -> Result<Self, String> {
        let keys = text.split([',', '\n']).map(str::trim).filter(|key| !key.is_empty());
        let keys: Vec<_> = keys.map(host_key).collect::<Option<_>>().unwrap_or_default();
        if keys.is_empty() {
            Err(format!("{text:?} is not of the form \"ssh-ed25519 AAAA...\""))
        } else {
            Ok(Self(keys))
        }
    }
}

/// Returns type and key, without a comment.
fn host_key(text: &str) -> Option<String> {
    let mut words = text.split(' ').filter(|word| !word.is_empty());
    let (kind, key) = (words.next()?, words.next()?);
    let of_kind = |c: char| c.is_ascii_alphanumeric() || "-@.".contains(c);
    let of_key = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
    let good = kind.starts_with(|c: char| c.is_ascii_lowercase())
        && kind.chars().all(of_kind)
        && key.chars().all(of_key);
    good.then(|| format!("{kind} {key}"))
}

/// Rule for checking the host key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKeyCheck {
    /// A server with another key is refused.
    Strict,
    /// Any server is accepted.
    Off,
}

impl OptionValue for HostKeyCheck {
    const KIND: &'static str = "strict or off";

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "strict" | "yes" => Ok(Self::Strict),
            "off" | "no" => Ok(Self::Off),
            _ => Err(format!("{text:?} is not {}", Self::KIND)),
        }
    }
}

/// Identity of the server, as the volume gives it.
pub(super) struct Identity<'a> {
    pub(super) keys: Option<&'a HostKeys>,
    pub(super) lines: Option<&'a str>,
    pub(super) check: HostKeyCheck,
}

impl Identity<'_> {
    /// Returns ssh's configuration, and the `known_hosts` file.
    pub(super) fn config(&self, further: &str, volume: &Options) -> Result<(Content, Content)> {
        let (known, check) = self.known_hosts(volume)?;
        let config = fuse::content(format!(
            "Host *\nConnectTimeout 10\nServerAliveInterval 15\nServerAliveCountMax 3\nGlobalKnownHostsFile none\nIdentityAgent none\nIdentitiesOnly yes\n{further}{check}UserKnownHostsFile "
        ));
        Ok((config.piece(Piece::File(KNOWN_HOSTS)).text("\n"), known))
    }

    /// Returns the `known_hosts` file, and the lines of the configuration that go with it.
    fn known_hosts(&self, volume: &Options) -> Result<(Content, &'static str)> {
        let strict = "StrictHostKeyChecking yes\n";
        let secret = fuse::secret(volume, &KNOWN_SERVERS)?;
        match (self.keys, self.lines, secret, self.check) {
            (.., HostKeyCheck::Off) => Ok((fuse::content(""), "StrictHostKeyChecking no\n")),
            (Some(keys), None, None, _) => {
                let lines = keys.0.iter().flat_map(|key| [ALIAS, " ", key, "\n"]);
                Ok((
                    fuse::content(lines.collect::<String>()),
                    "StrictHostKeyChecking yes\nHostKeyAlias volume-server\n",
                ))
            }
            (None, Some(text), None, _) => Ok((fuse::content(format!("{text}\n")), strict)),
            (None, None, Some(secret), _) => Ok((Content::default().secret(secret).text("\n"), strict)),
            (None, None, None, _) => Err(Failure::options(
                "no host key configured: add option \"hostKey\" (what ssh-keyscan prints, without its first word)",
            )),
            _ => Err(Failure::options(
                "the host key is given twice: keep one of \"hostKey\", \"knownHosts\" and the secret's known_hosts",
            )),
        }
    }
}

/// Adds the login with the private key to the configuration.
pub(super) fn with_key(config: Content) -> Content {
    config.text("BatchMode yes\nIdentityFile ").piece(Piece::File(KEY)).text("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_key_is_a_type_and_a_key() {
        let keys = |text| HostKeys::parse(text).map(|keys| keys.0);
        assert_eq!(keys("ssh-ed25519 AAAA+/= root@x").unwrap(), ["ssh-ed25519 AAAA+/="]);
        assert_eq!(
            keys("ssh-rsa AAAA, ecdsa-sha2-nistp256 BBBB\n").unwrap(),
            ["ssh-rsa AAAA", "ecdsa-sha2-nistp256 BBBB"]
        );
        for text in ["", ",", "AAAA", "ssh-rsa", "@revoked AAAA", "ssh-rsa AA*A", "-x AAAA", "a\tb c"] {
            assert!(keys(text).is_err(), "{text}");
        }
    }
}

//! Servers that rclone talks to, for the policy: every option and every key of the Secret that
//! names a server.

use crate::server;
use flexvol_protocol::Options;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::secret::Secret;

/// Reads the host out of a value.
type Reader = fn(&str) -> Result<String, String>;

/// Options by which rclone finds the server. One of them is in the Secret, because it holds a
/// signature.
const PLACES: [(&str, Reader); 7] = [
    ("host", server::host),
    ("hostname", server::host),
    ("url", server::of_url),
    ("endpoint", server::of_url),
    ("auth", server::of_url),
    ("storage_url", server::of_url),
    (SIGNED, server::of_url),
];

const SIGNED: &str = "sas_url";
const ACCOUNT: &str = "service_account_credentials";

/// All fields of a Google service account key. rclone reads their names in upper and lower case,
/// and with some letters of other alphabets; here only this spelling is accepted.
const OF_ACCOUNT: [&str; 11] = [
    "type",
    "project_id",
    "private_key_id",
    "private_key",
    "client_email",
    "client_id",
    "auth_uri",
    "token_uri",
    "auth_provider_x509_cert_url",
    "client_x509_cert_url",
    "universe_domain",
];

/// Returns the servers of a volume, or the kind of store if the kind determines the server.
pub(super) fn of(kind: &str, known: &[&str], volume: &Options) -> Result<Vec<String>> {
    well_formed(kind, volume)?;
    let given = |key: &str| option(volume, key);
    let mut servers = Vec::new();
    for (key, read) in PLACES.iter().filter(|(key, _)| known.contains(key)) {
        let (what, text) = match (*key, volume.secrets.get(*key)) {
            (SIGNED, Some(secret)) => (format!("secret key {key:?}"), one_line(secret)),
            (SIGNED, None) => continue,
            _ => (format!("option \"backend.{key}\""), given(key)),
        };
        let Some(text) = text.filter(|text| !text.is_empty()) else { continue };
        // The error must not repeat the text: its signature is secret.
        let read =
            read(text).map_err(|why| if *key == SIGNED { "it is not a URL of HTTP".into() } else { why });
        servers.push(read.map_err(|why| Failure::options(format!("{what}: {why}")))?);
    }
    for name in given("namenode").into_iter().flat_map(|names| names.split(',')) {
        let read = server::host_and_port(name.trim());
        let (host, _) =
            read.map_err(|why| Failure::options(format!("option \"backend.namenode\": {why}")))?;
        servers.push(host);
    }
    if servers.is_empty() {
        servers.push(given("provider").filter(|_| kind == "koofr").unwrap_or(kind).to_owned());
    }
    if known.contains(&ACCOUNT) {
        servers.extend(of_account(kind, volume)?);
    }
    Ok(servers)
}

fn option<'a>(volume: &'a Options, key: &str) -> Option<&'a str> {
    volume.own.get(&format!("backend.{key}")).map(String::as_str).filter(|value| !value.is_empty())
}

fn one_line(secret: &Secret) -> Option<&str> {
    str::from_utf8(secret.expose()).ok().map(|text| text.trim_end_matches(['\r', '\n']))
}

/// Refuses values that would add more than one part to the address in which they are used.
fn well_formed(kind: &str, volume: &Options) -> Result<()> {
    let wrong = |key: &str, must: &str| Failure::options(format!("option \"backend.{key}\" must be {must}"));
    if option(volume, "port").is_some_and(|text| server::port(text).is_err()) {
        return Err(wrong("port", "a port between 1 and 65535"));
    }
    if ["s3", "onedrive"].contains(&kind)
        && option(volume, "region").is_some_and(|text| !server::is_label(text))
    {
        return Err(wrong("region", "letters, digits, - and _"));
    }
    let secret = volume.secrets.get("account").filter(|secret| !secret.expose().is_empty());
    let account =
        secret.map(|secret| one_line(secret).unwrap_or_default()).or_else(|| option(volume, "account"));
    if kind == "azureblob" && account.is_some_and(|text| !server::is_label(text)) {
        return Err(Failure::options(
            "azureblob's \"account\" must be the name of an account: letters and digits",
        ));
    }
    if kind == "azureblob" && ["key", SIGNED].iter().all(|key| volume.secrets.contains_key(*key)) {
        return Err(Failure::options("secret has \"key\" and \"sas_url\": keep one of them"));
    }
    let fixed = option(volume, "provider").is_some_and(|name| name != "other");
    if kind == "koofr" && fixed && option(volume, "endpoint").is_some() {
        return Err(wrong("provider", "\"other\" beside backend.endpoint"));
    }
    Ok(())
}

/// Returns the servers that issue tokens for a service account, unless they are Google's.
fn of_account(kind: &str, volume: &Options) -> Result<Vec<String>> {
    let wrong = || {
        let text = "secret key \"service_account_credentials\" is not the key of a service account, as Google hands it out: store that file";
        Failure::options(text)
    };
    let Some(secret) = volume.secrets.get(ACCOUNT).filter(|secret| !secret.expose().is_empty()) else {
        // Without a key, rclone would use the node's own.
        return match option(volume, "anonymous") {
            Some("true") => Ok(Vec::new()),
            _ if kind != "google cloud storage" => Ok(Vec::new()),
            _ => Err(Failure::options(
                "secret lacks \"service_account_credentials\": add it, or set option backend.anonymous to true for a bucket that anybody may read",
            )),
        };
    };
    // Only JSON can name a server: rclone itself refuses any other text.
    if !secret.expose().trim_ascii_start().starts_with(b"{") {
        return Ok(Vec::new());
    }
    let key: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(secret.expose()).map_err(|_| wrong())?;
    let text = |name: &str| key.get(name).and_then(serde_json::Value::as_str);
    if text("type") != Some("service_account")
        || key.iter().any(|(name, value)| !OF_ACCOUNT.contains(&name.as_str()) || !value.is_string())
    {
        return Err(wrong());
    }
    let token = text("token_uri").map(server::of_url).transpose().map_err(|_| wrong())?;
    let token = token.filter(|host| {
        !["oauth2.googleapis.com", "accounts.google.com", "www.googleapis.com"].contains(&host.as_str())
    });
    let domain = text("universe_domain").filter(|domain| !["", "googleapis.com"].contains(domain));
    let domain = domain.map(server::host).transpose().map_err(|_| wrong())?;
    Ok(token.into_iter().chain(domain).collect())
}

/// Refuses keys of a Secret that `secrets()` does not name, such as those that say where the server
/// is.
pub(super) fn check_secret(known: &[&str], volume: &Options) -> Result<()> {
    let taken = super::FROM_SECRET;
    match known.iter().find(|key| volume.secrets.contains_key(**key) && !taken.contains(key)) {
        Some(key) => Err(Failure::options(format!(
            "secret key {key:?} is no secret: give it as option \"backend.{key}\" instead"
        ))),
        None => Ok(()),
    }
}

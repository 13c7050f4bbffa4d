//! `blobfuse`: a container of Azure's blob storage, through blobfuse2.
//!
//! Each mount has its own cache: two mounts with one cache destroy each other's files.

use super::fuse::{self, Plain, Url};
use crate::driver::{Driver, Needs, Request};
use crate::plan::{Content, Daemon, Piece, Plan, Source, Word};
use crate::schema::{Id, OptionSpec, OptionValue as _, SecretSpec};
use crate::server;
use crate::settings::Settings;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::mount_options::{Rule, Value};
use flexvol_protocol::secret::Secret;
use flexvol_protocol::{Capabilities, Options, TargetPath};

/// The driver.
pub struct Blobfuse;

crate::options! {
    /// Options of a PV.
    pub struct BlobfuseOptions {
        /// The container.
        container: Plain = "container" { example: "web" },
        /// The storage account; else the Secret's `accountname`.
        account: Option<Plain> = "account" { aliases: ["accountName"] },
        /// URL of the store. The default is Azure's.
        endpoint: Option<Url> = "endpoint" { aliases: ["blobEndpoint"] },
        /// Seconds that a file stays in the cache of the node.
        cache_timeout: u32 = "cacheTimeout" { default: "120" },
        /// Owner shown for all files.
        uid: Option<Id> = "uid" {},
        /// Group shown for all files. The default is the pod's fsGroup.
        gid: Option<Id> = "gid" {},
        /// Comma list of further flags and options of libfuse.
        mount_options: Option<String> = "mountOptions" { aliases: ["mountoptions"], example: "noexec" },
    }
}

const ACCOUNT: SecretSpec = SecretSpec {
    keys: &["accountname", "azurestorageaccountname"],
    doc: "the storage account, unless an option gives it",
    example: true,
};

const KEY: SecretSpec =
    SecretSpec { keys: &["accountkey", "azurestorageaccountkey"], doc: "the account's key", example: true };

const TOKEN: SecretSpec = SecretSpec {
    keys: &["accountsastoken", "azurestorageaccountsastoken"],
    doc: "a shared access signature instead of the key",
    example: false,
};

const ENDPOINT: SecretSpec = SecretSpec {
    keys: &["blobendpoint"],
    doc: "URL of the store, instead of option endpoint; its host name is shown",
    example: false,
};

/// Options of libfuse that a tenant may set.
const RULES: &[Rule] = &[
    Rule("attr_timeout", Value::Number),
    Rule("entry_timeout", Value::Number),
    Rule("negative_timeout", Value::Number),
    Rule("umask", Value::Number),
];

impl Driver for Blobfuse {
    fn name(&self) -> &'static str {
        "blobfuse"
    }

    fn summary(&self) -> &'static str {
        "a container of Azure's blob storage"
    }

    fn needs(&self) -> Needs {
        Needs::FUSE
    }

    fn options(&self) -> &'static [OptionSpec] {
        BlobfuseOptions::SPECS
    }

    fn secrets(&self) -> &'static [SecretSpec] {
        &[ACCOUNT, KEY, TOKEN, ENDPOINT]
    }

    fn capabilities(&self, _: &Settings) -> Capabilities {
        Capabilities::NONE
    }

    fn programs<'a>(&self, _: &'a Settings) -> Vec<&'a str> {
        vec!["blobfuse2"]
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let options = BlobfuseOptions::parse(&request.options.own)?;
        let (flags, further) = fuse::further(options.mount_options.as_deref(), request.options, RULES)?;
        let endpoint = endpoint(&options, request.options)?;
        let store = endpoint.as_ref().map_or("blob.core.windows.net".to_owned(), Url::host);
        let owner = fuse::owner_words(options.uid, options.gid, None, (request.options, fuse::BY_KERNEL));
        let daemon = Daemon {
            words: [
                fuse::texts(["mount".to_owned(), target.to_string()]),
                vec![Word::File { before: "--config-file=".into(), name: "config.yaml" }],
                fuse::texts(["--foreground", "--allow-other"]),
                fuse::texts(flags.read_only.then_some("--read-only")),
                fuse::options(fuse::flag_words(flags).into_iter().filter(|word| word != "ro")),
                fuse::options(owner),
                fuse::options(further),
            ]
            .concat(),
            files: [("config.yaml", config(&options, endpoint.as_ref(), request)?)].into(),
            scratch: true,
            servers: vec![store.clone()],
            ..fuse::daemon(
                "blobfuse2",
                &format!("container {} of {store}", options.container.0),
                target,
                flags,
            )
        };
        Ok(fuse::mount("", Source::Any, daemon))
    }

    fn unmount(&self, target: &TargetPath, _: &Settings) -> Result<Plan> {
        Ok(Plan::end_daemon(target, fuse::WRITING_BACK))
    }
}

/// Returns the address of the store, if it is not Azure's.
fn endpoint(options: &BlobfuseOptions, volume: &Options) -> Result<Option<Url>> {
    match (&options.endpoint, fuse::secret_line(volume, &ENDPOINT)?) {
        (Some(_), Some(_)) => {
            Err(Failure::options("option \"endpoint\": the secret has a blobendpoint: keep one of them"))
        }
        (option, None) => Ok(option.clone()),
        (None, Some(secret)) => {
            let url = str::from_utf8(secret.expose()).ok().and_then(|text| Url::parse(text).ok());
            let text = "secret key \"blobendpoint\" is not a URL such as https://account.blob.core.windows.net: fix it";
            url.map(Some).ok_or_else(|| Failure::options(text))
        }
    }
}

/// Returns the configuration in YAML, with every text in single quotes.
fn config(options: &BlobfuseOptions, endpoint: Option<&Url>, request: &Request<'_>) -> Result<Content> {
    let volume = request.options;
    let cache = (request.settings.policy.cache_limit() >> 20).max(1);
    let account = match &options.account {
        Some(account) => Secret::new(account.0.clone().into_bytes()),
        None => fuse::secret_line(volume, &ACCOUNT)?
            .ok_or_else(|| Failure::options("secret lacks \"accountname\": add it, or option account"))?,
    };
    // The account becomes a part of the server's name. An ellipsis stands for it in examples.
    let is_name = |text: &str| server::is_label(text) || text == "…";
    if !str::from_utf8(account.expose()).is_ok_and(is_name) {
        return Err(Failure::options(
            "the storage account must be a name of letters and digits: correct option account, or the Secret's accountname",
        ));
    }
    let (mode, name, secret) = match (fuse::secret_line(volume, &KEY)?, fuse::secret_line(volume, &TOKEN)?) {
        (Some(key), None) => ("key", "account-key", key),
        (None, Some(token)) => ("sas", "sas", token),
        _ => {
            let text = "secret needs either \"accountkey\" or \"accountsastoken\": give it exactly one";
            return Err(Failure::options(text));
        }
    };
    let endpoint = endpoint.map(|url| format!("  endpoint: '{}'\n", url.0)).unwrap_or_default();
    let content = fuse::content("logging:\n  type: base\n  level: log_err\n  file-path: /dev/stderr\n")
        .text("components: [libfuse, file_cache, attr_cache, azstorage]\nfile_cache:\n  path: '")
        .piece(Piece::Scratch)
        .text(format!(
            "'\n  max-size-mb: {cache}\n  timeout-sec: {}\nazstorage:\n  type: block\n",
            options.cache_timeout
        ))
        .text(format!("  container: '{}'\n  mode: {mode}\n{endpoint}  account-name: '", options.container.0))
        .secret(&quoted(&account))
        .text(format!("'\n  {name}: '"))
        .secret(&quoted(&secret));
    Ok(content.text("'\n"))
}

/// Doubles each single quote.
fn quoted(secret: &Secret) -> Secret {
    let bytes = secret.expose().iter();
    Secret::new(bytes.flat_map(|byte| (*byte == b'\'').then_some(b'\'').into_iter().chain([*byte])).collect())
}

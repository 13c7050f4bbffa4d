//! `s3`: a bucket, or the objects below a prefix of it, of any store that speaks S3; through s3fs,
//! or through rclone if the node prefers it.
//!
//! Keys come from the Secret and never from the node: a tenant may use neither the node's instance
//! role nor root's configuration.

use super::fuse::{self, Plain, RemotePath, Url};
use super::rclone;
use crate::driver::{Driver, Instead, Needs, Request};
use crate::plan::{Content, Daemon, Plan, Source, Word};
use crate::schema::{Id, Mode, OptionSpec, OptionValue, SecretSpec};
use crate::settings::Settings;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::mount_options::{FsOption, Rule, Value};
use flexvol_protocol::secret::Secret;
use flexvol_protocol::{Capabilities, Options, TargetPath};

/// The driver.
pub struct S3;

crate::options! {
    /// Options of a PV.
    pub struct S3Options {
        /// The bucket.
        bucket: Plain = "bucket" { example: "web" },
        /// Prefix of the names of the objects, a directory of the bucket.
        prefix: RemotePath = "prefix" { aliases: ["objectPath", "object-path", "path"] },
        /// URL of the store. The default is Amazon's.
        endpoint: Option<Url> = "endpoint" { aliases: ["url", "object-store-endpoint"], example: "https://s3.example.com" },
        /// The store's region.
        region: Option<Plain> = "region" { aliases: ["object-store-storage-class"] },
        /// Name the bucket in the path, not in the host name. Needed by most stores but Amazon's.
        path_style: Option<bool> = "pathStyle" { aliases: ["use_path_request_style"] },
        /// Read a public bucket, without a key.
        public: bool = "public" { default: "false" },
        /// Server that turns an API key of IBM's into a token. The default is IBM's own.
        iam_endpoint: Option<Url> = "iamEndpoint" { aliases: ["ibm_iam_endpoint"] },
        /// Program for the mount: s3fs or rclone.
        mounter: Mounter = "mounter" { default: "s3fs" },
        /// Owner of all files. The default is what their metadata say.
        uid: Option<Id> = "uid" {},
        /// Group of all files. The default is the pod's fsGroup.
        gid: Option<Id> = "gid" {},
        /// Permission bits cleared in all modes. The default is what their metadata say, and 0000
        /// with an fsGroup.
        umask: Option<Mode> = "umask" {},
        /// Comma list of further flags and options of s3fs.
        mount_options: Option<String> = "mountOptions" { aliases: ["mountoptions"], example: "noexec" },
    }
}

/// Program that serves the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounter {
    /// s3fs
    S3fs,
    /// rclone
    Rclone,
}

impl OptionValue for Mounter {
    const KIND: &'static str = "s3fs or rclone";

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "s3fs" => Ok(Self::S3fs),
            "rclone" => Ok(Self::Rclone),
            _ => Err(format!("{text:?} is not {}", Self::KIND)),
        }
    }
}

const ACCESS_KEY: SecretSpec = SecretSpec {
    keys: &[
        "accessKeyID",
        "accessKeyId",
        "access-key",
        "accessKey",
        "access_key_id",
        "AWS_ACCESS_KEY_ID",
        "akId",
    ],
    doc: "the access key ID",
    example: true,
};

const SECRET_KEY: SecretSpec = SecretSpec {
    keys: &[
        "secretAccessKey",
        "secret-key",
        "secretKey",
        "secret_access_key",
        "AWS_SECRET_ACCESS_KEY",
        "akSecret",
    ],
    doc: "the secret access key",
    example: true,
};

const API_KEY: SecretSpec = SecretSpec {
    keys: &["api-key", "apiKey"],
    doc: "a key of IBM's IAM, which overrides an access key",
    example: false,
};

/// Space to leave free on the node's disk, in MiB: with less, s3fs sends parts of a file before the
/// file is complete.
const DISK_FREE: &str = "ensure_diskfree=512";

/// Options of s3fs that a tenant may set.
const RULES: &[Rule] = &[
    Rule("multireq_max", Value::Number),
    Rule("parallel_count", Value::Number),
    Rule("multipart_size", Value::Number),
    Rule("max_stat_cache_size", Value::Number),
    Rule("stat_cache_expire", Value::Number),
    Rule("enable_noobj_cache", Value::None),
    Rule("retries", Value::Number),
    Rule("connect_timeout", Value::Number),
    Rule("readwrite_timeout", Value::Number),
    Rule("default_acl", Value::Word),
    Rule("storage_class", Value::Word),
    Rule("cipher_suites", Value::Word),
    Rule("mp_umask", Value::Number),
    Rule("kernel_cache", Value::None),
    Rule("auto_cache", Value::None),
    Rule("use_xattr", Value::None),
    Rule("nocopyapi", Value::None),
    Rule("norenameapi", Value::None),
    Rule("nomultipart", Value::None),
    Rule("complement_stat", Value::None),
    Rule("sigv2", Value::None),
    Rule("sigv4", Value::None),
    Rule("notsup_compat_dir", Value::None),
    Rule("compat_dir", Value::None),
];

/// Settings that replace defaults of s3fs, unless the volume sets them: s3fs would wait five
/// minutes.
const DEFAULTS: [(&str, &str); 3] =
    [("connect_timeout", "10"), ("readwrite_timeout", "60"), ("retries", "2")];

impl Driver for S3 {
    fn name(&self) -> &'static str {
        "s3"
    }

    fn summary(&self) -> &'static str {
        "a bucket of an S3-compatible store"
    }

    fn needs(&self) -> Needs {
        Needs { instead: Some(Instead::Program("rclone")), ..Needs::FUSE }
    }

    fn options(&self) -> &'static [OptionSpec] {
        S3Options::SPECS
    }

    fn secrets(&self) -> &'static [SecretSpec] {
        &[ACCESS_KEY, SECRET_KEY, API_KEY]
    }

    fn capabilities(&self, _: &Settings) -> Capabilities {
        Capabilities::NONE
    }

    fn programs<'a>(&self, _: &'a Settings) -> Vec<&'a str> {
        vec!["s3fs"]
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let options = S3Options::parse(&request.options.own)?;
        let keys = keys(&options, request.options)?;
        match options.mounter {
            Mounter::S3fs => s3fs(&options, keys, target, request.options),
            Mounter::Rclone => by_rclone(&options, keys, target, request),
        }
    }

    fn unmount(&self, target: &TargetPath, _: &Settings) -> Result<Plan> {
        Ok(Plan::end_daemon(target, fuse::WRITING_BACK))
    }
}

/// Login to the store.
enum Keys {
    Nobody,
    Pair(Secret, Secret),
    /// API key of IBM.
    Api(Secret),
}

fn keys(options: &S3Options, volume: &Options) -> Result<Keys> {
    if let Some(key) = fuse::secret_line(volume, &API_KEY)? {
        return if options.public { Err(public_with_key()) } else { Ok(Keys::Api(key)) };
    }
    let pair = (fuse::secret_line(volume, &ACCESS_KEY)?, fuse::secret_line(volume, &SECRET_KEY)?);
    match (pair, options.public) {
        ((None, None), true) => Ok(Keys::Nobody),
        ((Some(_), _) | (_, Some(_)), true) => Err(public_with_key()),
        ((Some(name), Some(_)), false) if name.expose().contains(&b':') => Err(Failure::options(
            "secret key \"accessKeyID\" must not hold a colon: the two keys may be confused",
        )),
        ((Some(name), Some(key)), false) => Ok(Keys::Pair(name, key)),
        ((Some(_), None) | (None, _), false) => Err(Failure::options(
            "secret lacks \"accessKeyID\" or \"secretAccessKey\": add them, or set option public for a bucket that anybody may read",
        )),
    }
}

fn public_with_key() -> Failure {
    Failure::options("option \"public\": the secret has a key: keep one of them")
}

/// Returns the prefix without slashes around it.
fn path(options: &S3Options) -> String {
    options.prefix.0.trim_matches('/').to_owned()
}

fn s3fs(options: &S3Options, keys: Keys, target: &TargetPath, volume: &Options) -> Result<Plan> {
    let (flags, further) = fuse::further(options.mount_options.as_deref(), volume, RULES)?;
    let source = match path(options) {
        path if path.is_empty() => options.bucket.0.clone(),
        path => format!("{}:/{path}", options.bucket.0),
    };
    let defaults = DEFAULTS.iter().filter(|(key, _)| further.iter().all(|option| option.key != *key));
    let path_style = options.path_style.unwrap_or(options.endpoint.is_some());
    let mut daemon = Daemon {
        words: [
            fuse::texts([source.clone(), target.to_string(), "-f".into()]),
            fuse::options(["allow_other", "dbglevel=crit", DISK_FREE]),
            vec![Word::Text("-o".into()), Word::Scratch { before: "tmpdir=".into() }],
            fuse::options(options.endpoint.as_ref().map(|url| format!("url={}", url.0))),
            fuse::options(options.region.as_ref().map(|region| format!("endpoint={}", region.0))),
            fuse::options(path_style.then_some("use_path_request_style")),
            fuse::options(fuse::flag_words(flags)),
            fuse::options(owner(options, volume, &further)),
            fuse::options(defaults.map(|(key, value)| format!("{key}={value}"))),
            fuse::options(further),
        ]
        .concat(),
        scratch: true,
        servers: servers(options),
        ..fuse::daemon("s3fs", &from(options), target, flags)
    };
    let (name, key) = match keys {
        Keys::Pair(name, key) => (name, key),
        Keys::Api(key) => {
            let server = options.iam_endpoint.iter().map(|url| format!("ibm_iam_endpoint={}", url.0));
            daemon.words.extend(fuse::options(std::iter::once("ibm_iam_auth".to_owned()).chain(server)));
            (Secret::new(Vec::new()), key)
        }
        Keys::Nobody => {
            daemon.words.extend(fuse::options(["public_bucket=1"]));
            return Ok(fuse::mount("fuse.s3fs", Source::Any, daemon));
        }
    };
    let content = Content::default().secret(&name).text(":").secret(&key).text("\n");
    daemon.files.insert("passwd", content);
    daemon
        .words
        .extend([Word::Text("-o".into()), Word::File { before: "passwd_file=".into(), name: "passwd" }]);
    Ok(fuse::mount("fuse.s3fs", Source::Any, daemon))
}

/// Returns the words for owner and mask. The root gets the files' mask too, unless the volume sets
/// `mp_umask`.
fn owner(options: &S3Options, volume: &Options, further: &[FsOption]) -> Vec<String> {
    let words = fuse::owner_words(options.uid, options.gid, options.umask, (volume, fuse::BY_PROGRAM));
    let given = further.iter().any(|option| option.key == "mp_umask");
    let root =
        words.iter().filter(|word| !given && word.starts_with("umask=")).map(|word| format!("mp_{word}"));
    words.iter().cloned().chain(root).collect()
}

/// Describes the source for people, with the server's name and the reason for a default server.
fn from(options: &S3Options) -> String {
    let store = options.endpoint.as_ref().map_or("s3.amazonaws.com, without option endpoint", |url| &url.0);
    format!("bucket {} of {store}", options.bucket.0)
}

fn servers(options: &S3Options) -> Vec<String> {
    let store = options.endpoint.as_ref().map_or("s3.amazonaws.com".to_owned(), Url::host);
    std::iter::once(store).chain(options.iam_endpoint.iter().map(Url::host)).collect()
}

fn by_rclone(options: &S3Options, keys: Keys, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
    let path_style = options.path_style.unwrap_or(options.endpoint.is_some());
    let provider = if options.endpoint.is_some() { "Other" } else { "AWS" };
    let mut config = rclone::Config::new("s3");
    config.set("provider", provider)?;
    config.set("env_auth", "false")?;
    config.set("no_check_bucket", "true")?;
    config.set("force_path_style", if path_style { "true" } else { "false" })?;
    if let Some(url) = &options.endpoint {
        config.set("endpoint", &url.0)?;
    }
    if let Some(region) = &options.region {
        config.set("region", &region.0)?;
    }
    match keys {
        Keys::Nobody => {}
        Keys::Pair(name, key) => {
            config.set_secret("access_key_id", &name)?;
            config.set_secret("secret_access_key", &key)?;
        }
        Keys::Api(..) => {
            return Err(Failure::options(
                "option \"mounter\": rclone cannot use an API key: leave the option out, or use an access key",
            ));
        }
    }
    let path = format!("{}/{}", options.bucket.0, path(options));
    let mount = rclone::Mount {
        config,
        path: path.trim_end_matches('/').to_owned(),
        from: from(options),
        servers: servers(options),
        uid: options.uid,
        gid: options.gid,
        umask: options.umask,
        further: options.mount_options.as_deref(),
        cache: request.settings.policy.cache_limit(),
    };
    mount.plan(target, request.options)
}

//! `rclone`: any network store that rclone supports.
//!
//! Options of the store are called `backend.KEY`, secrets have the same keys in the Secret. Both
//! must be on a list: some options of rclone read files of the node, run programs on it or use its
//! identity, and a tenant may set none of these. So the node's own file system is no backend.
//!
//! Files are written from beginning to end, and stored when they are closed.
//! `vfs-cache-mode=writes` in mountOptions allows changes in place: then files are stored a moment
//! later, and data that has not reached the server when the volume is unmounted is lost.

use super::fuse::{self, RemotePath};
use super::share;
use crate::driver::{Driver, Needs, Request};
use crate::plan::{Content, Daemon, Piece, Plan, Source, Word};
use crate::schema::{Id, Mode, OptionSpec, OptionValue, SecretSpec};
use crate::settings::Settings;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::mount_options::{Atime, Rule, Value};
use flexvol_protocol::ordered::filled;
use flexvol_protocol::secret::Secret;
use flexvol_protocol::{Capabilities, Options, TargetPath};

mod bounds;
mod servers;

/// The driver.
pub struct Rclone;

crate::options! {
    /// Options of a PV.
    pub struct RcloneOptions {
        /// The kind of store: s3, webdav, sftp, ftp, smb, http, azureblob, b2, swift, google cloud
        /// storage, drive, dropbox, onedrive, box, pcloud, mega, koofr, seafile, hdfs.
        remote: Remote = "remote" { aliases: ["type"], example: "b2" },
        /// The directory, bucket or share in it. The default is its root.
        path: RemotePath = "path" { example: "web/assets" },
        /// Option of rclone for that kind of store, such as `backend.url`. Passwords and keys are
        /// in the Secret, under the same names without `backend.`.
        backend: Option<String> = "backend.*" {},
        /// Lines of a `known_hosts` file, for sftp, instead of the Secret's `known_hosts`.
        known_hosts: Option<String> = "knownHosts" {},
        /// Host key check of an sftp server: strict, or off.
        host_key_check: super::ssh::HostKeyCheck = "hostKeyCheck" { default: "strict" },
        /// Owner shown for all files.
        uid: Option<Id> = "uid" {},
        /// Group shown for all files. The default is the pod's fsGroup.
        gid: Option<Id> = "gid" {},
        /// Permission bits cleared in the modes shown. The default is 0007 with an fsGroup, else
        /// 0022.
        umask: Option<Mode> = "umask" {},
        /// Comma list of further flags and of options of rclone's mount. `vfs-cache-mode=writes`
        /// lets files be changed in place, and loses what has not reached the server when the
        /// volume is unmounted.
        mount_options: Option<String> = "mountOptions" { aliases: ["mountoptions"], example: "noexec" },
    }
}

/// Kind of store and its allowed options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote(&'static (&'static str, &'static [&'static str]));

/// Names of client and token in all stores with a consent page.
const OAUTH: [&str; 3] = ["client_id", "client_secret", "token"];

/// Kinds of stores, and for each the options that cannot harm the node.
const REMOTES: &[(&str, &[&str])] = &[
    (
        "s3",
        &[
            "provider",
            "access_key_id",
            "secret_access_key",
            "session_token",
            "region",
            "endpoint",
            "location_constraint",
            "acl",
            "storage_class",
            "server_side_encryption",
            "sse_kms_key_id",
            "chunk_size",
            "upload_cutoff",
            "force_path_style",
            "v2_auth",
            "list_version",
            "no_check_bucket",
            "requester_pays",
        ],
    ),
    ("webdav", &["url", "vendor", "user", "pass", "bearer_token"]),
    (
        "sftp",
        &[
            "host",
            "port",
            "user",
            "pass",
            "key_pem",
            "key_file_pass",
            "disable_hashcheck",
            "set_modtime",
            "concurrency",
        ],
    ),
    ("ftp", &["host", "port", "user", "pass", "tls", "explicit_tls", "concurrency", "disable_epsv"]),
    ("smb", &["host", "port", "user", "pass", "domain", "spn"]),
    ("http", &["url", "no_head", "no_slash"]),
    ("azureblob", &["account", "key", "sas_url", "endpoint", "access_tier", "chunk_size"]),
    ("b2", &["account", "key", "endpoint", "hard_delete", "chunk_size"]),
    (
        "swift",
        &[
            "user",
            "key",
            "auth",
            "user_id",
            "domain",
            "tenant",
            "tenant_id",
            "tenant_domain",
            "region",
            "storage_url",
            "auth_token",
            "auth_version",
            "endpoint_type",
        ],
    ),
    (
        "google cloud storage",
        &[
            "project_number",
            "service_account_credentials",
            "anonymous",
            "bucket_policy_only",
            "location",
            "storage_class",
        ],
    ),
    (
        "drive",
        &[
            "scope",
            "root_folder_id",
            "service_account_credentials",
            "team_drive",
            "client_id",
            "client_secret",
            "token",
        ],
    ),
    ("dropbox", &OAUTH),
    ("onedrive", &["drive_id", "drive_type", "region", "client_id", "client_secret", "token"]),
    ("box", &["root_folder_id", "client_id", "client_secret", "token"]),
    ("pcloud", &["hostname", "root_folder_id", "client_id", "client_secret", "token"]),
    ("mega", &["user", "pass"]),
    ("koofr", &["provider", "endpoint", "user", "password"]),
    ("seafile", &["url", "user", "pass", "library", "library_key"]),
    ("hdfs", &["namenode", "username"]),
];

/// Options that rclone expects in obscured form in its configuration.
const OBSCURED: [&str; 4] = ["pass", "password", "key_file_pass", "library_key"];

/// Keys that must not be options: every reader of a PV could read them.
const SECRETS: &[&str] = FROM_SECRET.split_at(15).0;

/// Keys taken from the Secret: confidential values, and the login. Never the address of the server,
/// but for `sas_url`, which is signed.
const FROM_SECRET: &[&str] = &[
    "pass",
    "password",
    "key_file_pass",
    "library_key",
    "secret_access_key",
    "session_token",
    "key",
    "sas_url",
    "bearer_token",
    "auth_token",
    "key_pem",
    "service_account_credentials",
    "client_secret",
    "token",
    "access_key_id",
    "account",
    "client_id",
    "user",
    "user_id",
    "username",
];

impl OptionValue for Remote {
    const KIND: &'static str = "kind of store";

    fn parse(text: &str) -> Result<Self, String> {
        let known =
            REMOTES.iter().find(|(name, _)| *name == text || text == "gcs" && name.starts_with("google"));
        known.map(Self).ok_or_else(|| {
            let names = REMOTES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            format!("{text:?} is none of {names}")
        })
    }
}

/// Options of rclone's mount that a tenant may set.
const RULES: &[Rule] = &[
    Rule("vfs-cache-mode", Value::OneOf(&["off", "minimal", "writes", "full"])),
    Rule("vfs-cache-max-size", Value::Size),
    Rule("vfs-cache-max-age", Value::Word),
    Rule("vfs-read-chunk-size", Value::Size),
    Rule("dir-cache-time", Value::Word),
    Rule("attr-timeout", Value::Word),
    Rule("poll-interval", Value::Word),
    Rule("buffer-size", Value::Size),
    Rule("transfers", Value::Number),
    Rule("no-modtime", Value::None),
    Rule("no-checksum", Value::None),
    Rule("vfs-case-insensitive", Value::None),
    Rule("dir-perms", Value::Number),
    Rule("file-perms", Value::Number),
];

/// Defaults of a volume. Without a cache, closing a file stores it or fails; but files can only be
/// written from beginning to end.
const DEFAULTS: [(&str, &str); 5] = [
    ("vfs-cache-mode", "off"),
    ("vfs-write-back", "0s"),
    ("dir-cache-time", "5s"),
    ("contimeout", "10s"),
    ("low-level-retries", "3"),
];

impl Driver for Rclone {
    fn name(&self) -> &'static str {
        "rclone"
    }

    fn summary(&self) -> &'static str {
        "any network store that rclone supports"
    }

    fn needs(&self) -> Needs {
        Needs::FUSE
    }

    fn options(&self) -> &'static [OptionSpec] {
        RcloneOptions::SPECS
    }

    fn secrets(&self) -> &'static [SecretSpec] {
        const DOC: &str = "credentials, under rclone's own names; the server is given by options";
        &[SecretSpec { keys: FROM_SECRET, doc: DOC, example: false }, super::ssh::KNOWN_SERVERS]
    }

    fn capabilities(&self, _: &Settings) -> Capabilities {
        Capabilities::NONE
    }

    fn programs<'a>(&self, _: &'a Settings) -> Vec<&'a str> {
        vec!["rclone"]
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let volume = request.options;
        let options = RcloneOptions::parse(&volume.own)?;
        let (kind, known) = *options.remote.0;
        let mut config = Config::new(kind);
        for (key, value) in volume.own.iter().filter(|(_, value)| !value.is_empty()) {
            let Some(key) = key.strip_prefix("backend.") else { continue };
            allow(kind, known, key)?;
            config.set(key, value)?;
        }
        servers::check_secret(known, volume)?;
        for key in known.iter().filter(|key| volume.secrets.contains_key(**key)) {
            config.set_secret(key, &volume.secrets[*key])?;
        }
        complete(kind, known, volume)?;
        let servers = servers::of(kind, known, volume)?;
        if kind == "koofr" && !volume.own.contains_key("backend.provider") && servers != [kind] {
            config.set("provider", "other")?;
        }
        if kind == "sftp" {
            config.check_host(&options, volume)?;
        }
        let mount = Mount {
            config,
            from: from(kind, &servers, &options.path.0),
            servers,
            path: options.path.0.clone(),
            uid: options.uid,
            gid: options.gid,
            umask: options.umask,
            further: options.mount_options.as_deref(),
            cache: request.settings.policy.cache_limit(),
        };
        mount.plan(target, volume)
    }

    fn unmount(&self, target: &TargetPath, _: &Settings) -> Result<Plan> {
        Ok(Plan::end_daemon(target, fuse::WRITING_BACK))
    }
}

/// Describes the source for people: kind, servers and path.
fn from(kind: &str, servers: &[String], path: &str) -> String {
    let named = servers.iter().map(String::as_str).filter(|server| *server != kind);
    [kind]
        .into_iter()
        .chain(named)
        .chain([path])
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

fn allow(kind: &str, known: &[&str], key: &str) -> Result<()> {
    if SECRETS.contains(&key) && known.contains(&key) {
        return Err(Failure::options(format!(
            "option \"backend.{key}\" is a secret: put it into the Secret of flexVolume.secretRef as {key:?}"
        )));
    }
    if known.contains(&key) {
        return Ok(());
    }
    Err(Failure::options(format!("option \"backend.{key}\": {kind} has {}", known.join(", "))))
}

/// Required options that rclone itself would not name if they are missing.
const NEEDED: [(&str, &str); 4] = [("webdav", "url"), ("sftp", "host"), ("ftp", "host"), ("smb", "host")];

fn complete(kind: &str, known: &[&str], volume: &Options) -> Result<()> {
    let Some((_, needed)) = NEEDED.iter().find(|(name, _)| *name == kind) else { return Ok(()) };
    let given = |key: &str| volume.own.get(&format!("backend.{key}")).is_some_and(|value| !value.is_empty());
    if !given(needed) {
        return Err(Failure::options(format!(
            "option \"backend.{needed}\" is missing: add it to flexVolume.options"
        )));
    }
    let mut secrets = known.iter().filter(|key| SECRETS.contains(*key));
    if given("user") && !secrets.any(|key| volume.secrets.contains_key(*key)) {
        return Err(Failure::options("secret lacks \"pass\": add it, or leave out option \"backend.user\""));
    }
    Ok(())
}

/// Configuration with one store in it, called `volume`.
pub(super) struct Config {
    content: Content,
    files: Vec<(&'static str, Content)>,
}

impl Config {
    /// Begins the configuration of a store of this kind.
    pub(super) fn new(kind: &str) -> Self {
        Self { content: fuse::content(format!("[volume]\ntype = {kind}\n")), files: Vec::new() }
    }

    /// Sets an option. Backquotes keep a value as it is, except for `%(`, which refers to another
    /// option.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<()> {
        if value.chars().any(char::is_control) || value.contains("%(") {
            return Err(Failure::options(format!("option {key:?} must be one line without %(")));
        }
        self.add(Content::default().text(format!("{key} = `{value}`\n")));
        Ok(())
    }

    /// Sets an option with a secret value.
    pub(super) fn set_secret(&mut self, key: &str, secret: &Secret) -> Result<()> {
        let flat = match key {
            // rclone's own notation for a key of several lines.
            "key_pem" => joined(secret),
            "service_account_credentials" => Secret::new(
                secret.expose().iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }).collect(),
            ),
            _ => secret.clone(),
        };
        let line = share::one_line(key, &flat)?;
        let value = if OBSCURED.contains(&key) {
            Piece::Printed(&["rclone", "obscure", "-"], line)
        } else if line.expose().windows(2).any(|pair| pair == b"%(") {
            return Err(Failure::options(format!(
                "secret key {key:?} must not hold %(: rclone would replace it"
            )));
        } else {
            Piece::Secret(line)
        };
        self.add(Content::default().text(format!("{key} = `")).piece(value).text("`\n"));
        Ok(())
    }

    fn add(&mut self, content: Content) {
        self.content.0.extend(content.0);
    }

    fn check_host(&mut self, options: &RcloneOptions, volume: &Options) -> Result<()> {
        use super::ssh::{HostKeyCheck, KNOWN_SERVERS};
        let secret = fuse::secret(volume, &KNOWN_SERVERS)?;
        let known = match (&options.known_hosts, secret, options.host_key_check) {
            (.., HostKeyCheck::Off) => return Ok(()),
            (Some(text), None, _) => fuse::content(format!("{text}\n")),
            (None, Some(secret), _) => Content::default().secret(secret).text("\n"),
            (Some(_), Some(_), _) => {
                return Err(Failure::options(
                    "option \"knownHosts\": the secret has known_hosts: keep one of them",
                ));
            }
            (None, None, _) => {
                return Err(Failure::options(
                    "no host key configured: add option \"knownHosts\" (what ssh-keyscan prints)",
                ));
            }
        };
        self.add(Content::default().text("known_hosts_file = ").piece(Piece::File("known_hosts")).text("\n"));
        self.files.push(("known_hosts", known));
        Ok(())
    }
}

/// Joins the lines of a key as rclone expects them.
fn joined(secret: &Secret) -> Secret {
    let text = secret.expose().trim_ascii_end();
    let lines: Vec<_> = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end).collect();
    Secret::new(lines.join(&b"\\n"[..]))
}

/// Mount by rclone.
pub(super) struct Mount<'a> {
    pub(super) config: Config,
    pub(super) path: String,
    pub(super) from: String,
    pub(super) servers: Vec<String>,
    pub(super) uid: Option<Id>,
    pub(super) gid: Option<Id>,
    pub(super) umask: Option<Mode>,
    pub(super) further: Option<&'a str>,
    /// Limit for its cache on the node's disk, in bytes.
    pub(super) cache: u64,
}

impl Mount<'_> {
    /// Returns the plan.
    pub(super) fn plan(self, target: &TargetPath, volume: &Options) -> Result<Plan> {
        let (flags, further) = fuse::further(self.further, volume, RULES)?;
        if flags.atime == Atime::Never {
            return Err(Failure::options("mountOptions: \"noatime\" has no meaning here: leave it out"));
        }
        bounds::check(&further, self.cache)?;
        let given: Vec<_> = further.iter().map(|option| (option.key.clone(), option.value.clone())).collect();
        let defaults = DEFAULTS.iter().filter(|(key, _)| given.iter().all(|(other, _)| other != key));
        let settings =
            defaults.map(|(key, value)| ((*key).to_owned(), Some((*value).to_owned()))).chain(given.clone());
        let umask = self.umask.or(volume.fs_group.is_none().then_some(Mode(0o022)));
        let owner = fuse::owner_words(self.uid, self.gid, umask, (volume, fuse::BY_KERNEL))
            .into_iter()
            .map(|word| format!("--{word}"));
        let source = format!("volume:{}", self.path);
        let daemon = Daemon {
            words: [
                fuse::texts(["mount", &source]),
                fuse::texts([target.to_string()]),
                vec![
                    Word::Text("--config".into()),
                    Word::File { before: String::new(), name: "rclone.conf" },
                    Word::Text("--cache-dir".into()),
                    Word::Scratch { before: String::new() },
                ],
                fuse::texts(["--allow-other", "--default-permissions", "--use-mmap"]),
                fuse::texts(flags.read_only.then_some("--read-only")),
                fuse::texts(owner),
                fuse::texts(
                    given
                        .iter()
                        .all(|(key, _)| key != "vfs-cache-max-size")
                        .then(|| format!("--vfs-cache-max-size={}B", self.cache)),
                ),
                fuse::texts(["--vfs-cache-poll-interval=1s"]),
                fuse::texts(settings.map(|(key, value)| match value {
                    Some(value) => format!("--{key}={value}"),
                    None => format!("--{key}"),
                })),
            ]
            .concat(),
            files: filled(self.config.files.into_iter().chain([("rclone.conf", self.config.content)])),
            scratch: true,
            probe: [
                fuse::texts(["lsd", "--retries=1", "--low-level-retries=1"]),
                fuse::texts(["--contimeout=10s", "--timeout=15s", "--config"]),
                vec![Word::File { before: String::new(), name: "rclone.conf" }],
                fuse::texts([source.clone()]),
            ]
            .concat(),
            servers: self.servers,
            ..fuse::daemon("rclone", &self.from, target, flags)
        };
        Ok(fuse::mount("fuse.rclone", Source::Name(source), daemon))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::wording;
    use flexvol_protocol::mount_options::FsOption;

    #[test]
    fn no_option_reaches_the_node() {
        let dangerous = [
            "ssh",
            "key_file",
            "known_hosts_file",
            "bearer_token_command",
            "env_auth",
            "profile",
            "shared_credentials_file",
            "service_account_file",
            "use_msi",
            "service_principal_file",
            "remote",
            "upstreams",
            "server_command",
            "key_use_agent",
            "pubkey_file",
            "config_credentials",
        ];
        for (kind, known) in REMOTES {
            assert!(dangerous.iter().all(|key| !known.contains(key)), "{kind}");
        }
        for kind in [
            "local", "alias", "union", "combine", "crypt", "chunker", "compress", "hasher", "cache",
            ":local", "memory",
        ] {
            assert!(Remote::parse(kind).is_err(), "{kind}");
        }
    }

    /// Returns the plan's servers, or the error.
    fn servers_of(own: &[(&str, &str)], secrets: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let text = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let secret =
            |(key, value): &(&str, &str)| ((*key).to_owned(), Secret::new(value.as_bytes().to_vec()));
        let options = Options {
            own: own.iter().map(text).collect(),
            secrets: secrets.iter().map(secret).collect(),
            ..Options::default()
        };
        let request = Request { options: &options, settings: &Settings::default() };
        let target = TargetPath::parse("/var/lib/kubelet/pods/7/volumes/a~b/c".as_ref()).unwrap();
        let plan = Rclone.mount(&target, &request).map_err(|failure| failure.message())?;
        let daemon = plan.steps.iter().find_map(|step| match step {
            crate::plan::Step::Serve(daemon) => Some(daemon.servers.clone()),
            _ => None,
        });
        Ok(daemon.unwrap())
    }

    #[test]
    fn caches_and_buffers_have_an_end() {
        let option = |key: &str, value: &str| [FsOption::new(key, value)];
        for (key, value) in [
            ("vfs-cache-max-size", "1Mi"),
            ("vfs-cache-max-size", "1024"),
            ("buffer-size", "16M"),
            ("transfers", "64"),
        ] {
            assert!(bounds::check(&option(key, value), 1 << 20).is_ok(), "{key}={value}");
        }
        for (key, value) in [
            ("vfs-cache-max-size", "1025"),
            ("vfs-cache-max-size", "1048577b"),
            ("vfs-cache-max-size", "1.1M"),
            ("vfs-cache-max-size", "off"),
            ("buffer-size", "1Ti"),
            ("buffer-size", "129Mi"),
            ("transfers", "65"),
        ] {
            assert!(bounds::check(&option(key, value), 1 << 20).is_err(), "{key}={value}");
        }
    }

    #[test]
    fn a_secret_names_no_server() {
        for (kind, known) in REMOTES {
            for key in known.iter().filter(|key| !FROM_SECRET.contains(key)) {
                let error = servers_of(&[("remote", kind)], &[(key, "evil.example.com")]).unwrap_err();
                assert!(error.contains(&format!("secret key {key:?} is no secret")), "{kind}: {error}");
            }
        }
        for key in
            ["url", "host", "endpoint", "auth", "storage_url", "namenode", "hostname", "provider", "region"]
        {
            assert!(!FROM_SECRET.contains(&key), "{key}");
        }
        assert!(SECRETS.iter().all(|key| FROM_SECRET.contains(key)));
    }

    #[test]
    fn every_place_is_a_server_for_the_policy() {
        let google = |rest: &str| format!(r#"{{"type":"service_account","private_key":"x"{rest}}}"#);
        let of_google =
            |rest: &str| servers_of(&[("remote", "gcs")], &[("service_account_credentials", &google(rest))]);
        let one = |kind: &str, key: &str, value: &str| servers_of(&[("remote", kind), (key, value)], &[]);
        assert_eq!(one("s3", "backend.endpoint", "minio:9000").unwrap(), ["minio"]);
        assert_eq!(one("hdfs", "backend.namenode", "a:8020,b").unwrap(), ["a", "b"]);
        assert_eq!(one("koofr", "backend.provider", "digistorage").unwrap(), ["digistorage"]);
        assert_eq!(one("s3", "backend.region", "eu-1").unwrap(), ["s3"]);
        let signed =
            servers_of(&[("remote", "azureblob")], &[("sas_url", "https://a.example.com/c?sig=s3cr3t%3D")]);
        assert_eq!(signed.unwrap(), ["a.example.com"]);
        assert_eq!(of_google("").unwrap(), ["google cloud storage"]);
        assert_eq!(
            of_google(r#","token_uri":"http://127.0.0.1/x""#).unwrap(),
            ["google cloud storage", "127.0.0.1"]
        );
        for rest in [
            r#","Token_URI":"http://a/""#,
            ",\"to\u{212a}en_uri\":\"http://a/\"",
            r#","token_uri":"x://a""#,
            r#","credential_source":{}"#,
        ] {
            assert!(of_google(rest).unwrap_err().contains(wording("no-service-account")), "{rest}");
        }
        let lacking = one("gcs", "path", "a").unwrap_err();
        assert!(lacking.contains("secret lacks \"service_account_credentials\""), "{lacking}");
        let signed = servers_of(&[("remote", "azureblob")], &[("sas_url", "x://s3cr3t@a")]).unwrap_err();
        assert!(!signed.contains("s3cr3t"), "{signed}");
    }

    #[test]
    fn what_is_read_in_two_ways_is_refused() {
        for (kind, key, value) in [
            ("s3", "backend.endpoint", "127.0.0.1:18080/x://allowed"),
            ("webdav", "backend.url", "http://allowed@127.0.0.1/"),
            ("sftp", "backend.host", "127.0.0.1:22/x"),
            ("ftp", "backend.port", "21:allowed"),
            ("s3", "backend.region", "evil.example.com/"),
            ("azureblob", "backend.account", "evil.example.com/x?"),
            ("pcloud", "backend.hostname", "a/b"),
            ("hdfs", "backend.namenode", "a:b"),
        ] {
            let options = [("remote", kind), (key, value), ("backend.host", "a")];
            assert!(
                servers_of(&options[..if kind == "ftp" { 3 } else { 2 }], &[]).is_err(),
                "{kind} {value}"
            );
        }
    }

    #[test]
    fn a_key_of_several_lines_is_one() {
        let key = joined(&Secret::new(b"-----BEGIN\r\nabc\n-----END\n".to_vec()));
        assert_eq!(key.expose(), b"-----BEGIN\\nabc\\n-----END");
    }
}

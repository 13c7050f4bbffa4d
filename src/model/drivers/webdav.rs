//! `webdav`: a directory of a web server, through davfs2.
//!
//! A file that a pod writes is stored when the pod closes it. davfs2 keeps its cache in the node's
//! `/var/cache/davfs2`, which only davfs2's own user can enter. davfs2 gives no access to users
//! that the node's user list lacks: pods with such users can use driver `rclone` with `remote:
//! webdav`.

use super::fuse::{self, Plain, Url};
use crate::driver::{Driver, Needs, Request};
use crate::plan::{Content, Daemon, Piece, Plan, Source, Step, Word};
use crate::schema::{Id, Mode, OptionSpec, SecretSpec};
use crate::settings::Settings;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::mount_options::{Atime, Rule};
use flexvol_protocol::secret::Secret;
use flexvol_protocol::{Capabilities, Options, TargetPath};
use std::path::PathBuf;

/// The driver.
pub struct Webdav;

crate::options! {
    /// Options of a PV.
    pub struct WebdavOptions {
        /// The directory on the server.
        url: Url = "url" { aliases: ["server", "source"], example: "https://files.example.com/web" },
        /// User name; else the Secret's `username`. It requires a password.
        user: Option<Plain> = "user" { aliases: ["username"] },
        /// Lock files on the server while they are open for writing.
        locks: bool = "locks" { default: "false" },
        /// Owner shown for all files, one of the node's users. Only it, root and the node's users
        /// can access them.
        uid: Option<Id> = "uid" {},
        /// Group shown for all files, one of the node's groups.
        gid: Option<Id> = "gid" {},
        /// Permission bits cleared in the modes shown. The default is 0000 with an fsGroup, else
        /// 0022.
        umask: Option<Mode> = "umask" {},
        /// Comma list of further flags.
        mount_options: Option<String> = "mountOptions" { aliases: ["mountoptions"], example: "noexec" },
    }
}

const USER: SecretSpec =
    SecretSpec { keys: &["username", "user"], doc: "user name, unless an option gives it", example: false };

const PASSWORD: SecretSpec =
    SecretSpec { keys: &["password", "passwd", "pass"], doc: "the password", example: false };

/// Settings of davfs2. The server is asked once more, where davfs2 would try for five minutes.
/// Newer kernels read more of a directory at once than davfs2's default buffer holds, and then get
/// nothing.
const SETTINGS: &str = "buf_size 256\nask_auth 0\ndelay_upload 0\nconnect_timeout 10\nread_timeout 30\nretry 5\nmax_retry 30\ndir_refresh 5\n";

/// Limit for davfs2's cache of files that are not open, in MiB.
const CACHE: u64 = 50;

const NO_RULES: &[Rule] = &[];

impl Driver for Webdav {
    fn name(&self) -> &'static str {
        "webdav"
    }

    fn summary(&self) -> &'static str {
        "a directory of a web server"
    }

    fn needs(&self) -> Needs {
        Needs::FUSE
    }

    fn options(&self) -> &'static [OptionSpec] {
        WebdavOptions::SPECS
    }

    fn secrets(&self) -> &'static [SecretSpec] {
        &[USER, PASSWORD]
    }

    fn capabilities(&self, _: &Settings) -> Capabilities {
        Capabilities::NONE
    }

    fn programs<'a>(&self, _: &'a Settings) -> Vec<&'a str> {
        vec!["mount.davfs"]
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let volume = request.options;
        let options = WebdavOptions::parse(&volume.own)?;
        let (flags, _) = fuse::further(options.mount_options.as_deref(), volume, NO_RULES)?;
        if flags.atime == Atime::Never {
            return Err(Failure::options("mountOptions: \"noatime\" has no meaning here: leave it out"));
        }
        let locks = u8::from(options.locks);
        let cache = (request.settings.policy.cache_limit() >> 20).clamp(1, CACHE);
        let config = fuse::content(format!("{SETTINGS}cache_size {cache}\nuse_locks {locks}\nsecrets "));
        let words = fuse::flag_words(flags).into_iter().chain(owner(&options, volume));
        let daemon = Daemon {
            words: [
                fuse::texts([options.url.0.clone(), target.to_string()]),
                vec![Word::Text("-o".into()), Word::File { before: "conf=".into(), name: "conf" }],
                fuse::options(words),
            ]
            .concat(),
            files: [
                ("conf", config.piece(Piece::File("secrets")).text("\n")),
                ("secrets", secrets(&options, request)?),
            ]
            .into(),
            futile: "mounting anyway",
            traces: traces(target).into(),
            servers: vec![options.url.host()],
            ..fuse::daemon("mount.davfs", &options.url.0, target, flags)
        };
        Ok(fuse::mount("fuse", Source::Name(options.url.0), daemon))
    }

    fn unmount(&self, target: &TargetPath, _: &Settings) -> Result<Plan> {
        let mut plan = Plan::end_daemon(target, fuse::WRITING_BACK);
        if let [Step::EndDaemon { traces, .. }] = plan.steps.as_mut_slice() {
            traces.extend(self::traces(target));
        }
        Ok(plan)
    }
}

/// Returns what davfs2 leaves on the node. A killed davfs2 leaves its pid file, and then does not
/// mount there again. Every davfs2 leaves its cache, whose name begins with the server's name: the
/// next pod has another target, and so another cache.
fn traces(target: &TargetPath) -> [PathBuf; 2] {
    let name = target.to_string().trim_start_matches('/').replace('/', "-");
    [format!("/run/mount.davfs/{name}.pid"), format!("/var/cache/davfs2/*+{name}+root")].map(PathBuf::from)
}

/// Returns the words for owner and modes. davfs2 takes two modes where other programs take one
/// mask. It gives no access to a group that the node's group list lacks, as it lacks a pod's group,
/// whatever the modes: with an fsGroup the files stay root's.
fn owner(options: &WebdavOptions, volume: &Options) -> Vec<String> {
    let umask = options.umask.or(volume.fs_group.is_none().then_some(Mode(0o022)));
    let words = fuse::owner_words(options.uid, options.gid, umask, (volume, fuse::BY_PROGRAM));
    let modes =
        |mask: u32| [format!("dir_mode={:04o}", 0o777 & !mask), format!("file_mode={:04o}", 0o666 & !mask)];
    let mask = |word: &str| u32::from_str_radix(word.strip_prefix("umask=")?, 8).ok();
    let known = |word: &&String| options.gid.is_some() || !word.starts_with("gid=");
    let words = words.iter().filter(known);
    words.flat_map(|word| mask(word).map_or(vec![word.clone()], |mask| modes(mask).to_vec())).collect()
}

/// Returns the secrets file: one line for the only server. davfs2 always reads the node's
/// `/etc/davfs2/secrets`, and then this file, which overrides it: so a volume without a user gets a
/// line too.
fn secrets(options: &WebdavOptions, request: &Request<'_>) -> Result<Content> {
    let volume = request.options;
    let user = match &options.user {
        Some(user) => Some(Secret::new(user.0.clone().into_bytes())),
        None => fuse::secret_line(volume, &USER)?,
    };
    let line = fuse::content(format!("{} ", options.url.0));
    match (user, fuse::secret_line(volume, &PASSWORD)?) {
        (Some(user), Some(password)) => {
            Ok(line.secret(&escaped(&user)).text(" ").secret(&escaped(&password)).text("\n"))
        }
        (None, Some(_)) => {
            Err(Failure::options("secret has a password and no \"username\": add it there, or option user"))
        }
        (Some(_), None) => Err(Failure::options("secret lacks \"password\": add it, or leave the user out")),
        (None, None) if request.settings.policy.allow_node_secrets => Ok(Content::default()),
        (None, None) => Ok(line.text("\"\" \"\"\n")),
    }
}

/// Escapes a secret for davfs2, which splits a line into words; a backslash makes the next
/// character literal.
fn escaped(secret: &Secret) -> Secret {
    let special = |byte: u8| b" \t\"#\\".contains(&byte);
    let bytes = secret.expose().iter();
    Secret::new(bytes.flat_map(|byte| special(*byte).then_some(b'\\').into_iter().chain([*byte])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_one_word() {
        let word = escaped(&Secret::new(b"p,a\"s's #\tw\\rd\xff".to_vec()));
        assert_eq!(word.expose(), b"p,a\\\"s's\\ \\#\\\tw\\\\rd\xff");
    }
}

//! Drivers of clones of repositories.

use super::{PLAIN, Profile, key, other};
use crate::drivers::git::Git;

/// `ananace/git-live`.
pub(super) const GIT_LIVE: Profile = Profile {
    name: "ananace/git-live",
    driver: &Git,
    summary: "a clone of a repository",
    keys: &[
        key("repo", "repository", "address of the repository"),
        key("branch", "revision", "the branch; the default is the server's own choice"),
        other("interval", "no effect: a clone stays as it is"),
    ],
    secrets: &[
        key("username", "username", "who logs in to the server"),
        key("password", "password", "the password or a token"),
    ],
    deviations: &[
        "a volume does not follow its branch: a pod has what was there when it was started, and interval has no effect",
        "name and password of the Secret are used, and on no command line: theirs failed with any",
        "unmount removes the clone and nothing else: theirs removed whatever was in the directory",
    ],
    example: &[("repo", "https://git.example.com/web.git"), ("branch", "main"), ("interval", "1h 30s")],
    ..PLAIN
};

/// `piersharding/gitrepo`.
pub(super) const GITREPO: Profile = Profile {
    name: "piersharding/gitrepo",
    driver: &Git,
    summary: "a clone of a repository",
    keys: &[
        key("repo", "repository", "address of the repository, such as git@git.example.com:web.git"),
        other("hostTarget", "no effect: each pod has a clone of its own"),
    ],
    secrets: &[key("sshKey", "ssh-privatekey", "private key in OpenSSH's form")],
    deviations: &[
        "each pod has a clone of its own, gone with it: theirs had one for all in hostTarget on the node",
        "an SSH server must be who it says it is: install with --set 'hostKey=ssh-ed25519 AAAA…', or with \
         --set hostKeyCheck=off on a network that is trusted",
    ],
    example: &[("repo", "https://git.example.com/web.git"), ("hostTarget", "/data/images")],
    ..PLAIN
};

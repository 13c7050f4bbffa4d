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
        key("username", "username", "user name for the server"),
        key("password", "password", "the password or a token"),
    ],
    deviations: &[
        "a volume does not follow its branch: it stays as it was when the pod started, and interval has no effect",
        "name and password of the Secret are used, never on a command line: the original failed with any",
        "unmount removes the clone and nothing else: the original removed whatever was in the directory",
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
        "each pod has its own clone, removed with it: the original had one for all in hostTarget on the node",
        "the host key of an SSH server is checked: install with --set 'hostKey=ssh-ed25519 AAAA…', or with --set \
         hostKeyCheck=off on a trusted network",
    ],
    example: &[("repo", "https://git.example.com/web.git"), ("hostTarget", "/data/images")],
    ..PLAIN
};

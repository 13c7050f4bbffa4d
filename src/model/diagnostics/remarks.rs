//! Lines that are not the cause: remarks that programs always print, and consequences of another
//! line.
//!
//! Such a line is left out if another line complains. If that line does not name a cause either,
//! the remark is at most a hint. A remark without other lines is used.

use super::found;
use std::borrow::Cow;

/// Words that do not name a cause, in lower case; `…` stands for any text.
struct Remark {
    sign: &'static str,
    /// Words of which another line must have one. An empty list stands for any complaint.
    beside: &'static [&'static str],
}

/// Messages of ssh before it ends.
const SSH: &[&str] = &[
    "host key verification failed",
    "permission denied (",
    "too many authentication failures",
    "connection refused",
    "could not resolve hostname",
];

const REMARKS: &[Remark] = &[
    // Clients of Ceph look for a key in several places, and continue with the one they were given.
    Remark { sign: "auth: unable to find a keyring", beside: &[] },
    Remark { sign: "no keyring found; disabled cephx", beside: &[] },
    Remark { sign: "did not load config file, using default settings", beside: &[] },
    // The kernel asks the monitors first, and also prints this if they refuse access.
    Remark {
        sign: "no mds server is up or the cluster is laggy", beside: &["auth…failed", "auth…error"]
    },
    // If the program for locks is missing, mount.nfs has only these words for the resulting number.
    Remark { sign: "an incorrect mount option was specified", beside: &["rpc.statd is not running"] },
    // sshfs reads from an ssh that has ended.
    Remark { sign: "read: connection reset by peer", beside: SSH },
];

/// Words that show a complaint.
const COMPLAINTS: &[&str] = &[
    "error",
    "fail",
    "fatal",
    "cannot",
    "can't",
    "could not",
    "unable",
    "refused",
    "denied",
    "no such",
    "timed out",
    "not found",
    "invalid",
];

/// Returns a text without its remarks. Borrowed if it has no remarks, or only remarks.
pub(super) fn left_out(text: &str) -> Cow<'_, str> {
    let (mut kept, mut is_whole) = (Vec::new(), true);
    for line in text.lines() {
        let small = line.to_ascii_lowercase();
        let remarks = REMARKS.iter().filter(|remark| is_passed_over(remark, text));
        // The words before it in the line may be another program's wrapping of the whole text.
        let ends = remarks.filter_map(|remark| found(&small, remark.sign)).min();
        is_whole &= ends.is_none();
        kept.push(ends.map_or(line, |at| &line[..at]));
    }
    if is_whole { Cow::Borrowed(text) } else { Cow::Owned(kept.join("\n")) }
}

fn is_passed_over(remark: &Remark, text: &str) -> bool {
    let others = text.lines().map(str::to_ascii_lowercase);
    let mut others = others.filter(|line| REMARKS.iter().all(|remark| found(line, remark.sign).is_none()));
    others.any(|line| match remark.beside {
        [] => COMPLAINTS.iter().any(|word| line.contains(word)),
        beside => beside.iter().any(|pattern| found(&line, pattern).is_some()),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Confidence, explain};
    use super::left_out;

    #[test]
    fn a_remark_is_left_out_where_something_else_complains() {
        let keyring = "auth: unable to find a keyring on /etc/ceph/keyring: (2) No such file or directory";
        assert_eq!(left_out(keyring), keyring);
        let alone = format!("-1 {keyring}\nglobal_init: this and that");
        assert_eq!(left_out(&alone), alone);
        let outer = format!("MountVolume.SetUp failed for volume \"v\" : -1 {keyring}\nrbd: map failed");
        assert_eq!(left_out(&outer), "MountVolume.SetUp failed for volume \"v\" : -1 \nrbd: map failed");
    }

    #[test]
    fn what_comes_of_another_line_is_no_second_cause() {
        for (cause, follows) in [
            ("mount.nfs: rpc.statd is not running", "mount.nfs: an incorrect mount option was specified"),
            ("Host key verification failed.", "read: Connection reset by peer"),
        ] {
            let explained = |text: &str| explain(text).map(|it| (it.known_error.id, it.confidence));
            assert_eq!(explained(&format!("{cause}\n{follows}")), explained(cause));
            assert!(explained(cause).is_some_and(|(_, confidence)| confidence == Confidence::Cause));
            assert_ne!(explained(follows), explained(cause));
        }
    }

    #[test]
    fn what_follows_is_left_out_beside_its_cause_alone() {
        let laggy = "ceph: No mds server is up or the cluster is laggy";
        let other = format!("{laggy}\nlibceph: connect error -101");
        assert_eq!(left_out(&other), other);
        let refused = "libceph: auth method 'x' error -1";
        assert_eq!(left_out(&format!("{laggy}\n{refused}\n{laggy}")), format!("ceph: \n{refused}\nceph: "));
    }
}

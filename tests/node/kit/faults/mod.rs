//! Drivers that misbehave, each in one way, one file for each group of cases.
//!
//! A [`Fault`] is one of the well-behaved drivers of `check template` with a few words changed:
//! mostly it does what a popular driver does.

mod answers;
mod attach;
mod crash;
mod environment;
mod expand;
mod init;
mod install;
mod left;
mod mount;
mod nature;
mod options;
mod output;
mod secrets;
mod sequence;
mod storm;
mod unmount;
mod verbs;

/// A well-behaved driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reference {
    /// Volume in memory: does not attach, takes a secret.
    Tmpfs,
    /// Disk in a file: attaches, and can grow.
    Loop,
    /// Volume in memory, with a process for each mount.
    Keeper,
}

/// One way to misbehave.
#[derive(Debug)]
pub(crate) struct Fault {
    /// A few words, with dashes.
    pub(crate) name: &'static str,
    /// The wrong behaviour, and a driver that showed it, if one did.
    pub(crate) what: &'static str,
    /// The driver that is changed.
    pub(crate) of: Reference,
    /// The changes, one after the other: text that occurs once in the script, and its replacement.
    pub(crate) change: &'static [(&'static str, &'static str)],
    /// The cases that find it; no other case may.
    pub(crate) fails: &'static [&'static str],
}

/// Where a driver lies in the plugin directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Laid {
    /// The part of the directory's name before the `~`.
    pub(crate) vendor: &'static str,
    /// The mode of the file.
    pub(crate) mode: u32,
    /// Another file in its directory.
    pub(crate) beside: Option<&'static str>,
}

impl Laid {
    pub(crate) const WELL: Self = Self { vendor: "check.example", mode: 0o755, beside: None };
}

/// All faults, in the order of the cases.
static ALL: &[&[Fault]] = &[
    output::FAULTS,
    answers::FAULTS,
    init::FAULTS,
    verbs::FAULTS,
    environment::FAULTS,
    install::FAULTS,
    options::FAULTS,
    secrets::SECRETS,
    secrets::LOGS,
    mount::FAULTS,
    unmount::FAULTS,
    nature::FAULTS,
    crash::FAULTS,
    storm::FAULTS,
    attach::FAULTS,
    expand::FAULTS,
    sequence::FAULTS,
    left::FAULTS,
];

impl Reference {
    pub(crate) const ALL: [Self; 3] = [Self::Tmpfs, Self::Loop, Self::Keeper];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tmpfs => "tmpfs",
            Self::Loop => "loop",
            Self::Keeper => "keeper",
        }
    }

    /// The whole script.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Tmpfs => include_str!("../../../../src/kit/cli/check/template/tmpfs.sh"),
            Self::Loop => include_str!("../../../../src/kit/cli/check/template/loop.sh"),
            Self::Keeper => include_str!("../../../../src/kit/cli/check/template/keeper.sh"),
        }
    }

    /// The options of a volume, the user's and those that kubelet adds, and the driver's trait.
    pub(crate) fn volume(self) -> [&'static str; 2] {
        match self {
            Self::Tmpfs => [
                r#"{"size":"8Mi","kubernetes.io/fsType":"","kubernetes.io/readwrite":"rw","kubernetes.io/secret/password":"dGhlLXBhc3N3b3JkLW9mLWEtdGVzdAo="}"#,
                "--ephemeral-ok",
            ],
            Self::Loop => [
                r#"{"file":"disk.img","size":"8Mi","kubernetes.io/fsType":"ext4","kubernetes.io/readwrite":"rw"}"#,
                "--exclusive-ok",
            ],
            Self::Keeper => {
                [r#"{"kubernetes.io/fsType":"","kubernetes.io/readwrite":"rw"}"#, "--ephemeral-ok"]
            }
        }
    }
}

impl Fault {
    pub(crate) fn all() -> impl Iterator<Item = &'static Self> {
        ALL.iter().copied().flatten()
    }

    /// No fault: the driver as it is.
    pub(crate) fn none(of: Reference) -> Self {
        Self { name: of.name(), what: "", of, change: &[], fails: &[] }
    }

    /// The whole script with the fault.
    pub(crate) fn text(&self) -> String {
        self.change.iter().fold(self.of.text().to_owned(), |text, (from, to)| {
            let times = text.matches(from).count();
            assert_eq!(times, 1, "{}: {from:?} in {}", self.name, self.of.name());
            text.replacen(from, to, 1)
        })
    }

    pub(crate) fn laid(&self) -> Laid {
        let found = install::LAID.iter().find(|(name, _)| *name == self.name);
        found.map_or(Laid::WELL, |(_, laid)| *laid)
    }
}

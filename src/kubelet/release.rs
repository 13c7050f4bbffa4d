//! Release of Kubernetes, and its meaning for the installation of a driver. Pure.

use std::fmt;

/// Major and minor version: patch releases make no difference for drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(u16, u16);

/// Prefixes of the Kubernetes version, each at the start of a line.
const BEFORE: &[&str] = &["Kubernetes ", "kubernetes ", "k3s version "];

/// First release that looks for drivers while it runs (kubernetes#50031).
const WATCHES: Release = Release(1, 8);

/// First release that keeps the drivers it found when the `init` of another driver fails in the
/// same scan (kubernetes#106703).
const KEEPS: Release = Release(1, 24);

impl Release {
    /// Reads the release from the version output of a program that contains kubelet:
    /// `Kubernetes v1.36.2`, or `k3s version v1.28.4+k3s1 (…)`. `None` for any other text, and
    /// for a build that belongs to no release, `v0.0.0`.
    pub fn told(output: &str) -> Option<Self> {
        let version =
            output.lines().find_map(|line| BEFORE.iter().find_map(|before| line.strip_prefix(before)))?;
        let mut numbers = version.trim_start().strip_prefix('v')?.splitn(3, '.');
        let (major, minor) = (numbers.next()?.parse().ok()?, numbers.next()?);
        let digits = minor.find(|c: char| !c.is_ascii_digit()).unwrap_or(minor.len());
        let release = Self(major, minor[..digits].parse().ok()?);
        (major > 0).then_some(release)
    }

    /// Reports whether kubelet notices a new or changed driver without a restart.
    pub fn sees_changes(self) -> bool {
        self >= WATCHES
    }

    /// Reports whether a failing driver leaves the others loaded. Before this release, the others
    /// may be missing until kubelet is restarted without the failing driver.
    pub fn keeps_others(self) -> bool {
        self >= KEEPS
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_read_from_what_programs_print() {
        for (output, release) in [
            ("Kubernetes v1.36.2\n", Some((1, 36))),
            ("Kubernetes v1.7.16\n", Some((1, 7))),
            ("Kubernetes v1.28.5-eks-5e0fdde\n", Some((1, 28))),
            ("Kubernetes v1.19+", Some((1, 19))),
            ("k3s version v1.28.4+k3s1 (6ba6c1b6)\ngo version go1.20.11\n", Some((1, 28))),
            ("openshift v3.11.0+0cbc58b\nkubernetes v1.11.0+d4cacc0\netcd 3.2.16\n", Some((1, 11))),
            ("W0101 a warning\nKubernetes v2.0.1\n", Some((2, 0))),
            ("Kubernetes v0.0.0-master+$Format:%H$\n", None),
            ("KubeEdge v1.12.1\n", None),
            ("flexvol 1.36.2\n", None),
            ("Kubernetes 1.36.2\n", None),
            ("Kubernetes v1\n", None),
            ("Kubernetes v1.x.2\n", None),
            ("Kubernetes v99999999.1\n", None),
            ("about Kubernetes v1.2.3\n", None),
            ("", None),
        ] {
            assert_eq!(
                Release::told(output),
                release.map(|(major, minor)| Release(major, minor)),
                "{output:?}"
            );
        }
        assert_eq!(Release(1, 7).to_string(), "1.7");
    }

    #[test]
    fn releases_are_ordered_by_number() {
        let of = |minor| (Release(1, minor).sees_changes(), Release(1, minor).keeps_others());
        assert_eq!(
            [7, 8, 9, 23, 24, 36].map(of),
            [(false, false), (true, false), (true, false), (true, false), (true, true), (true, true)]
        );
        assert!(Release(2, 0).sees_changes() && Release(2, 0).keeps_others());
    }
}

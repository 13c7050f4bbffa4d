//! Behaviour of probers: that of the design, or that of a release of Kubernetes.

use flexvol_kubelet::scan::{Failed, Finding, Found, Scan, Stage};
use flexvol_linux::fs::watch_tree::Hidden;
use flexvol_protocol::failure::{Failure, Result};
use std::ffi::OsStr;
use std::str::FromStr;

/// Way in which a prober follows its plugin directory.
///
/// | | design | 1.24 to 1.36 | 1.10 to 1.23 |
/// |---|---|---|---|
/// | probes | when signalled, at most once a second | at each look-up of a volume plugin | same |
/// | runs again | the drivers that changed | same | same |
/// | ignores | every path with a dot name in it | a dot name at the end of the path | same |
/// | `init` fails | the driver is out | its old version stays, `init` runs at each look-up | same |
/// | `init` of another fails | no effect | no effect | results of that probe are forgotten |
/// | changes lost | everything is probed | never noticed | same |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Behaviour in the design of the dynamic prober, which no release implements.
    Design,
    /// Kubernetes 1.24 to 1.36.
    Kubelet136,
    /// Kubernetes 1.10 to 1.23.
    Kubelet122,
}

impl Behaviour {
    /// Returns the releases with this behaviour; `None` for the design.
    pub fn releases(self) -> Option<&'static str> {
        match self {
            Self::Design => None,
            Self::Kubelet136 => Some("kubelet 1.24 to 1.36"),
            Self::Kubelet122 => Some("kubelet 1.10 to 1.23"),
        }
    }

    /// Limits a scan to what such a kubelet would load: before 1.24, one driver whose `init` fails
    /// costs all the others too.
    pub fn limit(self, mut scan: Scan) -> Scan {
        let fails =
            |found: &&Found| matches!(&found.finding, Finding::Failed(failed) if failed.stage == Stage::Init);
        let culprit = scan.found.iter().find(fails).map(|found| found.directory.clone());
        let Some(culprit) = culprit.filter(|_| self.is_all_or_nothing()) else { return scan };
        for found in &mut scan.found {
            if matches!(found.finding, Finding::Loaded(_)) {
                found.finding = Finding::Failed(dropped("its init succeeded", &culprit));
            }
        }
        scan
    }

    /// Returns the treatment of hidden directories in the watch.
    pub(super) fn hidden(self) -> Hidden {
        match self {
            Self::Design => Hidden::Skipped,
            _ => Hidden::KeptIfThere,
        }
    }

    /// Reports whether one failing driver discards what the same probe found of the others.
    pub(super) fn is_all_or_nothing(self) -> bool {
        self == Self::Kubelet122
    }
}

impl FromStr for Behaviour {
    type Err = Failure;

    /// Reads a release of Kubernetes, `1.22`, also `v1.22.6`.
    fn from_str(release: &str) -> Result<Self> {
        let mut parts = release.strip_prefix('v').unwrap_or(release).split('.');
        let (Some("1"), Some(Ok(minor))) = (parts.next(), parts.next().map(str::parse::<u16>)) else {
            return Err(Failure::options(format!("{release:?} is not a release of Kubernetes: write 1.36")));
        };
        match minor {
            0..10 => Err(Failure::options(format!("kubelet 1.{minor} is not modelled: write 1.10 or later"))),
            10..24 => Ok(Self::Kubelet122),
            _ => Ok(Self::Kubelet136),
        }
    }
}

/// Describes the failure of a driver that kubelet drops because the `init` of another driver failed
/// in the same probe.
pub(super) fn dropped(what: &str, culprit: &OsStr) -> Failed {
    let logged = format!(
        "{what}, but that of {} failed in the same probe, and kubelet drops both until something changes again",
        culprit.display()
    );
    Failed { stage: Stage::Init, logged, fix: Some(format!("fix or remove {}", culprit.display())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_kubelet::scan::Loaded;
    use flexvol_protocol::{Capabilities, DriverName};
    use std::time::Duration;

    #[test]
    fn before_1_24_one_that_fails_costs_all_others() {
        let good = Loaded {
            name: DriverName::parse("v/good").unwrap(),
            executable: "/p/v~good/good".into(),
            capabilities: Capabilities::NONE,
            took: Duration::ZERO,
        };
        let bad = Failed { stage: Stage::Init, logged: "exit status 1".to_owned(), fix: None };
        let found = vec![
            Found { directory: "v~bad".into(), finding: Finding::Failed(bad) },
            Found { directory: "v~good".into(), finding: Finding::Loaded(good) },
        ];
        let found = Scan { plugin_dir: "/p".into(), found };
        for (behaviour, expected) in
            [(Behaviour::Design, 1), (Behaviour::Kubelet136, 1), (Behaviour::Kubelet122, 0)]
        {
            let scan = behaviour.limit(found.clone());
            let loaded = scan.found.iter().filter(|found| matches!(found.finding, Finding::Loaded(_)));
            assert_eq!(loaded.count(), expected, "{behaviour:?}");
        }
    }

    #[test]
    fn releases_have_the_behaviour_of_their_time() {
        for (release, behaviour) in [
            ("1.10", Behaviour::Kubelet122),
            ("1.22.6", Behaviour::Kubelet122),
            ("1.23", Behaviour::Kubelet122),
            ("1.24", Behaviour::Kubelet136),
            ("v1.36.2", Behaviour::Kubelet136),
        ] {
            assert_eq!(release.parse(), Ok(behaviour), "{release}");
        }
        assert!("v1.9.11".parse::<Behaviour>().unwrap_err().message().contains("1.10 or later"));
        for wrong in ["", "1", "2.1", "one", "1.x", "136"] {
            assert!(wrong.parse::<Behaviour>().unwrap_err().message().contains("write 1.36"), "{wrong}");
        }
    }
}

//! Distribution of a node, from os-release(5), and the way to install software there.

use flexvol_protocol::shell::assigned;

/// Family of distributions whose packages have the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Debian.
    Debian,
    /// Ubuntu: like Debian, except for kernel packages.
    Ubuntu,
    /// Fedora, and others with its names.
    Fedora,
    /// Red Hat Enterprise Linux and its derivatives: like Fedora with fewer packages, the rest in
    /// EPEL.
    Enterprise,
    /// openSUSE and SLES.
    Suse,
    /// Alpine.
    Alpine,
    /// Arch.
    Arch,
}

/// Way to install software on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Packages.
    Packages(Family),
    /// Packages with these names, installed in another way: instructions, with `PACKAGE` in place
    /// of the package's name.
    Images(Family, &'static str),
    /// Nothing can be installed, or not from packages: the reason and the fix.
    Sealed(&'static str),
    /// Unknown distribution.
    Unknown,
}

const OSTREE: &str = "rpm-ostree install PACKAGE, and restart the node";
const TRANSACTIONAL: &str = "transactional-update pkg install PACKAGE, and restart the node";

/// Known distributions by their `ID`, or by the name of another one in `ID_LIKE`.
const KNOWN: &[(&[&str], Distribution)] = &[
    (
        &["flatcar", "coreos"],
        Distribution::Sealed(
            "nothing can be installed on Flatcar: bring it as a system extension (systemd-sysext), or use a driver that needs no program of the node",
        ),
    ),
    (
        &["bottlerocket"],
        Distribution::Sealed(
            "nothing can be installed on Bottlerocket: use a driver that needs no program of the node, or nodes of another system",
        ),
    ),
    (
        &["talos"],
        Distribution::Sealed(
            "nothing can be installed on Talos: build an image with a system extension that brings it, or use nodes of another system",
        ),
    ),
    (
        &["cos"],
        Distribution::Sealed(
            "nothing can be installed on Container-Optimized OS: use a driver that needs no program of the node, or nodes of another system",
        ),
    ),
    (
        &["nixos"],
        Distribution::Sealed(
            "add it to environment.systemPackages and link it into /usr/local/bin: programs are not looked for in NixOS's directories",
        ),
    ),
    (
        &["opensuse-microos", "opensuse-leap-micro", "sle-micro", "sl-micro"],
        Distribution::Images(Family::Suse, TRANSACTIONAL),
    ),
    (&["rhcos"], Distribution::Images(Family::Enterprise, OSTREE)),
    (&["ubuntu"], Distribution::Packages(Family::Ubuntu)),
    (&["debian"], Distribution::Packages(Family::Debian)),
    (
        &["rhel", "centos", "rocky", "almalinux", "ol", "scientific"],
        Distribution::Packages(Family::Enterprise),
    ),
    (
        &["fedora", "amzn", "azurelinux", "mariner", "photon", "openeuler"],
        Distribution::Packages(Family::Fedora),
    ),
    (&["suse", "opensuse", "sles"], Distribution::Packages(Family::Suse)),
    (&["alpine"], Distribution::Packages(Family::Alpine)),
    (&["arch"], Distribution::Packages(Family::Arch)),
];

impl Distribution {
    /// Finds the distribution of a node from the text of its os-release.
    pub fn of(text: &str) -> Self {
        let id = assigned(text, "ID").unwrap_or_default();
        let like = assigned(text, "ID_LIKE").unwrap_or_default();
        let mut names = std::iter::once(id.as_str()).chain(like.split_whitespace());
        let known = names.find_map(known).unwrap_or(Self::Unknown);
        match known {
            Self::Packages(family @ (Family::Fedora | Family::Enterprise))
                if assigned(text, "VARIANT_ID").as_deref() == Some("coreos") =>
            {
                Self::Images(family, OSTREE)
            }
            known => known,
        }
    }
}

fn known(name: &str) -> Option<Distribution> {
    KNOWN.iter().find(|(names, _)| names.contains(&name)).map(|(_, distribution)| *distribution)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_is_known_by_its_id_or_by_whom_it_is_like() {
        for (text, family) in [
            ("PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\n", Family::Debian),
            ("ID=raspbian\nID_LIKE=debian\n", Family::Debian),
            ("NAME=\"Ubuntu\"\nID=ubuntu\nID_LIKE=debian\n", Family::Ubuntu),
            ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", Family::Ubuntu),
            ("ID=fedora\nVARIANT_ID=server\n", Family::Fedora),
            ("ID=\"rhel\"\nID_LIKE=\"fedora\"\n", Family::Enterprise),
            ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", Family::Enterprise),
            ("ID=\"centos\"\nID_LIKE=\"rhel fedora\"\n", Family::Enterprise),
            ("ID='almalinux'\nID_LIKE='rhel centos fedora'\n", Family::Enterprise),
            ("ID=\"ol\"\nID_LIKE=\"fedora\"\n", Family::Enterprise),
            ("ID=\"eurolinux\"\nID_LIKE=\"rhel fedora centos\"\n", Family::Enterprise),
            ("ID=\"amzn\"\nID_LIKE=\"fedora\"\nVERSION_ID=\"2023\"\n", Family::Fedora),
            ("ID=\"amzn\"\nID_LIKE=\"centos rhel fedora\"\nVERSION_ID=\"2\"\n", Family::Fedora),
            ("ID=azurelinux\nVERSION_ID=\"3.0\"\n", Family::Fedora),
            ("ID=\"sles\"\nID_LIKE=\"suse\"\n", Family::Suse),
            ("ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n", Family::Suse),
            ("ID=alpine\nVERSION_ID=3.20.1\n", Family::Alpine),
            ("ID=arch\n", Family::Arch),
            ("ID=manjaro\nID_LIKE=arch\n", Family::Arch),
        ] {
            assert_eq!(Distribution::of(text), Distribution::Packages(family), "{text}");
        }
        for text in
            ["", "ID=\n", "ID=frob\nID_LIKE=\"frab frub\"\n", "NAME=debian\n", "\u{0}=\n==\nID", "#ID=debian"]
        {
            assert_eq!(Distribution::of(text), Distribution::Unknown, "{text:?}");
        }
    }

    #[test]
    fn where_no_package_is_installed_it_is_said_what_else() {
        for (text, word) in [
            ("ID=flatcar\nID_LIKE=coreos\n", "Flatcar"),
            ("ID=bottlerocket\n", "Bottlerocket"),
            ("ID=talos\n", "Talos"),
            ("ID=cos\n", "Container-Optimized OS"),
            ("ID=nixos\n", "/usr/local/bin"),
        ] {
            let Distribution::Sealed(why) = Distribution::of(text) else { panic!("{text}") };
            assert!(why.contains(word) && why.contains(": "), "{why}");
        }
        for (text, family, how) in [
            ("ID=fedora\nVARIANT_ID=coreos\n", Family::Fedora, OSTREE),
            ("ID=\"rhcos\"\nID_LIKE=\"rhel fedora\"\nVARIANT_ID=coreos\n", Family::Enterprise, OSTREE),
            ("ID=\"rhel\"\nVARIANT_ID=\"coreos\"\n", Family::Enterprise, OSTREE),
            ("ID=\"opensuse-microos\"\nID_LIKE=\"suse opensuse\"\n", Family::Suse, TRANSACTIONAL),
        ] {
            assert_eq!(Distribution::of(text), Distribution::Images(family, how), "{text}");
        }
    }

    #[test]
    fn values_are_read_as_a_shell_reads_them() {
        for (text, expected) in [
            ("ID=a", "a"),
            ("ID=\"a b\"", "a b"),
            ("ID='a b'\r\n", "a b"),
            ("ID=\"a \\\"b\\\" \\$c\"", "a \"b\" $c"),
            ("ID='a\\b'", "a\\b"),
            ("  ID=a  ", "a"),
            ("ID=a\nID=b\n", "b"),
            ("XID=c\nID=\"", "\""),
        ] {
            assert_eq!(assigned(text, "ID").as_deref(), Some(expected), "{text}");
        }
        assert_eq!(assigned("VERSION_ID=1\n# ID=x\n", "ID"), None);
    }
}

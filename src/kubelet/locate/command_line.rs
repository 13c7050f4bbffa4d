//! Processes that contain a kubelet or a controller-manager, and their flags.
//!
//! Pure. Flags are read as by pflag, Go's usual library: `--name=value` or `--name value`, never
//! with one dash, `_` for `-`. The last one counts, and everything after `--` is ignored.

use std::path::Path;

/// Programs that decide about plugin directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// kubelet itself, also as part of hyperkube.
    Kubelet,
    /// k3s, which contains kubelet: kubelet's flags are `kubelet-arg`, on k3s's own command line or
    /// in its configuration.
    K3s,
    /// kubelite of `MicroK8s`, which reads kubelet's flags from a file.
    Kubelite,
    /// `MicroShift`, which contains kubelet.
    MicroShift,
    /// `KubeEdge`'s edgecore, which contains kubelet.
    EdgeCore,
    /// The node of OpenShift 3, which contains kubelet.
    Origin,
    /// kube-controller-manager.
    ControllerManager,
}

impl Program {
    /// Returns the row of the platform table with the places of this program's settings; `None` for
    /// a program with flags of its own.
    pub fn platform(self) -> Option<&'static str> {
        match self {
            Self::Kubelet | Self::ControllerManager => None,
            Self::K3s => Some("k3s"),
            Self::Kubelite => Some("microk8s"),
            Self::MicroShift => Some("microshift"),
            Self::EdgeCore => Some("kubeedge"),
            Self::Origin => Some("openshift3"),
        }
    }
}

impl Program {
    /// Returns the words that make this executable print the release of Kubernetes and exit; `None`
    /// if no such words are known, or if the program prints a version of its own.
    pub fn release_words(self, executable: Option<&Path>) -> Option<&'static [&'static str]> {
        let name = executable.and_then(Path::file_name).map(|name| name.to_string_lossy());
        match self {
            Self::Kubelet if name.is_some_and(|name| name.starts_with("hyperkube")) => {
                Some(&["kubelet", "--version"])
            }
            Self::Kubelet | Self::K3s => Some(&["--version"]),
            Self::Origin => Some(&["version"]),
            Self::Kubelite | Self::MicroShift | Self::EdgeCore | Self::ControllerManager => None,
        }
    }
}

/// Recognises a program; returns it and the words after its name. `None` for any other process.
///
/// Uses `argv[0]` or, if a wrapper has changed that, the executable. Any process can use such a
/// name: [`trust`](super::trust) decides which process is trusted.
pub fn recognise(words: &[String], executable: Option<&Path>) -> Option<(Program, Vec<String>)> {
    let words = untitled(words);
    let (first, rest) = words.split_first()?;
    let by_name = recognise_name(base(first), rest);
    let executable = executable.and_then(Path::file_name).and_then(|name| name.to_str());
    by_name.or_else(|| recognise_name(executable?, rest))
}

fn recognise_name(name: &str, rest: &[String]) -> Option<(Program, Vec<String>)> {
    let (applet, after) = match rest.split_first() {
        Some((applet, after)) => (applet.as_str(), after),
        None => ("", rest),
    };
    let found = match (name, applet) {
        ("kubelet", _) => (Program::Kubelet, rest),
        ("kube-controller-manager", _) => (Program::ControllerManager, rest),
        ("hyperkube", "kubelet") => (Program::Kubelet, after),
        ("hyperkube", "kube-controller-manager" | "controller-manager") => {
            (Program::ControllerManager, after)
        }
        ("k3s", "server" | "agent") => (Program::K3s, after),
        ("k3s-server" | "k3s-agent", _) => (Program::K3s, rest),
        ("kubelite", _) => (Program::Kubelite, rest),
        ("microshift", "run") => (Program::MicroShift, after),
        ("edgecore", _) => (Program::EdgeCore, rest),
        ("openshift", "start") => (Program::Origin, after),
        _ => return None,
    };
    Some((found.0, found.1.to_vec()))
}

/// Splits a process title. k3s overwrites its arguments, which include a token, with its name and
/// command: one word with blanks, then empty words.
fn untitled(words: &[String]) -> Vec<String> {
    match words.split_first() {
        Some((title, rest)) if title.contains(' ') && rest.iter().all(String::is_empty) => {
            title.split_whitespace().map(str::to_owned).collect()
        }
        _ => words.to_vec(),
    }
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// One flag, and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Name without dashes, and with `-` for `_`.
    pub name: String,
    /// Text after the `=`, or the next word.
    pub value: String,
    /// Source, for display: `command line`, or a file.
    pub from: String,
}

impl Flag {
    /// Returns a flag; turns `_` in its name into `-`.
    pub fn new(name: &str, value: &str, from: &str) -> Self {
        Self { name: name.replace('_', "-"), value: value.to_owned(), from: from.to_owned() }
    }
}

/// Flags that we look for: they always have a value, whatever the next word looks like.
const WITH_VALUE: &[&str] =
    &["volume-plugin-dir", "flex-volume-plugin-dir", "config", "config-dir", "root-dir", "kubelet-arg"];

/// Returns the flags among `words` that have a value.
///
/// Other flags may have none, and it is not known here which. In
/// `--anonymous-auth --volume-plugin-dir=X` the first flag is left out.
pub fn flags(words: &[String], from: &str) -> Vec<Flag> {
    let words: Vec<_> = words.iter().take_while(|word| *word != "--").collect();
    let mut flags = Vec::new();
    let mut rest = words.into_iter().peekable();
    while let Some(word) = rest.next() {
        let Some(flag) = word.strip_prefix("--") else { continue };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => match rest.next_if(|next| takes_value(flag) || !next.starts_with("--")) {
                Some(value) => (flag, value.clone()),
                None => continue,
            },
        };
        flags.push(Flag::new(name, &value, from));
    }
    flags
}

fn takes_value(name: &str) -> bool {
    WITH_VALUE.contains(&name.replace('_', "-").as_str())
}

/// Returns the last flag of that name.
pub fn last<'a>(flags: &'a [Flag], name: &str) -> Option<&'a Flag> {
    flags.iter().rfind(|flag| flag.name == name)
}

/// Returns the values of a flag that may be repeated. Each value is a flag of another program,
/// without dashes: k3s' `--kubelet-arg=volume-plugin-dir=X`.
pub fn handed_on(flags: &[Flag], name: &str) -> Vec<Flag> {
    let handed = flags.iter().filter(|flag| flag.name == name);
    handed.filter_map(|flag| inner(&flag.value, &format!("{}: {name}", flag.from))).collect()
}

/// Parses `volume-plugin-dir=X`, with dashes or without.
pub fn inner(text: &str, from: &str) -> Option<Flag> {
    let (name, value) = text.trim_start_matches('-').split_once('=')?;
    Some(Flag::new(name, value, from))
}

/// Returns the flags in other text, such as a unit or environment file of systemd; skips comments.
pub fn flags_in_text(text: &str, from: &str) -> Vec<Flag> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with(['#', ';']));
    let apart = |c: char| c.is_whitespace() || "\"'`\\".contains(c);
    let words = lines.flat_map(|line| line.split(apart)).filter(|word| !word.is_empty());
    flags(&words.map(|word| assigned(word).to_owned()).collect::<Vec<_>>(), from)
}

/// Returns `--a=b` for `KUBELET_EXTRA_ARGS=--a=b`.
fn assigned(word: &str) -> &str {
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    match word.split_once('=') {
        Some((name, value)) if is_name(name) => value,
        _ => word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: &str = "command line: kubelet-arg";

    fn split(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn programs_are_told_by_their_names() {
        for (line, executable, program) in [
            ("/usr/bin/kubelet --a=b", None, Some(Program::Kubelet)),
            ("kubelet", None, Some(Program::Kubelet)),
            ("/hyperkube kubelet --a=b", None, Some(Program::Kubelet)),
            ("/hyperkube proxy", None, None),
            ("hyperkube controller-manager", None, Some(Program::ControllerManager)),
            ("kube-controller-manager --a=b", None, Some(Program::ControllerManager)),
            ("/usr/local/bin/k3s server", None, Some(Program::K3s)),
            ("k3s kubectl get pods", None, None),
            ("/snap/microk8s/1/kubelite --kubelet-args-file=/a", None, Some(Program::Kubelite)),
            ("microshift run", None, Some(Program::MicroShift)),
            ("microshift version", None, None),
            ("/usr/local/bin/edgecore", None, Some(Program::EdgeCore)),
            ("/usr/bin/openshift start node", None, Some(Program::Origin)),
            ("rke2 server", None, None),
            ("k0s worker", None, None),
            ("vi /etc/kubelet", None, None),
            ("kubelet-wrapper", None, None),
            ("wrapped --a=b", Some("/usr/bin/kubelet"), Some(Program::Kubelet)),
        ] {
            let found = recognise(&split(line), executable.map(Path::new));
            assert_eq!(found.map(|(program, _)| program), program, "{line}");
        }
        assert_eq!(recognise(&[], None), None);
    }

    #[test]
    fn a_program_of_many_is_asked_for_its_kubelet() {
        let words = |program: Program, path: &str| program.release_words(Some(Path::new(path)));
        let plain: &[&str] = &["--version"];
        assert_eq!(words(Program::Kubelet, "/usr/bin/kubelet (deleted)"), Some(plain));
        assert_eq!(Program::Kubelet.release_words(None), Some(plain));
        let inner: &[&str] = &["kubelet", "--version"];
        assert_eq!(words(Program::Kubelet, "/hyperkube"), Some(inner));
        assert_eq!(words(Program::Kubelet, "/hyperkube (deleted)"), Some(inner));
        assert_eq!(words(Program::EdgeCore, "/usr/local/bin/edgecore"), None);
    }

    #[test]
    fn a_process_title_is_read_as_words() {
        let title = ["/usr/local/bin/k3s server".to_owned(), String::new(), String::new()];
        assert_eq!(recognise(&title, None), Some((Program::K3s, vec![])));
        let odd = ["k3s server".to_owned(), "--a=b".to_owned()];
        assert_eq!(recognise(&odd, None), None);
    }

    #[test]
    fn flags_are_read_as_pflag_reads_them() {
        let value = |line: &str| {
            let flags = flags(&split(line), "command line");
            last(&flags, "volume-plugin-dir").map(|flag| flag.value.clone())
        };
        for (line, expected) in [
            ("--volume-plugin-dir=/a", Some("/a")),
            ("--volume-plugin-dir /a", Some("/a")),
            ("--volume_plugin_dir=/a", Some("/a")),
            ("-volume-plugin-dir=/a", None),
            ("-volume-plugin-dir /a", None),
            ("volume-plugin-dir=/a", None),
            ("--volume-plugin-dir=/a --v=4 --volume-plugin-dir /b", Some("/b")),
            ("--volume-plugin-dir /b --volume-plugin-dir=/a", Some("/a")),
            ("--volume-plugin-dir --odd", Some("--odd")),
            ("--anonymous-auth --volume-plugin-dir=/a", Some("/a")),
            ("-v 4 --volume-plugin-dir=/a", Some("/a")),
            ("--volume-plugin-dir=/a=b", Some("/a=b")),
            ("--volume-plugin-dir=", Some("")),
            ("--volume-plugin-dir", None),
            ("-- --volume-plugin-dir=/a", None),
            ("--volume-plugin-directory=/a", None),
        ] {
            assert_eq!(value(line).as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn flags_for_kubelet_are_handed_on_by_k3s() {
        let line = "--kubelet-arg=volume-plugin-dir=/a --kubelet-arg --config=/c --node-name x";
        let handed = handed_on(&flags(&split(line), "command line"), "kubelet-arg");
        let expected =
            [("volume-plugin-dir", "/a"), ("config", "/c")].map(|(name, value)| Flag::new(name, value, FROM));
        assert_eq!(handed, expected);
    }

    #[test]
    fn flags_are_found_in_units_and_environment_files() {
        let text = "# --volume-plugin-dir=/no\nKUBELET_EXTRA_ARGS=--volume-plugin-dir=/a --v=2\n\
                    Environment=\"ARGS=--config=/c\" 'X=--root-dir=/r'\nExecStart=/kubelet \\\n  --config-dir \\\n /d";
        let flags = flags_in_text(text, "f");
        let value = |name| last(&flags, name).map(|flag| flag.value.as_str());
        assert_eq!(value("volume-plugin-dir"), Some("/a"));
        assert_eq!((value("config"), value("root-dir")), (Some("/c"), Some("/r")));
        assert_eq!(value("config-dir"), Some("/d"));
    }
}

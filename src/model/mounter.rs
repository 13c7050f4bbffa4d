//! Mount pods, which provide programs in place of the node: their settings in a side file, their
//! registration, and the requests to them.

use crate::json_object::mistake;
use crate::settings::Settings;
use flexvol_protocol::failure::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// Name, in kubelet's directory, of the directory where mount pods register for drivers.
pub const DIRECTORY: &str = "plugin-containers";

/// Kubelet's directory, if a volume's path does not show it.
pub const KUBELET: &str = "/var/lib/kubelet";

/// Limit for a registration, in bytes.
pub const LARGEST: usize = 64 * 1024;

/// Longest name of a driver's directory, in bytes: the path of a socket has no room for more.
pub const LONGEST_NAME: usize = 80;

/// Limit for a name in a registration, in bytes: each name is shorter.
const LONGEST: usize = 254;

/// Longest name of a volume, in bytes.
const LONGEST_VOLUME: usize = 128;

/// Environment variable of a program that serves a volume from a mount pod: the volume's name.
pub const SERVES: &str = "FLEXVOL_SERVES";

/// Name of a private file of a volume's program: it records which mount pod runs the program.
pub const NOTE: &str = "mount-pod";

/// Limit for a note, in bytes.
pub const NOTE_LIMIT: usize = 1 << 13;

/// Note about a volume that a mount pod serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// Directory in which the pod has registered.
    pub directory: String,
    /// Driver for which it has registered, in the form of [`file_name`].
    pub name: String,
    /// Identity of the pod.
    pub pod: Registration,
    /// Socket of the agent that asks the runtime for it; empty if the pod's process 1 is asked.
    pub agent: String,
}

impl Note {
    /// Returns the text of the note's file.
    pub fn text(&self) -> String {
        let Self { directory, name, agent, pod } = self;
        let Registration { pod_namespace, pod_name, pod_uid, container_name } = pod;
        format!("{directory}\n{name}\n{pod_uid}\n{agent}\n{pod_namespace}\n{pod_name}\n{container_name}")
    }

    /// Parses a file's text; missing lines give empty values.
    pub fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let mut next = || lines.next().unwrap_or_default().to_owned();
        let [directory, name, pod_uid, agent] = [(); 4].map(|()| next());
        let [pod_namespace, pod_name, container_name] = [(); 3].map(|()| next());
        Self {
            directory,
            name,
            agent,
            pod: Registration { pod_namespace, pod_name, pod_uid, container_name },
        }
    }
}

/// Identity of a registered mount pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Registration {
    /// Namespace of the pod.
    pub pod_namespace: String,
    /// Name of the pod.
    pub pod_name: String,
    /// Uid of the pod, which is unique.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// Name of the container.
    pub container_name: String,
}

impl Registration {
    /// Parses a registration file. Keys of other programs are ignored; none of these may be empty.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(text).map_err(|_| "it is not UTF-8".to_owned())?;
        Self::of_json(&serde_json::from_str(text).map_err(|error| error.to_string())?)
    }

    /// Parses the pod in a request; `None` if the request names none.
    pub fn of(said: &Value) -> Result<Option<Self>, String> {
        if said.is_null() { Ok(None) } else { Self::of_json(said).map(Some) }
    }

    fn of_json(said: &Value) -> Result<Self, String> {
        let name = |key: &str| {
            let name = said[key].as_str().unwrap_or_default();
            let plain = !name.is_empty() && name.len() < LONGEST && name.bytes().all(is_plain);
            if plain { Ok(name.to_owned()) } else { Err(format!("its {key} is missing or no name")) }
        };
        Ok(Self {
            pod_namespace: name("podNamespace")?,
            pod_name: name("podName")?,
            pod_uid: name("podUID")?,
            container_name: name("containerName")?,
        })
    }
}

/// Reports whether names and ids of Kubernetes may contain the byte.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._".contains(&byte)
}

/// Start parameters of a mount pod's process 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process1 {
    /// Drivers, `vendor/driver`, as they were written.
    pub plugins: Vec<String>,
    /// Kubelet's directory.
    pub root: String,
}

/// Missing property of a container with process 1, without which it cannot mount for its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The container is not privileged: the node sees none of its mounts.
    Privilege,
    /// The container lacks kubelet's directory, with mount propagation in both directions.
    Directory,
}

impl Process1 {
    /// Returns the program and its parameters from a container's object.
    pub fn of_container(container: &Value) -> Option<(String, Self)> {
        let words = entries(&container["command"]).chain(entries(&container["args"]));
        let words: Vec<_> = words.filter_map(Value::as_str).collect();
        let program = words.first()?;
        Some(((*program).to_owned(), Self::of(words.iter().copied())?))
    }

    /// Returns what its container lacks in a pod with this `spec`. The API server refuses
    /// Bidirectional propagation for a container that is not privileged. Whoever may create a
    /// container with both is root of the node.
    pub fn lacks(&self, spec: &Value, container: &Value) -> Option<Lack> {
        if container["securityContext"]["privileged"] != true {
            return Some(Lack::Privilege);
        }
        let path_of = |name: &Value| {
            let volume = entries(&spec["volumes"]).find(|volume| volume["name"] == *name)?;
            volume["hostPath"]["path"].as_str()
        };
        let is_shared = |mount: &Value| {
            let at = mount["mountPath"].as_str().filter(|path| Path::new(&self.root).starts_with(path));
            let is_same = at.is_some_and(|at| path_of(&mount["name"]).is_some_and(|of| Path::new(of) == at));
            is_same && mount["mountPropagation"] == "Bidirectional"
        };
        (!entries(&container["volumeMounts"]).any(is_shared)).then_some(Lack::Directory)
    }

    /// Parses a command line, whose first word is the program. `None` if the command starts
    /// something else or only the probe of process 1.
    pub fn of<'a>(words: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let own: Vec<_> = words.into_iter().skip(1).take_while(|word| *word != "--").collect();
        let ["mounter", "init", rest @ ..] = &*own else { return None };
        let values = |key: &str| {
            let joined = |word: &str| word.strip_prefix(key)?.strip_prefix('=').map(str::to_owned);
            let before = [""].iter().chain(rest);
            let pairs = before.zip(rest);
            let value = |(before, word): (&&str, &&str)| {
                if *before == key { Some((*word).to_owned()) } else { joined(word) }
            };
            pairs.filter_map(value).collect::<Vec<_>>()
        };
        let root = values("--root").pop().unwrap_or_else(|| KUBELET.to_owned());
        (!rest.contains(&"--check")).then(|| Self { plugins: values("--plugin"), root })
    }
}

fn entries(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Returns the name of a driver's files in [`DIRECTORY`], without their extension: `vendor~driver`.
/// `None` if the driver cannot have such a name.
pub fn file_name(driver: &str) -> Option<String> {
    let name = driver.replacen('/', "~", 1);
    let parts = name.split_once('~').map(|(vendor, driver)| [vendor, driver]);
    let plain = |part: &&str| part.bytes().all(is_plain) && part.bytes().any(|byte| byte != b'.');
    (name.len() <= LONGEST_NAME && parts.is_some_and(|parts| parts.iter().all(plain))).then_some(name)
}

/// Validates the name of a served volume. The allowed characters cannot form a path.
pub fn volume(serves: &str) -> std::result::Result<String, &'static str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if serves.is_empty() || serves.len() > LONGEST_VOLUME || !serves.bytes().all(plain) {
        return Err("a volume has no such name");
    }
    Ok(serves.to_owned())
}

/// Order to run a program in a mount pod.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Order {
    /// Plain name of the program.
    pub program: String,
    /// Arguments, never a secret.
    pub args: Vec<String>,
    /// Variables added to its usual environment: `NAME=VALUE`.
    pub env: Vec<String>,
    /// Standard input, in Base64.
    pub stdin: String,
    /// Texts to mask in its output, in Base64.
    pub masked: Vec<String>,
    /// True if standard output is returned separately from the other output.
    pub answering: bool,
    /// Time limit, in milliseconds.
    pub within: u64,
    /// Volume that the program serves, and may continue to serve; empty for a program that ends.
    pub serves: String,
    /// Memory limit for a program that serves, in bytes.
    pub memory: u64,
}

impl Order {
    /// Returns the JSON form that is sent.
    pub fn into_json(self) -> String {
        let Self { answering, within, memory, .. } = self;
        let list = |words: Vec<String>| Value::Array(words.into_iter().map(Value::String).collect());
        let texts = list(vec![self.program, self.stdin, self.serves]);
        let (program, stdin, serves) = (&texts[0], &texts[1], &texts[2]);
        let (args, env, masked) = (list(self.args), list(self.env), list(self.masked));
        // Built as text: a map of values would add more code to every driver than this whole
        // module.
        format!(
            r#"{{"program":{program},"args":{args},"env":{env},"stdin":{stdin},"masked":{masked},"answering":{answering},"within":{within},"serves":{serves},"memory":{memory}}}"#
        )
    }
}

/// Settings in a side file for the place of a driver's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MounterSettings<'a> {
    /// True if a registered mount pod is asked.
    pub asks: bool,
    /// True if the pod is always reached through the container runtime, even if its process 1
    /// listens.
    pub by_runtime: bool,
    /// Directory with the programs, if it is a directory of this node.
    pub root: Option<&'a str>,
    /// True if the node's own programs are used when the registered pod does not answer.
    pub falls_back: bool,
}

/// Parses the words of a side file.
pub fn settings(settings: &Settings) -> Result<MounterSettings<'_>> {
    let said = settings.mounter.as_deref();
    let root = said.and_then(|said| said.strip_prefix("chroot:")).filter(|root| root.starts_with('/'));
    let (asks, by_runtime) = match said {
        None | Some("auto") => (true, false),
        Some("cri") => (true, true),
        Some("host") => (false, false),
        _ if root.is_some() => (false, false),
        _ => return Err(mistake("\"mounter\" is auto, cri, host or chroot: and the path of a directory")),
    };
    let falls_back = match settings.mounter_fallback.as_deref() {
        None | Some("fail") => false,
        Some("host") => true,
        _ => return Err(mistake("\"mounterFallback\" is fail or host")),
    };
    Ok(MounterSettings { asks, by_runtime, root, falls_back })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Settings {
        Settings::from_json(text).unwrap()
    }

    #[test]
    fn the_words_of_a_side_file() {
        let of = |text: &str| settings(&said(text)).map(|said| (said.asks, said.falls_back)).ok();
        let by_runtime = |text: &str| settings(&said(text)).is_ok_and(|said| said.asks && said.by_runtime);
        assert!(by_runtime(r#"{"mounter":"cri"}"#) && !by_runtime("{}"));
        assert_eq!(of("{}"), Some((true, false)));
        assert_eq!(of(r#"{"mounter":"host"}"#), Some((false, false)));
        assert_eq!(of(r#"{"mounter":"auto","mounterFallback":"host"}"#), Some((true, true)));
        assert_eq!(settings(&said(r#"{"mounter":"chroot:/srv/tools"}"#)).unwrap().root, Some("/srv/tools"));
        for text in [
            r#"{"mounter":""}"#,
            r#"{"mounter":"chroot:tools"}"#,
            r#"{"mounter":"chroot:"}"#,
            r#"{"mounterFallback":"nsenter"}"#,
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }

    /// Test 8.
    #[test]
    fn what_is_no_registration_is_refused() {
        let good = r#"{"podNamespace":"a","podName":"b","podUID":"c","containerName":"d","more":[1]}"#;
        assert_eq!(Registration::parse(good.as_bytes()).unwrap().pod_uid, "c");
        let long = good.replace("\"b\"", &format!("{:?}", "b".repeat(254)));
        for text in [
            "",
            " ",
            "[]",
            r#"["a","b","c","d"]"#,
            "null",
            &good[..good.len() - 1],
            &good.replace("podUID", "podUid"),
            &good.replace("\"d\"", "\"\""),
            &good.replace("\"d\"", "7"),
            &good.replace("\"d\"", "\"d\\n\""),
            &good.replace("\"d\"", "\"../d\""),
            &long,
        ] {
            assert!(Registration::parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(Registration::parse(b"{\xff}").is_err());
    }

    /// Test 2.
    #[test]
    fn an_order_arrives_as_it_was_sent() {
        let words: Vec<String> =
            ["", " a  b ", "\u{fc}\u{1f980}", "\"\\\n\u{1}", "{}"].map(str::to_owned).into();
        let sent = Order {
            program: "sshfs".to_owned(),
            args: words.clone(),
            env: words.clone(),
            stdin: "aGk=".to_owned(),
            masked: words,
            answering: true,
            within: u64::MAX,
            serves: "a-b".to_owned(),
            memory: 7,
        };
        assert!(serde_json::from_str::<Order>(&sent.clone().into_json()).unwrap() == sent);
        let least: Order = serde_json::from_str(r#"{"program":"true"}"#).unwrap();
        assert!(least == Order { program: "true".to_owned(), ..Order::default() });
    }

    #[test]
    fn process_1_is_known_by_its_words() {
        let of = |line: &str| Process1::of(line.split(' ')).map(|it| (it.plugins.join(","), it.root));
        let some = |plugins: &str, root: &str| Some((plugins.to_owned(), root.to_owned()));
        assert_eq!(of("/flexvold mounter init --plugin v/sshfs"), some("v/sshfs", KUBELET));
        assert_eq!(
            of("/x mounter init --plugin=v/s3 --plugin v/sshfs --root=/k -- sleep --plugin=v/x"),
            some("v/s3,v/sshfs", "/k")
        );
        assert_eq!(of("x mounter init --root /k --plugin v/s3"), some("v/s3", "/k"));
        for line in
            ["", "/flexvold", "/flexvold mounter", "/x mounter exec", "/x mounter init --plugin a/b --check"]
        {
            assert_eq!(of(line), None, "{line}");
        }
    }

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let [pod_namespace, pod_name, pod_uid, container_name] = ["a", "b", "c", "d"].map(str::to_owned);
        let pod = Registration { pod_namespace, pod_name, pod_uid, container_name };
        for agent in ["", "/run/agent.sock"] {
            let (directory, name) = ("/k/plugin-containers".to_owned(), "v~d".to_owned());
            let note = Note { directory, name, pod: pod.clone(), agent: agent.to_owned() };
            assert_eq!(Note::parse(&note.text()), note);
        }
        assert_eq!(Note::parse(""), Note::default());
    }

    /// Test 10.
    #[test]
    fn a_driver_has_a_file_of_its_own_or_none() {
        assert_eq!(file_name("example.com/sshfs").as_deref(), Some("example.com~sshfs"));
        assert_eq!(file_name("example.com~sshfs").as_deref(), Some("example.com~sshfs"));
        let longest = format!("a~{}", "b".repeat(LONGEST_NAME - 2));
        assert_eq!(file_name(&longest), Some(longest.clone()));
        let long = format!("a~{}", "b".repeat(253));
        for name in
            ["", "sshfs", "~", "a~", "~b", "..~..", "a/../b", "a~b/c", "a~b~c", "a\0~b", "a~b\n", &long]
        {
            assert_eq!(file_name(name), None, "{name:?}");
        }
    }
}

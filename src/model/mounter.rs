//! Programs that a mount pod has in place of the node: what a side file says of it, how the pod
//! registers, and what it is asked.

use crate::json_object::mistake;
use crate::settings::Settings;
use flexvol_protocol::failure::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// In kubelet's directory: who has programs for which driver.
pub const DIRECTORY: &str = "plugin-containers";

/// Kubelet's directory, where a volume's path does not tell.
pub const KUBELET: &str = "/var/lib/kubelet";

/// The most bytes of a registration.
pub const LARGEST: usize = 64 * 1024;

/// The longest name of a driver's directory, in bytes: the path of a socket has no room for more.
pub const LONGEST_NAME: usize = 80;

/// No name in a registration is as long, in bytes.
const LONGEST: usize = 254;

/// The longest name of a volume, in bytes.
const LONGEST_VOLUME: usize = 128;

/// In the environment of a program that serves a volume from a mount pod: the volume's name.
pub const SERVES: &str = "FLEXVOL_SERVES";

/// Among the private files of a volume's program: which mount pod runs it.
pub const NOTE: &str = "mount-pod";

/// No note is longer, in bytes.
pub const NOTE_LIMIT: usize = 1 << 13;

/// What is noted of a volume that a mount pod serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// Where it has registered.
    pub directory: String,
    /// For which driver: [`file_name`].
    pub name: String,
    /// Who it is.
    pub pod: Registration,
    /// Who asks the runtime for it; empty where its process 1 is asked.
    pub agent: String,
}

impl Note {
    /// As it is written.
    pub fn text(&self) -> String {
        let Self { directory, name, agent, pod } = self;
        let Registration { pod_namespace, pod_name, pod_uid, container_name } = pod;
        format!("{directory}\n{name}\n{pod_uid}\n{agent}\n{pod_namespace}\n{pod_name}\n{container_name}")
    }

    /// Of a file's text; what is missing is empty.
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

/// Who has registered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Registration {
    /// The pod's namespace.
    pub pod_namespace: String,
    /// The pod's name.
    pub pod_name: String,
    /// No other pod has it.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// The container's name.
    pub container_name: String,
}

impl Registration {
    /// Of the file's text. Keys of others are ignored, none of ours may be empty.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(text).map_err(|_| "it is not UTF-8".to_owned())?;
        Self::of_json(&serde_json::from_str(text).map_err(|error| error.to_string())?)
    }

    /// Of a request for one; nothing if it is for none.
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

/// What names and ids of Kubernetes are made of.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._".contains(&byte)
}

/// What process 1 of a mount pod is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process1 {
    /// The drivers, `vendor/driver`, as they were written.
    pub plugins: Vec<String>,
    /// Kubelet's directory.
    pub root: String,
}

/// What a container with process 1 lacks to mount for its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// It may mount nothing that the node sees.
    Privilege,
    /// Kubelet's directory, with mount propagation in both directions.
    Directory,
}

impl Process1 {
    /// Of a container's object, with the program.
    pub fn of_container(container: &Value) -> Option<(String, Self)> {
        let words = entries(&container["command"]).chain(entries(&container["args"]));
        let words: Vec<_> = words.filter_map(Value::as_str).collect();
        let program = words.first()?;
        Some(((*program).to_owned(), Self::of(words.iter().copied())?))
    }

    /// What its container in a pod with this `spec` lacks. The API server gives no container
    /// Bidirectional propagation that is not privileged; and whoever may make one that has both is
    /// root of the node.
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

    /// Of a command line, the program first; `None` if that starts something else, also only its
    /// probe.
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

/// The name of a driver's files in [`DIRECTORY`], without their ends: `vendor~driver`. `None` if it
/// can have none.
pub fn file_name(driver: &str) -> Option<String> {
    let name = driver.replacen('/', "~", 1);
    let parts = name.split_once('~').map(|(vendor, driver)| [vendor, driver]);
    let plain = |part: &&str| part.bytes().all(is_plain) && part.bytes().any(|byte| byte != b'.');
    (name.len() <= LONGEST_NAME && parts.is_some_and(|parts| parts.iter().all(plain))).then_some(name)
}

/// The name of what serves a volume, if it is one: nothing makes a path of it.
pub fn volume(serves: &str) -> std::result::Result<String, &'static str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if serves.is_empty() || serves.len() > LONGEST_VOLUME || !serves.bytes().all(plain) {
        return Err("a volume has no such name");
    }
    Ok(serves.to_owned())
}

/// A program to be run in a mount pod.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Order {
    /// Its plain name.
    pub program: String,
    /// Its arguments, never a secret.
    pub args: Vec<String>,
    /// What it has in its environment besides the usual: `NAME=VALUE`.
    pub env: Vec<String>,
    /// What it reads, in Base64.
    pub stdin: String,
    /// What is masked in what it says, in Base64.
    pub masked: Vec<String>,
    /// Whether its standard output is wanted, apart from what it says besides.
    pub answering: bool,
    /// How long it may take, in milliseconds.
    pub within: u64,
    /// The volume that it serves, and may go on to serve; empty for one that ends.
    pub serves: String,
    /// How many bytes of memory who serves may have.
    pub memory: u64,
}

impl Order {
    /// As it is sent.
    pub fn into_json(self) -> String {
        let Self { answering, within, memory, .. } = self;
        let list = |words: Vec<String>| Value::Array(words.into_iter().map(Value::String).collect());
        let texts = list(vec![self.program, self.stdin, self.serves]);
        let (program, stdin, serves) = (&texts[0], &texts[1], &texts[2]);
        let (args, env, masked) = (list(self.args), list(self.env), list(self.masked));
        // A map of values brings more code to every driver than all of this module.
        format!(
            r#"{{"program":{program},"args":{args},"env":{env},"stdin":{stdin},"masked":{masked},"answering":{answering},"within":{within},"serves":{serves},"memory":{memory}}}"#
        )
    }
}

/// What a side file says of where a driver's programs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MounterSettings<'a> {
    /// Whether a registered mount pod is asked.
    pub asks: bool,
    /// Whether only the runtime is asked for it, whoever listens in the pod.
    pub by_runtime: bool,
    /// The directory that has the programs, if it is one of this node.
    pub root: Option<&'a str>,
    /// Whether the node's own programs do where the registered pod does not answer.
    pub falls_back: bool,
}

/// What the words mean.
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

//! Kubelet's wrapping of a driver's words, which is removed here.

use super::{KnownError, known_error_of, known_errors};
use flexvol_protocol::Verb;

/// A text without kubelet's wrapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrapped<'a> {
    /// Operations of kubelet, in their order.
    pub did: Vec<String>,
    /// Remaining text: the driver's or the kernel's own words.
    pub inside: &'a str,
    /// Verb with which the driver was called, or was about to be called.
    pub verb: Option<Verb>,
    /// True if a driver answered with a status that means failure.
    is_answer: bool,
}

/// Kubelet's names for its operations, and their verbs.
const OPERATIONS: &[(&str, Verb)] = &[
    ("MountVolume.SetUp failed for volume", Verb::Mount),
    ("MountVolume.MountOptionSupport check failed for volume", Verb::Mount),
    ("MountVolume.MountDevice failed for volume", Verb::MountDevice),
    ("MountVolume.WaitForAttach failed for volume", Verb::WaitForAttach),
    ("MountVolume.NodeExpandVolume failed for volume", Verb::ExpandFs),
    ("AttachVolume.Attach failed for volume", Verb::Attach),
    ("DetachVolume.Detach failed for volume", Verb::Detach),
    ("UnmountVolume.TearDown failed for volume", Verb::Unmount),
    ("UnmountDevice failed for volume", Verb::UnmountDevice),
];

/// Limit for a name that is repeated, in characters.
const NAME: usize = 253;

impl<'a> Wrapped<'a> {
    /// Removes one layer after the other.
    pub fn of(text: &'a str) -> Self {
        let mut wrapped = Self { did: Vec::new(), inside: text.trim(), verb: None, is_answer: false };
        wrapped.operation();
        wrapped.of_another_kind(text);
        wrapped.directory();
        wrapped.answer();
        wrapped.execution();
        wrapped.output();
        wrapped
    }

    /// Removes `MountVolume.SetUp failed for volume "v" : …`.
    fn operation(&mut self) {
        for (words, verb) in OPERATIONS {
            let Some((_, rest)) = self.inside.split_once(words) else { continue };
            let name = quoted(rest).map_or_else(String::new, |name| format!(" for volume {name:?}"));
            self.did.push(format!("wanted to {}{name}", doing(*verb)));
            self.inside = after(rest, " : ").unwrap_or(rest);
            self.verb = Some(*verb);
        }
    }

    /// Recognises other kinds of volumes: `rpc error: code = …`, `Mounting command: …`,
    /// `kubernetes.io/nfs/…`.
    fn of_another_kind(&mut self, text: &str) {
        let is_in = |signs: &[&str]| signs.iter().any(|sign| text.contains(sign));
        let flex = ["command failed, status:", "lexvolume-", "FlexVolume", "Flexvolume"];
        if is_in(&["rpc error: code =", "kubernetes.io/csi", "kubernetes.io~csi", ".csi."]) {
            self.did.push("called a CSI driver: the volume is no FlexVolume".into());
        } else if is_in(&["Mounting command:", "Mounting arguments:", "kubernetes.io/", "kubernetes.io~"])
            && !is_in(&flex)
        {
            self.did.push("used what it has built in: the volume is no FlexVolume".into());
        }
    }

    /// Removes `error creating Flexvolume plugin from directory d, skipping. Error: …`.
    fn directory(&mut self) {
        let Some(rest) = after(self.inside, "plugin from directory ") else { return };
        let name = rest.split([',', ' ']).next().unwrap_or_default();
        self.did.push(format!("ran init of the driver in directory {:?}", plain(name)));
        self.inside = after(rest, "Error: ").unwrap_or(rest);
        self.verb = Some(Verb::Init);
    }

    /// Removes `mount command failed, status: Failure, reason: …`.
    fn answer(&mut self) {
        let Some((before, rest)) = self.inside.split_once(" command failed, status: ") else { return };
        let verb = plain(before.rsplit([' ', ':']).next().unwrap_or_default());
        let status = plain(rest.split(',').next().unwrap_or_default());
        self.did.push(format!("called the driver with {verb:?}, which answered {status:?}"));
        self.inside = after(rest, "reason:").unwrap_or("").trim();
        self.verb = Verb::parse(verb.as_ref()).or(self.verb);
        self.is_answer = true;
    }

    /// Removes `driver call failed: executable: …, args: […], error: …, output: "…"`. The
    /// arguments may hold secrets.
    fn execution(&mut self) {
        if let Some((_, rest)) = self.inside.split_once("driver call failed") {
            self.executed(after(rest, "args: [").unwrap_or(""));
            // For a missing program, the text around it is needed: it says whose program it is.
            let error =
                after(rest, ", error: ").filter(|error| !error.starts_with("executable file not found"));
            self.inside = error.unwrap_or(self.inside);
        }
    }

    /// Removes `Failed to unmarshal output for command: mount, output: "…", error: …`.
    fn output(&mut self) {
        let Some(rest) = after(self.inside, "Failed to unmarshal output for command:") else { return };
        self.executed(rest);
        let (printed, error) = rest.rsplit_once(", error: ").unwrap_or((rest, rest));
        // Text before the object says why there is no object, or why it reports a failure. Text
        // after the object is only noise.
        let words = after(printed, ", output: ").and_then(|printed| printed.split('{').next());
        self.inside = words.filter(|words| known_error_of(words).is_some()).unwrap_or(error);
    }

    /// Records an execution. `words` begin with the verb.
    fn executed(&mut self, words: &str) {
        let verb = words.split([' ', ',', ']']).next().unwrap_or_default();
        self.verb = Verb::parse(verb.as_ref()).or(self.verb);
        self.did.push("executed the driver and read all that came on standard output and error".into());
    }

    /// Returns the known error for an answer whose words are not known.
    pub(super) fn by_itself(&self) -> Option<&'static KnownError> {
        match (self.is_answer, self.inside) {
            (true, "") => Some(&known_errors::WORDLESS),
            (true, _) => Some(&known_errors::SAID),
            _ => None,
        }
    }
}

/// Returns words for a sentence.
fn doing(verb: Verb) -> &'static str {
    match verb {
        Verb::Mount => "mount it into the pod",
        Verb::MountDevice => "mount its device on the node",
        Verb::WaitForAttach => "wait for its device",
        Verb::ExpandFs => "make its file system larger",
        Verb::Attach => "attach it to the node",
        Verb::Detach => "detach it from the node",
        Verb::Unmount => "unmount it from the pod",
        Verb::UnmountDevice => "unmount its device",
        other => other.name(),
    }
}

fn after<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    text.split_once(word).map(|(_, rest)| rest.trim_start())
}

/// Returns the first quoted name. In a log, kubelet escapes the quotes once more.
fn quoted(text: &str) -> Option<String> {
    let name = text.trim_start().trim_start_matches('\\').strip_prefix('"')?;
    Some(plain(name.split(['"', '\\']).next()?))
}

/// Returns a name in the form in which it may be repeated.
fn plain(name: &str) -> String {
    name.chars().filter(|c| !flexvol_protocol::text::is_unprintable(*c)).take(NAME).collect()
}

//! What the drivers would do: the whole of a volume, as kubelet would send it.

use super::finding::{Findings, NO_EFFECT, OPEN_SECRET, PLAN, POLICY, SECRET_KEY};
use super::flex::Flex;
use super::known::Known;
use super::node::Node;
use crate::objects::Used;
use flexvol_kubelet::PodVolume;
use flexvol_model::plan::{Plan, Step};
use flexvol_protocol::failure::Code;
use flexvol_protocol::mount_options;
use flexvol_protocol::{Call, Verb};
use serde::Serialize;

/// Stands for a device that only the node knows.
const DEVICE: &str = "/dev/attached";

/// What is called to bring a volume into a pod.
const UP: [Verb; 4] = [Verb::Attach, Verb::WaitForAttach, Verb::MountDevice, Verb::Mount];

/// What becomes of one volume.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    /// Where its `flexVolume` is written.
    pub file: String,
    /// And in which line.
    pub line: usize,
    /// Its own name.
    pub volume: String,
    /// Namespace and name of the pod; of one that is made up if none uses the volume.
    pub pod: String,
    /// The name in the manifest.
    pub driver: String,
    /// The driver behind it.
    pub kind: &'static str,
    /// In the order of the calls.
    pub steps: Vec<PlannedCall>,
}

/// What one call would do.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedCall {
    /// What kubelet asks for.
    pub verb: String,
    /// What would be done; secrets are `***`.
    pub plan: Plan,
    /// What the policy says against it.
    pub refusal: Option<String>,
}

impl Flex<'_> {
    /// The plans of a volume for a pod that uses it. It is not `certain` if its Secret is in no
    /// file or has the wrong type.
    pub(super) fn plan(
        &self,
        known: &Known,
        used: &Used,
        certain: bool,
        findings: &mut Findings,
    ) -> Option<Planned> {
        let volume = used.volume.as_ref().ok()?;
        let mut steps = Vec::new();
        for call in calls(known, volume) {
            match known.installed.plan(&call) {
                // What only the name has.
                Ok(plan) if plan.steps.is_empty() => {}
                Ok(plan) => {
                    if certain && lacks_password(&plan) {
                        let text = "there is a user name and no password, and the server is given an empty one: \
                            add the key password to the Secret";
                        findings.suspect(self.object, self.node.get("secretRef"), SECRET_KEY, text);
                    }
                    let refusal = known.installed.settings.policy.check(&plan).err();
                    if let Some(why) = &refusal {
                        self.refuse(&why.message(), known, findings);
                    }
                    let refusal = refusal.map(|why| why.message());
                    steps.push(PlannedCall { verb: call.verb().to_string(), plan, refusal });
                }
                Err(why) if why.code() == Code::Denied => self.refuse(&why.message(), known, findings),
                // Of the Secret the worst is said already.
                Err(why) if !certain && is_of_secret(&why.message()) => {}
                Err(why) => {
                    let message = why.message();
                    findings.add(self.object, self.place(&message, known), PLAN, message);
                }
            }
        }
        self.note(known, volume, findings);
        if steps.is_empty() {
            return None;
        }
        let pod = &volume.options.pod;
        let word = |word: &Option<String>| word.clone().unwrap_or_default();
        Some(Planned {
            file: self.object.file.to_owned(),
            line: self.node.line(),
            volume: self.name.to_owned(),
            pod: format!("{}/{}", word(&pod.namespace), word(&pod.name)),
            driver: volume.driver.to_string(),
            kind: known.installed.driver.name(),
            steps,
        })
    }

    /// What becomes of options otherwise than who wrote them may think.
    fn note(&self, known: &Known, volume: &PodVolume, findings: &mut Findings) {
        let understood = volume.mount_call().and_then(|call| known.installed.understood(&call));
        let (call, notes) = understood.map_or((None, Vec::new()), |(call, notes)| (Some(call), notes));
        let list = call.as_ref().and_then(|call| call.options()?.own.get("mountOptions"));
        for word in list.into_iter().flat_map(|list| mount_options::idle(list)) {
            let text = format!("mountOptions: {word:?} asks for nothing here: leave it out");
            findings.add(self.object, self.place(&text, known), NO_EFFECT, text);
        }
        // Those have been named already.
        for note in notes.into_iter().filter(|note| !self.is_passed_over(known, note)) {
            let rule = if note.contains("open to whoever") { OPEN_SECRET } else { NO_EFFECT };
            findings.add(self.object, self.place(&note, known), rule, note);
        }
    }

    fn refuse(&self, message: &str, known: &Known, findings: &mut Findings) {
        let place = self.place(message, known);
        // Whatever the side file says.
        if known.certain || message.contains("is not a plain absolute path") {
            findings.add(self.object, place, POLICY, message);
        } else {
            let text =
                format!("{message} (without a side file; --settings or --driver-dir names that of the node)");
            findings.suspect(self.object, place, POLICY, text);
        }
    }

    /// Where the option is written that a message is about; messages quote the option's name or its
    /// value, or begin with the name.
    fn place(&self, message: &str, known: &Known) -> Node<'_> {
        let options = self.options();
        let quoted = |key: &str| message.find(&format!("{key:?}"));
        let spelt = |key: &str| if message.starts_with(&format!("{key}:")) { Some(0) } else { quoted(key) };
        let ours = |key: &str| {
            let keys = known.installed.profile.into_iter().flat_map(|profile| profile.keys);
            keys.filter(|other| other.theirs == key).filter_map(|key| key.ours).find_map(spelt)
        };
        let at = |key: &str| spelt(key).or_else(|| ours(key));
        let named = options.members().filter_map(|(key, node)| Some((at(key)?, node)));
        let first = named.min_by_key(|(at, _)| *at).map(|(_, node)| node);
        let by_value = || {
            let is_part =
                |node: &Node<'_>| node.text().is_some_and(|text| text.len() > 3 && message.contains(text));
            options.members().map(|(_, node)| node).find(is_part)
        };
        let of_secret = || is_of_secret(message).then(|| self.node.get("secretRef"));
        first.or_else(of_secret).or_else(by_value).unwrap_or(options)
    }
}

fn lacks_password(plan: &Plan) -> bool {
    plan.steps.iter().any(|step| matches!(step, Step::MountShare { share, .. } if share.lacks_password()))
}

/// Whether a driver misses something in the Secret.
fn is_of_secret(message: &str) -> bool {
    let parts = ["the Secret ", "no Secret"];
    message.starts_with("secret ") || parts.iter().any(|part| message.contains(part))
}

/// The calls that the driver answers with a plan.
fn calls(known: &Known, volume: &PodVolume) -> Vec<Call> {
    let attaches = known.installed.capabilities().attach;
    let verbs = known.installed.verbs();
    let all = volume.calls("node", DEVICE).unwrap_or_default().into_iter();
    let wanted = all.filter(|(_, only_attached)| attaches || !only_attached).map(|(call, _)| call);
    wanted.filter(|call| UP.contains(&call.verb()) && verbs.contains(call.verb())).collect()
}

//! Plans of the drivers, for whole volumes as kubelet would send them.

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

/// Placeholder for a device that only the node knows.
const DEVICE: &str = "/dev/attached";

/// Calls that make a volume available to a pod.
const UP: [Verb; 4] = [Verb::Attach, Verb::WaitForAttach, Verb::MountDevice, Verb::Mount];

/// Plan for one volume.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    /// File that holds its `flexVolume`.
    pub file: String,
    /// Line of its `flexVolume`.
    pub line: usize,
    /// Name of the volume.
    pub volume: String,
    /// Namespace and name of the pod; of a made-up pod if no pod uses the volume.
    pub pod: String,
    /// Driver name in the manifest.
    pub driver: String,
    /// Our driver behind that name.
    pub kind: &'static str,
    /// Planned calls, in their order.
    pub steps: Vec<PlannedCall>,
}

/// Plan for one call.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedCall {
    /// Verb of kubelet's call.
    pub verb: String,
    /// Steps of the driver; secrets are shown as `***`.
    pub plan: Plan,
    /// Reason why the policy refuses the call, if it does.
    pub refusal: Option<String>,
}

impl Flex<'_> {
    /// Plans a volume for a pod that uses it. `certain` is false if its Secret is in no file, has
    /// the wrong type or contains errors.
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
                // The driver has the call in name only.
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
                // The main error of the Secret is reported already.
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

    /// Warns of options that have another effect than their author may expect.
    fn note(&self, known: &Known, volume: &PodVolume, findings: &mut Findings) {
        let understood = volume.mount_call().and_then(|call| known.installed.understood(&call));
        let (call, notes) = understood.map_or((None, Vec::new()), |(call, notes)| (Some(call), notes));
        let list = call.as_ref().and_then(|call| call.options()?.own.get("mountOptions"));
        for word in list.into_iter().flat_map(|list| mount_options::idle(list)) {
            let text = format!("mountOptions: {word:?} asks for nothing here: leave it out");
            findings.add(self.object, self.place(&text, known), NO_EFFECT, text);
        }
        // Unknown options of a profile are reported already.
        for note in notes.into_iter().filter(|note| !self.is_passed_over(known, note)) {
            let rule = if note.contains("open to whoever") { OPEN_SECRET } else { NO_EFFECT };
            findings.add(self.object, self.place(&note, known), rule, note);
        }
    }

    fn refuse(&self, message: &str, known: &Known, findings: &mut Findings) {
        let place = self.place(message, known);
        // Such a path is refused with every side file.
        if known.certain || message.contains("is not a plain absolute path") {
            findings.add(self.object, place, POLICY, message);
        } else {
            let text =
                format!("{message} (without a side file; --settings or --driver-dir names that of the node)");
            findings.suspect(self.object, place, POLICY, text);
        }
    }

    /// Returns the node of the option that a message is about. Messages quote the option's name or
    /// its value, or begin with the name.
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

/// Reports whether a message says that the Secret lacks something.
fn is_of_secret(message: &str) -> bool {
    let parts = ["the Secret ", "no Secret"];
    message.starts_with("secret ") || parts.iter().any(|part| message.contains(part))
}

/// Returns the calls that the driver answers with a plan.
fn calls(known: &Known, volume: &PodVolume) -> Vec<Call> {
    let attaches = known.installed.capabilities().attach;
    let verbs = known.installed.verbs();
    let all = volume.calls("node", DEVICE).unwrap_or_default().into_iter();
    let wanted = all.filter(|(_, only_attached)| attaches || !only_attached).map(|(call, _)| call);
    wanted.filter(|call| UP.contains(&call.verb()) && verbs.contains(call.verb())).collect()
}

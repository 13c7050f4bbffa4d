//! Findings: place, severity, problem and fix.

use super::node::Node;
use super::object::Object;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The API server, kubelet or the driver refuses it, or it is an obvious slip.
    Error,
    /// It works, but not as it seems to; or the files do not show whether it is correct.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Error { "error" } else { "warning" })
    }
}

/// Rule that is checked.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Name in the output; it never changes, because people filter by it.
    pub id: &'static str,
    /// Severity of its findings, unless missing information makes them uncertain.
    pub severity: Severity,
    /// Requirement that is checked, for `--rules`.
    pub doc: &'static str,
}

macro_rules! rules {
    ($($name:ident = $id:literal, $severity:ident, $doc:literal;)*) => {
        $(pub(super) const $name: Rule =
            Rule { id: $id, severity: Severity::$severity, doc: $doc };)*

        /// All rules.
        pub const RULES: &[Rule] = &[$($name),*];
    };
}

rules! {
    SYNTAX = "syntax", Error, "the file is YAML that Kubernetes can read";
    OBJECT = "object", Error, "each document is an object with a kind, and none is there twice";
    NAME = "name", Error, "names are such that Kubernetes takes them";
    SHAPE = "shape", Error, "fields that matter to a volume have the right type";
    UNKNOWN_FIELD = "unknown-field", Error, "neither flexVolume nor what is around it has a field that Kubernetes does not know";
    DRIVER_NAME = "driver-name", Error, "flexVolume.driver is vendor/driver";
    UNKNOWN_DRIVER = "unknown-driver", Warning, "the driver is one of flexvol's";
    NOT_INSTALLED = "not-installed", Warning, "the driver is in the plugin directory that was given";
    OPTION_TYPE = "option-type", Error, "options are strings";
    RESERVED_OPTION = "reserved-option", Error, "no option is in a domain of Kubernetes";
    UNKNOWN_OPTION = "unknown-option", Error, "the driver has every option that is given";
    REPEATED_OPTION = "repeated-option", Error, "no option is given under two names";
    MISSING_OPTION = "missing-option", Error, "what the driver requires is there";
    OPTION_VALUE = "option-value", Error, "the driver can read every value";
    OPEN_SECRET = "open-secret", Warning, "no option holds a password, which everybody may read";
    NO_EFFECT = "no-effect", Warning, "every option of another driver means something here";
    PLAN = "plan", Error, "the driver can make a plan of options and secrets together";
    POLICY = "policy", Error, "the policy of the node allows it";
    SECRET_MISSING = "secret-missing", Warning, "the Secret that is named is in the files";
    SECRET_TYPE = "secret-type", Error, "the type of the Secret is the driver's name";
    SECRET_DATA = "secret-data", Error, "data of a Secret is base64, and its keys are such that Kubernetes takes them";
    SECRET_KEY = "secret-key", Error, "the Secret has the keys that the driver needs, spelt as it reads them";
    SECRET_LINE = "secret-line-break", Warning, "a password or a name in a Secret has no line break at its end";
    SECRET_NAMESPACE = "secret-namespace", Warning, "a PersistentVolume names the namespace of its Secret";
    READ_ONLY = "read-only", Warning, "what is to be read-only is";
    MOUNT_OPTIONS = "mount-options", Error, "no mountOptions, with which kubelet refuses a FlexVolume";
    VOLUME_MODE = "volume-mode", Error, "no volumeMode: Block, which FlexVolume does not have";
    CAPACITY = "capacity", Error, "a PersistentVolume says how large it is";
    ACCESS_MODES = "access-modes", Error, "a PersistentVolume has access modes, and no others than there are";
    INLINE_ATTACHED = "inline-attached", Error, "volumes of a driver that attaches are PersistentVolumes";
    VOLUME_MOUNT = "volume-mount", Error, "what a container mounts is a volume of its pod";
    CLAIM_MISSING = "claim-missing", Warning, "the claim that a pod names is in the files, if any claim is";
    BINDING = "binding", Warning, "a claim that names a volume, or seems to want one, can be bound to it";
    TWO_SOURCES = "two-sources", Error, "a volume has one source";
    SUB_PATH = "sub-path", Error, "a subPath leads to something in its volume";
    CLASS = "storage-class", Error, "no StorageClass names a FlexVolume driver as its provisioner";
    RECLAIM = "reclaim-policy", Warning, "a PersistentVolume is to be retained: nothing deletes a FlexVolume";
    SHARED = "shared-access", Warning, "ReadWriteMany is said of storage that several nodes can write to";
    MOUNT_POD = "mount-pod", Error, "what a mount pod mounts appears on the node: it is privileged, and has kubelet's directory with mountPropagation: Bidirectional";
    MOUNT_POD_NAME = "mount-pod-name", Error, "a mount pod is told its name, its namespace and its uid";
    MOUNT_POD_DRIVER = "mount-pod-driver", Error, "a mount pod names drivers, which ask for their programs";
    MOUNT_POD_END = "mount-pod-end", Warning, "no update, probe or taint ends a mount pod while it serves volumes";
    NOTHING = "nothing", Warning, "there is a FlexVolume in the files";
}

/// One problem that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// File name, as it was given.
    pub file: String,
    /// Line of the wrong key, counted from 1; 0 if `file` is an object of a cluster.
    pub line: usize,
    /// Severity in this case.
    pub severity: Severity,
    /// Name of the rule.
    pub rule: &'static str,
    /// Problem and fix in one line, without any value that might be a secret.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, severity, rule, message } = self;
        match line {
            0 => write!(f, "{file}: {severity}: {message} [{rule}]"),
            line => write!(f, "{file}:{line}: {severity}: {message} [{rule}]"),
        }
    }
}

/// All findings so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    all: Vec<Finding>,
    left_out: Vec<&'static str>,
}

impl Findings {
    /// Disables a rule: its violations are unknown here, or do not matter.
    pub(super) fn leave_out(&mut self, rule: Rule) {
        self.left_out.push(rule.id);
    }

    /// Adds a finding at a place of an object, with the severity of the rule.
    pub(super) fn add(&mut self, object: &Object<'_>, at: Node<'_>, rule: Rule, message: impl Into<String>) {
        self.push(object.file, at.line(), rule, rule.severity, message);
    }

    /// Adds a warning at a place of an object, if missing information makes it uncertain.
    pub(super) fn suspect(
        &mut self,
        object: &Object<'_>,
        at: Node<'_>,
        rule: Rule,
        message: impl Into<String>,
    ) {
        self.push(object.file, at.line(), rule, Severity::Warning, message);
    }

    /// Adds a finding to a file in which no object is known.
    pub(super) fn push(
        &mut self,
        file: &str,
        line: usize,
        rule: Rule,
        severity: Severity,
        message: impl Into<String>,
    ) {
        if self.left_out.contains(&rule.id) {
            return;
        }
        let (file, message) = (file.to_owned(), message.into());
        self.all.push(Finding { file, line, severity, rule: rule.id, message });
    }

    /// Returns the number of errors; callers compare it with a later number.
    pub(super) fn errors(&self) -> usize {
        self.all.iter().filter(|finding| finding.severity == Severity::Error).count()
    }

    /// Returns the findings in the lines of a part of an object; parts on the same line share them.
    pub(super) fn within(&self, object: &Object<'_>, part: Node<'_>) -> impl Iterator<Item = &Finding> {
        let (file, lines) = (object.file, part.line()..=part.last_line());
        self.all.iter().filter(move |finding| finding.file == file && lines.contains(&finding.line))
    }

    /// Reports whether an object contains an error.
    pub(super) fn has_error_in(&self, object: &Object<'_>) -> bool {
        self.within(object, object.node).any(|finding| finding.severity == Severity::Error)
    }

    /// Returns all findings in the order of files and lines, without duplicates.
    pub(super) fn sorted(mut self, files: &[Rc<str>]) -> Vec<Finding> {
        let mut places = BTreeMap::new();
        for (place, file) in files.iter().enumerate() {
            places.entry(&**file).or_insert(place);
        }
        let place = |finding: &Finding| places.get(finding.file.as_str());
        let key = |finding: &Finding| (place(finding), finding.line, finding.severity, finding.rule);
        self.all.sort_by(|a, b| key(a).cmp(&key(b)).then_with(|| a.message.cmp(&b.message)));
        self.all.dedup();
        self.all
    }
}

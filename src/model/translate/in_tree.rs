//! Translation of volumes of Kubernetes' removed in-tree plugins for the CSI drivers that replaced
//! them.
//!
//! Kubernetes translates them itself, at each call and only as long as it knows the types.
//! Translated objects no longer depend on that. The result is that of its library
//! (`k8s.io/csi-translation-lib`), except for what the library loses on the way back: here the
//! original is kept, so nothing has to be rebuilt from a handle.
//!
//! | lost by the library | here |
//! |---|---|
//! | `aws://zone/` before a volume's id | kept in the original |
//! | access modes that were rewritten | kept in the original |
//! | `readOnly` of Portworx | translated |
//! | the Secret of Cinder | left out with a warning: the CSI driver has its own login |
//! | vSphere's path and policy | kept in the original |

mod plugins;
mod topology;

pub(super) use plugins::PLUGINS;
pub(super) use topology::ZONES;

use super::original::set;
use super::{Reason, Rewrite, Warning};
use serde_json::{Map, Value, json};
use topology::Topology;

/// One of Kubernetes' own plugins, and the CSI driver that replaces it.
#[derive(Debug)]
pub(super) struct Plugin {
    /// Field of the plugin in a volume's `spec`.
    pub(super) source: &'static str,
    /// The CSI driver.
    pub(super) to: &'static str,
    /// Translation of each field. A field that is not listed is refused.
    fields: &'static [(&'static str, Field)],
    /// Function that returns the volume's handle.
    handle: fn(&Source<'_>) -> Result<String, Reason>,
    /// Labels of the nodes that can reach the volume.
    topology: Option<Topology>,
    /// True if modes for many writers become one for a single writer: the plugin ignored the modes.
    one_writer: bool,
    /// Source of the login.
    login: Login,
}

/// Translation of a field.
#[derive(Clone, Copy, Debug)]
enum Field {
    /// Part of the handle, or of the login.
    Known,
    FsType,
    /// `fsType`, and also this attribute.
    FsTypeAnd(&'static str),
    ReadOnly,
    Attribute(&'static str),
    /// Number that becomes an attribute, and the attribute's value if there is no number.
    Number(&'static str, &'static str),
    /// Attribute with a fixed value. If the field is set, it must have this value, in upper or
    /// lower case.
    Must(&'static str, &'static str),
    /// No effect; the text is the reason why nothing is lost.
    Nothing(&'static str),
}

#[derive(Clone, Copy, Debug)]
enum Login {
    /// The driver has its own login.
    Driver,
    /// A Secret by its name. Its namespace is in the second field, or is that of the claim.
    Named(&'static str, &'static str),
    /// A Secret that two annotations name, used for every call.
    Annotated(&'static str, &'static str),
}

/// Source of a volume.
struct Source<'a> {
    object: &'a Value,
    plugin: &'static Plugin,
    fields: &'a Map<String, Value>,
}

/// Returns the plugin of a volume, if it is one of these.
pub(super) fn of(object: &Value) -> Option<&'static Plugin> {
    let spec = object.get("spec")?;
    PLUGINS.iter().find(|plugin| spec.get(plugin.source).is_some_and(|source| !source.is_null()))
}

/// Reports whether volumes of a plugin can be translated for the CSI driver of this name.
pub(super) fn is_target(driver: &str) -> bool {
    PLUGINS.iter().any(|plugin| plugin.to == driver)
}

/// Reports whether a translation changes the field at this path.
pub(super) fn is_changed(path: &str) -> bool {
    let source = |plugin: &Plugin| path.strip_prefix("/spec/") == Some(plugin.source);
    ["/spec/nodeAffinity", "/spec/accessModes"].contains(&path) || PLUGINS.iter().any(source)
}

/// Replaces the plugin's source by the CSI source.
pub(super) fn rewrite(
    object: &Value,
    plugin: &'static Plugin,
    rewrite: &mut Rewrite,
) -> Result<Vec<Warning>, Reason> {
    let fields = object["spec"][plugin.source].as_object();
    let fields = fields.ok_or_else(|| Reason::Field(format!("spec.{}", plugin.source), "a mapping"))?;
    let source = Source { object, plugin, fields };
    let (csi, mut warnings) = source.csi()?;
    rewrite.set(&format!("/spec/{}", plugin.source), None);
    rewrite.set("/spec/csi", Some(csi));
    if let Some(topology) = &plugin.topology
        && let Some(affinity) = topology.of(object)?
    {
        rewrite.set("/spec/nodeAffinity", Some(affinity));
    }
    if plugin.one_writer
        && let Some(modes) = one_writer(object)
    {
        warnings.push(Warning::OneWriter);
        rewrite.set("/spec/accessModes", Some(modes));
    }
    Ok(warnings)
}

/// Returns the new access modes, if they differ.
fn one_writer(object: &Value) -> Option<Value> {
    let modes = object.pointer("/spec/accessModes")?.as_array()?;
    let has = |mode: &str| modes.iter().any(|one| one == mode);
    let one = json!(["ReadWriteOnce"]);
    (has("ReadWriteMany") || has("ReadWriteOnce") && has("ReadOnlyMany")).then_some(one)
}

/// CSI source under construction.
#[derive(Default)]
struct Made {
    source: Map<String, Value>,
    attributes: Map<String, Value>,
    warnings: Vec<Warning>,
}

impl Source<'_> {
    fn csi(&self) -> Result<(Value, Vec<Warning>), Reason> {
        let is_known = |key: &&String| self.plugin.fields.iter().any(|(name, _)| name == *key);
        if let Some(key) = self.fields.keys().find(|key| !is_known(key)) {
            return Err(self.must(key, "left out: no API has it"));
        }
        let mut made = Made::default();
        set(&mut made.source, "driver", self.plugin.to.into());
        for (name, field) in self.plugin.fields {
            self.take(name, *field, &mut made)?;
        }
        set(&mut made.source, "volumeHandle", (self.plugin.handle)(self)?.into());
        if !made.attributes.is_empty() {
            set(&mut made.source, "volumeAttributes", made.attributes.into());
        }
        self.log_in(&mut made.source)?;
        Ok((made.source.into(), made.warnings))
    }

    fn take(&self, name: &'static str, field: Field, made: &mut Made) -> Result<(), Reason> {
        let text = self.text(name)?;
        let given = self.fields.get(name).filter(|value| !value.is_null());
        match (field, text) {
            (Field::FsType, Some(text)) => set(&mut made.source, "fsType", text.into()),
            (Field::FsTypeAnd(attribute), Some(text)) => {
                set(&mut made.attributes, attribute, text.clone().into());
                set(&mut made.source, "fsType", text.into());
            }
            (Field::Attribute(attribute), Some(text)) => set(&mut made.attributes, attribute, text.into()),
            (Field::Number(attribute, none), text) => {
                let number = text.filter(|text| text != "0").unwrap_or_else(|| none.to_owned());
                set(&mut made.attributes, attribute, number.into());
            }
            (Field::Must(_, must), Some(text)) if !text.eq_ignore_ascii_case(must) => {
                return Err(self.must(name, must));
            }
            (Field::Must(attribute, must), _) => set(&mut made.attributes, attribute, must.into()),
            (Field::ReadOnly, _) => {
                if let Some(flag) = given {
                    let flag = flag.as_bool().ok_or_else(|| self.must(name, "true or false"))?;
                    set(&mut made.source, "readOnly", flag.into());
                }
            }
            (Field::Nothing(why), _) => {
                made.warnings.extend(given.map(|_| Warning::Ignored(name.to_owned(), why)));
            }
            (Field::Known | Field::FsType | Field::FsTypeAnd(_) | Field::Attribute(_), _) => {}
        }
        Ok(())
    }

    fn must(&self, name: &str, must: &'static str) -> Reason {
        Reason::Field(format!("spec.{}.{name}", self.plugin.source), must)
    }

    /// Returns a text, or a number as text; an empty text counts as absent. Refuses control
    /// characters, because no name contains any.
    fn text(&self, name: &str) -> Result<Option<String>, Reason> {
        let text = match self.fields.get(name) {
            Some(Value::String(text)) if !text.is_empty() => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            _ => return Ok(None),
        };
        let is_plain = text.len() <= 1024 && !text.chars().any(char::is_control);
        if is_plain { Ok(Some(text)) } else { Err(self.must(name, "plain text, at most 1024 characters")) }
    }

    /// Returns a field that is required.
    fn needed(&self, name: &'static str) -> Result<String, Reason> {
        self.text(name)?.ok_or(Reason::OptionMissing(name))
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.object.pointer("/metadata/annotations")?.get(key)?.as_str().filter(|text| !text.is_empty())
    }

    /// Returns the namespace of the Secret: that in the field, or that of the claim.
    fn namespace(&self, field: &'static str) -> Result<String, Reason> {
        let claim = self.object.pointer("/spec/claimRef/namespace").and_then(Value::as_str);
        let claim = claim.filter(|name| !name.is_empty()).map(str::to_owned);
        self.text(field)?.or(claim).ok_or(Reason::SecretNamespace)
    }

    fn log_in(&self, source: &mut Map<String, Value>) -> Result<(), Reason> {
        match self.plugin.login {
            Login::Driver => {}
            Login::Named(name, namespace) => {
                let secret = json!({"name": self.needed(name)?, "namespace": self.namespace(namespace)?});
                set(source, "nodeStageSecretRef", secret);
            }
            Login::Annotated(name, namespace) => {
                let named = self.annotation(name).zip(self.annotation(namespace));
                let Some((name, namespace)) = named else { return Ok(()) };
                for call in
                    ["controllerPublish", "nodeStage", "nodePublish", "controllerExpand", "nodeExpand"]
                {
                    let secret = json!({"name": name, "namespace": namespace});
                    set(source, &format!("{call}SecretRef"), secret);
                }
            }
        }
        Ok(())
    }
}

//! Volumes of Kubernetes' own plugins that are gone, for the CSI drivers that took their place.
//!
//! Kubernetes translates them itself, at each call and for as long as it knows the types. Written
//! down they no longer depend on that. What comes out is what its library
//! (`k8s.io/csi-translation-lib`) makes of them, but for what that loses on the way back: here the
//! original is kept, so nothing is made up again of a handle.
//!
//! | lost by the library | here |
//! |---|---|
//! | `aws://zone/` before a volume's id | the original has it |
//! | access modes that were rewritten | the original has them |
//! | `readOnly` of Portworx | goes along |
//! | the Secret of Cinder | left out with a warning: the CSI driver logs in by itself |
//! | vSphere's path and policy | the original has them |

mod plugins;
mod topology;

pub(super) use plugins::PLUGINS;
pub(super) use topology::ZONES;

use super::original::set;
use super::{Reason, Rewrite, Warning};
use serde_json::{Map, Value, json};
use topology::Topology;

/// One of Kubernetes' own plugins, and the CSI driver in its place.
#[derive(Debug)]
pub(super) struct Plugin {
    /// Its field in a volume's `spec`.
    pub(super) source: &'static str,
    /// The CSI driver.
    pub(super) to: &'static str,
    /// What becomes of each field. One that is not here is a refusal.
    fields: &'static [(&'static str, Field)],
    /// What the driver knows the volume by.
    handle: fn(&Source<'_>) -> Result<String, Reason>,
    /// Where the volume can be reached from.
    topology: Option<Topology>,
    /// Whether what many may write goes to one writer: the plugin never looked at it.
    one_writer: bool,
    /// Where the login is.
    login: Login,
}

/// What becomes of a field.
#[derive(Clone, Copy, Debug)]
enum Field {
    /// A part of the handle, or of the login.
    Known,
    FsType,
    /// The same, and an attribute.
    FsTypeAnd(&'static str),
    ReadOnly,
    Attribute(&'static str),
    /// A number that is an attribute, and what that is for none.
    Number(&'static str, &'static str),
    /// This attribute, if it is this in whatever case; nothing else has a way.
    Must(&'static str, &'static str),
    /// Nothing, and the reason why nothing is lost.
    Nothing(&'static str),
}

#[derive(Clone, Copy, Debug)]
enum Login {
    /// The driver has its own.
    Driver,
    /// A Secret by name, in a namespace of its own or that of the claim.
    Named(&'static str, &'static str),
    /// A Secret that two annotations name, for every call.
    Annotated(&'static str, &'static str),
}

/// A volume's source.
struct Source<'a> {
    object: &'a Value,
    plugin: &'static Plugin,
    fields: &'a Map<String, Value>,
}

/// The plugin of a volume, if it is one of these.
pub(super) fn of(object: &Value) -> Option<&'static Plugin> {
    let spec = object.get("spec")?;
    PLUGINS.iter().find(|plugin| spec.get(plugin.source).is_some_and(|source| !source.is_null()))
}

/// Whether volumes of a plugin can go to the CSI driver of this name.
pub(super) fn is_target(driver: &str) -> bool {
    PLUGINS.iter().any(|plugin| plugin.to == driver)
}

/// Whether a translation changes what stands there.
pub(super) fn is_changed(path: &str) -> bool {
    let source = |plugin: &Plugin| path.strip_prefix("/spec/") == Some(plugin.source);
    ["/spec/nodeAffinity", "/spec/accessModes"].contains(&path) || PLUGINS.iter().any(source)
}

/// Puts the CSI source into the place of the plugin's.
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

/// The access modes, if they are others.
fn one_writer(object: &Value) -> Option<Value> {
    let modes = object.pointer("/spec/accessModes")?.as_array()?;
    let has = |mode: &str| modes.iter().any(|one| one == mode);
    let one = json!(["ReadWriteOnce"]);
    (has("ReadWriteMany") || has("ReadWriteOnce") && has("ReadOnlyMany")).then_some(one)
}

/// A CSI source in the making.
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

    /// The text, or the number as text; an empty one is none. What it holds of control characters
    /// is no name of anything.
    fn text(&self, name: &str) -> Result<Option<String>, Reason> {
        let text = match self.fields.get(name) {
            Some(Value::String(text)) if !text.is_empty() => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            _ => return Ok(None),
        };
        let is_plain = text.len() <= 1024 && !text.chars().any(char::is_control);
        if is_plain { Ok(Some(text)) } else { Err(self.must(name, "plain text, at most 1024 characters")) }
    }

    /// The field, which must be there.
    fn needed(&self, name: &'static str) -> Result<String, Reason> {
        self.text(name)?.ok_or(Reason::OptionMissing(name))
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.object.pointer("/metadata/annotations")?.get(key)?.as_str().filter(|text| !text.is_empty())
    }

    /// The namespace of its Secret, by this field or the claim's.
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

//! Settings of kubelet, from its flags and the files they name.
//!
//! Does no I/O: a [`Files`] supplies the files, either those of the node in kubelet's view, or a
//! table in a test. Order of precedence: the flag, the drop-in files of `--config-dir` from the
//! last to the first, the file of `--config`, and kubelet's default.

use super::command_line::{Flag, flags, flags_in_text, handed_on, inner, last};
use super::plain;
use crate::platform::{DEFAULT_KUBELET_ROOT, DEFAULT_PLUGIN_DIR, Kept};
use flexvol_protocol::failure::{Code, Failure, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Limit for the depth of the search for drop-ins below `--config-dir`.
const DEPTH: usize = 8;
/// Limit for the number of files read from one directory.
const FILES: usize = 256;

/// Key in kubelet's configuration: true leaves attaching to kube-controller-manager.
const ATTACHING: &str = "enableControllerAttachDetach";
/// Flag with the same meaning.
const ATTACHING_FLAG: &str = "enable-controller-attach-detach";

/// Error code for a file that counts, but cannot be understood with certainty.
pub const UNCLEAR: Code = Code::BadOptions;

/// Files of a node in the view of a certain process.
pub trait Files {
    /// Returns the text of a file of a configuration's size; `None` if there is no such file.
    fn read(&self, path: &Path) -> Result<Option<String>>;
    /// Returns the names in a directory, sorted, each with a flag that is true for a directory;
    /// empty if there is no such directory.
    fn list(&self, directory: &Path) -> Result<Vec<(String, bool)>>;
}

/// Directory, and the setting that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Path in the view of kubelet.
    pub directory: PathBuf,
    /// Source of the setting, for display, e.g. `/var/lib/kubelet/config.yaml: volumePluginDir`.
    pub by: String,
    /// True if nothing was set, so that kubelet uses this default.
    pub is_default: bool,
}

/// Returns the plugin directory of a kubelet with these flags, started in `cwd`.
pub fn plugin_dir(flags: &[Flag], cwd: &Path, files: &dyn Files) -> Result<Told> {
    let told = |directory: PathBuf, by: String| Told { directory, by, is_default: false };
    if let Some(flag) = given(flags, "volume-plugin-dir") {
        return Ok(told(cwd.join(&flag.value), format!("{}: --volume-plugin-dir", flag.from)));
    }
    let drop_ins = from_drop_ins(flags, cwd, files)?.into_iter();
    // The last drop-in with the key counts, even with an empty value: that means kubelet's default.
    if let Some((value, file)) =
        drop_ins.filter_map(|(document, file)| Some((setting(&document)?, file))).next_back()
    {
        let value = if value.is_empty() { DEFAULT_PLUGIN_DIR.to_owned() } else { value };
        // Kubelet resolves paths relative to the file only for the file of `--config`.
        return Ok(told(cwd.join(value), format!("{}: volumePluginDir", file.display())));
    }
    let file = from_file(flags, cwd, files)?;
    let set = file.and_then(|(document, file)| Some((setting(&document)?, file)));
    if let Some((value, file)) = set.filter(|(value, _)| !value.is_empty()) {
        let base = file.parent().unwrap_or(cwd);
        return Ok(told(base.join(value), format!("{}: volumePluginDir", file.display())));
    }
    let by = "kubelet's default, nothing else being set".to_owned();
    Ok(Told { directory: DEFAULT_PLUGIN_DIR.into(), by, is_default: true })
}

/// Reports whether a kubelet with these flags, started in `cwd`, calls `attach` and `detach`
/// itself. By default it leaves them to kube-controller-manager.
pub fn attaches(flags: &[Flag], cwd: &Path, files: &dyn Files) -> Result<bool> {
    if let Some(flag) = given(flags, ATTACHING_FLAG) {
        return Ok(is_no(&flag.value));
    }
    let file = from_file(flags, cwd, files)?.into_iter();
    let documents = file.chain(from_drop_ins(flags, cwd, files)?);
    let said = documents.filter_map(|(document, _)| document.get(ATTACHING)?.as_bool()).next_back();
    Ok(said == Some(false))
}

/// Reports a false value, as Go's `strconv.ParseBool` does.
fn is_no(text: &str) -> bool {
    ["0", "f", "F", "false", "False", "FALSE"].contains(&text)
}

/// Returns kubelet's own directory.
pub fn root_dir(flags: &[Flag], cwd: &Path) -> PathBuf {
    given(flags, "root-dir").map_or_else(|| DEFAULT_KUBELET_ROOT.into(), |flag| cwd.join(&flag.value))
}

fn given<'a>(flags: &'a [Flag], name: &str) -> Option<&'a Flag> {
    last(flags, name).filter(|flag| !flag.value.is_empty())
}

/// Reads the file of `--config`; returns its content and path.
fn from_file(flags: &[Flag], cwd: &Path, files: &dyn Files) -> Result<Option<(Value, PathBuf)>> {
    let Some(flag) = given(flags, "config") else { return Ok(None) };
    let path = cwd.join(&flag.value);
    let Some(document) = document(&path, files)? else {
        let text = format!(
            "kubelet was started with --config={}, which is not there now: name the directory with --plugin-dir",
            path.display()
        );
        return Err(Failure::new(Code::NotFound, text));
    };
    Ok(Some((document, path)))
}

/// Reads the drop-ins of `--config-dir`: later ones override earlier ones.
fn from_drop_ins(flags: &[Flag], cwd: &Path, files: &dyn Files) -> Result<Vec<(Value, PathBuf)>> {
    let Some(flag) = given(flags, "config-dir") else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for path in below(&cwd.join(&flag.value), files, DEPTH)? {
        found.extend(document(&path, files)?.map(|document| (document, path)));
    }
    Ok(found)
}

/// Returns every `*.conf` in the directory and below, in the order of Go's `filepath.WalkDir`.
fn below(directory: &Path, files: &dyn Files, depth: usize) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for (name, is_directory) in files.list(directory)? {
        let path = directory.join(&name);
        if is_directory && depth > 0 {
            found.extend(below(&path, files, depth - 1)?);
        } else if !is_directory && ends_in(&name, "conf") {
            found.push(path);
        }
        if found.len() > FILES {
            let text = format!("{} has more than {FILES} files: remove some", directory.display());
            return Err(Failure::new(Code::Internal, text));
        }
    }
    Ok(found)
}

/// Compares the extension as Go's `filepath.Ext` finds it: the name `.conf` is all extension.
fn ends_in(name: &str, ending: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, found)| found == ending)
}

fn setting(document: &Value) -> Option<String> {
    document.get("volumePluginDir")?.as_str().map(str::to_owned)
}

/// Reads a file as YAML or JSON; `None` if there is no such file. An empty file is null.
///
/// The error has the code [`UNCLEAR`] if the content cannot be understood with certainty.
fn document(path: &Path, files: &dyn Files) -> Result<Option<Value>> {
    let Some(text) = files.read(path)? else { return Ok(None) };
    let unclear = |plain::Unclear { line, why }| {
        let path = path.display();
        let text = format!("{path} is not clear: line {line}: {why}: name the directory with --plugin-dir");
        Failure::new(UNCLEAR, text)
    };
    plain::read(&text).map(Some).map_err(unclear)
}

/// Returns the flags for a kubelet that starts, from the places in which a platform stores them;
/// later ones override earlier ones.
///
/// Skips files that do not exist.
pub fn kept(places: &[Kept], files: &dyn Files) -> Result<Vec<Flag>> {
    let mut flags = Vec::new();
    for place in places {
        flags.extend(match *place {
            Kept::Configuration(path) => configuration(path, files)?,
            Kept::Flags(path) => flags_in(path, files)?,
            Kept::Rancher(directory) => rancher(Path::new(directory), "kubelet-arg", files)?,
            Kept::Arguments(path) => arguments(Path::new(path), files)?,
            Kept::Within(path, members) => within(path, members, files)?,
        });
    }
    Ok(flags)
}

fn configuration(path: &str, files: &dyn Files) -> Result<Vec<Flag>> {
    let is_there = document(Path::new(path), files)?.is_some();
    Ok(is_there.then(|| Flag::new("config", path, path)).into_iter().collect())
}

/// Reads the flags in a file, or in the `*.conf` files of a directory.
fn flags_in(path: &str, files: &dyn Files) -> Result<Vec<Flag>> {
    let names = files.list(Path::new(path))?;
    let confs = names.into_iter().filter(|(name, is_directory)| !is_directory && ends_in(name, "conf"));
    let mut paths: Vec<_> = confs.map(|(name, _)| Path::new(path).join(name)).take(FILES).collect();
    paths.push(path.into());
    let mut flags = Vec::new();
    for path in paths {
        if let Some(text) = files.read(&path)? {
            flags.extend(flags_in_text(&text, &path.display().to_string()));
        }
    }
    Ok(flags)
}

/// Reads `kubelet-arg` and similar keys in k3s' `config.yaml`, then in `config.yaml.d`: a list or
/// one word. A key with a plus adds its values to those of earlier files; without the plus it
/// replaces them.
///
/// k3s makes kubelet read drop-ins below its data directory, too.
pub fn rancher(directory: &Path, name: &str, files: &dyn Files) -> Result<Vec<Flag>> {
    let extra = directory.join("config.yaml.d");
    let names = files.list(&extra)?.into_iter().map(|(name, _)| name);
    let yaml = |name: &String| ends_in(name, "yaml") || ends_in(name, "yml");
    let paths = names.filter(yaml).take(FILES).map(|name| extra.join(name));
    let (mut flags, mut data) = (Vec::new(), "/var/lib/rancher/k3s".to_owned());
    for path in std::iter::once(directory.join("config.yaml")).chain(paths) {
        let Some(document) = document(&path, files)? else { continue };
        if let Some(directory) = document.get("data-dir").and_then(Value::as_str) {
            directory.clone_into(&mut data);
        }
        if let Some(values) = document.get(name) {
            flags = inner_flags(values, name, &path);
        }
        if let Some(values) = document.get(format!("{name}+")) {
            flags.extend(inner_flags(values, name, &path));
        }
    }
    if name == "kubelet-arg" && directory.ends_with("k3s") {
        let drop_ins = format!("{data}/agent/etc/kubelet.conf.d");
        flags.insert(0, Flag::new("config-dir", &drop_ins, "k3s"));
    }
    Ok(flags)
}

/// Reads the flags in a list of words, or in one word.
fn inner_flags(values: &Value, name: &str, path: &Path) -> Vec<Flag> {
    let from = format!("{}: {name}", path.display());
    let words = match values {
        Value::Array(values) => values.iter().filter_map(Value::as_str).collect(),
        value => value.as_str().into_iter().collect::<Vec<_>>(),
    };
    words.into_iter().filter_map(|word| inner(word, &from)).collect()
}

/// Reads a file with one flag per line, quotes around values, and snap's variables.
pub fn arguments(path: &Path, files: &dyn Files) -> Result<Vec<Flag>> {
    let text = files.read(path)?.unwrap_or_default();
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let words: Vec<_> = lines.map(|line| expand(&line.replace(['"', '\''], ""), path)).collect();
    Ok(flags(&words, &path.display().to_string()))
}

/// Replaces snap's variables: `SNAP_DATA` is two directories above the file,
/// `/var/snap/microk8s/<revision>`, and `SNAP_COMMON` is beside that.
fn expand(line: &str, path: &Path) -> String {
    let data = path.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let common = data.with_file_name("common");
    let of = |name: &str| [format!("${{{name}}}"), format!("${name}")];
    let values = [("SNAP_DATA", data), ("SNAP_COMMON", &common)];
    values.iter().fold(line.to_owned(), |line, (name, value)| {
        of(name).iter().fold(line, |line, written| line.replace(written, &value.display().to_string()))
    })
}

/// Reads a configuration that has kubelet's in a member: `volumePluginDir`, or
/// `volume-plugin-dir: [X]` as in OpenShift 3, and in the same two forms the setting for attaching.
fn within(path: &str, members: &[&str], files: &dyn Files) -> Result<Vec<Flag>> {
    let Some(document) = document(Path::new(path), files)? else { return Ok(Vec::new()) };
    let Some(inside) = members.iter().try_fold(&document, |value, member| value.get(member)) else {
        return Ok(Vec::new());
    };
    let list = |value: &Value| value.as_array().and_then(|list| list.last()?.as_str().map(str::to_owned));
    let directory = setting(inside).or_else(|| list(inside.get("volume-plugin-dir")?));
    let attaching = inside.get(ATTACHING).and_then(Value::as_bool).map(|said| said.to_string());
    let attaching = attaching.or_else(|| list(inside.get(ATTACHING_FLAG)?));
    let from = format!("{path}: {}", members.join("."));
    let said = [("volume-plugin-dir", directory), (ATTACHING_FLAG, attaching)].into_iter();
    Ok(said.filter_map(|(name, value)| Some(Flag::new(name, &value?, &from))).collect())
}

/// Manifests of the static pod of a controller-manager.
pub const MANIFESTS: &[&str] = &[
    "/etc/kubernetes/manifests/kube-controller-manager.yaml",
    "/var/lib/rancher/rke2/agent/pod-manifests/kube-controller-manager.yaml",
];

/// Returns the flags of the containers of a pod.
pub fn manifest(path: &str, files: &dyn Files) -> Result<Vec<Flag>> {
    let Some(document) = document(Path::new(path), files)? else { return Ok(Vec::new()) };
    let containers = document.pointer("/spec/containers").and_then(Value::as_array);
    let lists = containers.into_iter().flatten().flat_map(|container| {
        ["command", "args"].into_iter().filter_map(|member| container.get(member)?.as_array())
    });
    let words: Vec<_> = lists.flatten().filter_map(|word| word.as_str().map(str::to_owned)).collect();
    Ok(flags(&words, path))
}

/// Returns the directory in the flags of a controller-manager; `None` if they set none.
pub fn flex_volume_plugin_dir(flags: &[Flag], cwd: &Path) -> Option<Told> {
    let flag = given(flags, "flex-volume-plugin-dir")?;
    let by = format!("{}: --flex-volume-plugin-dir", flag.from);
    Some(Told { directory: cwd.join(&flag.value), by, is_default: false })
}

/// Returns the flags that k3s passes to `kubelet` or `kube-controller-manager`: first those of its
/// configuration, then those of its own command line.
pub fn k3s(words: &[String], name: &str, files: &dyn Files) -> Result<Vec<Flag>> {
    let own = flags(words, "command line");
    let mut handed = rancher(Path::new("/etc/rancher/k3s"), name, files)?;
    if let Some(data) = last(&own, "data-dir")
        && let Some(drop_ins) = handed.first_mut().filter(|flag| flag.name == "config-dir")
    {
        drop_ins.value = format!("{}/agent/etc/kubelet.conf.d", data.value);
    }
    handed.extend(handed_on(&own, name));
    Ok(handed)
}

//! What a crate names in its Cargo.toml it uses, and what a node executes links little.

use super::{root, rust};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// What `flexvol` never links: the other programs' crates, and what only they need.
const FOREIGN: &[&str] =
    &["flexvol-kit", "flexvol-cluster", "saphyr", "tokio", "tonic", "prost", "hyper", "kube"];

#[test]
fn every_dependency_is_used() {
    let code: Vec<_> = rust().collect();
    let mut unused = Vec::new();
    for name in fs::read_dir(root().join("src")).unwrap() {
        let name = name.unwrap().file_name().into_string().unwrap();
        let Ok(manifest) = fs::read_to_string(root().join("src").join(&name).join("Cargo.toml")) else {
            continue;
        };
        let own = format!("src/{name}/");
        for dependency in dependencies(&manifest) {
            let path = dependency.replace('-', "_");
            let is_named = |line: &str| {
                line.match_indices(&*path).any(|(at, _)| {
                    let before = line[..at].chars().next_back();
                    let after = line[at + path.len()..].chars().next();
                    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
                    !is_word(before) && !is_word(after)
                })
            };
            if !code.iter().any(|file| file.path.starts_with(&own) && file.code.lines().any(is_named)) {
                unused.push(format!("{own}Cargo.toml: {dependency}"));
            }
        }
    }
    assert!(unused.is_empty(), "named and not used:\n{}", unused.join("\n"));
}

/// kubelet executes `flexvol` for each verb, on every node: no reader of YAML, no runtime.
#[test]
fn a_node_links_no_yaml_and_no_runtime() {
    let all = linked("flexvol-admin");
    assert!(all.contains("flexvol-linux") && all.contains("clap") && all.contains("memchr"), "{all:?}");
    let foreign: Vec<_> = all.iter().filter(|name| is_foreign(name)).collect();
    assert!(foreign.is_empty(), "flexvol would link {foreign:?}");
    assert!(linked("flexvol-kit").iter().any(|name| is_foreign(name)), "so it can fail");
    let entry = ["bin/flexvol.rs", "src/multicall.rs"];
    let mut entry = rust().filter(|file| entry.contains(&&*file.path));
    assert!(entry.all(|file| !file.code.contains("flexvol_kit")), "it goes through the kit");
}

/// Whoever has a node's programs run looks through no `$PATH`; whoever types kubectl does: in the
/// kit, and in `flexvold` by its command line alone, never by what serves.
#[test]
fn kubectl_is_for_who_types_it() {
    let users = |of: &str| -> Vec<_> {
        rust().filter(|file| file.code.contains(of)).map(|file| file.path).collect::<Vec<_>>()
    };
    let of_people = ["src/kit/", "src/cluster/kubectl/"];
    let starters = users("proc::piped");
    let is_theirs = |path: &String| of_people.iter().any(|place| path.starts_with(place));
    assert!(starters.len() > 1 && starters.iter().all(is_theirs), "{starters:?}");
    let askers = users("kubectl::asking");
    let is_typed = |path: &String| path.starts_with("src/cluster/cli/");
    assert!(!askers.is_empty() && askers.iter().all(is_typed), "{askers:?}");
}

/// `kube` is, and so is `kube-client`; `flexvol-kubelet` is not.
fn is_foreign(name: &str) -> bool {
    let is_of =
        |one: &&str| name.strip_prefix(one).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    name.contains("yaml") || FOREIGN.iter().any(is_of)
}

/// A crate of ours and all that it depends on, the crates of others by Cargo.lock.
fn linked(name: &str) -> BTreeSet<String> {
    let lock = locked();
    let (mut found, mut open) = (BTreeSet::new(), vec![name.to_owned()]);
    while let Some(name) = open.pop() {
        let manifest =
            name.strip_prefix("flexvol-").map(|name| root().join(format!("src/{name}/Cargo.toml")));
        open.extend(match manifest {
            Some(path) => dependencies(&fs::read_to_string(path).unwrap()),
            None => lock.get(&name).cloned().unwrap_or_default(),
        });
        open.retain(|name| !found.contains(name));
        found.insert(name);
    }
    found
}

/// Which crates each crate of Cargo.lock depends on.
fn locked() -> BTreeMap<String, Vec<String>> {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let word = |line: &str| line.trim().trim_matches([' ', '"', ',']).split(' ').next().unwrap().to_owned();
    let package = |text: &str| {
        let name = word(text.lines().next()?.strip_prefix("name = ")?);
        let list = text.split_once("dependencies = [\n").map_or("", |(_, list)| list);
        Some((name, list.lines().take_while(|line| *line != "]").map(word).collect()))
    };
    lock.split("[[package]]\n").filter_map(package).collect()
}

/// Those of the program, not of its tests.
fn dependencies(manifest: &str) -> Vec<String> {
    let (_, section) = manifest.split_once("\n[dependencies]\n").unwrap();
    let section = section.split("\n[").next().unwrap();
    let name =
        |line: &str| line.split(['.', ' ', '=']).next().filter(|name| !name.is_empty()).map(str::to_owned);
    section.lines().filter_map(name).collect()
}

#[test]
fn dependencies_of_tests_are_left_out() {
    let manifest =
        "[package]\n\n[dependencies]\na-b.workspace = true\nc = \"1\"\n\n[dev-dependencies]\nd = \"1\"\n";
    assert_eq!(dependencies(manifest), ["a-b", "c"]);
}

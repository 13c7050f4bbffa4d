//! What a crate names in its Cargo.toml it uses.

use super::{root, rust};
use std::fs;

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

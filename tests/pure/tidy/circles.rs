//! No circle between the files of a crate: who reads one file has to read those it imports, and not
//! the other way round. A parent and its parts are one thing in several files.

use super::{Source, rust};
use std::collections::{BTreeMap, BTreeSet};

/// `src/node/executor/disk.rs` is `["executor", "disk"]` of the crate `node`.
type Module = Vec<String>;

type Imports = BTreeMap<Module, BTreeSet<Module>>;

#[test]
fn no_circle_between_files() {
    let mut crates: BTreeMap<String, Vec<(Module, String)>> = BTreeMap::new();
    for Source { path, code } in rust() {
        if let Some((name, module)) = module_of(&path) {
            crates.entry(name).or_default().push((module, code));
        }
    }
    assert!(crates.len() >= 8, "{:?}", crates.keys());
    let circles: Vec<_> = crates
        .iter()
        .flat_map(|(name, files)| {
            circles(&imports(files)).into_iter().map(move |circle| format!("{name}: {circle}"))
        })
        .collect();
    assert!(circles.is_empty(), "files that import each other:\n{}", circles.join("\n"));
}

fn module_of(path: &str) -> Option<(String, Module)> {
    let parts: Vec<_> =
        path.strip_prefix("src/")?.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    let (name, rest) = parts.split_first().filter(|(_, rest)| !rest.is_empty())?;
    let keep = rest.len() - usize::from(matches!(rest.last().map(String::as_str), Some("mod" | "lib")));
    Some((name.clone(), rest[..keep].to_vec()))
}

fn imports(files: &[(Module, String)]) -> Imports {
    let known: BTreeSet<_> = files.iter().map(|(module, _)| module.clone()).collect();
    let of = |(module, code): &(Module, String)| {
        let named = paths(code).into_iter().filter_map(|path| resolve(module, &path, &known));
        let others = named.filter(|other| !other.starts_with(module) && !module.starts_with(other));
        (module.clone(), others.collect())
    };
    files.iter().map(of).collect()
}

/// Every path of this crate that stands in a `use` or begins with `crate` or `super`, taken apart
/// at its braces.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        if let Some((statement, _)) = code[at + 4..].split_once(';') {
            expand(&[], statement, &mut found);
        }
    }
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let end = code[at..].find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
            expand(&[], &code[at..end.map_or(code.len(), |end| at + end)], &mut found);
        }
    }
    found
}

fn expand(before: &[String], text: &str, found: &mut Vec<Vec<String>>) {
    let words = |text: &str| -> Vec<String> {
        text.split("::").map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let Some((head, group)) = text.split_once('{') else {
        let path = text.split(" as ").next().unwrap_or_default();
        return found.push([before, &words(path)].concat());
    };
    let before = [before, &words(head)].concat();
    let (mut depth, mut begin) = (0, 0);
    let group = group.trim_end().strip_suffix('}').unwrap_or(group);
    for (at, c) in group.char_indices().chain([(group.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&before, &group[begin..at], found);
                begin = at + 1;
            }
            _ => {}
        }
    }
}

/// The file that a path of this crate leads into: the longest part of it that is one.
fn resolve(module: &[String], path: &[String], known: &BTreeSet<Module>) -> Option<Module> {
    let mut from = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "super" => module.to_vec(),
        first if known.contains(&[module, &[first.to_owned()]].concat()) => module.to_vec(),
        _ => return None,
    };
    for word in path.iter().skip_while(|word| *word == "crate") {
        match word.as_str() {
            "super" => drop(from.pop()),
            _ => from.push(word.clone()),
        }
    }
    (0..=from.len()).rev().map(|length| from[..length].to_vec()).find(|module| known.contains(module))
}

/// One path through each circle.
fn circles(imports: &Imports) -> Vec<String> {
    let (mut circles, mut done) = (Vec::new(), BTreeSet::new());
    for module in imports.keys() {
        walk(imports, module, &mut Vec::new(), &mut done, &mut circles);
    }
    circles
}

fn walk<'a>(
    imports: &'a Imports,
    module: &'a Module,
    way: &mut Vec<&'a Module>,
    done: &mut BTreeSet<&'a Module>,
    circles: &mut Vec<String>,
) {
    if let Some(at) = way.iter().position(|before| *before == module) {
        let names: Vec<_> = way[at..].iter().chain([&module]).map(|module| module.join("::")).collect();
        return circles.push(names.join(" -> "));
    }
    if done.contains(module) {
        return;
    }
    way.push(module);
    for other in imports.get(module).into_iter().flatten() {
        walk(imports, other, way, done, circles);
    }
    way.pop();
    done.insert(module);
}

#[test]
fn a_circle_is_seen() {
    let of = |files: &[(&str, &str)]| {
        let files: Vec<_> = files
            .iter()
            .map(|(path, code)| {
                (module_of(&(["src", "x", *path].join("/") + ".rs")).unwrap().1, (*code).to_owned())
            })
            .collect();
        circles(&imports(&files))
    };
    let one = ("a", "use crate::b::{self, c::{D, E}};");
    assert_eq!(of(&[one, ("b", "fn f() { super::a::g() }")]), ["a -> b -> a"]);
    assert_eq!(of(&[one, ("b", ""), ("b/c", "use super::super::a;")]), ["a -> b::c -> a"]);
    assert_eq!(of(&[one, ("b", "mod c; use c::D;"), ("b/c", "use super::F;")]), [""; 0]);
}

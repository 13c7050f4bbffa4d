//! The house rules as a test: sizes, who may touch what, and that the tree speaks only of what is
//! in it.
#![expect(clippy::case_sensitive_file_extension_comparisons, reason = "the tree has .rs and .md, not .RS")]

mod circles;
mod dependencies;
mod widths;
mod wording;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What no function may exceed, from its `fn` to its closing brace.
const FUNCTION_LINES: usize = 60;
/// What no source file may exceed, its unit tests not counted.
const FILE_LINES: usize = 500;
/// Modules without input or output, by path or by the start of it.
const PURE: &[&str] = &[
    "src/model/",
    "src/protocol/",
    "src/admin/manifest/",
    "src/cluster/manifest.rs",
    "src/cluster/controllers/capacity.rs",
    "src/cluster/controllers/claim.rs",
    "src/cluster/controllers/creation.rs",
    "src/cluster/controllers/reclaim.rs",
    "src/cluster/controllers/secret_refs.rs",
    "src/cluster/controllers/topology.rs",
    "src/cluster/csi/capability.rs",
    "src/cluster/csi/codes.rs",
    "src/cluster/csi/habits.rs",
    "src/cluster/csi/options.rs",
    "src/cluster/csi/request.rs",
    "src/cluster/fence/decide.rs",
    "src/cluster/fence/evidence.rs",
    "src/cluster/fence/record.rs",
    "src/cluster/fence/request.rs",
    "src/cluster/fence/sharing.rs",
    "src/kit/translate.rs",
    "src/kit/validate/",
    "src/kit/objects.rs",
    "src/kit/objects/",
    "src/kit/yaml.rs",
    "src/kit/yaml/",
    "src/kubelet/locate/plain.rs",
    "src/kubelet/scalar.rs",
    "src/terminal/emit.rs",
];
/// What a pure module never names.
const IMPURE: &[&str] = &[
    "fs",
    "process",
    "net",
    "env",
    "thread",
    "rustix",
    "nix",
    "libc",
    "flexvol_linux",
    "sys_mount",
    "tempfile",
];
/// The crates of the product that ask `linux` for everything. The compiler keeps the crates of
/// system calls away from them, but not the standard library.
const ABOVE_LINUX: &[&str] =
    &["src/multicall.rs", "src/node/", "src/kubelet/", "src/terminal/", "src/admin/", "bin/"];
/// File names that say nothing.
const VAGUE: &[&str] = &["util", "utils", "helpers", "manager", "misc", "common"];

#[test]
fn functions_are_short() {
    let all: Vec<_> = rust().flat_map(|file| functions(&file)).collect();
    let long: Vec<_> = all.iter().filter(|(_, lines)| *lines > FUNCTION_LINES).collect();
    assert!(long.is_empty(), "over {FUNCTION_LINES} lines: {long:?}");
    let mut sizes: Vec<_> = all.iter().map(|(_, lines)| *lines).collect();
    sizes.sort_unstable();
    let (median, p90) = (sizes[sizes.len() / 2], sizes[sizes.len() * 9 / 10]);
    assert!(median <= 12 && p90 <= 30, "functions grow: median {median}, 90 % have at most {p90} lines");
}

#[test]
fn files_are_short() {
    let long: Vec<_> =
        rust().map(|file| (file.lines(), file.path)).filter(|(n, _)| *n > FILE_LINES).collect();
    assert!(long.is_empty(), "over {FILE_LINES} lines: {long:?}");
}

#[test]
fn unsafe_is_in_one_file() {
    complain(rust().filter(|file| !file.path.starts_with("src/linux/raw/")), |file| {
        words(&file.code).filter(|(_, word)| *word == "unsafe").map(|(at, _)| at).collect()
    });
}

#[test]
fn pure_modules_touch_nothing() {
    let pure = rust().filter(|file| PURE.iter().any(|start| file.path.starts_with(start)));
    complain(pure, |file| impurities(&file.code));
}

/// A process with threads neither mounts nor unmounts: only another one may, which `by_kubelet.rs`
/// and `by_force.rs` are.
#[test]
fn the_daemon_mounts_nothing() {
    let is_another = |path: &str| ["/by_kubelet.rs", "/by_force.rs"].iter().any(|end| path.ends_with(end));
    let daemon = rust().filter(|file| file.path.starts_with("src/cluster/") && !is_another(&file.path));
    complain(daemon, |file| {
        let at = |name: &str| file.code.match_indices(name).map(|(at, _)| at).collect::<Vec<_>>();
        let looks = ["mount::place", "mount::mount_table"].map(at).concat();
        let mounts = ["flexvol_linux::mount", "by_kubelet::{", "rustix::mount", "sys_mount"].map(at).concat();
        mounts.into_iter().filter(|at| !looks.iter().any(|look| look.abs_diff(*at) < 24)).collect()
    });
}

#[test]
fn only_linux_touches_files() {
    let above = rust().filter(|file| ABOVE_LINUX.iter().any(|start| file.path.starts_with(start)));
    complain(above, |file| files_touched(&file.code));
}

#[test]
fn only_the_command_line_prints() {
    let prints_for_people = |path: &str| {
        ["src/admin/cli/", "src/cluster/cli/", "src/kit/cli/", "src/terminal/"]
            .iter()
            .any(|start| path.starts_with(start))
    };
    // cargo listens to those that build.
    let listened_to = |path: &str| prints_for_people(path) || path.ends_with("/build.rs");
    let others = rust().filter(|file| file.path.starts_with("src/") && !listened_to(&file.path));
    complain(others, |file| prints(&file.code));
}

#[test]
fn names_say_something() {
    let vague: Vec<_> = tracked().into_iter().filter(|path| VAGUE.contains(&stem(path))).collect();
    assert!(vague.is_empty(), "{vague:?}");
}

/// Every document, source file and test that is named exists, so nobody is sent where they cannot
/// go.
#[test]
fn the_tree_names_nothing_outside_itself() {
    let files = tracked();
    let missing: Vec<_> = files
        .iter()
        .filter(|path| !path.ends_with("LICENSE") && !path.ends_with("tidy.rs"))
        .filter_map(|path| Some((path, fs::read_to_string(root().join(path)).ok()?)))
        .flat_map(|(path, text)| {
            strangers(&text, path, &files).into_iter().map(move |name| format!("{path}: {name}"))
        })
        .collect();
    assert!(missing.is_empty(), "named, but not in the tree:\n{}", missing.join("\n"));
}

/// Every `module::test` a document names is a function in that file.
#[test]
fn documents_name_real_tests() {
    let files = tracked();
    let texts: Vec<_> =
        files.iter().filter_map(|path| Some((path, fs::read_to_string(root().join(path)).ok()?))).collect();
    let missing: Vec<_> = texts
        .iter()
        .filter(|(path, _)| path.ends_with(".md"))
        .flat_map(|(path, text)| named_functions(text).map(move |(module, name)| (path, module, name)))
        .filter(|(_, module, name)| !texts.iter().any(|(path, text)| holds(path, text, module, name)))
        .map(|(path, module, name)| format!("{path}: {module}::{name}"))
        .collect();
    assert!(missing.is_empty(), "no such function:\n{}", missing.join("\n"));
}

#[test]
fn crates_come_from_the_public_registry() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let public = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";
    let other: Vec<_> = lock.lines().filter(|line| line.starts_with("source") && *line != public).collect();
    assert!(other.is_empty(), "{other:?}");
    let config = fs::read_to_string(root().join(".cargo/config.toml")).unwrap();
    for word in ["registr", "source", "runner", "replace-with", "linker"] {
        assert!(!config.contains(word), ".cargo/config.toml sets flags and nothing else: {word}");
    }
}

// --- the tree -----------------------------------------------------------------------------------

/// One Rust file: `code` is its text up to the unit tests, comments and literals blanked, line by
/// line as it was.
struct Source {
    path: String,
    code: String,
}

impl Source {
    fn lines(&self) -> usize {
        self.code.lines().count()
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file that is or would be committed; without git, everything but the build's output.
fn tracked() -> Vec<String> {
    let git = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .ok()
        .filter(|output| output.status.success());
    let listed = match git {
        Some(output) => String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect(),
        None => walk(root()),
    };
    listed.into_iter().filter(|path| root().join(path).is_file()).collect()
}

fn walk(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let wanted = |path: &PathBuf| ![".git", "target"].contains(&stem(path.to_str().unwrap()));
    let found = entries.filter(wanted).flat_map(|path| {
        if path.is_dir() {
            walk(&path)
        } else {
            vec![path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned()]
        }
    });
    found.collect()
}

fn rust() -> impl Iterator<Item = Source> {
    tracked().into_iter().filter(|path| path.ends_with(".rs")).map(|path| {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        let own = if path.starts_with("src/") { before_unit_tests(&text) } else { &text };
        Source { code: blank(own), path }
    })
}

fn before_unit_tests(text: &str) -> &str {
    let begins = |start: &str| text.find(start).map(|at| at + 1);
    let end =
        ["\n#[cfg(test)]\nmod ", "\n#[cfg(test)]\npub(super) mod "].into_iter().filter_map(begins).min();
    &text[..end.unwrap_or(text.len())]
}

fn stem(path: &str) -> &str {
    let name = path.trim_end_matches("/mod.rs").rsplit('/').next().unwrap_or(path);
    name.strip_suffix(".rs").unwrap_or(name)
}

/// Fails with every place `find` (byte offsets) points at.
fn complain(files: impl Iterator<Item = Source>, find: impl Fn(&Source) -> Vec<usize>) {
    let places: Vec<_> = files
        .flat_map(|file| {
            let line = |at: &usize| file.code[..*at].matches('\n').count() + 1;
            find(&file).iter().map(|at| format!("{}:{}", file.path, line(at))).collect::<Vec<_>>()
        })
        .collect();
    assert!(places.is_empty(), "{}", places.join("\n"));
}

// --- reading Rust -------------------------------------------------------------------------------

/// The code with comments, strings and character literals as spaces; every line break stays.
fn blank(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = opaque(rest, code.chars().next_back()).unwrap_or(0);
        match length {
            0 => code.push(first),
            _ => code.extend(rest[..length].chars().map(|c| if c == '\n' { c } else { ' ' })),
        }
        rest = &rest[length.max(first.len_utf8())..];
    }
    code
}

/// How long the comment or literal is that `text` begins with.
fn opaque(text: &str, before: Option<char>) -> Option<usize> {
    let inside_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(text.find("*/").map_or(text.len(), |at| at + 2));
    }
    if let Some(inner) = text.strip_prefix('"') {
        return Some(1 + closed(inner, '"'));
    }
    if text.starts_with('r') && (!inside_word || before == Some('b')) {
        return raw_string(text);
    }
    let mut quoted = text.strip_prefix('\'')?.char_indices();
    match (quoted.next()?.1, quoted.next()?) {
        ('\\', _) => Some(1 + closed(&text[1..], '\'')),
        (_, (at, '\'')) => Some(at + 2),
        _ => None,
    }
}

/// The length of the raw string `text` begins with, if it is one and not a word or a raw
/// identifier.
fn raw_string(text: &str) -> Option<usize> {
    let hashes = text[1..].chars().take_while(|c| *c == '#').count();
    let inner = text[1 + hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(text.len() - inner.find(&end).map_or(0, |at| inner.len() - at - end.len()))
}

/// The length of `text` up to and with the first `quote` that no backslash escapes.
fn closed(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Identifiers and keywords with their offsets.
fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let apart = |c: char| !(c.is_alphanumeric() || c == '_');
    code.split(apart)
        .filter(|word| !word.is_empty())
        .map(|word| (word.as_ptr() as usize - code.as_ptr() as usize, word))
}

/// Name and length in lines of each function with a body.
fn functions(file: &Source) -> Vec<(String, usize)> {
    let code = &file.code;
    let mut found = Vec::new();
    let mut words = words(code).peekable();
    while let Some((at, word)) = words.next() {
        let (true, Some((_, name))) = (word == "fn", words.peek()) else { continue };
        let length = body(&code[at..]);
        if length > 0 {
            found.push((format!("{}::{name}", file.path), code[at..at + length].lines().count()));
        }
    }
    found
}

/// The length of the item `code` begins with up to its closing brace; 0 if it has none, as in a
/// trait or a type.
fn body(code: &str) -> usize {
    let (mut braces, mut others) = (0, 0);
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => others += 1,
            ')' | ']' if others == 0 => return 0,
            ')' | ']' => others -= 1,
            ';' | ',' | '=' if braces == 0 && others == 0 && !code[..at].ends_with('<') => return 0,
            '{' => braces += 1,
            '}' if braces == 1 => return at + 1,
            '}' if braces == 0 => return 0,
            '}' => braces -= 1,
            _ => {}
        }
    }
    0
}

/// Where an impure module is named: as part of a path, or in a `use`.
fn impurities(code: &str) -> Vec<usize> {
    let in_use = |at: usize| {
        let statement = code[..at].rfind(';').map_or(0, |end| end + 1);
        words(&code[statement..at]).any(|(_, word)| word == "use")
    };
    let named = |(at, word): &(usize, &str)| {
        // Of what is in core, nothing can do any.
        IMPURE.contains(word)
            && !code[..*at].ends_with("core::")
            && (code[..*at].ends_with("::") || code[at + word.len()..].starts_with("::") || in_use(*at))
    };
    words(code).filter(named).map(|(at, _)| at).collect()
}

/// Where the standard library's files are named: `std::fs`, also in a group. Its names for
/// metadata, `std::os::unix::fs`, touch nothing.
fn files_touched(code: &str) -> Vec<usize> {
    let is_std = |(at, word): &(usize, &str)| {
        let statement = code[..*at].rfind([';', '{', '}']).map_or(0, |end| end + 1);
        let grouped = code[..*at].rfind("std::{").is_some_and(|group| !code[group..*at].contains(';'));
        *word == "fs" && (code[statement..*at].trim_end().ends_with("std::") || grouped)
    };
    words(code).filter(is_std).map(|(at, _)| at).collect()
}

fn prints(code: &str) -> Vec<usize> {
    let printing = ["print", "println", "eprint", "eprintln", "dbg"];
    let called =
        |(at, word): &(usize, &str)| printing.contains(word) && code[at + word.len()..].starts_with('!');
    words(code).filter(called).map(|(at, _)| at).collect()
}

/// Documents, and paths below the tree's own directories, that `text` names and `files` lacks.
fn strangers(text: &str, from: &str, files: &[String]) -> Vec<String> {
    let apart = |c: char| !(c.is_alphanumeric() || "-_./~*".contains(c));
    let mut names: Vec<_> = text.split(apart).map(|name| name.trim_end_matches(['.', '/'])).collect();
    names.sort_unstable();
    names.dedup();
    let ours = |name: &str| ["src/", "tests/", ".ci/"].iter().any(|start| name.starts_with(start));
    let document = |name: &str| name.ends_with(".md") && name.len() > 3 && !name.contains('*');
    let beside = |name: &str| {
        let ups = name.matches("../").count();
        let folder: Vec<_> = from.rsplit('/').skip(1 + ups).collect();
        let folders = folder.iter().rev().map(|folder| format!("{folder}/"));
        folders.collect::<String>() + name.trim_start_matches("../")
    };
    let known = |name: &str| {
        let exists =
            |path: &str| files.iter().any(|file| file == path || file.starts_with(&format!("{path}/")));
        exists(name) || exists(&beside(name)) || exists(&format!("tests/{name}")) && document(name)
    };
    let stranger = |name: &&str| (document(name) || ours(name) && !name.contains(['*', '~'])) && !known(name);
    // A link begins with two slashes.
    names.into_iter().filter(stranger).filter(|name| !name.starts_with("//")).map(str::to_owned).collect()
}

/// The `module::function` names in backquotes.
fn named_functions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let plain = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    text.split('`')
        .filter_map(|quoted| quoted.split_once("::"))
        .filter(move |(module, name)| plain(module) && plain(name) && name.contains('_'))
}

/// Whether the file is that module and has that function, or has the case of `flexvol check` called
/// so.
fn holds(path: &str, text: &str, module: &str, name: &str) -> bool {
    let case = path.starts_with("src/kit/check/cases/") && text.contains(&format!("\"{module}::{name}\""));
    case || stem(path) == module && text.contains(&format!("fn {name}("))
}

// --- every rule can fail ------------------------------------------------------------------------

fn source(code: &str) -> Source {
    Source { path: "x.rs".into(), code: blank(code) }
}

#[test]
fn reads_rust() {
    let code = blank("a \"}{\\\"\" b '{' c '\\'' /* } */ d // }\nr#\"}\"#; e<'f>() br\"}\" 'g: loop {}");
    assert!(!code.contains(['"', '}']) || code.matches('}').count() == 1, "{code}");
    assert_eq!(words(&code).map(|(_, word)| word).collect::<String>(), "abcdefbgloop");
}

#[test]
fn measures_functions() {
    let file = source(
        "trait T { fn none(&self) -> [u8; 2]; }\nfn one() {}\nfn three(f: fn(u8) -> u8) {\n  if x {}\n}\n",
    );
    let found: Vec<_> = functions(&file).into_iter().map(|(name, lines)| format!("{name} {lines}")).collect();
    assert_eq!(found, ["x.rs::one 1", "x.rs::three 3"]);
    let long = source(&format!("fn long() {{{}}}", "\n".repeat(FUNCTION_LINES)));
    assert!(functions(&long)[0].1 > FUNCTION_LINES);
}

#[test]
fn finds_what_is_forbidden() {
    let bad = [
        "use std::fs;",
        "use std::{io, fs as f};",
        "std::process::id()",
        "let x = nix::f();",
        "flexvol_linux::f()",
    ];
    for code in bad {
        assert_eq!(impurities(code).len(), 1, "{code}");
    }
    assert!(impurities("let fs = process(env); self.flexvol_linux = fs;").is_empty());
    assert_eq!(prints("println!(); out.print(); print!()").len(), 2);
    for code in ["use std::fs;", "use std::{io, fs::File};", "std::fs::read(path)"] {
        assert_eq!(files_touched(code).len(), 1, "{code}");
    }
    assert!(files_touched("use std::os::unix::fs::MetadataExt; use flexvol_linux::fs::files;").is_empty());
    assert_eq!(before_unit_tests("a\n#[cfg(test)]\nmod tests {}"), "a\n");
}

#[test]
fn finds_named_functions() {
    let found: Vec<_> = named_functions("`plan::is_true`, `std::fs`, plan::other, `Plan::new_one`").collect();
    assert_eq!(found, [("plan", "is_true")]);
    assert!(holds("src/plan.rs", "fn is_true() {}", "plan", "is_true"));
    assert!(!holds("src/plan.rs", "fn is_true() {}", "plan", "is_false"));
    assert!(holds("src/kit/check/cases/mount/again.rs", "id: \"mount::at_once\"", "mount", "at_once"));
}

#[test]
fn finds_strangers() {
    let files = ["README.md", "src/plan.rs", "tests/data/x.jsonl"].map(str::to_owned);
    assert!(strangers("see README.md, `src/plan.rs` (tests/data/).", "a.rs", &files).is_empty());
    assert_eq!(strangers("see plans.md and src/plans.rs", "a.rs", &files), ["plans.md", "src/plans.rs"]);
}

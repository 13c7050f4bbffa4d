//! docs/drivers/ and docs/install.md say what the tables of options and of platforms say, and
//! DRIVERS.md what shows that each driver works. `UPDATE=1` rewrites them.

use flexvol::diagnostics::known_errors;
use flexvol::driver::Driver;
use flexvol::drivers;
use flexvol::kubelet::platform::{self, Platform};
use flexvol::protocol::Verb;
use flexvol::schema::{OptionSpec, SecretSpec};
use flexvol::settings::Settings;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// What follows it is written by this test.
const MARK: &str = "<!-- From here on `UPDATE=1 cargo test --test pure drivers::` writes. -->\n";

/// Words of pages that look like options and are none.
const OTHER_WORDS: [&str; 16] = [
    "attach",
    "auto",
    "ceph",
    "cifs",
    "exec",
    "file",
    "locate",
    "loop",
    "nbd",
    "nfs",
    "overlay",
    "rbd",
    "requiresFSResize",
    "strict",
    "type",
    "vgs",
];

/// What pages quote of programs that are not ours, and of servers.
const FOREIGN: [&str; 9] = [
    "403",
    "AuthenticationFailed",
    "can't connect to mfsmaster",
    "failed to fetch volume file",
    "Host key verification failed",
    "permission denied (publickey",
    "server certificate",
    "SignatureDoesNotMatch",
    "the server does not support WebDAV",
];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// What people wrote of a document, before the mark.
fn written(name: &str) -> String {
    let kept = fs::read_to_string(file(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    kept.split_once(MARK).unwrap_or_else(|| panic!("{name}: the mark")).0.to_owned()
}

/// Holds a document to what is generated.
fn hold(name: &str, generated: &str) {
    let text = format!("{}{MARK}{generated}", written(name));
    if std::env::var_os("UPDATE").is_some() {
        fs::write(file(name), &text).unwrap();
    }
    assert_eq!(fs::read_to_string(file(name)).unwrap(), text, "{name}: UPDATE=1 accepts");
}

/// As a cell of a table: a bar would end it.
fn cell(text: &str) -> String {
    text.trim().replace('|', "\\|")
}

fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | ")).replace("|  |", "| |").replace("|  |", "| |")
}

fn code(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" ")
}

fn option(spec: &OptionSpec) -> String {
    let doc: Vec<_> = spec.doc.iter().map(|line| line.trim()).collect();
    let name = if spec.required() { format!("**`{}`**", spec.name) } else { format!("`{}`", spec.name) };
    let default = spec.default.map(|default| format!("`{default}`")).unwrap_or_default();
    row(&[name, code(spec.aliases), cell(spec.kind), default, cell(&doc.join(" "))])
}

fn secret(spec: &SecretSpec) -> String {
    let (first, others) = spec.keys.split_first().expect("a key");
    row(&[code(&[first]), code(others), cell(spec.doc)])
}

/// What a page says after what people wrote.
fn page(driver: &dyn Driver) -> String {
    let said = driver.capabilities(&Settings::default());
    let capabilities = [
        (said.attach, "attach"),
        (said.fs_group, "fsGroup"),
        (said.requires_fs_resize, "requiresFSResize"),
        (said.selinux_relabel, "selinuxRelabel"),
        (said.supports_metrics, "supportsMetrics"),
    ];
    let capabilities: Vec<_> =
        capabilities.into_iter().filter_map(|(said, name)| said.then_some(name)).collect();
    let capabilities = if capabilities.is_empty() { "none".to_owned() } else { capabilities.join(", ") };
    let mut text = format!("\nCapabilities: {capabilities}.\n");
    if !said.attach && driver.verbs(&Settings::default()).contains(Verb::Attach) {
        let settings = "docs/settings.md".trim_start_matches("docs/");
        let _ = writeln!(
            text,
            "With `attach: true` in the side file, `attach` is one of them ([when to set it](../{settings}#attach))."
        );
    }
    if !driver.options().is_empty() {
        text += "\n## Options\n\nRequired ones are bold.\n\n| option | also | value | default | meaning |\n|---|---|---|---|---|\n";
        text.extend(driver.options().iter().map(option));
    }
    if !driver.secrets().is_empty() {
        text += "\n## The Secret\n\n| key | also | meaning |\n|---|---|---|\n";
        text.extend(driver.secrets().iter().map(secret));
    }
    let example = format!("examples/{}.yaml", driver.name());
    let manifest = fs::read_to_string(file(&example)).unwrap();
    let (volume, _) = manifest.split_once("---\n").unwrap();
    let _ = write!(
        text,
        "\n## Example\n\n[{example}](../../{example}) has its claim, a pod and its Secret, too.\n\n```yaml\n{volume}```\n"
    );
    text
}

fn of_platform(platform: &Platform) -> String {
    let directory = platform.plugin_dir.map_or("none".to_owned(), |directory| code(&[directory]));
    let obstacle = platform.obstacle.as_ref().map_or(String::new(), |obstacle| cell(obstacle.fix));
    row(&[cell(platform.title), code(&[platform.name]), directory, obstacle, cell(platform.set)])
}

#[test]
fn a_page_says_what_its_driver_does() {
    for driver in drivers::ALL {
        hold(&format!("docs/drivers/{}.md", driver.name()), &page(*driver));
    }
    let pages = fs::read_dir(file("docs/drivers")).unwrap().count();
    assert_eq!(pages, drivers::ALL.len(), "a page in docs/drivers is of no driver");
}

/// What people write of a driver names no option that it has not.
#[test]
fn a_page_names_what_there_is() {
    for driver in drivers::ALL {
        let options = driver.options().iter().flat_map(|spec| spec.aliases.iter().chain([&spec.name]));
        let secrets = driver.secrets().iter().flat_map(|spec| spec.keys.iter());
        let known: BTreeSet<_> = options.chain(secrets).copied().chain(OTHER_WORDS).collect();
        let text = written(&format!("docs/drivers/{}.md", driver.name()));
        // A case of the kit is no option.
        let words = text.split('`').skip(1).step_by(2).filter(|word| !word.contains("::"));
        let words = words.map(|word| word.split(':').next().unwrap());
        for word in words.filter(|word| word.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_')) {
            assert!(known.contains(word), "docs/drivers/{}.md: it has no `{word}`", driver.name());
        }
    }
}

/// Whoever searches the pages for what a message says finds its row.
#[test]
fn a_page_quotes_what_is_really_said() {
    let mut said = String::new();
    read_code(&file("src"), &mut said);
    for driver in drivers::ALL {
        let page = format!("docs/drivers/{}.md", driver.name());
        let text = written(&page);
        let (_, table) =
            text.split_once("| the message says |").unwrap_or_else(|| panic!("{page}: no table"));
        let cells = table.lines().skip(2).filter_map(|row| row.split('|').nth(1).map(str::trim));
        for cell in cells.filter(|cell| *cell != "anything else") {
            let parts = cell.split('…').map(|part| part.trim_matches([' ', ',', ':']));
            for part in parts.filter(|part| part.bytes().any(|byte| byte.is_ascii_alphanumeric())) {
                let known = FOREIGN.contains(&part) || said.contains(&part.to_lowercase());
                assert!(known, "{page}: nothing says {part:?}");
            }
        }
    }
}

/// All code below a directory as it would say it, in small letters, without comments and unit
/// tests.
fn read_code(directory: &Path, all: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_code(&path, all);
        } else if !path.ends_with("tests.rs") {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("\nmod tests {").next().unwrap();
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            lines.for_each(|line| *all += &line.replace("\\\"", "\"").to_lowercase());
        }
    }
}

#[test]
fn every_platform_is_listed() {
    let mut text = String::from(
        "\n| platform | `--platform` | plugin directory | first | another directory |\n|---|---|---|---|---|\n",
    );
    text.extend(platform::all().iter().map(of_platform));
    hold("docs/install.md", &text);
}

#[test]
fn every_lesson_is_listed() {
    let mut text = String::from("\n| trouble | it comes because | fix | next |\n|---|---|---|---|\n");
    for known_error in known_errors::all() {
        text += &row(&[
            code(&[known_error.id]),
            cell(known_error.cause),
            cell(known_error.fix),
            code(&[known_error.next]),
        ]);
    }
    hold("docs/troubleshooting.md", &text);
}

/// What was tried is written down, every driver is there, and nothing of it has failed.
#[test]
fn every_driver_is_trusted_or_said_where() {
    let page = fs::read_to_string(file("docs/trust.md")).unwrap();
    let titles = ["| volume |", "| reader |"];
    let rows = page.lines().filter(|line| line.starts_with("| "));
    for row in rows.filter(|line| !titles.iter().any(|title| line.starts_with(title))) {
        let row: Vec<_> = row.split('|').map(str::trim).collect();
        // A fuzzer has neither points nor a seed.
        let (tried, failures) = if row.len() == 6 { (row[2], row[4]) } else { (row[4], row[5]) };
        assert!(tried != "0" && failures == "0", "nothing tried, or a failure: {row:?}");
    }
    let elsewhere = page.split_once("\n* Not here: ").unwrap().1.split("\n* ").next().unwrap();
    for driver in drivers::ALL.iter().map(|driver| driver.name()).chain(["install"]) {
        for kind in ["## Crash points", "## Fault points", "## Races", "## Endurance"] {
            let table = page.split_once(kind).unwrap().1.split("\n## ").next().unwrap();
            let tried =
                [format!("\n| {driver} |"), format!("\n| {driver}/")].iter().any(|row| table.contains(row));
            assert!(tried || elsewhere.contains(&format!("`{driver}`")), "{driver}: {kind}");
        }
    }
}

/// A driver without a row has no proof.
#[test]
fn every_driver_has_its_row_of_proofs() {
    let kept = fs::read_to_string(file("DRIVERS.md")).unwrap();
    for driver in drivers::ALL {
        let start = format!("| `{}` |", driver.name());
        let row = kept.lines().find(|line| line.starts_with(&start));
        let row = row.unwrap_or_else(|| panic!("no row for {}", driver.name()));
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert!(cells.len() == 5 && cells.iter().all(|cell| cell.len() > 3), "{row}");
    }
}

//! Scan of a plugin directory, as kubelet does at its start: shows which driver directories are
//! loaded, which are not, and why.

mod fix;

use crate::caller::{self, Caller};
use crate::{Exchange, Terms};
use anyhow::{Context as _, Result};
use flexvol_linux::fs::directory::Kind;
use flexvol_linux::fs::exec_dir;
use flexvol_linux::fs::listing::{self, is_hidden};
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::{Capabilities, DriverName};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Result of one scan of a plugin directory.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The plugin directory, as an absolute path.
    pub plugin_dir: PathBuf,
    /// All its entries, sorted by the bytes of their names, which is kubelet's order.
    pub found: Vec<Found>,
}

/// One name in the plugin directory, and kubelet's decision about it.
#[derive(Clone, Debug)]
pub struct Found {
    /// Name of the entry; a driver directory is usually called `vendor~driver`.
    pub directory: OsString,
    /// Decision of kubelet.
    pub finding: Finding,
}

/// Decisions of kubelet about one name in the plugin directory.
#[derive(Clone, Debug)]
pub enum Finding {
    /// Driver that kubelet will call.
    Loaded(Loaded),
    /// Driver that kubelet tried to load and will not call.
    Failed(Failed),
    /// Entry that kubelet does not inspect at its start.
    Ignored(Ignored),
}

/// Driver whose `init` succeeded.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Required value of a volume's `driver`.
    pub name: DriverName,
    /// File that kubelet executes.
    pub executable: PathBuf,
    /// Capabilities from its answer, with kubelet's defaults for the missing ones.
    pub capabilities: Capabilities,
    /// Duration of `init`. Meanwhile kubelet cannot look up a volume plugin of any kind.
    pub took: Duration,
}

/// Driver that is not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Stage at which it failed.
    pub stage: Stage,
    /// Text that kubelet writes to its log, in kubelet's words.
    pub logged: String,
    /// Problem and fix, where they are known.
    pub fix: Option<String>,
}

/// Stages at which the loading of a driver fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// `init` failed. Kubelet tries again at every look-up while it runs.
    Init,
    /// `init` succeeded, but kubelet rejects the name. It does not try again.
    Name,
}

/// Reasons why kubelet skips a name at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// The name begins with a dot.
    DotName,
    /// The entry is not a directory.
    File,
    /// The entry is a symlink, to a directory or not.
    Symlink,
}

impl fmt::Display for Ignored {
    /// Completes the sentence `ignored:`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DotName => "its name begins with a dot",
            Self::File => "not a directory",
            Self::Symlink => "a symlink, which kubelet skips when it starts: make it a real directory",
        })
    }
}

/// Returns the settings for calling drivers here: kubelet's, but with a deadline.
pub fn terms() -> Terms {
    Terms { patience: Duration::from_secs(10), heeds_signals: true, ..Terms::default() }
}

/// Scans a plugin directory as kubelet does at its start. Runs each driver's `init`, one after the
/// other.
///
/// An empty directory is valid. A missing directory, which kubelet would create, is an error.
pub fn scan(plugin_dir: &Path, terms: &Terms) -> Result<Scan> {
    let plugin_dir = std::path::absolute(plugin_dir).context("find the working directory")?;
    let entries = listing::list(&plugin_dir).map_err(|error| unreadable(&plugin_dir, error))?;
    let found = entries.into_iter().map(|entry| {
        let finding = judge(&plugin_dir, &entry.name, entry.kind, terms);
        Found { directory: entry.name, finding }
    });
    Ok(Scan { found: found.collect(), plugin_dir })
}

/// Inspects one name in a plugin directory, an absolute path, as [`scan`] does. `None` if it does
/// not exist.
pub fn look(plugin_dir: &Path, name: &OsStr, terms: &Terms) -> Option<Finding> {
    // An entry that cannot be inspected is tried: the attempt shows the reason.
    let kind = listing::kind_of(&plugin_dir.join(name)).unwrap_or(Some(Kind::Directory))?;
    Some(judge(plugin_dir, name, kind, terms))
}

/// Runs the `init` of several driver directories at the same time.
pub fn init_each(plugin_dir: &Path, names: &[OsString], terms: &Terms) -> Vec<Result<Loaded, Failed>> {
    let executables: Vec<_> = names.iter().map(|name| executable(plugin_dir, name)).collect();
    let exchanges = caller::init_each(&executables, terms);
    let all = names.iter().zip(executables).zip(&exchanges);
    all.map(|((name, executable), exchange)| loaded(name, executable, exchange)).collect()
}

/// Runs `init` in a driver directory of any name and type: kubelet does so for each name in a
/// change notification. `plugin_dir` is an absolute path.
pub fn init(plugin_dir: &Path, name: &OsStr, terms: &Terms) -> Result<Loaded, Failed> {
    let executable = executable(plugin_dir, name);
    let mut caller = Caller::new(executable.clone());
    caller.terms = terms.clone();
    loaded(name, executable, &caller.init().0)
}

fn loaded(name: &OsStr, executable: PathBuf, exchange: &Exchange) -> Result<Loaded, Failed> {
    let capabilities =
        exchange.capabilities().map_err(|failure| refusal(name, &executable, exchange, &failure))?;
    let name = DriverName::from_directory(name).map_err(|failure| misnomer(name, &failure))?;
    Ok(Loaded { name, executable, capabilities, took: exchange.took() })
}

/// Returns the file that kubelet executes for a directory of that name: the file is named like the
/// part after the last `~`.
pub fn executable(plugin_dir: &Path, name: &OsStr) -> PathBuf {
    plugin_dir.join(name).join(DriverName::executable_in(name))
}

/// Explains why the plugin directory cannot be read.
pub fn unreadable(plugin_dir: &Path, error: anyhow::Error) -> anyhow::Error {
    let (path, in_the_way) = (plugin_dir.display(), exec_dir::in_the_way(plugin_dir));
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    let (code, text) = match kind {
        Some(io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) if in_the_way.is_some() => {
            let what = in_the_way.map_or_else(String::new, |in_the_way| in_the_way.to_string());
            (Code::Conflict, format!("kubelet finds no driver: {what}, or name the one kubelet reads"))
        }
        Some(io::ErrorKind::NotFound) => {
            let text = format!(
                "plugin directory {path} does not exist: make it (mkdir -p {path}), or name the one kubelet reads"
            );
            (Code::NotFound, text)
        }
        Some(io::ErrorKind::PermissionDenied) => {
            (Code::Denied, format!("plugin directory {path} may not be read: run this as root"))
        }
        _ => return error,
    };
    Failure::new(code, text).into()
}

/// Returns the reason why kubelet skips a name at its start without executing anything; `None` if
/// it does not skip it.
pub fn ignored(name: &OsStr, kind: Kind) -> Option<Ignored> {
    match kind {
        _ if is_hidden(name) => Some(Ignored::DotName),
        Kind::Link => Some(Ignored::Symlink),
        Kind::File | Kind::Other => Some(Ignored::File),
        Kind::Directory => None,
    }
}

fn judge(plugin_dir: &Path, name: &OsStr, kind: Kind, terms: &Terms) -> Finding {
    match ignored(name, kind) {
        Some(why) => Finding::Ignored(why),
        None => init(plugin_dir, name, terms).map_or_else(Finding::Failed, Finding::Loaded),
    }
}

fn refusal(name: &OsStr, executable: &Path, exchange: &Exchange, failure: &Failure) -> Failed {
    let logged = format!(
        "error creating Flexvolume plugin from directory {}, skipping. Error: {}",
        name.display(),
        failure.message()
    );
    Failed { stage: Stage::Init, logged, fix: fix::of(executable, exchange) }
}

fn misnomer(directory: &OsStr, failure: &Failure) -> Failed {
    let name = directory.to_string_lossy().replace('~', "/");
    let logged = format!(
        "Error initializing dynamically probed plugin {name}; error: volume plugin has invalid name: {name:?}"
    );
    Failed { stage: Stage::Name, logged, fix: Some(failure.message()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::{wording, wording_of};
    use flexvol_linux::errno::to_failure;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use tempfile::TempDir;

    const GOOD: &str = r#"echo '{"status":"Success","capabilities":{"attach":false}}'"#;

    /// Creates a plugin directory with drivers made of scripts. `sh` reads them, so none can be
    /// busy.
    fn plugin_dir(drivers: &[(&str, &str)]) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, body) in drivers {
            let file = executable(dir.path(), OsStr::new(name));
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            write(&file, &format!("#!/bin/sh\n{body}\n"));
        }
        dir
    }

    /// Writes a file through another process: a file that this process writes could be busy when it
    /// is executed.
    fn write(file: &Path, text: &str) {
        let deadline = flexvol_linux::proc::deadline::Deadline::after(crate::pace::deadline(20));
        let script = r#"printf %s "$2" >"$1" && chmod 755 "$1""#;
        let helper = flexvol_linux::proc::helper::Invocation::of("sh");
        let asked = helper.args(["-c", script, "sh", file.to_str().unwrap(), text]);
        let run = flexvol_linux::proc::helper::Tools::of_host(&deadline).run(asked).unwrap();
        assert!(run.success(), "{}", run.output);
    }

    fn findings(dir: &Path) -> Vec<(String, String)> {
        let scan = scan(dir, &terms()).unwrap();
        let text = |found: Found| match found.finding {
            Finding::Loaded(loaded) => format!("loaded {} {}", loaded.name, loaded.capabilities.attach),
            Finding::Failed(failed) => format!("{} | {}", failed.logged, failed.fix.unwrap_or_default()),
            Finding::Ignored(why) => format!("ignored {why}"),
        };
        scan.found
            .into_iter()
            .map(|each| (each.directory.to_string_lossy().into_owned(), text(each)))
            .collect()
    }

    fn one(name: &str, body: &str) -> String {
        findings(plugin_dir(&[(name, body)]).path()).remove(0).1
    }

    #[test]
    fn real_directories_without_a_dot_are_drivers() {
        let dir = plugin_dir(&[("b~two", GOOD), ("one", GOOD), (".a~x", GOOD), ("B~three", GOOD)]);
        symlink(dir.path().join("one"), dir.path().join("c~one")).unwrap();
        fs::File::create(dir.path().join("README")).unwrap();
        let found = findings(dir.path());
        let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [".a~x", "B~three", "README", "b~two", "c~one", "one"], "in the order of bytes");
        assert_eq!(found[0].1, ["ignored ", wording("begins-with-dot")].concat());
        assert!(found[1].1.contains("invalid name: \"B/three\""), "{found:?}");
        assert_eq!(found[2].1, "ignored not a directory");
        assert_eq!(found[3].1, "loaded b/two false");
        assert!(found[4].1.starts_with("ignored a symlink"));
        assert_eq!(found[5].1, "loaded one false");
    }

    #[test]
    fn a_symlinked_executable_is_fine() {
        let dir = plugin_dir(&[("v~d", "exit 1")]);
        write(&dir.path().join("elsewhere"), &format!("#!/bin/sh\n{GOOD}"));
        let file = executable(dir.path(), OsStr::new("v~d"));
        fs::remove_file(&file).unwrap();
        symlink("../elsewhere", &file).unwrap();
        assert_eq!(findings(dir.path())[1].1, "loaded v/d false");
    }

    #[test]
    fn names_kubernetes_refuses_are_refused_after_init() {
        let long = "v~".to_owned() + &"a".repeat(64);
        for name in ["Foo~x", "a~b~c", "a_b~x", "v~x-", &long] {
            let dir = plugin_dir(&[(name, &format!("echo x >>\"${{0%/*}}/called\"; {GOOD}"))]);
            let said = findings(dir.path()).remove(0).1;
            assert!(said.starts_with("Error initializing dynamically probed plugin"), "{said}");
            assert!(
                said.contains("volume plugin has invalid name") && said.contains(" | driver name"),
                "{said}"
            );
            assert_eq!(fs::read_to_string(dir.path().join(name).join("called")).unwrap(), "x\n");
        }
        let fits = "v~".to_owned() + &"a".repeat(63);
        assert!(one(&fits, GOOD).starts_with("loaded"));
    }

    #[test]
    fn failures_are_in_kubelet_s_words_and_name_the_fix() {
        let begin = "error creating Flexvolume plugin from directory v~d, skipping. Error: ";
        for (body, words, fix) in [
            (
                "echo '{\"status\":\"Failure\",\"message\":\"m\"}'",
                "init command failed, status: Failure, reason: m",
                "",
            ),
            ("", "unexpected end of JSON input", "printed nothing"),
            ("echo hello", "invalid character 'h' looking for beginning of value", "\"hello\""),
            ("jqq x", "invalid character", "it calls jqq, "),
            (
                "echo '{\"status\":\"Success\",\"capabilities\":{\"attach\":\"false\"}}'",
                "json: cannot unmarshal string",
                "without quotes",
            ),
            (
                "echo '{\"status\":\"success\"}'",
                "init command failed, status: success",
                "say exactly \"Success\"",
            ),
            ("echo '{\"status\":\"Not supported\"}'", "Not supported", "answer init with"),
            ("echo '{\"status\":\"Success\"}'; exit 3", "exit status 3", "exit with 0"),
            ("echo '{\"status\":\"Success\",\"capabilities\":null}'", "capabilities are null", ""),
        ] {
            let said = one("v~d", body);
            let (logged, fixed) = said.split_once(" | ").unwrap();
            assert!(logged.starts_with(&format!("{begin}{words}")), "{body}: {said}");
            assert!(fixed.contains(fix) && fixed.is_empty() == fix.is_empty(), "{body}: {said}");
        }
    }

    #[test]
    fn what_cannot_be_executed_says_why() {
        type Spoil = fn(&Path);
        let cases: [(Spoil, &str); 8] = [
            (|file| fs::remove_file(file).unwrap(), wording_of("no-executable-in-directory", ["d"])),
            (|file| fs::set_permissions(file, Permissions::from_mode(0o644)).unwrap(), "chmod 0755"),
            (|file| write(file, "#!/no/such/shell\n"), "interpreter"),
            (|file| write(file, "#!/bin/sh\r\nexit\r\n"), wording("carriage-return")),
            (|file| write(file, "\u{1}garbage"), wording("not-for-this-machine")),
            (
                |file| {
                    fs::remove_file(file).unwrap();
                    symlink("nowhere", file).unwrap();
                },
                "leads nowhere",
            ),
            (
                |file| {
                    fs::remove_file(file).unwrap();
                    fs::create_dir(file).unwrap();
                },
                "is a directory",
            ),
            (
                |file| {
                    fs::remove_file(file).unwrap();
                    nix::unistd::mkfifo(file, nix::sys::stat::Mode::from_bits_truncate(0o755)).unwrap();
                },
                wording("driver-no-regular-file"),
            ),
        ];
        for (spoil, fix) in cases {
            let dir = plugin_dir(&[("v~d", GOOD)]);
            spoil(&executable(dir.path(), OsStr::new("v~d")));
            let said = findings(dir.path()).remove(0).1;
            assert!(said.contains("skipping. Error: unexpected end of JSON input | "), "{said}");
            assert!(said.contains(fix), "{fix}: {said}");
        }
    }

    #[test]
    fn a_hanging_driver_does_not_hold_up_the_others() {
        let dir = plugin_dir(&[("a~hangs", "exec sleep 60"), ("b~fine", GOOD)]);
        let terms = Terms { patience: crate::pace::deadline(1), ..terms() };
        let scan = scan(dir.path(), &terms).unwrap();
        let Finding::Failed(failed) = &scan.found[0].finding else { panic!("{scan:?}") };
        assert!(failed.logged.contains(wording("kubelet-waits-for-ever")), "{failed:?}");
        assert!(matches!(scan.found[1].finding, Finding::Loaded(_)));
    }

    #[test]
    fn without_a_plugin_directory_there_is_one_clear_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(scan(dir.path(), &terms()).unwrap().found.is_empty());
        let file = dir.path().join("file");
        fs::File::create(&file).unwrap();
        for (path, code, fix) in [
            (dir.path().join("none"), Code::NotFound, "mkdir -p"),
            (file.clone(), Code::Conflict, "move it away"),
            (file.join("below"), Code::Conflict, "move it away"),
        ] {
            let failure = to_failure(scan(&path, &terms()).unwrap_err());
            assert_eq!(failure.code(), code, "{failure}");
            assert!(failure.message().contains(fix), "{failure}");
        }
    }

    #[test]
    fn one_name_is_looked_at_as_the_scan_does() {
        let dir = plugin_dir(&[("v~d", GOOD)]);
        let look = |name: &str| look(dir.path(), OsStr::new(name), &terms());
        assert!(matches!(look("v~d"), Some(Finding::Loaded(_))));
        assert!(look("v~e").is_none());
        symlink("v~d", dir.path().join("v~l")).unwrap();
        assert!(matches!(look("v~l"), Some(Finding::Ignored(Ignored::Symlink))));
        // A change notification makes kubelet run it anyway.
        let linked = init(dir.path(), OsStr::new("v~l"), &terms());
        assert!(linked.is_err_and(|failed| failed.fix.is_some_and(|fix| fix.contains("no file l in it"))));
    }
}

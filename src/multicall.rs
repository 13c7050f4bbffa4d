//! Choice of the program by `argv[0]`: one executable has many names.
//!
//! kubelet runs `<plugin dir>/<vendor>~<driver>/<driver>`. The parent directory's name is therefore
//! the driver's full name, and the only difference between `fstab~cifs/cifs` and
//! `juliohm~cifs/cifs`. These rules apply in order:
//!
//! 1. The side file in that directory names the driver, and the profile whose options it
//!    understands.
//! 2. Otherwise the directory names the driver, if it has the name of a driver whose options are
//!    known ([`flexvol_model::profiles`]).
//! 3. Otherwise the executable's own name, matched exactly, names the driver.
//! 4. In a directory named `vendor~driver` the program is a driver in any case: an unknown driver
//!    answers with a Failure that says what to do.
//! 5. In all other cases it is the admin's command line.
//!
//! Only `argv[0]` is used: it is the path that kubelet executed, an empty chroot has no /proc, and
//! a symlinked executable keeps the directory it was called in.

use flexvol_admin::cli;
use flexvol_linux::fs::files;
use flexvol_model::drivers;
use flexvol_model::installed::Installed;
use flexvol_model::settings::{SIDE_FILE, SIZE_LIMIT, Settings};
use flexvol_model::side_file;
use flexvol_node::hints::to_failure;
use flexvol_node::skeleton;
use flexvol_protocol::failure::Result;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

/// Name of the program itself: `/opt/flexvol/flexvol` is the command line, not a driver without a
/// vendor.
const OWN_NAME: &str = "flexvol";

/// Role of this process, according to `argv[0]`.
#[derive(Debug, PartialEq, Eq)]
enum Face {
    /// A driver, or a process that must answer like one.
    Driver { directory: Option<String>, name: String },
    /// The admin's command line.
    Admin,
}

/// Runs the driver or the command line that `argv[0]` names.
pub fn main(mut arguments: Vec<OsString>) -> ExitCode {
    let program = arguments.first().cloned().unwrap_or_default();
    match face(&program) {
        Face::Admin => cli::main(&arguments),
        Face::Driver { directory, name } => {
            let mut arguments = arguments.split_off(arguments.len().min(1));
            skeleton::main(|| installed(directory, &name, side_file(Path::new(&program))), &mut arguments)
        }
    }
}

/// Decides by the path alone: the choice between driver and command line must not depend on any
/// file.
fn face(program: &OsStr) -> Face {
    let path = Path::new(program);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let parent = path.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let directory = parent.filter(|parent| parent.contains('~') || (*parent == name && name != OWN_NAME));
    match directory {
        Some(directory) => Face::Driver { directory: Some(directory), name },
        None if drivers::find(&name).is_some() => Face::Driver { directory: None, name },
        None => Face::Admin,
    }
}

/// Reads the side file, if there is one. A program found through `PATH` has none: its working
/// directory may belong to any user, and a side file there may name commands.
fn side_file(program: &Path) -> Result<Option<String>> {
    match program.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => files::read_small(&parent.join(SIDE_FILE), SIZE_LIMIT).map_err(to_failure),
        None => Ok(None),
    }
}

/// Returns the driver, its directory and its settings.
fn installed(
    directory: Option<String>,
    executable: &str,
    side_file: Result<Option<String>>,
) -> Result<Installed> {
    let settings = side_file?.map_or_else(|| Ok(Settings::default()), |text| side_file::parse(&text))?;
    Installed::identify(directory, executable, settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(directory: Option<&str>, name: &str) -> Face {
        Face::Driver { directory: directory.map(Into::into), name: name.into() }
    }

    #[test]
    fn the_directory_makes_a_driver() {
        assert_eq!(face("/p/exec/example~tmpfs/tmpfs".as_ref()), driver(Some("example~tmpfs"), "tmpfs"));
        assert_eq!(face("fstab~cifs/cifs".as_ref()), driver(Some("fstab~cifs"), "cifs"));
        assert_eq!(face("/p/flexvol~x/flexvol".as_ref()), driver(Some("flexvol~x"), "flexvol"));
        assert_eq!(face("/p/tmpfs/tmpfs".as_ref()), driver(Some("tmpfs"), "tmpfs"));
    }

    #[test]
    fn so_does_an_exact_name_and_nothing_less() {
        assert_eq!(face("./tmpfs".as_ref()), driver(None, "tmpfs"));
        for admin in
            ["flexvol", "/usr/bin/flexvol", "/opt/flexvol/flexvol", "xtmpfs", "tmpfs2", "TMPFS", "", "/"]
        {
            assert_eq!(face(admin.as_ref()), Face::Admin, "{admin}");
        }
    }

    #[test]
    fn odd_paths_are_no_panic() {
        for admin in ["/..", "..", "/p/a~b/", "/p/a~b/..", "a~b", "/", "~/"] {
            let _ = face(admin.as_ref());
        }
        assert_eq!(face("/p/a~b//x/".as_ref()), driver(Some("a~b"), "x"));
        assert_eq!(face("/p/~/x".as_ref()), driver(Some("~"), "x"));
        assert_eq!(face("a~b".as_ref()), Face::Admin);
    }

    #[test]
    fn the_side_file_lies_beside_the_executable() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(side_file(&home.path().join("tmpfs")), Ok(None));
        std::fs::create_dir(home.path().join(SIDE_FILE)).unwrap();
        assert!(side_file(&home.path().join("tmpfs")).is_err());
        assert_eq!(side_file(Path::new("tmpfs")), Ok(None));
    }

    #[test]
    fn the_side_file_names_the_driver() {
        let side = |text: &str| installed(None, "disk", Ok(Some(text.to_owned())));
        assert_eq!(side(r#"{"driver":"image"}"#).unwrap().driver.name(), "image");
        let unknown = side("{}").err().unwrap().message();
        assert!(unknown.contains("no driver \"disk\"") && unknown.contains(SIDE_FILE), "{unknown}");
        assert!(side(r#"{"driver":"exec","exec":{}}"#).is_ok());
        let foreign = installed(None, "tmpfs", Ok(Some(r#"{"exec":{}}"#.to_owned())));
        assert!(foreign.err().unwrap().message().contains("and this is tmpfs"));
        assert!(side("{").err().unwrap().message().contains(SIDE_FILE));
    }
}

//! A side file as a whole: its text is parsed, and its parts must fit together.

use crate::agent;
use crate::drivers::{csi, exec};
use crate::json_object::mistake;
use crate::mounter;
use crate::profiles;
use crate::settings::Settings;
use flexvol_protocol::failure::Result;

/// Parses a side file's text. The error names keys but repeats no value, because old drivers take
/// passwords as options.
pub fn parse(text: &str) -> Result<Settings> {
    let settings = Settings::from_json(text)?;
    check(&settings)?;
    Ok(settings)
}

/// Refuses words that have no effect, because their author believes that they have one.
pub fn check(settings: &Settings) -> Result<()> {
    check_profile(settings)?;
    agent::settings(&settings.agent)?;
    mounter::settings(settings)?;
    settings.driver.as_deref().map_or(Ok(()), |driver| check_driver(settings, driver))?;
    settings.exec.as_ref().map_or(Ok(()), exec::ExecSettings::check)
}

fn check_profile(settings: &Settings) -> Result<()> {
    let Some(name) = settings.profile.as_deref().filter(|name| *name != profiles::NONE) else {
        return Ok(());
    };
    if profiles::find(name).is_some() {
        return Ok(());
    }
    let hint = profiles::nearest(name).map_or_else(
        || "see flexvol drivers --profiles".to_owned(),
        |near| format!("did you mean {near:?}?"),
    );
    Err(mistake(&format!("there is no profile {name:?}: {hint}")))
}

/// Fails if the settings cannot be those of this driver, which may be named elsewhere.
pub fn check_driver(settings: &Settings, driver: &str) -> Result<()> {
    if settings.through_csi.is_some() {
        let is_csi = driver == csi::NAME;
        let text =
            format!("\"throughCsi\" is for the driver {}, and this is {driver}: leave it out", csi::NAME);
        return if is_csi { Ok(()) } else { Err(mistake(&text)) };
    }
    let named = settings.profile.as_deref().and_then(profiles::find);
    if let Some(profile) = named.filter(|profile| profile.driver.name() != driver) {
        let text = format!(
            "the profile {} is for the driver {}, and this is {driver}: leave out one of them",
            profile.name,
            profile.driver.name()
        );
        return Err(mistake(&text));
    }
    if settings.exec.is_some() && driver != exec::NAME {
        let text = format!(
            "\"exec\" is for the driver exec, and this is {driver}: leave it out or name exec as \"driver\""
        );
        return Err(mistake(&text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SIDE_FILE;
    use crate::wording::wording_of;

    #[test]
    fn words_that_do_nothing_are_refused() {
        for (text, expected) in [
            (r#"{"profile":"kvaps/lop"}"#, "did you mean \"kvaps/loop\"?"),
            (
                r#"{"profile":"kvaps/loop","driver":"tmpfs"}"#,
                wording_of("other-driver-in-side-file", ["image", "tmpfs"]),
            ),
            (r#"{"exec":{"commands":{"umount":["/bin/x"]}}}"#, wording_of("not-a-verb", ["\"umount\""])),
            (r#"{"exec":{"commands":{"init":["/bin/x"]}}}"#, "\"init\" is never run"),
            (r#"{"driver":"tmpfs","exec":{"commands":{"mount":["/bin/x"]}}}"#, "and this is tmpfs"),
        ] {
            let message = parse(text).unwrap_err().message();
            assert!(message.starts_with(SIDE_FILE) && message.contains(expected), "{message}");
        }
        let settings = parse(r#"{"exec":{}}"#).unwrap();
        assert!(check_driver(&settings, "exec").is_ok() && check_driver(&settings, "image").is_err());
    }
}

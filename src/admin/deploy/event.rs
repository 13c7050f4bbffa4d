//! What a deployment says: JSON lines among those of the drivers' log. Those have a `verb`, these
//! an `event`.

use flexvol_linux::proc::clock;
use flexvol_protocol::failure::MESSAGE_LIMIT;
use flexvol_protocol::text::one_line;
use serde::Serialize;
use std::path::Path;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event<'a> {
    /// When.
    pub time: String,
    /// What, in a word or two: `started`, `installed`, `failed`, `ready`, `leaving`.
    pub event: &'a str,
    /// `vendor/driver`, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The plugin directory, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<&'a Path>,
    /// Why, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl<'a> Event<'a> {
    /// About the deployment as a whole, now.
    pub fn new(event: &'a str) -> Self {
        Self { time: clock::now(), event, driver: None, directory: None, message: None }
    }

    /// About one driver.
    #[must_use]
    pub fn about(self, home: &'a super::DriverHome) -> Self {
        Self { driver: Some(home.name.to_string()), directory: Some(&home.plugin_dir), ..self }
    }

    /// With a message, as one line.
    #[must_use]
    pub fn saying(self, message: &str) -> Self {
        Self { message: Some(one_line(message, MESSAGE_LIMIT)), ..self }
    }

    /// The line, with its line feed.
    pub fn to_line(&self) -> String {
        // Only a path that is no text cannot become JSON.
        let line = serde_json::to_string(self);
        line.map(|line| line + "\n").unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deploy::DriverHome;
    use flexvol_protocol::DriverName;

    #[test]
    fn a_line_says_what_when_and_about_what() {
        let home = DriverHome { name: DriverName::parse("v/d").unwrap(), plugin_dir: "/p".into() };
        let event = Event { time: "T".into(), ..Event::new("failed").about(&home).saying("a\nb") };
        let expected = r#"{"time":"T","event":"failed","driver":"v/d","directory":"/p","message":"a; b"}"#;
        assert_eq!(event.to_line(), format!("{expected}\n"));
        let event = Event { time: "T".into(), ..Event::new("ready") };
        assert_eq!(event.to_line(), "{\"time\":\"T\",\"event\":\"ready\"}\n");
    }
}

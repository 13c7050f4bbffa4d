//! Events of a deployment: JSON lines between those of the drivers' log. Lines of the log have a
//! `verb`, events have an `event`.

use flexvol_linux::proc::clock;
use flexvol_protocol::failure::MESSAGE_LIMIT;
use flexvol_protocol::text::one_line;
use serde::Serialize;
use std::path::Path;

/// One event, which is one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event<'a> {
    /// Time.
    pub time: String,
    /// Name, in a word or two: `started`, `installed`, `failed`, `ready`, `leaving`.
    pub event: &'a str,
    /// `vendor/driver`, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The plugin directory, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<&'a Path>,
    /// Reason, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl<'a> Event<'a> {
    /// Makes an event about the deployment as a whole, with the current time.
    pub fn new(event: &'a str) -> Self {
        Self { time: clock::now(), event, driver: None, directory: None, message: None }
    }

    /// Adds the driver that the event is about.
    #[must_use]
    pub fn about(self, home: &'a super::DriverHome) -> Self {
        Self { driver: Some(home.name.to_string()), directory: Some(&home.plugin_dir), ..self }
    }

    /// Adds a message, as one line.
    #[must_use]
    pub fn saying(self, message: &str) -> Self {
        Self { message: Some(one_line(message, MESSAGE_LIMIT)), ..self }
    }

    /// Returns the line, with its line feed.
    pub fn to_line(&self) -> String {
        // Only a path that is not UTF-8 cannot become JSON.
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

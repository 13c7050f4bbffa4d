//! Call that a driver asks the agent to carry out. Pure.

use crate::agent::fault::{Code, Fault};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flexvol_protocol::secret::{Redactor, Secret};
use flexvol_protocol::{Call, DriverName, Verb};
use serde::Deserialize;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::ffi::OsStrExt as _;

/// Parameters of the request, as they are sent.
#[derive(Deserialize)]
struct Params {
    driver: String,
    call: String,
}

/// Subject that allows one call at a time: a driver's target, or without one the arguments.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Subject(String, OsString, u64);

/// Call of a driver, to be carried out.
pub struct Order {
    pub(super) driver: DriverName,
    pub(super) verb: Verb,
    pub(super) subject: Subject,
    pub(super) masked: Redactor,
    words: Secret,
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} at {}", self.verb.name(), self.driver, self.target())
    }
}

impl Order {
    /// Parses the parameters of a request. The errors repeat nothing from them.
    pub fn parse(params: Value) -> Result<Self, Fault> {
        let Params { driver, call } = serde_json::from_value(params).map_err(|_| Fault::bad("no call"))?;
        let name = DriverName::from_directory(&driver).ok().filter(|name| name.directory() == driver);
        let driver = name.ok_or_else(|| Fault::bad("its driver has no name of a driver"))?;
        let words =
            STANDARD.decode(call).map(Secret::new).map_err(|_| Fault::bad("its call is not base64"))?;
        let mut parts = words.expose().split(|byte| *byte == 0).map(OsStr::from_bytes);
        let verb = parts.next().and_then(Verb::parse).filter(|verb| *verb != Verb::Init);
        let verb = verb.ok_or_else(|| Fault::bad("its call has no verb"))?;
        let arguments: Vec<_> = parts.map(OsStr::to_owned).collect();
        let call = Call::parse(verb, &arguments).map_err(|failure| Fault::bad(failure.message()))?;
        let secrets = call.options().into_iter().flat_map(|options| options.secrets.values());
        let masked = Redactor::new(secrets);
        let subject = match call.target() {
            Some(target) => Subject(driver.directory(), target.as_path().into(), 0),
            None => Subject(driver.directory(), OsString::new(), digest(words.expose())),
        };
        Ok(Self { driver, verb, subject, masked, words })
    }

    /// Reports whether both calls have exactly the same arguments.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.words == other.words
    }

    pub(super) fn unmounts(&self) -> bool {
        matches!(self.verb, Verb::Unmount | Verb::UnmountDevice)
    }

    pub(super) fn target(&self) -> String {
        self.subject.1.to_string_lossy().into_owned()
    }

    /// Returns the driver's standard input: the time limit and the call.
    pub(super) fn input(&self, within: u128) -> Secret {
        Secret::new([format!("{within}\0").as_bytes(), self.words.expose()].concat())
    }

    pub(super) fn under_way(&self, why: &str) -> Fault {
        let text =
            format!("{} of {} is not done yet: {why}: kubelet tries again", self.verb.name(), self.driver);
        Fault::new(Code::InProgress, text)
    }
}

fn digest(words: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    words.hash(&mut hasher);
    hasher.finish()
}

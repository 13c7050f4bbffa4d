//! One command to a QEMU program by its control socket (docs/interop/qmp-spec.rst of QEMU).

use super::deadline::Deadline;
use crate::failure::{Code, Failure};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, ErrorKind, Read as _, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The least time a socket can be told to wait.
const LEAST: Duration = Duration::from_millis(1);

/// All that can come before an answer, and the answer.
const MOST: u64 = 1 << 20;

/// Executes a command and waits until that is done.
pub fn execute(socket: &Path, command: &str, arguments: &Value, deadline: &Deadline) -> Result<()> {
    ask(socket, command, arguments, deadline).map(drop)
}

/// The same; what it returns.
pub fn ask(socket: &Path, command: &str, arguments: &Value, deadline: &Deadline) -> Result<Value> {
    let what = || format!("tell {} to {command}", socket.display());
    let stream = UnixStream::connect(socket).with_context(what)?;
    let (mut lines, mut returned) = (BufReader::new(stream), Value::Null);
    for request in
        [json!({"execute": "qmp_capabilities"}), json!({"execute": command, "arguments": arguments})]
    {
        let wait = deadline.remaining().max(LEAST);
        lines.get_ref().set_read_timeout(Some(wait))?;
        lines.get_ref().set_write_timeout(Some(wait))?;
        lines.get_mut().write_all(format!("{request}\n").as_bytes()).with_context(what)?;
        returned = answer(&mut lines).with_context(what)?;
    }
    Ok(returned)
}

/// Whether the program does not listen yet.
pub fn is_early(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Events and the greeting come between. Whoever says more than an answer can be is no longer listened to: the program
/// reads a tenant's image and may be what that makes of it.
pub fn answer(lines: &mut impl BufRead) -> Result<Value> {
    let mut lines = lines.take(MOST);
    loop {
        let mut line = String::new();
        let length = lines.read_line(&mut line).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                anyhow::Error::from(Failure::new(Code::Timeout, "it does not answer"))
            }
            _ => error.into(),
        })?;
        if length == 0 {
            bail!("it hung up or did not come to the point");
        }
        let mut message: Value = serde_json::from_str(&line)?;
        if let Some(returned) = message.get_mut("return") {
            return Ok(returned.take());
        }
        if let Some(error) = message.get("error") {
            bail!("{}", error["desc"].as_str().unwrap_or("it refused"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// Answers each request with the next of these lines.
    #[expect(clippy::disallowed_methods, reason = "a server needs a thread; the verb path has none")]
    fn server(answers: &'static [&'static str]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("s")).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"{\"QMP\": {}}\n").unwrap();
            let mut requests = BufReader::new(stream.try_clone().unwrap());
            for answer in answers {
                requests.read_line(&mut String::new()).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        directory
    }

    fn outcome(answers: &'static [&'static str]) -> Result<(), String> {
        let directory = server(answers);
        let deadline = Deadline::after(Duration::from_millis(300));
        execute(&directory.path().join("s"), "quit", &json!({}), &deadline)
            .map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn an_answer_is_told_from_events() {
        const AFTER_EVENT: &str = "{\"event\": \"RESUME\"}\n{\"return\": {}}\n";
        assert_eq!(outcome(&["{\"return\": {}}\n", AFTER_EVENT]), Ok(()));
        let refused = outcome(&["{\"return\": {}}\n", "{\"error\": {\"desc\": \"no such node\"}}\n"]);
        assert!(refused.unwrap_err().ends_with("to quit: no such node"));
        assert!(outcome(&["{\"return\": {}}\n"]).is_err());
        let (silent, directory) = (Deadline::after(Duration::from_millis(50)), tempfile::tempdir().unwrap());
        let socket = directory.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let error = execute(&socket, "quit", &json!({}), &silent).unwrap_err();
        assert!(!is_early(&error));
        assert!(format!("{error:#}").ends_with("it does not answer"), "{error:#}");
        // As one that is bound and not listened to.
        drop(listener);
        assert!(is_early(&execute(&socket, "quit", &json!({}), &silent).unwrap_err()));
        let deadline = Deadline::after(Duration::from_secs(1));
        let events = std::io::repeat(b' ');
        assert!(answer(&mut BufReader::new(events)).is_err(), "one line without an end");
        assert!(execute(Path::new("/nowhere"), "quit", &json!({}), &deadline).is_err());
    }
}

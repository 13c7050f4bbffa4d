//! One command to a QEMU program through its control socket (docs/interop/qmp-spec.rst of QEMU).

use crate::proc::deadline::Deadline;
use anyhow::{Context, Result, bail, ensure};
use flexvol_protocol::failure::{Code, Failure};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, ErrorKind, Read as _, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Pause before the next attempt if a socket accepts no connection now.
const TICK: Duration = Duration::from_millis(20);

/// Shortest timeout that a socket accepts.
const LEAST: Duration = Duration::from_millis(1);

/// Time that the first connection waits for an answer; each further one waits twice as long.
///
/// A QEMU that has just begun to listen may accept a connection in two threads at once. Then it
/// greets twice, says nothing, or dies (7.2: 1 in 4,000 to 10,000 on a busy node). So a call that
/// starts a QEMU passes it a connected socket for [`talk`]. This wait is for daemons that a killed
/// call left behind.
const GREETING_WAIT: Duration = Duration::from_secs(1);

/// Limit for an answer and all data before it, in bytes.
const MOST: u64 = 1 << 20;

/// Executes a command that can be repeated, and waits until it is done.
pub fn execute(socket: &Path, command: &str, arguments: &Value, deadline: &Deadline) -> Result<()> {
    ask(socket, command, arguments, deadline).map(drop)
}

/// Does the same, and returns the result.
pub fn ask(socket: &Path, command: &str, arguments: &Value, deadline: &Deadline) -> Result<Value> {
    let mut patience = GREETING_WAIT;
    loop {
        let wait = patience.min(deadline.remaining());
        match once(socket, command, arguments, wait) {
            Err(error) if is_silent(&error) && deadline.check("").is_ok() => patience *= 2,
            said => return said.with_context(|| format!("tell {} to {command}", socket.display())),
        }
    }
}

/// Tells the program to end.
/// Returns true also if it is gone after it did not answer: then it got the command.
pub fn quit(socket: &Path, deadline: &Deadline) -> bool {
    let mut patience = GREETING_WAIT;
    loop {
        let wait = patience.min(deadline.remaining());
        match once(socket, "quit", &json!({}), wait) {
            Err(error) if is_silent(&error) && deadline.check("").is_ok() => patience *= 2,
            Err(_) => return patience > GREETING_WAIT,
            Ok(_) => return true,
        }
    }
}

/// Executes a command over one connection.
/// `wait` limits the time to connect, and then for each line.
fn once(socket: &Path, command: &str, arguments: &Value, wait: Duration) -> Result<Value> {
    let deadline = Deadline::after(wait);
    let stream = loop {
        match connect(socket)? {
            Some(stream) => break stream,
            None if deadline.expired() => return Err(silent()),
            None => std::thread::sleep(TICK),
        }
    };
    talk(stream, command, arguments, wait)
}

/// Executes a command over a connection that was not used before.
/// `wait` limits the time for each line.
pub fn talk(stream: UnixStream, command: &str, arguments: &Value, wait: Duration) -> Result<Value> {
    let (wait, mut lines) = (wait.max(LEAST), BufReader::new(stream));
    lines.get_ref().set_read_timeout(Some(wait))?;
    lines.get_ref().set_write_timeout(Some(wait))?;
    // A request before the greeting may be read by a thread that cannot answer.
    ensure!(message(&mut lines)?.get("QMP").is_some(), "what it says is no greeting");
    let mut returned = Value::Null;
    for request in
        [json!({"execute": "qmp_capabilities"}), json!({"execute": command, "arguments": arguments})]
    {
        lines.get_mut().write_all(format!("{request}\n").as_bytes())?;
        returned = answer(&mut lines)?;
    }
    Ok(returned)
}

/// Connects; `None` while other connections wait: the kernel lets no more than two wait.
fn connect(socket: &Path) -> io::Result<Option<UnixStream>> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&stream, &SocketAddrUnix::new(socket)?) {
        Err(Errno::AGAIN) => Ok(None),
        said => {
            said?;
            let stream = UnixStream::from(stream);
            stream.set_nonblocking(false)?;
            Ok(Some(stream))
        }
    }
}

/// Reports whether a process listens on the socket, even if it accepts no connection now.
pub fn is_listening(socket: &Path) -> bool {
    connect(socket).is_ok()
}

/// Reports whether there was no answer; another connection may get one.
fn is_silent(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Failure>().is_some_and(|failure| failure.code() == Code::Timeout)
}

fn silent() -> anyhow::Error {
    Failure::new(Code::Timeout, "it does not answer").into()
}

/// Reads the answer to a request. Skips events.
pub fn answer(lines: &mut impl BufRead) -> Result<Value> {
    let mut lines = lines.take(MOST);
    loop {
        let mut message = message(&mut lines)?;
        if let Some(returned) = message.get_mut("return") {
            return Ok(returned.take());
        }
        if let Some(error) = message.get("error") {
            bail!("{}", error["desc"].as_str().unwrap_or("it refused"));
        }
    }
}

/// Reads the next line. A line that is longer than any answer is an error: the program reads a
/// tenant's image, which may have taken the program over.
fn message(lines: &mut impl BufRead) -> Result<Value> {
    let mut line = String::new();
    let length = lines.take(MOST).read_line(&mut line).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => silent(),
        _ => error.into(),
    })?;
    ensure!(length > 0, "it hung up or did not come to the point");
    Ok(serde_json::from_str(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::deadline;
    use crate::wording::wording;
    use std::os::unix::net::UnixListener;

    /// Answers to the requests of one connection.
    type Answers = &'static [&'static str];

    /// Accepts these connections, one after the other, and keeps each until its end.
    #[expect(clippy::disallowed_methods, reason = "a server needs a thread; the verb path has none")]
    fn server(connections: &'static [Answers]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("s")).unwrap();
        std::thread::spawn(move || {
            for answers in connections {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(b"{\"QMP\": {}}\n").unwrap();
                let mut requests = BufReader::new(stream.try_clone().unwrap());
                for answer in *answers {
                    requests.read_line(&mut String::new()).unwrap();
                    stream.write_all(answer.as_bytes()).unwrap();
                }
                if answers.last() == Some(&"") {
                    let _ = requests.read_line(&mut String::new());
                }
            }
        });
        directory
    }

    fn outcome(connections: &'static [Answers]) -> Result<(), String> {
        let directory = server(connections);
        let deadline = Deadline::after(deadline(2));
        execute(&directory.path().join("s"), "quit", &json!({}), &deadline)
            .map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn an_answer_is_told_from_events() {
        const AFTER_EVENT: &str = "{\"event\": \"RESUME\"}\n{\"return\": {}}\n";
        assert_eq!(outcome(&[&["{\"return\": {}}\n", AFTER_EVENT]]), Ok(()));
        let refused = outcome(&[&["{\"return\": {}}\n", "{\"error\": {\"desc\": \"no such node\"}}\n"]]);
        assert!(refused.unwrap_err().ends_with("to quit: no such node"));
        assert!(outcome(&[&["{\"return\": {}}\n"]]).is_err());
        let (silent, directory) = (Deadline::after(deadline(1) / 4), tempfile::tempdir().unwrap());
        let socket = directory.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let error = execute(&socket, "quit", &json!({}), &silent).unwrap_err();
        assert!(format!("{error:#}").ends_with(wording("no-answer")), "{error:#}");
        drop(listener);
        let deadline = Deadline::after(Duration::from_secs(1));
        let events = io::repeat(b' ');
        assert!(answer(&mut BufReader::new(events)).is_err(), "one line without an end");
        assert!(execute(Path::new("/nowhere"), "quit", &json!({}), &deadline).is_err());
    }

    /// Servers like a QEMU that accepts its first connection in two threads.
    #[test]
    fn a_connection_that_is_lost_is_followed_by_another() {
        const WELL: Answers = &["{\"return\": {}}\n", "{\"return\": {}}\n"];
        const SILENT: Answers = &["{\"return\": {}}\n", ""];
        const GONE: Answers = &["{\"return\": {}}\n"];
        let within = Deadline::after(deadline(20));
        let told = |connections: &'static [Answers]| {
            let directory = server(connections);
            (directory.path().join("s"), directory)
        };
        let (socket, _directory) = told(&[SILENT, WELL]);
        execute(&socket, "query", &json!({}), &within).unwrap();
        let (socket, _directory) = told(&[SILENT, WELL]);
        assert!(quit(&socket, &within));
        // The program ended instead of answering.
        let (socket, _directory) = told(&[SILENT, GONE]);
        assert!(quit(&socket, &within));
        let (socket, _directory) = told(&[GONE]);
        assert!(!quit(&socket, &within));
    }

    /// A stopped program accepts no connections, and a third one would wait forever.
    #[test]
    fn who_takes_no_connection_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let address = SocketAddrUnix::new(&socket).unwrap();
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&listener, &address).unwrap();
        assert!(!is_listening(&socket));
        rustix::net::listen(&listener, 1).unwrap();
        let waiting: Vec<_> = std::iter::from_fn(|| connect(&socket).unwrap()).collect();
        assert!(waiting.len() == 2 && is_listening(&socket));
        let within = Deadline::after(Duration::from_millis(100));
        assert!(!quit(&socket, &within) && within.expired());
    }
}

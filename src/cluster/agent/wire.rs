//! Requests and answers on the socket: a length of four bytes, then JSON.
//!
//! ```text
//! {"v":1,"method":"hold","asked":…,"until":…,"params":{…}}
//! {"v":1,"method":"exec","at":{"podName":…},"params":{…}}     for a mount pod: crate::cri::session
//! {"v":1,"ok":{…}}    {"v":1,"err":{"code":"FENCED","msg":"…"}}
//! ```

use super::calls::Order;
use super::fault::{Code, Fault};
use super::{Agent, Asked};
use crate::cri::session::Session;
use flexvol_model::agent::{Hold, LONGEST_FRAME, PROTOCOL};
use flexvol_model::mounter::Registration;
use flexvol_protocol::secret::Secret;
use rustix::net::RecvFlags;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Limit for a request to arrive, and for an answer to be read.
const PATIENCE: Duration = Duration::from_secs(5);

/// Idle limit for a connection that has started a program to serve a volume.
const SERVING: Duration = Duration::from_mins(10);

/// Request as it is sent.
#[derive(Deserialize)]
struct Request {
    v: u32,
    method: String,
    #[serde(default)]
    asked: u64,
    #[serde(default)]
    until: u64,
    /// Mount pod that the request is for.
    #[serde(default)]
    at: Value,
    #[serde(default)]
    params: Value,
}

/// Answers the requests on a connection, until the connection ends or a request is invalid.
pub fn converse(agent: &Agent, mut stream: UnixStream) -> io::Result<()> {
    let mut session = Session::default();
    let ended = talk(agent, &mut stream, &mut session);
    agent.runtimes.forget(session);
    ended
}

fn talk(agent: &Agent, stream: &mut UnixStream, session: &mut Session) -> io::Result<()> {
    loop {
        let patience = if session.serves() { SERVING } else { PATIENCE };
        let (answer, go_on) = match receive(stream, patience)? {
            Received::End => return Ok(()),
            Received::Frame(frame) => (answer(agent, frame, session, stream), true),
            Received::TooLong(length) => {
                let text = format!("it has {length} bytes, and {LONGEST_FRAME} are the most");
                (Err(Fault::bad(text)), false)
            }
        };
        let go_on = go_on && !matches!(&answer, Err(Fault { code: Code::BadRequest, .. }));
        send(stream, &said(answer), PATIENCE)?;
        if !go_on {
            return Ok(());
        }
    }
}

fn said(answer: Result<Value, Fault>) -> Value {
    match answer {
        Ok(ok) => json!({"v": PROTOCOL, "ok": ok}),
        Err(fault) => json!({"v": PROTOCOL, "err": fault.to_json()}),
    }
}

fn answer(agent: &Agent, frame: Vec<u8>, session: &mut Session, stream: &UnixStream) -> Result<Value, Fault> {
    // The frame may contain secrets of a call.
    let frame = Secret::new(frame);
    let request: Request = serde_json::from_slice(frame.expose()).map_err(Fault::bad)?;
    if request.v != PROTOCOL {
        let text = format!("protocol {} is not supported: use {PROTOCOL}, as this agent does", request.v);
        return Err(Fault::new(Code::UnsupportedVersion, text));
    }
    let (method, begun) = (request.method.clone(), Instant::now());
    let answer = match Registration::of(&request.at) {
        Ok(None) => answer_request(agent, request, stream),
        Ok(Some(pod)) => agent.runtimes.answer(session, &pod, &request.method, request.params),
        Err(why) => Err(Fault::bad(why)),
    };
    agent.metrics.answered(&method, answer.as_ref().err().map(|fault| fault.code), begun.elapsed());
    answer
}

fn answer_request(agent: &Agent, request: Request, stream: &UnixStream) -> Result<Value, Fault> {
    let asked = Asked { at: request.asked, until: request.until };
    if request.method == "call" {
        return agent.call(Order::parse(request.params)?, asked, || is_there(stream));
    }
    if request.method == "csi.publish" {
        return agent.csi.publish(request.params, asked, || is_there(stream));
    }
    if request.method == "csi.unpublish" {
        return agent.csi.unpublish(request.params, asked);
    }
    if request.method == "csi.expand" {
        return agent.csi.expand(request.params, asked);
    }
    let hold = || serde_json::from_value::<Hold>(request.params).map_err(Fault::bad);
    match request.method.as_str() {
        "hello" => Ok(agent.hello()),
        "status" => Ok(agent.status()),
        "hold" => Ok(json!({"epoch": agent.hold(&hold()?, asked)?})),
        "release" => Ok(json!({"state": agent.release(&hold()?, asked)?.name()})),
        method => Err(Fault::bad(format!("there is no method {method:?}"))),
    }
}

/// Reports whether the caller still waits. It sends nothing more before it has the answer.
fn is_there(stream: &UnixStream) -> bool {
    let mut byte = [0];
    let nothing = rustix::net::recv(stream, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT);
    nothing.is_err_and(|error| error == rustix::io::Errno::AGAIN)
}

/// Result of reading a frame.
pub enum Received {
    /// Complete frame.
    Frame(Vec<u8>),
    /// Length of a frame over the limit. The frame was not read.
    TooLong(usize),
    /// End of the connection.
    End,
}

/// Reads a frame. `patience` limits the whole frame, however slowly its bytes arrive.
pub fn receive(stream: &mut UnixStream, patience: Duration) -> io::Result<Received> {
    let until = Instant::now() + patience;
    let mut length = [0; 4];
    match fill(stream, &mut length, until)? {
        0 => return Ok(Received::End),
        4 => {}
        _ => return Err(ErrorKind::UnexpectedEof.into()),
    }
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > LONGEST_FRAME {
        return Ok(Received::TooLong(length));
    }
    let mut frame = vec![0; length];
    if fill(stream, &mut frame, until)? < length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(Received::Frame(frame))
}

/// Fills the buffer. Returns the number of bytes that arrived before the end.
fn fill(stream: &mut UnixStream, buffer: &mut [u8], until: Instant) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Writes a frame.
pub fn send(stream: &mut UnixStream, value: &Value, patience: Duration) -> io::Result<()> {
    let text = value.to_string();
    let length = u32::try_from(text.len()).map_err(|_| ErrorKind::InvalidInput)?;
    let frame = [&length.to_be_bytes()[..], text.as_bytes()].concat();
    let until = Instant::now() + patience;
    let mut rest = &frame[..];
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Agent {
    /// Returns the version, node and readiness of this agent.
    fn hello(&self) -> Value {
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "protocol": PROTOCOL,
            "node": self.node.name,
            "ready": self.state().is_settled(),
        })
    }

    /// Lets a driver carry out a call on this node.
    fn call(&self, order: Order, asked: Asked, is_there: impl Fn() -> bool) -> Result<Value, Fault> {
        let reply = self.calls.carry_out(order, asked.deadline()?, is_there)?;
        Ok(json!({"reply": reply}))
    }

    /// Returns the state of the agent with its holds, for people.
    pub fn status(&self) -> Value {
        let holds = self.journal.all().into_iter().map(|entry| {
            json!({
                "handle": entry.handle,
                "target": entry.target,
                "pod": format!("{}/{}", entry.namespace, entry.pod),
                "podUID": entry.uid,
                "phase": entry.phase.name(),
                "epoch": entry.epoch,
            })
        });
        let holds: Vec<_> = holds.collect();
        let Value::Object(mut status) = self.hello() else { return Value::Null };
        let more = [
            ("store", json!(self.store_name)),
            ("bootID", json!(self.node.boot)),
            ("nodeUID", json!(self.node.uid)),
            ("instance", json!(self.state().instance)),
            ("holds", json!(holds)),
            ("csi", self.csi.status()),
            ("calls", self.calls.status()),
        ];
        status.extend(more.map(|(key, value)| (key.to_owned(), value)));
        Value::Object(status)
    }
}

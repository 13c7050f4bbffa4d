//! Names, addresses and connections: finds a server before the kernel has to.
//!
//! The kernel's own clients wait for minutes, or forever, for a server that does not answer, and
//! say little about the reason. Here each request has a time limit and a clear error.

use super::dns::{self, Kind};
use crate::proc::deadline::Deadline;
use anyhow::{Context as _, Result};
use flexvol_protocol::failure::{Code, Failure};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs as _, UdpSocket};
use std::time::Duration;

/// Port of a nameserver.
const DNS: u16 = 53;

/// Number of questions to a nameserver, and limit for each answer: a datagram can be lost.
const ATTEMPTS: u32 = 3;
const NAMESERVER_WAIT: Duration = Duration::from_secs(2);

/// Status of an answer for a name that does not exist.
const NO_SUCH_NAME: u8 = 3;

/// Size of the largest datagram that a nameserver sends if the client did not ask for more.
const DATAGRAM: usize = 512;

/// Returns the addresses of a name, or the address that the name itself is; an error without any.
/// For a driver with an option nameserver.
pub fn addresses(name: &str, nameserver: Option<IpAddr>, deadline: &Deadline) -> Result<Vec<IpAddr>> {
    found(name, nameserver, hint(nameserver), deadline)
}

/// Does the same for a driver without that option.
pub fn addresses_here(name: &str, deadline: &Deadline) -> Result<Vec<IpAddr>> {
    found(name, None, "", deadline)
}

fn found(name: &str, nameserver: Option<IpAddr>, hint: &str, deadline: &Deadline) -> Result<Vec<IpAddr>> {
    deadline.check(&format!("about to look up {name}"))?;
    if let Ok(address) = name.trim_start_matches('[').trim_end_matches(']').parse() {
        return Ok(vec![address]);
    }
    let found = match nameserver {
        Some(server) => ask(SocketAddr::new(server, DNS), name)?,
        None => look_up(name),
    };
    let whom = nameserver.map_or_else(|| "the node's resolver".to_owned(), |server| server.to_string());
    match found.as_slice() {
        [] => Err(unknown(format!("{whom} knows no address of it: check the name{hint}"))),
        _ => Ok(found),
    }
}

/// Returns this node's address towards a server, which must accept a connection within `patience`.
pub fn connect(server: SocketAddr, patience: Duration) -> Result<IpAddr> {
    Ok(connection(server, patience)?.local_addr().context("ask for our own address")?.ip())
}

/// Connects to a server, which must accept within `patience`.
pub fn connection(server: SocketAddr, patience: Duration) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&server, patience).map_err(|error| match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Failure::new(
            Code::Timeout,
            format!("does not answer on port {} within {} s", server.port(), patience.as_secs()),
        ),
        ErrorKind::ConnectionRefused => {
            Failure::new(Code::NotFound, format!("refuses connections to port {}", server.port()))
        }
        _ => Failure::new(Code::NotFound, format!("cannot be reached: {error}")),
    })?;
    Ok(stream)
}

/// Returns this node's address towards a server by the route alone, without asking the server.
pub fn route_to(server: SocketAddr) -> Result<IpAddr> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).context("make a socket")?;
    socket.connect(server).with_context(|| format!("find a route to {}", server.ip()))?;
    Ok(socket.local_addr().context("ask for our own address")?.ip())
}

/// Looks up a name as every other program of the node does.
fn look_up(name: &str) -> Vec<IpAddr> {
    match (name, 0).to_socket_addrs() {
        Ok(found) => distinct(found.map(|address| address.ip())),
        Err(_) => Vec::new(),
    }
}

/// Returns the addresses in their order, each once.
fn distinct(addresses: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    addresses.fold(Vec::new(), |mut found, address| {
        if !found.contains(&address) {
            found.push(address);
        }
        found
    })
}

/// Asks one nameserver, first for IPv4.
fn ask(server: SocketAddr, name: &str) -> Result<Vec<IpAddr>> {
    let socket = UdpSocket::bind(match server {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    })
    .context("make a socket")?;
    // Accepts only answers of this server.
    socket.connect(server).with_context(|| format!("find a route to the nameserver {}", server.ip()))?;
    socket.set_read_timeout(Some(NAMESERVER_WAIT))?;
    for kind in [Kind::A, Kind::Aaaa] {
        let found = asked_for(&socket, server, name, kind)?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

fn asked_for(socket: &UdpSocket, server: SocketAddr, name: &str, kind: Kind) -> Result<Vec<IpAddr>> {
    let id = fastrand::u16(..);
    let no_name = || unknown("it is no name that a nameserver can be asked for".to_owned());
    let query = dns::query(id, name, kind).ok_or_else(no_name)?;
    let mut buffer = [0; DATAGRAM];
    for _ in 0..ATTEMPTS {
        // A missing listener is reported by the next call.
        if socket.send(&query).is_err() {
            continue;
        }
        let Ok(length) = socket.recv(&mut buffer) else { continue };
        if let Some(answer) = answer(id, &buffer[..length]) {
            return answer.with_context(|| format!("nameserver {}", server.ip()));
        }
    }
    Err(unknown(format!("the nameserver {} does not answer: check option nameserver", server.ip())))
}

/// Returns the addresses in a datagram; `None` if it does not answer this question.
pub fn answer(id: u16, bytes: &[u8]) -> Option<Result<Vec<IpAddr>>> {
    let dns::Answer { code, addresses } = dns::answer(id, bytes)?;
    let why = match code {
        0 => return Some(Ok(distinct(addresses.into_iter()))),
        NO_SUCH_NAME => return Some(Ok(Vec::new())),
        2 => "it failed",
        5 => "it refuses",
        _ => "it cannot answer that",
    };
    Some(Err(unknown(format!("{why} (code {code}): ask for a name that it serves"))))
}

fn hint(nameserver: Option<IpAddr>) -> &'static str {
    match nameserver {
        None => ", or give option nameserver the address of the cluster's DNS if it is a Service",
        Some(_) => "",
    }
}

fn unknown(text: String) -> anyhow::Error {
    Failure::new(Code::NotFound, text).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::wording_of;
    use simple_dns::rdata::{A, CNAME, RData};
    use simple_dns::{CLASS, Name, Packet, RCODE, ResourceRecord};
    use std::net::TcpListener;

    fn deadline() -> Deadline {
        Deadline::after(crate::pace::deadline(20))
    }

    /// A nameserver on the loopback that answers `times` questions and then ends.
    fn nameserver(times: usize, reply: impl Fn(&Packet<'_>) -> Vec<u8> + Send + 'static) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let address = socket.local_addr().unwrap();
        #[expect(clippy::disallowed_methods, reason = "the server of a test")]
        std::thread::spawn(move || {
            for _ in 0..times {
                let mut buffer = [0; DATAGRAM];
                let Ok((length, from)) = socket.recv_from(&mut buffer) else { return };
                let _ = socket.send_to(&reply(&Packet::parse(&buffer[..length]).unwrap()), from);
            }
        });
        address
    }

    fn record<'a>(name: &'a str, data: RData<'a>) -> ResourceRecord<'a> {
        ResourceRecord::new(Name::new(name).unwrap(), CLASS::IN, 60, data)
    }

    #[test]
    fn an_address_is_its_own() {
        for (name, expected) in [("10.0.0.1", "10.0.0.1"), ("::1", "::1"), ("[fd00::7]", "fd00::7")] {
            assert_eq!(addresses(name, None, &deadline()).unwrap(), [expected.parse::<IpAddr>().unwrap()]);
        }
        assert!(addresses("localhost", None, &deadline()).unwrap().iter().all(IpAddr::is_loopback));
        let error = addresses("no-such-host.invalid", None, &deadline()).unwrap_err().to_string();
        assert!(error.contains("knows no address") && error.contains("option nameserver"), "{error}");
        let error = addresses_here("no-such-host.invalid", &deadline()).unwrap_err().to_string();
        assert!(error.ends_with("check the name"), "no option that there is not: {error}");
    }

    #[test]
    fn a_nameserver_is_asked_and_only_its_answer_is_taken() {
        let server = nameserver(2, |query| {
            let mut reply = Packet::new_reply(query.id());
            reply.answers.push(record("nas.test", RData::CNAME(CNAME(Name::new("a.test").unwrap()))));
            reply.answers.push(record("a.test", RData::A(A { address: Ipv4Addr::new(10, 1, 2, 3).into() })));
            reply.build_bytes_vec().unwrap()
        });
        let expected = [IpAddr::from(Ipv4Addr::new(10, 1, 2, 3))];
        assert_eq!(ask(server, "nas.test").unwrap(), expected);
        assert_eq!(ask(server, "nas.test.").unwrap(), expected);
        let stranger = nameserver(1, |query| {
            let mut reply = Packet::new_reply(query.id().wrapping_add(1));
            reply.answers.push(record("a", RData::A(A { address: 1 })));
            reply.build_bytes_vec().unwrap()
        });
        let error = ask(stranger, "nas.test").unwrap_err().to_string();
        assert!(error.contains("does not answer"), "{error}");
    }

    #[test]
    fn odd_answers_and_names_are_refused() {
        assert!(answer(1, b"").is_none() && answer(1, &[0; 600]).is_none());
        let mut refused = Packet::new_reply(7);
        *refused.rcode_mut() = RCODE::Refused;
        let error = answer(7, &refused.build_bytes_vec().unwrap()).unwrap().unwrap_err().to_string();
        assert!(error.contains("refuses (code 5)"), "{error}");
        *refused.rcode_mut() = RCODE::NameError;
        assert!(answer(7, &refused.build_bytes_vec().unwrap()).unwrap().unwrap().is_empty());
    }

    #[test]
    fn who_listens_is_reached_and_who_does_not_is_said() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let patience = crate::pace::deadline(20);
        assert_eq!(connect(address, patience).unwrap(), address.ip());
        assert_eq!(route_to(address).unwrap(), address.ip());
        drop(listener);
        let error = connect(address, patience).unwrap_err().to_string();
        assert_eq!(error, wording_of("connection-refused", [&address.port().to_string()]));
    }
}

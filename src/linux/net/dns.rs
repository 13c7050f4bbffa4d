//! Query for the addresses of a name, and reader of a nameserver's answer: only addresses are read,
//! and no other record (RFC 1035, RFC 3596).
//!
//! Any host that can reach the node's socket can choose these bytes. A library would parse every
//! kind of record, only to drop it. Here the name of a record is skipped, and its data is taken by
//! the length before it. No pointer is followed, so no loop is possible.

use std::net::IpAddr;

/// Class of the internet.
const INTERNET: u16 = 1;

/// First two bits of a length byte: a pointer to the rest of the name follows.
const POINTER: u8 = 0xc0;

/// Flag bit of an answer.
const IS_ANSWER: u16 = 0x8000;

/// Flag bit that asks the nameserver to ask others.
const ASK_OTHERS: u16 = 0x0100;

/// Limits for a name and for each of its labels, in bytes.
const NAME: usize = 255;
const LABEL: usize = 63;

/// Type of address to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Addresses of IPv4.
    A = 1,
    /// Addresses of IPv6.
    Aaaa = 28,
}

/// Answer of a nameserver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Status: 0, or an error code of RFC 1035, 4.1.1.
    pub(crate) code: u8,
    /// All addresses, in their order; if the name is an alias, those of its target.
    pub(crate) addresses: Vec<IpAddr>,
}

/// Returns the datagram that asks; `None` if `name` is not a valid name.
pub(crate) fn query(id: u16, name: &str, kind: Kind) -> Option<Vec<u8>> {
    let header = [id, ASK_OTHERS, 1, 0, 0, 0];
    let mut bytes: Vec<u8> = header.into_iter().flat_map(u16::to_be_bytes).collect();
    let start = bytes.len();
    for label in name.trim_end_matches('.').split('.') {
        let length = u8::try_from(label.len()).ok().filter(|_| (1..=LABEL).contains(&label.len()))?;
        bytes.push(length);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    if bytes.len() - start > NAME {
        return None;
    }
    bytes.extend([kind as u16, INTERNET].into_iter().flat_map(u16::to_be_bytes));
    Some(bytes)
}

/// Reads a datagram; `None` if it does not answer the question with this id, or is incomplete.
pub(crate) fn answer(id: u16, bytes: &[u8]) -> Option<Answer> {
    let mut rest = Rest(bytes);
    let (answered, flags, questions, answers) =
        (rest.number()?, rest.number()?, rest.number()?, rest.number()?);
    // Numbers of authority and additional records, which are not read.
    rest.take(4)?;
    if answered != id || flags & IS_ANSWER == 0 {
        return None;
    }
    for _ in 0..questions {
        rest.skip_name()?;
        rest.take(4)?;
    }
    let mut addresses = Vec::new();
    for _ in 0..answers {
        rest.skip_name()?;
        rest.record(&mut addresses)?;
    }
    Some(Answer { code: flags.to_be_bytes()[1] & 0x0f, addresses })
}

/// Bytes that are still to be read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    fn skip_name(&mut self) -> Option<()> {
        loop {
            match self.take(1)?[0] {
                0 => return Some(()),
                length if length & POINTER == POINTER => return self.take(1).map(|_| ()),
                length if usize::from(length) <= LABEL => drop(self.take(length.into())?),
                _ => return None,
            }
        }
    }

    /// Reads the part of a record after its name, and keeps an address.
    fn record(&mut self, addresses: &mut Vec<IpAddr>) -> Option<()> {
        let (kind, class) = (self.number()?, self.number()?);
        // Time to live.
        self.take(4)?;
        let length = self.number()?;
        let data = self.take(length.into())?;
        if (kind, class) == (Kind::A as u16, INTERNET) {
            addresses.extend(<[u8; 4]>::try_from(data).map(IpAddr::from));
        } else if (kind, class) == (Kind::Aaaa as u16, INTERNET) {
            addresses.extend(<[u8; 16]>::try_from(data).map(IpAddr::from));
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use simple_dns::rdata::{A, AAAA, CNAME, RData};
    use simple_dns::{CLASS, Name, Packet, QCLASS, QTYPE, Question, ResourceRecord, TYPE};
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn record<'a>(name: &'a str, data: RData<'a>) -> ResourceRecord<'a> {
        ResourceRecord::new(Name::new(name).unwrap(), CLASS::IN, 60, data)
    }

    #[test]
    fn another_s_reader_reads_our_question() {
        for (kind, theirs) in [(Kind::A, TYPE::A), (Kind::Aaaa, TYPE::AAAA)] {
            let bytes = query(513, "nas.example.com.", kind).unwrap();
            let packet = Packet::parse(&bytes).unwrap();
            let asked = &packet.questions[0];
            assert_eq!((packet.id(), asked.qname.to_string()), (513, "nas.example.com".to_owned()));
            assert_eq!((asked.qtype, asked.qclass), (QTYPE::TYPE(theirs), QCLASS::CLASS(CLASS::IN)));
        }
        for name in ["", ".", "a..b", &"a".repeat(64), &"a.".repeat(128), "a".repeat(256).as_str()] {
            assert_eq!(query(1, name, Kind::A), None, "{name}");
        }
        assert!(query(1, &"a.".repeat(127), Kind::A).is_some(), "as long as a name may be");
    }

    #[test]
    fn what_is_cut_off_anywhere_is_no_answer() {
        let mut packet = Packet::new_reply(7);
        let name = Name::new("nas.test").unwrap();
        packet.questions.push(Question::new(
            name.clone(),
            QTYPE::TYPE(TYPE::A),
            QCLASS::CLASS(CLASS::IN),
            false,
        ));
        packet.answers.push(record("nas.test", RData::CNAME(CNAME(Name::new("a.test").unwrap()))));
        packet.answers.push(record("a.test", RData::AAAA(AAAA { address: 1 })));
        packet.answers.push(record("a.test", RData::A(A { address: 0x0a01_0203 })));
        let bytes = packet.build_bytes_vec_compressed().unwrap();
        let whole = answer(7, &bytes).unwrap();
        let expected: [IpAddr; 2] = [Ipv6Addr::LOCALHOST.into(), Ipv4Addr::new(10, 1, 2, 3).into()];
        assert_eq!((whole.code, &*whole.addresses), (0, &expected[..]));
        for length in 0..bytes.len() {
            assert_eq!(answer(7, &bytes[..length]), None, "{length}");
        }
        assert_eq!(answer(8, &bytes), None, "to another question");
        let mut question = bytes.clone();
        question[2] &= 0x7f;
        assert_eq!(answer(7, &question), None, "a question is none");
    }

    proptest! {
        #[test]
        fn whatever_another_s_writer_writes_is_read(
            names in prop::collection::vec("[a-z]{1,20}(\\.[a-z]{1,20}){0,3}", 1..6),
            kinds in prop::collection::vec(0..3, 1..6),
            compress: bool,
        ) {
            let mut packet = Packet::new_reply(1);
            let mut expected = Vec::<IpAddr>::new();
            for (at, (name, kind)) in names.iter().zip(&kinds).enumerate() {
                let number = u8::try_from(at).unwrap();
                let (v4, v6) = (Ipv4Addr::from([10, 0, 0, number]), Ipv6Addr::from([number; 16]));
                packet.answers.push(record(name, match kind {
                    0 => RData::A(A { address: v4.into() }),
                    1 => RData::AAAA(AAAA { address: v6.into() }),
                    _ => RData::CNAME(CNAME(Name::new(name).unwrap())),
                }));
                match kind { 0 => expected.push(v4.into()), 1 => expected.push(v6.into()), _ => {} }
            }
            let bytes = if compress { packet.build_bytes_vec_compressed() } else { packet.build_bytes_vec() };
            prop_assert_eq!(answer(1, &bytes.unwrap()).unwrap().addresses, expected);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = answer(1, &bytes);
        }
    }
}

//! Asks the kernel for the owner of one TCP socket.
//!
//! The table under `/proc/net` tells it too, but lists every socket of the machine: with a thousand agents at work reading it
//! takes milliseconds, for each connection. The kernel's diagnosis of sockets finds the one in microseconds.

use std::net::{IpAddr, SocketAddr};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// `SOCK_DIAG_BY_FAMILY`: both the question and its answer.
const BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
const TCP: u8 = 6;
const INET: u8 = 2;
const INET6: u8 = 10;
/// Sockets that are only a memory of a connection belong to nobody.
const TIME_WAIT: u8 = 6;
const HEADER: usize = 16;
const QUESTION: usize = HEADER + 8 + IDENTITY;
/// Ports, addresses, interface and cookie.
const IDENTITY: usize = 48;

/// Who has a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SocketOwner {
    /// The user.
    pub(super) uid: u32,
    /// The inode, by which processes that have the socket open can be found.
    pub(super) inode: u32,
}

impl SocketOwner {
    /// The owner the kernel names. A socket that its process closed has no inode any more and is listed under user 0.
    pub(super) const fn named(uid: u32, inode: u32) -> Option<Self> {
        if inode == 0 { None } else { Some(Self { uid, inode }) }
    }
}

/// The owner of the socket bound to `from` and connected to `to`; none when there is no such socket, or when it cannot be told.
pub(super) fn owner(from: SocketAddr, to: SocketAddr) -> Option<SocketOwner> {
    let kernel = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    );
    let kernel = kernel.ok()?;
    rustix::net::send(&kernel, &question(from, to)?, SendFlags::empty()).ok()?;
    // The kernel has answered before the question is sent.
    let mut answer = [0; 512];
    let (length, _) = rustix::net::recv(&kernel, &mut answer, RecvFlags::DONTWAIT).ok()?;
    read(answer.get(..length)?, from, to)
}

/// The question for one socket, in the machine's byte order but for ports and addresses.
fn question(from: SocketAddr, to: SocketAddr) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(QUESTION);
    bytes.extend(u32::try_from(QUESTION).ok()?.to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(REQUEST.to_ne_bytes());
    bytes.extend([0; 8]);
    let (from_ip, to_ip) = (from.ip().to_canonical(), to.ip().to_canonical());
    let family = if from_ip.is_ipv4() { INET } else { INET6 };
    bytes.extend([family, TCP, 0, 0]);
    // In any state.
    bytes.extend([0xff; 4]);
    bytes.extend(from.port().to_be_bytes());
    bytes.extend(to.port().to_be_bytes());
    for ip in [from_ip, to_ip] {
        let mut room = [0; 16];
        match ip {
            IpAddr::V4(ip) => room[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => room = ip.octets(),
        }
        bytes.extend(room);
    }
    // On any interface, with any cookie.
    bytes.extend([0; 4]);
    bytes.extend([0xff; 8]);
    Some(bytes)
}

/// Reads the owner from an answer, provided that it is about the very socket: the kernel also offers one that only listens.
fn read(answer: &[u8], from: SocketAddr, to: SocketAddr) -> Option<SocketOwner> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let told = answer.get(HEADER..).filter(|_| kind == BY_FAMILY)?;
    let (family, state) = (*told.first()?, *told.get(1)?);
    let identity = told.get(4..4 + IDENTITY)?;
    let port = |at: usize| Some(u16::from_be_bytes(identity.get(at..at + 2)?.try_into().ok()?));
    let ip = |at: usize| {
        let bytes: [u8; 16] = identity.get(at..at + 16)?.try_into().ok()?;
        match family {
            INET => Some(IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]])),
            INET6 => Some(IpAddr::from(bytes).to_canonical()),
            _ => None,
        }
    };
    let same =
        |ip: IpAddr, port: u16, wanted: SocketAddr| ip == wanted.ip().to_canonical() && port == wanted.port();
    if state == TIME_WAIT || !same(ip(4)?, port(0)?, from) || !same(ip(20)?, port(2)?, to) {
        return None;
    }
    // After the identity: expiry, both queues, user, inode.
    let number = |at: usize| {
        let at = 4 + IDENTITY + at;
        Some(u32::from_ne_bytes(told.get(at..at + 4)?.try_into().ok()?))
    };
    SocketOwner::named(number(12)?, number(16)?)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_owner_of_a_living_socket_is_found() {
        let own = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let at = listener.local_addr().unwrap();
            let client = TcpStream::connect(at).unwrap();
            let from = client.local_addr().unwrap();
            assert_eq!(owner(from, at).map(|owner| owner.uid), Some(own), "{address}");
            let (server, _) = listener.accept().unwrap();
            assert_eq!(owner(at, from).map(|owner| owner.uid), Some(own), "{address}");
            drop((client, server));
        }
    }

    /// The kernel lists it under user 0, which the server may run as.
    #[test]
    fn a_socket_that_its_process_closed_belongs_to_nobody() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let client = TcpStream::connect(at).unwrap();
        let from = client.local_addr().unwrap();
        drop(client);
        assert_eq!(owner(from, at), None);
    }

    #[test]
    fn a_socket_that_listens_is_not_taken_for_one_that_is_gone() {
        let (listener, other) =
            (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        assert_eq!(owner(listener.local_addr().unwrap(), other.local_addr().unwrap()), None);
    }

    #[test]
    fn an_answer_about_anything_else_names_nobody() {
        let (from, to) = ("127.0.0.1:4000".parse().unwrap(), "127.0.0.1:5000".parse().unwrap());
        let mut answer = question(from, to).unwrap();
        // As an answer the same bytes lack four in the middle and more at the end.
        answer.drain(HEADER + 4..HEADER + 8);
        answer.extend([0; 12]);
        answer.extend(77_u32.to_ne_bytes());
        answer.extend(78_u32.to_ne_bytes());
        answer[HEADER + 1] = 1;
        assert_eq!(read(&answer, from, to), Some(SocketOwner { uid: 77, inode: 78 }));
        assert_eq!(read(&answer, to, from), None, "another socket");
        for (at, value, why) in
            [(4, 2, "an error"), (HEADER, 9, "another family"), (HEADER + 1, 6, "a memory")]
        {
            let mut other = answer.clone();
            other[at] = value;
            assert_eq!(read(&other, from, to), None, "{why}");
        }
        for length in 0..answer.len() {
            assert_eq!(read(&answer[..length], from, to), None, "cut after {length}");
        }
    }
}

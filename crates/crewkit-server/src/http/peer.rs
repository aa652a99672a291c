//! Who is at the other end of a connection, as far as the connection itself tells.
//!
//! Every user of a machine can connect to a loopback port, and this server can run commands as its own user. What counts are
//! the addresses and credentials that the kernel vouches for, never what the peer can choose. On Linux the kernel tells who
//! owns the other end of a loopback connection; elsewhere only that of a Unix socket.

use std::net::SocketAddr;

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A process of the user that runs the server.
    Owner,
    /// A process that an agent of this user started.
    Agent,
    /// A process of another user.
    OtherUser,
    /// Another machine, or a process that is gone or hidden.
    Unknown,
}

/// How loopback peers are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerPolicy {
    /// By the user and the ancestors of their process.
    Check,
    /// Not at all: whoever can connect is taken for the owner.
    Trust,
}

impl PeerPolicy {
    /// Who is at `peer`, connected to `local`. May read the process table: call it where blocking is allowed.
    ///
    /// The local address decides whether this machine can tell: a peer may bind its own end to any address of the machine.
    pub fn identify(self, peer: SocketAddr, local: SocketAddr) -> Peer {
        match self {
            _ if !local.ip().to_canonical().is_loopback() => Peer::Unknown,
            Self::Trust => Peer::Owner,
            Self::Check => sys::loopback_peer(peer, local),
        }
    }
}

/// Who is at the other end of a Unix socket.
#[cfg(unix)]
pub fn unix_peer(stream: &tokio::net::UnixStream) -> Peer {
    let Ok(credentials) = stream.peer_cred() else { return Peer::Unknown };
    if credentials.uid() != rustix::process::geteuid().as_raw() {
        return Peer::OtherUser;
    }
    sys::own_process(credentials.pid().and_then(|pid| u32::try_from(pid).ok()))
}

#[cfg(target_os = "linux")]
mod sys {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

    use super::Peer;
    use crate::http::lineage;
    use crate::http::socket_owner::{self, SocketOwner};

    /// Who has the socket at `peer` open.
    pub(super) fn loopback_peer(peer: SocketAddr, local: SocketAddr) -> Peer {
        let Some(socket) = socket_owner::owner(peer, local).or_else(|| listed_owner(peer, local)) else {
            return Peer::Unknown;
        };
        if socket.uid != rustix::process::geteuid().as_raw() {
            return Peer::OtherUser;
        }
        // Finding the process means a walk through the process table, which is only worth it while agents are at work.
        if !lineage::any_agent_alive() {
            return Peer::Owner;
        }
        own_process(lineage::holder_of(socket.inode))
    }

    /// Who `pid` is, a process of this user. One that cannot be found may be hiding.
    pub(super) fn own_process(pid: Option<u32>) -> Peer {
        match pid.and_then(lineage::is_agent) {
            Some(false) => Peer::Owner,
            Some(true) => Peer::Agent,
            None => Peer::Unknown,
        }
    }

    /// The owner by the table of all sockets, for kernels that are not built to be asked for one.
    fn listed_owner(peer: SocketAddr, local: SocketAddr) -> Option<SocketOwner> {
        ["/proc/net/tcp", "/proc/net/tcp6"]
            .iter()
            .filter_map(|table| std::fs::read_to_string(table).ok())
            .find_map(|table| owner(&table, peer, local))
    }

    /// The owner of the socket bound to `from` and connected to `to`, in the format of `/proc/net/tcp`.
    pub(super) fn owner(table: &str, from: SocketAddr, to: SocketAddr) -> Option<SocketOwner> {
        table.lines().skip(1).find_map(|row| {
            let mut fields = row.split_ascii_whitespace();
            let here = address(fields.nth(1)?)?;
            let there = address(fields.next()?)?;
            if canonical(here) != canonical(from) || canonical(there) != canonical(to) {
                return None;
            }
            // After the two addresses: state, queues, timer, retransmits, user, timeout, inode.
            let uid = fields.nth(4)?.parse().ok()?;
            SocketOwner::named(uid, fields.nth(1)?.parse().ok()?)
        })
    }

    fn canonical(address: SocketAddr) -> (IpAddr, u16) {
        (address.ip().to_canonical(), address.port())
    }

    /// Reads `0100007F:1FA5`: each 32-bit word of the address is in the machine's byte order.
    fn address(text: &str) -> Option<SocketAddr> {
        let (ip, port) = text.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        let word = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
        let ip = match ip.len() {
            8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
            32 => {
                let mut bytes = [0; 16];
                for (chunk, at) in bytes.chunks_exact_mut(4).zip([0, 8, 16, 24]) {
                    chunk.copy_from_slice(&word(at)?);
                }
                IpAddr::V6(Ipv6Addr::from(bytes))
            }
            _ => return None,
        };
        Some(SocketAddr::new(ip, port))
    }

    #[cfg(all(test, target_endian = "little"))]
    mod tests {
        use super::*;

        const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1FA5 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 100 1\n\
            1: 0100007F:1FA5 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 101 1\n\
            2: 0100007F:D431 0100007F:1FA5 01 00000000:00000000 00:00000000 00000000  1000        0 102 1\n\
            5: 0100007F:D435 0100007F:1FA5 01 00000000:00000000 00:00000000 00000000     0        0   0 1\n\
            3: 00000000000000000000000001000000:D432 00000000000000000000000001000000:1FA5 01 00000000:00000000 00:00000000 00000000  1001 0 103 1\n\
            4: 0000000000000000FFFF00000100007F:D433 0000000000000000FFFF00000100007F:1FA5 01 00000000:00000000 00:00000000 00000000  1002 0 104 1\n";

        #[test]
        fn finds_the_owner_of_the_other_end() {
            for (from, to, owner_id) in [
                ("127.0.0.1:54321", "127.0.0.1:8101", Some(1000)),
                ("[::1]:54322", "[::1]:8101", Some(1001)),
                ("127.0.0.1:54323", "127.0.0.1:8101", Some(1002)),
                ("127.0.0.1:54324", "127.0.0.1:8101", None),
                ("127.0.0.1:54325", "127.0.0.1:8101", None),
                ("127.0.0.1:54321", "127.0.0.1:8102", None),
            ] {
                let found = owner(TABLE, from.parse().unwrap(), to.parse().unwrap());
                assert_eq!(found.map(|owner| owner.uid), owner_id, "{from}");
            }
        }

        #[test]
        fn a_broken_table_admits_nobody() {
            for table in ["", "x\n", "x\n1: 0100007F 0100007F:1FA5", "x\n1: zz:1 yy:2 01"] {
                assert_eq!(
                    owner(table, "127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap()),
                    None
                );
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod sys {
    use std::net::SocketAddr;

    use super::Peer;

    /// The owner of a peer socket cannot be told here; the port is as open as loopback is.
    pub(super) fn loopback_peer(_peer: SocketAddr, _local: SocketAddr) -> Peer {
        Peer::Owner
    }

    /// Ancestors cannot be looked at here; the user was checked.
    #[cfg(unix)]
    pub(super) fn own_process(_pid: Option<u32>) -> Peer {
        Peer::Owner
    }
}

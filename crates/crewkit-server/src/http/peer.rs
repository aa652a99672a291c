//! Whose process is at the other end of a loopback connection.
//!
//! Every user of a machine can connect to a loopback port, and this server can run commands as its own user. On Linux
//! the kernel tells who owns the other end; elsewhere the check is not available.

use std::net::SocketAddr;

/// Which loopback peers are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerPolicy {
    /// Only processes of the user that runs the server.
    SameUser,
    /// Anyone who can connect.
    Anyone,
}

impl PeerPolicy {
    /// Whether `peer`, connected to `local`, is served.
    pub fn admits(self, peer: SocketAddr, local: SocketAddr) -> bool {
        match self {
            Self::Anyone => true,
            // Someone else's machine is not a matter of users; a token is asked for there.
            Self::SameUser if !peer.ip().to_canonical().is_loopback() => true,
            Self::SameUser => sys::same_user(peer, local),
        }
    }
}

#[cfg(target_os = "linux")]
mod sys {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

    use crate::http::socket_owner;

    /// Whether the socket at `peer` belongs to the user of this process. A socket nobody knows of is not ours.
    pub(super) fn same_user(peer: SocketAddr, local: SocketAddr) -> bool {
        let own = rustix::process::geteuid().as_raw();
        socket_owner::owner(peer, local).or_else(|| listed_owner(peer, local)) == Some(own)
    }

    /// The owner by the table of all sockets, for kernels that are not built to be asked for one.
    fn listed_owner(peer: SocketAddr, local: SocketAddr) -> Option<u32> {
        ["/proc/net/tcp", "/proc/net/tcp6"]
            .iter()
            .filter_map(|table| std::fs::read_to_string(table).ok())
            .find_map(|table| owner(&table, peer, local))
    }

    /// The owner of the socket bound to `from` and connected to `to`, in the format of `/proc/net/tcp`.
    pub(super) fn owner(table: &str, from: SocketAddr, to: SocketAddr) -> Option<u32> {
        table.lines().skip(1).find_map(|row| {
            let mut fields = row.split_ascii_whitespace();
            let here = address(fields.nth(1)?)?;
            let there = address(fields.next()?)?;
            if canonical(here) != canonical(from) || canonical(there) != canonical(to) {
                return None;
            }
            // After the two addresses: state, queues, timer, retransmits, owner.
            fields.nth(4)?.parse().ok()
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
            3: 00000000000000000000000001000000:D432 00000000000000000000000001000000:1FA5 01 00000000:00000000 00:00000000 00000000  1001 0 103 1\n\
            4: 0000000000000000FFFF00000100007F:D433 0000000000000000FFFF00000100007F:1FA5 01 00000000:00000000 00:00000000 00000000  1002 0 104 1\n";

        #[test]
        fn finds_the_owner_of_the_other_end() {
            for (from, to, owner_id) in [
                ("127.0.0.1:54321", "127.0.0.1:8101", Some(1000)),
                ("[::1]:54322", "[::1]:8101", Some(1001)),
                ("127.0.0.1:54323", "127.0.0.1:8101", Some(1002)),
                ("127.0.0.1:54324", "127.0.0.1:8101", None),
                ("127.0.0.1:54321", "127.0.0.1:8102", None),
            ] {
                assert_eq!(owner(TABLE, from.parse().unwrap(), to.parse().unwrap()), owner_id, "{from}");
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

    /// The owner of a peer socket cannot be told here; the port is as open as loopback is.
    pub(super) fn same_user(_peer: SocketAddr, _local: SocketAddr) -> bool {
        true
    }
}

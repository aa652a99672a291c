//! The calls that a confined command cannot make, because Landlock does not look at what they do.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, sock_filter,
};

/// Marks calls of the second kind x86-64 kernels may take: the same calls under other numbers.
const X32: u32 = 0x4000_0000;
/// The part of a socket's type that is not a flag.
const TYPE_MASK: u64 = 0xf;
/// Largest value of a socket's type.
const TYPES: std::ops::RangeInclusive<u64> = 0..=TYPE_MASK;
/// Sends the first data together with the wish to connect, past the check of the address.
const MSG_FASTOPEN: u64 = 0x2000_0000;
/// Types a character into a terminal.
const TIOCSTI: u64 = 0x5412;
/// Pastes into a console, among other things.
const TIOCLINUX: u64 = 0x541c;
/// Replaces the protocol of a TCP socket by one whose connections are not checked.
const TCP_ULP: u64 = 31;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Forbids the calls to this process and everything it starts. Processes without new privileges may do so.
pub(super) fn apply(network: bool, unix_sockets: bool) -> Result<(), String> {
    let no = |error: &dyn std::fmt::Display| format!("calls cannot be forbidden: {error}");
    let here = std::env::consts::ARCH.try_into().map_err(|error: BackendError| no(&error))?;
    let refuse = SeccompAction::Errno(libc::EACCES.unsigned_abs());
    let forbidden = forbidden(network, unix_sockets).map_err(|error| no(&error))?;
    // Calls of a 32-bit program come under another architecture's name and end the process.
    let filter = SeccompFilter::new(forbidden, SeccompAction::Allow, refuse, here)
        .and_then(BpfProgram::try_from)
        .map_err(|error| no(&error))?;
    seccompiler::apply_filter(&filter).map_err(|error| no(&error))?;
    seccompiler::apply_filter(&no_x32()).map_err(|error| no(&error))
}

fn forbidden(network: bool, unix_sockets: bool) -> Result<Rules, BackendError> {
    let mut rules = Rules::new();
    rules.insert(libc::SYS_socket, sockets(network, unix_sockets)?);
    // A pair that is connected already reaches nobody else; one for datagrams can be sent anywhere.
    if !unix_sockets {
        let reaches_others = TYPES.filter(|kind| ![stream(), seqpacket()].contains(kind));
        let pairs: Result<_, _> = reaches_others.map(|kind| rule(vec![type_is(1, kind)?])).collect();
        rules.insert(libc::SYS_socketpair, pairs?);
    }
    for (call, flags_at) in [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)] {
        let fast_open = condition(flags_at, SeccompCmpOp::MaskedEq(MSG_FASTOPEN), MSG_FASTOPEN)?;
        rules.insert(call, vec![rule(vec![fast_open])?]);
    }
    let tcp = condition(1, SeccompCmpOp::Eq, number(libc::IPPROTO_TCP))?;
    rules.insert(libc::SYS_setsockopt, vec![rule(vec![tcp, condition(2, SeccompCmpOp::Eq, TCP_ULP)?])?]);
    // Typing into a terminal, should one ever be in reach.
    let typing: Result<_, _> = [TIOCSTI, TIOCLINUX]
        .into_iter()
        .map(|order| rule(vec![condition(1, SeccompCmpOp::Eq, order)?]))
        .collect();
    rules.insert(libc::SYS_ioctl, typing?);
    // Limits and priorities of other processes: one that may use no processor time is as good as killed.
    for (call, whose) in [(libc::SYS_prlimit64, 0), (libc::SYS_setpriority, 1)] {
        rules.insert(call, vec![rule(vec![condition(whose, SeccompCmpOp::Ne, 0)?])?]);
    }
    // The ring makes calls that no filter sees; keys belong to the user, not to a directory.
    for call in [
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_keyctl,
    ] {
        rules.insert(call, Vec::new());
    }
    Ok(rules)
}

/// Which sockets cannot be made: all but TCP, UDP and echo requests over IP and questions about routes, and those only with the
/// network. Other protocols reach the same servers without the check that Landlock makes of TCP.
fn sockets(network: bool, unix_sockets: bool) -> Result<Vec<SeccompRule>, BackendError> {
    const DOMAIN: u8 = 0;
    const PROTOCOL: u8 = 2;
    let is = |domain| condition(DOMAIN, SeccompCmpOp::Eq, domain);
    let (v4, v6) = (number(libc::AF_INET), number(libc::AF_INET6));
    let (routes, local) = (number(libc::AF_NETLINK), number(libc::AF_UNIX));
    let mut domains = Vec::new();
    if network {
        domains.extend([v4, v6, routes]);
    }
    if unix_sockets {
        domains.push(local);
    }
    let mut rules = Vec::new();
    if domains.is_empty() {
        return Ok(rules);
    }
    let other_domain: Result<_, _> =
        domains.iter().map(|domain| condition(DOMAIN, SeccompCmpOp::Ne, *domain)).collect();
    rules.push(rule(other_domain?)?);
    for (domain, echo) in [(v4, libc::IPPROTO_ICMP), (v6, libc::IPPROTO_ICMPV6)] {
        let mut other_protocol = vec![is(domain)?];
        for protocol in [0, libc::IPPROTO_TCP, libc::IPPROTO_UDP, echo] {
            other_protocol.push(condition(PROTOCOL, SeccompCmpOp::Ne, number(protocol))?);
        }
        rules.push(rule(other_protocol)?);
        for kind in TYPES.filter(|kind| ![stream(), datagram()].contains(kind)) {
            rules.push(rule(vec![is(domain)?, type_is(1, kind)?])?);
        }
    }
    let not_routes = condition(PROTOCOL, SeccompCmpOp::Ne, number(libc::NETLINK_ROUTE))?;
    rules.push(rule(vec![is(routes)?, not_routes])?);
    Ok(rules)
}

fn rule(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions)
}

fn condition(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

fn type_is(argument: u8, kind: u64) -> Result<SeccompCondition, BackendError> {
    condition(argument, SeccompCmpOp::MaskedEq(TYPE_MASK), kind)
}

fn number(value: libc::c_int) -> u64 {
    u64::from(value.unsigned_abs())
}

fn stream() -> u64 {
    number(libc::SOCK_STREAM)
}

fn datagram() -> u64 {
    number(libc::SOCK_DGRAM)
}

fn seqpacket() -> u64 {
    number(libc::SOCK_SEQPACKET)
}

/// A filter that knows no calls under their other numbers, whatever they are.
fn no_x32() -> BpfProgram {
    // The instructions `BPF_LD | BPF_W | BPF_ABS`, `BPF_JMP | BPF_JSET | BPF_K` and `BPF_RET | BPF_K`.
    const LOAD_CALL: u16 = 0x20;
    const HAS_BITS: u16 = 0x45;
    const RETURN: u16 = 0x06;
    let unknown = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();
    vec![
        sock_filter { code: LOAD_CALL, jt: 0, jf: 0, k: 0 },
        sock_filter { code: HAS_BITS, jt: 0, jf: 1, k: X32 },
        sock_filter { code: RETURN, jt: 0, jf: 0, k: unknown },
        sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ]
}

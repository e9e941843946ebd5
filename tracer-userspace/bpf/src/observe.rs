//! Makes observations of kernel events: numbers become names, v4-mapped addresses become IPv4, absent values become `None`.

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use tracer_common::{
    ABSENT_ERRNO, ABSENT32, ABSENT64, actor, conn, drop,
    events::KernelEvent,
    link,
    listen::{self, Change, ONE_DEVICE, ONLY_V6},
    names::Hook,
    netfilter, netns, reset,
    tuple::Tuple,
};

use crate::ebpf::KernelNames;
use tracer_model::event::{
    Actor, Ancestor, Answer, AnswerKind, ConnId, Connect, ConnectFailed, Device, Flow, Held, Icmp, Ipvs, IpvsOp,
    LinkChange, Listen, ListenQueue, Netns, NetnsOp, NetnsOpKind, NetnsOpen, Observation, ObservationKind, PacketDrop,
    PodConnectFailed, QueueFull, ResetReceived, ResetSent, Retransmit, State, TcpFlags, TcpState, TlsHello, Tracked,
    Via,
};
use tracer_node::netlink::text;

/// Makes an observation of an event. `probers` are the names that the programs have. Returns `None` for unknown numbers, and for
/// the event that reports a new prober: other events show what it does. Nor is it of interest that a process gets memory to end.
pub fn observe(event: &KernelEvent, names: &mut KernelNames, probers: &[String]) -> Option<Observation> {
    let kind = match event {
        KernelEvent::Connect(e) => ObservationKind::Connect(connect(e, probers)?),
        KernelEvent::State(e) => ObservationKind::State(state(e)),
        KernelEvent::ConnectResult(e) => ObservationKind::ConnectFailed(connect_failed(e, probers)),
        KernelEvent::Retransmit(e) => ObservationKind::Retransmit(retransmit(e)),
        KernelEvent::ResetSent(e) => ObservationKind::ResetSent(reset_sent(e, names)?),
        KernelEvent::ResetReceived(e) => ObservationKind::ResetReceived(reset_received(e)),
        KernelEvent::Drop(e) => ObservationKind::Drop(packet_drop(e, names)?),
        KernelEvent::Listen(e) => ObservationKind::Listen(listen_change(e)?),
        KernelEvent::TlsHello(e) => ObservationKind::TlsHello(TlsHello {
            netns: present32(e.netns).map(Netns),
            addr: SocketAddr::new(addr(&e.addr), e.port),
        }),
        KernelEvent::NetnsOp(e) => ObservationKind::NetnsOp(netns_op(e)?),
        KernelEvent::NetnsOpen(e) => {
            ObservationKind::NetnsOpen(NetnsOpen { actor: task(&e.actor), path: text(&e.path) })
        }
        KernelEvent::Link(e) => ObservationKind::LinkChange(link_change(e)?),
        KernelEvent::Icmp(e) => ObservationKind::Icmp(icmp(e)),
        KernelEvent::Ipvs(e) => ObservationKind::Ipvs(ipvs(e)?),
        KernelEvent::Answer(e) => ObservationKind::Answer(answer(e)?),
        KernelEvent::QueueFull(e) => ObservationKind::QueueFull(queue_full(e)?),
        KernelEvent::PodConnect(e) => ObservationKind::PodConnectFailed(PodConnectFailed {
            netns: Netns(e.netns),
            dst: SocketAddr::new(addr(&e.addr), e.port),
            udp: e.udp != 0,
            errno: e.errno,
        }),
        KernelEvent::Held(e) => ObservationKind::Held(Held { conn: ConnId(e.conn) }),
        KernelEvent::OomKill(e) if !is_killed(e, names) => return None,
        KernelEvent::OomKill(e) => ObservationKind::OomKill(task(&e.victim)),
        KernelEvent::Prober(_) => return None,
    };
    Some(Observation { time_boot_ns: event.header().time_boot_ns, kind })
}

/// These mark a process (`mark_oom_victim`, mm/oom_kill.c). Only the first one kills it. The others found that it ends anyway
/// (`task_will_free_mem`), and let it have the memory that it needs for that.
const MARKS_VICTIMS: [&str; 3] = ["__oom_kill_process", "oom_kill_process", "out_of_memory"];

/// The kernel killed the process. Where it hides its functions, one that ends anyway looks the same.
fn is_killed(e: &actor::OomKill, names: &mut KernelNames) -> bool {
    let mut callers = e.stack.iter().take_while(|address| **address != 0);
    let marks = callers.find_map(|address| {
        let name = plain(names.symbol(*address)?);
        MARKS_VICTIMS.iter().position(|it| *it == name)
    });
    marks.is_none_or(|place| place == 0)
}

fn connect(e: &conn::Connect, probers: &[String]) -> Option<Connect> {
    Some(Connect {
        conn: ConnId(e.conn),
        flow: flow(&e.tuple),
        prober: is_prober(&e.actor, probers),
        actor: task(&e.actor),
        netns: Netns(e.netns),
        hook: Hook::from_number(e.header.hook)?,
    })
}

fn state(e: &conn::State) -> State {
    State {
        conn: ConnId(e.conn),
        flow: flow(&e.tuple),
        old: tcp_state(e.old),
        new: tcp_state(e.new),
        errno: (e.errno != ABSENT_ERRNO).then_some(e.errno),
        bytes_received: present64(e.bytes_received),
        bytes_sent: present64(e.bytes_sent),
        bytes_acked: present64(e.bytes_acked),
        own_context: e.own_context != 0,
        unsent: e.unsent != 0,
        quiet_ns: present32(e.quiet_us).map(|us| u64::from(us) * 1000),
    }
}

fn connect_failed(e: &conn::ConnectResult, probers: &[String]) -> ConnectFailed {
    ConnectFailed {
        conn: (e.conn != 0).then_some(ConnId(e.conn)),
        dst: flow(&e.tuple).dst,
        prober: is_prober(&e.actor, probers),
        actor: task(&e.actor),
        errno: e.errno,
    }
}

fn retransmit(e: &conn::Retransmit) -> Retransmit {
    Retransmit {
        conn: ConnId(e.conn),
        state: tcp_state(e.state),
        payload: Some(e.payload),
        by_target: e.by_target != 0,
    }
}

fn answer(e: &conn::Answer) -> Option<Answer> {
    Some(Answer {
        conn: ConnId(e.conn),
        kind: AnswerKind::from_number(e.kind)?,
        status: (e.status != 0).then_some(e.status),
        asked: (e.flags & (conn::ANSWER_AFTER_REQUEST | conn::ANSWER_WITHOUT_REQUEST) != 0)
            .then_some(e.flags & conn::ANSWER_AFTER_REQUEST != 0),
        len: (e.len != 0).then_some(e.len),
        says_tls: e.flags & conn::ANSWER_MENTIONS_TLS != 0,
    })
}

fn queue_full(e: &listen::QueueFull) -> Option<QueueFull> {
    Some(QueueFull {
        conn: ConnId(e.conn),
        queue: ListenQueue::from_number(e.queue)?,
        waiting: e.waiting,
        backlog: e.backlog,
        half_open: e.half_open,
        netns: present32(e.netns).map(Netns),
    })
}

fn reset_sent(e: &reset::ResetSent, names: &KernelNames) -> Option<ResetSent> {
    // 6.10 and 6.11 give this reason for each RST of a process.
    let is_given = |reason: &String| e.active == 0 || reason != "NOT_SPECIFIED";
    Some(ResetSent {
        conn: ConnId(e.conn),
        flow: flow(&e.tuple),
        actor: (e.active != 0).then(|| task(&e.actor)),
        reason: present32(e.reason).map(|r| names.reset_reason(r)).filter(is_given),
        netns: present32(e.netns).map(Netns),
        answered: TcpFlags(e.answered_flags),
        state: (e.no_socket == 0).then(|| tcp_state(e.state)),
        no_socket: e.no_socket != 0,
        unread: (e.unread != 0).then_some(e.unread == 1),
        via: Via::from_number(e.via)?,
        hook: Hook::from_number(e.header.hook)?,
    })
}

fn reset_received(e: &reset::ResetReceived) -> ResetReceived {
    ResetReceived {
        conn: ConnId(e.conn),
        flow: flow(&e.tuple),
        state: tcp_state(e.state),
        bytes_received: present64(e.bytes_received),
        unread: present32(e.unread),
    }
}

fn packet_drop(e: &drop::PacketDrop, names: &mut KernelNames) -> Option<PacketDrop> {
    let reason = present32(e.reason).map(|r| names.drop_reason(r));
    // These reasons do not show the cause alone: the function and its callers decide. A RST without a reason needs no
    // symbols on kernels that have reasons: its receiver frees it.
    let needs_symbols = match reason.as_deref() {
        None | Some("NETFILTER_DROP") => true,
        Some("NOT_SPECIFIED") => !TcpFlags(e.tcp_flags).is_rst(),
        Some(_) => false,
    };
    let (location, stack) = if needs_symbols { symbolize(e, names) } else { (None, Vec::new()) };
    let refused_by = is_refused(location.as_deref(), &stack).then(|| refuser(e));
    Some(PacketDrop {
        conn: ConnId(e.conn),
        flow: flow(&e.tuple),
        flags: TcpFlags(e.tcp_flags),
        reason,
        location,
        stack,
        netns: present32(e.netns).map(Netns),
        device: present32(e.if_flags).map(|flags| Device {
            ifindex: e.ifindex,
            name: text(&e.ifname),
            up: flags & link::IFF_UP != 0,
            loopback: flags & link::IFF_LOOPBACK != 0,
        }),
        tracked: present64(e.nfct).map(tracked),
        via: Via::from_number(e.via)?,
        refused_by,
    })
}

/// These take the verdicts of an NFQUEUE's process, in its context (net/netfilter/nfnetlink_queue.c).
const TAKES_VERDICTS: [&str; 2] = ["nfqnl_recv_verdict", "nfqnl_recv_verdict_batch"];
/// These free a packet with the verdict to drop (net/netfilter/nf_queue.c; newer kernels: nfnetlink_queue.c).
const REINJECTS: [&str; 2] = ["nf_reinject", "nfqnl_reinject"];

/// The kernel freed the packet while it took the verdict of an NFQUEUE's process. A packet that the process accepts goes
/// on in the same context, and may be freed elsewhere. A queue that is flushed, because its process ends or rules
/// change, frees its packets at the same place, without a verdict.
fn is_refused(location: Option<&str>, stack: &[String]) -> bool {
    let takes = |name: &str| TAKES_VERDICTS.contains(&plain(name));
    let Some(place) = location else { return false };
    takes(place) || REINJECTS.contains(&plain(place)) && stack.iter().any(|name| takes(name))
}

/// Without what the compiler appends: `nf_reinject.isra.0`.
fn plain(name: &str) -> &str {
    name.split('.').next().unwrap_or_default()
}

fn refuser(e: &drop::PacketDrop) -> Actor {
    let (pid, tid) = ((e.pid_tgid >> 32) as u32, e.pid_tgid as u32);
    Actor { pid, tid, comm: text(&e.comm), netns: None, cgroup: None, cgroup_memory: None }
}

/// See `NFCT_PTRMASK` and `enum ip_conntrack_info`: `notrack` sets `IP_CT_UNTRACKED` without an entry.
const fn tracked(nfct: u64) -> Tracked {
    match nfct {
        0 => Tracked::No,
        1..=7 => Tracked::Untracked,
        _ => Tracked::Yes,
    }
}

/// 5.10 on arm64 reports this function as the location, but its caller dropped the packet.
const KFREE_SKB: &str = "kfree_skb";

/// Names of the function that dropped the packet, and of its callers. The stack begins inside of the tracepoint: the frames
/// before the location do not matter.
fn symbolize(e: &drop::PacketDrop, names: &mut KernelNames) -> (Option<String>, Vec<String>) {
    let mut location = names.location(e.location).map(str::to_owned);
    let mut stack: Vec<String> = e
        .stack
        .iter()
        .take_while(|address| **address != 0)
        .map(|address| names.symbol(*address).map_or_else(|| "?".to_owned(), str::to_owned))
        .collect();
    let by_name = || stack.iter().position(|name| Some(name) == location.as_ref());
    let mut found = e.stack.iter().position(|a| *a == e.location).or_else(by_name);
    if location.as_deref() == Some(KFREE_SKB) {
        found = found.map(|at| at + 1);
        let caller = found.and_then(|at| e.stack.get(at)).filter(|address| **address != 0);
        location = caller.and_then(|address| names.location(*address)).map(str::to_owned);
    }
    if let Some(at) = found {
        stack.drain(..stack.len().min(at + 1));
    }
    (location, stack)
}

fn listen_change(e: &listen::Listen) -> Option<Listen> {
    let change = Change::from_number(e.change.into())?;
    let addr = SocketAddr::new(addr(&e.addr), e.port);
    Some(Listen {
        netns: Netns(e.netns),
        addr,
        actor: task(&e.actor),
        begins: change != Change::Ends,
        // The function of this hook can fail: another socket may listen on the port.
        bound: change == Change::Bound || change == Change::Begins && e.header.hook == Hook::InetCskListen as u16,
        // The kernel sets the bit of each socket that has another IPv6 address, but only after its bind (`__inet6_bind`).
        only_v6: e.limits & ONLY_V6 != 0 && addr.ip() == Ipv6Addr::UNSPECIFIED,
        one_device: e.limits & ONE_DEVICE != 0,
    })
}

fn netns_op(e: &netns::NetnsOp) -> Option<NetnsOp> {
    Some(NetnsOp {
        actor: task(&e.actor),
        ancestors: ancestors(&e.ancestors),
        netns: Netns(e.netns),
        op: NetnsOpKind::from_number(e.op)?,
    })
}

fn link_change(e: &link::Link) -> Option<LinkChange> {
    Some(LinkChange {
        netns: Netns(e.netns),
        ifindex: e.ifindex,
        name: text(&e.ifname),
        // `qdisc_reset` does not have the new flags. It is written only for a device that goes down.
        up: present32(e.new_flags).is_some_and(|flags| flags & link::IFF_UP != 0),
        actor: task(&e.actor),
        ancestors: ancestors(&e.ancestors),
        exe: Some(text(&e.exe)).filter(|path| !path.is_empty()),
        cni_netns: Some(text(&e.cni_netns)).filter(|path| !path.is_empty()),
        hook: Hook::from_number(e.header.hook)?,
    })
}

fn icmp(e: &netfilter::Icmp) -> Icmp {
    Icmp {
        conn: ConnId(e.conn),
        flow: flow(&e.tuple),
        flags: TcpFlags(e.tcp_flags),
        v6: e.v6 != 0,
        icmp_type: e.icmp_type,
        code: e.code,
        netns: present32(e.netns).map(Netns),
    }
}

fn ipvs(e: &netfilter::Ipvs) -> Option<Ipvs> {
    Some(Ipvs {
        conn: ConnId(e.conn),
        flow: flow(&e.tuple),
        flags: TcpFlags(e.tcp_flags),
        op: IpvsOp::from_number(e.op)?,
        via: Via::from_number(u16::from(e.via))?,
        netns: present32(e.netns).map(Netns),
    })
}

pub fn task(e: &actor::Actor) -> Actor {
    Actor {
        pid: e.pid,
        tid: e.tid,
        comm: text(&e.comm),
        netns: present32(e.netns).map(Netns),
        // 1 is the root. On a hybrid hierarchy the helper returns it for every process.
        cgroup: present64(e.cgroup).filter(|id| *id > 1),
        cgroup_memory: present64(e.cgroup_memory),
    }
}

fn ancestors(list: &[actor::Ancestor]) -> Vec<Ancestor> {
    list.iter().take_while(|a| a.pid != 0).map(|a| Ancestor { pid: a.pid, comm: text(&a.comm) }).collect()
}

fn is_prober(e: &actor::Actor, probers: &[String]) -> bool {
    let comm = e.comm.split(|byte| *byte == 0).next().unwrap_or_default();
    probers.iter().any(|name| {
        let name = name.as_bytes();
        comm == &name[..name.len().min(actor::COMM_LEN - 1)]
    })
}

fn flow(tuple: &Tuple) -> Flow {
    Flow {
        src: SocketAddr::new(addr(&tuple.saddr), tuple.sport),
        dst: SocketAddr::new(addr(&tuple.daddr), tuple.dport),
    }
}

fn addr(bytes: &[u8; 16]) -> IpAddr {
    Ipv6Addr::from(*bytes).to_canonical()
}

/// `include/net/tcp_states.h`
fn tcp_state(number: u8) -> TcpState {
    match number {
        1 => TcpState::Established,
        2 => TcpState::SynSent,
        3 => TcpState::SynRecv,
        4 => TcpState::FinWait1,
        5 => TcpState::FinWait2,
        6 => TcpState::TimeWait,
        7 => TcpState::Close,
        8 => TcpState::CloseWait,
        9 => TcpState::LastAck,
        10 => TcpState::Listen,
        11 => TcpState::Closing,
        12 => TcpState::NewSynRecv,
        _ => TcpState::Unknown,
    }
}

fn present32(value: u32) -> Option<u32> {
    (value != ABSENT32).then_some(value)
}

fn present64(value: u64) -> Option<u64> {
    (value != ABSENT64).then_some(value)
}

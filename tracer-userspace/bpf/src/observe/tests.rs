//! Events as the programs write them. The scenarios prove that real kernels write such events.

use super::*;
use tracer_common::names::Hook;
use tracer_testing::address;

const CONN: u64 = 7;
/// The flow of `v4()` in an observation.
const FLOW: [&str; 2] = ["10.0.0.1:40000", "10.0.0.2:8080"];

/// An event of this hook with all other bits zero, as the programs initialize it.
fn blank<T: tracer_common::events::Event>(hook: Hook) -> T {
    let mut bytes = vec![0_u8; size_of::<T>()];
    bytes[12..14].copy_from_slice(&(hook as u16).to_ne_bytes());
    // SAFETY: the length is the type's; `Event` types are valid for every bit pattern.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}

fn mapped(last: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]
}

fn v4() -> Tuple {
    Tuple { saddr: mapped(1), daddr: mapped(2), sport: 40000, dport: 8080, reserved: 0 }
}

fn expected_flow() -> Flow {
    let [src, dst] = FLOW.map(address);
    Flow { src, dst }
}

fn bytes<const N: usize>(text: &str) -> [u8; N] {
    let mut all = [0; N];
    all[..text.len()].copy_from_slice(text.as_bytes());
    all
}

fn kind(event: KernelEvent) -> Option<ObservationKind> {
    observe(&event, &mut KernelNames::default(), &[]).map(|observation| observation.kind)
}

fn seen_state(change: impl FnOnce(&mut conn::State)) -> State {
    let mut event: conn::State = blank(Hook::InetSockSetState);
    (event.conn, event.tuple, event.old, event.new) = (CONN, v4(), 2, 7);
    change(&mut event);
    let Some(ObservationKind::State(state)) = kind(KernelEvent::State(event)) else { panic!("no state") };
    state
}

#[test]
fn each_number_of_a_state_has_its_field() {
    let state = seen_state(|e| {
        (e.bytes_received, e.bytes_sent, e.bytes_acked, e.errno, e.own_context) = (1, 2, 3, 111, 1);
        e.quiet_us = 900;
    });
    assert_eq!((state.conn, state.flow), (ConnId(CONN), expected_flow()));
    assert_eq!((state.old, state.new), (TcpState::SynSent, TcpState::Close));
    assert_eq!((state.bytes_received, state.bytes_sent, state.bytes_acked), (Some(1), Some(2), Some(3)));
    assert_eq!((state.errno, state.own_context, state.quiet_ns), (Some(111), true, Some(900_000)));
    let zero = seen_state(|_| ());
    assert_eq!((zero.errno, zero.bytes_received, zero.own_context), (Some(0), Some(0), false));
}

#[test]
fn values_that_the_kernel_lacks_are_absent() {
    let state = seen_state(|e| {
        (e.bytes_received, e.bytes_sent, e.bytes_acked) = (ABSENT64, ABSENT64, ABSENT64);
        (e.errno, e.quiet_us) = (ABSENT_ERRNO, ABSENT32);
    });
    assert_eq!((state.bytes_received, state.bytes_sent, state.bytes_acked, state.errno), (None, None, None, None));
    assert_eq!(state.quiet_ns, None);
    let mut actor: actor::Actor = blank::<conn::Connect>(Hook::TcpConnect).actor;
    (actor.netns, actor.cgroup, actor.cgroup_memory) = (ABSENT32, ABSENT64, ABSENT64);
    assert_eq!((task(&actor).netns, task(&actor).cgroup, task(&actor).cgroup_memory), (None, None, None));
    (actor.netns, actor.cgroup, actor.cgroup_memory) = (0, 1, 1);
    let of_root = task(&actor);
    assert_eq!((of_root.netns, of_root.cgroup, of_root.cgroup_memory), (Some(Netns(0)), None, Some(1)));
    actor.cgroup = 2;
    assert_eq!(task(&actor).cgroup, Some(2));
}

#[test]
fn a_prober_name_is_compared_as_the_kernel_cuts_it() {
    let probers = ["kubelet", "a-name-of-15-by", "k3s-server-of-twenty"].map(str::to_owned);
    let is = |comm: &str| {
        let mut event: conn::Connect = blank(Hook::TcpConnect);
        event.actor.comm = bytes(comm);
        connect(&event, &probers).expect("a connect").prober
    };
    assert!(is("kubelet") && is("a-name-of-15-by") && is("k3s-server-of-t"));
    assert!(!is("kubele") && !is("kubelet2") && !is("a-name-of-15-b") && !is(""));
}

#[test]
fn addresses_are_of_their_family() {
    assert_eq!(flow(&v4()), expected_flow());
    let v6 = Tuple { daddr: bytes(" 123456789abcdef"), ..v4() };
    assert_eq!(flow(&v6).dst.to_string(), "[2031:3233:3435:3637:3839:6162:6364:6566]:8080");
    assert_eq!(addr(&[0; 16]).to_string(), "::", "a listener on all addresses");
}

/// The port may be taken.
#[test]
fn a_listener_at_the_entry_of_its_function_is_not_certain() {
    let listens = |hook, change: Change| {
        let mut event: listen::Listen = blank(hook);
        event.change = change as u8;
        listen_change(&event).map(|it| (it.begins, it.bound))
    };
    assert_eq!(listens(Hook::InetCskListen, Change::Begins), Some((true, true)));
    assert_eq!(listens(Hook::InetCskListen, Change::Ends), Some((false, false)));
    assert_eq!(listens(Hook::InetSockSetState, Change::Begins), Some((true, false)));
}

#[test]
fn only_a_listener_on_all_addresses_is_for_ipv6_only() {
    let limits = |addr: [u8; 16], limits| {
        let mut event: listen::Listen = blank(Hook::InetSockSetState);
        (event.addr, event.limits) = (addr, limits);
        listen_change(&event).map(|it| (it.only_v6, it.one_device))
    };
    assert_eq!(limits([0; 16], ONLY_V6), Some((true, false)));
    assert_eq!(limits([1; 16], ONLY_V6), Some((false, false)));
    assert_eq!(limits([0; 16], ONE_DEVICE), Some((false, true)));
}

fn reset(change: impl FnOnce(&mut reset::ResetSent)) -> ResetSent {
    let mut event: reset::ResetSent = blank(Hook::TcpSendReset);
    (event.conn, event.tuple, event.via, event.state) = (CONN, v4(), conn::Via::Flow as u16, 10);
    change(&mut event);
    let Some(ObservationKind::ResetSent(reset)) = kind(KernelEvent::ResetSent(event)) else { panic!("no reset") };
    reset
}

#[test]
fn a_reset_without_a_socket_has_no_state() {
    let plain = reset(|_| ());
    assert_eq!((plain.state, plain.no_socket, plain.via), (Some(TcpState::Listen), false, Via::Flow));
    assert_eq!((plain.actor, plain.hook), (None, Hook::TcpSendReset));
    let bare = reset(|e| (e.no_socket, e.active, e.reason, e.netns) = (1, 1, ABSENT32, ABSENT32));
    assert_eq!((bare.state, bare.no_socket, bare.reason, bare.netns), (None, true, None, None));
    assert!(bare.actor.is_some());
    let unread = [0, 1, 2].map(|number| reset(|e| e.unread = number).unread);
    assert_eq!(unread, [None, Some(true), Some(false)]);
}

#[test]
fn a_reason_that_6_10_gives_each_rst_of_a_process_is_none() {
    let reason = |active, number| {
        let mut event: reset::ResetSent = blank(Hook::TcpSendReset);
        (event.via, event.active, event.reason) = (conn::Via::Flow as u16, active, number);
        let names = KernelNames::of(&[(1, "NOT_SPECIFIED"), (2, "TCP_STATE")], "");
        reset_sent(&event, &names).and_then(|reset| reset.reason)
    };
    let not_specified = Some("NOT_SPECIFIED".to_owned());
    assert_eq!((reason(1, 1), reason(1, 2), reason(0, 1)), (None, Some("TCP_STATE".into()), not_specified));
}

#[test]
fn a_received_reset_is_no_sent_one() {
    let mut event: reset::ResetReceived = blank(Hook::TcpReceiveReset);
    (event.conn, event.tuple, event.state, event.bytes_received) = (CONN, v4(), 1, ABSENT64);
    event.unread = 80;
    let expected = ResetReceived {
        conn: ConnId(CONN),
        flow: expected_flow(),
        state: TcpState::Established,
        bytes_received: None,
        unread: Some(80),
    };
    assert_eq!(kind(KernelEvent::ResetReceived(event)), Some(ObservationKind::ResetReceived(expected)));
}

#[test]
fn a_conntrack_entry_is_a_pointer_a_mark_or_absent() {
    let of = [0, 1, 7, 8, 0xffff_8881_0000_0002].map(tracked);
    assert_eq!(of, [Tracked::No, Tracked::Untracked, Tracked::Untracked, Tracked::Yes, Tracked::Yes]);
}

const FUNCTIONS: &str = "ffffffff81001000 T kfree_skb_reason\nffffffff81002000 T nf_hook_slow\n\
    ffffffff81003000 T ip_local_deliver\nffffffff81004000 T nft_do_chain\nffffffff81005000 T vfs_read\n\
    ffffffff81006000 T kfree_skb\n";

fn at(low: u64) -> u64 {
    0xffff_ffff_8100_0000 + low
}

/// The location and the callers in the observation of a drop with this reason.
fn dropped(reason: u32, flags: u8, location: u64, stack: &[u64]) -> PacketDrop {
    let mut event: drop::PacketDrop = blank(Hook::KfreeSkb);
    (event.reason, event.tcp_flags, event.via, event.location) = (reason, flags, 2, at(location));
    (event.if_flags, event.nfct, event.netns) = (ABSENT32, ABSENT64, ABSENT32);
    event.stack.iter_mut().zip(stack).for_each(|(place, low)| *place = at(*low));
    let mut names = KernelNames::of(&[(2, "NOT_SPECIFIED"), (5, "TCP_CSUM")], FUNCTIONS);
    let Some(observation) = observe(&KernelEvent::Drop(event), &mut names, &[]) else { panic!("no drop") };
    let ObservationKind::Drop(drop) = observation.kind else { panic!("{observation:?}") };
    drop
}

#[test]
fn the_stack_of_a_drop_begins_after_its_location() {
    let callers = |location, stack: &[u64]| dropped(2, 2, location, stack).stack;
    assert_eq!(callers(0x4010, &[0x1008, 0x4010, 0x2004, 0x3004]), ["nf_hook_slow", "ip_local_deliver"]);
    assert_eq!(callers(0x4010, &[0x1008, 0x4020, 0x2004]), ["nf_hook_slow"], "the same function, further on");
    assert_eq!(callers(0x4010, &[0x2004, 0x3004]), ["nf_hook_slow", "ip_local_deliver"], "it is not in the stack");
    assert_eq!(callers(0x4010, &[0x4010]), [""; 0]);
    assert_eq!(callers(0x2008, &[0x2008, 0x5004, 0x50_0000]), ["?", "?"], "not the network's, and in no function");
    assert_eq!(dropped(2, 2, 0x4010, &[]).location.as_deref(), Some("nft_do_chain"));
}

#[test]
fn only_a_verdict_of_a_queues_process_refuses_a_packet() {
    let refused = |place, stack: &[&str]| {
        let stack: Vec<String> = stack.iter().map(|name| (*name).to_owned()).collect();
        is_refused(Some(place), &stack)
    };
    assert!(refused("nf_reinject", &["nfqnl_recv_verdict", "nfnetlink_rcv_msg"]));
    assert!(refused("nfqnl_reinject.isra.0", &["nfqnl_recv_verdict_batch"]) && refused("nfqnl_recv_verdict", &[]));
    assert!(!refused("nfqnl_reinject", &["nfqnl_flush", "nfqnl_nf_hook_drop"]), "the queue was flushed");
    assert!(!refused("nft_do_chain", &["nf_hook_slow", "nfqnl_recv_verdict"]), "the process accepted it");
}

/// The caller of `mark_oom_victim` tells.
#[test]
fn a_process_that_ends_anyway_is_not_killed_for_lack_of_memory() {
    let functions = "ffffffff81001000 t mark_oom_victim\nffffffff81002000 t __oom_kill_process\n\
        ffffffff81003000 t oom_kill_process.cold\nffffffff81004000 T out_of_memory\n";
    let reports = |functions: &str, stack: &[u64]| {
        let mut event: actor::OomKill = blank(Hook::MarkVictim);
        event.stack.iter_mut().zip(stack).for_each(|(place, low)| *place = at(*low));
        observe(&KernelEvent::OomKill(event), &mut KernelNames::of(&[], functions), &[]).is_some()
    };
    assert!(reports(functions, &[0x1008, 0x2008, 0x3008, 0x4008]));
    assert!(!reports(functions, &[0x1008, 0x3008, 0x4008]), "the victim that was chosen");
    assert!(!reports(functions, &[0x1008, 0x4008]), "the process that asked for the memory");
    assert!(reports("0000000000000000 T hidden\n", &[0x1008, 0x4008]) && reports(functions, &[]));
}

#[test]
fn kfree_skb_as_location_is_replaced_by_its_caller() {
    let reported = |stack: &[u64]| {
        let drop = dropped(ABSENT32, 2, 0x6010, stack);
        (drop.location, drop.stack)
    };
    let nft = Some("nft_do_chain".to_owned());
    assert_eq!(reported(&[0x1008, 0x6010, 0x4020, 0x2004]), (nft, vec!["nf_hook_slow".to_owned()]));
    assert_eq!(reported(&[0x6020]), (None, vec![]));
    assert_eq!(reported(&[]), (None, vec![]));
}

#[test]
fn only_unspecific_drop_reasons_get_functions() {
    let reported = |reason, flags| {
        let drop = dropped(reason, flags, 0x4010, &[0x4010, 0x2004]);
        (drop.reason, drop.location.is_some(), drop.stack.len())
    };
    assert_eq!(reported(2, 2), (Some("NOT_SPECIFIED".into()), true, 1));
    assert_eq!(reported(ABSENT32, 2), (None, true, 1));
    assert_eq!(reported(5, 2), (Some("TCP_CSUM".into()), false, 0));
    assert_eq!(reported(70_000, 2), (Some("70000".into()), false, 0));
    assert_eq!(reported(2, 4), (Some("NOT_SPECIFIED".into()), false, 0), "a RST");
    assert_eq!(reported(ABSENT32, 4), (None, true, 1), "a RST without reasons: netfilter may have dropped it");
}

#[test]
fn a_drop_may_have_no_device_and_no_entry() {
    let drop = dropped(5, 2, 0, &[]);
    assert_eq!((drop.device, drop.tracked, drop.netns), (None, None, None));
    let mut event: drop::PacketDrop = blank(Hook::KfreeSkb);
    (event.via, event.ifindex, event.if_flags, event.reason) = (1, 3, link::IFF_UP, 5);
    event.ifname = bytes("eth0");
    let Some(ObservationKind::Drop(drop)) = kind(KernelEvent::Drop(event)) else { panic!("no drop") };
    let device = Device { ifindex: 3, name: "eth0".into(), up: true, loopback: false };
    assert_eq!((drop.device, drop.tracked, drop.netns), (Some(device), Some(Tracked::No), Some(Netns(0))));
}

#[test]
fn a_link_with_unknown_new_flags_went_down() {
    let change = |flags, exe: &str| {
        let mut event: link::Link = blank(Hook::QdiscReset);
        (event.new_flags, event.exe, event.ancestors[1].pid) = (flags, bytes(exe), 9);
        let Some(ObservationKind::LinkChange(change)) = kind(KernelEvent::Link(event)) else { panic!("no change") };
        change
    };
    assert_eq!(
        [ABSENT32, 0, link::IFF_UP, link::IFF_LOOPBACK].map(|flags| change(flags, "").up),
        [false, false, true, false]
    );
    assert_eq!((change(0, "").exe, change(0, "/bin/ip").exe), (None, Some("/bin/ip".to_owned())));
    assert_eq!(change(0, "").ancestors, [], "the list ends at the first without a pid");
}

#[test]
fn unknown_numbers_give_no_observation() {
    let mut packet: drop::PacketDrop = blank(Hook::KfreeSkb);
    let mut vias = (0_u16..7).filter(|number| {
        packet.via = *number;
        kind(KernelEvent::Drop(packet)).is_some()
    });
    assert!(vias.by_ref().eq(1..=5));
    let mut connect: conn::Connect = blank(Hook::TcpConnect);
    assert!(kind(KernelEvent::Connect(connect)).is_some());
    connect.header.hook = 0;
    assert_eq!(kind(KernelEvent::Connect(connect)), None);
    assert_eq!(kind(KernelEvent::NetnsOp(blank(Hook::SysSetns))), None);
    assert_eq!(kind(KernelEvent::Ipvs(blank(Hook::IpvsLeave))), None);
    assert_eq!(kind(KernelEvent::Answer(blank(Hook::CgroupAnswer))), None);
    assert_eq!(kind(KernelEvent::QueueFull(blank(Hook::TcpConnRequest))), None);
    assert_eq!((tcp_state(0), tcp_state(13)), (TcpState::Unknown, TcpState::Unknown));
}

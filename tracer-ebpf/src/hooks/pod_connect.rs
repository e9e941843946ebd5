//! Connects that fail, of pods with failed probes: what such a pod depends on may be unreachable.

use aya_ebpf::{
    macros::{kprobe, raw_tracepoint},
    programs::{ProbeContext, RawTracePointContext},
};
use tracer_common::{
    conn::{PodConnect, is_unreachable},
    limit::POD_CONNECTS,
    names::Hook,
    tuple::Tuple,
};

use crate::{
    emit::{Urgency, emit_as, now},
    kernel::Sock,
    maps::FAILING_PODS,
};

const DNS: u16 = 53;

/// A socket gets an error: a RST or an ICMP error arrived, or no answer at all.
///
/// proto v5.14  include/trace/events/sock.h  TP_PROTO(const struct sock *sk)
#[raw_tracepoint(tracepoint = "inet_sk_error_report")]
pub fn inet_sk_error_report(ctx: RawTracePointContext) -> i32 {
    try_error_report(Sock(ctx.arg(0)));
    0
}

/// The same for kernels before 5.14.
///
/// proto v5.10  net/core/sock.c  static void sock_def_error_report(struct sock *sk)
#[kprobe]
pub fn kprobe_sock_def_error_report(ctx: ProbeContext) -> u32 {
    try_error_report(Sock(ctx.arg(0).unwrap_or(0)));
    0
}

/// UDP counts for DNS only. Other senders do not mind that nobody receives, as those of metrics.
#[inline(always)]
fn try_error_report(sk: Sock) {
    let netns = sk.net().inum();
    let Some(used) = FAILING_PODS.get_ptr_mut(netns) else { return };
    let (Some(reported), queued) = (sk.err(), sk.queued_err()) else { return };
    let errno = if reported == 0 { queued } else { reported };
    // An ICMP error is reported when it is queued, and may be reported again as the error of the socket.
    if !is_unreachable(errno) || reported != 0 && reported == queued {
        return;
    }
    let is_tcp = sk.is_tcp();
    // An established connection gets such errors, too, when its peer is gone. A socket without a port is closed, and this
    // is the second report (`tcp_disconnect`).
    let port = sk.dport();
    if is_tcp && (sk.has_received() || port == 0) || !is_tcp && port != DNS {
        return;
    }
    let mut tuple = Tuple { saddr: [0; 16], daddr: [0; 16], sport: 0, dport: 0, reserved: 0 };
    if !sk.tuple(&mut tuple) {
        return;
    }
    // CPUs that come at the same time may both take the last token.
    let Some(next) = POD_CONNECTS.next(unsafe { *used }, now()) else { return };
    unsafe { *used = next };
    emit_as::<PodConnect>(Urgency::Later, Hook::SkErrorReport, |event| {
        event.addr = tuple.daddr;
        event.port = tuple.dport;
        event.netns = netns;
        event.errno = errno;
        event.udp = u16::from(!is_tcp);
    });
}

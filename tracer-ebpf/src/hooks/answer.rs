//! Reads the first bytes of an answer: whether it is HTTP, and its status. Nothing else is kept.
//!
//! The program is attached to the probers' cgroups, so it does not run for packets of other processes.

use aya_ebpf::{macros::cgroup_skb, programs::SkBuffContext};
use tracer_common::{
    answer::{BAD_REQUEST, classify, is_success, mentions_tls},
    conn::{ANSWER_AFTER_REQUEST, ANSWER_MENTIONS_TLS, ANSWER_WITHOUT_REQUEST, Answer},
    events::Kind,
    limit::sort,
    names::Hook,
    packet::{Bytes as _, payload},
};

use crate::{
    emit::{Urgency, emit_as},
    hooks::tls::{Contents, PASS, sock},
    kernel::Sock,
    limit, sockets,
};

/// A packet arrives at a socket of a prober. The context begins at the IP header.
#[cgroup_skb(ingress)]
pub fn cgroup_answer(ctx: SkBuffContext) -> i32 {
    let sk = sock(&ctx);
    if let Some(conn) = sockets::by_socket(sk)
        // TCP counts the bytes after this program: 0 means that this is the first payload.
        && sk.bytes_received() == Some(0)
    {
        try_answer(&ctx, sk, conn.conn);
    }
    PASS
}

#[inline(always)]
fn try_answer(ctx: &SkBuffContext, sk: Sock, conn: u64) {
    let mut addr = [0; 16];
    let contents = Contents(ctx);
    let at = payload(&contents, &mut addr);
    if at == 0 || contents.load::<1>(at).is_none() {
        return;
    }
    let (kind, status) = classify(&contents, at);
    // A segment that TCP does not take leaves the count at 0, however many come.
    if !limit::allows_of(
        conn,
        sort(Kind::Answer, 0, 0, 0, (kind as u64) << 2 | u64::from(status) << 16),
        Hook::CgroupAnswer,
    ) {
        return;
    }
    let request = match sk.bytes_sent() {
        Some(0) => ANSWER_WITHOUT_REQUEST,
        Some(_) => ANSWER_AFTER_REQUEST,
        None => 0,
    };
    let mentions_tls = if status == BAD_REQUEST && mentions_tls(&contents, at) { ANSWER_MENTIONS_TLS } else { 0 };
    let urgency = if is_success(status) { Urgency::Later } else { Urgency::Now };
    if urgency == Urgency::Later {
        sockets::mark_answered(sk);
    }
    emit_as::<Answer>(urgency, Hook::CgroupAnswer, |event| {
        event.conn = conn;
        event.kind = kind as u16;
        event.status = status;
        event.len = ctx.len().saturating_sub(at as u32).min(u32::from(u16::MAX)) as u16;
        event.flags = request | mentions_tls;
    });
}

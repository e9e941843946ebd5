//! The first bytes of an answer: is it HTTP, and with which status. Nothing else of it is kept.
//!
//! Attached to the probers' own cgroups, so that nobody else's packets pass here.

use aya_ebpf::{macros::cgroup_skb, programs::SkBuffContext};
use tracer_common::{
    answer::{BAD_REQUEST, classify, is_success, mentions_tls},
    conn::{ANSWER_AFTER_REQUEST, ANSWER_MENTIONS_TLS, ANSWER_WITHOUT_REQUEST, Answer},
    names::Hook,
    packet::{Bytes as _, payload},
};

use crate::{
    emit::{Urgency, emit_as},
    hooks::tls::{Contents, PASS, sock},
    kernel::Sock,
    sockets,
};

/// A packet arrives at a prober's socket; the context begins at its IP header.
#[cgroup_skb(ingress)]
pub fn cgroup_answer(ctx: SkBuffContext) -> i32 {
    let sk = sock(&ctx);
    if let Some(conn) = sockets::by_socket(sk)
        // The counter rises after this program: 0 says that this is the first payload.
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
    let asked = match sk.bytes_sent() {
        Some(0) => ANSWER_WITHOUT_REQUEST,
        Some(_) => ANSWER_AFTER_REQUEST,
        None => 0,
    };
    let mentions_tls = if status == BAD_REQUEST && mentions_tls(&contents, at) { ANSWER_MENTIONS_TLS } else { 0 };
    let urgency = if is_success(status) { Urgency::Later } else { Urgency::Now };
    if urgency == Urgency::Later {
        sockets::answered(sk);
    }
    emit_as::<Answer>(urgency, Hook::CgroupAnswer, |event| {
        event.conn = conn;
        event.kind = kind as u16;
        event.status = status;
        event.len = ctx.len().saturating_sub(at as u32).min(u32::from(u16::MAX)) as u16;
        event.flags = asked | mentions_tls;
    });
}

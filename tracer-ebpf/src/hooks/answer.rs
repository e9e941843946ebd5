//! The first bytes of an answer: is it HTTP, and with which status. Nothing else of it is kept.
//!
//! Attached to the probers' own cgroups, so that nobody else's packets pass here.

use aya_ebpf::{macros::cgroup_skb, programs::SkBuffContext};
use tracer_common::{
    conn::{Answer, AnswerKind},
    names::Hook,
};

use crate::{
    emit::{Urgency, emit_as},
    hooks::tls::{PASS, payload, sock},
    kernel::Sock,
    track,
};

/// A packet arrives at a prober's socket; the context begins at its IP header.
#[cgroup_skb(ingress)]
pub fn cgroup_answer(ctx: SkBuffContext) -> i32 {
    let sk = sock(&ctx);
    if let Some(conn) = track::by_socket(sk)
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
    let at = payload(ctx, &mut addr);
    if at == 0 || ctx.load::<u8>(at).is_err() {
        return;
    }
    let (kind, status) = classify(ctx, at);
    // What the kubelet takes for success (pkg/probe/http/http.go, `DoHTTPProbe`).
    let urgency = if (200..400).contains(&status) { Urgency::Later } else { Urgency::Now };
    if urgency == Urgency::Later {
        track::answered(sk);
    }
    emit_as::<Answer>(urgency, Hook::CgroupAnswer, |event| {
        event.conn = conn;
        event.kind = kind as u16;
        event.status = status;
    });
}

/// Level of an alert (RFC 8446 6); a warning may come before a handshake that goes well.
const FATAL: u8 = 2;

/// A status line (`HTTP/1.1 503`, RFC 9112 4), a TLS record (RFC 8446 5.1), or neither.
#[inline(always)]
fn classify(ctx: &SkBuffContext, at: usize) -> (AnswerKind, u16) {
    if let Ok(line) = ctx.load::<[u8; 12]>(at)
        && is_http(&[line[0], line[1], line[2], line[3], line[4]])
    {
        return (AnswerKind::Http, digit(line[9]) * 100 + digit(line[10]) * 10 + digit(line[11]));
    }
    match ctx.load::<[u8; 5]>(at) {
        Ok([21, 3, ..]) if matches!(ctx.load::<u8>(at + 5), Ok(FATAL)) => (AnswerKind::Alert, 0),
        Ok([20..=23, 3, ..]) => (AnswerKind::Tls, 0),
        Ok(head) if is_http(&head) => (AnswerKind::Short, 0),
        Ok(_) => (AnswerKind::Other, 0),
        Err(_) => (AnswerKind::Short, 0),
    }
}

#[inline(always)]
fn is_http(head: &[u8; 5]) -> bool {
    *head == *b"HTTP/"
}

#[inline(always)]
fn digit(byte: u8) -> u16 {
    u16::from(byte.wrapping_sub(b'0')) % 10
}

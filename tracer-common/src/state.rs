//! Changes of a TCP socket's state: which close the task itself made, and which change can wait in the ring.

/// `include/net/tcp_states.h`, unchanged since Linux 2.6.
pub const ESTABLISHED: u8 = 1;
pub const SYN_SENT: u8 = 2;
pub const FIN_WAIT1: u8 = 4;
pub const CLOSE: u8 = 7;
pub const CLOSE_WAIT: u8 = 8;
pub const LAST_ACK: u8 = 9;
pub const LISTEN: u8 = 10;

/// A number for one change of one socket. It is unique because `struct sock` is larger than 256 bytes.
#[inline(always)]
pub const fn key(sk: u64, old: u8, new: u8) -> u64 {
    sk ^ (((old as u64) << 4) | new as u64)
}

/// Whether the change shows success: the connection is established, or it ends after a good answer or without a request (a TCP
/// probe sends none). Any other change may be a failure.
///
/// `errno`: that of the socket, if it could be read. `is_content`: whether the answer was good, or no request was sent.
#[inline(always)]
pub fn goes_well(old: u8, new: u8, errno: Option<i32>, is_content: impl FnOnce() -> bool) -> bool {
    let well = match (old, new) {
        (SYN_SENT, ESTABLISHED) => true,
        (SYN_SENT, _) => false,
        _ => is_content(),
    };
    well && errno == Some(0)
}

/// Whether `close`, `shutdown` or `disconnect` made this change, not a segment.
///
/// The thread group alone does not show it: the kernel often processes the peer's segment in the prober's context (loopback, or the
/// backlog at the end of a system call). A segment that closes sets `sk_err` before the state. The task's own close does not
/// (`tcp_disconnect` sets ECONNRESET only after the state).
#[inline(always)]
pub fn is_close(old: u8, new: u8, errno: Option<i32>) -> bool {
    match new {
        FIN_WAIT1 | LAST_ACK => true,
        CLOSE => matches!(old, SYN_SENT | ESTABLISHED | CLOSE_WAIT) && errno == Some(0),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ECONNRESET: i32 = 104;
    const TIME_WAIT: u8 = 6;
    const FIN_WAIT2: u8 = 5;

    #[test]
    fn a_failed_handshake_never_waits() {
        let not_called = || -> bool { panic!("no request was sent yet") };
        assert!(goes_well(SYN_SENT, ESTABLISHED, Some(0), not_called));
        assert!(!goes_well(SYN_SENT, CLOSE, Some(ECONNRESET), not_called));
        // The prober's own timeout closes the socket without an error.
        assert!(!goes_well(SYN_SENT, CLOSE, Some(0), not_called));
    }

    #[test]
    fn a_close_waits_only_after_a_good_answer_and_without_an_error() {
        for (old, new) in [(ESTABLISHED, FIN_WAIT1), (CLOSE_WAIT, LAST_ACK), (ESTABLISHED, CLOSE), (FIN_WAIT2, CLOSE)] {
            assert!(goes_well(old, new, Some(0), || true));
            assert!(!goes_well(old, new, Some(0), || false), "no answer, or a bad one");
            assert!(!goes_well(old, new, Some(ECONNRESET), || true));
            assert!(!goes_well(old, new, None, || true), "an error that cannot be read may be one");
        }
    }

    #[test]
    fn a_close_of_the_task_has_no_error_before_the_state() {
        assert!(is_close(ESTABLISHED, FIN_WAIT1, Some(0)) && is_close(CLOSE_WAIT, LAST_ACK, Some(ECONNRESET)));
        for old in [SYN_SENT, ESTABLISHED, CLOSE_WAIT] {
            assert!(is_close(old, CLOSE, Some(0)));
            assert!(!is_close(old, CLOSE, Some(ECONNRESET)), "a RST of the peer");
            assert!(!is_close(old, CLOSE, None));
        }
        // The last segment of an earlier close.
        assert!(!is_close(LAST_ACK, CLOSE, Some(0)) && !is_close(FIN_WAIT2, CLOSE, Some(0)));
        assert!(!is_close(ESTABLISHED, CLOSE_WAIT, Some(0)) && !is_close(FIN_WAIT1, TIME_WAIT, Some(0)));
    }

    #[test]
    fn changes_of_neighbouring_sockets_have_different_keys() {
        let (sk, next) = (0xffff_8881_0000_0800, 0xffff_8881_0000_1000);
        let changes = [(CLOSE, SYN_SENT), (SYN_SENT, ESTABLISHED), (SYN_SENT, CLOSE), (ESTABLISHED, FIN_WAIT1)];
        for (n, (old, new)) in changes.into_iter().enumerate() {
            assert!(changes[..n].iter().all(|(was, is)| key(sk, *was, *is) != key(sk, old, new)));
            assert!(changes.iter().all(|(was, is)| key(next, *was, *is) != key(sk, old, new)));
            assert_ne!(key(sk, old, new), 0, "0 is a processor that has seen no change");
        }
    }
}

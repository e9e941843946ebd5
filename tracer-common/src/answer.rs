//! Classifies the first bytes of a payload: HTTP with its status, HTTP/2, or TLS.

use crate::{conn::AnswerKind, packet::Bytes};

/// Level of an alert (RFC 8446 6). A warning can precede a successful handshake.
const FATAL: u8 = 2;

/// A status line (`HTTP/1.1 503`, RFC 9112 4), a TLS record (RFC 8446 5.1), a first frame of HTTP/2, or neither.
#[inline(always)]
pub fn classify(bytes: &impl Bytes, at: u64) -> (AnswerKind, u16) {
    if let Some([head @ .., a, b, c, d, e, f, g]) = bytes.load::<12>(at)
        && is_http(&head)
    {
        return match status([head[4], a, b, c, d, e, f, g]) {
            (kind, status) if status > 0 && !ends_status(bytes.load(at + 12)) => (kind, 0),
            read => read,
        };
    }
    match bytes.load::<5>(at) {
        Some([21, 3, ..]) if bytes.load(at + 5) == Some([FATAL]) => (AnswerKind::Alert, 0),
        Some([20..=23, 3, ..]) => (AnswerKind::Tls, 0),
        Some(head) if is_http(&head) => (AnswerKind::Short, 0),
        Some([0, _, _, SETTINGS | GOAWAY, _]) if bytes.load(at + 5) == Some(CONNECTION) => (AnswerKind::Http2, 0),
        Some(_) => (AnswerKind::Other, 0),
        None => (AnswerKind::Short, 0),
    }
}

/// Types of the frames with which a server of HTTP/2 begins (RFC 9113 6.5, 6.8).
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
/// The stream of such a frame, after its type and flags.
const CONNECTION: [u8; 4] = [0; 4];

#[inline(always)]
fn is_http(head: &[u8; 5]) -> bool {
    *head == *b"HTTP/"
}

/// The status in `/1.1 503`. Without one Go's client, and so the kubelet, rejects the answer (net/http, `ReadResponse`).
/// It takes each version of two digits, and also several spaces: the status then comes later.
#[inline(always)]
fn status(line: [u8; 8]) -> (AnswerKind, u16) {
    // Zero for the fixed characters, and the value of each digit. One comparison: the verifier follows each of them.
    let digits = u64::from_be_bytes(line) ^ u64::from_be_bytes(*b"/0.0 000");
    let above_nine = digits | digits.wrapping_add(0x0606_0606_0606_0606);
    if above_nine & 0xf0f0_f0f0_f0f0_f0f0 | digits & 0xff00_ff00_ff00_0000 == 0 {
        let digit = |shift: u32| (digits >> shift) as u16 & 0xf;
        return (AnswerKind::Http, digit(16) * 100 + digit(8) * 10 + digit(0));
    }
    (if line[4..6] == *b"  " { AnswerKind::Short } else { AnswerKind::Http }, 0)
}

/// Go's client takes three digits only: a space or the end of the line follows. The segment may end before that.
#[inline(always)]
fn ends_status(next: Option<[u8; 1]>) -> bool {
    matches!(next, None | Some([b' ' | b'\r' | b'\n']))
}

/// Whether the status is a success for the kubelet (pkg/probe/http/http.go, `DoHTTPProbe`).
#[inline(always)]
pub fn is_success(status: u16) -> bool {
    (200..400).contains(&status)
}

/// TLS servers answer a plain HTTP request with this status.
pub const BAD_REQUEST: u16 = 400;
/// Parts of the texts of such answers: "Client sent an HTTP request to an HTTPS server." (Go), "The plain HTTP request was sent to
/// HTTPS port" (nginx), "You're speaking plain HTTP to an SSL-enabled server port." (Apache), "This combination of host and port
/// requires TLS." (Tomcat).
const TLS_PHRASES: [&[u8; 11]; 4] = [b" HTTPS serv", b" HTTPS port", b" SSL-enable", b"ires TLS.\r\n"];
/// How many bytes of an answer are searched for these texts.
const SEARCHED_BYTES: u64 = 512;
/// The step of the search. Every fourth byte of the answer begins a word of eight bytes, and any 11 bytes contain such a word. So each
/// of the first four words of a phrase must decide by itself.
const STEP: u64 = 4;

/// The words of the phrases, each at its [`slot`]. The search compares with one of them: the verifier follows each comparison.
static WORDS: [u64; 32] = words();

/// A different slot for each word of a phrase. The factor was found by trial.
#[inline(always)]
const fn slot(word: u64) -> usize {
    (word.wrapping_mul(0x7dfb_ad9c_ee9b_14f7) >> 59) as usize
}

const fn words() -> [u64; 32] {
    // Fills the unused slots, where no answer can match it: its own slot is another one.
    let mut words = [word_at(TLS_PHRASES[0], 0); 32];
    let mut n = 0;
    while n < TLS_PHRASES.len() * STEP as usize {
        let word = word_at(TLS_PHRASES[n / STEP as usize], n % STEP as usize);
        words[slot(word)] = word;
        n += 1;
    }
    words
}

const fn word_at(phrase: &[u8; 11], at: usize) -> u64 {
    let (_, rest) = phrase.split_at(at);
    match rest.first_chunk() {
        Some(word) => u64::from_be_bytes(*word),
        None => 0,
    }
}

/// Whether the answer has a text with which a server reports that it expects TLS.
#[inline(always)]
pub fn mentions_tls(bytes: &impl Bytes, at: u64) -> bool {
    let mut i = 0;
    while i < SEARCHED_BYTES {
        let Some(word) = bytes.load::<8>(at + i).map(u64::from_be_bytes) else { return false };
        if word == WORDS[slot(word)] {
            return true;
        }
        i += STEP;
    }
    false
}

/// A handshake record (22), major version 3, that begins with a ClientHello (1): RFC 8446 5.1, 4.
#[inline(always)]
pub fn is_client_hello(bytes: &impl Bytes, at: u64) -> bool {
    matches!(bytes.load::<6>(at), Some([0x16, 0x03, _, _, _, 0x01]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{payload, tests::carrying};

    /// Classifies a payload after its headers, as the programs do.
    fn answer(bytes: &[u8]) -> (AnswerKind, u16) {
        let packet = carrying(bytes);
        classify(&packet, payload(&packet, &mut [0; 16]))
    }

    fn is_hello(bytes: &[u8]) -> bool {
        let packet = carrying(bytes);
        is_client_hello(&packet, payload(&packet, &mut [0; 16]))
    }

    #[test]
    fn a_tls_server_is_recognized_by_its_text() {
        let says = |words: &[u8]| {
            let packet = carrying(words);
            mentions_tls(&packet, payload(&packet, &mut [0; 16]))
        };
        assert!(says(b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"));
        assert!(says(b"HTTP/1.1 400 Bad Request\r\n\r\nThe plain HTTP request was sent to HTTPS port"));
        assert!(!says(b"HTTP/1.1 400 Bad Request\r\n\r\nno such host; use HTTPS"));
        assert!(!says(b"HTTPS"), "cut before the end");
        assert!(!says(&[0; 600]));
        for padding in 0..8 {
            let other = [&b"400 Bad "[padding..], b"this is not an HTTPS request, nor an SSL-encrypted one"].concat();
            assert!(!says(&other), "{padding} bytes less");
        }
        for (phrase, padding) in TLS_PHRASES.iter().flat_map(|phrase| (0..8).map(move |padding| (phrase, padding))) {
            assert!(says(&[&b"400 Bad "[padding..], *phrase].concat()), "{padding} bytes less");
        }
    }

    #[test]
    fn a_status_line_gives_its_status() {
        let lines: [(&[u8], u16); 7] = [
            (b"HTTP/1.1 200 OK\r\n", 200),
            (b"HTTP/1.0 503 Service Unavailable\r\n", 503),
            (b"HTTP/1.1 100 Continue\r\n", 100),
            // A reason is optional (RFC 9112 4), and the segment may end with the last digit.
            (b"HTTP/1.1 404", 404),
            (b"HTTP/1.1 404\n", 404),
            (b"HTTP/1.1 999\r\n", 999),
            (b"HTTP/1.1 000\r\n", 0),
        ];
        assert!(lines.into_iter().all(|(line, status)| answer(line) == (AnswerKind::Http, status)));
    }

    #[test]
    fn a_status_line_that_gos_client_rejects_has_no_status() {
        let lines: [&[u8]; 10] = [
            b"HTTP/1.1 2000 OK\r\n",
            b"HTTP/1.1 200OK\r\n",
            b"HTTP/1.1 abc OK\r\n",
            b"HTTP/1.1 Forbidden\r\n",
            b"HTTP/1.1 OK\r\n\r\n",
            b"HTTP/1.1 20 OK\r\n",
            b"HTTP/2 200 OK\r\n",
            b"HTTP/1.1\r\n200 OK",
            b"HTTP/1.\xfa 2\xff0",
            b"HTTP/1.1 20: OK\r\n",
        ];
        for line in lines {
            assert_eq!(answer(line), (AnswerKind::Http, 0), "{}", line.escape_ascii());
        }
        assert_eq!(answer(b"HTTP/1.1  200 OK\r\n"), (AnswerKind::Short, 0), "it skips these spaces");
        assert_eq!(answer(b"HTTP/2.0 200 OK\r\n"), (AnswerKind::Http, 200));
    }

    #[test]
    fn a_first_frame_of_http2_is_of_the_connection() {
        let kind = |bytes: &[u8]| answer(bytes).0;
        assert_eq!(kind(&[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 5]), AnswerKind::Http2, "SETTINGS");
        assert_eq!(kind(&[0, 0, 40, 7, 0, 0, 0, 0, 0]), AnswerKind::Http2, "GOAWAY");
        assert_eq!(kind(&[0, 0, 6, 4, 0, 0, 0, 0, 1]), AnswerKind::Other, "of a stream");
        assert_eq!(kind(&[0, 0, 6, 1, 0, 0, 0, 0, 0]), AnswerKind::Other, "HEADERS");
        assert_eq!(kind(&[0, 0, 6, 4, 0, 0, 0, 0]), AnswerKind::Other, "cut");
    }

    #[test]
    fn a_status_line_that_is_split_is_short_at_every_place() {
        let line = b"HTTP/1.1 200";
        for length in 0..line.len() {
            assert_eq!(answer(&line[..length]), (AnswerKind::Short, 0), "{length}");
        }
    }

    #[test]
    fn other_protocols_are_neither() {
        let others: [&[u8]; 4] =
            [b"http/1.1 200 OK\r\n", b"HTTP 1.1 200", b"220 smtp.example ESMTP", b"\0\0\x12\x04\0\0"];
        assert!(others.into_iter().all(|it| answer(it) == (AnswerKind::Other, 0)));
    }

    #[test]
    fn a_tls_record_is_an_alert_only_if_it_is_fatal() {
        let alert = [21, 3, 3, 0, 2, 2, 40];
        assert_eq!(answer(&alert).0, AnswerKind::Alert);
        assert_eq!(answer(&[21, 3, 3, 0, 2, 1, 0]).0, AnswerKind::Tls, "a warning");
        assert_eq!(answer(&alert[..5]).0, AnswerKind::Tls, "the level comes with the next segment");
        assert_eq!(answer(&alert[..4]).0, AnswerKind::Short);
        // A ServerHello is a handshake message of type 2, at the place of an alert's level.
        assert_eq!(answer(&[22, 3, 3, 0, 90, 2, 0, 0, 86, 3, 3, 0]).0, AnswerKind::Tls);
        for content in [20, 23] {
            assert_eq!(answer(&[content, 3, 1, 0, 1, 1]).0, AnswerKind::Tls);
        }
        for other in [[19, 3, 3, 0, 1, 1], [24, 3, 3, 0, 1, 1], [21, 2, 0, 0, 2, 2]] {
            assert_eq!(answer(&other).0, AnswerKind::Other);
        }
    }

    #[test]
    fn success_is_from_200_to_399() {
        assert!([200, 399].into_iter().all(is_success) && ![0, 199, 400, 503].into_iter().any(is_success));
    }

    #[test]
    fn a_client_hello_is_a_handshake_record_that_begins_with_it() {
        let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc];
        assert!(is_hello(&hello) && is_hello(&hello[..6]));
        assert!(!is_hello(&hello[..5]), "the type of the message is not there yet");
        assert!(!is_hello(&[0x16, 3, 3, 0, 90, 2]), "a ServerHello");
        assert!(!is_hello(&[0x17, 3, 3, 0, 90, 1]), "application data");
        assert!(!is_hello(&[0x16, 2, 0, 0, 90, 1]), "SSL 2");
        assert!(!is_hello(b"GET / HTTP/1.1\r\n"));
    }
}

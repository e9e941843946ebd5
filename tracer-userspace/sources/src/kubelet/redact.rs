//! Decides how much of a network error's text may be printed. An error has parts, separated by colons. tracer prints
//! the parts that the kubelet, Go's net, net/http, crypto/tls or grpc-go write themselves. It stops at the first part
//! that may contain data from the connection: net/http quotes header lines of the answer (`malformed MIME header:
//! missing colon: "…"`).
//!
//! tracer prints no message of a gRPC status (`desc = …`) but that of a stream that was reset, which has only fixed
//! words. grpc-go writes errors of its own connection there, but a server may send the same text about another
//! connection (`dial tcp …`).

use std::net::{Ipv6Addr, SocketAddr};

/// Parts that contain no received data.
const FIXED: &[&str] = &[
    // The kubelet's probers and grpc-go.
    "timeout",
    "error",
    "health rpc probe failed",
    "health rpc failed",
    "rpc error",
    // net/http.
    "net/http",
    "http",
    "http2",
    "HTTP/1.x transport connection broken",
    "request canceled",
    "request canceled while waiting for connection",
    "timeout awaiting response headers",
    "server closed idle connection",
    "client connection lost",
    "server gave HTTP response to HTTPS client",
    "invalid byte in chunk length",
    "malformed chunked encoding",
    "too many 1xx informational responses",
    "stream error",
    // net and context.
    "EOF",
    "unexpected EOF",
    "context canceled",
    "context deadline exceeded",
    "i/o timeout",
    "operation was canceled",
    "use of closed network connection",
    "dial tcp",
    "proxyconnect tcp",
    "no such host",
    "server misbehaving",
    "Temporary failure in name resolution",
    // System calls and their errors.
    "connect",
    "getsockopt",
    "socket",
    "bind",
    "read",
    "write",
    "address already in use",
    "address family not supported by protocol",
    "broken pipe",
    "cannot allocate memory",
    "cannot assign requested address",
    "connection refused",
    "connection reset by peer",
    "connection timed out",
    "host is down",
    "invalid argument",
    "network is down",
    "network is unreachable",
    "no buffer space available",
    "no route to host",
    "operation not permitted",
    "permission denied",
    "protocol not available",
    "too many open files",
    "too many open files in system",
    // crypto/tls, the alerts of RFC 8446 among them.
    "remote error",
    "local error",
    "tls",
    "x509",
    "TLS handshake timeout",
    "first record does not look like a TLS handshake",
    "access denied",
    "bad certificate",
    "bad record MAC",
    "certificate has expired or is not yet valid",
    "certificate required",
    "certificate signed by unknown authority",
    "close notify",
    "decryption failed",
    "error decoding message",
    "error decrypting message",
    "expired certificate",
    "failed to verify certificate",
    "handshake failure",
    "illegal parameter",
    "insufficient security level",
    "internal error",
    "missing extension",
    "no application protocol",
    "protocol version not supported",
    "record overflow",
    "revoked certificate",
    "server chose an unconfigured cipher suite",
    "unexpected message",
    "unknown certificate",
    "unknown certificate authority",
    "unrecognized name",
    "unsupported certificate",
    "unsupported extension",
];

/// The error codes of HTTP/2 (RFC 9113 7), as Go prints them.
const HTTP2_CODES: &[&str] = &[
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
];

/// The message of grpc-go for a stream that the server reset (`handleRSTStream`). The code of HTTP/2 follows.
const RESET_STREAM: &str = "stream terminated by RST_STREAM with error code";

/// Starts of parts that go on with received data, and the text that is printed instead.
const QUOTING: &[(&str, &str)] = &[
    ("malformed HTTP", "malformed HTTP answer"),
    ("malformed MIME header", "malformed MIME header"),
    ("failed to parse Location header", "failed to parse Location header"),
    ("bad Content-Length", "bad Content-Length"),
    ("message cannot contain multiple Content-Length headers", "multiple Content-Length headers"),
    ("unsupported transfer encoding", "unsupported transfer encoding"),
    ("too many transfer encodings", "too many transfer encodings"),
    ("server response headers exceeded", "server response headers exceeded the limit"),
    ("server sent GOAWAY", "server sent GOAWAY"),
    ("server selected unsupported protocol version", "server selected unsupported protocol version"),
    ("failed to parse certificate from server", "failed to parse certificate from server"),
    ("invalid signature by the server certificate", "invalid signature by the server certificate"),
    ("server sent certificate containing RSA key larger", "server sent certificate containing too large an RSA key"),
    ("failed to connect service", "failed to connect service"),
    ("health rpc did not complete", "health rpc did not complete"),
];

/// The texts that Go appends in parentheses to a client's timeout.
const CLIENT_TIMEOUTS: &[&str] = &[
    "Client.Timeout exceeded while awaiting headers",
    "Client.Timeout exceeded while reading body",
    "Client.Timeout or context cancellation while reading body",
];

/// The printable beginning of a network error.
pub(super) fn redacted(error: &str) -> String {
    let (request, error) = of_request(error);
    let mut printed: Vec<&str> = request.as_deref().into_iter().collect();
    for part in error.split(": ") {
        if is_own(part) {
            printed.push(part);
        } else if printed.last() == Some(&"dial tcp") && part.starts_with("lookup ") {
            // The name and the server are left out: `lookup NAME on ADDRESS`.
            printed.push("lookup");
        } else {
            printed.extend(beginning(part));
            break;
        }
    }
    printed.join(": ")
}

/// `Get "URL"` with only the origin of the URL, and the rest of the error. After a redirect the pod chooses the URL,
/// except for the host name, which must be the same (`RedirectChecker`, pkg/probe/http). Go up to 1.13 writes no
/// quotes.
fn of_request(error: &str) -> (Option<String>, &str) {
    let verb = ["Get ", "Head "].into_iter().find(|verb| error.starts_with(verb));
    let Some((verb, rest)) = verb.and_then(|verb| Some((verb, error.strip_prefix(verb)?))) else {
        return (None, error);
    };
    let (quote, rest) = rest.strip_prefix('"').map_or(("", rest), |quoted| ("\"", quoted));
    let end = if quote.is_empty() { rest.find(": ") } else { closing_quote(rest) };
    let (url, rest) = rest.split_at(end.unwrap_or(rest.len()));
    let rest = rest.strip_prefix(quote).and_then(|it| it.strip_prefix(": "));
    let printed = origin(url).map_or_else(|| verb.trim_end().to_owned(), |url| format!("{verb}{quote}{url}{quote}"));
    (Some(printed), rest.unwrap_or_default())
}

/// `http://HOST:PORT` of a URL.
fn origin(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://").filter(|(scheme, _)| ["http", "https"].contains(scheme))?;
    let authority = rest.split(['/', '?', '#', '\\']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    is_host(host).then(|| format!("{scheme}://{host}"))
}

/// Whether it is a name or an address, with or without a port.
fn is_host(text: &str) -> bool {
    let in_brackets = |it: &str| Some(it.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().is_ok());
    let is_name = |it: &str| !it.is_empty() && it.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    let host = match text.rsplit_once(':') {
        // The kubelet knows no address of the pod.
        Some(("", port)) => return port.parse::<u16>().is_ok(),
        Some((host, port)) if port.parse::<u16>().is_ok() => host,
        _ => text,
    };
    in_brackets(host).unwrap_or_else(|| is_name(host))
}

/// The end of a quoted text with escapes, as Go's `%q` and Rust's `{:?}` write it.
pub(crate) fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    })
}

/// Whether the part contains no received data.
fn is_own(part: &str) -> bool {
    let is_fixed = FIXED.contains(&part) || HTTP2_CODES.contains(&part);
    is_fixed || is_timeout(part) || is_connection(part) || is_probe(part) || is_stream_error(part)
}

/// `stream ID 1; INTERNAL_ERROR; received from peer`, and as the message of a gRPC status [`RESET_STREAM`].
fn is_stream_error(part: &str) -> bool {
    let by_peer = || part.strip_prefix("stream ID ")?.strip_suffix("; received from peer")?.split_once("; ");
    let in_grpc = || part.strip_prefix("code = ")?.split_once(" desc = ");
    by_peer().is_some_and(|(id, code)| id.parse::<u32>().is_ok() && HTTP2_CODES.contains(&code))
        || in_grpc().is_some_and(|(code, message)| is_name(code) && message == RESET_STREAM)
}

/// `context deadline exceeded (Client.Timeout exceeded while awaiting headers)`
fn is_timeout(part: &str) -> bool {
    let inner = part.strip_suffix(')').and_then(|it| it.split_once(" ("));
    inner.is_some_and(|(what, inner)| FIXED.contains(&what) && CLIENT_TIMEOUTS.contains(&inner))
}

/// `dial tcp ADDRESS`, `dial tcp :PORT`, `read tcp ADDRESS->ADDRESS`, of a look-up `read udp ADDRESS->ADDRESS`
fn is_connection(part: &str) -> bool {
    let ends = ["dial tcp ", "read tcp ", "write tcp ", "dial udp ", "read udp ", "write udp "]
        .iter()
        .find_map(|verb| part.strip_prefix(verb));
    let is_port = |end: &str| end.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    ends.is_some_and(|ends| ends.split("->").all(|end| end.parse::<SocketAddr>().is_ok() || is_port(end)))
}

/// `failed to connect service "ADDRESS" within 1s`, `health rpc did not complete within 1s`
fn is_probe(part: &str) -> bool {
    let connected = || {
        let (address, time) = part.strip_prefix("failed to connect service \"")?.split_once("\" within ")?;
        Some(address.parse::<SocketAddr>().is_ok() && is_duration(time))
    };
    let completed = || part.strip_prefix("health rpc did not complete within ").map(is_duration);
    connected().or_else(completed).unwrap_or_default()
}

/// Whether it is a duration as Go prints it: `1m0.5s`.
pub(super) fn is_duration(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        && text.len() < 20
        && text.chars().all(|c| "0123456789.hmnsµ".contains(c))
}

/// `DeadlineExceeded`, `Code(99)`
fn is_name(code: &str) -> bool {
    code.len() < 20 && code.chars().all(|c| c.is_ascii_alphanumeric() || "()".contains(c))
}

/// The printable start of a part that goes on with received data.
fn beginning(part: &str) -> Option<&str> {
    let code = || {
        part.split_once(" desc = ").map(|(code, _)| code).filter(|it| it.strip_prefix("code = ").is_some_and(is_name))
    };
    // What follows is data of the server.
    let last_frame = || {
        let (own, _) = part.split_once(", debug=")?;
        let (id, code) = own
            .strip_prefix("server sent GOAWAY and closed the connection; LastStreamID=")?
            .split_once(", ErrCode=")?;
        (id.parse::<u32>().is_ok() && HTTP2_CODES.contains(&code)).then_some(own)
    };
    let quoting = QUOTING.iter().find(|(begin, _)| part.starts_with(begin)).map(|(_, printed)| *printed);
    last_frame().or(quoting).or_else(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_without_received_data_are_printed() {
        for error in [
            r#"Get "http://10.88.0.5:8081": dial tcp 10.88.0.5:8081: connect: connection refused"#,
            "Get http://10.88.0.5:8081: read tcp 10.88.0.1:59486->10.88.0.5:8081: read: connection reset by peer",
            r#"Get "http://[fd00::5]:8081": dial tcp [fd00::5]:8081: connect: cannot assign requested address"#,
            r#"Get "http://10.88.0.5": net/http: request canceled (Client.Timeout exceeded while awaiting headers)"#,
            r#"Get "https://10.88.0.5": remote error: tls: handshake failure"#,
            r#"Get "https://10.88.0.5": http: server gave HTTP response to HTTPS client"#,
            "dial tcp 10.88.0.5:8082: i/o timeout",
            r#"Get "http://:8082": dial tcp :8082: i/o timeout"#,
            "dial tcp 10.88.0.5:8082: socket: too many open files in system",
            r#"timeout: failed to connect service "10.88.0.5:9000" within 1s: context deadline exceeded"#,
            "timeout: health rpc did not complete within 1.5s",
            r#"Get "https://10.88.0.5": stream error: stream ID 1; INTERNAL_ERROR; received from peer"#,
            "error: health rpc probe failed: rpc error: code = Internal desc = stream terminated by RST_STREAM with error code: PROTOCOL_ERROR",
        ] {
            assert_eq!(redacted(error), error);
        }
    }

    #[test]
    fn received_data_is_not_printed() {
        let get = r#"Get "http://10.88.0.5:8081": "#;
        let broken = "net/http: HTTP/1.x transport connection broken: ";
        for (before, error, printed) in [
            (broken, r#"malformed MIME header: missing colon: "secret: EOF""#, "malformed MIME header"),
            (broken, "malformed MIME header line: secret: EOF", "malformed MIME header"),
            (broken, r#"malformed HTTP response "secret""#, "malformed HTTP answer"),
            (broken, r#"bad Content-Length "secret""#, "bad Content-Length"),
            (broken, r#"unsupported transfer encoding: "secret""#, "unsupported transfer encoding"),
            ("", r#"failed to parse Location header "secret": parse"#, "failed to parse Location header"),
            ("http2: ", r#"server sent GOAWAY and closed the connection; debug="secret""#, "server sent GOAWAY"),
            (
                "http2: ",
                r#"server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=NO_ERROR, debug="secret: EOF""#,
                "server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=NO_ERROR",
            ),
            ("stream error", ": stream ID 1; secret; received from peer", ""),
            ("tls: failed to parse certificate from server", ": x509: secret", ""),
        ] {
            assert_eq!(redacted(&format!("{get}{before}{error}")), format!("{get}{before}{printed}"));
        }
        let get = get.trim_end_matches(": ");
        let late = format!("{get}: secret (Client.Timeout exceeded while awaiting headers)");
        for (error, printed) in [
            (late.as_str(), get),
            (r#"Get "http://10.88.0.5:8081/live?secret=\"secret": EOF"#, r#"Get "http://10.88.0.5:8081": EOF"#),
            ("Get http://10.88.0.5:8081/live?secret: EOF", "Get http://10.88.0.5:8081: EOF"),
            ("dial tcp secret: EOF", ""),
            (r#"timeout: failed to connect service "secret" within 1s"#, "timeout: failed to connect service"),
            ("timeout: health rpc did not complete within secret", "timeout: health rpc did not complete"),
        ] {
            assert_eq!(redacted(error), printed);
        }
    }

    /// Go prints `dial tcp: lookup NAME on SERVER: …`, without the server if it queried none.
    #[test]
    fn the_name_of_a_failed_lookup_is_not_printed() {
        let get = r#"Get "http://web.shop:8081""#;
        let udp = "read udp 10.88.0.1:5353->10.96.0.10:53: i/o timeout";
        for (reported, printed) in [
            ("dial tcp: lookup web.shop on 10.96.0.10:53: no such host", "dial tcp: lookup: no such host"),
            ("dial tcp: lookup web.shop: no such host", "dial tcp: lookup: no such host"),
            (&format!("dial tcp: lookup web.shop on 10.96.0.10:53: {udp}"), &format!("dial tcp: lookup: {udp}")),
            ("dial tcp: lookup secret: secret", "dial tcp: lookup"),
            ("lookup secret: no such host", ""),
        ] {
            assert_eq!(redacted(reported), printed);
            let of_url = if printed.is_empty() { get.to_owned() } else { format!("{get}: {printed}") };
            assert_eq!(redacted(&format!("{get}: {reported}")), of_url);
        }
    }

    /// After a redirect the pod chooses all of the URL but the host name.
    #[test]
    fn only_the_origin_of_a_url_is_printed() {
        for (url, printed) in [
            ("http://10.88.0.5:8081/secret", r#" "http://10.88.0.5:8081""#),
            ("https://secret:***@10.88.0.5/", r#" "https://10.88.0.5""#),
            ("http://[fd00::5]:8081?secret", r#" "http://[fd00::5]:8081""#),
            ("http://web.shop:8081#secret", r#" "http://web.shop:8081""#),
            ("http://10.88.0.5:99999999/", ""),
            ("http://a secret/", ""),
            ("httpsecret://10.88.0.5/", ""),
            ("/secret", ""),
        ] {
            assert_eq!(redacted(&format!("Get \"{url}\": EOF")), format!("Get{printed}: EOF"), "{url}");
        }
    }

    #[test]
    fn the_code_of_a_grpc_status_is_printed_and_its_message_is_not() {
        let reported = "error: health rpc probe failed: rpc error";
        for (status, printed) in [
            ("code = Unauthenticated desc = secret: EOF", ": code = Unauthenticated"),
            ("code = Unknown desc = \"secret\"", ": code = Unknown"),
            ("code = Unknown desc = EOF", ": code = Unknown"),
            ("code = Unavailable desc = error reading from server: EOF", ": code = Unavailable"),
            // A server may report an error of its own connection to a database.
            ("code = Internal desc = dial tcp 10.0.0.5:5432: connect: connection refused", ": code = Internal"),
            (
                r#"code = Unavailable desc = connection error: desc = "transport: Error while dialing: dial tcp 10.0.0.5:9000: connect: connection refused""#,
                ": code = Unavailable",
            ),
            (
                "code = Unknown desc = unexpected HTTP status code received from server: 404 (Not Found)",
                ": code = Unknown",
            ),
            ("code = a secret desc = EOF", ""),
            ("code = Internal desc = stream terminated by RST_STREAM with secret", ": code = Internal"),
        ] {
            assert_eq!(redacted(&format!("{reported}: {status}")), format!("{reported}{printed}"), "{status}");
        }
    }

    proptest::proptest! {
        #[test]
        fn only_known_texts_are_printed(garbage in "\\PC*") {
            assert!(!redacted(&format!("Get \"http://10.88.0.5/\": EOF: <{garbage}")).contains('<'));
            let _ = redacted(&format!("Get {garbage}"));
            let _ = redacted(&garbage);
        }
    }
}

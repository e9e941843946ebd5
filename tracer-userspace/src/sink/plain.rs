//! Small words of the pretty form: colour, names, times.

use crate::event::{Handler, ProbeType};
use crate::record::{Confidence, Endpoint};

/// What a piece of text is, for its colour.
#[derive(Clone, Copy, Debug)]
pub(super) enum Style {
    Bad,
    Mild,
    Good,
    Strong,
    Dim,
}

/// Colours, or not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paint {
    pub(super) colour: bool,
}

impl Paint {
    /// The text in its colour.
    pub(super) fn text(self, style: Style, text: &str) -> String {
        if !self.colour || text.trim().is_empty() {
            return text.to_owned();
        }
        let code = match style {
            Style::Bad => "1;31",
            Style::Mild => "33",
            Style::Good => "32",
            Style::Strong => "1",
            Style::Dim => "2",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

/// Text from outside without control characters: a process name may hold a terminal's escape sequences.
pub(crate) fn safe(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// `10.0.0.9:80`, `[::1]:80`, or the address alone.
pub(super) fn endpoint(endpoint: Endpoint) -> String {
    match endpoint.port {
        Some(port) => std::net::SocketAddr::new(endpoint.addr, port).to_string(),
        None => endpoint.addr.to_string(),
    }
}

/// How long before or after, in milliseconds with their sign.
#[expect(clippy::cast_precision_loss, reason = "for people: three decimals")]
pub(crate) fn relative_ms(time: u64, reference: u64) -> String {
    let delta = i128::from(time) - i128::from(reference);
    format!("{:+.3} ms", delta as f64 / 1e6)
}

/// As records have it.
pub(crate) const fn confidence(confidence: Confidence) -> &'static str {
    match confidence {
        Confidence::Proven => "proven",
        Confidence::Likely => "likely",
        Confidence::Possible => "possible",
    }
}

/// As records have it.
pub(super) const fn probe_type(kind: ProbeType) -> &'static str {
    match kind {
        ProbeType::Liveness => "liveness",
        ProbeType::Readiness => "readiness",
        ProbeType::Startup => "startup",
    }
}

/// As records have it.
pub(super) const fn handler(handler: Handler) -> &'static str {
    match handler {
        Handler::Http => "http",
        Handler::Tcp => "tcp",
        Handler::Grpc => "grpc",
        Handler::Exec => "exec",
    }
}

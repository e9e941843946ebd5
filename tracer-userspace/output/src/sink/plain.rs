//! Addresses and times as the pretty format writes them.

use tracer_model::record::Endpoint;

/// `10.0.0.9:80`, `[::1]:80`, or the address alone.
pub(super) fn endpoint(endpoint: Endpoint) -> String {
    match endpoint.port {
        Some(port) => std::net::SocketAddr::new(endpoint.addr, port).to_string(),
        None => endpoint.addr.to_string(),
    }
}

/// The time after `reference` (negative: before) in milliseconds, with its sign.
#[expect(clippy::cast_precision_loss, reason = "for people: three decimals")]
pub fn relative_ms(time: u64, reference: u64) -> String {
    let delta = i128::from(time) - i128::from(reference);
    format!("{:+.3} ms", delta as f64 / 1e6)
}

/// The time of day, to the millisecond, of an RFC 3339 time.
pub(super) fn clock(time: &str) -> &str {
    time.get(11..23).unwrap_or(time)
}

/// `2026-01-02 03:04:05`, of an RFC 3339 time.
pub fn date_and_time(time: &str) -> String {
    time.get(..19).unwrap_or(time).replace('T', " ")
}

/// The day of an RFC 3339 time, which is UTC as all of ours are.
pub(super) fn date(time: &str) -> &str {
    time.get(..10).unwrap_or(time)
}

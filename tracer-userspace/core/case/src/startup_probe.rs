//! The startupProbe that would have allowed the start, as YAML to paste.

use crate::case::Case;
use tracer_model::event::{Handler, ProbeProtocol, ProbeSpec, ProbeType};

/// `startupProbe: {…} (allows 60 s)`: the same request in the same period as this probe, for at least `seconds`. tracer
/// does not know headers, a query or the name of a gRPC service: a sentence says what to copy.
pub fn that_allows(seconds: f64, like: &ProbeSpec) -> String {
    let period = like.period_s.max(1);
    let twice = f64::from(like.failure_threshold) * 2.0;
    let threshold = (seconds / f64::from(period)).ceil().max(twice) as u32;
    format!(
        "startupProbe: {{{}, periodSeconds: {period}, failureThreshold: {threshold}{}}} (allows {} s){}",
        handler(like),
        if like.timeout_s > 1 { format!(", timeoutSeconds: {}", like.timeout_s) } else { String::new() },
        period.saturating_mul(threshold),
        to_copy(like.handler)
    )
}

const fn to_copy(handler: Handler) -> &'static str {
    match handler {
        Handler::Http => ". Copy httpHeaders and the query of the path from the present probe, if it has them",
        Handler::Grpc => ". Copy grpc.service from the present probe, if it has one",
        Handler::Tcp | Handler::Exec => "",
    }
}

fn handler(spec: &ProbeSpec) -> String {
    let host = spec.host.as_deref().map(|host| format!(", host: {}", scalar(host))).unwrap_or_default();
    let port = spec.port;
    match spec.handler {
        Handler::Http => {
            let path = scalar(spec.path.as_deref().unwrap_or("/"));
            let scheme = if spec.scheme.as_deref() == Some("https") { ", scheme: HTTPS" } else { "" };
            let protocol = if spec.speaks == Some(ProbeProtocol::Http2) { ", protocol: HTTP2" } else { "" };
            format!("httpGet: {{path: {path}, port: {port}{scheme}{protocol}{host}}}")
        }
        Handler::Tcp => format!("tcpSocket: {{port: {port}{host}}}"),
        Handler::Exec => "exec: {command: [...]}".to_owned(),
        Handler::Grpc => {
            let mode = if spec.speaks == Some(ProbeProtocol::Tls) { ", mode: TLS" } else { "" };
            format!("grpc: {{port: {port}{mode}}}")
        }
    }
}

/// Quotes a text that YAML could misread.
fn scalar(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    let begins = text.starts_with('/') || text.starts_with(|c: char| c.is_ascii_alphabetic());
    if begins && text.bytes().all(plain) { text.to_owned() } else { format!("{text:?}") }
}

/// The attempt may be the startup probe of its container, so that the container has one.
pub fn may_be_startup_probe(case: &Case<'_>) -> bool {
    case.matched.possible_probes().iter().any(|spec| spec.probe_type == ProbeType::Startup)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use tracer_model::event::ProbeType;

    fn like(handler: Handler, path: Option<&str>, scheme: Option<&str>) -> ProbeSpec {
        ProbeSpec {
            probe_type: ProbeType::Liveness,
            handler,
            scheme: scheme.map(Into::into),
            speaks: None,
            port: 8443,
            host: None,
            path: path.map(Into::into),
            timeout_s: 5,
            period_s: 10,
            failure_threshold: 3,
            initial_delay_s: 30,
            grace_s: None,
        }
    }

    fn pasted(seconds: f64, like: &ProbeSpec) -> Value {
        let text = that_allows(seconds, like);
        let (yaml, allows) = text.rsplit_once(" (allows ").expect("both");
        let value: Value = serde_yaml_ng::from_str(yaml).expect("YAML");
        let probe = value["startupProbe"].clone();
        let number = |name: &str| probe[name].as_u64().expect("a number");
        let allowed = number("periodSeconds") * number("failureThreshold");
        let rest = allows.strip_prefix(&format!("{allowed} s)")).expect("what it allows");
        assert!(allowed as f64 >= seconds && rest == to_copy(like.handler), "{text}");
        probe
    }

    #[test]
    fn the_startup_probe_sends_the_same_request() {
        let https = pasted(125.0, &like(Handler::Http, Some("/health z{}"), Some("https")));
        let expected = json!({
            "httpGet": {"path": "/health z{}", "port": 8443, "scheme": "HTTPS"},
            "periodSeconds": 10, "failureThreshold": 13, "timeoutSeconds": 5,
        });
        assert_eq!(https, expected);
        let tcp = ProbeSpec { host: Some("127.0.0.1".into()), ..like(Handler::Tcp, None, None) };
        assert_eq!(pasted(1.0, &tcp)["tcpSocket"], json!({"port": 8443, "host": "127.0.0.1"}));
        assert_eq!(pasted(1.0, &like(Handler::Grpc, None, None))["grpc"], json!({"port": 8443}));
    }

    #[test]
    fn what_tracer_does_not_know_is_to_be_copied() {
        let text = |handler| that_allows(1.0, &like(handler, None, None));
        assert!(text(Handler::Http).contains(". Copy httpHeaders and the query of the path"));
        assert!(text(Handler::Grpc).contains(". Copy grpc.service"));
        assert!(text(Handler::Tcp).ends_with(" s)") && text(Handler::Exec).ends_with(" s)"));
    }
}

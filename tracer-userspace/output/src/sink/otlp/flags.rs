//! Flags of the daemon only: where it pushes records to with OpenTelemetry's protocol.

use clap::{Args, ValueEnum};
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Uri};

use super::OtlpConfig;
use crate::sink::choices;

/// Where `tracer run` pushes records to.
#[derive(Debug, Args)]
#[command(next_help_heading = "OpenTelemetry")]
pub(in super::super) struct OtlpFlags {
    /// Also push records to this URL (OTLP/HTTP, protobuf), such as http://collector:4318; without a path, /v1/logs is added
    #[arg(long, value_name = "URL", value_parser = endpoint)]
    otlp_endpoint: Option<Uri>,
    /// Send this header with each request; repeatable. Put a secret into TRACER_OTLP_HEADER: others can read a command line
    #[arg(long = "otlp-header", value_name = "NAME=VALUE", value_delimiter = '\n', value_parser = header, requires = "otlp_endpoint")]
    otlp_headers: Vec<(HeaderName, HeaderValue)>,
    /// Compress requests in this way
    #[arg(long, value_enum, value_name = choices::<Compression>(), default_value = "gzip", hide_possible_values = true)]
    otlp_compression: Compression,
}

impl OtlpFlags {
    /// What they ask for, if they name an endpoint.
    pub(in super::super) fn config(self) -> Option<OtlpConfig> {
        let Self { otlp_endpoint, otlp_headers: headers, otlp_compression } = self;
        let gzip = otlp_compression == Compression::Gzip;
        otlp_endpoint.map(|endpoint| OtlpConfig { endpoint, headers, gzip })
    }
}

/// How requests are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Compression {
    /// Compress with gzip.
    Gzip,
    /// Do not compress.
    None,
}

/// Parses the URL, and adds OTLP's path if it has none.
fn endpoint(text: &str) -> Result<Uri, String> {
    let wrong = || "write a URL, e.g. http://collector:4318 or https://logs.example/v1/logs".to_owned();
    let mut parts = text.trim().parse::<Uri>().map_err(|_| wrong())?.into_parts();
    if !parts.scheme.as_ref().is_some_and(|scheme| ["http", "https"].contains(&scheme.as_str())) {
        return Err(wrong());
    }
    if parts.authority.as_ref().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("it is sent without user and password: write them as a header (TRACER_OTLP_HEADER)".to_owned());
    }
    if parts.path_and_query.as_ref().is_none_or(|path| path == "/") {
        parts.path_and_query = Some(PathAndQuery::from_static("/v1/logs"));
    }
    Uri::from_parts(parts).map_err(|_| wrong())
}

/// Parses a header. It is marked as sensitive, so no message of tracer shows its value.
fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    let name = name.trim().parse().map_err(|_| "not the name of a header".to_owned())?;
    let mut value = HeaderValue::from_str(value.trim()).map_err(|_| "not the value of a header".to_owned())?;
    value.set_sensitive(true);
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_path_gets_the_path_of_logs() {
        let taken = |text: &str| endpoint(text).map(|uri| uri.to_string());
        assert_eq!(taken("http://c:4318").as_deref(), Ok("http://c:4318/v1/logs"));
        assert_eq!(taken("https://c/").as_deref(), Ok("https://c/v1/logs"));
        assert_eq!(taken("http://c/insert/v1/logs?a=b").as_deref(), Ok("http://c/insert/v1/logs?a=b"));
        for wrong in ["", "c:4318", "/v1/logs", "ftp://c", "grpc://c:4317", "http://", "http://u:p@c"] {
            assert!(endpoint(wrong).is_err(), "{wrong}");
        }
    }

    /// VictoriaLogs takes lists as values.
    #[test]
    fn a_comma_belongs_to_the_value() {
        let (name, value) = header("VL-Extra-Fields=env=prod,team=a").expect("a header");
        assert_eq!((name.as_str(), value.as_bytes()), ("vl-extra-fields", &b"env=prod,team=a"[..]));
    }

    #[test]
    fn a_headers_value_is_not_shown() {
        let (name, value) = header("Authorization=Bearer a=b").expect("a header");
        assert_eq!((name.as_str(), value.as_bytes()), ("authorization", b"Bearer a=b".as_slice()));
        assert!(!format!("{value:?}").contains("Bearer"));
        for wrong in ["authorization", "a b=c", "a=b\nc"] {
            assert!(header(wrong).is_err(), "{wrong}");
        }
    }
}

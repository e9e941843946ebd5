//! The requests that write.

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use serde_json::Value;

use tracer_sources::cluster::request::send;
use tracer_sources::cluster::{ApiRequest, Failure, Pace};

#[derive(Debug)]
pub(super) enum Answer {
    Done,
    /// There is no such object, or no such namespace.
    Missing,
    Exists,
    /// The API will never accept this request.
    Never(Failure),
    /// The API may accept the request later.
    Later(Failure),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Create,
    /// A JSON merge patch (RFC 7386).
    Merge,
    /// A strategic merge patch of Kubernetes: it merges a list of conditions by their types.
    Strategic,
}

impl Change {
    const fn parts(self) -> (Method, &'static str, &'static str) {
        match self {
            Self::Create => (Method::POST, "application/json", "create"),
            Self::Merge => (Method::PATCH, "application/merge-patch+json", "patch"),
            Self::Strategic => (Method::PATCH, "application/strategic-merge-patch+json", "patch"),
        }
    }
}

/// Writes an object, or a part of it.
pub(super) async fn write(
    client: &Client,
    pace: &Pace,
    change: Change,
    path: &str,
    resource: &'static str,
    body: &Value,
) -> Answer {
    let (method, kind, verb) = change.parts();
    let request = Request::builder().method(method).uri(format!("{path}?fieldManager=tracer"));
    let request = request.header("Accept", "application/json").header("Content-Type", kind);
    let Ok(request) = request.body(Body::from(body.to_string().into_bytes())) else {
        return Answer::Never(Failure::Garbage(format!("no path: {path}")));
    };
    let asked = ApiRequest { verb, resource, group: "", streaming: false };
    match send(client, request, asked, pace.answer).await {
        Ok(()) => Answer::Done,
        Err(Failure::Unknown(_)) => Answer::Missing,
        Err(Failure::Refused { code: 409, .. }) => Answer::Exists,
        // Bad request, namespace is being deleted, too large, invalid.
        Err(failure @ Failure::Refused { code: 400 | 403 | 413 | 422, .. }) => Answer::Never(failure),
        Err(failure) => Answer::Later(failure),
    }
}

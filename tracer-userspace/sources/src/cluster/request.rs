//! One request to the API, and the pieces of its answer. Each wait has a limit.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use tokio::time::timeout;

use super::failure::{ApiRequest, Failure};
use super::objects::Watched;

/// Largest list. A server that ignores the selection lists all: the EndpointSlices of 150,000 pods take 45 MB.
const LIST_MAX: usize = 128 << 20;
/// How much of a refusal is read.
const REFUSAL_MAX: usize = 16 << 10;

/// The selection of objects of a kind.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    pub(super) node: String,
    /// Only those of this namespace; absent: of all.
    pub(super) namespace: Option<String>,
}

impl Scope {
    /// The path in the API of a resource of the core group.
    pub(super) fn path(&self, resource: &str) -> String {
        match &self.namespace {
            Some(namespace) => format!("/api/v1/namespaces/{namespace}/{resource}"),
            None => format!("/api/v1/{resource}"),
        }
    }

    /// The query with the selection.
    pub(super) fn selected<W: Watched>(&self, query: String) -> String {
        format!("{query}&fieldSelector={}", W::selector(&self.node)).trim_start_matches('&').to_owned()
    }
}

/// The body of a successful answer, which must begin within `within`.
pub(super) async fn open(client: &Client, uri: &str, asked: ApiRequest, within: Duration) -> Result<Body, Failure> {
    let request = Request::get(uri).header("Accept", "application/json").body(Body::empty());
    let request = request.map_err(|error| Failure::Garbage(error.to_string()))?;
    answer(client, request, asked, within).await
}

/// A whole answer. Each piece must come within `within`.
pub async fn whole(mut body: Body, within: Duration) -> Result<Vec<u8>, Failure> {
    let mut all = Vec::new();
    while let Some(chunk) = next(&mut body, within).await? {
        all.extend_from_slice(&chunk);
        if all.len() > LIST_MAX {
            return Err(Failure::Garbage(format!("more than {} MiB", LIST_MAX >> 20)));
        }
    }
    Ok(all)
}

/// Sends a request that writes; its answer is read to the end, so that the connection can be used again.
pub async fn send(client: &Client, request: Request<Body>, asked: ApiRequest, within: Duration) -> Result<(), Failure> {
    let mut body = answer(client, request, asked, within).await?;
    // The object is written, even if the rest of the answer is lost.
    let _ = timeout(within, async { while let Ok(Some(_)) = next(&mut body, within).await {} }).await;
    Ok(())
}

async fn answer(client: &Client, request: Request<Body>, asked: ApiRequest, within: Duration) -> Result<Body, Failure> {
    let (parts, body) = respond(client, request, within).await?.into_parts();
    if parts.status.is_success() {
        return Ok(body);
    }
    Err(Failure::of_answer(parts.status, &parts.headers, &refusal(body, within).await, asked))
}

/// Any answer, which must begin within `within`.
pub async fn respond(client: &Client, request: Request<Body>, within: Duration) -> Result<Response<Body>, Failure> {
    let answer = timeout(within, client.send(request)).await.map_err(|_| Failure::Late(within))?;
    answer.map_err(|error| Failure::of_client(&error))
}

/// The beginning of a refusal, as far as it comes within `within`.
pub async fn refusal(mut body: Body, within: Duration) -> Vec<u8> {
    let mut text = Vec::new();
    let read = async {
        while let Ok(Some(chunk)) = next(&mut body, within).await {
            text.extend_from_slice(&chunk);
            if text.len() > REFUSAL_MAX {
                break;
            }
        }
    };
    let _ = timeout(within, read).await;
    text
}

/// The next piece of an answer, which must come within `within`; `None` at its end.
pub async fn next(body: &mut Body, within: Duration) -> Result<Option<Bytes>, Failure> {
    match timeout(within, body.frame()).await {
        Ok(None) => Ok(None),
        Ok(Some(Ok(frame))) => Ok(Some(frame.into_data().unwrap_or_default())),
        Ok(Some(Err(error))) => Err(Failure::of_client(&error)),
        Err(_) => Err(Failure::Cut),
    }
}

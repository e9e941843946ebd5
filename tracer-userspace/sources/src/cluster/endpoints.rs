//! The endpoints of one Service, where the core asks for them. A list of its EndpointSlices, no watch.

use std::time::Duration;

use kube::Client;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::View;
use super::failure::{ApiRequest, Failure};
use super::objects::{garbage, list_of, percent_encoded};
use super::request::{open, whole};
use crate::files::api::EndpointSlice;
use crate::files::{SERVICE_NAME, join, slice_of};
use tracer_model::event::{ObservationKind, Service, ServiceName};

/// The versions of the API, the newest first: v1 from 1.21 on.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];
/// As RBAC writes it.
const ASKED: ApiRequest =
    ApiRequest { verb: "list", resource: "endpointslices", group: "discovery.k8s.io", streaming: false };
/// A verdict waits for the answer.
const WITHIN: Duration = Duration::from_secs(1);
/// How many queries can wait. The core issues fewer at once.
const MAX_WAITING: usize = 16;
/// A Service with more endpoints stays unknown.
const MAX_ENDPOINTS: usize = 10_000;

/// The queries of the core for the endpoints of Services.
pub type Queries = mpsc::Sender<ServiceName>;

#[derive(Debug)]
pub(super) struct Answering {
    queries: mpsc::Receiver<ServiceName>,
    answers: mpsc::Sender<ObservationKind>,
}

/// Sends all answers to `answers`.
pub(super) fn answering(answers: mpsc::Sender<ObservationKind>) -> (Queries, Answering) {
    let (asked, queries) = mpsc::channel(MAX_WAITING);
    (asked, Answering { queries, answers })
}

impl Answering {
    /// Answers one query after the other; never ends by itself. A failure is an answer, too: a verdict waits for it.
    pub(super) async fn run(mut self, client: &Client, view: &watch::Sender<View>) {
        let mut asker = Asker { client, view, version: 0, reported: None };
        while let Some(service) = self.queries.recv().await {
            let answer = Box::new(asker.answer(service).await);
            if self.answers.send(ObservationKind::ServiceEndpoints(answer)).await.is_err() {
                break;
            }
        }
        std::future::pending().await
    }
}

struct Asker<'a> {
    client: &'a Client,
    view: &'a watch::Sender<View>,
    /// The index of the version that the server has.
    version: usize,
    /// The namespace of the failure that was logged, until a query about it succeeds.
    reported: Option<String>,
}

impl Asker<'_> {
    async fn answer(&mut self, name: ServiceName) -> Service {
        match timeout(WITHIN, self.list(&name)).await.unwrap_or(Err(Failure::Late(WITHIN))) {
            Ok(service) => {
                self.reported.take_if(|namespace| *namespace == name.namespace);
                service
            }
            Err(failure) => {
                self.report(&failure, &name.namespace);
                Service::named(name)
            }
        }
    }

    /// Logs the first failure of several, unless a follower has logged the same.
    fn report(&mut self, failure: &Failure, namespace: &str) {
        let text = failure.to_string();
        let is_known = self.view.borrow().failure() == Some(&text);
        if self.reported.is_none() && !is_known {
            tracing::warn!("cluster API {text}; the endpoints of a Service in namespace {namespace} stay unknown");
        }
        self.reported.get_or_insert_with(|| namespace.to_owned());
    }

    /// Lists the slices in the version that the server has: v1, or v1beta1 before 1.21.
    async fn list(&mut self, name: &ServiceName) -> Result<Service, Failure> {
        loop {
            match self.list_version(name).await {
                Err(Failure::Unknown(_)) if self.version + 1 < VERSIONS.len() => self.version += 1,
                listed => {
                    // A server that starts may not know its newest version yet.
                    self.version = if matches!(listed, Err(Failure::Unknown(_))) { 0 } else { self.version };
                    return listed;
                }
            }
        }
    }

    async fn list_version(&self, name: &ServiceName) -> Result<Service, Failure> {
        let body = open(self.client, &self.uri(name), ASKED, WITHIN).await?;
        service_of(name, &whole(body, WITHIN).await?)
    }

    /// `resourceVersion=0`: the server's cache is new enough, and etcd is not read.
    fn uri(&self, name: &ServiceName) -> String {
        let (version, namespace) = (VERSIONS[self.version], &name.namespace);
        let (label, name) = (percent_encoded(SERVICE_NAME), percent_encoded(&name.name));
        format!(
            "/apis/discovery.k8s.io/{version}/namespaces/{namespace}/endpointslices?resourceVersion=0&labelSelector={label}%3D{name}"
        )
    }
}

/// The endpoints of the Service in a list of slices. One that cannot be read may have any, so they stay unknown.
pub(super) fn service_of(name: &ServiceName, list: &[u8]) -> Result<Service, Failure> {
    let slices: Vec<EndpointSlice> = list_of(list)?.1.collect::<Result<_, _>>().map_err(garbage)?;
    let joined = join(vec![Service::named(name.clone())], Some(slices.into_iter().filter_map(slice_of).collect()));
    // A server that ignores the selector also lists those of other Services.
    let service = joined.into_iter().next().unwrap_or_else(|| Service::named(name.clone()));
    let count = service.ready_endpoints.as_ref().map_or(0, Vec::len) + service.not_ready_endpoints.len();
    if count > MAX_ENDPOINTS {
        return Err(Failure::Garbage(format!("a Service with more than {MAX_ENDPOINTS} endpoints")));
    }
    Ok(service)
}

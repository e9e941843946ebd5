//! `--services FILE`: Services and, where `EndpointSlices` are in the file, their ready endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use serde::Deserialize;

use super::api::{self, EndpointSlice};
use super::{Document, FileError, Source, Taken, addresses};
use tracer_model::event::{Service, ServicePort};

const FLAG: &str = "--services";
const EXPECTED: &str = "a ServiceList, an EndpointSliceList or a List of both";
/// Label of an `EndpointSlice` that names its Service.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Namespace and name of a Service.
type Key = (String, String);

/// What tracer needs of an `EndpointSlice`.
#[derive(Debug)]
pub(crate) struct Slice {
    service: Key,
    ready: Vec<IpAddr>,
    not_ready: Vec<IpAddr>,
}

#[derive(Deserialize)]
#[serde(tag = "kind")]
enum ServiceOrOther {
    Service(Box<api::Service>),
    EndpointSlice(Box<EndpointSlice>),
    #[serde(other)]
    Other,
}

/// The contents of a file, before Services and slices are joined.
#[derive(Default)]
struct Parts {
    services: Vec<Service>,
    /// Absent if the file has no slices: the endpoints are then unknown.
    slices: Option<Vec<Slice>>,
}

pub fn read_services(path: &Path) -> Result<Vec<Service>, FileError> {
    services_of(&Source::read(FLAG, path)?)
}

pub(super) fn services_of(source: &Source<'_>) -> Result<Vec<Service>, FileError> {
    let mut parts = Parts::default();
    source.each_document(EXPECTED, |document| add_document(document, &mut parts))?;
    Ok(join(parts.services, parts.slices))
}

fn add_document(document: &Document<'_>, parts: &mut Parts) -> Result<Taken, FileError> {
    let kind = document.kind()?;
    match kind.as_deref() {
        Some("ServiceList") => document.items()?.into_iter().for_each(|it| parts.add_service(it)),
        Some("Service") => parts.add_service(document.decode()?),
        Some("EndpointSliceList") => document.items()?.into_iter().for_each(|it| parts.add_slice(it)),
        Some("EndpointSlice") => parts.add_slice(document.decode()?),
        Some("List") => return add_list(document, parts),
        _ => return Ok(Taken::Other(kind)),
    }
    Ok(Taken::Used)
}

fn add_list(document: &Document<'_>, parts: &mut Parts) -> Result<Taken, FileError> {
    let items = document.items::<ServiceOrOther>()?;
    let is_other = !items.is_empty() && items.iter().all(|item| matches!(item, ServiceOrOther::Other));
    items.into_iter().for_each(|item| parts.add_any(item));
    Ok(if is_other { Taken::Other(Some("List without a Service or EndpointSlice".into())) } else { Taken::Used })
}

impl Parts {
    fn add_any(&mut self, item: ServiceOrOther) {
        match item {
            ServiceOrOther::Service(service) => self.add_service(*service),
            ServiceOrOther::EndpointSlice(slice) => self.add_slice(*slice),
            ServiceOrOther::Other => {}
        }
    }

    fn add_service(&mut self, service: api::Service) {
        self.services.push(service_of(service));
    }

    fn add_slice(&mut self, slice: EndpointSlice) {
        self.slices.get_or_insert_default().extend(slice_of(slice));
    }
}

/// Reduces a Service to what tracer needs, without its endpoints.
fn service_of(service: api::Service) -> Service {
    let spec = service.spec;
    // An ingress may have a host name in place of an address.
    let balanced = service.status.load_balancer.ingress.into_iter().map(|ingress| ingress.ip);
    Service {
        namespace: service.metadata.namespace.unwrap_or_else(|| "default".into()),
        name: service.metadata.name.unwrap_or_default(),
        cluster_ips: addresses(spec.cluster_ips.into_iter().chain(spec.cluster_ip)),
        external_ips: addresses(spec.external_ips.into_iter().chain(balanced)),
        ports: spec.ports.into_iter().filter_map(port).collect(),
        ..Service::default()
    }
}

/// Reduces a slice to what tracer needs. `None` if it belongs to no Service.
pub(crate) fn slice_of(mut slice: EndpointSlice) -> Option<Slice> {
    let namespace = slice.metadata.namespace.unwrap_or_else(|| "default".into());
    let name = slice.metadata.labels.remove(SERVICE_NAME)?;
    let mut kept = Slice { service: (namespace, name), ready: Vec::new(), not_ready: Vec::new() };
    for endpoint in slice.endpoints {
        // An absent condition means ready.
        let into = if endpoint.conditions.ready.unwrap_or(true) { &mut kept.ready } else { &mut kept.not_ready };
        into.extend(endpoint.addresses.iter().filter_map(|addr| addr.parse::<IpAddr>().ok()));
    }
    Some(kept)
}

/// Joins Services with the endpoints of their slices. Without slices the endpoints are unknown.
pub(crate) fn join(mut services: Vec<Service>, slices: Option<Vec<Slice>>) -> Vec<Service> {
    let Some(slices) = slices else { return services };
    // The addresses of each Service: those that are ready, and the others.
    let mut endpoints: BTreeMap<Key, (BTreeSet<IpAddr>, BTreeSet<IpAddr>)> = BTreeMap::new();
    for slice in slices {
        let (ready, not_ready) = endpoints.entry(slice.service).or_default();
        ready.extend(slice.ready);
        not_ready.extend(slice.not_ready);
    }
    let key = |service: &Service| (service.namespace.clone(), service.name.clone());
    let listed: BTreeSet<Key> = services.iter().map(key).collect();
    let only_sliced = endpoints.keys().filter(|key| !listed.contains(key)).cloned();
    services.extend(only_sliced.map(|(namespace, name)| Service { namespace, name, ..Service::default() }));
    for service in &mut services {
        let (ready, not_ready) = endpoints.remove(&key(service)).unwrap_or_default();
        service.ready_endpoints = Some(ready.into_iter().collect());
        service.not_ready_endpoints = not_ready.into_iter().collect();
    }
    services
}

/// A TCP port; probes use no other protocol.
fn port(port: api::ServicePort) -> Option<ServicePort> {
    if port.protocol.as_deref().is_some_and(|protocol| protocol != "TCP") {
        return None;
    }
    Some(ServicePort {
        name: port.name,
        port: u16::try_from(port.port).ok()?,
        node_port: port.node_port.and_then(|it| u16::try_from(it).ok()).filter(|it| *it > 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestFile;
    use tracer_testing::{assert_ends, assert_starts};

    const LIST: &str = "\
apiVersion: v1
kind: List
items:
- kind: Service
  apiVersion: v1
  metadata: {name: kubernetes-dashboard, namespace: kube-system}
  spec:
    type: NodePort
    clusterIP: 10.96.12.7
    clusterIPs: [10.96.12.7]
    externalIPs: [10.89.0.1]
    ports: [{name: https, port: 443, targetPort: 8443, nodePort: 36704, protocol: TCP}, {port: 53, protocol: UDP}]
- kind: Service
  apiVersion: v1
  metadata: {name: longhorn-admission-webhook, namespace: longhorn-system}
  spec: {clusterIP: None, ports: [{port: 9502}]}
  status: {loadBalancer: {ingress: [{hostname: lb.example}, {ip: 203.0.113.11}, {ip: 203.0.113.11, ipMode: VIP}]}}
- kind: EndpointSlice
  apiVersion: discovery.k8s.io/v1
  addressType: IPv4
  metadata: {name: kd-1, namespace: kube-system, labels: {kubernetes.io/service-name: kubernetes-dashboard}}
  endpoints:
  - {addresses: [10.88.0.9], conditions: {ready: true}}
  - {addresses: [10.88.0.4]}
  - {addresses: [10.88.0.7], conditions: {ready: false}}
- kind: EndpointSlice
  apiVersion: discovery.k8s.io/v1
  addressType: IPv4
  metadata: {name: orphan, namespace: a, labels: {kubernetes.io/service-name: b}}
  endpoints: null
";

    fn read(name: &str, text: &str) -> Result<Vec<Service>, FileError> {
        let file = TestFile::new(name, text);
        read_services(&file.path)
    }

    #[test]
    fn services_are_joined_with_their_slices() {
        let services = read("svc-list", LIST).expect("services");
        let dashboard = &services[0];
        assert_eq!(dashboard.cluster_ips, [IpAddr::from([10, 96, 12, 7])]);
        assert_eq!(dashboard.external_ips, [IpAddr::from([10, 89, 0, 1])]);
        assert_eq!(services[1].external_ips, [IpAddr::from([203, 0, 113, 11])]);
        let https = ServicePort { name: Some("https".into()), port: 443, node_port: Some(36704) };
        assert_eq!(dashboard.ports, [https]);
        let ready = vec![IpAddr::from([10, 88, 0, 4]), IpAddr::from([10, 88, 0, 9])];
        assert_eq!(dashboard.ready_endpoints, Some(ready));
        assert_eq!(dashboard.not_ready_endpoints, [IpAddr::from([10, 88, 0, 7])]);
        assert_eq!((services[1].cluster_ips.len(), &services[1].ready_endpoints), (0, &Some(Vec::new())));
        assert_eq!((services[2].name.as_str(), &services[2].ready_endpoints), ("b", &Some(Vec::new())));
    }

    #[test]
    fn without_slices_nothing_is_reported_of_endpoints() {
        let text = r#"{"kind":"ServiceList","apiVersion":"v1","items":[{"metadata":{"name":"a"},"spec":{"clusterIP":"10.96.0.1"}}]}"#;
        let services = read("svc-only", text).expect("services");
        assert_eq!((services[0].namespace.as_str(), &services[0].ready_endpoints), ("default", &None));
    }

    #[test]
    fn another_kind_is_named() {
        let message = read("svc-pods", r#"{"kind":"PodList","items":[]}"#).expect_err("pods").to_string();
        assert_starts(&message, "--services /");
        assert_ends(&message, "holds a PodList, expected a ServiceList, an EndpointSliceList or a List of both");
        let message = read("svc-none", r#"{"kind":"List","items":[{"kind":"Pod"}]}"#).expect_err("pods").to_string();
        assert!(message.contains("List without a Service"), "{message}");
    }
}

//! The endpoints of one Service, asked for by the core: an answer, and each way to have none.

use std::time::Instant;

use super::*;
use tracer_model::event::{Service, ServiceName};
use tracer_testing::{assert_ends, assert_has};

const V1: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";

async fn asking() -> (Fake, Followed) {
    Followed::start(ClusterConfig { endpoints: true, ..config(false) }, pace()).await
}

impl Followed {
    async fn query(&self, name: &str) {
        let service = ServiceName { namespace: "shop".into(), name: name.into() };
        self.queries.send(service).await.expect("somebody answers");
    }

    async fn answer(&mut self) -> Service {
        match timeout(GUARD, self.answers.recv()).await.expect("in time") {
            Some(ObservationKind::ServiceEndpoints(service)) => *service,
            other => panic!("{other:?}"),
        }
    }
}

fn slice(service: &str, addr: &str, ready: bool) -> String {
    format!(
        r#"{{"metadata":{{"namespace":"shop","name":"{service}-1","labels":{{"kubernetes.io/service-name":"{service}"}}}},"endpoints":[{{"addresses":["{addr}"],"conditions":{{"ready":{ready}}}}}]}}"#
    )
}

#[tokio::test(flavor = "local")]
async fn one_list_has_the_endpoints_of_the_one_service() {
    let (mut api, mut followed) = asking().await;
    followed.query("cart").await;
    let asked = api.next().await;
    assert_eq!((asked.path.as_str(), asked.is_watch()), (V1, false));
    assert!(asked.has("labelSelector=kubernetes.io%2Fservice-name%3Dcart"), "{:?}", asked.query);
    assert!(asked.has("resourceVersion=0"), "{:?}", asked.query);
    let slices = [slice("till", "10.0.0.9", true), slice("cart", "10.0.0.1", true), slice("cart", "10.0.0.2", false)];
    asked.answer("200 OK", &list(7, &slices)).await;
    let service = followed.answer().await;
    let addr = |last| std::net::IpAddr::from([10, 0, 0, last]);
    assert_eq!((service.namespace.as_str(), service.name.as_str()), ("shop", "cart"));
    assert_eq!((service.ready_endpoints, service.not_ready_endpoints), (Some(vec![addr(1)]), vec![addr(2)]));

    followed.query("none").await;
    api.next().await.answer("200 OK", &list(7, &[])).await;
    assert_eq!(followed.answer().await.ready_endpoints, Some(Vec::new()));
    assert_eq!(api.requests, 2);
}

#[tokio::test(flavor = "local")]
async fn a_server_before_1_21_is_asked_in_its_version() {
    let (mut api, mut followed) = asking().await;
    followed.query("cart").await;
    api.next().await.answer("404 Not Found", "404 page not found").await;
    let asked = api.next().await;
    assert_eq!(asked.path, V1.replace("v1", "v1beta1"));
    asked.answer("200 OK", &list(7, &[slice("cart", "10.0.0.2", false)])).await;
    assert_eq!(followed.answer().await.not_ready_endpoints.len(), 1);
    followed.query("till").await;
    assert_eq!(api.next().await.path, V1.replace("v1", "v1beta1"));
}

#[tokio::test]
async fn a_refusal_leaves_the_endpoints_unknown_and_is_one_warning() {
    for (refusal, problem) in [
        ("403 Forbidden", "grant verb `list` on resource `endpointslices` of apiGroup `discovery.k8s.io`"),
        ("404 Not Found", "does not know endpointslices (404)"),
        ("500 Internal Server Error", "answers 500"),
    ] {
        let run = async {
            let log = Log::new();
            let (mut api, mut followed) = asking().await;
            let versions = if refusal.starts_with("404") { 2 } else { 1 };
            for name in ["cart", "till"] {
                followed.query(name).await;
                for _ in 0..versions {
                    api.next().await.answer(refusal, "{}").await;
                }
                let service = followed.answer().await;
                assert_eq!((service.name.as_str(), service.ready_endpoints), (name, None));
            }
            let lines = log.lines();
            assert_eq!(lines.len(), 1, "{lines:#?}");
            assert_has(&lines[0], &[problem]);
            assert_ends(&lines[0], "; the endpoints of a Service in namespace shop stay unknown");
        };
        LocalSet::new().run_until(run).await;
    }
}

#[tokio::test(flavor = "local")]
async fn a_server_that_hangs_costs_a_second_and_its_end_is_noticed() {
    let log = Log::new();
    let (mut api, mut followed) = asking().await;
    for half in ["", "{\"kind\":\"EndpointSliceList\","] {
        let began = Instant::now();
        followed.query("cart").await;
        let mut hanging = api.next().await.stream().await;
        if !half.is_empty() {
            hanging.send(half).await;
        }
        assert_eq!(followed.answer().await.ready_endpoints, None);
        assert!((900..5_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
        hanging.closed().await;
    }
    assert_eq!(log.lines().len(), 1);
    followed.query("cart").await;
    api.next().await.answer("200 OK", &list(7, &[])).await;
    assert_eq!(followed.answer().await.ready_endpoints, Some(Vec::new()));
    // Another outage is another warning.
    followed.query("cart").await;
    api.next().await.answer("200 OK", "{}").await;
    assert_eq!(followed.answer().await.ready_endpoints, None);
    assert_eq!(log.lines().len(), 1);
}

#[tokio::test(flavor = "local")]
async fn the_end_of_the_run_ends_a_query() {
    let (mut api, followed) = asking().await;
    followed.query("cart").await;
    let hanging = api.next().await.stream().await;
    drop(followed);
    hanging.closed().await;
}

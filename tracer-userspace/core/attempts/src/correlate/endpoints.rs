//! The endpoints of single Services. tracer asks the cluster API for them when a verdict needs them.

use tracer_model::event::{Service, ServiceName};
use tracer_model::recent::Recent;

/// How long a verdict waits for an answer. The API answers within some milliseconds, or is in trouble.
const PATIENCE_NS: u64 = 1_000_000_000;
/// How long an answer without a ready endpoint counts. While kube-proxy has no endpoint either, little changes.
const KNOWN_NS: u64 = 30_000_000_000;
/// The same Service is not asked for again within this time.
const AGAIN_NS: u64 = 5_000_000_000;
/// After a query without an answer, none is issued for this time. After a failure that came in time, none about the same
/// namespace: the right to list may be missing in one namespace only, and no verdict waited for it.
const PAUSE_NS: u64 = 60_000_000_000;
/// In the long run, one query is issued in this time: every node of a cluster may ask the same API server.
const EVERY_NS: u64 = 10_000_000_000;
/// How many queries can be issued at once.
const BURST: u64 = 5;
const MAX_SERVICES: usize = 16;

/// The Services that were asked for.
#[derive(Debug, Default)]
pub struct Endpoints {
    /// Somebody answers the queries.
    pub(super) enabled: bool,
    services: Recent<ServiceName, Entry, MAX_SERVICES>,
    /// Until when the number of queries is used up.
    spent: u64,
    /// No query is issued from the first time until the second one.
    pause: (u64, u64),
}

#[derive(Debug, Default)]
struct Entry {
    queried_at: u64,
    /// The answer, and when it came.
    answer: Option<(u64, Service)>,
}

impl Entry {
    /// The endpoints for an attempt that began then. Ready ones can be gone a moment later, so they must be read after
    /// that.
    fn known(&self, began: u64) -> Option<(u64, &Service)> {
        let (time, service) = self.answer.as_ref()?;
        let counts_for = if service.ready_endpoints.as_ref()?.is_empty() { KNOWN_NS } else { 0 };
        (time.saturating_add(counts_for) >= began).then_some((*time, service))
    }
}

impl Endpoints {
    /// Whether to query for this Service now; the caller must issue the query.
    pub fn query(&mut self, service: &ServiceName, now: u64) -> bool {
        if !self.enabled || self.has_failed(&service.namespace, now) {
            return false;
        }
        let too_early = |entry: &Entry| now < entry.queried_at.saturating_add(AGAIN_NS) || entry.known(now).is_some();
        let spent = self.spent.max(now).saturating_add(EVERY_NS);
        let too_many = spent > now.saturating_add(BURST * EVERY_NS);
        let is_paused = (self.pause.0..self.pause.1).contains(&now);
        if too_many || is_paused || self.services.get(service).is_some_and(too_early) {
            return false;
        }
        self.spent = spent;
        self.pause = (now.saturating_add(PATIENCE_NS), now.saturating_add(PAUSE_NS));
        self.services.insert(service.clone(), Entry { queried_at: now, answer: None });
        true
    }

    /// A query about this namespace failed a short time ago.
    fn has_failed(&self, namespace: &str, now: u64) -> bool {
        let mut answers = self.services.values().filter_map(|entry| entry.answer.as_ref());
        answers.any(|(time, service)| {
            service.ready_endpoints.is_none()
                && service.namespace == namespace
                && (*time..time.saturating_add(PAUSE_NS)).contains(&now)
        })
    }

    /// Until when to wait for the answer about this Service; `None`: none is on its way.
    pub fn pending_until(&self, service: &ServiceName) -> Option<u64> {
        let entry = self.services.get(service).filter(|entry| entry.queried_at > 0 && entry.answer.is_none())?;
        Some(entry.queried_at.saturating_add(PATIENCE_NS))
    }

    /// Takes in an answer.
    pub fn observe(&mut self, now: u64, service: &Service) {
        let name = ServiceName { namespace: service.namespace.clone(), name: service.name.clone() };
        let entry = self.services.or_default(name);
        entry.answer = Some((now, service.clone()));
        let was_late = now >= entry.queried_at.saturating_add(PATIENCE_NS);
        let is_away = was_late && service.ready_endpoints.is_none();
        self.pause = if is_away { (now, now.saturating_add(PAUSE_NS)) } else { (0, 0) };
    }

    /// The endpoints of a Service for an attempt that began then, and when they were read.
    pub fn of(&self, service: &ServiceName, began: u64) -> Option<(u64, &Service)> {
        self.services.get(service)?.known(began)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_core::testing::address;

    const S: u64 = 1_000_000_000;

    fn asking() -> Endpoints {
        Endpoints { enabled: true, ..Endpoints::default() }
    }

    fn named(name: &str) -> ServiceName {
        ServiceName { namespace: "shop".into(), name: name.into() }
    }

    fn answer(name: &str, ready: Option<&[&str]>) -> Service {
        let ready = ready.map(|ready| ready.iter().map(|at| address(at)).collect());
        Service { ready_endpoints: ready, ..Service::named(named(name)) }
    }

    #[test]
    fn a_service_is_queried_once_and_again_when_its_answer_is_old() {
        let mut endpoints = asking();
        assert!(!Endpoints::default().query(&named("cart"), 100 * S), "nobody answers");
        assert!(endpoints.query(&named("cart"), 100 * S) && !endpoints.query(&named("cart"), 100 * S + 1));
        assert_eq!(endpoints.pending_until(&named("cart")), Some(101 * S));
        endpoints.observe(100 * S + 5, &answer("cart", Some(&[])));
        assert_eq!(endpoints.pending_until(&named("cart")), None);
        assert!(endpoints.of(&named("cart"), 130 * S).is_some() && !endpoints.query(&named("cart"), 130 * S));
        assert!(endpoints.of(&named("cart"), 131 * S).is_none() && endpoints.query(&named("cart"), 131 * S));
    }

    #[test]
    fn ready_endpoints_count_only_for_attempts_that_began_before() {
        let mut endpoints = asking();
        assert!(endpoints.query(&named("cart"), 100 * S));
        endpoints.observe(101 * S, &answer("cart", Some(&["10.88.1.7"])));
        assert!(endpoints.of(&named("cart"), 100 * S).is_some() && endpoints.of(&named("cart"), 102 * S).is_none());
        assert!(!endpoints.query(&named("cart"), 104 * S) && endpoints.query(&named("cart"), 105 * S));
    }

    #[test]
    fn the_number_of_queries_is_limited() {
        let mut endpoints = asking();
        let mut issued = |second: u64| {
            let names = (0..20).map(|n| named(&format!("cart-{second}-{n}")));
            let names: Vec<ServiceName> = names.filter(|name| endpoints.query(name, second * S)).collect();
            for name in &names {
                endpoints.observe(second * S, &answer(&name.name, Some(&[])));
            }
            names.len()
        };
        assert_eq!([100, 101, 110, 115, 120, 300].map(&mut issued), [5, 0, 1, 0, 1, 5]);
        let minute: usize = (400..460).map(issued).sum();
        assert_eq!(minute, 10, "five at once, then one in ten seconds");
        assert_eq!(endpoints.services.values().count(), MAX_SERVICES);
    }

    #[test]
    fn an_api_that_does_not_answer_is_left_alone_for_a_minute() {
        let mut endpoints = asking();
        assert!(endpoints.query(&named("cart"), 100 * S));
        assert!(endpoints.query(&named("till"), 100 * S), "the first answer may still come");
        assert!(!endpoints.query(&named("shelf"), 101 * S) && !endpoints.query(&named("cart"), 159 * S));
        assert!(endpoints.query(&named("shelf"), 160 * S));
        endpoints.observe(160 * S + 1, &answer("shelf", None));
        assert_eq!(endpoints.pending_until(&named("shelf")), None, "a failure is an answer, too");
        assert!(endpoints.of(&named("shelf"), 160 * S).is_none());
        assert!(!endpoints.query(&named("till"), 161 * S) && endpoints.query(&named("till"), 221 * S));
        endpoints.observe(222 * S, &answer("till", Some(&[])));
        assert!(endpoints.query(&named("shelf"), 223 * S), "it answers again");
    }

    /// A RoleBinding gives the right in some namespaces only.
    #[test]
    fn a_refusal_concerns_its_namespace_and_a_late_failure_all() {
        let elsewhere = ServiceName { namespace: "bank".into(), name: "till".into() };
        let failed_after = |late: u64| {
            let mut endpoints = asking();
            assert!(endpoints.query(&named("cart"), 100 * S));
            endpoints.observe(100 * S + late, &answer("cart", None));
            assert!(!endpoints.query(&named("shelf"), 102 * S) && !endpoints.query(&named("shelf"), 159 * S));
            endpoints.query(&elsewhere, 102 * S)
        };
        assert!(failed_after(5_000_000) && !failed_after(PATIENCE_NS));
    }
}

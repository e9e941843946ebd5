//! `-n`, `-p`, `-c` and `--cause`: which verdicts and attempts are printed.

use tracer_model::record::{Body, Cause, K8s};

/// What is asked for. Absent or empty: everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Kubernetes namespace.
    pub namespace: Option<String>,
    /// Pod name.
    pub pod: Option<String>,
    /// Container name.
    pub container: Option<String>,
    /// One of these causes.
    pub causes: Vec<Cause>,
}

impl Filter {
    /// Whether this is to be printed. Records about no attempt always are.
    #[must_use]
    pub fn passes(&self, body: &Body) -> bool {
        match body {
            Body::Verdict(v) => self.fits(v.k8s.as_ref(), Some(v.verdict.cause)),
            Body::Attempt(a) => self.fits(a.k8s.as_ref(), a.cause),
            Body::Start(_) | Body::Stop(_) | Body::Node(_) | Body::Loss(_) | Body::Finding(_) => true,
        }
    }

    /// Asks for names that only a list of pods can give.
    #[must_use]
    pub const fn needs_pods(&self) -> bool {
        self.namespace.is_some() || self.pod.is_some() || self.container.is_some()
    }

    /// Whether an attempt of this pod with this cause passes.
    #[must_use]
    pub fn fits(&self, k8s: Option<&K8s>, cause: Option<Cause>) -> bool {
        let same = |wanted: &Option<String>, get: fn(&K8s) -> &Option<String>| {
            wanted.is_none() || k8s.is_some_and(|k8s| get(k8s) == wanted)
        };
        same(&self.namespace, |k| &k.namespace)
            && same(&self.pod, |k| &k.pod_name)
            && same(&self.container, |k| &k.container_name)
            && (self.causes.is_empty() || cause.is_some_and(|cause| self.causes.contains(&cause)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::tests::verdict;

    #[test]
    fn every_condition_must_hold() {
        let body = verdict(Cause::ConnectionRefused);
        let mut filter = Filter::default();
        assert!(filter.passes(&body));
        filter.namespace = Some("shop".into());
        filter.causes = vec![Cause::LoopbackDown, Cause::ConnectionRefused];
        assert!(filter.passes(&body));
        filter.container = Some("other".into());
        assert!(!filter.passes(&body));
    }

    #[test]
    fn an_unknown_pod_fits_no_name() {
        let Body::Verdict(mut verdict) = verdict(Cause::Unexplained) else { return };
        verdict.k8s = None;
        let filter = Filter { pod: Some("cart".into()), ..Filter::default() };
        assert!(!filter.passes(&Body::Verdict(verdict)));
    }
}

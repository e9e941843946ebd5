//! Commands of kubectl with the names of a case, to paste.

use super::case::{Case, runs};
use tracer_attempts::enrich;
use tracer_model::event::ProbeType;
use tracer_model::record::K8s;
use tracer_model::shell::word;

/// "-n default web"; what is not known stays a word in capitals.
pub(super) fn pod(k8s: &K8s) -> String {
    let namespace = word(k8s.namespace.as_deref()).unwrap_or("NAMESPACE");
    format!("-n {namespace} {}", word(k8s.pod_name.as_deref()).unwrap_or("POD"))
}

/// " -c app", if the container is known.
pub(super) fn container(k8s: &K8s) -> String {
    word(k8s.container_name.as_deref()).map(|name| format!(" -c {name}")).unwrap_or_default()
}

/// A fix with the log of the container that was dialled, if its pod is known. How one ended that does not run says `history`.
pub(super) fn with_log(case: &Case<'_>, fix: String) -> String {
    let runs = runs(case);
    let k8s = enrich::name(case.attempt, case.node).k8s;
    match k8s.filter(|_| runs.is_none_or(|runs| runs.started_boot_ns.is_some() || runs.last.is_none())) {
        Some(k8s) => and_log(&k8s, runs.is_some_and(|runs| runs.restarts > 0), fix),
        None => fix,
    }
}

/// The same by its names.
pub(super) fn and_log(k8s: &K8s, restarted: bool, fix: String) -> String {
    if k8s.pod_name.is_none() {
        return fix;
    }
    let container = Some(container(k8s)).filter(|it| !it.is_empty());
    let container = container.unwrap_or_else(|| " --all-containers".to_owned());
    let before = if restarted { " (--previous: of the run before)" } else { "" };
    let fix = fix.trim_end_matches('.');
    format!("{fix}; the log: kubectl logs {}{container} --since=5m{before}", pod(k8s))
}

/// What is behind a Service, `shop/cart` or with its port `shop/cart:http`.
pub(super) fn endpoints(service: Option<&str>) -> String {
    let (namespace, name) = service.and_then(|it| it.split_once('/')).unzip();
    let namespace = word(namespace).unwrap_or("NAMESPACE");
    let name = word(name.and_then(|name| name.split(':').next())).unwrap_or("SERVICE");
    format!(
        "kubectl get endpointslices -n {namespace} -l kubernetes.io/service-name={name}; kubectl get pods -n {namespace} -o wide"
    )
}

/// Runs the command of a probe by hand. What it is stands in the pod's spec, and is not kept here.
pub(super) fn exec(k8s: &K8s, probe_type: ProbeType) -> String {
    let chosen = word(k8s.container_name.as_deref()).map(|name| format!("?(@.name==\"{name}\")"));
    let chosen = chosen.unwrap_or_else(|| "*".to_owned());
    let probe = match probe_type {
        ProbeType::Liveness => "livenessProbe",
        ProbeType::Readiness => "readinessProbe",
        ProbeType::Startup => "startupProbe",
    };
    format!(
        "kubectl exec {pod}{container} -- COMMAND; echo $? (COMMAND is what this prints: kubectl get pod {pod} -o jsonpath='{{.spec.containers[{chosen}].{probe}.exec.command}}')",
        pod = pod(k8s),
        container = container(k8s),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(namespace: &str, pod: &str, container: Option<&str>) -> K8s {
        let (namespace, pod_name) = (Some(namespace.into()), Some(pod.into()));
        K8s { namespace, pod_name, container_name: container.map(str::to_owned), ..K8s::default() }
    }

    #[test]
    fn what_is_known_stands_in_the_command() {
        assert_eq!(
            exec(&named("shop", "cart-0", Some("app")), ProbeType::Readiness),
            r#"kubectl exec -n shop cart-0 -c app -- COMMAND; echo $? (COMMAND is what this prints: kubectl get pod -n shop cart-0 -o jsonpath='{.spec.containers[?(@.name=="app")].readinessProbe.exec.command}')"#
        );
        let without = exec(&named("shop", "cart-0", None), ProbeType::Startup);
        assert!(without.ends_with("jsonpath='{.spec.containers[*].startupProbe.exec.command}')"), "{without}");
    }

    /// The name comes out of the comment of a rule.
    #[test]
    fn a_service_is_looked_for_in_its_namespace() {
        let cart =
            "kubectl get endpointslices -n shop -l kubernetes.io/service-name=cart; kubectl get pods -n shop -o wide";
        assert_eq!([endpoints(Some("shop/cart")), endpoints(Some("shop/cart:http"))], [cart, cart]);
        let unknown = cart.replace("shop", "NAMESPACE").replace("cart", "SERVICE");
        assert_eq!(["$(a)/b;c:d", "cart"].map(|name| endpoints(Some(name))), [unknown.clone(), unknown.clone()]);
        assert_eq!(endpoints(None), unknown);
    }

    #[test]
    fn a_log_is_that_of_the_container_or_of_all() {
        let fix = |container, restarted| and_log(&named("shop", "cart-0", container), restarted, "Look.".to_owned());
        assert_eq!(fix(Some("app"), false), "Look; the log: kubectl logs -n shop cart-0 -c app --since=5m");
        let before =
            "Look; the log: kubectl logs -n shop cart-0 --all-containers --since=5m (--previous: of the run before)";
        assert_eq!(fix(None, true), before);
        assert_eq!(and_log(&K8s::default(), true, "Look.".to_owned()), "Look.");
    }

    #[test]
    fn what_is_no_name_is_not_pasted() {
        assert_eq!(pod(&named("shop", "$(reboot)", None)), "-n shop POD");
        assert_eq!(pod(&named("shop", "--all", None)), "-n shop POD");
        assert_eq!(pod(&K8s::default()), "-n NAMESPACE POD");
        assert_eq!(container(&named("a", "b", Some("c;d"))), "");
    }
}

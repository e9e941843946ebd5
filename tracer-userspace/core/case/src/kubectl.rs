//! kubectl commands to paste, with the names of the case.

use std::fmt::Display;

use crate::case::{Case, runs};
use crate::pod_sockets::{FRESH_NS, last_reading};
use crate::serving;
use tracer_model::event::{AcceptingProcess, Acceptor, Actor, Container, Pod, ProbeType};
use tracer_model::record::{Command, K8s, Remediation};
use tracer_model::shell::word;

/// "-n default web"; an unknown name stays a word in capitals.
pub fn pod(k8s: &K8s) -> String {
    let namespace = word(k8s.namespace.as_deref()).unwrap_or("NAMESPACE");
    format!("-n {namespace} {}", word(k8s.pod_name.as_deref()).unwrap_or("POD"))
}

/// " -c app", if the container is known.
pub fn container(k8s: &K8s) -> String {
    word(k8s.container_name.as_deref()).map(|name| format!(" -c {name}")).unwrap_or_default()
}

/// A fix with the log of the probed container, if its pod is known. `history` adds the log of one that does not run.
pub fn with_log(case: &Case<'_>, fix: impl Into<Remediation>) -> Remediation {
    let restarted = runs(case).is_some_and(|runs| runs.restarts > 0);
    with_log_of(case, restarted, fix.into())
}

/// The same for a process that has ended: its container may have been restarted by the time of reading.
pub fn with_logs(case: &Case<'_>, fix: impl Into<Remediation>) -> Remediation {
    with_log_of(case, true, fix.into())
}

fn with_log_of(case: &Case<'_>, restarted: bool, fix: Remediation) -> Remediation {
    let runs = runs(case);
    let k8s = case.matched.name().k8s;
    match k8s.filter(|_| runs.is_none_or(|runs| runs.started_boot_ns.is_some() || runs.last.is_none())) {
        Some(k8s) => and_log(&k8s, restarted, fix),
        None => fix,
    }
}

/// The same for the process that closed the connection: the log of its container. In a pod of several containers that
/// is not always the probed one: a transparent proxy (TPROXY) takes connections to the application's port.
pub fn with_log_of_closer(case: &Case<'_>, closer: Option<&Actor>, ended: bool, fix: Remediation) -> Remediation {
    let probed = case.matched.probed_container().filter(|(pod, _)| pod.containers.len() > 1).zip(closer);
    let usual = |fix: Remediation| if ended { with_logs(case, fix) } else { with_log(case, fix) };
    let Some(((pod, probed), closer)) = probed else { return usual(fix) };
    match serving::container_of_process(case, pod, closer.pid).or_else(|| accepting_container(case, pod, closer)) {
        Some(own) if own.id == probed.id => usual(fix),
        Some(other) => {
            let k8s = K8s { container_name: other.name.clone(), ..case.matched.name().k8s.unwrap_or_default() };
            and_log(&k8s, ended, fix)
        }
        // It was read who listens there, and that is another process.
        None if acceptor(case).is_some_and(|it| it.processes.iter().any(|it| it.container.is_some())) => fix,
        None => usual(fix),
    }
}

fn acceptor<'a>(case: &Case<'a>) -> Option<&'a Acceptor> {
    last_reading(case, FRESH_NS)?.1.acceptor.as_ref()
}

/// The container of the process that accepts the target's connections, if it is this one or has its name: a worker.
fn accepting_container<'a>(case: &Case<'_>, pod: &'a Pod, process: &Actor) -> Option<&'a Container> {
    let is_it = |it: &&AcceptingProcess| it.server.pid == process.pid || it.server.comm == process.comm;
    let id = acceptor(case)?.processes.iter().find(is_it)?.container.as_ref()?;
    pod.containers.iter().find(|it| it.id.as_ref() == Some(id))
}

/// A fix with the log of this container.
pub fn and_log(k8s: &K8s, restarted: bool, fix: Remediation) -> Remediation {
    if k8s.pod_name.is_none() {
        return fix;
    }
    let container = Some(container(k8s)).filter(|it| !it.is_empty());
    let container = container.unwrap_or_else(|| " --all-containers".to_owned());
    let log = format!("kubectl logs {}{container}", pod(k8s));
    let previous = restarted.then(|| Command::in_cluster(format!("{log} --previous")));
    fix.run([Command::in_cluster(format!("{log} --since=5m"))].into_iter().chain(previous))
}

/// Commands that show the endpoints of a Service, which is `shop/cart`, or `shop/cart:http` with its port.
pub fn endpoints(service: Option<&str>) -> [Command; 2] {
    let (namespace, name) = service.and_then(|it| it.split_once('/')).unzip();
    let namespace = word(namespace).unwrap_or("NAMESPACE");
    let name = word(name.and_then(|name| name.split(':').next())).unwrap_or("SERVICE");
    [
        Command::in_cluster(format!("kubectl get endpointslices -n {namespace} -l kubernetes.io/service-name={name}")),
        Command::in_cluster(format!("kubectl get pods -n {namespace} -o wide")),
    ]
}

/// The command that shows which Services have this address or NodePort.
pub fn services_with(word: impl Display) -> Command {
    Command::in_cluster(format!("kubectl get services -A -o wide | grep -wF {word}"))
}

/// Commands that print the command of a probe and run it as COMMAND: tracer does not keep the command itself. jq prints
/// its words as a shell reads them. Sidecars are init containers.
pub fn exec(k8s: &K8s, probe_type: ProbeType) -> [Command; 2] {
    let probe = match probe_type {
        ProbeType::Liveness => "livenessProbe",
        ProbeType::Readiness => "readinessProbe",
        ProbeType::Startup => "startupProbe",
    };
    let which = word(k8s.container_name.as_deref()).map_or("*".to_owned(), |name| format!("?(@.name=='{name}')"));
    let path = format!("{{.spec['containers','initContainers'][{which}].{probe}.exec.command}}");
    let (pod, container) = (pod(k8s), container(k8s));
    [
        Command::in_cluster(format!("kubectl get pod {pod} -o jsonpath=\"{path}\" | jq -r @sh")),
        Command::in_cluster(format!("kubectl exec {pod}{container} -- COMMAND; echo $?")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_core::testing::assert_has;

    fn named(namespace: &str, pod: &str, container: Option<&str>) -> K8s {
        let (namespace, pod_name) = (Some(namespace.into()), Some(pod.into()));
        K8s { namespace, pod_name, container_name: container.map(str::to_owned), ..K8s::default() }
    }

    #[test]
    fn an_exec_command_has_the_names_that_are_known() {
        let commands = |container, probe_type| exec(&named("shop", "cart-0", container), probe_type).map(|it| it.run);
        assert_eq!(
            commands(Some("app"), ProbeType::Readiness),
            [
                r#"kubectl get pod -n shop cart-0 -o jsonpath="{.spec['containers','initContainers'][?(@.name=='app')].readinessProbe.exec.command}" | jq -r @sh"#,
                "kubectl exec -n shop cart-0 -c app -- COMMAND; echo $?",
            ]
        );
        let [without, _] = commands(None, ProbeType::Startup);
        assert_has(&without, &["[*].startupProbe.exec.command}"]);
    }

    /// The name of the Service comes from the comment of a rule.
    #[test]
    fn a_service_is_looked_for_in_its_namespace() {
        let commands = |name| endpoints(name).map(|it| it.run).join("; ");
        let cart =
            "kubectl get endpointslices -n shop -l kubernetes.io/service-name=cart; kubectl get pods -n shop -o wide";
        assert_eq!([commands(Some("shop/cart")), commands(Some("shop/cart:http"))], [cart, cart]);
        let unknown = cart.replace("shop", "NAMESPACE").replace("cart", "SERVICE");
        assert_eq!(["$(a)/b;c:d", "cart"].map(|name| commands(Some(name))), [unknown.clone(), unknown.clone()]);
        assert_eq!(commands(None), unknown);
    }

    #[test]
    fn a_log_is_that_of_the_container_or_of_all() {
        let fix = |container, restarted| and_log(&named("shop", "cart-0", container), restarted, "Look".into());
        assert_eq!(fix(Some("app"), false).to_string(), "Look: kubectl logs -n shop cart-0 -c app --since=5m");
        let log = "kubectl logs -n shop cart-0 --all-containers";
        assert_eq!(fix(None, true).to_string(), format!("Look: {log} --since=5m; {log} --previous"));
        assert_eq!(and_log(&K8s::default(), true, "Look".into()).to_string(), "Look");
    }

    #[test]
    fn a_name_that_could_be_a_command_is_not_pasted() {
        assert_eq!(pod(&named("shop", "$(reboot)", None)), "-n shop POD");
        assert_eq!(pod(&named("shop", "--all", None)), "-n shop POD");
        assert_eq!(pod(&K8s::default()), "-n NAMESPACE POD");
        assert_eq!(container(&named("a", "b", Some("c;d"))), "");
    }
}

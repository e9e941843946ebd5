//! Tests of `--pods`: the kubelet's own output, the forms of kubectl, every default and every error.

use super::*;
use crate::testing::TestFile;

const KUBELET: &str = include_str!("../../../../testdata/kubelet-pods.json");

fn read(name: &str, text: &str) -> Result<Vec<Pod>, FileError> {
    let file = TestFile::new(name, text);
    read_pods(&file.path)
}

fn spec(probe_type: ProbeType, handler: Handler, port: u16, times: (u32, u32, u32)) -> ProbeSpec {
    ProbeSpec {
        probe_type,
        handler,
        scheme: None,
        speaks: None,
        port,
        host: None,
        path: None,
        timeout_s: times.0,
        period_s: times.1,
        failure_threshold: times.2,
        initial_delay_s: 0,
        grace_s: None,
    }
}

#[test]
fn output_of_a_kubelet() {
    let pods = read("kubelet", KUBELET).expect("pods");
    let names: Vec<_> = pods.iter().filter_map(|pod| pod.name.as_deref()).collect();
    assert_eq!(names, ["web-rig-node", "target-rig-node", "hostnet-rig-node"]);
    let web = &pods[0];
    assert_eq!(web.uid.as_deref(), Some("eb9dc43f6a74951845a7e7c766a61e81"));
    assert_eq!(web.addrs, [IpAddr::from([10, 88, 0, 4])]);
    assert!(web.containers[0].id.as_ref().is_some_and(|id| id.starts_with("cd4a88148bc9")));
    let readiness = &web.containers[0].probes[1];
    let expected = ProbeSpec {
        scheme: Some("http".into()),
        path: Some("/healthz".into()),
        ..spec(ProbeType::Readiness, Handler::Http, 8080, (1, 2, 2))
    };
    assert_eq!(*readiness, expected);
    assert_eq!(pods[1].containers[0].probes[1].path.as_deref(), Some("/ready"), "the query is dropped");
    assert_eq!(pods[1].containers[1].probes, [spec(ProbeType::Readiness, Handler::Tcp, 8082, (1, 2, 1))]);
    assert!(pods[2].host_network && pods[2].addrs.is_empty());
    assert_eq!(pods[2].containers[0].probes[0].host.as_deref(), Some("127.0.0.1"));
}

#[test]
fn list_in_yaml_with_every_probe_sidecars_and_defaults() {
    let text = "\
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: a, namespace: longhorn-system, uid: u-1, creationTimestamp: null, ownerReferences: [{kind: ReplicaSet}]}
  spec:
    hostNetwork: true
    terminationGracePeriodSeconds: 120
    initContainers:
    - {name: init, readinessProbe: {tcpSocket: {port: 1}}}
    - {name: mesh, restartPolicy: Always, ports: [{name: status, containerPort: 15021}], startupProbe: {tcpSocket: {port: status}}}
    containers:
    - name: manager
      ports: [{name: webhook, containerPort: 9502}, {name: none, containerPort: 0}]
      livenessProbe: {exec: {command: [\"true\"]}}
      readinessProbe: {httpGet: {scheme: HTTPS, port: webhook, path: v1/healthz}, initialDelaySeconds: 5}
      startupProbe: {tcpSocket: {port: status}}
    - name: numeric
      livenessProbe: {tcpSocket: {port: '8080', host: 10.0.0.9}, terminationGracePeriodSeconds: 60}
      readinessProbe: {httpGet: {port: 80, host: '', path: ''}, timeoutSeconds: 0, terminationGracePeriodSeconds: 5}
      startupProbe: {grpc: {port: 9090, service: readiness}, failureThreshold: 30, periodSeconds: 2}
    - {name: zero, livenessProbe: {grpc: {port: 0}}, readinessProbe: {tcpSocket: {port: '0'}}, startupProbe: {tcpSocket: {port: 99999}}}
  status:
    phase: Running
    hostIP: 192.168.1.34
    hostIPs: [{ip: 192.168.1.34}, {ip: 'fd00::34'}]
    initContainerStatuses: [{name: mesh, containerID: 'containerd://5ca1ab1e'}]
    containerStatuses: [{name: manager, containerID: 'cri-o://cafe'}, {name: zero, containerID: ''}]
- {apiVersion: v1, kind: Pod, metadata: {name: b}, status: {podIP: 'fd00:10::7', podIPs: [{ip: 'fd00:10::7'}, {ip: 10.0.0.7}]}}
- {apiVersion: v1, kind: Service, metadata: {name: not-a-pod}}
";
    let pods = read("list", text).expect("pods");
    assert_eq!((pods.len(), pods[0].addrs.len()), (2, 2));
    assert_eq!(pods[1].addrs, ["fd00:10::7", "10.0.0.7"].map(|addr| addr.parse::<IpAddr>().expect("an address")));
    let ids: Vec<_> = pods[0].containers.iter().map(|it| it.id.as_deref()).collect();
    assert_eq!(ids, [Some("5ca1ab1e"), Some("cafe"), None, None]);
    let probes: Vec<_> =
        pods[0].containers.iter().map(|it| (it.name.as_deref().unwrap_or_default(), &it.probes[..])).collect();
    // The startup probe names a port of another container: the kubelet does not find it, either.
    let webhook = ProbeSpec {
        scheme: Some("https".into()),
        path: Some("/v1/healthz".into()),
        initial_delay_s: 5,
        ..spec(ProbeType::Readiness, Handler::Http, 9502, (1, 10, 3))
    };
    let liveness = spec(ProbeType::Liveness, Handler::Tcp, 8080, (1, 10, 3));
    let numeric = [
        ProbeSpec { host: Some("10.0.0.9".into()), grace_s: Some(60), ..liveness },
        ProbeSpec {
            scheme: Some("http".into()),
            path: Some("/".into()),
            ..spec(ProbeType::Readiness, Handler::Http, 80, (1, 10, 3))
        },
        ProbeSpec { grace_s: Some(120), ..spec(ProbeType::Startup, Handler::Grpc, 9090, (1, 2, 30)) },
    ];
    let mesh = ProbeSpec { grace_s: Some(120), ..spec(ProbeType::Startup, Handler::Tcp, 15021, (1, 10, 3)) };
    // Nobody connects to port 0 or one above 65535.
    let zero = ("zero", &[][..]);
    assert_eq!(probes, [("mesh", &[mesh][..]), ("manager", &[webhook][..]), ("numeric", &numeric[..]), zero]);
}

/// `grpc.mode` and `httpGet.protocol` came with Kubernetes 1.37; what a later field asks for is not known.
#[test]
fn what_a_probe_speaks_by_the_fields_of_its_handler() {
    let speaks = |handler: &str| {
        let text = format!("kind: Pod\nspec: {{containers: [{{name: a, readinessProbe: {{{handler}}}}}]}}");
        read("speaks", &text).expect("pod")[0].containers[0].probes[0].speaks
    };
    use ProbeProtocol::{Http2, Tls, Unknown};
    for known in [
        "httpGet: {port: 80, path: /, host: a, scheme: HTTPS, httpHeaders: [{name: Host, value: a}]}",
        "httpGet: {port: 80, protocol: null}",
        "grpc: {port: 80, service: a}",
        "tcpSocket: {port: 80, host: a}",
    ] {
        assert_eq!(speaks(known), None, "{known}");
    }
    assert_eq!(speaks("httpGet: {port: 80, protocol: HTTP2}"), Some(Http2));
    assert_eq!(speaks("grpc: {port: 80, mode: TLS}"), Some(Tls));
    for unknown in [
        "httpGet: {port: 80, protocol: HTTP3}",
        "httpGet: {port: 80, scheme: QUIC}",
        "httpGet: {port: 80, proxyProtocol: V2}",
        "grpc: {port: 80, mode: MTLS}",
        "grpc: {port: 80, compression: gzip}",
    ] {
        assert_eq!(speaks(unknown), Some(Unknown), "{unknown}");
    }
}

#[test]
fn a_list_may_be_empty() {
    assert!(read("empty", r#"{"kind":"PodList","items":null}"#).expect("pods").is_empty());
    assert!(read("empty-list", r#"{"kind":"List","items":[]}"#).expect("pods").is_empty());
}

#[test]
fn a_pod_that_somebody_deletes() {
    for (time, deleting) in [(r#""2026-11-22T05:00:00Z""#, true), ("null", false)] {
        let text = format!(r#"{{"kind":"Pod","metadata":{{"name":"p","deletionTimestamp":{time}}}}}"#);
        assert_eq!(read("deleting", &text).expect("pod")[0].deleting, deleting, "{time}");
    }
}

#[test]
fn the_mirror_of_a_static_pod_names_the_kubelets_uid() {
    let hash = "eb9dc43f6a74951845a7e7c766a61e81";
    let text = format!(
        r#"{{"kind":"Pod","metadata":{{"name":"p","uid":"u","annotations":{{"kubernetes.io/config.hash":"{hash}",
        "kubernetes.io/config.mirror":"{hash}","kubernetes.io/config.source":"file"}}}}}}"#
    );
    let pod = read("mirror", &text).expect("pod").remove(0);
    assert!(pod.has_uid("u") && pod.has_uid(hash) && !pod.has_uid("other"), "{pod:?}");
    let text = r#"{"kind":"Pod","metadata":{"name":"p","uid":"u","annotations":null}}"#;
    assert_eq!(read("no mirror", text).expect("pod")[0].kubelet_uid, None);
}

#[test]
fn a_pod_names_the_workload_that_made_it() {
    let workload = |labels: &str, owners: &str| {
        let text =
            format!(r#"{{"kind":"Pod","metadata":{{"name":"p","labels":{labels},"ownerReferences":{owners}}}}}"#);
        let workload = read("owners", &text).expect("pod").remove(0).workload;
        workload.map(|it| format!("{}/{}", it.kind, it.name))
    };
    let owned = |kind: &str, name: &str| format!(r#"[{{"kind":"{kind}","name":"{name}","controller":true}}]"#);
    let (hash, set) = (r#"{"pod-template-hash":"7d9f"}"#, owned("ReplicaSet", "cart-7d9f"));
    assert_eq!(workload(hash, &set).as_deref(), Some("Deployment/cart"));
    assert_eq!(workload("{}", &set).as_deref(), Some("ReplicaSet/cart-7d9f"), "no Deployment's");
    assert_eq!(workload(hash, &owned("ReplicaSet", "7d9f")).as_deref(), Some("ReplicaSet/7d9f"));
    assert_eq!(workload("null", &owned("StatefulSet", "db")).as_deref(), Some("StatefulSet/db"));
    assert_eq!(workload("{}", &owned("Node", "n1")), None, "a static pod");
    assert_eq!(workload("{}", r#"[{"kind":"Other","name":"x"}]"#), None, "no controller");
    assert_eq!(workload("{}", "null"), None);
}

#[test]
fn lifecycle_handlers_that_dial() {
    let text = "\
kind: Pod
metadata: {name: a}
spec:
  containers:
  - name: web
    ports: [{name: admin, containerPort: 9000}]
    lifecycle:
      postStart: {httpGet: {port: '8080', host: 127.0.0.1}}
      preStop: {httpGet: {port: admin, scheme: HTTPS, path: '/quit?now=1'}}
  - name: silent
    lifecycle: {postStart: {tcpSocket: {port: 9000}}, preStop: {exec: {command: ['true']}}}
  - {name: asleep, lifecycle: {preStop: {sleep: {seconds: 5}}}}
  - {name: none, lifecycle: null}
  - {name: command, lifecycle: {postStart: {exec: {command: ['false']}}}}
";
    let handler = |event, scheme: &str, port, host: Option<&str>, path: &str| LifecycleHandler {
        event,
        scheme: scheme.into(),
        port,
        host: host.map(Into::into),
        path: path.into(),
    };
    let pods = read("lifecycle", text).expect("pod");
    let expected = [
        handler(LifecycleEvent::PostStart, "http", 8080, Some("127.0.0.1"), "/"),
        handler(LifecycleEvent::PreStop, "https", 9000, None, "/quit"),
    ];
    assert_eq!(pods[0].containers[0].lifecycle, expected);
    assert!(pods[0].containers[1..].iter().all(|it| it.lifecycle.is_empty()), "no other connects: {pods:?}");
    let post_start: Vec<bool> = pods[0].containers.iter().map(Container::has_post_start).collect();
    assert_eq!(post_start, [true, false, false, false, true]);
}

#[test]
fn a_finished_pod_is_not_probed() {
    let text = r#"{"kind":"Pod","metadata":{"name":"p"},"spec":{"hostNetwork":true,"containers":[{"name":"c",
        "livenessProbe":{"tcpSocket":{"host":"127.0.0.1","port":80}}}]},"status":{"phase":"Failed","hostIP":"10.0.0.1"}}"#;
    for phase in ["Failed", "Succeeded"] {
        let pods = read("ended", &text.replace("Failed", phase)).expect("pod");
        assert!(pods[0].addrs.is_empty() && pods[0].containers[0].probes.is_empty(), "{pods:?}");
    }
    let pods = read("running", &text.replace("Failed", "Running")).expect("pod");
    assert!(pods[0].addrs.len() == 1 && pods[0].containers[0].probes.len() == 1, "{pods:?}");
}

/// As two lists that were made one by hand have it.
#[test]
fn of_a_pod_that_is_there_twice_the_last_counts() {
    let pod = |name: &str, uid: &str, ip: &str| {
        format!(
            r#"{{"kind":"Pod","metadata":{{"namespace":"shop","name":"{name}","uid":"{uid}"}},"status":{{"podIP":"{ip}"}}}}"#
        )
    };
    let items =
        [pod("a", "1", "10.0.0.1"), pod("b", "2", "10.0.0.2"), pod("a", "1", "10.0.0.3"), pod("b", "3", "10.0.0.4")];
    let pods = read("twice", &format!(r#"{{"kind":"PodList","items":[{}]}}"#, items.join(","))).expect("pods");
    let addrs: Vec<String> = pods.iter().flat_map(|pod| &pod.addrs).map(ToString::to_string).collect();
    assert_eq!(addrs, ["10.0.0.2", "10.0.0.3", "10.0.0.4"]);
}

#[test]
fn yaml_may_have_several_documents() {
    let pod = |name: &str| format!("kind: Pod\nmetadata: {{name: {name}}}\n");
    let other = "kind: Service\nmetadata: {name: s}\n";
    let names = |text: &str| -> Vec<String> {
        read("documents", text).unwrap().into_iter().filter_map(|pod| pod.name).collect()
    };
    assert_eq!(names(&format!("{}---\n{}", pod("a"), pod("b"))), ["a", "b"]);
    let more = format!("%YAML 1.1\n--- # first\n{}---\r\n{other}---\n# none\n---\n{}...\n", pod("a"), pod("b"));
    assert_eq!(names(&more), ["a", "b"]);
    let list = format!("kind: PodList\nitems:\n- metadata: {{name: c}}\n---\n{}", pod("d"));
    assert_eq!(names(&list), ["c", "d"]);
    let error = read("documents", &format!("---\n{other}---\n{other}")).unwrap_err().to_string();
    assert!(error.ends_with("holds a Service, expected a PodList, a List of Pods or a Pod"), "{error}");
    let error = read("documents", &format!("{}---\nkind: Pod\nmetadata: [\n", pod("a"))).unwrap_err().to_string();
    assert!(error.contains("line 5, column 12"), "{error}");
    let error = read("documents", "# nothing\n").unwrap_err().to_string();
    assert!(error.contains("holds no Kubernetes object"), "{error}");
}

#[test]
fn every_error_is_one_line_with_flag_file_and_place() {
    let cases = [
        ("services", r#"{"kind":"ServiceList","items":[]}"#, "holds a ServiceList, expected a PodList"),
        ("mixed", r#"{"kind":"List","items":[{"kind":"Node"}]}"#, "holds a List without a Pod"),
        ("nothing", "{}", "there is no `kind`"),
        ("broken-json", "{\"kind\":\"PodList\",\n\"items\": [}", "line 2, column 11"),
        ("broken-yaml", "kind: PodList\nitems: [\n", "line 2, column 9"),
        ("cut-json", "{\"kind\":\"PodList\",\n\"items\": [\n\n", "line 2, column 11"),
        ("wrong-type", "{\"kind\":\"PodList\",\n\"items\":[{\"spec\":{\"containers\":7}}]}", "line 2"),
        ("text", "hello", "line 1, column 1: invalid type: string, expected a Kubernetes object"),
    ];
    for (name, text, expected) in cases {
        let message = read(name, text).expect_err(name).to_string();
        assert!(message.contains(expected) && message.starts_with("--pods /") && message.contains(name), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    for (name, text) in [
        ("token", "eyJ.SECRET at line 1\n"),
        ("quoted", "\"SECRET, expected \\\" SECRET\""),
        ("kind", "kind: SECRET/KEY\n"),
        ("value", "kind: Pod\nmetadata: SECRET\n"),
        ("number", "{\"kind\":\"Pod\",\"metadata\":{\"name\":[\"SECRET\"]}}"),
    ] {
        let message = read(name, text).expect_err(name).to_string();
        assert!(!message.contains("SECRET") && message.contains(name), "{message}");
    }
    let missing = read_pods(Path::new("/no/such/pods.json")).expect_err("missing");
    assert_eq!(missing.to_string(), "--pods /no/such/pods.json: cannot be read: No such file or directory");
}

/// Since Kubernetes 1.34 the exit code may restart a container that is never restarted otherwise.
#[test]
fn a_container_with_restart_rules_may_be_restarted() {
    let rules = "restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]";
    let text = format!(
        "kind: Pod\nspec: {{restartPolicy: Never, containers: [{{name: b}}, {{name: c, restartPolicy: Never, {rules}}}]}}"
    );
    let pods = read("rules", &text).expect("pods");
    assert_eq!(pods[0].containers.iter().map(|it| it.never_restarted).collect::<Vec<_>>(), [true, false]);
}

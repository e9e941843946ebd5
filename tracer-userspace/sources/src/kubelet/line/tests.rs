use super::*;
use tracer_model::event::ProbeOutput;

/// 5 ms after 15:50:38.197403 UTC of some day.
const NOW: Now = Now {
    boot_ns: 1_000_005_000_000,
    boot_to_wall_ns: (15 * 3600 + 50 * 60 + 38) * 1_000_000_000 + 197_403_000 - 1_000_000_000_000,
};

fn probe_of(line: &str) -> KubeletProbe {
    match parse(line, NOW) {
        Some(ObservationKind::KubeletProbe(probe)) => *probe,
        other => panic!("{other:?}"),
    }
}

fn sandbox_of(line: &str) -> SandboxFailure {
    match parse(line, NOW) {
        Some(ObservationKind::SandboxFailure(failure)) => *failure,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_plain_form_of_1_20() {
    let line = r#"I1120 15:50:38.197403   13560 prober.go:117] Readiness probe for "target-rig-node_default(761c395d27727576796af2646f1186d4):http" failed (failure): Get "http://10.88.0.5:8081/ready?x=1": dial tcp 10.88.0.5:8081: connect: connection refused"#;
    let probe = probe_of(line);
    assert_eq!((probe.pod.name.as_deref(), probe.pod.namespace.as_deref()), (Some("target-rig-node"), Some("default")));
    assert_eq!(probe.pod.uid.as_deref(), Some("761c395d27727576796af2646f1186d4"));
    assert_eq!((probe.container.as_deref(), probe.probe_type), (Some("http"), ProbeType::Readiness));
    assert_eq!((probe.reason, probe.dst), (ProbeOutput::Network, "10.88.0.5:8081".parse().ok()));
    assert_eq!((probe.pid, probe.written_boot_ns), (Some(13560), 1_000_000_000_000));
}

#[test]
fn the_structured_form() {
    let line = r#"I1120 15:50:38.197403   13560 prober.go:107] "Probe failed" probeType="Liveness" pod="shop/cart-7d9" podUID=ae610349-5dc7-4094-97be-170d2744990a containerName="web" probeResult=failure output="Get \"http://10.88.0.5:8081/live\": EOF""#;
    let probe = probe_of(line);
    assert_eq!((probe.pod.name.as_deref(), probe.pod.namespace.as_deref()), (Some("cart-7d9"), Some("shop")));
    assert_eq!(probe.pod.uid.as_deref(), Some("ae610349-5dc7-4094-97be-170d2744990a"));
    assert_eq!((probe.reason, probe.probe_type), (ProbeOutput::Network, ProbeType::Liveness));
    assert_eq!(probe.output.as_deref(), Some("Get \"http://10.88.0.5:8081\": EOF"));
    let multi = r#"I1120 15:50:38.197403   13560 prober.go:107] "Probe failed" probeType="Readiness" pod="a/b" podUID=c containerName="d" probeResult=failure output=<"#;
    assert_eq!(probe_of(multi).reason, ProbeOutput::Other, "the next lines are lost");
    let grpc =
        format!("{multi}\n\terror: health rpc probe failed: rpc error: code = Internal desc = down\n\tretry\n >");
    assert_eq!(probe_of(&grpc).output.as_deref(), Some("error: health rpc probe failed: rpc error: code = Internal"));
    let silent = multi.replace("output=<", "output=\"\"");
    assert_eq!(probe_of(&silent).reason, ProbeOutput::Nothing, "this kubelet may report a timeout so");
    let newer = silent.replace("probeResult=failure", "probeResult=\"failure\"");
    assert_eq!(probe_of(&newer).reason, ProbeOutput::PrintedNothing);
}

#[test]
fn an_exec_probe_that_could_not_be_run() {
    let line = r#"E1120 15:50:38.197403   13560 prober.go:104] "Probe errored" err="rpc error: code = NotFound desc = failed to exec in container: container is not created or running" probeType="Readiness" pod="a/b" podUID="c" containerName="d""#;
    let probe = probe_of(line);
    assert_eq!((probe.result, probe.reason), (KubeletResult::Error, ProbeOutput::ContainerEnds));
}

/// runc quotes the command that it does not find, and a CNI plugin an annotation: text of a pod, before its name.
#[test]
fn what_an_error_quotes_names_no_other_pod() {
    let errored = r#"E1120 15:50:38.197403    1234 prober.go:104] "Probe errored" err="rpc error: code = Unknown desc = failed to exec in container: failed to start exec \"9f\": OCI runtime exec failed: exec failed: unable to start container process: exec: \"x pod=bank/ledger-0 podUID=aaaaaaaa-5dc7-4094-97be-170d2744990a containerName=db probeType=Liveness y\": executable file not found in $PATH: unknown" probeType="Readiness" pod="tenant-x/evil" podUID="bbbbbbbb-5dc7-4094-97be-170d2744990a" containerName="c""#;
    let probe = probe_of(errored);
    assert_eq!((probe.pod.namespace.as_deref(), probe.pod.name.as_deref()), (Some("tenant-x"), Some("evil")));
    assert_eq!(probe.pod.uid.as_deref(), Some("bbbbbbbb-5dc7-4094-97be-170d2744990a"));
    assert_eq!((probe.container.as_deref(), probe.probe_type), (Some("c"), ProbeType::Readiness));
    assert_eq!(probe.reason, ProbeOutput::CommandNotRun);
    let sandbox = r#"E1120 15:50:38.197403    1234 kuberuntime_manager.go:1166] "CreatePodSandbox for pod failed" err="rpc error: code = Unknown desc = failed to setup network for sandbox \"8f\": plugin type=\"multus\" failed (add): parsePodNetworkAnnotation: a pod=kube-system/coredns-1 b" pod="tenant-x/evil""#;
    assert_eq!(sandbox_of(sandbox).pod.name.as_deref(), Some("evil"));
}

/// CRI-O appends the output of runc, which ends with a newline. OVN-Kubernetes quotes in brackets.
#[test]
fn an_error_of_several_lines() {
    let line = "E1120 15:50:38.197403    1234 prober.go:104] \"Probe errored\" err=<\n\trpc error: code = Unknown desc = command error: time=\"2026-11-20T15:50:38Z\" level=error msg=\"exec failed: unable to start container process: exec: \\\"curl\\\": executable file not found in $PATH\"\n\t, stdout: , stderr: , exit code -1\n > probeType=\"Readiness\" pod=\"shop/cart\" podUID=\"c\" containerName=\"d\"";
    let probe = probe_of(line);
    assert_eq!((probe.pod.name.as_deref(), probe.container.as_deref()), (Some("cart"), Some("d")));
    assert_eq!((probe.result, probe.reason), (KubeletResult::Error, ProbeOutput::CommandNotRun));
    assert!(probe.output.is_some_and(|it| it.ends_with("executable file not found in $PATH\"")));
    let sandbox = "E1120 15:50:38.197403    1234 kuberuntime_manager.go:1166] \"CreatePodSandbox for pod failed\" err=<\n\trpc error: code = Unknown desc = failed to create pod network sandbox k8s_cart_shop: error adding pod shop_cart to CNI network \"multus-cni-network\": CNI request failed with status 400: '[shop/cart 8f] timed out\n\t'\n > pod=\"shop/cart\"";
    let failed = sandbox_of(sandbox);
    assert_eq!((failed.pod.name.as_deref(), failed.cause), (Some("cart"), SandboxCause::Plugin));
}

#[test]
fn a_sandbox_without_network() {
    let flannel = r#"E1120 15:50:38.197403   13560 kuberuntime_sandbox.go:70] CreatePodSandbox for pod "web_default(u1)" failed: rpc error: code = Unknown desc = failed to setup network for sandbox "8f": loadFlannelSubnetEnv failed: open /run/flannel/subnet.env: no such file or directory"#;
    let failure = sandbox_of(flannel);
    assert_eq!((failure.cause, failure.pod.name.as_deref()), (SandboxCause::SubnetFile, Some("web")));
    let structured = r#"E1120 15:50:38.197403   13560 pod_workers.go:1301] "Error syncing pod, skipping" err="network is not ready: container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized" pod="kube-system/coredns" podUID="u2""#;
    let failure = sandbox_of(structured);
    assert_eq!((failure.cause, failure.pod.uid.as_deref()), (SandboxCause::NoConfig, Some("u2")));
    let plain = r#"E1120 15:50:38.197403   13560 pod_workers.go:191] Error syncing pod u3 ("web_default(u3)"), skipping: network is not ready: container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized"#;
    assert_eq!(sandbox_of(plain).cause, SandboxCause::NoConfig);
    for crio in ["No CNI configuration file in /etc/cni/net.d/.", "no CNI configuration file in /etc/cni/net.d/."] {
        let failure = sandbox_of(&plain.replace("cni plugin not initialized", crio));
        assert_eq!(failure.cause, SandboxCause::NoConfig, "{crio}");
    }
}

/// Written at 15:50:38.197403 of the first day of 1970 (`NOW`).
#[test]
fn json() {
    let failed = r#"{"ts":57038197.403,"caller":"prober/prober.go:120","msg":"Probe failed","v":1,"probeType":"Readiness","pod":{"name":"cart-7d9","namespace":"shop"},"podUID":"ae610349-5dc7-4094-97be-170d2744990a","containerName":"web","probeResult":"failure","output":"Get \"http://10.88.0.5:8081/ready?x=1\": dial tcp 10.88.0.5:8081: connect: connection refused"}"#;
    let probe = probe_of(failed);
    assert_eq!((probe.pod.name.as_deref(), probe.pod.namespace.as_deref()), (Some("cart-7d9"), Some("shop")));
    assert_eq!(probe.pod.uid.as_deref(), Some("ae610349-5dc7-4094-97be-170d2744990a"));
    assert_eq!((probe.container.as_deref(), probe.probe_type), (Some("web"), ProbeType::Readiness));
    assert_eq!((probe.reason, probe.dst), (ProbeOutput::Network, "10.88.0.5:8081".parse().ok()));
    assert_eq!((probe.pid, probe.written_boot_ns), (None, 1_000_000_000_000));
    let lines = failed.replace("Get \\\"http", "first\\nsecond");
    assert_eq!(probe_of(&lines).reason, ProbeOutput::Other, "what a command printed on several lines");
    let errored = r#"{"ts":57038197.403,"caller":"prober/prober.go:112","msg":"Probe errored","v":1,"probeType":"Liveness","pod":{"name":"b","namespace":"a"},"podUID":"c","containerName":"d","probeResult":"unknown","err":"rpc error: code = NotFound desc = failed to exec in container: container is not created or running"}"#;
    let probe = probe_of(errored);
    assert_eq!((probe.result, probe.reason), (KubeletResult::Error, ProbeOutput::ContainerEnds));
    let sandbox = r#"{"ts":57038197.403,"caller":"kubelet/pod_workers.go:1301","msg":"Error syncing pod, skipping","pod":{"name":"coredns","namespace":"kube-system"},"podUID":"u2","err":"network is not ready: container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized"}"#;
    let failure = sandbox_of(sandbox);
    assert_eq!((failure.cause, failure.pod.uid.as_deref()), (SandboxCause::NoConfig, Some("u2")));
}

/// Up to 1.20 klog formatted the message itself.
#[test]
fn json_of_plain_words() {
    let line = r#"{"ts":57038197.403,"msg":"Readiness probe for \"web_default(u1):http\" failed (failure): HTTP probe failed with statuscode: 503\n","v":1}"#;
    let probe = probe_of(line);
    assert_eq!((probe.pod.name.as_deref(), probe.container.as_deref()), (Some("web"), Some("http")));
    assert_eq!(probe.reason, ProbeOutput::Status(503));
}

#[test]
fn old_json_is_skipped() {
    let line = r#"{"ts":56977000.5,"msg":"Probe failed","v":1,"probeType":"Readiness","pod":{"name":"b","namespace":"a"},"podUID":"c","containerName":"d","probeResult":"failure","output":"EOF"}"#;
    assert_eq!(parse(line, NOW), None, "a minute and a second");
    let ahead = line.replace("56977000.5", "57099000.5");
    assert_eq!(probe_of(&ahead).written_boot_ns, NOW.boot_ns, "the clock was set back");
}

#[test]
fn other_lines_are_skipped() {
    for line in [
        "",
        "Probe failed",
        r#"I1120 15:50:38.197467   13560 event.go:291] "Event occurred" object="default/x" kind="Pod" reason="Unhealthy" message="Readiness probe failed: EOF""#,
        "I1120 15:49:16.198424   13560 http.go:137] Probe failed for http://10.88.0.5:8081/ready?x=1 with request headers map[], response body: mode 503",
        r#"E1120 15:50:38.197403 1 a.go:1] "CreatePodSandbox for pod failed" err="rpc error: code = Unknown desc = failed to pull image" pod="a/b""#,
        "\tI1120 15:50:38.197403 1 prober.go:1] Readiness probe for \"a_b(c):d\" failed (failure): printed by a command",
        r#"{"ts":57038197.403,"msg":"Probe failed","probeType":"Readiness"}"#,
        r#"{"ts":57038197.403,"msg":"Event occurred","object":{"name":"x","namespace":"a"},"reason":"Unhealthy","message":"Readiness probe failed: EOF"}"#,
        r#"I1120 15:50:38.197403 1 prober.go:1] Readiness probe for "x_a/events?b(c):d" failed (failure): x"#,
        r#"E1120 15:50:38.197403 1 a.go:1] "Error syncing pod, skipping" err="network is not ready: x" pod="a/../b" podUID="c""#,
        r#"I1120 15:50:38.197403 1 prober.go:1] Wrong probe for "a_b(c):d" failed (failure): x"#,
    ] {
        assert_eq!(parse(line, NOW), None, "{line}");
    }
}

#[test]
fn a_command_that_prints_nothing() {
    let line =
        r#"I1120 15:50:38.197403   13560 prober.go:117] Readiness probe for "exec_default(u):app" failed (failure):"#;
    assert_eq!(probe_of(line).reason, ProbeOutput::Nothing);
    assert_eq!(probe_of(&format!("{line} ")).reason, ProbeOutput::Nothing);
}

/// The kubelet ignores each error, also one with the word "failure" (`doProbe`, pkg/kubelet/prober/worker.go).
#[test]
fn an_error_is_one_whatever_state_the_kubelet_names() {
    let line = |result: &str| {
        format!(
            r#"I1120 15:50:38.197403   26077 prober.go:106] "Probe errored" probeType="Readiness" pod="default/bodyslow" podUID="78888be8" containerName="c" probeResult="{result}" err="context deadline exceeded (Client.Timeout or context cancellation while reading body)""#
        )
    };
    let result = |state: &str| {
        let probe = probe_of(&line(state));
        (probe.reason, probe.result)
    };
    for state in ["failure", "unknown"] {
        assert_eq!(result(state), (ProbeOutput::TimeoutInBody, KubeletResult::Error), "{state}");
    }
}

//! The fix for a command of an exec probe that failed or could not be run, by the message that the kubelet got.

use super::not_started::{self, NotStarted};
use tracer_case::kubectl;
use tracer_model::event::{KubeletProbe, ProbeOutput};
use tracer_model::record::{Cause, Command, K8s, Remediation};

/// The kubelet cancelled its own context: 1.35, and 1.36 from 1.36.3 on, do so while a pod ends.
pub(super) fn is_cancelled(probe: &KubeletProbe) -> bool {
    probe.output.as_deref().is_some_and(|it| it.ends_with("context canceled"))
}

/// The message of the kubelet's gRPC client when the runtime restarts or has ended, before the command or while it ran.
pub(super) fn is_without_runtime(probe: &KubeletProbe) -> bool {
    let output = probe.output.as_deref().filter(|_| probe.reason == ProbeOutput::Other);
    output.is_some_and(|it| it.starts_with("rpc error: code = Unavailable desc = "))
}

/// The obstacle that kept the runtime from starting the command, if it is neither the command nor the image.
pub(super) fn not_started_for(probe: &KubeletProbe) -> Option<&'static NotStarted> {
    let output = probe.output.as_deref().filter(|_| probe.reason == ProbeOutput::CommandNotRun)?;
    not_started::cause(output)
}

/// The message says that the program is missing or not executable, in the words of runc (`exec: "curl": executable file
/// not found in $PATH`, `… process: exec /x: permission denied`) or crun.
pub(super) fn has_no_program(probe: &KubeletProbe) -> bool {
    const PARTS: [&str; 5] =
        ["exec: \"", "executable file", " process: exec /", "exec container process `", "exec format error"];
    probe.output.as_deref().is_some_and(|it| PARTS.iter().any(|part| it.contains(part)))
}

/// The fix if the program is there, and the kernel could not execute it, by the message of runc or crun.
fn not_executed(probe: &KubeletProbe) -> Option<&'static str> {
    let words = probe.output.as_deref()?.to_lowercase();
    let has = |part: &str| words.contains(part);
    if has("chdir to cwd (") {
        return Some("Make the container's working directory, or let its user enter it; or correct workingDir");
    }
    if has("exec format error") {
        return Some(
            "Put a program for this node's architecture into the image. If it is a script, begin it with #! and its interpreter",
        );
    }
    if has("permission denied") && has_no_program(probe) {
        return Some(
            "Make the program executable for the container's user (chmod +x in the image), or run it by its interpreter. On a volume, check that it is not mounted with noexec",
        );
    }
    // runc quotes a program that it did not find, and not the one that it executed.
    let executed = words.split_once(" process: exec /").is_some_and(|(_, rest)| rest.contains("no such file or"));
    executed.then_some(
        "Put what the program needs to start into the image: the interpreter after its #! (CRLF at the end of that line breaks it), or its dynamic loader",
    )
}

pub(super) fn fix_at_end(probe: &KubeletProbe, k8s: &K8s) -> Remediation {
    const NOTHING: &str = "Do nothing if the container or its pod is ending.";
    if is_cancelled(probe) {
        return format!("{NOTHING} Some kubelets (1.35, and 1.36 from 1.36.3 on) run no exec probe while its pod ends. A ready pod then stays ready until it is gone: kubernetes/kubernetes#140881, fixed by #140882").into();
    }
    let pod = kubectl::pod(k8s);
    Remediation::from(format!("{NOTHING} If it goes on while the API shows the pod as running, the runtime has lost its container: delete the pod"))
        .run(["get", "delete"].map(|what| Command::in_cluster(format!("kubectl {what} pod {pod}"))))
}

/// By hand, the command shows how long it takes.
pub(super) fn fix_timeout(probe: &KubeletProbe, k8s: &K8s) -> Remediation {
    let [words, Command { run, place }] = kubectl::exec(k8s, probe.probe_type);
    let timed = Command { run: format!("time {run}"), place };
    Cause::ExecTimeout.fix().reword(|text| format!("{}. {BY_HAND}", text.trim_end_matches('.'))).run([words, timed])
}

pub(super) fn fix_not_run(cause: Cause, obstacle: Option<&NotStarted>, probe: &KubeletProbe, k8s: &K8s) -> Remediation {
    if cause == Cause::ExecTimeout {
        return fix_timeout(probe, k8s);
    }
    if is_without_runtime(probe) {
        return Remediation::from(
            "Nothing, if the runtime is restarting: the kubelet tries again by itself. Otherwise find out why it ended",
        )
        .run([
            Command::on_node("systemctl status containerd crio"),
            Command::on_node("journalctl -u containerd -u crio"),
        ]);
    }
    let other = || match not_executed(probe) {
        Some(fix) => Remediation::from(fix),
        None if has_no_program(probe) => Remediation::from("Put its program into the image, or correct the command"),
        None => Remediation::from(
            "See in the log of the runtime what failed; the evidence has the message that the kubelet got",
        )
        .run([Command::on_node("journalctl -u containerd -u crio")]),
    };
    let fix = obstacle.map_or_else(other, NotStarted::remediation);
    fix.reword(|what| format!("{what}. While the command cannot be run, this probe decides nothing. {BY_HAND}"))
        .run(kubectl::exec(k8s, probe.probe_type))
}

/// How to use the commands of [`kubectl::exec`].
pub(super) const BY_HAND: &str = "Run the command by hand: put what `kubectl get pod` prints in place of COMMAND";

pub(super) fn fix_failed(obstacle: Option<&NotStarted>, probe: &KubeletProbe, k8s: &K8s) -> Remediation {
    let by_hand = kubectl::exec(k8s, probe.probe_type);
    if let Some(not_started) = obstacle {
        return not_started.remediation().reword(|what| format!("{what}. {BY_HAND}")).run(by_hand);
    }
    if probe.reason == ProbeOutput::PrintedNothing {
        return Remediation::from(format!(
            "{BY_HAND}. Only its status shows why it fails (echo $?): let it print a reason"
        ))
        .run(by_hand);
    }
    let describe = Command::in_cluster(format!("kubectl describe pod {}", kubectl::pod(k8s)));
    Remediation::from(format!("{BY_HAND}. Its output is in the event Unhealthy of the pod. If it cannot be run, the container is gone or has no such program"))
        .run(by_hand)
        .run([describe])
}

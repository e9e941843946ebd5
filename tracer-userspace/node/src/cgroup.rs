//! Which pod a process belongs to, by the path of its cgroup.
//!
//! The paths look like `…/pod<uid>/<id>` (cgroupfs driver), `…-pod<uid with _>.slice/<runtime>-<id>.scope`
//! (systemd driver), `…-pod<uid>.slice:cri-containerd:<id>` (kubelet on systemd, containerd not). Nested nodes
//! prepend components, cgroup namespaces prepend `/../`. Static pods have a uid without dashes.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodProcess {
    pub uid: String,
    /// Absent for a process in the pod's own cgroup, for example the runtime's monitor.
    pub container: Option<String>,
}

/// Finds the pod in the text of `/proc/<pid>/cgroup`: in the memory or the unified hierarchy first, then in any other.
pub fn pod_process(text: &str) -> Option<PodProcess> {
    let lines = || text.lines().filter_map(hierarchy);
    let preferred = lines().filter(|(controllers, _)| controllers.is_empty() || has(controllers, "memory"));
    preferred.chain(lines()).find_map(|(_, path)| pod_of_path(path))
}

/// The id of a container in the text of `/proc/<pid>/cgroup`, whether or not a pod is named there. Without cgroups for
/// each QoS class (`--cgroups-per-qos=false`) the kubelet makes none for pods.
pub(super) fn container_of(text: &str) -> Option<String> {
    text.lines().filter_map(hierarchy).flat_map(|(_, path)| path.split(['/', ':'])).find_map(container_id)
}

/// Whether the process with this `/proc/<pid>/cgroup` is in this pod, or in a pod of a node that runs inside this pod.
pub fn is_within(text: &str, uid: &str) -> bool {
    let mut components = text.lines().filter_map(hierarchy).flat_map(|(_, path)| path.split(['/', ':']));
    components.any(|component| pod_uid(component).is_some_and(|it| it == uid))
}

/// `4:cpu,cpuacct:/kubepods/…` or `0::/kubepods.slice/…`: controllers and path.
pub(super) fn hierarchy(line: &str) -> Option<(&str, &str)> {
    line.split_once(':')?.1.split_once(':')
}

pub(super) fn has(list: &str, controller: &str) -> bool {
    list.split(',').any(|it| it == controller)
}

fn pod_of_path(path: &str) -> Option<PodProcess> {
    let mut components = path.split(['/', ':']).collect::<Vec<_>>();
    // The last component that names a pod counts: a node inside a pod has pods of its own.
    let at = components.iter().rposition(|component| pod_uid(component).is_some())?;
    let uid = pod_uid(components[at])?;
    let below = components.split_off(at + 1);
    // CRI-O's monitor lives in the node's network namespace, not in the pod's. A container may name its own cgroups so.
    if below.first().is_some_and(|component| component.starts_with("crio-conmon-")) {
        return None;
    }
    Some(PodProcess { uid, container: below.into_iter().find_map(container_id) })
}

fn pod_uid(component: &str) -> Option<String> {
    let name = component.strip_suffix(".slice").unwrap_or(component);
    let uid = match name.rfind("-pod") {
        Some(at) if name.starts_with("kube") => &name[at + 4..],
        _ => name.strip_prefix("pod")?,
    };
    let uid = uid.replace('_', "-");
    is_uid(&uid).then_some(uid)
}

/// A UUID, or the 32 digits of a static pod's hash.
fn is_uid(uid: &str) -> bool {
    let hex = uid.bytes().filter(u8::is_ascii_hexdigit).count();
    hex == 32 && (uid.len() == 32 || (uid.len() == 36 && uid.bytes().filter(|byte| *byte == b'-').count() == 4))
}

fn container_id(component: &str) -> Option<String> {
    let name = component.strip_suffix(".scope").unwrap_or(component);
    let id = name.rsplit('-').next()?;
    (id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "cd4a88148bc949c0c449662096047adfa27666add64545f2f3c6caa4f6facb30";
    const UID: &str = "5d3b1a7c-2f0e-4b8e-9a55-0c6f1c1c8e11";
    const UNDER: &str = "5d3b1a7c_2f0e_4b8e_9a55_0c6f1c1c8e11";
    const STATIC: &str = "eb9dc43f6a74951845a7e7c766a61e81";

    /// The pod of this text, with names in place of the words in capital letters.
    fn pod_of(text: &str) -> Option<PodProcess> {
        let text = text.replace("UNDER", UNDER).replace("STATIC", STATIC).replace("UID", UID).replace("ID", ID);
        pod_process(&text)
    }

    fn check(text: &str, uid: &str) {
        let expected = PodProcess { uid: uid.into(), container: Some(ID.into()) };
        assert_eq!(pod_of(text), Some(expected), "{text}");
    }

    #[test]
    fn paths_of_every_driver_and_runtime_name_the_pod() {
        for path in [
            "/kubepods/burstable/podUID/ID",
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUNDER.slice/cri-containerd-ID.scope",
            "/kubepods.slice/kubepods-podUNDER.slice/crio-ID.scope/container",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUNDER.slice/docker-ID.scope",
            "/system.slice/containerd.service/kubepods-burstable-podUNDER.slice:cri-containerd:ID",
        ] {
            check(&format!("0::{path}\n"), UID);
        }
        check("0::/kubepods/besteffort/podSTATIC/ID\n", STATIC);
    }

    /// systemd, a server with a cgroup for each worker, and a container engine in the container.
    #[test]
    fn a_process_in_a_cgroup_below_the_containers_is_in_that_container() {
        let inner = ID.replace('c', "0");
        for below in ["init.scope", "system.slice/nginx.service", "worker-1", &format!("docker/{inner}")] {
            check(&format!("0::/kubepods.slice/kubepods-podUNDER.slice/cri-containerd-ID.scope/{below}\n"), UID);
            check(&format!("9:memory:/kubepods/podUID/ID/{below}\n1:name=systemd:/kubepods/podUID/ID\n0::/\n"), UID);
        }
    }

    #[test]
    fn hierarchies_of_version_1_and_hybrid_name_the_pod() {
        for text in [
            "12:pids:/kubepods/podUID/ID\n4:memory:/kubepods/podUID/ID\n1:name=systemd:/kubepods/podUID/ID\n",
            "9:name=systemd:/\n4:cpu,memory:/kubepods/besteffort/podUID/ID\n0::/\n",
            "11:cpu,cpuacct:/kubepods/podUID/ID\n0::/\n",
        ] {
            check(text, UID);
        }
    }

    #[test]
    fn paths_in_nested_nodes_and_cgroup_namespaces_name_the_pod() {
        let outer = "a".repeat(64);
        for path in [
            "/docker/OUTER/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-podUNDER.slice/cri-containerd-ID.scope",
            "/docker/OUTER/kubelet/kubepods/besteffort/podUID/ID",
            "/../../podUID/ID",
            "/../../../kubepods-podUNDER.slice/cri-containerd-ID.scope/init.scope",
        ] {
            check(&format!("0::{}\n", path.replace("OUTER", &outer)), UID);
        }
    }

    #[test]
    fn a_cgroup_outside_pods_and_a_conmon_are_no_pod() {
        for path in
            ["/", "/system.slice/kubelet.service", "/user.slice/podman-1.scope", "/machine.slice/libpod-x.scope"]
        {
            assert_eq!(pod_process(&format!("0::{path}\n")), None, "{path}");
        }
        assert_eq!(pod_process(""), None);
        assert_eq!(pod_of("0::/kubepods.slice/kubepods-podUNDER.slice/crio-conmon-ID.scope\n"), None);
        check("0::/kubepods.slice/kubepods-podUNDER.slice/crio-ID.scope/crio-conmon-x\n", UID);
    }

    #[test]
    fn a_process_of_the_pod_itself_has_no_container() {
        let pod = pod_of("0::/kubepods/podUID\n");
        assert_eq!(pod, Some(PodProcess { uid: UID.into(), container: None }));
    }
}

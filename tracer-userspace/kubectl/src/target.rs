//! The argument of `why`: a pod, or a workload with its pods.

use std::str::FromStr;

use tracer_model::record::Workload;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The resource, as API paths and RBAC name it.
    pub(super) resource: &'static str,
    pub(super) name: String,
}

pub(super) const PODS: &str = "pods";

fn resource(kind: &str) -> Option<&'static str> {
    if matches!(kind, "pod" | "pods" | "po") {
        return Some(PODS);
    }
    match Workload::kind_as_typed(kind)? {
        "Deployment" => Some("deployments"),
        "DaemonSet" => Some("daemonsets"),
        "StatefulSet" => Some("statefulsets"),
        _ => None,
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (resource, name) = match text.split_once('/') {
            None => (Some(PODS), text),
            Some((kind, name)) => (resource(&kind.to_lowercase()), name),
        };
        let resource = resource.ok_or("write POD, pod/NAME, deploy/NAME, ds/NAME or sts/NAME")?;
        // The name becomes a part of a request's path.
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        if name.is_empty() || name.len() > 253 || !name.chars().all(fits) {
            return Err("not a name that Kubernetes allows".into());
        }
        Ok(Self { resource, name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_as_kubectl_reads_them() {
        let read = |text: &str| text.parse::<Target>().map(|it| (it.resource, it.name));
        assert_eq!(read("cart-0"), Ok(("pods", "cart-0".into())));
        assert_eq!(read("deploy/cart"), Ok(("deployments", "cart".into())));
        assert_eq!(read("DaemonSet/cart"), Ok(("daemonsets", "cart".into())));
        assert_eq!(read("sts/db.x"), Ok(("statefulsets", "db.x".into())));
        for wrong in ["", "svc/cart", "deploy/", "../x", "a/b/c", "Cart", "a%2f"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}

//! The argument of `why`: a pod, or a workload with its pods.

use std::str::FromStr;

use tracer_model::record::Workload;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) kind: Kind,
    pub(super) name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Pod,
    Deployment,
    DaemonSet,
    StatefulSet,
}

impl Kind {
    /// The resource name for RBAC and API paths.
    pub(super) const fn resource(self) -> &'static str {
        match self {
            Self::Pod => "pods",
            Self::Deployment => "deployments",
            Self::DaemonSet => "daemonsets",
            Self::StatefulSet => "statefulsets",
        }
    }

    fn of(word: &str) -> Option<Self> {
        if matches!(word, "pod" | "pods" | "po") {
            return Some(Self::Pod);
        }
        match Workload::kind_as_typed(word)? {
            "Deployment" => Some(Self::Deployment),
            "DaemonSet" => Some(Self::DaemonSet),
            "StatefulSet" => Some(Self::StatefulSet),
            _ => None,
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, name) = match text.split_once('/') {
            None => (Some(Kind::Pod), text),
            Some((kind, name)) => (Kind::of(&kind.to_lowercase()), name),
        };
        let kind = kind.ok_or("write POD, pod/NAME, deploy/NAME, ds/NAME or sts/NAME")?;
        // The name becomes a part of a request's path.
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        if name.is_empty() || name.len() > 253 || !name.chars().all(fits) {
            return Err("not a name that Kubernetes allows".into());
        }
        Ok(Self { kind, name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_as_kubectl_reads_them() {
        let read = |text: &str| text.parse::<Target>().map(|it| (it.kind, it.name));
        assert_eq!(read("cart-0"), Ok((Kind::Pod, "cart-0".into())));
        assert_eq!(read("deploy/cart"), Ok((Kind::Deployment, "cart".into())));
        assert_eq!(read("DaemonSet/cart"), Ok((Kind::DaemonSet, "cart".into())));
        assert_eq!(read("sts/db.x"), Ok((Kind::StatefulSet, "db.x".into())));
        for wrong in ["", "svc/cart", "deploy/", "../x", "a/b/c", "Cart", "a%2f"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}

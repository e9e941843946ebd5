//! `-p`: a pod by its name, several pods by the beginning of their names, or the pods of a workload.

use std::fmt;
use std::str::FromStr;

use tracer_model::record::Workload;
use tracer_terminal::screen::safe;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFilter {
    typed: String,
    pattern: Pattern,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Name(String),
    Prefix(String),
    Workload(Workload),
}

impl PodFilter {
    pub fn fits(&self, name: Option<&str>, workload: Option<&Workload>) -> bool {
        match &self.pattern {
            Pattern::Name(wanted) => name == Some(wanted),
            Pattern::Prefix(prefix) => name.is_some_and(|name| name.starts_with(prefix)),
            Pattern::Workload(wanted) => workload == Some(wanted),
        }
    }

    /// What the user probably meant, if not the pod with this name.
    pub(super) fn hint(&self, name: &str, workload: Option<&Workload>) -> Option<String> {
        match (&self.pattern, workload) {
            (Pattern::Name(prefix), _) if name.starts_with(prefix) => Some(format!("; did you mean `-p '{prefix}*'`?")),
            (Pattern::Workload(wanted), Some(Workload { kind, name })) if *name == wanted.name => {
                let flag = match Workload::kind_as_typed(kind) {
                    Some(_) => format!("{}/{}", safe(&kind.to_lowercase()), safe(name)),
                    None => format!("'{}-*'", safe(name)),
                };
                Some(format!("; {} is a {}: `-p {flag}`", safe(name), safe(kind)))
            }
            _ => None,
        }
    }
}

/// As the user typed it.
impl fmt::Display for PodFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.typed)
    }
}

impl FromStr for PodFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const HOW: &str = "write a pod's name, the beginning of names as `cart-*`, or deploy/NAME (ds, sts, rs, job)";
        let pattern = match (text.split_once('/'), text.split_once('*')) {
            (Some((kind, name)), None) if !name.is_empty() && !name.contains('/') => named(kind, name),
            (None, Some((prefix, ""))) => Some(Pattern::Prefix(prefix.to_owned())),
            (None, None) if !text.is_empty() => Some(Pattern::Name(text.to_owned())),
            _ => None,
        };
        Ok(Self { typed: text.to_owned(), pattern: pattern.ok_or(HOW)? })
    }
}

/// `pod/cart-0`, `deploy/cart`.
fn named(kind: &str, name: &str) -> Option<Pattern> {
    if matches!(kind, "pod" | "pods" | "po") {
        return Some(Pattern::Name(name.to_owned()));
    }
    let kind = Workload::kind_as_typed(kind)?.to_owned();
    Some(Pattern::Workload(Workload { kind, name: name.to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(typed: &str) -> bool {
        let workload = Workload { kind: "Deployment".into(), name: "cart".into() };
        typed.parse::<PodFilter>().expect(typed).fits(Some("cart-7d9f-x2x4z"), Some(&workload))
    }

    #[test]
    fn names_prefixes_and_workloads_match_pods() {
        for typed in ["cart-7d9f-x2x4z", "pod/cart-7d9f-x2x4z", "cart-*", "*", "deploy/cart", "Deployments.apps/cart"] {
            assert!(fits(typed), "{typed}");
        }
        for typed in ["cart-7d9f", "art-*", "deploy/car", "ds/cart", "sts/cart-7d9f-x2x4z"] {
            assert!(!fits(typed), "{typed}");
        }
        for wrong in ["", "svc/cart", "deploy/", "deploy/cart*", "a/b/c", "ca*rt", "**"] {
            assert!(wrong.parse::<PodFilter>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pod_of_an_unknown_workload_does_not_match_a_workload() {
        assert!(!"deploy/cart".parse::<PodFilter>().expect("a workload").fits(Some("cart-7d9f-x2x4z"), None));
    }
}

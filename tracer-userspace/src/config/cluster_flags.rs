//! Flags of the cluster API that need more than a yes or no.

use crate::cli::WriteFlags;
use tracer_output::sink::cluster::ClusterOutput;
use tracer_sources::cluster::{Access, Namespace};
use tracer_terminal::error::Error;

/// Removes duplicates; `*` stands for all namespaces.
pub(super) fn namespaces(asked: Vec<Namespace>) -> Vec<Namespace> {
    if asked.contains(&Namespace::All) {
        return vec![Namespace::All];
    }
    asked.into_iter().fold(Vec::new(), |mut each, namespace| {
        if !each.contains(&namespace) {
            each.push(namespace);
        }
        each
    })
}

/// What the daemon writes to the cluster API.
pub(super) fn cluster_output(
    flags: WriteFlags,
    access: Option<Access>,
    node_name: &str,
) -> Result<Option<ClusterOutput>, Error> {
    let WriteFlags { api_explain: explain, api_condition: condition } = flags;
    if !explain && !condition {
        return Ok(None);
    }
    let flag = if explain { "--api-explain" } else { "--api-condition" };
    let access = access.ok_or_else(|| {
        Error::Usage(format!(
            "{flag} needs the cluster API: a pod's service account, or --kubeconfig PATH, and no --no-api"
        ))
    })?;
    Ok(Some(ClusterOutput { access, node_name: node_name.to_owned(), explain, condition }))
}

#[cfg(test)]
mod tests {
    use super::super::Plan;
    use super::super::tests::planned;
    use super::*;

    #[test]
    fn events_are_read_of_named_namespaces_or_of_all() {
        let file = std::env::current_exe().unwrap().display().to_string();
        let events = |namespaces: &str| match planned(&[
            "attach",
            "--kubeconfig",
            &file,
            "--pods",
            &file,
            "--api-events",
            namespaces,
        ]) {
            Ok(Plan::Live(live)) => Ok(live.cluster.unwrap().events),
            other => Err(format!("{other:?}")),
        };
        let named = |name: &str| Namespace::Named(name.to_owned());
        assert_eq!(events("shop,bank,shop").unwrap(), [named("shop"), named("bank")]);
        assert_eq!(events("shop,*").unwrap(), [Namespace::All]);
        assert!(events("Shop").unwrap_err().contains("the name of a namespace, or `*`"));
        assert!(planned(&["replay", "x", "--api-events", "shop"]).unwrap_err().to_string().starts_with("--api-events"));
    }

    #[test]
    fn writing_to_the_api_needs_access_to_it() {
        let file = std::env::current_exe().unwrap().display().to_string();
        let written = |args: &[&str]| match planned(&[&["run", "--node-name", "n1"], args].concat()) {
            Ok(Plan::Live(live)) => Ok(live.cluster_output),
            other => Err(other.unwrap_err().to_string()),
        };
        assert_eq!(written(&["--kubeconfig", &file]).unwrap(), None);
        let output = written(&["--kubeconfig", &file, "--pods", &file, "--api-condition"]).unwrap().unwrap();
        assert!(output.condition && !output.explain && output.node_name == "n1");
        assert!(written(&["--api-explain"]).unwrap_err().starts_with("--api-explain needs the cluster API"));
        assert!(written(&["--api-explain", "--kubeconfig", &file, "--no-api"]).is_err());
        assert!(planned(&["attach", "--api-explain"]).is_err());
    }
}

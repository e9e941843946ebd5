//! Warns of `TRACER_*` variables that belong to no flag: a typing error would otherwise have no effect.

use std::collections::BTreeSet;
use std::ffi::OsString;

use super::definition;
use tracer_terminal::typed::nearest;

const PREFIX: &str = "TRACER_";

/// Variables that belong to no flag: those of the log, and of this project's build and tests.
const OTHERS: &[&str] =
    &["TRACER_LOG", "TRACER_BLESS", "TRACER_DEBIAN_MIRROR", "TRACER_TEST_PACKAGES", "TRACER_VM_CACHE"];

/// Makes a warning for each variable that begins with the prefix and belongs to nothing.
pub fn unknown_variables(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<String> {
    let known = known();
    let text = |text: OsString| text.to_string_lossy().into_owned();
    let variables = variables.into_iter().map(|(name, value)| (text(name), text(value)));
    let is_unknown = |(name, value): &(String, String)| {
        name.starts_with(PREFIX) && !known.contains(name) && !is_service_link(name, value)
    };
    let mut unknown: Vec<String> = variables.filter(is_unknown).map(|(name, _)| warning(&name, &known)).collect();
    unknown.sort_unstable();
    unknown
}

fn known() -> BTreeSet<String> {
    let command = definition::of_everything();
    let flags = command.get_subcommands().flat_map(clap::Command::get_arguments).filter_map(|arg| arg.get_env());
    let flags = flags.map(OsString::from).chain(tracer_kubectl::variables());
    let flags = flags.map(|name| name.to_string_lossy().into_owned());
    flags.chain(OTHERS.iter().map(|name| (*name).to_owned())).collect()
}

fn warning(name: &str, known: &BTreeSet<String>) -> String {
    let without_prefix = |name: &str| name.strip_prefix(PREFIX).unwrap_or(name).to_lowercase();
    let names: Vec<(String, &String)> = known.iter().map(|name| (without_prefix(name), name)).collect();
    let near = nearest(&without_prefix(name), names.iter().map(|(bare, _)| bare.as_str()));
    let near = names.iter().find(|(bare, _)| Some(bare.as_str()) == near);
    let hint = near.map(|(_, name)| format!("; did you mean {name}?")).unwrap_or_default();
    format!("{name} is set, but no flag has this variable{hint}")
}

/// The kubelet sets these in every pod for each Service of its namespace, `tracer` for one
/// (`enableServiceLinks`, pkg/kubelet/envvars/envvars.go).
fn is_service_link(name: &str, value: &str) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || ["_TCP", "_UDP", "_SCTP"].iter().any(|protocol| name.contains(protocol)) && name.contains("_PORT_")
        || name.ends_with("_PORT") && value.contains("://")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(variables: &[(&str, &str)]) -> Vec<String> {
        unknown_variables(variables.iter().map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn the_warning_of_a_typing_error_names_the_nearest_variable() {
        let slips = [("TRACER_DURATON", "5m"), ("TRACER_NODE_NAME", "n1"), ("TRACER_XYZ", ""), ("PATH", "/bin")];
        assert_eq!(
            warnings(&slips),
            [
                "TRACER_DURATON is set, but no flag has this variable; did you mean TRACER_DURATION?",
                "TRACER_NODE_NAME is set, but no flag has this variable; did you mean NODE_NAME?",
                "TRACER_XYZ is set, but no flag has this variable",
            ]
        );
    }

    #[test]
    fn flags_and_the_links_of_a_service_are_known() {
        let known = [
            ("TRACER_DURATION", "5m"),
            ("TRACER_COLOR", "never"),
            ("TRACER_LOG", "debug"),
            ("TRACER_SERVICE_HOST", "10.0.0.1"),
            ("TRACER_SERVICE_PORT_METRICS", "9464"),
            ("TRACER_PORT", "tcp://10.0.0.1:9464"),
            ("TRACER_PORT_9464_TCP_ADDR", "10.0.0.1"),
        ];
        assert_eq!(warnings(&known), [""; 0]);
        assert_eq!(warnings(&[("TRACER_PORT", "9464")]).len(), 1, "typed by hand");
    }
}

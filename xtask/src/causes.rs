//! Lists made of the table of causes: in the contents of the documentation, the alerts and the runbook.

use anyhow::{Context as _, Result};
use tracer_model::record::{Cause, Scope, Severity, Trait};

/// Alerts, and the scopes that raise them. `TracerUnexplained` has the one cause without a scope.
const ALERTS: [(&str, &[Scope]); 3] = [
    ("TracerNodeNetworkBroken", &[Scope::Node]),
    ("TracerNetworkFault", &[Scope::Network, Scope::Kubelet]),
    ("TracerProbeFailures", &[Scope::Pod, Scope::Application]),
];

/// The contents of the documentation, with a line for each cause.
pub(crate) fn in_contents(summary: &str) -> String {
    let mut out = Vec::new();
    for line in summary.lines().filter(|line| !line.starts_with("  - ") || !line.contains("(causes/")) {
        out.push(line.to_owned());
        if line.contains("(causes/README.md)") {
            out.extend(Cause::ALL.iter().map(|name| format!("  - [{name}](causes/{name}.md)")));
        }
    }
    out.join("\n") + "\n"
}

/// The alerts, each with the causes of its scopes.
pub(crate) fn in_alerts(rules: &str) -> Result<String> {
    ALERTS.iter().try_fold(rules.to_owned(), |text, (alert, scopes)| {
        let names: Vec<_> = causes_of(scopes).filter(|it| !it.has(Trait::AlsoOnly)).map(Cause::name).collect();
        replace(&text, &format!("- alert: {alert}\n"), "cause=~\"", "\"", &names.join("|"))
    })
}

/// The runbook, with a row for the causes of each alert. Causes of one alert with the same text share a row.
pub(crate) fn in_runbook(runbook: &str) -> Result<String> {
    ALERTS.iter().try_fold(runbook.to_owned(), |text, (alert, scopes)| {
        let mut rows: Vec<(String, &str)> = Vec::new();
        for cause in causes_of(scopes) {
            let place = if cause.has(Trait::AlsoOnly) { " (no alert)" } else { "" };
            match rows.iter_mut().find(|(_, look)| *look == cause.first_look()) {
                Some((names, _)) => *names += &format!(", `{cause}`{place}"),
                None => rows.push((format!("`{cause}`{place}"), cause.first_look())),
            }
        }
        let rows: Vec<_> = rows.iter().map(|(names, look)| format!("| {names} | {look} |")).collect();
        replace(&text, &format!("\n## {alert}\n"), "---|\n", "\n\n", &rows.join("\n"))
    })
}

/// The causes of an alert. A cause without a failure raises none.
fn causes_of(scopes: &[Scope]) -> impl Iterator<Item = Cause> {
    let of_scope = |cause: &Cause| cause.scope().is_some_and(|scope| scopes.contains(&scope));
    Cause::ALL.iter().copied().filter(move |cause| of_scope(cause) && cause.severity() != Severity::Info)
}

/// The text with `new` between the first `from` below a heading and the next `to`.
fn replace(text: &str, heading: &str, from: &str, to: &str, new: &str) -> Result<String> {
    let place = || {
        let below = text.find(heading)? + heading.len();
        let start = below + text[below..].find(from)? + from.len();
        Some((start, start + text[start..].find(to)?))
    };
    let (start, end) = place().with_context(|| format!("no list of causes below {heading:?}"))?;
    Ok(format!("{}{new}{}", &text[..start], &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sh;

    #[test]
    fn the_contents_list_the_causes_once() {
        let summary = "- [Causes](causes/README.md)\n  - [old](causes/old.md)\n- [Output](output.md)\n  - [A](a.md)\n";
        let contents = in_contents(summary);
        assert_eq!(contents.lines().count(), Cause::ALL.len() + 3);
        let first = Cause::ALL[0];
        assert!(contents.starts_with(&format!("- [Causes](causes/README.md)\n  - [{first}](causes/{first}.md)\n")));
        assert!(contents.ends_with("\n- [Output](output.md)\n  - [A](a.md)\n"));
    }

    #[test]
    fn a_list_is_replaced_below_its_heading_only() -> Result<()> {
        let text = "# a\n<1>\n# b\n<2>\n# c\n<3>\n";
        assert_eq!(replace(text, "# b\n", "<", ">", "new")?, "# a\n<1>\n# b\n<new>\n# c\n<3>\n");
        assert!(replace(text, "# d\n", "<", ">", "new").is_err());
        Ok(())
    }

    /// The metric has the cause of a verdict, never one in `also`.
    #[test]
    fn no_alert_waits_for_a_cause_that_is_in_also_only() -> Result<()> {
        let alerts = std::fs::read_to_string(sh::root().join("deploy/alerts/tracer.rules.yaml"))?;
        let only: Vec<_> = Cause::ALL.iter().filter(|cause| cause.has(Trait::AlsoOnly)).collect();
        assert_eq!(only, [&Cause::CpuThrottled, &Cause::DependencyUnreachable]);
        assert!(!only.iter().any(|cause| alerts.contains(cause.name())), "{only:?}");
        Ok(())
    }

    /// A cause that no row names would have no first look.
    #[test]
    fn each_failure_raises_one_alert() {
        for cause in Cause::ALL.iter().filter(|cause| cause.scope().is_some()) {
            let alerts = ALERTS.iter().filter(|(_, scopes)| causes_of(scopes).any(|it| it == *cause)).count();
            assert_eq!(alerts, usize::from(cause.severity() != Severity::Info), "{cause}");
            assert_eq!(cause.first_look().is_empty(), alerts == 0, "{cause}");
        }
    }
}

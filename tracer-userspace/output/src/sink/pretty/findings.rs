//! Findings of `tracer doctor` as text: a block for each, the worst first.

use std::fmt::Write as _;

use super::verdict::fix_rows;
use tracer_model::record::{FindingBody, Status};
use tracer_terminal::screen::{Screen, Style, safe};

/// Columns if the output is no terminal.
const WIDTH: usize = 120;
/// From the worst to the best.
const ORDER: [Status; 4] = [Status::Fail, Status::Warn, Status::Unknown, Status::Ok];

/// All findings of a node, or those that are not ok, and below them the count of each status.
pub fn table(findings: &[FindingBody], node_name: &str, only_problems: bool, screen: Screen) -> String {
    let screen = Screen { columns: screen.columns.or(Some(WIDTH)), ..screen };
    let mut out = String::new();
    for status in ORDER.into_iter().filter(|status| !only_problems || *status != Status::Ok) {
        for finding in findings.iter().filter(|finding| finding.status == status) {
            block(&mut out, finding, screen);
        }
    }
    let count = |status| findings.iter().filter(|finding| finding.status == status).count();
    let counts: Vec<_> = ORDER.iter().map(|status| format!("{} {status}", count(*status))).collect();
    let sum = format!("{}: {}", safe(node_name), counts.join(", "));
    screen.lines(&mut out, "", "", &screen.paint(Style::Strong, &sum));
    out
}

/// The name of the check, with the address family if the check has one finding for each.
pub fn name(finding: &FindingBody) -> String {
    let family = match finding.fields.get("family").and_then(|family| family.as_str()) {
        Some("ipv4" | "ip") => " IPv4",
        Some("ipv6" | "ip6") => " IPv6",
        _ => "",
    };
    format!("{}{family}", safe(&finding.check))
}

/// One finding, in the rows of a verdict.
pub(super) fn block(out: &mut String, finding: &FindingBody, screen: Screen) {
    let status = format!("{:<7}", finding.status);
    let (status, name) = (screen.paint(style(finding.status), &status), screen.paint(Style::Strong, &name(finding)));
    let _ = writeln!(out, "{status} {name}");
    screen.row(out, "found", &finding.observed);
    if finding.status == Status::Ok {
        return;
    }
    screen.row(out, "wanted", &finding.expected);
    screen.row(out, "why", &finding.why);
    for (word, fix) in [("fix", &finding.remediation), ("persist", &finding.persist)] {
        if let Some(fix) = fix {
            fix_rows(out, word, fix, None, screen);
        }
    }
}

const fn style(status: Status) -> Style {
    match status {
        Status::Fail => Style::Bad,
        Status::Warn => Style::Mild,
        Status::Unknown => Style::Dim,
        Status::Ok => Style::Good,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::record::Remediation;

    fn screen(columns: usize, colour: bool) -> Screen {
        Screen { colour, columns: Some(columns) }
    }

    fn finding(check: &str, status: Status) -> FindingBody {
        FindingBody {
            observed: "net.ipv4.ip_forward = 0".into(),
            expected: "net.ipv4.ip_forward = 1".into(),
            why: "without it the kernel drops whatever is not for the node itself".into(),
            remediation: (status != Status::Ok)
                .then(|| Remediation::on_node("Let the node forward", "sysctl -w net.ipv4.ip_forward=1")),
            ..FindingBody::new(check, status)
        }
    }

    #[test]
    fn the_worst_finding_comes_first_and_the_counts_last() {
        let findings = [finding("a", Status::Ok), finding("b", Status::Warn), finding("c", Status::Fail)];
        let text = table(&findings, "n1", false, screen(100, false));
        let expected = "\
fail    c
  found    net.ipv4.ip_forward = 0
  wanted   net.ipv4.ip_forward = 1
  why      without it the kernel drops whatever is not for the node itself
  fix      Let the node forward
           run on the node:
             sysctl -w net.ipv4.ip_forward=1
warn    b
";
        assert!(text.starts_with(expected), "{text}");
        let (ok, sum) = ("ok      a\n  found    net.ipv4.ip_forward = 0\n", "n1: 1 fail, 1 warn, 0 unknown, 1 ok\n");
        assert!(text.ends_with(&format!("{ok}{sum}")), "{text}");
        assert_eq!(table(&findings, "n1", true, screen(100, false)), text.replace(ok, ""));
    }

    #[test]
    fn a_check_of_each_address_family_names_it() {
        let mut v6 = finding("ip_forward", Status::Ok);
        v6.fields.insert("family".into(), "ipv6".into());
        let names = [v6, finding("conntrack", Status::Ok)].map(|finding| name(&finding));
        assert_eq!(names, ["ip_forward IPv6", "conntrack"]);
    }

    #[test]
    fn a_narrow_terminal_breaks_texts_but_no_commands() {
        let text = table(&[finding("c", Status::Fail)], "n1", false, screen(30, false));
        let commands = ["    sysctl -w net.ipv4.ip_forward=1"];
        let long: Vec<_> = text.lines().filter(|line| line.chars().count() > 30 && !commands.contains(line)).collect();
        assert!(long.is_empty(), "{long:?}");
        assert!(text.contains(commands[0]), "{text}");
    }

    #[test]
    fn colour_is_optional_and_escape_sequences_are_removed() {
        let mut hostile = finding("c", Status::Fail);
        hostile.observed = "a\u{1b}[2Jb".into();
        assert!(!table(std::slice::from_ref(&hostile), "n1", false, screen(80, false)).contains('\u{1b}'));
        assert!(table(&[hostile], "n1", false, screen(80, true)).contains("\u{1b}[1;31mfail"));
    }
}

//! The failures: each row is a pod with one probe.

use serde_json::{Value, json};

/// One pod with a failing probe.
pub(super) struct Case {
    /// Name of the pod. Its first word is the handler of the probe.
    pub(super) name: &'static str,
    /// What its container runs: a server of `script`, or a shell command.
    pub(super) runs: &'static str,
    /// How the node breaks the path to the pod.
    pub(super) path: Path,
    /// tracer must report one of these causes.
    pub(super) causes: &'static [&'static str],
    /// Causes that tracer may also report, for other attempts.
    pub(super) beside: &'static [&'static str],
}

/// How the node breaks the path to a pod.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    /// It does not.
    Free,
    /// A rule in the output chain that ends with this.
    Rule(&'static str),
    /// A route of this type to the pod's address.
    Route(&'static str),
}

const HTTPD: &str = "mkdir -p /tmp/w/cgi-bin && printf '#!/bin/sh\\nexec sleep 1000\\n' >/tmp/w/cgi-bin/hang && chmod +x /tmp/w/cgi-bin/hang && exec httpd -f -p 8080 -h /tmp/w";
/// Reads the whole request, because a close with unread data sends a RST.
const TAKE: &str = "printf '#!/bin/sh\\nwhile read -r l; do l=${l%%?}; [ -z \"$l\" ] && break; done\\n%s\\n' ";

impl Case {
    const fn new(name: &'static str, runs: &'static str, causes: &'static [&'static str]) -> Self {
        Self { name, runs, path: Path::Free, causes, beside: &[] }
    }

    const fn beside(mut self, beside: &'static [&'static str]) -> Self {
        self.beside = beside;
        self
    }

    const fn path(mut self, path: Path) -> Self {
        self.path = path;
        self
    }

    /// Whether the reported causes have an expected one, and no wrong ones.
    pub(super) fn matches(&self, causes: &[String]) -> bool {
        let right = |cause: &String| self.causes.contains(&cause.as_str());
        causes.iter().any(right) && causes.iter().all(|cause| right(cause) || self.beside.contains(&cause.as_str()))
    }

    /// Its readiness probe.
    pub(super) fn probe(&self) -> Value {
        let mut probe = match self.name.split('-').next() {
            Some("http") => json!({ "httpGet": { "path": self.http_path(), "port": 8080 } }),
            Some("tcp") => json!({ "tcpSocket": { "port": 8080 } }),
            _ => json!({ "exec": { "command": self.command() } }),
        };
        // Gives the container time to listen.
        probe["initialDelaySeconds"] = 3.into();
        probe["periodSeconds"] = 3.into();
        probe["timeoutSeconds"] = 1.into();
        probe
    }

    fn http_path(&self) -> &'static str {
        match self.name {
            "http-hang" => "/cgi-bin/hang",
            "http-status" => "/nothing-there",
            _ => "/",
        }
    }

    fn command(&self) -> Vec<&'static str> {
        match self.name {
            "exec-timeout" => vec!["sleep", "60"],
            "exec-no-program" => vec!["/no/such/program"],
            "exec-words" => vec!["cat", "/no/such/file"],
            "exec-status" => vec!["sh", "-c", "echo not yet; exit 3"],
            _ => vec!["false"],
        }
    }

    /// The shell line of its container.
    pub(super) fn script(&self) -> String {
        let serve = |answer: &str| {
            format!(
                "{TAKE} \"{answer}\" >/tmp/serve; chmod +x /tmp/serve; while :; do nc -l -p 8080 -e /tmp/serve; done"
            )
        };
        match self.runs {
            "httpd" => HTTPD.to_owned(),
            "close" => serve("exit 0"),
            "garbage" => serve("echo this is not the protocol"),
            "idle" => "exec sleep 1000000".to_owned(),
            other => other.to_owned(),
        }
    }
}

/// While the runtime restarts (`--disturb`), no exec probe can run.
const NO_RUNTIME: &[&str] = &["exec_not_run"];
const EXEC: &[&str] = &["exec_failed"];
const REFUSED: &[&str] = &["connection_refused", "not_listening_yet"];

/// Five failures for each handler. There is none for gRPC: that needs an image with such a server.
pub(super) const CASES: &[Case] = &[
    Case::new("http-refused", "idle", REFUSED),
    Case::new("http-status", "httpd", &["app_status_failure"]),
    Case::new("http-hang", "httpd", &["slow_response"]),
    // Their server listens again for each attempt, so some attempts are refused.
    Case::new("http-close", "close", &["closed_without_answer"]).beside(REFUSED),
    Case::new("http-garbage", "garbage", &["app_status_failure"]).beside(REFUSED),
    Case::new("tcp-refused", "idle", REFUSED),
    Case::new("tcp-drop", "httpd", &["firewall_drop"]).path(Path::Rule("drop")),
    Case::new("tcp-reject", "httpd", &["firewall_reject"]).path(Path::Rule("reject")),
    Case::new("tcp-reset", "httpd", &["firewall_reject"]).path(Path::Rule("reject with tcp reset")),
    Case::new("tcp-no-route", "httpd", &["route_unreachable"]).path(Path::Route("unreachable")),
    // It prints nothing. Kubelets before 1.24 log the same for a command that times out.
    Case::new("exec-silent", "idle", &["unexplained"]).beside(NO_RUNTIME),
    Case::new("exec-status", "idle", EXEC).beside(NO_RUNTIME),
    Case::new("exec-words", "idle", EXEC).beside(NO_RUNTIME),
    Case::new("exec-no-program", "idle", EXEC).beside(NO_RUNTIME),
    Case::new("exec-timeout", "idle", &["exec_timeout", "unexplained"]).beside(NO_RUNTIME),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_handler_fails_in_five_ways() {
        for handler in ["http", "tcp", "exec"] {
            assert_eq!(
                CASES.iter().filter(|case| case.name.split('-').next() == Some(handler)).count(),
                5,
                "{handler}"
            );
        }
    }

    #[test]
    fn another_cause_beside_the_right_one_is_wrong() {
        let reported = |causes: &[&str]| causes.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(CASES[1].matches(&reported(&["app_status_failure"])));
        assert!(!CASES[1].matches(&reported(&["app_status_failure", "firewall_drop"])));
        assert!(!CASES[1].matches(&[]));
        let close = CASES.iter().find(|case| case.name == "http-close").expect("a case");
        assert!(!close.matches(&reported(&["connection_refused"])), "only together with an expected cause");
        assert!(close.matches(&reported(&["connection_refused", "closed_without_answer"])));
    }
}

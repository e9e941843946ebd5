//! The failures: each row is a pod with one probe.

use serde_json::{Value, json};

pub(super) struct Case {
    pub(super) name: &'static str,
    server: Server,
    handler: Handler,
    pub(super) path: Path,
    /// tracer must report one of these causes.
    pub(super) causes: &'static [&'static str],
    /// Causes that tracer may also report, for other attempts.
    pub(super) beside: &'static [&'static str],
}

/// What the container runs.
enum Server {
    /// Nothing that listens.
    Idle,
    /// busybox's HTTP server.
    Httpd,
    /// A server that takes each request, and then runs this line of the shell.
    Takes(&'static str),
}

enum Handler {
    Http(&'static str),
    Tcp,
    Exec(&'static [&'static str]),
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
    const fn new(name: &'static str, server: Server, handler: Handler, causes: &'static [&'static str]) -> Self {
        Self { name, server, handler, path: Path::Free, causes, beside: &[] }
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

    pub(super) fn probe(&self) -> Value {
        let mut probe = match self.handler {
            Handler::Http(path) => json!({ "httpGet": { "path": path, "port": 8080 } }),
            Handler::Tcp => json!({ "tcpSocket": { "port": 8080 } }),
            Handler::Exec(command) => json!({ "exec": { "command": command } }),
        };
        // Gives the container time to listen.
        probe["initialDelaySeconds"] = 3.into();
        probe["periodSeconds"] = 3.into();
        probe["timeoutSeconds"] = 1.into();
        probe
    }

    /// The shell line of its container.
    pub(super) fn script(&self) -> String {
        match self.server {
            Server::Idle => "exec sleep 1000000".to_owned(),
            Server::Httpd => HTTPD.to_owned(),
            Server::Takes(then) => {
                format!(
                    "{TAKE} \"{then}\" >/tmp/serve; chmod +x /tmp/serve; while :; do nc -l -p 8080 -e /tmp/serve; done"
                )
            }
        }
    }
}

/// While the runtime restarts (`--disturb`), no exec probe can run.
const NO_RUNTIME: &[&str] = &["exec_not_run"];
const EXEC: &[&str] = &["exec_failed"];
const REFUSED: &[&str] = &["connection_refused", "not_listening_yet"];

const fn exec(name: &'static str, command: &'static [&'static str], causes: &'static [&'static str]) -> Case {
    Case::new(name, Server::Idle, Handler::Exec(command), causes).beside(NO_RUNTIME)
}

/// Five failures for each handler. There is none for gRPC: that needs an image with such a server.
pub(super) const CASES: &[Case] = &[
    Case::new("http-refused", Server::Idle, Handler::Http("/"), REFUSED),
    Case::new("http-status", Server::Httpd, Handler::Http("/nothing-there"), &["app_status_failure"]),
    Case::new("http-hang", Server::Httpd, Handler::Http("/cgi-bin/hang"), &["slow_response"]),
    // Their server listens again for each attempt, so some attempts are refused.
    Case::new("http-close", Server::Takes("exit 0"), Handler::Http("/"), &["closed_without_answer"]).beside(REFUSED),
    Case::new(
        "http-garbage",
        Server::Takes("echo this is not the protocol"),
        Handler::Http("/"),
        &["app_status_failure"],
    )
    .beside(REFUSED),
    Case::new("tcp-refused", Server::Idle, Handler::Tcp, REFUSED),
    Case::new("tcp-drop", Server::Httpd, Handler::Tcp, &["firewall_drop"]).path(Path::Rule("drop")),
    Case::new("tcp-reject", Server::Httpd, Handler::Tcp, &["firewall_reject"]).path(Path::Rule("reject")),
    Case::new("tcp-reset", Server::Httpd, Handler::Tcp, &["firewall_reject"]).path(Path::Rule("reject with tcp reset")),
    Case::new("tcp-no-route", Server::Httpd, Handler::Tcp, &["route_unreachable"]).path(Path::Route("unreachable")),
    // It prints nothing. Kubelets before 1.24 log the same for a command that times out.
    exec("exec-silent", &["false"], &["unexplained"]),
    exec("exec-status", &["sh", "-c", "echo not yet; exit 3"], EXEC),
    exec("exec-words", &["cat", "/no/such/file"], EXEC),
    exec("exec-no-program", &["/no/such/program"], EXEC),
    exec("exec-timeout", &["sleep", "60"], &["exec_timeout", "unexplained"]),
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

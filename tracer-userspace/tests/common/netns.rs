//! A network namespace, and `tracer doctor` in it.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use tracer_testbed::net;

/// A network namespace that is removed when the test ends.
pub(crate) struct Netns {
    pub(crate) name: String,
    inside: net::Netns,
}

impl Netns {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = net::own_name(format_args!("doctor-{number}"));
        Self { inside: net::Netns::create(&name).expect("root"), name }
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        self.inside.command(program)
    }

    pub(crate) fn run(&self, script: &str) {
        self.inside.run("sh", &["-e"], script).expect("a script that works");
    }

    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.inside.enter(|| Ok(work())).expect("the namespace")
    }

    pub(crate) fn listen(&self, address: &str) -> TcpListener {
        self.within(|| TcpListener::bind(address).expect("a listener"))
    }

    /// Whether a connection from inside succeeds.
    pub(crate) fn reaches(&self, address: &str) -> bool {
        let address: SocketAddr = tracer_testing::address(address);
        self.within(|| TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok())
    }

    /// The findings of doctor inside, and the exit code. Without a prober, doctor inspects its own namespace.
    pub(crate) fn doctor(&self, args: &[&str]) -> (Vec<Value>, Option<i32>) {
        let fixed = ["doctor", "--prober", "no-such-prober", "-o", "json"];
        self.findings(self.command(env!("CARGO_BIN_EXE_tracer")).args(fixed).args(args))
    }

    pub(crate) fn findings(&self, command: &mut Command) -> (Vec<Value>, Option<i32>) {
        let output = command.output().expect("tracer");
        (super::records(&output.stdout), output.status.code())
    }

    pub(crate) fn statuses(&self, check: &str) -> Vec<String> {
        let (findings, _) = self.doctor(&["--check", check]);
        assert!(findings.iter().all(|it| it["check"] == check && it["type"] == "finding"), "{findings:?}");
        findings.iter().map(|it| it["status"].as_str().expect("status").to_owned()).collect()
    }

    /// The only finding of the check has this status. After its fix the check is ok.
    #[track_caller]
    pub(crate) fn fails_until_fixed(&self, check: &str, status: &str) {
        assert_eq!(self.statuses(check), [status], "{check}");
        self.fix(check);
        assert_eq!(self.statuses(check), ["ok"], "{check}");
    }

    /// Runs the fix of the first finding of the check.
    pub(crate) fn fix(&self, check: &str) {
        let (findings, _) = self.doctor(&["--check", check]);
        self.run(findings[0]["remediation"]["commands"][0]["run"].as_str().expect("a fix"));
    }
}

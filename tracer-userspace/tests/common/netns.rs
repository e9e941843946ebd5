//! A network namespace, and `tracer doctor` in it.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use serde_json::Value;

/// A network namespace that is removed when the test ends.
pub(crate) struct Netns(pub(crate) String);

impl Netns {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("doctor-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let made = Command::new("ip").args(["netns", "add", &name]).status().expect("ip");
        assert!(made.success(), "ip netns add {name}");
        Self(name)
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, program]);
        command
    }

    /// Runs a script inside.
    pub(crate) fn run(&self, script: &str) {
        let ended = self.command("sh").args(["-ec", script]).status().expect("sh");
        assert!(ended.success(), "{script}");
    }

    /// Runs `work` on a thread inside.
    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let netns = File::open(format!("/run/netns/{}", self.0)).expect("the namespace");
        let inside = || {
            setns(&netns, CloneFlags::CLONE_NEWNET).expect("setns");
            work()
        };
        thread::scope(|scope| scope.spawn(inside).join().expect("the thread"))
    }

    /// Listens until the listener is dropped.
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
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let findings = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        (findings, output.status.code())
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

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

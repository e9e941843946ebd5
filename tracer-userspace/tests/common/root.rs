//! A root file system over this machine's, in which packages are installed that must not be on it: firewalld starts as soon
//! as it is, and closes the machine. What is written there goes away with its test.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::Dir;
use super::netns::Netns;

/// `$1` is an empty folder, `$2` that of the packages. The last process stays, and is the first of its namespace of processes.
const MAKE: &str = r#"
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /dev dev
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
cp "$2"/*.deb tmp
# Nothing that is installed is started.
printf '#!/bin/sh\nexit 101\n' > usr/sbin/policy-rc.d
chmod +x usr/sbin/policy-rc.d
chroot . sh -c 'dpkg --no-triggers --install /tmp/*.deb' > tmp/log 2>&1 || { cat tmp/log >&2; exit 1; }
mkdir run/dbus run/own-root
read -r pid rest < /proc/self/stat
# Who enters by that number must find the new root.
exec chroot . sh -c 'echo "$1"; exec sleep infinity' sh "$pid"
"#;

/// Where `cargo xtask setup` keeps the packages for root.
const USUAL: &str = "/var/lib/tracer-xtask/packages";

/// ufw, firewalld and rsyslog, installed into a root of their own in a network namespace.
pub(crate) struct Root {
    first: Child,
    /// Its number out here.
    pid: String,
    _place: Dir,
}

impl Root {
    /// None, and a line that says why, without the packages; in CI they must be there.
    pub(crate) fn with_packages(node: &Netns) -> Option<Self> {
        let packages = std::env::var_os("TRACER_TEST_PACKAGES").map_or_else(|| PathBuf::from(USUAL), PathBuf::from);
        if !packages.is_dir() {
            let why =
                format!("{}: `cargo xtask setup` fetches ufw, firewalld and rsyslog to there", packages.display());
            assert!(std::env::var_os("CI").is_none(), "not found: {why}");
            // Past what the test harness keeps to itself.
            let _ = writeln!(std::io::stderr(), "SKIPPED, not found: {why}");
            return None;
        }
        let place = Dir::new();
        let mut command = node.command("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", MAKE, "sh"])
            .arg(&place.0)
            .arg(packages);
        let mut first = at_home(&mut command).stdout(Stdio::piped()).spawn().expect("unshare");
        let mut pid = String::new();
        BufReader::new(first.stdout.take().expect("stdout")).read_line(&mut pid).expect("a line");
        assert!(!pid.is_empty(), "no root of its own: {:?}", first.wait());
        Some(Self { first, pid: pid.trim().to_owned(), _place: place })
    }

    /// A path in there, for this process; without its first slash.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        Path::new("/proc").join(&self.pid).join("root").join(path)
    }

    /// A script as if the node had this root, and never with that of the machine.
    fn command(&self, script: &str) -> Command {
        let script = &format!("test -d /run/own-root\n{script}");
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid, "--mount", "--pid", "--net", "--root", "--wd", "sh", "-ec", script]);
        at_home(&mut command);
        command
    }

    /// Starts a script, which ends with this root.
    pub(crate) fn spawn(&self, script: &str) -> Child {
        self.command(script).spawn().expect("nsenter")
    }

    /// Runs a script; what it says.
    pub(crate) fn run(&self, script: &str) -> String {
        let output = self.command(script).output().expect("nsenter");
        let reported = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(output.status.success(), "{script}\n{reported}");
        reported
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = self.first.kill();
        let _ = self.first.wait();
    }
}

/// Debian's own programs, whatever else is in the PATH of whoever runs the tests.
fn at_home(command: &mut Command) -> &mut Command {
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null())
}

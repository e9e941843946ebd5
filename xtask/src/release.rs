//! `cargo xtask release`: makes all files of a release in `target/release-files`, mostly in `release.sh`. It uploads
//! nothing: `.github/workflows/release.yml` signs the files and publishes them.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::dist::{self, Target};
use crate::image::{self, VERSION, git};
use crate::vm::kernels;
use crate::{packages, setup, sh};

/// What to make, and what to do with it.
#[derive(clap::Args)]
pub(crate) struct ReleaseArgs {
    /// From any commit; without it HEAD must be the tag of this version, and the tree unchanged
    #[arg(long)]
    dry_run: bool,
    /// Binaries without LTO and optimisation
    #[arg(long)]
    quick: bool,
    /// Where the project is, for the manifest of Krew
    #[arg(long, default_value = "https://tracer.example", value_name = "URL")]
    repository: String,
    /// Install the .deb in this Debian, in a root of its own, and run what its unit runs; repeatable, as root
    #[arg(long, value_name = "SUITE")]
    install: Vec<String>,
}

pub(crate) fn run(args: &ReleaseArgs) -> Result<()> {
    setup::ensure(setup::Purpose::Release)?;
    let described = git(&["describe", "--always", "--dirty"])?;
    ensure!(args.dry_run || described == format!("v{VERSION}"), "{described} is no tag of {VERSION}: try --dry-run");
    let programs = [dist::build(Target::X86, args.quick)?, dist::build(Target::Arm, args.quick)?];
    let archive = image::build(&[Target::X86, Target::Arm], args.quick)?;
    let files = sh::target().join("release-files");
    let _ = fs::remove_dir_all(&files);
    fs::create_dir_all(&files).with_context(|| files.display().to_string())?;
    fs::copy(archive, files.join(format!("tracer-{VERSION}-image.tar")))?;
    let tools = packages::programs()?.context("helm cannot be fetched")?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut script = sh::command("sh");
    script.args(["-euc", include_str!("release/release.sh")]).env("SOURCE_DATE_EPOCH", image::commit_time()?);
    script.env("PATH", format!("{}:{}:{path}", packages::packagers()?.display(), tools.display()));
    script.env("VERSION", VERSION).env("REPOSITORY", &args.repository).env("AMD64", &programs[0]);
    script.env("ARM64", &programs[1]).env("OUT", &files).env("PARTS", "target/release-parts");
    sh::step("packages, chart, licences and lists", || sh::run(&mut script))?;
    for suite in &args.install {
        sh::step(&format!("installing the .deb in Debian {suite}"), || install(suite, &files))?;
    }
    list(&files)
}

/// Installs the package as a new user would, and removes it again.
fn install(suite: &str, files: &Path) -> Result<()> {
    sh::need_root("a root of its own")?;
    let mut script = sh::command("unshare");
    script.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", include_str!("release/install.sh"), "sh"]);
    sh::run(script.args([suite, &kernels::mirror()?]).arg(files.join(format!("tracer_{VERSION}-1_amd64.deb"))))
}

/// Prints each file with its size and digest.
fn list(files: &Path) -> Result<()> {
    for line in fs::read_to_string(files.join("SHA256SUMS"))?.lines() {
        let (digest, name) = line.split_once("  ").context("a line of SHA256SUMS")?;
        println!("{:>10} {digest} {name}", fs::metadata(files.join(name))?.len());
    }
    Ok(())
}

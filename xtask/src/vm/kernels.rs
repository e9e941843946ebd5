//! Fetches Debian's kernels from the mirror of this machine, and keeps them for all working trees.
//!
//! It uses the full flavour, because the `cloud` kernels lack 9p.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::{packages, sh};

/// A kernel that tests run under.
#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) name: &'static str,
    /// The suite of Debian that has it.
    pub(crate) suite: &'static str,
    /// Its name in the cache. Releases that differ only in settings share a kernel.
    kept: &'static str,
    /// Settings for `sysctl`.
    pub(crate) settings: &'static [&'static str],
    /// Parameters of its command line.
    pub(crate) parameters: &'static [&'static str],
}

impl Release {
    const fn new(name: &'static str, suite: &'static str) -> Self {
        Self { name, suite, kept: name, settings: &[], parameters: &[] }
    }

    /// Whether it is not another release's kernel with other settings.
    pub(crate) fn has_own_kernel(&self) -> bool {
        self.kept == self.name
    }
}

/// All releases, oldest first. The last two are kernels with a setting:
///
/// - The oldest one with `ftrace_enabled=0`, so without fentry and kprobes. It also lacks the tracepoints that replace
///   them on newer kernels.
/// - One that forbids programs to read its memory by a helper.
pub(crate) const RELEASES: &[Release] = &[
    Release::new("5.10", "bullseye"),
    Release::new("6.1", "bookworm"),
    Release::new("6.12", "bookworm-backports"),
    Release::new("sid", "sid"),
    Release { kept: "5.10", settings: &["kernel.ftrace_enabled=0"], ..Release::new("5.10-tracepoints", "bullseye") },
    Release {
        kept: "6.12",
        parameters: &["lockdown=confidentiality"],
        ..Release::new("6.12-lockdown", "bookworm-backports")
    },
];

pub(crate) struct Kernel {
    /// `uname -r`.
    pub(crate) version: String,
    /// The image in `boot`. Its modules are in `lib/modules` beside `boot`.
    pub(crate) image: PathBuf,
}

pub(crate) fn find(name: &str) -> Result<&'static Release> {
    let names = || RELEASES.iter().map(|release| release.name).collect::<Vec<_>>().join(", ");
    RELEASES.iter().find(|release| release.name == name).with_context(|| format!("the kernels are {}", names()))
}

pub(crate) fn cached(release: &Release) -> Result<Option<Kernel>> {
    let tree = packages::cache("kernels")?.join(release.kept);
    let Ok(version) = fs::read_to_string(tree.join("VERSION")) else { return Ok(None) };
    let version = version.trim().to_owned();
    let image = tree.join("boot").join(format!("vmlinuz-{version}"));
    Ok(image.is_file().then_some(Kernel { version, image }))
}

/// The kernel of a release. Fetches it if necessary.
pub(crate) fn ensure(release: &Release, refresh: bool) -> Result<Kernel> {
    let cache = packages::cache("kernels")?;
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let lock = File::create(cache.join(format!("{}.lock", release.kept)))?;
    lock.lock().context("cannot lock the cache of kernels")?;
    if let Some(kernel) = cached(release)?.filter(|_| !refresh) {
        return Ok(kernel);
    }
    let what = format!("fetching kernel {} from Debian {}", release.kept, release.suite);
    sh::step(&what, || fetch(release, &cache)).with_context(|| what.clone())?;
    cached(release)?.context("the kernel was fetched, but is not in the cache")
}

fn fetch(release: &Release, cache: &Path) -> Result<()> {
    let mut script = sh::command("sh");
    script.args(["-ec", include_str!("fetch.sh"), "sh"]).arg(cache.join(release.kept)).arg(source(release)?);
    sh::capture(&mut script).map(drop)
}

/// The line of the source list for a suite.
fn source(release: &Release) -> Result<String> {
    const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
    let signed = if Path::new(KEYS).is_file() { format!("[signed-by={KEYS}] ") } else { String::new() };
    Ok(format!("deb {signed}{} {} main", mirror()?, release.suite))
}

/// The mirror of the machine's own sources.
pub(crate) fn mirror() -> Result<String> {
    if let Ok(chosen) = std::env::var("TRACER_DEBIAN_MIRROR") {
        return Ok(chosen);
    }
    let format = "$(RELEASE) $(COMPONENT) $(REPO_URI)";
    let query = ["indextargets", "--no-release-info", "--format", format, "Created-By: Packages"];
    let targets = sh::capture(sh::command("apt-get").args(query))?;
    let own = os_codename()?;
    let mirror = targets.lines().find_map(|line| line.strip_prefix(&format!("{own} main "))).with_context(|| {
        format!("this machine's apt sources name no mirror with Debian {own} main; set TRACER_DEBIAN_MIRROR")
    })?;
    Ok(mirror.to_owned())
}

/// The suite this machine was installed from.
fn os_codename() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(name.context("/etc/os-release names no VERSION_CODENAME")?.trim_matches('"').to_owned())
}

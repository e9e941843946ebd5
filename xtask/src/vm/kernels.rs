//! Debian's kernels, fetched from the mirror that this machine itself uses and kept for all working trees.
//!
//! Another suite than the machine's own is read with an apt configuration of its own, so that nothing of the system
//! changes. The flavour is the full one: the `cloud` kernels lack 9p.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::sh;

/// A kernel that tests run under.
#[derive(Debug)]
pub(crate) struct Release {
    /// What it is called here.
    pub(crate) name: &'static str,
    /// The suite of Debian that has it.
    pub(crate) suite: &'static str,
    /// Under which name it is kept: one kernel, however it is set.
    kept: &'static str,
    /// Settings that it runs with, as `sysctl` takes them.
    pub(crate) settings: &'static [&'static str],
}

impl Release {
    const fn new(name: &'static str, suite: &'static str) -> Self {
        Self { name, suite, kept: name, settings: &[] }
    }
}

/// All of them, oldest first.
///
/// The last is the oldest where no program can sit on a function: no fentry, no kprobes, and no tracepoint that tells what they
/// tell on newer kernels.
pub(crate) const RELEASES: &[Release] = &[
    Release::new("5.10", "bullseye"),
    Release::new("6.1", "bookworm"),
    Release::new("6.12", "bookworm-backports"),
    Release::new("sid", "sid"),
    Release { name: "5.10-tracepoints", suite: "bullseye", kept: "5.10", settings: &["kernel.ftrace_enabled=0"] },
];

/// A kernel on disk.
pub(crate) struct Kernel {
    /// `uname -r`.
    pub(crate) version: String,
    /// The image; its modules are in `lib/modules` beside the `boot` it is in.
    pub(crate) image: PathBuf,
}

/// Directories that the guest covers with an empty file system.
const HIDDEN: &[&str] = &["/var/cache", "/var/tmp", "/var/log", "/run", "/dev", "/sys", "/proc"];

/// The release of that name.
pub(crate) fn find(name: &str) -> Result<&'static Release> {
    let names = || RELEASES.iter().map(|release| release.name).collect::<Vec<_>>().join(", ");
    RELEASES.iter().find(|release| release.name == name).with_context(|| format!("the kernels are {}", names()))
}

/// Where kernels, and other things that are fetched, are kept: outside the working tree, so that the next clone finds them.
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

/// The kernel of a release, if it was fetched.
pub(crate) fn cached(release: &Release) -> Result<Option<Kernel>> {
    let tree = cache("kernels")?.join(release.kept);
    let Ok(version) = fs::read_to_string(tree.join("VERSION")) else { return Ok(None) };
    let version = version.trim().to_owned();
    let image = tree.join("boot").join(format!("vmlinuz-{version}"));
    Ok(image.is_file().then_some(Kernel { version, image }))
}

/// The kernel of a release, fetched if it must be.
pub(crate) fn ensure(release: &Release, refresh: bool) -> Result<Kernel> {
    let cache = cache("kernels")?;
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let lock = File::create(cache.join(format!("{}.lock", release.kept)))?;
    lock.lock().context("cannot lock the cache of kernels")?;
    if let Some(kernel) = cached(release)?.filter(|_| !refresh) {
        return Ok(kernel);
    }
    let what = format!("fetching kernel {} from Debian {}", release.kept, release.suite);
    sh::step(&what, || fetch(release, &cache)).with_context(|| what.clone())?;
    cached(release)?.context("the kernel was fetched and is not there")
}

fn fetch(release: &Release, cache: &Path) -> Result<()> {
    let work = cache.join(format!("{}.fetch", release.kept));
    let _ = fs::remove_dir_all(&work);
    let apt = Apt::new(&work, release)?;
    sh::capture(apt.command("apt-get").args(["-q", "update"]))?;
    let packages = apt.packages()?;
    sh::capture(apt.command("apt-get").args(["-q", "download"]).args(&packages).current_dir(&work))?;
    let tree = work.join("tree");
    for file in fs::read_dir(&work)?.flatten().filter(|file| file.path().extension().is_some_and(|ext| ext == "deb")) {
        sh::run(sh::command("dpkg").arg("-x").arg(file.path()).arg(&tree))?;
    }
    let version = tidy(&tree)?;
    index_modules(&tree, &version)?;
    fs::write(tree.join("VERSION"), format!("{version}\n"))?;
    let place = cache.join(release.kept);
    let _ = fs::remove_dir_all(&place);
    fs::rename(&tree, &place)?;
    Ok(fs::remove_dir_all(&work)?)
}

/// Makes the tree of old and new packages the same: `boot/vmlinuz-VERSION` and `lib/modules/VERSION`, nothing else.
fn tidy(tree: &Path) -> Result<String> {
    let modules = tree.join("lib/modules");
    if !modules.is_dir() {
        fs::create_dir_all(tree.join("lib"))?;
        fs::rename(tree.join("usr/lib/modules"), &modules).context("the packages have no modules")?;
    }
    let version = fs::read_dir(&modules)?.flatten().next().context("the packages have no modules")?.file_name();
    let version = version.to_string_lossy().into_owned();
    let image = tree.join("boot").join(format!("vmlinuz-{version}"));
    if !image.is_file() {
        fs::create_dir_all(tree.join("boot"))?;
        let inside = modules.join(&version).join("vmlinuz");
        fs::rename(inside, &image).context("the packages have no kernel image")?;
    }
    let _ = fs::remove_dir_all(tree.join("usr"));
    Ok(version)
}

/// Tells the guest's `modprobe` which modules there are.
fn index_modules(tree: &Path, version: &str) -> Result<()> {
    let depmod = sh::find("depmod").context("depmod is missing (package kmod)")?;
    // Newer packages lack `modules.order` and `modules.builtin`: depmod says so, and it does not matter.
    sh::capture(sh::command(depmod).arg("-b").arg(tree).arg(version)).map(drop)
}

/// An apt that knows one suite only.
struct Apt {
    configuration: PathBuf,
}

impl Apt {
    fn new(work: &Path, release: &Release) -> Result<Self> {
        for dir in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(work.join(dir))?;
        }
        fs::write(work.join("status"), "")?;
        fs::write(work.join("sources.list"), source(release)?)?;
        let configuration = work.join("apt.conf");
        fs::write(&configuration, settings(work))?;
        Ok(Self { configuration })
    }

    fn command(&self, program: &str) -> std::process::Command {
        let mut command = sh::command(program);
        command.env("APT_CONFIG", &self.configuration);
        command
    }

    /// The kernel's package and those it is split into.
    fn packages(&self) -> Result<Vec<String>> {
        let meta = self.depends("linux-image-amd64", &["linux-image-"])?;
        let image = meta.first().context("linux-image-amd64 depends on no kernel")?.clone();
        let mut packages = self.depends(&image, &["linux-binary-", "linux-modules-"])?;
        packages.push(image);
        Ok(packages)
    }

    fn depends(&self, package: &str, prefixes: &[&str]) -> Result<Vec<String>> {
        let text = sh::capture(self.command("apt-cache").args(["depends", "--important", package]))?;
        let names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        let numbered = |name: &str, prefix: &str| {
            name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        let wanted = names.filter(|name| prefixes.iter().any(|prefix| numbered(name, prefix)));
        Ok(wanted.map(str::to_owned).collect())
    }
}

/// The line of the source list for a suite.
fn source(release: &Release) -> Result<String> {
    const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
    let signed = if Path::new(KEYS).is_file() { format!("[signed-by={KEYS}] ") } else { String::new() };
    Ok(format!("deb {signed}{} {} main\n", mirror()?, release.suite))
}

/// The mirror of the machine's own sources.
fn mirror() -> Result<String> {
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

/// apt's settings that keep it inside one directory.
fn settings(work: &Path) -> String {
    let work = work.display();
    format!(
        r#"Dir::Etc::sourcelist "{work}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "{work}";
Dir::State::lists "{work}/lists";
Dir::State::status "{work}/status";
Dir::Cache "{work}/cache";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
"#
    )
}

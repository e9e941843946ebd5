//! `cargo xtask dist`: builds the static binary of the image for one processor.
//!
//! Debian's compiler builds the standard library for any target from its sources (`-Zbuild-std`), so rustup need not
//! fetch a target. Debian's cross compiler compiles the C code of dependencies, such as ring.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::{setup, sh};

/// What to build.
#[derive(clap::Args)]
pub(crate) struct DistArgs {
    /// The processor and the libc
    #[arg(long, value_enum)]
    target: Target,
    /// Without LTO and optimisation, to see that it builds and starts
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Target {
    /// x86-64 with musl
    #[value(name = "x86_64-musl")]
    X86,
    /// arm64 with glibc
    #[value(name = "aarch64")]
    Arm,
}

/// What builds for a target, and what runs it.
pub(crate) struct Tools {
    triple: &'static str,
    /// The name of the architecture in images.
    pub(crate) architecture: &'static str,
    pub(crate) strip: &'static str,
    /// Compiles C and links.
    gcc: &'static str,
    packages: &'static [&'static str],
    /// Runs its programs here, on another processor.
    emulator: Option<&'static str>,
}

impl Target {
    pub(crate) const fn tools(self) -> Tools {
        match self {
            Self::X86 => Tools {
                triple: "x86_64-unknown-linux-musl",
                architecture: "amd64",
                strip: "strip",
                gcc: "musl-gcc",
                packages: &["rustc-web", "rust-web-src", "gcc", "binutils", "musl-tools", "libunwind-14-dev"],
                emulator: None,
            },
            Self::Arm => Tools {
                triple: "aarch64-unknown-linux-gnu",
                architecture: "arm64",
                strip: "aarch64-linux-gnu-strip",
                gcc: "aarch64-linux-gnu-gcc",
                packages: &[
                    "rustc-web",
                    "rust-web-src",
                    "gcc-aarch64-linux-gnu",
                    "libc6-dev-arm64-cross",
                    "qemu-user-static",
                ],
                emulator: Some("qemu-aarch64-static"),
            },
        }
    }
}

/// LLVM's unwinder from Debian's `libunwind-14-dev`.
const UNWINDER: &str = "/usr/lib/llvm-14/lib/libunwind.a";

pub(crate) fn run(args: &DistArgs) -> Result<()> {
    println!("{}", build(args.target, args.quick)?.display());
    Ok(())
}

/// Builds the program, runs it once, and returns its path.
pub(crate) fn build(target: Target, quick: bool) -> Result<PathBuf> {
    setup::ensure(setup::Purpose::Build)?;
    setup::packages(target.tools().packages)?;
    let what = format!("building tracer for {}", target.tools().triple);
    sh::step(&what, || sh::run(&mut cargo(target, quick)?))?;
    let profile = if quick { "debug" } else { "release" };
    let program = sh::target().join(target.tools().triple).join(profile).join("tracer");
    start(target, &program)?;
    Ok(program)
}

fn cargo(target: Target, quick: bool) -> Result<Command> {
    let triple = target.tools().triple;
    let mut cargo = sh::cargo(&["build", "--locked", "--package", "tracer-userspace", "--bin", "tracer"]);
    cargo.args(["-Zbuild-std=std,panic_unwind", "--target", triple]);
    if !quick {
        cargo.arg("--release");
    }
    let gcc = target.tools().gcc;
    let mut flags = vec![format!("-Clinker={gcc}"), "-Ctarget-feature=+crt-static".to_owned()];
    // So the binary has no paths of the machine, and each machine builds the same one.
    flags.push(format!("--remap-path-prefix={}=/tracer", sh::root().display()));
    let usual = || std::env::home_dir().unwrap_or_default().join(".cargo");
    let home = std::env::var_os("CARGO_HOME").map_or_else(usual, PathBuf::from);
    flags.push(format!("--remap-path-prefix={}=/cargo", home.display()));
    if target == Target::X86 {
        // musl-gcc cannot link a static position-independent executable.
        flags.extend(["-Clink-self-contained=no", "-Crelocation-model=static"].map(str::to_owned));
        flags.push(format!("-L{}", unwinder()?.display()));
    }
    cargo.env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1").env_remove("RUSTFLAGS");
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f")).env(format!("CC_{}", triple.replace('-', "_")), gcc);
    Ok(cargo)
}

/// LLVM's unwinder calls this function of glibc. musl lacks it.
const FORTIFIED: &str = r"#include <stdarg.h>
#include <stdio.h>
int __fprintf_chk(FILE *file, int flag, const char *format, ...) {
    va_list words;
    (void)flag;
    va_start(words, format);
    int written = vfprintf(file, format, words);
    va_end(words);
    return written;
}
";

/// A folder with the unwinder for the standard library on musl. It is LLVM's, because gcc's needs `_dl_find_object` of
/// glibc.
fn unwinder() -> Result<PathBuf> {
    let folder = sh::target().join("unwinder");
    std::fs::create_dir_all(&folder)?;
    let [library, source, object] = ["libunwind.a", "fortified.c", "fortified.o"].map(|name| folder.join(name));
    std::fs::copy(UNWINDER, &library).context(UNWINDER)?;
    std::fs::write(&source, FORTIFIED)?;
    sh::run(sh::command("musl-gcc").args(["-O", "-c", "-o"]).args([&object, &source]))?;
    sh::run(sh::command("ar").arg("r").args([&library, &object]))?;
    Ok(folder)
}

/// Checks that the binary is static, and runs commands of it that need no kernel of the target.
fn start(target: Target, program: &Path) -> Result<()> {
    let headers = sh::capture(sh::command("readelf").arg("--program-headers").arg(program))?;
    ensure!(!headers.contains("INTERP"), "{} is not static", program.display());
    let fixture = "tests/fixtures/loopback_down/any-v4/observations.ndjson";
    let version = output(target, program, &["--version"])?;
    ensure!(version.contains(env!("CARGO_PKG_VERSION")), "tracer --version: {version}");
    for words in [&["explain", "loopback_down"][..], &["replay", fixture]] {
        let text = output(target, program, words)?;
        ensure!(text.contains("loopback_down"), "tracer {}: {text}", words.join(" "));
    }
    Ok(())
}

fn output(target: Target, program: &Path, words: &[&str]) -> Result<String> {
    let mut command = target.tools().emulator.map_or_else(|| sh::command(program), sh::command);
    if target.tools().emulator.is_some() {
        command.arg(program);
    }
    sh::capture(command.args(words))
}

//! Builds the eBPF object, so that a plain `cargo build` is enough.
//!
//! rustc's BPF target emits LLVM bitcode, with fat LTO as one module. `llc` of the same LLVM makes the object that aya loads, so
//! neither bpf-linker nor clang is needed. Two kinds of toolchains work: a rustup toolchain with `rust-src` and an `llc` (its own
//! `llvm-tools` or `llc-NN`), or a system rustc with its target library for BPF (Debian: rustc-web, libstd-rust-web-dev-bpf,
//! llvm-22).
//!
//! How to lint the eBPF crate: see `tracer-ebpf/Cargo.toml`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

const TARGET: &str = "bpfel-unknown-none";
/// Toolchains that are tried first.
const PREFERRED: &[&str] = &["stable"];

/// A compiler for the BPF target, with the `llc` of the same LLVM.
struct Toolchain {
    name: String,
    cargo: PathBuf,
    rustc: PathBuf,
    llc: PathBuf,
    /// Whether the core library is built from rust-src.
    build_std: bool,
}

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../../tracer-ebpf");
    println!("cargo:rerun-if-changed=../../tracer-common");
    if let Err(message) = run() {
        for line in message.lines() {
            println!("cargo:error={line}");
        }
        std::process::exit(1);
    }
}

/// The objects, with the features of the eBPF crate for each.
const OBJECTS: [(&str, &[&str]); 2] = [("tracer-ebpf", &[]), ("tracer-ebpf-typed", &["typed-loads"])];

fn run() -> Result<(), String> {
    let out = PathBuf::from(var("OUT_DIR")?);
    let toolchain = find_toolchain()?;
    thread::scope(|scope| {
        let builds = OBJECTS.map(|(name, features)| scope.spawn(|| build(&toolchain, &out, name, features)));
        builds.into_iter().try_for_each(|build| build.join().unwrap_or_else(|_| Err("a panic".into())))
    })
}

fn build(toolchain: &Toolchain, out: &Path, name: &str, features: &[&str]) -> Result<(), String> {
    let (object, bitcode) = (out.join(format!("{name}.o")), out.join(format!("{name}.bc")));
    compile(toolchain, &out.join(name), &bitcode, features)?;
    let status = Command::new(&toolchain.llc)
        .args(["-march=bpf", "-mcpu=v3", "-filetype=obj", "-o"])
        .args([&object, &bitcode])
        .status()
        .map_err(|e| format!("cannot run {}: {e}", toolchain.llc.display()))?;
    if !status.success() {
        return Err(format!("{} failed on the bitcode of {}", toolchain.llc.display(), toolchain.name));
    }
    Ok(())
}

fn var(name: &str) -> Result<String, String> {
    env::var(name).map_err(|e| format!("{name}: {e}"))
}

/// The first candidate that can build for BPF; the error has the reason for each candidate, and the fix.
fn find_toolchain() -> Result<Toolchain, String> {
    let mut rejected = Vec::new();
    for name in rustup_toolchains() {
        match rustup_candidate(&name) {
            Ok(toolchain) => return Ok(toolchain),
            Err(why) => rejected.push(format!("rustup {name}: {why}")),
        }
    }
    match system_candidate() {
        Ok(toolchain) => return Ok(toolchain),
        Err(why) => rejected.push(format!("system rustc: {why}")),
    }
    Err(format!(
        "no toolchain here can build the eBPF programs ({}). Run `cargo xtask setup`, which installs what is missing.",
        rejected.join("; ")
    ))
}

fn rustup_toolchains() -> Vec<String> {
    let list = output(Command::new("rustup").args(["toolchain", "list"])).unwrap_or_default();
    let mut names: Vec<String> = list.lines().filter_map(|l| l.split_whitespace().next()).map(str::to_owned).collect();
    names.sort_by_key(|name| PREFERRED.iter().position(|p| name.starts_with(p)).unwrap_or(PREFERRED.len()));
    names
}

fn rustup_candidate(name: &str) -> Result<Toolchain, String> {
    let sysroot = output(Command::new("rustup").args(["run", name, "rustc", "--print", "sysroot"]))
        .map_err(|e| format!("does not run: {e}"))?;
    let sysroot = PathBuf::from(sysroot.trim());
    if !sysroot.join("lib/rustlib/src/rust/library/core").is_dir() {
        return Err("no rust-src".into());
    }
    let rustc = sysroot.join("bin/rustc");
    let version = Version::of(&rustc)?;
    let own = sysroot.join("lib/rustlib").join(&version.host).join("bin/llc");
    let llc = if own.is_file() { own } else { system_llc(&version)? };
    Ok(Toolchain { name: name.to_owned(), cargo: sysroot.join("bin/cargo"), rustc, llc, build_std: true })
}

/// Debian installs rustc for BPF without cargo, so the running cargo is used.
fn system_candidate() -> Result<Toolchain, String> {
    let rustc = PathBuf::from("/usr/bin/rustc");
    if !rustc.is_file() {
        return Err(format!("no {}", rustc.display()));
    }
    let libdir = output(Command::new(&rustc).args(["--print", "target-libdir", "--target", TARGET]))?;
    let has_core = fs::read_dir(libdir.trim())
        .is_ok_and(|dir| dir.flatten().any(|e| e.file_name().to_string_lossy().starts_with("libcore-")));
    if !has_core {
        return Err(format!("has no core library for {TARGET} (Debian: libstd-rust-web-dev-bpf)"));
    }
    let llc = system_llc(&Version::of(&rustc)?)?;
    let cargo = PathBuf::from(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    Ok(Toolchain { name: "system rustc".into(), cargo, rustc, llc, build_std: false })
}

/// The output of `rustc -vV`.
struct Version {
    host: String,
    llvm_major: String,
}

impl Version {
    fn of(rustc: &Path) -> Result<Self, String> {
        let text = output(Command::new(rustc).arg("-vV"))?;
        let field = |key: &str| {
            text.lines()
                .find_map(|l| l.strip_prefix(key))
                .map(|v| v.trim().to_owned())
                .ok_or_else(|| format!("`rustc -vV` has no `{key}`"))
        };
        let llvm = field("LLVM version:")?;
        let llvm_major = llvm.split('.').next().unwrap_or_default().to_owned();
        Ok(Self { host: field("host:")?, llvm_major })
    }
}

/// The `llc` of the same LLVM major version: an older one cannot read the bitcode.
fn system_llc(version: &Version) -> Result<PathBuf, String> {
    let name = format!("llc-{}", version.llvm_major);
    match output(Command::new(&name).arg("--version")) {
        Ok(text) if text.contains("bpf") => Ok(name.into()),
        Ok(_) => Err(format!("{name} has no BPF backend")),
        Err(_) => Err(format!("no llvm-tools and no {name} (LLVM {} is needed)", version.llvm_major)),
    }
}

/// Runs the compiler, which writes the bitcode file.
fn compile(toolchain: &Toolchain, target_dir: &Path, bitcode: &Path, features: &[&str]) -> Result<(), String> {
    let manifest = Path::new(&var("CARGO_MANIFEST_DIR")?).join("../../tracer-ebpf/Cargo.toml");
    let log = env::var_os("CARGO_FEATURE_KERNEL_LOG").map(|_| "kernel-log");
    let mut command = Command::new(&toolchain.cargo);
    clean_env(&mut command);
    command
        .env("RUSTC", &toolchain.rustc)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", rust_flags()?)
        .args(["rustc", "--locked", "--release", "--bin", "tracer", "--target", TARGET])
        .arg("--manifest-path")
        .arg(&manifest)
        .arg("--target-dir")
        .arg(target_dir)
        .args(if toolchain.build_std { &["-Z", "build-std=core"][..] } else { &[] })
        .arg("--features")
        .arg(features.iter().copied().chain(log).collect::<Vec<_>>().join(","))
        .arg("--")
        .arg(format!("--emit=obj={}", bitcode.display()));
    let result = command.output().map_err(|e| format!("cannot run {}: {e}", toolchain.cargo.display()))?;
    if result.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&result.stderr);
    Err(format!("the eBPF programs do not build with {}:\n{text}", toolchain.name))
}

/// The flags in cargo's encoding. Without debug info, because the kernel would refuse the BTF made of it, and without a linker.
fn rust_flags() -> Result<String, String> {
    let arch = format!("--cfg=bpf_target_arch=\"{}\"", var("CARGO_CFG_TARGET_ARCH")?);
    Ok([&arch, "-Cdebuginfo=0", "-Clto=fat", "-Cembed-bitcode=yes", "-Clinker=true"].join("\x1f"))
}

/// Removes variables that the outer cargo, clippy or rustup set for the host.
fn clean_env(command: &mut Command) {
    for name in [
        "RUSTC",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_LINKER",
        "RUSTFLAGS",
        "RUSTDOCFLAGS",
        "CARGO",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_TARGET_DIR",
        "CARGO_BUILD_TARGET",
        "CARGO_MAKEFLAGS",
        "CLIPPY_ARGS",
        "RUSTUP_TOOLCHAIN",
        "TARGET",
        "HOST",
    ] {
        command.env_remove(name);
    }
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("CARGO_PROFILE_") {
            command.env_remove(name);
        }
    }
}

fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    clean_env(command);
    let out = command.output().map_err(|e| format!("{program}: {e}"))?;
    if out.status.success() {
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    } else {
        Err(format!("{program}: {}", String::from_utf8_lossy(&out.stderr).lines().next().unwrap_or("failed")))
    }
}

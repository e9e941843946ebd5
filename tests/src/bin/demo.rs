//! Shows a node with pods that fail in different ways, and the verdicts of tracer. The exit code is 1 if a
//! verdict has another cause than expected.

use std::fs::{self, File};
use std::io::{IsTerminal, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use nix::pty::Winsize;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tracer_model::record::{Cause, Record};
use tracer_testbed::check::{Attempt, Claim, unmet};
use tracer_testbed::helper::Programs;
use tracer_testbed::net::die_with_parent;
use tracer_testbed::node::sweep::sweep;
use tracer_testbed::options::{Options, Scratch};
use tracer_testbed::scenario::needs;
use tracer_testbed::watcher::{Tracer, replay};
use tracer_tests::demo::{Case, Demo};

#[derive(Parser)]
struct Args {
    /// The tracer; default: the one beside this program.
    #[arg(long)]
    tracer: Option<PathBuf>,
    /// How often every pod is probed.
    #[arg(long, default_value_t = 2)]
    rounds: u32,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    sweep();
    needs::prepare_machine();
    let options = Options::detect(Programs::beside()?);
    let scratch = Scratch::new()?;
    let mut demo = Demo::new(options.clone())?;
    let pods = scratch.path().join("pods.json");
    fs::write(&pods, demo.pods().to_string())?;
    let program = args.tracer.clone().unwrap_or_else(|| options.programs.tracer());
    announce(&demo, &program, &pods);
    let prober = options.prober.clone();
    let tracer = Tracer { program, prober, pods, services: None, kubeconfig: None, tiny_ring: false, btf: None };
    let recording = scratch.path().join("demo.ndjson");
    let printer = print(&tracer, &recording, options.patience)?;
    let shown = play(&mut demo, args.rounds)?;
    end(printer)?;
    // The screen had text for people. The check uses the JSON records of a replay.
    Ok(compare(&shown, &replay(&tracer.program, &recording)?))
}

fn announce(demo: &Demo, program: &Path, pods: &Path) {
    println!("A node with these pods, in network namespaces of its own:\n");
    for case in &demo.cases {
        println!("  {:26} {:22} {}", case.pod, case.dst.to_string(), case.made);
    }
    println!("\n$ {} record demo.ndjson --pods {}\n", program.display(), pods.display());
}

/// Probes everything, then lets the incident happen.
fn play(demo: &mut Demo, rounds: u32) -> Result<Vec<(Case, Attempt)>> {
    let mut shown = Vec::new();
    for _ in 0..rounds {
        for case in demo.cases.clone() {
            let attempt = demo.probe(&case, None)?;
            shown.push((case, attempt));
        }
    }
    let (case, suspect) = demo.loopback_incident()?;
    let attempt = demo.probe(&case, Some(suspect))?;
    shown.push((case, attempt));
    Ok(shown)
}

/// Starts tracer with output for people, and prints that. Returns after the first output.
fn print(tracer: &Tracer, recording: &Path, patience: Duration) -> Result<(Child, JoinHandle<()>)> {
    let mut command = Command::new(&tracer.program);
    command.arg("record").arg(recording).args(["-o", "pretty", "--prober", "kubelet", "--pods"]).arg(&tracer.pods);
    die_with_parent(&mut command);
    let on_terminal = std::io::stdout().is_terminal();
    let (mut ours, theirs) = if on_terminal { terminal()? } else { pipe()? };
    // tracer draws a status line on stderr, and erases it before each record. So both must come in order.
    if on_terminal && std::io::stderr().is_terminal() {
        command.stderr(theirs.try_clone()?);
    }
    command.stdout(theirs);
    let child = command.spawn().with_context(|| format!("start {}", tracer.program.display()))?;
    // `command` holds the other end of the pipe, too.
    drop(command);
    let (sender, printed) = channel();
    let echo = thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = ours.read(&mut buffer) {
            let mut out = std::io::stdout().lock();
            let _ = out.write_all(&buffer[..n]).and_then(|()| out.flush());
            let _ = sender.send(());
        }
    });
    printed.recv_timeout(patience).context("tracer printed nothing")?;
    Ok((child, echo))
}

/// A new terminal of the same size, so that tracer prints as on this one.
fn terminal() -> Result<(File, OwnedFd)> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).context("the size of the terminal")?;
    let size = Winsize { ws_row: size.ws_row, ws_col: size.ws_col, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = nix::pty::openpty(&size, None).context("open a terminal")?;
    Ok((File::from(pty.master), pty.slave))
}

fn pipe() -> Result<(File, OwnedFd)> {
    let (reader, writer) = std::io::pipe().context("open a pipe")?;
    Ok((File::from(OwnedFd::from(reader)), writer.into()))
}

/// Ends tracer as an operator does, and waits for all its output.
fn end((mut printer, echo): (Child, JoinHandle<()>)) -> Result<()> {
    kill(Pid::from_raw(printer.id().cast_signed()), Signal::SIGINT)?;
    printer.wait()?;
    let _ = echo.join();
    Ok(())
}

/// Prints each fault with its expected cause, and whether tracer named it.
fn compare(shown: &[(Case, Attempt)], records: &[Record]) -> ExitCode {
    println!("\n{:26} {:62} {:30} as named", "pod", "what was made", "cause");
    let mut unnamed = 0;
    for (case, attempt) in shown {
        let cause = case.cause.map_or("-", Cause::name);
        let standing = match unmet(records, attempt) {
            None if matches!(attempt.claim, Claim::Perhaps(_)) => "not needed yet".to_owned(),
            None => "yes".to_owned(),
            Some(why) => {
                unnamed += 1;
                format!("NO: {why}")
            }
        };
        println!("{:26} {:62} {cause:30} {standing}", case.pod, case.made);
    }
    println!("\n{} attempts, {unnamed} not as named", shown.len());
    ExitCode::from(u8::from(unnamed > 0))
}

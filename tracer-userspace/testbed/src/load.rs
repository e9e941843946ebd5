//! Makes short connections as fast as possible: connect, one byte in each direction, close. No request stays without an
//! answer. It is the untracked client of scenarios, and measures the cost of the hooks; `--comm kubelet` makes it a
//! prober.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::probe::{Ending, Kind, ProbeRequest, probe};
use super::proc::rename;
use anyhow::{Context, Result, bail};
use clap::Parser;
use nix::sys::resource::{UsageWho, getrusage};

/// Makes short connections, and prints what they cost: at the end, and after each line of stdin.
#[derive(Debug, Parser)]
pub struct Load {
    /// Threads that connect.
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// For how long.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Pause after each connection.
    #[arg(long, default_value_t = 0)]
    pause_ms: u64,
    /// Name of the process.
    #[arg(long)]
    comm: Option<String>,
    /// Connect to this address, and ignore failures. By default each thread has its own listener on 127.0.0.1, because
    /// source ports in TIME_WAIT count for each destination separately. It serves that itself, so nothing waits for
    /// another thread.
    #[arg(long)]
    target: Option<SocketAddr>,
    /// Connect where nobody listens, which allows several times as many connections per second.
    #[arg(long, conflicts_with = "target")]
    refused: bool,
    /// Instead: one HTTPS request to this address.
    #[arg(long)]
    https: Option<SocketAddr>,
}

/// Makes the connections, and prints what they cost as one line of JSON.
pub fn run(args: &Load) -> Result<()> {
    if let Some(name) = &args.comm {
        rename(name)?;
    }
    if let Some(dst) = args.https {
        return https(dst);
    }
    let targets: Vec<Target> = (0..args.threads).map(|_| target(args)).collect::<Result<_>>()?;
    let (begun, made) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let so_far = Arc::clone(&made);
    thread::spawn(move || {
        for _line in std::io::stdin().lines().map_while(Result::ok) {
            print(begun, &so_far)?;
        }
        anyhow::Ok(())
    });
    hammer(args, &targets, &made);
    print(begun, &made)
}

fn print(begun: Instant, made: &AtomicU64) -> Result<()> {
    let (seconds, made, cpu) = (begun.elapsed().as_secs_f64(), made.load(Ordering::Relaxed), cpu_seconds()?);
    println!("{}", serde_json::json!({"connections": made, "seconds": seconds, "cpu_s": cpu}));
    Ok(())
}

fn https(dst: SocketAddr) -> Result<()> {
    let outcome = probe(&ProbeRequest::new(Kind::Https, dst, Duration::from_secs(60)));
    if outcome.ending != Ending::Ok {
        bail!("https {dst}: {outcome:?}");
    }
    Ok(())
}

/// The target of one thread, and its listener if the thread serves it.
type Target = (SocketAddr, Option<TcpListener>);

fn target(args: &Load) -> Result<Target> {
    if let Some(other) = args.target {
        return Ok((other, None));
    }
    if args.refused {
        return Ok(((Ipv4Addr::LOCALHOST, 1).into(), None));
    }
    let listener = TcpListener::bind("127.0.0.1:0").context("listen on 127.0.0.1")?;
    Ok((listener.local_addr()?, Some(listener)))
}

fn hammer(args: &Load, targets: &[Target], made: &AtomicU64) {
    let end = Instant::now() + Duration::from_secs_f64(args.seconds);
    let pause = Duration::from_millis(args.pause_ms);
    thread::scope(|scope| {
        for (dst, listener) in targets {
            scope.spawn(move || {
                while Instant::now() < end {
                    let is_made = if args.refused { is_refused(*dst) } else { once(*dst, listener.as_ref()).is_ok() };
                    made.fetch_add(u64::from(is_made), Ordering::Relaxed);
                    thread::sleep(pause);
                }
            });
        }
    });
}

/// CPU time of this process. Unlike the rate, it hardly depends on other load of the machine.
fn cpu_seconds() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// One byte in each direction. The client closes first.
fn once(dst: SocketAddr, listener: Option<&TcpListener>) -> std::io::Result<()> {
    let mut client = TcpStream::connect_timeout(&dst, Duration::from_millis(50))?;
    client.write_all(b"x")?;
    let Some(listener) = listener else { return Ok(()) };
    let (mut server, _) = listener.accept()?;
    server.read_exact(&mut [0])?;
    server.write_all(b"y")?;
    client.read_exact(&mut [0])?;
    drop(client);
    let _end = server.read(&mut [0])?;
    Ok(())
}

fn is_refused(dst: SocketAddr) -> bool {
    TcpStream::connect(dst).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

//! `cargo xtask e2e`: tests tracer with a real kubelet. It creates pods with failing probes in the cluster of
//! KUBECONFIG, on this node, and compares each verdict with the expected cause. tracer is a process of this node, or a
//! pod: with `--containerd`, it tests each DaemonSet of `deploy/`.

mod cases;
mod cluster;
mod daemonset;
mod node;
mod watch;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};

use self::cases::{CASES, Case};
use self::cluster::Cluster;
use self::watch::{CausesByPod, Tracer};
use crate::sh;

/// Where and with what.
#[derive(clap::Args)]
pub(crate) struct E2eArgs {
    /// The cluster [default: KUBECONFIG]
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: PathBuf,
    /// The node that this machine is
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node: String,
    /// An image with busybox, that the node has or can pull
    #[arg(long, default_value = "busybox:1", value_name = "IMAGE")]
    image: String,
    /// kubectl
    #[arg(long, default_value = "kubectl", value_name = "PROGRAM")]
    kubectl: PathBuf,
    /// The tracer under test [default: the release build, which is made]
    #[arg(long, value_name = "PROGRAM")]
    tracer: Option<PathBuf>,
    /// Only cases with this prefix
    #[arg(long, value_name = "PREFIX")]
    only: Option<String>,
    /// tracer as a pod: load its image into the containerd of this socket, apply the manifests of deploy/
    #[arg(long, value_name = "SOCKET", conflicts_with = "tracer")]
    containerd: Option<PathBuf>,
    /// ctr
    #[arg(long, default_value = "ctr", value_name = "PROGRAM")]
    ctr: PathBuf,
    /// The image, as `cargo xtask image` made it [default: it is made, of an optimised binary]
    #[arg(long, value_name = "FILE", requires = "containerd")]
    archive: Option<PathBuf>,
    /// Only manifests with this prefix
    #[arg(long, value_name = "PREFIX", requires = "containerd")]
    manifest: Option<String>,
    /// A command of the shell that restarts a part of the node, run while probes fail; repeatable
    #[arg(long, value_name = "COMMAND", requires = "containerd")]
    disturb: Vec<String>,
    /// Seconds until every verdict must be there
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    patience: u64,
}

pub(crate) fn run(args: &E2eArgs) -> Result<()> {
    sh::need_root("e2e loads eBPF programs and changes rules of this node")?;
    let cluster = Cluster::new(&args.kubectl, &args.kubeconfig, &args.node, &args.image)?;
    let wanted = |case: &&Case| args.only.as_ref().is_none_or(|only| case.name.starts_with(only.as_str()));
    let cases: Vec<&Case> = CASES.iter().filter(wanted).collect();
    if cases.is_empty() {
        bail!("no case begins with {:?}", args.only.as_deref().unwrap_or_default());
    }
    if let Some(socket) = &args.containerd {
        return daemonset::play(args, socket, &cluster, &cases);
    }
    let tracer = match &args.tracer {
        Some(program) => program.clone(),
        None => {
            crate::build::release()?;
            sh::release_bin("tracer")
        }
    };
    let reported =
        sh::step(&format!("{} pods with failing probes", cases.len()), || play(args, &tracer, &cluster, &cases))?;
    report(&cases, &reported)
}

/// Runs tracer while the probes fail. Returns the reported causes by pod.
fn play(args: &E2eArgs, tracer: &Path, cluster: &Cluster, cases: &[&Case]) -> Result<CausesByPod> {
    let namespace = cluster.namespace()?;
    let mut tracer = Tracer::start(tracer, &args.kubeconfig, &args.node, &namespace.name)?;
    for case in cases {
        cluster.create(&namespace.name, case)?;
    }
    let addresses = cluster.addresses(&namespace.name, Duration::from_secs(args.patience))?;
    let _made = node::break_paths(cases, &addresses)?;
    let done = |reported: &CausesByPod| {
        cases.iter().all(|case| reported.get(case.name).is_some_and(|causes| case.matches(causes)))
    };
    tracer.wait(Duration::from_secs(args.patience), done);
    tracer.stop()
}

fn report(cases: &[&Case], reported: &CausesByPod) -> Result<()> {
    let mut failed = 0;
    for case in cases {
        let causes = reported.get(case.name).cloned().unwrap_or_default();
        let passed = case.matches(&causes);
        failed += u32::from(!passed);
        println!(
            "{:5} {:18} {:26} reported: {}",
            if passed { "pass" } else { "FAIL" },
            case.name,
            case.causes.join(" or "),
            causes.join(", ")
        );
    }
    println!("{} passed, {failed} failed", cases.len() as u32 - failed);
    if failed > 0 {
        bail!("{failed} case(s) did not get the expected cause");
    }
    Ok(())
}

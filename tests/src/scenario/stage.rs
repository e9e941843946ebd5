//! The stage of one scenario: a node, its prober, and the list of what was done to each attempt.

use std::net::SocketAddr;

use anyhow::{Result, bail};
use tracer::classify::label::Label;
use tracer::record::Outcome as Said;

use crate::check::{Attempt, Claim, Expected, Suspect};
use crate::dial::{Dial, Ending, Kind, Outcome};
use crate::net::Netns;
use crate::options::{Options, boot_ns};
use crate::prober::{Prober, shown};
use crate::proc::Proc;
use crate::world::{Family, Pod, World};

/// Where one scenario plays.
pub struct Stage<'a> {
    /// Settings.
    pub options: &'a Options,
    /// The node.
    pub world: &'a mut World,
    /// The prober on it.
    pub prober: &'a mut Prober,
    /// The label of the scenario.
    pub label: Option<Label>,
    /// Its address family.
    pub family: Family,
    /// Lets the tracer begin to watch; nothing happens if it does already.
    pub watch: &'a mut dyn FnMut() -> Result<()>,
    /// Who must be named by every verdict from now on.
    pub suspect: Option<Suspect>,
    /// What was done.
    pub attempts: Vec<Attempt>,
    /// Attempts to these were healthy, too many to list.
    pub quiet: Vec<Attempt>,
    /// Keeps helpers of the scenario alive.
    pub helpers: Vec<Proc>,
}

impl Stage<'_> {
    /// A pod with a server, and the address of `port` on it.
    pub fn serving(&mut self, mode: &str, port: u16) -> Result<SocketAddr> {
        let pod = self.world.pod()?;
        pod.serve(self.options, &[mode, &format!("[::]:{port}")])?;
        Ok(pod.addr(self.family, port))
    }

    /// A pod without a server.
    pub fn idle(&mut self) -> Result<&mut Pod> {
        self.world.pod()
    }

    /// The namespace of the pod with that address.
    pub fn inside(&mut self, addr: SocketAddr) -> Result<&Netns> {
        let index = match addr.ip() {
            std::net::IpAddr::V4(ip) => u16::from(ip.octets()[3]),
            std::net::IpAddr::V6(ip) => ip.segments()[7],
        };
        Ok(&self.world.pod_at(index)?.ns)
    }

    /// An attempt that must fail this way and get the scenario's label.
    pub fn fails(&mut self, kind: Kind, dst: SocketAddr, how: Ending) -> Result<()> {
        let Some(label) = self.label else { bail!("a scenario without label has a failing attempt") };
        let claim = self.verdict(label, Said::Failure);
        self.attempt(kind, dst, how, claim)
    }

    /// An attempt that must succeed and get no verdict.
    pub fn succeeds(&mut self, kind: Kind, dst: SocketAddr) -> Result<()> {
        self.attempt(kind, dst, Ending::Ok, Claim::Nothing)
    }

    /// The verdict that is due.
    #[must_use]
    pub fn verdict(&self, label: Label, outcome: Said) -> Claim {
        Claim::Verdict(Expected { label, outcome, probe: true, culprit: self.suspect.clone() })
    }

    /// Makes an attempt, which must end as said.
    pub fn attempt(&mut self, kind: Kind, dst: SocketAddr, how: Ending, claim: Claim) -> Result<()> {
        let dial = Dial::new(kind, dst, self.options.probe_timeout);
        let listed = self.listed(dst, claim)?;
        let outcome = self.prober.dial(dial)?;
        expect(&outcome, how)?;
        self.attempts.push(Attempt { src: outcome.src, ..listed });
        Ok(())
    }

    /// Many healthy attempts at once, none of which may get a verdict.
    pub fn crowd(&mut self, kind: Kind, dst: SocketAddr, count: u32, threads: u32) -> Result<()> {
        let timeout = self.options.probe_timeout.max(std::time::Duration::from_secs(5));
        self.quiet.push(self.listed(dst, Claim::Nothing)?);
        let all = self.prober.crowd(Dial::new(kind, dst, timeout), count, threads)?;
        if all.failed > 0 {
            bail!("{} of {count} attempts failed, one of them: {:?}", all.failed, all.example);
        }
        Ok(())
    }

    fn listed(&self, dst: SocketAddr, claim: Claim) -> Result<Attempt> {
        Ok(Attempt { src: None, dst, since_boot_ns: boot_ns()?, netns: self.world.node.inum(), claim })
    }
}

/// The prober must have seen what the failure gives.
fn expect(outcome: &Outcome, how: Ending) -> Result<()> {
    if outcome.ending != how {
        let (src, dst, error) = (shown(outcome.src), outcome.dst, outcome.error.as_deref().unwrap_or("-"));
        bail!(
            "prober {src} -> {dst}: expected {how:?}, got {:?} after {:.0} ms ({error})",
            outcome.ending,
            outcome.elapsed_ms
        );
    }
    Ok(())
}

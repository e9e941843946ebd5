//! Asks again and again: what is well every 20 seconds, what fails after a while that grows. An outage is told once.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::ask::{Answer, Asker};
use super::counters::{Counters, Reading};
use super::credentials::Credentials;
use super::own_files::Kubelet;
use super::trouble::Trouble;
use super::trust::Trust;
use super::{KubeletApiConfig, State, View};
use crate::cluster::{Asked, Cluster, Failure, Items, Lines, Pace, part};
use crate::files::{api, pod_of};
use tracer_model::event::{Fact, Pod};
use tracer_node::clock;

/// Where the kubelet has its pods.
pub(super) const PODS: &str = "/pods";
/// And its counters of probes.
const COUNTS: &str = "/metrics/probes";
/// Pods that are kept; a node holds 250 by design.
const MAX_PODS: usize = 10_000;

/// How often it is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// After a good answer; up to a tenth more, at random.
    pub(super) every: Duration,
    /// After a refusal that lasts: the kubelet asks the API server each time.
    pub(super) refused: Duration,
    /// After other failures, and how long an answer may take.
    pub(super) pace: Pace,
}

impl Default for Times {
    fn default() -> Self {
        let pace = Pace { answer: Duration::from_secs(10), ..Pace::default() };
        Self { every: Duration::from_secs(20), refused: Duration::from_secs(300), pace }
    }
}

/// One thing that is asked, and when next.
#[derive(Debug)]
struct Errand {
    path: &'static str,
    due: Instant,
    /// Failures in a row.
    failures: u32,
}

/// Asks the kubelet.
pub(super) struct Poller {
    config: KubeletApiConfig,
    cluster: Option<Cluster>,
    times: Times,
    view: watch::Sender<View>,
    tx: Sender<Fact>,
    credentials: Option<Credentials>,
    /// Kept until something goes wrong: to find the kubelet all processes are looked at.
    asker: Option<Asker>,
    counters: Counters,
}

impl Poller {
    pub(super) fn new(
        config: KubeletApiConfig,
        cluster: Option<Cluster>,
        times: Times,
        view: watch::Sender<View>,
        tx: Sender<Fact>,
    ) -> Self {
        let counters = Counters::default();
        Self { config, cluster, times, view, tx, credentials: None, asker: None, counters }
    }

    /// Until nobody wants to know any more. `first`: everything was asked once.
    pub(super) async fn run(mut self, first: SyncSender<()>) {
        let (view, tx) = (self.view.clone(), self.tx.clone());
        tokio::select! {
            () = self.ask_for_ever(first) => {}
            () = view.closed() => {}
            () = tx.closed() => {}
        }
    }

    async fn ask_for_ever(&mut self, first: SyncSender<()>) {
        let now = Instant::now();
        let paths = [Some(COUNTS), self.config.pods.then_some(PODS)];
        let mut errands: Vec<Errand> =
            paths.into_iter().flatten().map(|path| Errand { path, due: now, failures: 0 }).collect();
        loop {
            for errand in &mut errands {
                if errand.due <= Instant::now() {
                    let wait = self.ask(errand).await;
                    errand.due = Instant::now() + wait;
                }
            }
            let _ = first.try_send(());
            let Some(due) = errands.iter().map(|it| it.due).min() else { return };
            sleep_until(due).await;
        }
    }

    /// Asks once; how long to wait before the next time.
    async fn ask(&mut self, errand: &mut Errand) -> Duration {
        if errand.path == PODS && self.is_listed_elsewhere() {
            self.forget_pods();
            return self.times.every + part(self.times.every / 10);
        }
        let known = self.asker.is_some();
        let mut end = self.answer_to(errand.path).await;
        if known && end.as_ref().is_err_and(Trouble::may_be_of_another) {
            // It may have started again, as another process with another certificate.
            end = self.answer_to(errand.path).await;
        }
        match end {
            Ok(()) => {
                errand.failures = 0;
                self.answers(errand.path);
                self.times.every + part(self.times.every / 10)
            }
            Err(trouble) => {
                errand.failures = errand.failures.saturating_add(1);
                self.fails(errand.path, &trouble);
                let wait = self.times.pace.after(errand.failures, trouble.after());
                if trouble.lasts() { wait.max(self.times.refused + part(self.times.refused)) } else { wait }
            }
        }
    }

    /// The cluster API follows this node's pods: it is the one that is believed.
    fn is_listed_elsewhere(&self) -> bool {
        self.cluster.as_ref().is_some_and(Cluster::follows_pods)
    }

    async fn answer_to(&mut self, path: &'static str) -> Result<(), Trouble> {
        let asked = clock::boot_ns();
        let end = match self.open(path).await {
            Ok(answer) if path == PODS => self.read_pods(answer).await,
            Ok(answer) => self.read_counts(answer, asked).await,
            Err(trouble) => Err(trouble),
        };
        if end.is_err() {
            (self.asker, self.credentials) = (None, None);
        }
        end
    }

    async fn open(&mut self, path: &'static str) -> Result<Answer, Trouble> {
        let credentials = match self.credentials.take() {
            Some(credentials) => credentials,
            None => Credentials::of(self.config.access.as_ref()).await?,
        };
        let asker = match self.asker.take() {
            Some(asker) => asker,
            None => asker(&self.config, &credentials)?,
        };
        let token = credentials.token()?;
        let resource = if path == PODS { "nodes/pods" } else { "nodes/metrics" };
        let asked = Asked { verb: "get", resource, group: "", streaming: false };
        let answer = asker.get(path, token.as_deref(), asked, self.times.pace.answer).await;
        (self.credentials, self.asker) = (Some(credentials), Some(asker));
        answer
    }

    async fn read_counts(&mut self, mut answer: Answer, asked: u64) -> Result<(), Trouble> {
        let (mut reading, mut lines) = (Reading::default(), Lines::default());
        while let Some(piece) = answer.next().await? {
            lines.feed(&piece, |line| reading.line(line))?;
        }
        // The last line may lack its end.
        lines.feed(b"\n", |line| reading.line(line))?;
        let told = self.counters.take(reading, asked, clock::boot_ns());
        if let Some(counts) = told {
            // A receiver that is gone ends the run.
            let _ = self.tx.send(Fact::ProbeCounts(Box::new(counts))).await;
        }
        Ok(())
    }

    async fn read_pods(&mut self, mut answer: Answer) -> Result<(), Trouble> {
        let mut list = PodList::default();
        while let Some(piece) = answer.next().await? {
            list.feed(&piece)?;
        }
        self.show(list.end()?);
        Ok(())
    }

    fn show(&self, pods: Vec<Pod>) {
        self.view.send_if_modified(|view| {
            let news = view.pods.as_ref() != Some(&pods);
            view.pods = Some(pods);
            news
        });
    }

    /// The other list takes their place.
    fn forget_pods(&self) {
        self.view.send_if_modified(|view| {
            view.states.remove(PODS);
            view.pods.take().is_some()
        });
    }

    fn answers(&self, path: &'static str) {
        let mut back = false;
        self.view.send_if_modified(|view| {
            let before = view.states.insert(path, State::Answering);
            back = matches!(before, Some(State::Failing { .. }));
            false
        });
        if back {
            tracing::info!("kubelet API https://{}{path} answers again", self.config.endpoint.authority());
        }
    }

    /// Said once for both, and again if it becomes another matter: of permission, of trust.
    fn fails(&self, path: &'static str, trouble: &Trouble) {
        let (text, mut told) = (trouble.to_string(), false);
        let outage = trouble.is_outage();
        let is_told = |state: &State| matches!(state, State::Failing { text: before, outage: was } if *before == text || outage && *was);
        self.view.send_if_modified(|view| {
            let fails_already = matches!(view.states.get(path), Some(State::Failing { .. }));
            told = view.states.values().any(is_told) || matches!(trouble, Trouble::Api(_)) && fails_already;
            view.states.insert(path, State::Failing { text: text.clone(), outage });
            false
        });
        if !told {
            let lost =
                if path == PODS { "its pods known so far stay" } else { "failed probes are not counted meanwhile" };
            tracing::warn!("kubelet API https://{}{path} {text}; {lost}", self.config.endpoint.authority());
        }
    }
}

/// A list of pods, while it arrives.
#[derive(Default)]
pub(super) struct PodList {
    items: Items,
    pods: Vec<Pod>,
    skipped: Option<String>,
}

impl PodList {
    pub(super) fn feed(&mut self, piece: &[u8]) -> Result<(), Failure> {
        self.items.feed(piece, |item| {
            match serde_json::from_slice::<api::Pod>(item) {
                Ok(pod) if self.pods.len() < MAX_PODS => self.pods.push(pod_of(pod)),
                Ok(_) => {}
                Err(error) => self.skipped = Some(error.to_string()),
            }
            Ok(())
        })
    }

    pub(super) fn end(self) -> Result<Vec<Pod>, Failure> {
        let kind = serde_json::from_slice::<Shell>(self.items.shell()?).ok().and_then(|shell| shell.kind);
        if kind.as_deref() != Some("PodList") {
            return Err(Failure::Garbage("not a list of pods".into()));
        }
        if let Some(error) = self.skipped {
            tracing::debug!("kubelet API: one of the pods is left out: {error}");
        }
        Ok(self.pods)
    }
}

/// A list without its items.
#[derive(Deserialize)]
struct Shell {
    kind: Option<String>,
}

/// Looks the kubelet up, and whom to trust.
fn asker(config: &KubeletApiConfig, credentials: &Credentials) -> Result<Asker, Trouble> {
    let kubelet = Kubelet::find(&config.probers);
    let host = config.endpoint.host.as_str();
    // The authority may have signed for the loopback of every node.
    let named = (!is_loopback(host)).then_some(host);
    let mut trust = Trust::of(named.into_iter().chain([config.node_name.as_str()]));
    trust.add_kubelet(kubelet.as_ref());
    config.ca.iter().for_each(|path| trust.add_file(path));
    credentials.add_authority(&mut trust);
    let tried = trust.tried();
    let tls = Arc::new(credentials.tls(trust)?);
    Ok(Asker { endpoint: config.endpoint.clone(), tls, tried })
}

fn is_loopback(host: &str) -> bool {
    host.parse::<IpAddr>().map_or(host == "localhost", |addr| addr.is_loopback())
}

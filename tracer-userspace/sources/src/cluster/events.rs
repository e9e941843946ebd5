//! Events of this node's kubelet in chosen namespaces: see [`Watched::selector`] below, and docs/on-a-cluster.md for the
//! load.
//!
//! Only Events from now on matter: older ones are not read, and after a lost position the watch begins again.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::View;
use super::objects::Watched;
use crate::files::api::{self, Metadata};
use crate::kubelet::KubeletEvent;
use tracer_model::event::{ObservationKind, PodRef};
use tracer_node::clock;

/// Longest message kept, bytes.
const MESSAGE_MAX: usize = 1024;
/// An Event that is reported so many seconds after it was made is too old.
const STALE_S: i64 = 60;
/// An Event that was made so many seconds after now is from before the clock was set back, and may be hours old.
const AHEAD_S: i64 = 2;
/// The reasons of the Events to follow.
const REASONS: [&str; 3] = ["Unhealthy", "FailedCreatePodSandBox", "NetworkNotReady"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespace {
    All,
    Named(String),
}

impl Namespace {
    /// The name of its Events, for people.
    pub(super) fn events(&self) -> String {
        match self {
            Self::All => "events".to_owned(),
            Self::Named(name) => format!("events of namespace {name}"),
        }
    }

    pub(super) fn name(&self) -> Option<String> {
        match self {
            Self::All => None,
            Self::Named(name) => Some(name.clone()),
        }
    }
}

impl Watched for api::Event {
    type Kept = KubeletEvent;
    const RESOURCE: &'static str = "events";
    const FROM_NOW: bool = true;

    /// The server can select by component, kind, type and reason (one reason, or all but some), not by node. So it
    /// looks at each Event of the namespaces for each node. This leaves out the most frequent reasons.
    fn selector(_node: &str) -> String {
        let left_out = ["BackOff", "Failed", "FailedMount"].map(|reason| format!("%2Creason!%3D{reason}")).concat();
        format!("source%3Dkubelet%2Ctype%3DWarning%2CinvolvedObject.kind%3DPod{left_out}")
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Only Events of this node's kubelet.
    fn keep(self, node: &str) -> Option<KubeletEvent> {
        let host = self.source.host.as_ref().or(self.reporting_instance.as_ref());
        let is_ours = host.is_some_and(|host| host == node) && self.involved_object.kind == "Pod";
        if !is_ours || !REASONS.contains(&self.reason.as_str()) {
            return None;
        }
        let last_s = self.last_time()?.as_second();
        let count = self.count.max(self.series.count).max(1).unsigned_abs();
        let about = self.involved_object;
        let container = about.field_path.as_deref().and_then(container_of).map(str::to_owned);
        let pod = PodRef { namespace: about.namespace, name: about.name, uid: about.uid };
        let mut message = self.message;
        message.truncate(message.floor_char_boundary(MESSAGE_MAX));
        Some(KubeletEvent { uid: self.metadata.uid?, pod, container, reason: self.reason, message, count, last_s })
    }

    fn show(view: &mut View, of: &str, all: Vec<KubeletEvent>) {
        view.events.insert(of.to_owned(), all);
    }
}

impl api::Event {
    /// The time of its last occurrence, in whichever field this kind of Event has it.
    fn last_time(&self) -> Option<Timestamp> {
        let times = [&self.series.last_observed_time, &self.last_timestamp, &self.event_time];
        times.into_iter().flatten().find_map(|text| text.parse().ok())
    }
}

/// `spec.containers{name}`, `spec.initContainers{name}`, `spec.ephemeralContainers{name}`.
fn container_of(field_path: &str) -> Option<&str> {
    let (place, name) = field_path.strip_suffix('}')?.split_once('{')?;
    place.ends_with("ontainers").then_some(name)
}

#[derive(Debug, Default)]
pub(crate) struct SentEvents {
    last: BTreeMap<String, (u32, i64)>,
}

impl SentEvents {
    pub(crate) fn new_of(&mut self, view: &View) -> Vec<ObservationKind> {
        let to_wall_ns = clock::boot_to_wall_ns();
        let wall_ns = i64::try_from(clock::boot_ns()).unwrap_or(i64::MAX).saturating_add(to_wall_ns);
        let events = self.changed(view, wall_ns / 1_000_000_000);
        events.iter().filter_map(|event| event.kind(to_wall_ns)).collect()
    }

    /// The Events that are new or were counted again, and are not too old.
    fn changed(&mut self, view: &View, now_s: i64) -> Vec<KubeletEvent> {
        let all = || view.events.values().flatten();
        let stamp = |event: &KubeletEvent| (event.count, event.last_s);
        let is_new = |event: &&KubeletEvent| {
            let age_s = now_s.saturating_sub(event.last_s);
            self.last.get(&event.uid) != Some(&stamp(event)) && (-AHEAD_S..=STALE_S).contains(&age_s)
        };
        let mut events: Vec<KubeletEvent> = all().filter(is_new).cloned().collect();
        events.sort_by_key(|event| event.last_s);
        self.last = all().map(|event| (event.uid.clone(), stamp(event))).collect();
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole Events of a kubelet 1.20.
    const SAMPLES: &str = include_str!("../../../testdata/kubelet-events.jsonl");

    fn samples() -> Vec<api::Event> {
        SAMPLES.lines().filter(|it| !it.is_empty()).map(|it| serde_json::from_str(it).expect("an Event")).collect()
    }

    #[test]
    fn real_events_are_read() {
        let kept: Vec<_> = samples().into_iter().filter_map(|it| it.keep("rig-node")).collect();
        assert_eq!(kept.len(), 2);
        let readiness = &kept[0];
        assert_eq!((readiness.count, readiness.container.as_deref()), (15, Some("http")));
        assert_eq!(readiness.pod.name.as_deref(), Some("target"));
        assert_eq!(readiness.last_s, "2026-11-20T16:05:44Z".parse::<Timestamp>().expect("time").as_second());
    }

    #[test]
    fn events_of_other_nodes_and_reasons_are_dropped() {
        assert!(samples().into_iter().all(|it| it.keep("rig-node-2").is_none()));
        let other = SAMPLES.replace("\"Unhealthy\"", "\"ProbeWarning\"");
        let first: api::Event = serde_json::from_str(other.lines().next().expect("a line")).expect("an Event");
        assert!(first.keep("rig-node").is_none());
    }

    #[test]
    fn an_event_is_new_once_for_each_count() {
        let mut view = View::default();
        let first = samples().remove(0).keep("rig-node").expect("ours");
        let again = KubeletEvent { count: 16, last_s: first.last_s + 2, ..first.clone() };
        let (mut sent, now) = (SentEvents::default(), first.last_s + 3);
        let mut reported = |event: &KubeletEvent, now| {
            view.events.insert("events".into(), vec![event.clone()]);
            sent.changed(&view, now).len()
        };
        assert_eq!((reported(&first, now), reported(&first, now), reported(&again, now)), (1, 0, 1));
        let late = KubeletEvent { count: 17, ..again };
        assert_eq!(reported(&late, now + 90), 0, "it came with an outage behind it");
        let ahead = KubeletEvent { count: 18, last_s: now + 7_200, ..late };
        assert_eq!(reported(&ahead, now), 0, "the clock was set back by two hours");
    }
}

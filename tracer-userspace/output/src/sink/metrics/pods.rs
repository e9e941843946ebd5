//! Pods as labels. Over time a node has many pods. At the limit, the series of the pod that was used longest ago are
//! removed, so that the memory of tracer and of the scraper is bounded.

use std::collections::{HashMap, HashSet};

use super::Labels;
use tracer_model::record::K8s;

/// Pods with series at once: a node runs at most 250, and some were replaced lately.
pub(super) const MAX: usize = 512;

/// Which family a series belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Of {
    Verdicts,
    Attempts,
}

/// Namespace and name.
type Pod = (String, String);

#[derive(Debug, Default)]
pub(super) struct Pods {
    /// The series of each pod, with the value of `uses` at its last use.
    series: HashMap<Pod, (u64, HashSet<(Of, Labels)>)>,
    uses: u64,
}

impl Pods {
    /// Adds the pod's labels. Gives the series that must be removed to make room.
    pub(super) fn label(&mut self, of: Of, labels: &mut Labels, k8s: Option<&K8s>) -> Vec<(Of, Labels)> {
        let part = |get: fn(&K8s) -> Option<&String>| k8s.and_then(get).cloned().unwrap_or_default();
        let pod = (part(|k| k.namespace.as_ref()), part(|k| k.pod_name.as_ref()));
        labels.push(("namespace", pod.0.clone().into()));
        labels.push(("pod", pod.1.clone().into()));
        self.uses += 1;
        let gone = if self.series.contains_key(&pod) { Vec::new() } else { self.make_room() };
        let (used, series) = self.series.entry(pod).or_default();
        *used = self.uses;
        series.insert((of, labels.clone()));
        gone
    }

    /// If there is no room for one more pod, removes the pod that was used longest ago.
    fn make_room(&mut self) -> Vec<(Of, Labels)> {
        if self.series.len() < MAX {
            return Vec::new();
        }
        let oldest = self.series.iter().min_by_key(|(_, (used, _))| *used).map(|(pod, _)| pod.clone());
        let gone = oldest.and_then(|pod| self.series.remove(&pod));
        gone.map(|(_, series)| series.into_iter().collect()).unwrap_or_default()
    }
}

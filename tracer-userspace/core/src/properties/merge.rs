//! Several recordings as one stream of one node: in the order of time, with what each says of the whole node joined.

use tracer_model::event::{Links, NodePorts, Observation, ObservationKind, Pods, Services};

/// The last lists of an instance. The core replaces such a list as a whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    pods: Option<Pods>,
    services: Option<Services>,
    ports: Vec<NodePorts>,
}

/// Joins streams; the first one's `start` is kept.
pub(crate) fn merge(streams: &[Vec<Observation>]) -> Vec<Observation> {
    let mut all: Vec<(usize, &Observation)> =
        streams.iter().enumerate().flat_map(|(n, stream)| stream.iter().map(move |o| (n, o))).collect();
    // Observations of one stream at the same time keep their order.
    all.sort_by_key(|(_, o)| o.time_boot_ns);
    let first = all.iter().find(|(_, o)| is_start(o)).map(|(_, o)| (*o).clone());
    let mut snapshots = vec![Snapshot::default(); streams.len()];
    let rest = all.into_iter().map(|(n, o)| {
        let kind = snapshot(&mut snapshots, n, &o.kind);
        Observation { time_boot_ns: o.time_boot_ns, kind }
    });
    first.into_iter().chain(rest.collect::<Vec<_>>()).collect()
}

pub(super) const fn is_start(observation: &Observation) -> bool {
    matches!(observation.kind, ObservationKind::Start(_))
}

/// A list of one instance must not replace that of another: all of them are joined.
pub(super) fn snapshot(all: &mut [Snapshot], n: usize, kind: &ObservationKind) -> ObservationKind {
    match kind {
        // One stream has one start. The start of another instance becomes the namespace of its prober.
        ObservationKind::Start(start) => start.node_netns.map_or(ObservationKind::Tick, |netns| {
            ObservationKind::Links(Links { netns, cookie: None, links: Vec::new() })
        }),
        ObservationKind::Pods(pods) => {
            all[n].pods = Some(pods.clone());
            ObservationKind::Pods(Pods {
                pods: all.iter().filter_map(|s| s.pods.as_ref()).flat_map(|p| p.pods.clone()).collect(),
            })
        }
        ObservationKind::Services(services) => {
            all[n].services = Some(services.clone());
            let services = all.iter().filter_map(|s| s.services.as_ref()).flat_map(|s| s.services.clone()).collect();
            ObservationKind::Services(Services { services })
        }
        ObservationKind::NodePorts(ports) => {
            all[n].ports.retain(|known| known.mode != ports.mode);
            all[n].ports.push(ports.clone());
            let of_mode = all.iter().flat_map(|s| &s.ports).filter(|p| p.mode == ports.mode);
            ObservationKind::NodePorts(NodePorts {
                ports: of_mode.flat_map(|p| p.ports.clone()).collect(),
                ..ports.clone()
            })
        }
        other => other.clone(),
    }
}

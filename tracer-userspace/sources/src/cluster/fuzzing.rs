//! Fuzz target of the cluster API's answers.

use std::convert::Infallible;

use kube::core::WatchEvent;

use super::endpoints::service_of;
use super::known::Known;
use super::objects::{Watched, list_of};
use crate::files::api;
use tracer_model::event::{ObservationKind, Pods, ServiceName};
use tracer_model::fuzzing::check_recorded;
use tracer_model::lines::Lines;

const NODE: &str = "rig-node";

/// An answer, read as a list and as a watch of each kind.
pub fn apiserver(bytes: &[u8]) {
    let lines = lines(bytes, bytes.len().max(1));
    for size in [1, 7] {
        assert_eq!(self::lines(bytes, size), lines, "in chunks of {size} bytes");
    }
    let (pods, events) = (known::<api::Pod>(bytes, &lines), known::<api::Event>(bytes, &lines));
    check_recorded(ObservationKind::Pods(Pods { pods: pods.all() }));
    let cart = ServiceName { namespace: "shop".into(), name: "cart".into() };
    if let Ok(service) = service_of(&cart, bytes) {
        assert!(service.ready_endpoints.is_some() && (service.namespace, service.name) == (cart.namespace, cart.name));
    }
    events.all().iter().filter_map(|it| it.kind(1_795_256_193_316_863_100)).for_each(check_recorded);
}

/// The objects of a list, or of the lines of a watch.
fn known<W: Watched>(list: &[u8], lines: &[Vec<u8>]) -> Known<W> {
    let mut known = Known::default();
    for object in list_of::<W>(list).into_iter().flat_map(|(_, objects)| objects).flatten() {
        known.put(object, NODE);
    }
    for line in lines {
        match serde_json::from_slice(line) {
            Ok(WatchEvent::Deleted(object)) => _ = known.remove(&object),
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => _ = known.put(object, NODE),
            Ok(WatchEvent::Bookmark(_) | WatchEvent::Error(_)) | Err(_) => {}
        }
    }
    known
}

fn lines(bytes: &[u8], size: usize) -> Vec<Vec<u8>> {
    let (mut lines, mut parts) = (Lines::new(bytes.len()), Vec::new());
    for chunk in bytes.chunks(size) {
        let Ok(()) = lines.feed(chunk, |line| {
            parts.extend(line.map(<[u8]>::to_vec));
            Ok::<_, Infallible>(())
        });
    }
    parts
}

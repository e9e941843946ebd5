//! Fuzz target of the cluster API's answers.

use super::failure::Failure;
use super::frames::{Items, Lines};
use super::known::Known;
use super::objects::{Head, Line, Mark, Watched};
use crate::files::{api, join};
use tracer_model::event::{Fact, Pods, Services};
use tracer_model::fuzzing::check_recorded;

const NODE: &str = "rig-node";

/// What a splitter gives of an answer: its parts, and how it ends.
type Cut = (Vec<Vec<u8>>, Result<Vec<u8>, Failure>);

/// An answer, read as a list and as a watch of each kind.
pub fn apiserver(bytes: &[u8]) {
    let whole = bytes.len().max(1);
    for cut in [items, lines] {
        let (parts, end) = cut(bytes, whole);
        assert!(parts.iter().map(Vec::len).sum::<usize>() <= bytes.len(), "more than was there");
        for size in [1, 7] {
            assert_eq!(cut(bytes, size), (parts.clone(), end.clone()), "in chunks of {size} bytes");
        }
        let (mut pods, mut services) = (Known::<api::Pod>::default(), Known::<api::Service>::default());
        let (mut slices, mut events) = (Known::<api::EndpointSlice>::default(), Known::<api::Event>::default());
        for part in parts {
            put(&part, &mut pods);
            put(&part, &mut services);
            put(&part, &mut slices);
            put(&part, &mut events);
            let _ = serde_json::from_slice::<Line<Mark>>(&part).map(|it| it.object.ends_the_list());
        }
        check_recorded(Fact::Pods(Pods { pods: pods.all() }));
        check_recorded(Fact::Services(Services { services: join(services.all(), Some(slices.all())) }));
        events.all().iter().filter_map(|it| it.fact(1_795_256_193_316_863_100)).for_each(check_recorded);
    }
}

/// An object by itself, or that of a line of a watch.
fn put<W: Watched>(json: &[u8], known: &mut Known<W>) {
    if let Ok(object) = serde_json::from_slice(json) {
        known.put(object, NODE);
    }
    let kind = serde_json::from_slice::<Head>(json).map(|head| head.kind);
    match (kind.as_deref(), serde_json::from_slice::<Line<W>>(json)) {
        (Ok("DELETED"), Ok(line)) => _ = known.remove(&line.object),
        (Ok(_), Ok(line)) => _ = known.put(line.object, NODE),
        _ => {}
    }
}

fn items(bytes: &[u8], size: usize) -> Cut {
    let (mut items, mut parts) = (Items::default(), Vec::new());
    let fed = bytes.chunks(size).try_for_each(|chunk| items.feed(chunk, |item| keep(&mut parts, item)));
    let end = fed.and_then(|()| items.shell().map(<[u8]>::to_vec));
    (parts, end)
}

fn lines(bytes: &[u8], size: usize) -> Cut {
    let (mut lines, mut parts) = (Lines::default(), Vec::new());
    let fed = bytes.chunks(size).try_for_each(|chunk| lines.feed(chunk, |line| keep(&mut parts, line)));
    (parts, fed.map(|()| Vec::new()))
}

#[expect(clippy::unnecessary_wraps, reason = "as the splitters call it")]
fn keep(parts: &mut Vec<Vec<u8>>, part: &[u8]) -> Result<(), Failure> {
    parts.push(part.to_vec());
    Ok(())
}

//! The known objects of one kind, reduced to what tracer needs.

use std::collections::BTreeMap;

use super::objects::Watched;
use crate::files::api::Metadata;

/// Many more than a node has: tracer is designed for 250 pods.
const MAX: usize = 50_000;

/// Objects by uid; those without one (some static pods) by namespace and name.
pub(super) struct Known<W: Watched> {
    objects: BTreeMap<String, W::Kept>,
}

impl<W: Watched> Default for Known<W> {
    fn default() -> Self {
        Self { objects: BTreeMap::new() }
    }
}

impl<W: Watched> Known<W> {
    /// Adds or replaces an object, and returns whether anything changed.
    pub(super) fn put(&mut self, object: W, node: &str) -> bool {
        let key = key(object.metadata());
        let Some(kept) = object.keep(node) else { return self.objects.remove(&key).is_some() };
        if self.objects.get(&key) == Some(&kept) || self.objects.len() >= MAX && !self.objects.contains_key(&key) {
            return false;
        }
        self.objects.insert(key, kept);
        true
    }

    pub(super) fn remove(&mut self, object: &W) -> bool {
        self.objects.remove(&key(object.metadata())).is_some()
    }

    pub(super) fn all(&self) -> Vec<W::Kept> {
        self.objects.values().cloned().collect()
    }
}

fn key(metadata: &Metadata) -> String {
    let Metadata { namespace, name, uid, .. } = metadata;
    let text = |it: &Option<String>| it.clone().unwrap_or_default();
    uid.clone().unwrap_or_else(|| format!("{}/{}", text(namespace), text(name)))
}

//! The kinds of objects that are followed: their paths, the selection, and what is kept of each object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::View;
use super::failure::Failure;
use crate::files::api::{self, Metadata};
use crate::files::pod_of;
use tracer_model::event::Pod;

/// A kind of the API that is followed.
pub(super) trait Watched: DeserializeOwned {
    /// An object, reduced to what tracer needs.
    type Kept: Clone + PartialEq;
    /// As RBAC writes it.
    const RESOURCE: &'static str;
    /// Whether only changes from now on matter: then nothing is listed.
    const FROM_NOW: bool = false;

    /// The field selector, with `=` and `,` percent-encoded.
    fn selector(node: &str) -> String;

    /// Its name, uid and version.
    fn metadata(&self) -> &Metadata;

    /// Reduces an object. `None` if it was not asked for.
    fn keep(self, node: &str) -> Option<Self::Kept>;

    /// Puts all known objects into the view. `of`: the name of the follower, if a kind has several.
    fn show(view: &mut View, of: &str, all: Vec<Self::Kept>);
}

impl Watched for api::Pod {
    type Kept = Pod;
    const RESOURCE: &'static str = "pods";

    fn selector(node: &str) -> String {
        format!("spec.nodeName%3D{}", percent_encoded(node))
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Checks the node again: a server that ignores the selector must not fill the memory.
    fn keep(self, node: &str) -> Option<Pod> {
        let here = self.spec.node_name.as_deref() == Some(node);
        here.then(|| pod_of(self))
    }

    fn show(view: &mut View, _of: &str, all: Vec<Pod>) {
        view.pods = all;
    }
}

#[derive(Deserialize)]
#[serde(bound = "W: DeserializeOwned")]
struct List<W> {
    metadata: ListMeta,
    /// `null` if there are none.
    items: Option<Vec<Item<W>>>,
}

/// Parses a list: its position, and each object or the error in it.
pub(super) fn list_of<W: DeserializeOwned>(
    bytes: &[u8],
) -> Result<(String, impl Iterator<Item = serde_json::Result<W>>), Failure> {
    let list: List<W> = serde_json::from_slice(bytes).map_err(garbage)?;
    let position = list.metadata.resource_version;
    let position = position.ok_or_else(|| Failure::Garbage("a list without `resourceVersion`".into()))?;
    Ok((position, list.items.into_iter().flatten().map(|item| item.0)))
}

pub(super) fn garbage(error: serde_json::Error) -> Failure {
    Failure::Garbage(error.to_string())
}

/// An object of a list, or the error in it.
struct Item<W>(serde_json::Result<W>);

impl<'de, W: DeserializeOwned> Deserialize<'de> for Item<W> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        Value::deserialize(input).map(|value| Self(W::deserialize(value)))
    }
}

/// Encodes all but letters, digits, `-`, `.`, `_` and `~` as `%XX`.
pub fn percent_encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encoded = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encoded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_name_cannot_widen_the_selector() {
        assert_eq!(api::Pod::selector("node-1.example"), "spec.nodeName%3Dnode-1.example");
        assert_eq!(api::Pod::selector("a&limit=1 b"), "spec.nodeName%3Da%26limit%3D1%20b");
    }
}

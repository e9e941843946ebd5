//! `finding` records: the results of checks of the node.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::remediation::Remediation;

/// The result of a check; a worse one is greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As it should be.
    Ok,
    /// It could not be read: nothing is known.
    #[default]
    Unknown,
    /// It may work now, but does harm in a case that the finding names.
    Warn,
    /// It does harm.
    Fail,
}

impl Status {
    pub const ALL: [Self; 4] = [Self::Ok, Self::Unknown, Self::Warn, Self::Fail];
}

display_as_serialized!(Status);

/// The body of a `finding` record.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FindingBody {
    /// The check.
    pub check: String,
    /// The result.
    pub status: Status,
    /// What was found; if the status is unknown, why it could not be read.
    pub observed: String,
    /// What should be found.
    pub expected: String,
    /// Why it matters.
    pub why: String,
    /// What fixes it now, or makes it readable; absent if nothing is to be done.
    pub remediation: Option<Remediation>,
    /// What keeps it fixed after a reboot.
    pub persist: Option<Remediation>,
    /// The capability that tracer lacked for reading it.
    pub needs: Option<String>,
    /// What was found, as numbers and names; durations and rates have their unit in the name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub fields: BTreeMap<String, Value>,
}

impl FindingBody {
    /// A finding with its status and without texts.
    pub fn new(check: impl Into<String>, status: Status) -> Self {
        Self { check: check.into(), status, ..Self::default() }
    }

    /// The finding is about one probe of one container, not about the node.
    pub fn is_of_a_probe(&self) -> bool {
        self.fields.contains_key("target") || self.fields.contains_key("counted")
    }
}

//! `finding` records: what a check of the node came to.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::record::Remediation;

/// How a check came out; the worse is the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As it should be.
    Ok,
    /// It could not be read: nothing is known.
    Unknown,
    /// It works now, or may; it will do harm in a case that is named.
    Warn,
    /// It does harm.
    Fail,
}

impl Status {
    pub const ALL: [Self; 4] = [Self::Ok, Self::Unknown, Self::Warn, Self::Fail];

    /// As records have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// The body of a `finding` record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FindingBody {
    /// The check.
    pub check: String,
    /// How it came out.
    pub status: Status,
    /// What was found; of an unknown one, why it could not be read.
    pub observed: String,
    /// What should be found.
    pub expected: String,
    /// Why it matters.
    pub why: String,
    /// What fixes it now, or makes it readable; absent if nothing is to be done.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub remediation: Option<Remediation>,
    /// What keeps it fixed after a reboot.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub persist: Option<Remediation>,
    /// The capability without which it could not be read.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub needs: Option<String>,
    /// What was found, in numbers; durations and rates carry their unit in the name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub fields: BTreeMap<String, Value>,
}

impl FindingBody {
    /// A check with its status, of which nothing is reported yet.
    pub fn new(check: impl Into<String>, status: Status) -> Self {
        Self {
            check: check.into(),
            status,
            observed: String::new(),
            expected: String::new(),
            why: String::new(),
            remediation: None,
            persist: None,
            needs: None,
            fields: BTreeMap::new(),
        }
    }

    /// It is about one probe of one container, and says nothing of the node.
    pub fn is_of_a_probe(&self) -> bool {
        self.fields.contains_key("target") || self.fields.contains_key("counted")
    }
}

//! The fix of a failure: a text, and commands to paste.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What to do about a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Remediation {
    /// One or two sentences.
    pub text: String,
    /// Commands to run, in this order; absent: no command helps.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub commands: Vec<Command>,
}

/// A command to paste. Words in capitals are placeholders for names that tracer does not know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Command {
    /// The line.
    pub run: String,
    /// Where it runs.
    #[serde(rename = "where")]
    pub place: Place,
}

/// Where a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// On this node, as root.
    Node,
    /// In the pod.
    Pod,
    /// On a machine with kubectl.
    Cluster,
}

display_as_serialized!(Place);

impl Place {
    /// The text before its commands. It names the node where the reader is not there.
    pub fn instruction(self, node: Option<&str>) -> String {
        match self {
            Self::Node => format!("run on the node{}:", node.map(|node| format!(" {node}")).unwrap_or_default()),
            Self::Pod => "run in the pod:".into(),
            Self::Cluster => "run in the cluster:".into(),
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Node, Self::Pod, Self::Cluster].into_iter().find(|place| place.to_string() == name)
    }
}

impl Command {
    pub fn on_node(run: impl Into<String>) -> Self {
        Self { run: run.into(), place: Place::Node }
    }

    pub fn in_pod(run: impl Into<String>) -> Self {
        Self { run: run.into(), place: Place::Pod }
    }

    pub fn in_cluster(run: impl Into<String>) -> Self {
        Self { run: run.into(), place: Place::Cluster }
    }
}

impl From<String> for Remediation {
    fn from(text: String) -> Self {
        Self { text, commands: Vec::new() }
    }
}

impl From<&str> for Remediation {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl Remediation {
    /// Adds commands after its own.
    #[must_use]
    pub fn run(mut self, commands: impl IntoIterator<Item = Command>) -> Self {
        for command in commands {
            if !self.commands.contains(&command) {
                self.commands.push(command);
            }
        }
        self
    }

    /// A text, and a command for the node.
    pub fn on_node(text: impl Into<String>, run: impl Into<String>) -> Self {
        Self { text: text.into(), commands: vec![Command::on_node(run)] }
    }

    /// With another text.
    #[must_use]
    pub fn reword(mut self, text: impl FnOnce(&str) -> String) -> Self {
        self.text = text(&self.text);
        self
    }

    /// This one, and then another: "… Otherwise: …".
    #[must_use]
    pub fn then(self, when: &str, other: Self) -> Self {
        self.reword(|text| format!("{text}. {when}: {}", other.text)).run(other.commands)
    }

    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.commands.is_empty()
    }
}

/// In one line, to compare and to search. People get each command on a line of its own, with its place.
impl std::fmt::Display for Remediation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = if self.commands.is_empty() { &self.text } else { self.text.trim_end_matches('.') };
        f.write_str(text)?;
        for (n, command) in self.commands.iter().enumerate() {
            write!(f, "{}{}", if n == 0 { ": " } else { "; " }, command.run)?;
        }
        Ok(())
    }
}

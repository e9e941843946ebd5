//! Nodes made of files, for the unit tests of the checks.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use super::view::View;
use super::{Check, Finding, Options};
use tracer_testing::Scratch;

pub(super) const FLANNEL: (&str, &str) =
    ("etc/cni/net.d/10-flannel.conflist", r#"{"name":"cbr0","plugins":[{"type":"flannel"},{"type":"portmap"}]}"#);

/// A node's files in a folder that is deleted at the end of the test.
pub(super) struct Tree(Scratch);

impl Tree {
    /// Writes files; each is a path and its content.
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        let root = Scratch::new();
        for (path, content) in files {
            let path = root.file(path, content);
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("mode");
        }
        Self(root)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.0.root().to_owned()
    }

    pub(super) fn view(&self) -> View {
        View::of_files(self.path(), Options::default())
    }

    /// The first finding of a check.
    pub(super) fn finding(&self, check: &Check) -> Finding {
        check.findings(&self.view()).remove(0)
    }
}

/// The first command of the fix, or its text if it has no command.
pub(super) fn fix(finding: &Finding) -> &str {
    let fix = finding.remediation.as_ref().expect("a fix");
    fix.commands.first().map_or(fix.text.as_str(), |command| command.run.as_str())
}

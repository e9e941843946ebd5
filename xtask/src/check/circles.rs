//! Checks that no files of a folder use each other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::sh::{self, regex};

/// Here each file answers one question, and may ask the others.
const FOLDERS: &[&str] = &["tracer-userspace/core/case/src", "tracer-userspace/core/classify/src/rules"];

/// The modules that each module uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// Fails if modules of one folder use each other in a circle.
pub(crate) fn check() -> Result<()> {
    for folder in FOLDERS {
        let circle = circles(uses(&sh::root().join(folder))?);
        ensure!(circle.is_empty(), "{folder}: these modules use each other in a circle: {circle:?}");
    }
    Ok(())
}

/// A module uses another one if its code, without tests, has the other's name before `::`.
fn uses(folder: &Path) -> Result<Uses> {
    let mut code = BTreeMap::<String, String>::new();
    for path in sources(folder)? {
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let module = path.strip_prefix(folder)?.with_extension("");
        let module = module.components().next().context("a file without a name")?.as_os_str().to_string_lossy();
        let code = code.entry(module.into_owned()).or_default();
        code.push_str(text.split("#[cfg(test)]").next().unwrap_or_default());
    }
    code.remove("lib");
    let name = regex(r"(?:^|[^:\w])(?:(?:crate|super|rules)::)*(\w+)::");
    let used = |text: &str| name.captures_iter(text).map(|found| found[1].to_owned()).collect::<BTreeSet<_>>();
    let names: BTreeSet<String> = code.keys().cloned().collect();
    let other = |module: &String, used: &BTreeSet<String>| {
        used.intersection(&names).filter(|it| *it != module).cloned().collect::<BTreeSet<_>>()
    };
    Ok(code.iter().map(|(module, text)| (module.clone(), other(module, &used(text)))).collect())
}

/// The files of a folder and of those in it, without files of tests.
fn sources(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut list = sh::command("git");
    list.args(["ls-files", "--cached", "--others", "--exclude-standard", "--"]).arg(folder);
    let files = sh::capture(&mut list)?;
    let paths = files.lines().map(|file| sh::root().join(file)).filter(|path| path.exists());
    Ok(paths.filter(|path| !path.ends_with("tests.rs")).collect())
}

/// What is left without the modules that use none of the others, or that none of the others uses.
fn circles(mut uses: Uses) -> Uses {
    loop {
        let used: BTreeSet<String> = uses.values().flatten().cloned().collect();
        let names: BTreeSet<String> = uses.keys().filter(|name| used.contains(*name)).cloned().collect();
        let next: Uses = (uses.iter())
            .filter(|(name, _)| names.contains(*name))
            .map(|(name, used)| (name.clone(), used.intersection(&names).cloned().collect()))
            .filter(|(_, used): &(_, BTreeSet<String>)| !used.is_empty())
            .collect();
        if next == uses {
            return uses;
        }
        uses = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_in_a_circle_is_left() {
        let uses = |pairs: &[(&str, &[&str])]| -> Uses {
            let set = |used: &[&str]| used.iter().map(|it| (*it).to_owned()).collect();
            pairs.iter().map(|(name, used)| ((*name).to_owned(), set(used))).collect()
        };
        assert!(circles(uses(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])])).is_empty());
        let circle = uses(&[("a", &["b"]), ("b", &["c"]), ("c", &["b", "d"]), ("d", &[])]);
        assert_eq!(circles(circle), uses(&[("b", &["c"]), ("c", &["b"])]));
    }
}

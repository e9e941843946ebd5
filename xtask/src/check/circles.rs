//! Checks that no files beside each other use each other in a circle. A module and those below it count as one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

use crate::sh::{self, regex};

/// `["rules", "router"]` for `src/rules/router.rs`.
type Module = Vec<String>;
/// The names that each name uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// Fails if modules of one folder use each other in a circle.
pub(crate) fn check() -> Result<()> {
    for (root, code) in crates()? {
        for (folder, uses) in uses_by_folder(&code) {
            let circle = circle(uses);
            let folder = root.join(folder.iter().collect::<PathBuf>());
            ensure!(circle.is_empty(), "{}: files use each other in a circle: {circle:?}", folder.display());
        }
    }
    Ok(())
}

/// The code of each module without its tests, by crate. The folder of a crate ends with `src`.
fn crates() -> Result<BTreeMap<PathBuf, BTreeMap<Module, String>>> {
    let mut list = sh::command("git");
    list.args(["ls-files", "--cached", "--others", "--exclude-standard", "--", "*.rs"]);
    let mut crates = BTreeMap::<_, BTreeMap<_, _>>::new();
    for file in sh::capture(&mut list)?.lines() {
        if file.ends_with("tests.rs") || file.contains("/tests/") {
            continue;
        }
        let Some(at) = file.find("src/").filter(|_| sh::root().join(file).exists()) else { continue };
        let (root, module) = file.split_at(at + "src/".len());
        let text = fs::read_to_string(sh::root().join(file)).with_context(|| format!("read {file}"))?;
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let module = module.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        crates.entry(PathBuf::from(root)).or_default().insert(module, regex("//.*").replace_all(text, "").into_owned());
    }
    Ok(crates)
}

/// For each folder of a crate: which of its modules use which.
fn uses_by_folder(code: &BTreeMap<Module, String>) -> BTreeMap<Module, Uses> {
    let mut folders = BTreeMap::<Module, Uses>::new();
    for (module, text) in code {
        for path in paths(text) {
            let path: Vec<&str> = path.split("::").collect();
            let Some(used) = resolve(module, &path, code) else { continue };
            // A module may use those below it, and those use what is in it.
            let same = module.iter().zip(&used).take_while(|(own, other)| own == other).count();
            if let (Some(own), Some(other)) = (module.get(same), used.get(same)) {
                let uses = folders.entry(module[..same].to_vec()).or_default();
                uses.entry(own.clone()).or_default().insert(other.clone());
            }
        }
    }
    folders
}

/// The module that a path names. A path that begins with a plain name can be one if all names of `super` are imported.
fn resolve(module: &Module, path: &[&str], code: &BTreeMap<Module, String>) -> Option<Module> {
    let supers = path.iter().take_while(|name| **name == "super").count();
    let base = match *path.first()? {
        "crate" => &[],
        "super" => &module[..module.len().saturating_sub(supers)],
        _ if code[module].contains("use super::*;") => &module[..module.len() - 1],
        _ => return None,
    };
    let skipped = if path[0] == "crate" { 1 } else { supers };
    let full: Module = base.iter().cloned().chain(path[skipped..].iter().map(|&name| name.to_owned())).collect();
    (1..=full.len()).rev().map(|length| full[..length].to_vec()).find(|found| code.contains_key(found))
}

/// The paths in a text, those of `use a::{b, c}` one by one.
fn paths(text: &str) -> Vec<String> {
    let plain = regex(r"\w+(?:::\w+)+").find_iter(text).map(|path| path.as_str().to_owned()).collect::<Vec<_>>();
    let trees = regex(r"\buse ([^;]+);").captures_iter(text).flat_map(|tree| expand("", &tree[1])).collect::<Vec<_>>();
    [plain, trees].concat()
}

/// The paths of a tree such as `a::{b, c::{d, e}}`.
fn expand(before: &str, tree: &str) -> Vec<String> {
    let Some((head, inner)) = tree.split_once('{') else { return vec![format!("{before}{tree}")] };
    let (before, inner) =
        (format!("{before}{}", head.trim()), inner.rsplit_once('}').map_or(inner, |(inner, _)| inner));
    let mut depth = 0;
    let branches = inner.split(|letter| {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        letter == ',' && depth == 0
    });
    branches.flat_map(|branch| expand(&before, branch.trim())).collect()
}

/// What is left without the modules that use none of the others, or that none of the others uses.
fn circle(mut uses: Uses) -> Uses {
    loop {
        let used: BTreeSet<String> = uses.values().flatten().cloned().collect();
        let next: Uses = (uses.iter())
            .filter(|(name, _)| used.contains(*name))
            .map(|(name, used)| (name.clone(), used.iter().filter(|it| uses.contains_key(*it)).cloned().collect()))
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

    fn circle_of(files: &[(&str, &str)]) -> Vec<String> {
        let module = |name: &str| name.split('/').map(str::to_owned).collect();
        let code = files.iter().map(|(name, text)| (module(name), (*text).to_owned())).collect();
        let folders = uses_by_folder(&code);
        folders.into_values().flat_map(circle).map(|(name, _)| name).collect()
    }

    #[test]
    fn files_that_use_each_other_are_found() {
        let circle = circle_of(&[
            ("a", "use crate::{b::c, d};"),
            ("b", "fn f() { super::d::g() }"),
            ("d", "use std::fmt;\nuse super::{e, a::{h, i}};"),
            ("e", ""),
        ]);
        assert_eq!(circle, ["a", "b", "d"]);
        assert_eq!(circle_of(&[("a/b", "use crate::a::c;"), ("a/c", "use super::*;\nfn f() { b::g() }")]), ["b", "c"]);
    }

    #[test]
    fn a_module_and_those_below_it_are_no_circle() {
        let files = [("a", "use self::b::c;\nuse crate::d;"), ("a/b", "use super::E;"), ("d", "use tokio::sync::a;")];
        assert!(circle_of(&files).is_empty());
    }
}

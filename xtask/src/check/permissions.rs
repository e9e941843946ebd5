//! Licences and bans: what `deny.toml` allows. `cargo deny` checks it where it is installed; building it takes longer
//! than all other checks together, so the same two lists are also checked here, over `cargo metadata`.

use std::fs;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::sh;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
}

/// Every crate may be used, under a licence that may be used.
pub(crate) fn check() -> Result<()> {
    let rules = fs::read_to_string(sh::root().join("deny.toml")).context("deny.toml")?;
    let (allowed, banned) = (list(&rules, "allow")?, list(&rules, "deny")?);
    let mut faults = Vec::new();
    let targets = list(&rules, "targets")?;
    for manifest in ["Cargo.toml", "tracer-ebpf/Cargo.toml"] {
        for package in packages(manifest, &targets)? {
            faults.extend(fault(&package, &allowed, &banned));
        }
    }
    if !faults.is_empty() {
        bail!("against deny.toml:\n  {}", faults.join("\n  "));
    }
    if sh::succeeds("cargo-deny", &["--version"]) {
        sh::run(&mut sh::cargo(&["deny", "--log-level", "error", "check", "licenses", "bans"]))?;
    }
    Ok(())
}

/// What is built for any of these.
fn packages(manifest: &str, targets: &[String]) -> Result<Vec<Package>> {
    let args = ["metadata", "--format-version", "1", "--locked", "--manifest-path", manifest];
    let platforms = targets.iter().flat_map(|target| ["--filter-platform", target]);
    let args: Vec<&str> = args.into_iter().chain(platforms).collect();
    let metadata: Metadata = serde_json::from_str(&sh::capture(&mut sh::cargo(&args))?)?;
    Ok(metadata.packages)
}

/// The strings of `name = [ ... ]`.
fn list(rules: &str, name: &str) -> Result<Vec<String>> {
    let begin = format!("\n{name} = [");
    let (_, rest) = rules.split_once(&begin).with_context(|| format!("deny.toml has no list `{name}`"))?;
    let (inside, _) = rest.split_once(']').with_context(|| format!("the list `{name}` in deny.toml has no end"))?;
    Ok(inside.split('"').skip(1).step_by(2).map(str::to_owned).collect())
}

fn fault(package: &Package, allowed: &[String], banned: &[String]) -> Option<String> {
    let Package { name, version, license } = package;
    let Some(license) = license else { return Some(format!("{name} {version} names no licence")) };
    if banned.contains(name) {
        return Some(format!("{name} {version} is banned"));
    }
    let words = words(license);
    let mut rest = words.as_slice();
    let ok = either(&mut rest, allowed) && rest.is_empty();
    (!ok).then(|| format!("{name} {version} is under {license}"))
}

/// The words of an SPDX expression; `WITH` and what it joins are one word, the old `/` means `OR`.
fn words(expression: &str) -> Vec<String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words: Vec<String> = Vec::new();
    for word in spaced.split_whitespace() {
        match words.last_mut() {
            Some(last) if word == "WITH" || last.ends_with(" WITH") => *last = format!("{last} {word}"),
            _ => words.push(word.to_owned()),
        }
    }
    words
}

fn either(words: &mut &[String], allowed: &[String]) -> bool {
    let mut ok = both(words, allowed);
    while take(words, "OR") {
        ok |= both(words, allowed);
    }
    ok
}

fn both(words: &mut &[String], allowed: &[String]) -> bool {
    let mut ok = one(words, allowed);
    while take(words, "AND") {
        ok &= one(words, allowed);
    }
    ok
}

fn one(words: &mut &[String], allowed: &[String]) -> bool {
    if take(words, "(") {
        let ok = either(words, allowed);
        return take(words, ")") && ok;
    }
    let Some((word, rest)) = words.split_first() else { return false };
    *words = rest;
    allowed.contains(word)
}

/// Goes past a word, if it is the next.
fn take(words: &mut &[String], word: &str) -> bool {
    match words.split_first() {
        Some((first, rest)) if first == word => {
            *words = rest;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(license: &str) -> bool {
        let allowed = ["MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
        let package = Package { name: "x".into(), version: "1".into(), license: Some(license.to_owned()) };
        fault(&package, &allowed, &["bad".to_owned()]).is_none()
    }

    #[test]
    fn one_way_to_comply_is_enough() {
        for fine in ["MIT", "GPL-2.0 OR MIT", "MIT/Apache-2.0", "(MIT OR X) AND Unicode-3.0"] {
            assert!(passes(fine), "{fine}");
        }
        assert!(passes("Apache-2.0 WITH LLVM-exception"));
        for wrong in ["GPL-2.0", "MIT AND GPL-2.0", "(MIT OR X) AND Y", "MIT )", ""] {
            assert!(!passes(wrong), "{wrong}");
        }
    }

    #[test]
    fn the_lists_are_read() {
        let rules = "[licenses]\nallow = [\n  \"MIT\", # comment\n  \"ISC\",\n]\n";
        assert_eq!(list(rules, "allow").ok(), Some(vec!["MIT".to_owned(), "ISC".to_owned()]));
        assert!(list(rules, "deny").is_err());
    }
}

//! A module of the tracer imports only from the lines above its own of the list in ARCHITECTURE.md.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Result, bail};

use crate::sh;

const SOURCE: &str = "tracer-userspace/src/";
/// The list is the block of text below this heading.
const HEADING: &str = "## Who imports whom";
/// They join all the others, or are for tests.
const APART: [&str; 5] = ["fuzzing", "lib", "main", "properties", "testing"];

/// Lines of the list by module, from 0.
type Layers<'a> = BTreeMap<&'a str, usize>;

/// Fails if a module imports one of its own line, or of one below.
pub(crate) fn check() -> Result<()> {
    let text = fs::read_to_string(sh::root().join("ARCHITECTURE.md"))?;
    let layers = layers(&text);
    let files =
        sh::capture(sh::command("git").args(["ls-files", "--cached", "--others", "--exclude-standard", SOURCE]))?;
    let of_file = |file: &str| against(&layers, file, &fs::read_to_string(sh::root().join(file)).unwrap_or_default());
    let wrong: Vec<_> = files.lines().filter(|file| !is_test(file)).flat_map(of_file).collect();
    if !wrong.is_empty() {
        bail!("imports against the order of \"{}\" in ARCHITECTURE.md:\n{}", &HEADING[3..], wrong.join("\n"));
    }
    Ok(())
}

fn layers(text: &str) -> Layers<'_> {
    let list = text.split(HEADING).nth(1).and_then(|below| below.split("```").nth(1)).unwrap_or_default();
    let lines = list.lines().skip(1).enumerate();
    lines.flat_map(|(line, modules)| modules.split_whitespace().map(move |module| (module, line))).collect()
}

fn is_test(file: &str) -> bool {
    file.split(['/', '.']).any(|part| ["fuzzing", "testing", "tests"].contains(&part) || part.ends_with("_tests"))
}

/// What a file imports and may not; its own tests may.
fn against(layers: &Layers<'_>, file: &str, text: &str) -> Vec<String> {
    let own = file.trim_start_matches(SOURCE).split(['/', '.']).next().unwrap_or_default();
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = (1..).zip(code.lines()).filter(|(_, line)| !line.trim_start().starts_with("//"));
    let named = lines.flat_map(|(number, line)| line.split("crate::").skip(1).map(move |path| (number, path)));
    let module = |path: &'_ str| path.split(|c: char| !(c == '_' || c.is_alphanumeric())).next().map(str::to_owned);
    named
        .filter_map(|(number, path)| Some((number, module(path)?)))
        .filter(|(_, named)| named != own && ![own, named.as_str()].iter().any(|it| APART.contains(it)))
        .filter(|(_, named)| {
            layers.get(named.as_str()).is_none_or(|layer| layers.get(own).is_none_or(|it| layer >= it))
        })
        .map(|(number, named)| format!("  {file}:{number}: crate::{named}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "## Who imports whom\n\nWords.\n\n```text\nevent screen\nrecord\nsink\n```\n";

    #[test]
    fn only_what_stands_above_may_be_imported() {
        let of = |file: &str, text: &str| against(&layers(LIST), &format!("{SOURCE}{file}"), text).len();
        assert_eq!(of("record/names.rs", "use crate::event::Pod;\nuse crate::record::K8s;\n// crate::sink\n"), 0);
        assert_eq!(of("record.rs", "use crate::sink::Sink;\n"), 1, "it stands below");
        assert_eq!(of("event.rs", "fn f(it: crate::screen::Screen) -> crate::event::Pod"), 1, "the same line");
        assert_eq!(
            of("record.rs", "use crate::new::Thing;\nuse crate::{event};\n"),
            2,
            "not in the list; not to be read"
        );
        assert_eq!(of("new.rs", "use crate::event::Pod;\n"), 1, "not in the list");
        assert_eq!(of("record.rs", "#[cfg(test)]\nmod tests {\n    use crate::sink::Sink;\n"), 0);
        assert_eq!(of("main.rs", "use crate::sink::Sink;\n") + of("sink.rs", "crate::testing::Stream"), 0);
    }

    #[test]
    fn files_of_tests_are_known_by_their_names() {
        let is_test = |file: &str| super::is_test(&format!("{SOURCE}{file}"));
        assert!(is_test("sink/tests.rs") && is_test("correlate/node_tests.rs") && is_test("doctor/testing.rs"));
        assert!(!is_test("selftest/mod.rs"));
    }
}

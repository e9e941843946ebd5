//! Breaks the paths from this node to pods, by rules in its own table and by routes. The drop of the value removes
//! them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use super::cases::{Case, Path};
use crate::sh;

const TABLE: &str = "inet tracer_e2e";

/// The broken paths. They are repaired when this is dropped.
pub(super) struct BrokenPaths {
    routes: Vec<Vec<String>>,
}

impl Drop for BrokenPaths {
    fn drop(&mut self) {
        let _ = sh::capture(sh::command("nft").args(["delete", "table"]).args(TABLE.split(' ')));
        for route in &self.routes {
            let _ = sh::capture(sh::command("ip").args(["route", "del"]).args(route));
        }
    }
}

pub(super) fn break_paths(cases: &[&Case], addresses: &BTreeMap<String, String>) -> Result<BrokenPaths> {
    let mut made = BrokenPaths { routes: Vec::new() };
    let mut rules = String::new();
    for case in cases {
        let address = addresses.get(case.name).with_context(|| format!("address of pod {}", case.name))?;
        match case.path {
            Path::Free => {}
            Path::Rule(end) => writeln!(rules, "ip daddr {address} tcp dport 8080 {end}")?,
            Path::Route(kind) => made.route(kind, address)?,
        }
    }
    let table = format!("table {TABLE} {{ chain out {{ type filter hook output priority 0; {rules} }}; }}\n");
    sh::feed(sh::command("nft").args(["-f", "-"]), &table)?;
    Ok(made)
}

impl BrokenPaths {
    fn route(&mut self, kind: &str, address: &str) -> Result<()> {
        let route = vec![kind.to_owned(), format!("{address}/32")];
        sh::capture(sh::command("ip").args(["route", "add"]).args(&route))?;
        self.routes.push(route);
        Ok(())
    }
}

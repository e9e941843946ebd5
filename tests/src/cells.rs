//! The cells of cause, Service proxy and address family, and the scenario of each.

use tracer_model::record::Cause;
use tracer_testbed::scenario::Scenario;

/// Additional cells and their scenarios: the documentation has an incident of this one.
const CASES: &[(&str, &str)] = &[("service_no_endpoints/circular-v4", "service_no_endpoints_circular")];

/// The first scenario of each cell.
pub fn cells(scenarios: &[Scenario]) -> Vec<(String, &'static str)> {
    let mut cells: Vec<(String, &str)> = Vec::new();
    let own = CASES.iter().filter(|(_, scenario)| scenarios.iter().any(|it| it.name == *scenario));
    cells.extend(own.map(|(cell, scenario)| ((*cell).to_owned(), *scenario)));
    for scenario in scenarios {
        let cause = scenario.cause.map_or("healthy", Cause::name);
        let cell = format!("{cause}/{}-{}", scenario.proxy.name(), scenario.family.name());
        if !cells.iter().any(|(known, _)| *known == cell) {
            cells.push((cell, scenario.name));
        }
    }
    cells
}

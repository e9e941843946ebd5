//! The cells of cause, Service proxy and address family, each with the scenario that shows it.

use tracer_model::record::Cause;
use tracer_testbed::scenario::Scenario;

/// Cells besides, for a story of its own: the incident of the documentation.
const CASES: &[(&str, &str)] = &[("service_no_endpoints/circular-v4", "service_no_endpoints_circular")];

/// The first scenario of each cell.
pub fn cells(scenarios: &[Scenario]) -> Vec<(String, &'static str)> {
    let mut cells: Vec<(String, &str)> = Vec::new();
    let stories = CASES.iter().filter(|(_, story)| scenarios.iter().any(|it| it.name == *story));
    cells.extend(stories.map(|(cell, story)| ((*cell).to_owned(), *story)));
    for scenario in scenarios {
        let cause = scenario.cause.map_or("healthy", Cause::name);
        let cell = format!("{cause}/{}-{}", scenario.proxy.name(), scenario.family.name());
        if !cells.iter().any(|(known, _)| *known == cell) {
            cells.push((cell, scenario.name));
        }
    }
    cells
}

//! Metrics as text: the Prometheus text format 0.0.4, which every scraper reads.

use prometheus_client::encoding;
use prometheus_client::registry::Registry;

pub fn text(registry: &Registry) -> String {
    let mut open_metrics = String::new();
    // Writing to a string does not fail.
    let _ = encoding::text::encode(&mut open_metrics, registry);
    classic(&open_metrics)
}

/// Converts OpenMetrics. It names a counter's family without `_total`, and ends with `# EOF`. The older format gives the
/// family the name of its samples, and has no end mark.
fn classic(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len() + 256);
    let mut help = None;
    for line in open_metrics.lines().filter(|line| *line != "# EOF") {
        if line.starts_with("# HELP ") {
            help = line.strip_prefix("# HELP ");
            continue;
        }
        let suffix = if line.ends_with(" counter") { "_total" } else { "" };
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            if let Some((_, says)) = help.take().and_then(|help| help.split_once(' ')) {
                out.push_str(&format!("# HELP {name}{suffix} {says}\n"));
            }
            out.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

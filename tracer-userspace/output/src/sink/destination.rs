//! What destinations of decisions and records besides the output have in common.

use std::fmt::Debug;

use tracer_model::decision::Decision;
use tracer_model::record::Record;

/// Only `finish` may wait.
pub trait Destination: Debug + Send {
    /// Its name in `loss` records and in the metric of dropped records.
    fn name(&self) -> &'static str;

    /// Takes each decision. `is_printed`: the filters let it pass.
    fn take_decision(&self, _decision: &Decision, _is_printed: bool) {}

    /// Takes each printed record.
    fn take_record(&self, _record: &Record) {}

    /// What it dropped since the start.
    fn dropped(&self) -> u64;

    /// What it dropped since the last call, and may be reported now.
    fn take_dropped(&mut self) -> u64;

    /// The run ends; the `stop` record follows.
    fn end(&mut self) {}

    /// Delivers what is queued. Gives whether every record arrived.
    fn finish(&mut self) -> bool;
}

//! Fuzz target for recordings.

use std::io::Cursor;
use std::path::PathBuf;
use std::time::Duration;

use super::pass;
use super::reader::Reader;
use crate::engine::Engine;
use tracer_model::record::Record;
use tracer_output::sink::{Format, Sink, SinkConfig, ndjson};

/// Replays a recording twice. The verdicts must not depend on the format of the output, nor on the run.
pub fn recording(bytes: &[u8]) {
    let lines = |format| verdicts(bytes, format).iter().map(ndjson::line).collect::<Vec<_>>();
    assert_eq!(lines(Format::Pretty), lines(Format::Ndjson), "the same verdicts in each run");
}

fn verdicts(bytes: &[u8], format: Format) -> Vec<Record> {
    let Ok((mut reader, header)) = Reader::over(Box::new(Cursor::new(bytes.to_vec())), "fuzz".to_owned()) else {
        return Vec::new();
    };
    let config = SinkConfig {
        colour: true,
        columns: Some(80),
        attempts: true,
        repeat_interval: Duration::from_mins(1),
        ..SinkConfig::new(format, Some(PathBuf::from("/dev/null")))
    };
    let Ok(mut sink) = Sink::open(&config, false) else { return Vec::new() };
    sink.keep_verdicts();
    let mut engine = Engine::new(sink, header.at_start, None);
    pass(&mut reader, &mut engine);
    engine.into_sink().into_kept()
}

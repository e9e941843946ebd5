//! `tracer replay`: passes a recording through the same core and sink, without privileges, eBPF or a clock.

mod compare;
pub(crate) mod fuzzing;
mod reader;

use std::path::PathBuf;

use crate::engine::Engine;
use crate::replay::compare::Expected;
use crate::replay::reader::{Item, Reader};
use tracer_model::event::ObservationKind;
use tracer_model::plural;
use tracer_output::sink::{Sink, SinkConfig, leftover};
use tracer_terminal::error::{self, Error};

#[derive(Clone, Debug)]
pub struct ReplayConfig {
    pub output: SinkConfig,
    /// The recording; `-` is stdin.
    pub file: PathBuf,
    pub compare: Option<PathBuf>,
}

/// Replays a recording. Returns exit code 1 if it differs from the expected records, or if `--until-failure` met a failure.
///
/// # Errors
/// The recording or the expected records cannot be read. Verdicts that were decided before the error are printed first.
pub fn replay(config: &ReplayConfig) -> Result<u8, Error> {
    leftover::leaving_none([config.output.file.as_deref(), None], || analyse(config))
}

fn analyse(config: &ReplayConfig) -> Result<u8, Error> {
    let expected = config.compare.as_deref().map(|path| Expected::read(path, &config.output.filter)).transpose()?;
    let (mut reader, header) = Reader::open(&config.file)?;
    let mut sink = Sink::open(&config.output, false)?;
    if expected.is_some() {
        sink.keep_verdicts();
    }
    let mut engine = Engine::new(sink, header.at_start, None);
    let ending = pass(&mut reader, &mut engine);
    engine.sink().output().finish();
    if reader.skipped > 0 {
        error::warn(&format!(
            "replay {}: {} of a kind that this tracer ({}) does not know: skipped",
            config.file.display(),
            plural::counted(reader.skipped, "observation"),
            env!("CARGO_PKG_VERSION"),
        ));
    }
    let satisfied = engine.sink().is_satisfied();
    let failed = engine.sink().has_failed();
    match ending {
        Ending::Headless(error) | Ending::Unreadable(error) | Ending::Cut(error) => return Err(error),
        Ending::End(_) | Ending::Enough => {}
    }
    let difference = expected.and_then(|expected| expected.first_difference(&engine.into_sink().into_kept()));
    if let Some(difference) = &difference {
        error::differs(difference);
    }
    Ok(match (failed, satisfied || difference.is_some()) {
        (true, _) => 2,
        (false, true) => 1,
        (false, false) => 0,
    })
}

enum Ending {
    /// At its end marker, with the time there.
    End(u64),
    /// `--until-failure` met a failure, or the reader of the output is gone.
    Enough,
    /// The recording has no end marker.
    Cut(Error),
    /// At a line that is no observation.
    Unreadable(Error),
    /// Its first observation is not `start`.
    Headless(Error),
}

fn pass(reader: &mut Reader, engine: &mut Engine) -> Ending {
    let ending = feed(reader, engine);
    // Without `start` the time is not known, and no run began.
    if reader.observations > 0 && !matches!(ending, Ending::Headless(_)) {
        finish(engine, &ending, reader);
    }
    ending
}

fn feed(reader: &mut Reader, engine: &mut Engine) -> Ending {
    loop {
        let observation = match reader.next() {
            Ok(Item::Observation(observation)) => observation,
            Ok(Item::End(end)) => return Ending::End(end.time_boot_ns),
            Ok(Item::Cut(error)) => return Ending::Cut(error),
            Err(error) => return Ending::Unreadable(error),
        };
        // Only the first observation must be `start`.
        match (reader.observations == 1, matches!(observation.kind, ObservationKind::Start(_))) {
            (true, true) | (false, false) => {}
            (true, false) => {
                let problem = "the first observation is not `start`: the recording's head is missing";
                return Ending::Headless(reader.error(problem));
            }
            (false, true) => {
                return Ending::Unreadable(reader.error("a second `start`: two recordings in one file"));
            }
        }
        engine.push(&observation);
        if engine.is_done() {
            return Ending::Enough;
        }
    }
}

/// Prints the last decisions and the `stop` record.
fn finish(engine: &mut Engine, ending: &Ending, reader: &Reader) {
    let (last, line) = (reader.last_time_boot_ns, reader.line);
    let (time, reason) = match ending {
        Ending::End(time) => (*time, "end_of_stream".to_owned()),
        Ending::Enough => (last, "until_failure".to_owned()),
        Ending::Cut(_) => (last, format!("cut_at_line_{line}")),
        Ending::Unreadable(_) | Ending::Headless(_) => (last, format!("unreadable_at_line_{line}")),
    };
    engine.finish(time);
    engine.stop(time, &reason);
}

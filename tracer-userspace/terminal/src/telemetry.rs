//! Diagnostics of tracer itself. They go to stderr, because stdout is for records.

use std::{fmt, io};

use anstream::{AutoStream, ColorChoice};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer, format};
use tracing_subscriber::registry::LookupSpan;

use crate::error;
use crate::screen;
use crate::stderr::Lines;

/// The client of the cluster API logs each failed request, but the source already reports an outage once.
/// `TRACER_LOG=kube_client=…` shows them.
const QUIET: &str = "kube_client=off";

/// How much tracer reports about itself on stderr, and the colour of text for people.
#[derive(Clone, Copy, Debug, Default)]
pub struct Diagnostics {
    /// Errors only.
    pub quiet: bool,
    /// Messages of level info, too.
    pub verbose: bool,
    /// `Auto`: the terminal and variables such as `NO_COLOR` decide.
    pub colour: ColorChoice,
}

/// Sets up logging by `TRACER_LOG`, else by `RUST_LOG`, else by the diagnostics (default: warnings).
pub fn start(diagnostics: Diagnostics) {
    diagnostics.colour.write_global();
    screen::set_quiet(diagnostics.quiet);
    let asked = ["TRACER_LOG", "RUST_LOG"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()).map(|value| (name, value)));
    let filter = asked.and_then(|(name, value)| {
        if let Some(word) = unknown_word(&value) {
            error::warn(&format!("{name}={value}: `{word}` is no level (error, warn, info, debug, trace)"));
        }
        EnvFilter::try_new(format!("{QUIET},{value}"))
            .map_err(|error| error::warn(&format!("{name}={value}: {error}")))
            .ok()
    });
    let level = match diagnostics {
        Diagnostics { quiet: true, .. } => "error",
        Diagnostics { verbose: true, .. } => "info",
        _ => "warn",
    };
    let filter = filter.unwrap_or_else(|| EnvFilter::new(format!("{QUIET},{level}")));
    let colour = AutoStream::choice(&io::stderr()) != ColorChoice::Never;
    // An error while logging would be reported with `eprintln!`, which panics on a closed stderr.
    let _ = tracing_subscriber::fmt()
        .with_ansi(colour)
        .log_internal_errors(false)
        .event_format(Messages)
        .with_env_filter(filter)
        .with_writer(|| Lines)
        .try_init();
}

/// The first word that is no level. `EnvFilter` takes it for a module's name, and then nothing is logged.
fn unknown_word(value: &str) -> Option<&str> {
    let is_module = |word: &str| word.starts_with("tracer") || word.contains(['=', '[', ':', '_']);
    let mut words = value.split(',').map(str::trim);
    words.find(|word| !word.is_empty() && !is_module(word) && word.parse::<LevelFilter>().is_err())
}

/// Warnings and errors read as those of [`error`]; lower levels have their time and module.
struct Messages;

impl<S, N> FormatEvent<S, N> for Messages
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let word = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            _ => return format().format_event(context, writer, event),
        };
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        writer.write_str(&error::line(word, &text))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_found() {
        assert_eq!(unknown_word("foo"), Some("foo"));
        assert_eq!(unknown_word("warn, debgu"), Some("debgu"));
        for known in ["debug", "off", "warn,tracer::live=debug", "tracer", "kube_client=debug"] {
            assert_eq!(unknown_word(known), None);
        }
    }

    static WRITTEN: Mutex<Vec<u8>> = Mutex::new(Vec::new());

    struct Written;

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            WRITTEN.lock().expect("bytes").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_logged_warning_reads_as_any_other() {
        let log = tracing_subscriber::fmt().with_ansi(false).event_format(Messages).with_writer(|| Written).finish();
        tracing::subscriber::with_default(log, || {
            tracing::warn!(pid = 7, "a program\nis ignored");
            tracing::error!("it failed");
            tracing::info!("again");
        });
        let text = String::from_utf8(WRITTEN.lock().expect("bytes").clone()).expect("text");
        assert!(text.starts_with("tracer: warning: a program is ignored pid=7\ntracer: error: it failed\n"), "{text}");
        assert!(text.contains(" INFO tracer_terminal::telemetry::tests: again"), "{text}");
    }
}

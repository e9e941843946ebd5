//! The progress of reading: a bar on stderr, if that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

use super::input::Input;

/// If the size is known: the share that is read and the remaining time. It is cut to the terminal's width.
const BAR: &str = "{bytes}/{total_bytes} [{wide_bar}] {eta}";
/// The size of a pipe is not known.
const COUNT: &str = "{spinner} {bytes} read, {bytes_per_sec}";

#[derive(Debug)]
pub(super) struct Progress(ProgressBar);

impl Progress {
    pub(super) fn new(inputs: &[Input]) -> Self {
        let total = inputs.iter().map(|input| input.size).sum::<Option<u64>>();
        let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        let template = if total.is_some() { BAR } else { COUNT };
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("=> "));
        Self(bar)
    }

    /// Wraps the reader of an input, so that it moves the bar.
    pub(super) fn watch(&self, input: Input) -> Input {
        Input { source: Box::new(self.0.wrap_read(input.source)), ..input }
    }

    /// Removes the bar.
    pub(super) fn end(&self) {
        self.0.finish_and_clear();
    }
}

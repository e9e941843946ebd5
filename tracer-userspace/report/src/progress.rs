//! The progress of reading: a bar on stderr, if that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

use super::input::Input;

/// If the size is known: the share that is read and the remaining time. It is cut to the terminal's width.
const BAR: &str = "{bytes}/{total_bytes} [{wide_bar}] {eta}";
/// The size of a pipe is not known.
const COUNT: &str = "{spinner} {bytes} read, {bytes_per_sec}";

pub(super) fn bar(inputs: &[Input]) -> ProgressBar {
    let total = inputs.iter().map(|input| input.size).sum::<Option<u64>>();
    let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    let template = if total.is_some() { BAR } else { COUNT };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style.progress_chars("=> "))
}

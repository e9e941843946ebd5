//! Text in columns.

use std::fmt::Write as _;

/// Columns as wide as their widest cell.
pub(super) fn aligned(table: &[Vec<String>]) -> String {
    let width = |column: usize| table.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
    let mut text = String::new();
    for row in table {
        let cells = row.iter().enumerate().map(|(column, cell)| format!("{cell:0$}", width(column)));
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

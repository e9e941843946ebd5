//! `tracer schema`: the JSON Schema of the records, generated from their types.

use crate::record::Record;

/// The schema as a document of several lines, without a final newline.
#[must_use]
pub fn text() -> String {
    let schema = schemars::schema_for!(Record);
    serde_json::to_string_pretty(&schema).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_record_type_and_common_field_is_in_it() {
        let text = super::text();
        for word in ["verdict", "attempt", "start", "stop", "node", "loss", "time_boot_ns", "node_name", "schema"] {
            assert!(text.contains(&format!("\"{word}\"")), "{word} is missing");
        }
    }
}

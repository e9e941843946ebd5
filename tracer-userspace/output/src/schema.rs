//! `tracer schema`: the JSON Schema of the records, generated from their types.

use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::{Map, Value};

use tracer_model::record::Record;

/// The schema as a document of several lines, without a final newline.
pub fn text() -> String {
    let settings = SchemaSettings::draft2020_12().with_transform(RecursiveTransform(without_null));
    let schema = settings.into_generator().into_root_schema_for::<Record>();
    serde_json::to_string_pretty(&schema).unwrap_or_default()
}

/// Removes `null` from the schema: the types can read it, but an unknown field is always absent.
fn without_null(schema: &mut Schema) {
    if let Some(fields) = schema.as_object_mut() {
        one_type(fields);
        one_kind(fields);
    }
}

/// `"type": ["string", "null"]`
fn one_type(fields: &mut Map<String, Value>) {
    let Some(Value::Array(types)) = fields.get_mut("type") else { return };
    types.retain(|kind| kind != "null");
    if types.len() == 1
        && let Some(only) = types.pop()
    {
        fields.insert("type".to_owned(), only);
    }
}

/// `"anyOf": [{"$ref": …}, {"type": "null"}]`
fn one_kind(fields: &mut Map<String, Value>) {
    let Some(Value::Array(kinds)) = fields.get_mut("anyOf") else { return };
    kinds.retain(|kind| kind["type"] != "null");
    if kinds.len() == 1
        && let Some(Value::Object(only)) = kinds.pop()
    {
        fields.remove("anyOf");
        for (name, value) in only {
            fields.entry(name).or_insert(value);
        }
    }
}

//! The messages of OTLP logs, as `opentelemetry/proto/{collector/logs,logs,common,resource}/v1` define them, with the
//! fields that tracer fills. prost writes them as protobuf, serde as OTLP's JSON.

use prost::{Message, Oneof};
use serde::{Serialize, Serializer};

/// `ExportLogsServiceRequest`.
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_logs: Vec<ResourceLogs>,
}

/// An emitter of records, and its records.
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResourceLogs {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_logs: Vec<ScopeLogs>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

/// The records of one part of a program.
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ScopeLogs {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) log_records: Vec<LogRecord>,
}

/// `InstrumentationScope`.
#[derive(Clone, PartialEq, Message, Serialize)]
pub(super) struct Scope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LogRecord {
    #[prost(fixed64, tag = "1")]
    #[serde(serialize_with = "as_text")]
    pub(super) time_unix_nano: u64,
    #[prost(fixed64, tag = "11")]
    #[serde(serialize_with = "as_text")]
    pub(super) observed_time_unix_nano: u64,
    #[prost(int32, tag = "2")]
    pub(super) severity_number: i32,
    #[prost(string, tag = "3")]
    pub(super) severity_text: String,
    #[prost(string, tag = "12")]
    pub(super) event_name: String,
    #[prost(message, optional, tag = "5")]
    pub(super) body: Option<AnyValue>,
    #[prost(message, repeated, tag = "6")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

/// A value; an empty one is null.
#[derive(Clone, PartialEq, Message, Serialize)]
pub(super) struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 2, 3, 4, 5, 6")]
    #[serde(flatten)]
    pub(super) value: Option<Value>,
}

#[derive(Clone, PartialEq, Oneof, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::enum_variant_names, reason = "the names of the fields in OTLP's JSON")]
pub(super) enum Value {
    #[prost(string, tag = "1")]
    StringValue(String),
    #[prost(bool, tag = "2")]
    BoolValue(bool),
    #[prost(int64, tag = "3")]
    #[serde(serialize_with = "as_text")]
    IntValue(i64),
    #[prost(double, tag = "4")]
    DoubleValue(f64),
    #[prost(message, tag = "5")]
    ArrayValue(ArrayValue),
    #[prost(message, tag = "6")]
    KvlistValue(KeyValueList),
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub(super) struct ArrayValue {
    #[prost(message, repeated, tag = "1")]
    pub(super) values: Vec<AnyValue>,
}

/// Values with names.
#[derive(Clone, PartialEq, Message, Serialize)]
pub(super) struct KeyValueList {
    #[prost(message, repeated, tag = "1")]
    pub(super) values: Vec<KeyValue>,
}

/// `ExportLogsServiceResponse`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Response {
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<PartialSuccess>,
}

/// `ExportLogsPartialSuccess`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(super) rejected_log_records: i64,
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}

impl From<serde_json::Value> for AnyValue {
    fn from(json: serde_json::Value) -> Self {
        let value = match json {
            serde_json::Value::Null => None,
            serde_json::Value::Bool(value) => Some(Value::BoolValue(value)),
            serde_json::Value::Number(number) => match number.as_i64() {
                Some(value) => Some(Value::IntValue(value)),
                None => number.as_f64().map(Value::DoubleValue),
            },
            serde_json::Value::String(value) => Some(Value::StringValue(value)),
            serde_json::Value::Array(values) => {
                Some(Value::ArrayValue(ArrayValue { values: values.into_iter().map(Self::from).collect() }))
            }
            serde_json::Value::Object(fields) => {
                let values = fields.into_iter().map(|(key, value)| KeyValue::new(key, value)).collect();
                Some(Value::KvlistValue(KeyValueList { values }))
            }
        };
        Self { value }
    }
}

impl KeyValue {
    pub(super) fn new(key: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        Self { key: key.into(), value: Some(AnyValue::from(value.into())) }
    }
}

/// OTLP's JSON has numbers of 64 bits as strings.
fn as_text<T: ToString, S: Serializer>(number: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&number.to_string())
}

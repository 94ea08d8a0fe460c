//! JSON Schema: compile once at load, judge per call, in words a model can act on.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::call::Fault;

/// A compiled schema and its (closed) source.
#[derive(Clone)]
pub struct Schema {
    source: Arc<Value>,
    validator: Arc<jsonschema::Validator>,
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schema({})", self.source)
    }
}

impl Schema {
    /// The schema as models are shown it.
    pub fn source(&self) -> &Arc<Value> {
        &self.source
    }

    /// Every fault at once, each by JSON Pointer; empty = valid.
    pub fn faults(&self, value: &Value) -> Vec<Fault> {
        self.validator
            .iter_errors(value)
            .map(|error| Fault {
                at: error.instance_path().to_string(),
                expected: error.to_string().into(),
                got: crate::call::arguments::kind_of(value).into(),
            })
            .collect()
    }
}

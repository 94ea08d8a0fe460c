//! The value of a result, whatever form it came in: what a model is given and predicates look at.

use serde_json::Value;

use super::outcome::{Content, Form};
use crate::strict_json::{self, Limits};

impl Content {
    /// JSON as it is, text as a string; of an MCP result its structured content, else the text of its blocks, else the
    /// blocks. `None`: bytes that are not what their form says.
    pub fn value(&self) -> Option<Value> {
        let parsed = || strict_json::parse(&self.bytes, Limits::answer(self.bytes.len())).ok();
        match self.form {
            Form::Json => parsed(),
            Form::Text => Some(String::from_utf8_lossy(&self.bytes).into_owned().into()),
            Form::Mcp => parsed().map(of_mcp),
        }
    }
}

fn of_mcp(mut result: Value) -> Value {
    if let Some(structured) = result.get_mut("structuredContent").map(Value::take) {
        return structured;
    }
    let Some(blocks) = result.get_mut("content").map(Value::take) else { return result };
    let texts: Option<Vec<&str>> = blocks.as_array().and_then(|blocks| {
        blocks
            .iter()
            .map(|block| {
                let text = block.get("type").and_then(Value::as_str) == Some("text");
                block.get("text").and_then(Value::as_str).filter(|_| text)
            })
            .collect()
    });
    match texts {
        Some(texts) => texts.join("\n").into(),
        None => blocks,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(text: &str) -> Option<Value> {
        Content { bytes: text.to_owned().into(), form: Form::Mcp }.value()
    }

    #[test]
    fn the_value_of_an_mcp_result_is_its_structure_else_its_text_else_its_blocks() {
        let both = r#"{"content":[{"type":"text","text":"x"}],"structuredContent":{"n":1.50}}"#;
        assert_eq!(value(both).map(|v| v.to_string()).as_deref(), Some(r#"{"n":1.50}"#));
        let texts = r#"{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#;
        assert_eq!(value(texts), Some(json!("a\nb")));
        assert_eq!(value(r#"{"content":[]}"#), Some(json!("")));
        let image = r#"{"content":[{"type":"image","data":"","mimeType":"image/png"}]}"#;
        assert_eq!(
            value(image),
            Some(json!([{"type": "image", "data": "", "mimeType": "image/png"}]))
        );
        assert_eq!(value(r#"{"resource":1}"#), Some(json!({"resource": 1})));
        assert_eq!(value("{"), None);
    }
}

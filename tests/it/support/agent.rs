//! An agent in each of the three wire forms: writes the assistant message, reads the tool messages back.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::http::{self, Answer};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    OpenaiChat,
    OpenaiResponses,
    AnthropicMessages,
}

impl Form {
    pub const ALL: [Form; 3] = [Form::OpenaiChat, Form::OpenaiResponses, Form::AnthropicMessages];

    pub fn path(self) -> &'static str {
        match self {
            Form::OpenaiChat => "/v1/batches/openai-chat",
            Form::OpenaiResponses => "/v1/batches/openai-responses",
            Form::AnthropicMessages => "/v1/batches/anthropic-messages",
        }
    }

    /// The assistant message asking for these calls: (id, tool, arguments as JSON text).
    /// Anthropic carries arguments as an object: text that is none there is put in as it stands.
    pub fn message(self, text: &str, calls: &[(&str, &str, &str)]) -> String {
        let quoted = |s: &str| Value::String(s.to_owned()).to_string();
        let list = |each: &dyn Fn(&(&str, &str, &str)) -> String| {
            calls.iter().map(each).collect::<Vec<_>>().join(",")
        };
        match self {
            Form::OpenaiChat => {
                let calls = list(&|(id, tool, args)| {
                    format!(
                        r#"{{"id":{},"type":"function","function":{{"name":{},"arguments":{}}}}}"#,
                        quoted(id),
                        quoted(tool),
                        quoted(args)
                    )
                });
                let content = if text.is_empty() { "null".to_owned() } else { quoted(text) };
                if calls.is_empty() {
                    format!(r#"{{"role":"assistant","content":{content}}}"#)
                } else {
                    format!(r#"{{"role":"assistant","content":{content},"tool_calls":[{calls}]}}"#)
                }
            }
            Form::OpenaiResponses => {
                let mut items = Vec::new();
                if !text.is_empty() {
                    items.push(format!(
                        r#"{{"type":"message","role":"assistant","content":[{{"type":"output_text","text":{}}}]}}"#,
                        quoted(text)
                    ));
                }
                items.extend(calls.iter().map(|(id, tool, args)| {
                    format!(
                        r#"{{"type":"function_call","id":"item","call_id":{},"name":{},"arguments":{}}}"#,
                        quoted(id), quoted(tool), quoted(args)
                    )
                }));
                format!(r#"{{"output":[{}]}}"#, items.join(","))
            }
            Form::AnthropicMessages => {
                let mut blocks = Vec::new();
                if !text.is_empty() {
                    blocks.push(format!(r#"{{"type":"text","text":{}}}"#, quoted(text)));
                }
                blocks.extend(calls.iter().map(|(id, tool, args)| {
                    format!(
                        r#"{{"type":"tool_use","id":{},"name":{},"input":{args}}}"#,
                        quoted(id),
                        quoted(tool)
                    )
                }));
                format!(r#"{{"role":"assistant","content":[{}]}}"#, blocks.join(","))
            }
        }
    }

    /// (id, answer object) of every tool message, in order; checks the form's shape on the way.
    pub fn answers(self, body: &Value) -> Vec<(String, Value)> {
        let text = |value: &Value| -> Value {
            let text = value.as_str().expect("TEXT is a string");
            serde_json::from_str(text).expect("TEXT is the answer object as JSON")
        };
        let messages = body["messages"].as_array().expect("messages");
        match self {
            Form::OpenaiChat => messages
                .iter()
                .map(|m| {
                    assert_eq!(m["role"], "tool");
                    (m["tool_call_id"].as_str().expect("an id").to_owned(), text(&m["content"]))
                })
                .collect(),
            Form::OpenaiResponses => messages
                .iter()
                .map(|m| {
                    assert_eq!(m["type"], "function_call_output");
                    (m["call_id"].as_str().expect("an id").to_owned(), text(&m["output"]))
                })
                .collect(),
            Form::AnthropicMessages => {
                assert!(messages.len() <= 1, "one user message");
                let blocks = messages.first().map(|m| {
                    assert_eq!(m["role"], "user");
                    m["content"].as_array().expect("blocks").clone()
                });
                blocks
                    .unwrap_or_default()
                    .iter()
                    .map(|block| {
                        assert_eq!(block["type"], "tool_result");
                        let answer = text(&block["content"]);
                        assert_eq!(block["is_error"], json!(answer["ok"] == json!(false)));
                        (block["tool_use_id"].as_str().expect("an id").to_owned(), answer)
                    })
                    .collect()
            }
        }
    }
}

/// One agent process and its run.
#[derive(Debug, Clone)]
pub struct Agent {
    address: SocketAddr,
    pub form: Form,
    pub run: String,
    pub token: Option<String>,
}

/// What came back for one message.
#[derive(Debug, Clone)]
pub struct Turned {
    pub status: u16,
    pub state: String,
    pub body: Value,
    pub answers: Vec<(String, Value)>,
}

impl Turned {
    #[track_caller]
    pub fn answer(&self, id: &str) -> &Value {
        let mut found = self.answers.iter().filter(|(i, _)| i == id);
        let (_, value) =
            found.next().unwrap_or_else(|| panic!("no answer for {id}: {}", self.body));
        assert!(found.next().is_none(), "two answers for {id}");
        value
    }
    #[track_caller]
    pub fn error(&self, id: &str) -> &str {
        self.answer(id)["error"]
            .as_str()
            .unwrap_or_else(|| panic!("{id} has no error: {}", self.answer(id)))
    }
    pub fn ids(&self) -> Vec<&str> {
        self.answers.iter().map(|(id, _)| id.as_str()).collect()
    }
}

impl Agent {
    pub fn new(address: SocketAddr, form: Form, run: &str) -> Self {
        Self { address, form, run: run.to_owned(), token: None }
    }
    pub fn with_token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    pub async fn post(&self, path: &str, more: &[(&str, &str)], body: &[u8]) -> Answer {
        let bearer = self.token.as_ref().map(|t| format!("Bearer {t}"));
        let mut headers = more.to_vec();
        if !self.run.is_empty() {
            headers.push(("checkrein-run", &self.run));
        }
        if let Some(bearer) = &bearer {
            headers.push(("authorization", bearer));
        }
        http::request(self.address, "POST", path, &headers, body).await
    }

    /// Sends a message asking for calls.
    pub async fn ask(&self, calls: &[(&str, &str, &str)]) -> Turned {
        self.send(&self.form.message("", calls), &[]).await
    }

    /// Sends a message that only speaks.
    pub async fn say(&self, text: &str) -> Turned {
        self.send(&self.form.message(text, &[]), &[]).await
    }

    pub async fn send(&self, message: &str, more: &[(&str, &str)]) -> Turned {
        let answer = self.post(self.form.path(), more, message.as_bytes()).await;
        let body = answer.json();
        let answers =
            if body["messages"].is_array() { self.form.answers(&body) } else { Vec::new() };
        let state = body["state"].as_str().unwrap_or_default().to_owned();
        Turned { status: answer.status, state, answers, body }
    }

    /// One call by the tools API; the call id goes in a header.
    pub async fn call(&self, tool: &str, id: &str, arguments: &str) -> Answer {
        self.post(&format!("/v1/tools/{tool}"), &[("checkrein-call-id", id)], arguments.as_bytes())
            .await
    }
}

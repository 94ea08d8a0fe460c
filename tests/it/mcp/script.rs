//! Tools of the house that answer as MCP servers do, told what to do by `order_id` or `order_ref`.

use std::sync::Arc;
use std::time::Duration;

use checkrein::call::code::FailCode;
use checkrein::call::{
    Arguments, Class, Content, Delivery, Effect, Failed, Form, Notes, Source, ToolCall, ToolResult,
    Verdict,
};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::front_ends::kit::{House, scripted};

/// A result that no closed type would keep.
pub(crate) const ODD: &str = r#"{"content":[{"type":"hologram","z":1,"a":{"n":9007199254740993}},{"type":"text","text":"x","annotations":{"priority":0.10}}],"structuredContent":{"b":1.50,"a":null},"x-new":[],"_meta":{"io.checkrein/run":"r","io.modelcontextprotocol/y":1,"example.com/k":2}}"#;
pub(crate) const IS_ERROR: &str =
    r#"{"content":[{"type":"text","text":"no such order"}],"isError":true}"#;

fn mcp(text: &str) -> Result<ToolResult, Failed> {
    Ok(ToolResult {
        head: None,
        content: Content { bytes: text.to_owned().into(), form: Form::Mcp },
        source: Source::Tool,
        notes: Notes { attempts: 1, ..Notes::default() },
    })
}

/// The house, and what holds its tool `held` back.
pub(crate) fn house() -> (House, Arc<Held>) {
    let held = Arc::new(Held::default());
    let seen = held.clone();
    let house = House::with(move |hits, effect, call| {
        let (hits, held) = (hits.clone(), seen.clone());
        Box::pin(async move {
            let tree = call.arguments().map(Arguments::tree).cloned().unwrap_or_default();
            let what = tree["order_id"].as_str().or(tree["order_ref"].as_str()).unwrap_or_default();
            match what {
                "odd" => mcp(ODD),
                "is_error" => Err(is_error()),
                "lacks" => Err(lacks()),
                "progress" => progressed(&call),
                "ask" | "ask_ever" => asked(&call, what == "ask_ever"),
                "question" => question(&call).await,
                "many" => many(&call),
                "polled" => {
                    let side = call.side.clone().expect("a side");
                    let channel = side.channel.as_ref().expect("a way back");
                    channel.let_go(Duration::from_millis(300));
                    held.go_on.notified().await;
                    scripted(&hits, effect, call).await
                }
                "held" => {
                    held.begun.notify_one();
                    let _cut = Cut(held.clone());
                    held.go_on.notified().await;
                    scripted(&hits, effect, call).await
                }
                _ => scripted(&hits, effect, call).await,
            }
        })
    });
    (house, held)
}

#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) begun: Notify,
    pub(crate) go_on: Notify,
    /// The call's future was dropped.
    pub(crate) dropped: Notify,
}

struct Cut(Arc<Held>);
impl Drop for Cut {
    fn drop(&mut self) {
        self.0.dropped.notify_one();
    }
}

fn is_error() -> Failed {
    let (class, delivery) = (Class::Permanent, Delivery::Done);
    let mut failed =
        Failed::new(FailCode::ToolError, class, delivery, Verdict::Neutral, "no such order");
    failed.answer = Some(Content { bytes: IS_ERROR.into(), form: Form::Mcp });
    failed
}

/// The server cannot work without a model to ask.
fn lacks() -> Failed {
    let (class, delivery) = (Class::Permanent, Delivery::Refused);
    let mut failed =
        Failed::new(FailCode::ToolError, class, delivery, Verdict::Neutral, "needs a model");
    failed.requires = Some(Box::new(json!({"sampling": {}})));
    failed
}

/// More words than are kept.
fn many(call: &ToolCall) -> Result<ToolResult, Failed> {
    let side = call.side.as_ref().expect("a side");
    let channel = side.channel.as_ref().expect("a way back");
    for n in 1..=200 {
        channel.notify("notifications/message", json!({"level": "error", "data": n}));
    }
    mcp(r#"{"content":[]}"#)
}

fn progressed(call: &ToolCall) -> Result<ToolResult, Failed> {
    let side = call.side.as_ref().expect("a side");
    if let Some(channel) = &side.channel {
        for progress in [1, 2, 1, 3] {
            let params = json!({"progressToken": 77, "progress": progress, "total": 3});
            channel.notify("notifications/progress", params);
        }
        for level in ["debug", "error"] {
            channel.notify("notifications/message", json!({"level": level, "data": level}));
        }
    }
    mcp(r#"{"content":[]}"#)
}

fn asked(call: &ToolCall, for_ever: bool) -> Result<ToolResult, Failed> {
    let side = call.side.as_ref().expect("a side");
    match &side.continuation {
        Some(continuation) if !for_ever => {
            let told = json!({"content": [], "structuredContent": {
                "responses": continuation.responses,
                "state": continuation.state.as_deref(),
                "round": continuation.round,
            }});
            mcp(&told.to_string())
        }
        asked => {
            // Each round's words are its own: a result that stays the same is another matter.
            let round = asked.as_ref().map_or(0, |continuation| continuation.round);
            let params = json!({"message": format!("Really? ({round})"), "requestedSchema": {"type": "object"}});
            let result = json!({
                "resultType": "input_required",
                "inputRequests": {"k": {"method": "elicitation/create", "params": params}},
                "requestState": "of the server",
            });
            mcp(&result.to_string())
        }
    }
}

async fn question(call: &ToolCall) -> Result<ToolResult, Failed> {
    let side = call.side.as_ref().expect("a side");
    let channel = side.channel.as_ref().expect("a channel");
    let answer = channel.ask("elicitation/create", json!({"message": "Your name?"})).await;
    let told: Value = match answer {
        Ok(answer) => json!({"content": [], "structuredContent": answer}),
        Err(why) => json!({"content": [{"type": "text", "text": format!("{why:?}")}]}),
    };
    mcp(&told.to_string())
}

/// Only to say which effect the house's tools have.
pub(crate) fn tool_of(effect: Effect) -> &'static str {
    match effect {
        Effect::Read => "lookup_order",
        Effect::Write => "create_order",
    }
}

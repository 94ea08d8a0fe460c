//! Who listens where nobody is to be asked or told: notifications are let go, requests are refused, and a ping is a
//! ping.

use std::future::{Future, ready};
use std::pin::Pin;

use serde_json::{Map, Value};

use super::link::Inbound;
use crate::mcp::jsonrpc::{ErrorReply, METHOD_NOT_FOUND, Notification, Request};

#[derive(Debug)]
pub(super) struct Silent;

impl Inbound for Silent {
    fn notification(&self, _: Notification) {}

    fn request(
        &self,
        request: Request,
    ) -> Pin<Box<dyn Future<Output = Result<Value, ErrorReply>> + Send>> {
        Box::pin(ready(answer(&request)))
    }
}

/// What a server is answered that asks for something nobody can give.
pub(super) fn answer(request: &Request) -> Result<Value, ErrorReply> {
    if request.method == "ping" {
        return Ok(Value::Object(Map::new()));
    }
    Err(ErrorReply {
        id: Some(request.id.clone()),
        code: METHOD_NOT_FOUND,
        message: "not declared: this client cannot be asked for it".into(),
        data: None,
    })
}

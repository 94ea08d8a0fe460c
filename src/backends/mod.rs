//! Where calls leave: one adapter a protocol, each a tower `Service` whose only error is `Failed`.

mod answer;
mod body;
pub mod classify;
mod credentials;
pub mod http;
mod key;
pub mod mcp;
pub mod proxy;
mod room;
mod template;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower::Service;

use crate::call::{Failed, ToolCall, ToolResult};
use crate::egress::Egress;
use crate::policy::snapshot::Tool;

/// The way to one tool. Nothing below the layers can say "denied": its only error is `Failed`.
#[derive(Debug, Clone)]
pub enum Backend {
    Http(http::Http),
    Proxy(proxy::Proxy),
    Mcp(mcp::McpBackend),
    Passed(mcp::PassBackend),
}

impl Backend {
    /// A templated HTTP tool; of its answers at most `response_bytes` decoded bytes are read.
    pub fn http(tool: &Arc<Tool>, egress: &Arc<Egress>, response_bytes: usize) -> Self {
        Self::Http(http::Http::new(tool, egress, response_bytes))
    }

    /// A route of plain HTTP clients; answers that are read whole have at most `response_bytes` bytes.
    pub fn proxy(tool: &Arc<Tool>, egress: &Arc<Egress>, response_bytes: usize) -> Self {
        Self::Proxy(proxy::Proxy::new(tool, egress, response_bytes))
    }
}

impl Service<ToolCall> for Backend {
    type Response = ToolResult;
    type Error = Failed;
    type Future = Pin<Box<dyn Future<Output = Result<ToolResult, Failed>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        match self {
            Backend::Http(http) => http.poll_ready(cx),
            Backend::Proxy(proxy) => proxy.poll_ready(cx),
            Backend::Mcp(mcp) => mcp.poll_ready(cx),
            Backend::Passed(passed) => passed.poll_ready(cx),
        }
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        match self {
            Backend::Http(http) => http.call(call),
            Backend::Proxy(proxy) => proxy.call(call),
            Backend::Mcp(mcp) => mcp.call(call),
            Backend::Passed(passed) => passed.call(call),
        }
    }
}

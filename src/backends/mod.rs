//! Where calls leave. STUB of the contract; the back-end part owns it.
use std::sync::Arc;

use crate::egress::Egress;
use crate::policy::snapshot::Tool;

/// The way to one tool: a tower `Service<ToolCall, Response = ToolResult, Error = Failed>`.
#[derive(Debug, Clone)]
pub enum Backend {
    Http(http::Http),
}
impl Backend {
    pub fn http(_tool: &Arc<Tool>, _egress: &Arc<Egress>, _response_bytes: usize) -> Self {
        unimplemented!()
    }
}
pub mod http {
    #[derive(Debug, Clone)]
    pub struct Http {}
}

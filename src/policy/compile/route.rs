//! Routes of plain HTTP clients, from the policy as it is written.

use std::sync::Arc;

use http::header::ACCEPT;
use serde_json::json;

use super::values;
use crate::call::{Named, ToolName, UpstreamName};
use crate::policy::document::{self as written, Document};
use crate::policy::merge::{get, in_memory};
use crate::policy::schema::Schema;
use crate::policy::snapshot::{ProxyRoute, RouteTable, Target, Tool};

/// A body's bound where the policy names none.
const DEFAULT_REQUEST_BYTES: u64 = 1 << 20;

pub(super) fn route(
    document: &Document,
    tool: &written::Tool,
    proxy: &written::Proxy,
) -> Option<ProxyRoute> {
    let limits = document.limits.as_ref().map(|limits| &limits.value);
    let of_all = limits.and_then(|limits| get(&limits.request_bytes));
    let request_bytes = get(&proxy.request_bytes).or(of_all).unwrap_or(DEFAULT_REQUEST_BYTES);
    Some(ProxyRoute {
        methods: values(&proxy.methods),
        path: get(&proxy.path)?,
        request_headers: match &proxy.request_headers {
            Some(_) => values(&proxy.request_headers),
            None => vec![ACCEPT],
        },
        has_schema: tool.schema.is_some(),
        request_bytes: in_memory(request_bytes),
        response_bytes: get(&proxy.response_bytes),
    })
}

/// A route may go without a schema: then a request may hold whatever fits its path.
pub(super) fn open_schema(target: &Target) -> Option<Schema> {
    match target {
        Target::Proxy(_) => Schema::compile(&json!({ "type": "object" }), false).ok(),
        Target::Http(_) | Target::Mcp(_) | Target::Passed => None,
    }
}

/// By upstream.
pub(super) fn tables(tools: &Named<ToolName, Arc<Tool>>) -> Named<UpstreamName, RouteTable> {
    let mut tables: Named<UpstreamName, RouteTable> = Named::default();
    for tool in tools.values() {
        if let Some(route) = tool.route() {
            tables.entry(tool.upstream.name.clone()).or_default().insert(&tool.name, route);
        }
    }
    tables
}

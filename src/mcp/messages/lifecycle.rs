//! How two sides meet: `initialize` up to 2025-11-25, `server/discover` from 2026-07-28 on, and what each can do.

use serde_json::{Map, Value};

use super::{Wrong, object, string};

/// What a client declared it can be asked. A view: the whole declaration is `raw`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a declaration of its own")]
pub struct ClientCapabilities<'c> {
    /// Elicitation by form. `elicitation: {}` declares it too, as it did before there were modes.
    pub elicitation_form: bool,
    pub elicitation_url: bool,
    pub sampling: bool,
    /// Tools within sampling.
    pub sampling_tools: bool,
    pub sampling_context: bool,
    pub roots: bool,
    pub roots_list_changed: bool,
    /// Settings by the name of an extension.
    pub extensions: Option<&'c Map<String, Value>>,
    pub raw: Option<&'c Map<String, Value>>,
}

impl<'c> ClientCapabilities<'c> {
    /// Reads a declaration; what is not an object declares nothing.
    pub fn of(capabilities: &'c Value) -> Self {
        let Value::Object(raw) = capabilities else { return Self::default() };
        let elicitation = member(raw, "elicitation");
        let sampling = member(raw, "sampling");
        let roots = member(raw, "roots");
        Self {
            elicitation_form: elicitation
                .is_some_and(|modes| modes.contains_key("form") || !modes.contains_key("url")),
            elicitation_url: elicitation.is_some_and(|modes| member(modes, "url").is_some()),
            sampling: sampling.is_some(),
            sampling_tools: sampling.is_some_and(|parts| member(parts, "tools").is_some()),
            sampling_context: sampling.is_some_and(|parts| member(parts, "context").is_some()),
            roots: roots.is_some(),
            roots_list_changed: says(roots, "listChanged"),
            extensions: member(raw, "extensions"),
            raw: Some(raw),
        }
    }

    /// Whether all that a server requires (`requiredCapabilities`) was declared.
    pub fn cover(&self, required: &Value) -> bool {
        let Value::Object(required) = required else { return true };
        let empty = Map::new();
        let raw = self.raw.unwrap_or(&empty);
        required.iter().all(|(name, parts)| {
            let declared = raw.get(name).is_some_and(Value::is_object);
            declared
                && parts.as_object().is_none_or(|parts| {
                    parts.keys().all(|part| {
                        let by_itself = name == "elicitation" && part == "form";
                        (by_itself && self.elicitation_form)
                            || raw.get(name).and_then(|own| own.get(part)).is_some()
                    })
                })
        })
    }
}

/// What a server declared it offers. A view: the whole declaration is `raw`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a declaration of its own")]
pub struct ServerCapabilities<'c> {
    pub tools: bool,
    pub tools_list_changed: bool,
    pub resources: bool,
    pub resources_subscribe: bool,
    pub resources_list_changed: bool,
    pub prompts: bool,
    pub prompts_list_changed: bool,
    pub completions: bool,
    pub logging: bool,
    /// Core tasks for `tools/call` (2025-11-25).
    pub tasks_for_calls: bool,
    pub extensions: Option<&'c Map<String, Value>>,
    pub raw: Option<&'c Map<String, Value>>,
}

impl<'c> ServerCapabilities<'c> {
    /// Reads a declaration; what is not an object declares nothing.
    pub fn of(capabilities: &'c Value) -> Self {
        let Value::Object(raw) = capabilities else { return Self::default() };
        let tools = member(raw, "tools");
        let resources = member(raw, "resources");
        let prompts = member(raw, "prompts");
        Self {
            tools: tools.is_some(),
            tools_list_changed: says(tools, "listChanged"),
            resources: resources.is_some(),
            resources_subscribe: says(resources, "subscribe"),
            resources_list_changed: says(resources, "listChanged"),
            prompts: prompts.is_some(),
            prompts_list_changed: says(prompts, "listChanged"),
            completions: member(raw, "completions").is_some(),
            logging: member(raw, "logging").is_some(),
            tasks_for_calls: capabilities
                .pointer("/tasks/requests/tools/call")
                .is_some_and(Value::is_object),
            extensions: member(raw, "extensions"),
            raw: Some(raw),
        }
    }
}

/// The `params` of `initialize`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InitializeParams<'p> {
    /// As written: it may name a revision not known here.
    pub protocol_version: &'p str,
    pub capabilities: ClientCapabilities<'p>,
    /// The client's word about itself; decides nothing.
    pub client_info: Option<&'p Value>,
}

impl<'p> InitializeParams<'p> {
    /// An error is -32602.
    pub fn of(params: Option<&'p Value>) -> Result<Self, Wrong> {
        let members = object(params, "")?.ok_or_else(|| Wrong::new("", "`params` are missing"))?;
        let version = string(members, "protocolVersion")?
            .ok_or_else(|| Wrong::new("/protocolVersion", "is missing"))?;
        object(members.get("capabilities"), "/capabilities")?;
        Ok(Self {
            protocol_version: version,
            capabilities: members
                .get("capabilities")
                .map(ClientCapabilities::of)
                .unwrap_or_default(),
            client_info: members.get("clientInfo"),
        })
    }
}

/// The result of `initialize`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InitializeResult<'r> {
    /// As written: the client must refuse one it does not speak.
    pub protocol_version: &'r str,
    pub capabilities: ServerCapabilities<'r>,
    pub server_info: Option<&'r Value>,
    pub instructions: Option<&'r str>,
}

impl<'r> InitializeResult<'r> {
    pub fn of(result: &'r Value) -> Result<Self, Wrong> {
        let members = object(Some(result), "")?.ok_or_else(|| Wrong::new("", "is missing"))?;
        let version = string(members, "protocolVersion")?
            .ok_or_else(|| Wrong::new("/protocolVersion", "is missing"))?;
        Ok(Self {
            protocol_version: version,
            capabilities: members
                .get("capabilities")
                .map(ServerCapabilities::of)
                .unwrap_or_default(),
            server_info: members.get("serverInfo"),
            instructions: members.get("instructions").and_then(Value::as_str),
        })
    }
}

/// The result of `server/discover` (2026-07-28).
#[derive(Debug, Clone, PartialEq)]
pub struct DiscoverResult<'r> {
    /// As written, in the server's order; texts that are no strings are left out.
    pub supported_versions: Vec<&'r str>,
    pub capabilities: ServerCapabilities<'r>,
    pub instructions: Option<&'r str>,
    pub ttl_ms: Option<u64>,
}

impl<'r> DiscoverResult<'r> {
    /// Reads such a result. Without `supportedVersions` it is none: a legacy server may answer anything to a method
    /// it does not know.
    pub fn of(result: &'r Value) -> Result<Self, Wrong> {
        let members = object(Some(result), "")?.ok_or_else(|| Wrong::new("", "is missing"))?;
        let Some(Value::Array(versions)) = members.get("supportedVersions") else {
            return Err(Wrong::new("/supportedVersions", "must be an array"));
        };
        Ok(Self {
            supported_versions: versions.iter().filter_map(Value::as_str).collect(),
            capabilities: members
                .get("capabilities")
                .map(ServerCapabilities::of)
                .unwrap_or_default(),
            instructions: members.get("instructions").and_then(Value::as_str),
            ttl_ms: members.get("ttlMs").and_then(Value::as_u64),
        })
    }
}

fn member<'m>(members: &'m Map<String, Value>, name: &str) -> Option<&'m Map<String, Value>> {
    members.get(name).and_then(Value::as_object)
}

fn says(members: Option<&Map<String, Value>>, name: &str) -> bool {
    members.and_then(|members| members.get(name)) == Some(&Value::Bool(true))
}

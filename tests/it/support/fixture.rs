//! The policy the acceptance cases share: one shop, seven tools, two agents, short times.
//!
//! connect 200 ms, first byte 500 ms, total 1 s, 3 attempts, retry loop 2 s, run 10 s;
//! breaker 5 in a row, open 1 s. A test changes what it needs by [`Fixture::with`].

use super::gateway::Gateway;
use super::tool::ScriptedTool;

const POLICY: &str = r#"
apiVersion: checkrein/v1
kind: Policy
name: cases
profiles:
  fast:
    extends: internal_rpc
    timeout: { connect: 200ms, first_byte: 500ms, total: 1s }
    retry: { max_retries: 2, backoff: { base: 20ms, max: 100ms, jitter: 10ms }, deadline: 2s }
    breaker: { consecutive_failures: 5, open_for: 1s, open_max: 1s }
defaults: { profile: fast }
limits: { bulkhead: 256 }
runs:
  default: { wall_clock: 10s }
upstreams:
  shop: { base_url: "URL", addresses: [loopback], breaker: { consecutive_failures: 50, open_for: 1s, open_max: 1s } }
tools:
  lookup_order:
    description: Look up the state of one order.
    effect: read
    bulkhead: 64
    http: { upstream: shop, method: GET, path: "/orders/{order_id}" }
    schema:
      type: object
      required: [order_id]
      properties: { order_id: { type: string, minLength: 1, maxLength: 80 } }
  list_regions:
    description: List the regions that are served.
    effect: read
    http: { upstream: shop, method: GET, path: /regions }
    schema: { type: object, properties: {} }
  get_doc:
    description: Read one document.
    effect: read
    http: { upstream: shop, method: GET, path: "/docs/{id}" }
    result: { max: 1000B }
    schema:
      type: object
      required: [id]
      properties: { id: { type: string, minLength: 1, maxLength: 80 } }
  create_order:
    description: Create an order.
    effect: write
    bulkhead: 64
    http: { upstream: shop, method: POST, path: /create }
    schema:
      type: object
      required: [order_ref, sku, qty]
      properties:
        order_ref: { type: string, minLength: 1, maxLength: 80 }
        sku: { type: string, maxLength: 80 }
        qty: { type: integer, minimum: 1, maximum: 5 }
    write: { fingerprint: [/order_ref], drain: 3s }
  send_email:
    description: Send an e-mail to a customer.
    effect: write
    http: { upstream: shop, method: POST, path: /emails }
    schema:
      type: object
      required: [message_ref, text]
      properties:
        message_ref: { type: string, minLength: 1, maxLength: 80 }
        text: { type: string, maxLength: 500 }
    write: { fingerprint: [/message_ref], drain: 3s }
  pay:
    description: Pay into an account.
    effect: write
    http: { upstream: shop, method: POST, path: /pay }
    schema:
      type: object
      required: [account_id]
      properties: { account_id: { type: integer } }
    write: { drain: 3s }
  delete_order:
    description: Delete an order.
    effect: write
    http: { upstream: shop, method: DELETE, path: "/orders/{order_id}" }
    schema:
      type: object
      required: [order_id]
      properties: { order_id: { type: string, minLength: 1, maxLength: 80 } }
    write: { fingerprint: [/order_id], drain: 3s }
agents:
  default:
    allow: [lookup_order, list_regions, get_doc, create_order, send_email, pay]
  agent-a:
    identities: [{ token: { file: TOKEN_A } }]
    allow: [lookup_order, list_regions, get_doc, create_order, send_email, pay]
  agent-b:
    identities: [{ token: { file: TOKEN_B } }]
    allow: [lookup_order]
"#;

pub const TOKEN_A: &str = "token-of-agent-a-0123456789";
pub const TOKEN_B: &str = "token-of-agent-b-0123456789";

/// The shared policy, its upstream still open.
#[derive(Debug, Clone)]
pub struct Fixture {
    text: String,
}

impl Fixture {
    pub fn new() -> Self {
        Self { text: POLICY.trim_start().to_owned() }
    }

    /// Replaces a piece of the text that must be there.
    #[track_caller]
    pub fn with(mut self, old: &str, new: &str) -> Self {
        assert!(self.text.contains(old), "the shared policy has no {old:?}");
        self.text = self.text.replace(old, new);
        self
    }

    /// The budgets of the run: `budgets("rounds: 2")`.
    #[track_caller]
    pub fn budgets(self, more: &str) -> Self {
        self.with("wall_clock: 10s", &format!("wall_clock: 10s, {more}"))
    }

    /// More keys on one tool, given as lines of YAML without indentation.
    #[track_caller]
    pub fn tool(mut self, name: &str, keys: &str) -> Self {
        let head = format!("  {name}:\n");
        let at =
            self.text.find(&head).unwrap_or_else(|| panic!("the shared policy has no tool {name}"))
                + head.len();
        let lines: String = keys.lines().map(|line| format!("    {line}\n")).collect();
        self.text.insert_str(at, &lines);
        self
    }

    /// A further tool, as lines of YAML without indentation, allowed to `default` and `agent-a`.
    pub fn more_tool(mut self, name: &str, keys: &str) -> Self {
        let lines: String = keys.lines().map(|line| format!("    {line}\n")).collect();
        self.text = self.text.replace("agents:\n", &format!("  {name}:\n{lines}agents:\n"));
        self.text = self.text.replace("send_email, pay]", &format!("send_email, pay, {name}]"));
        self
    }

    /// The text for an upstream at `url`.
    pub fn text(&self, url: &str) -> String {
        self.text.replace("URL", url)
    }

    /// A gateway in this process, in front of `tool`.
    pub async fn start(&self, tool: &ScriptedTool) -> Gateway {
        Gateway::start(&self.text(&tool.url())).await
    }
}

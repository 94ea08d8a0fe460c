//! What a server offers: all pages of its list, within bounds, judged one by one and compared with what was pinned.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::link::{Inbound, Link, Lost, Reply};
use super::pins::{Pinned, Seen};
use super::silent::Silent;
use crate::call::Progress;
use crate::mcp::messages::{Dropped, Judged, List, ListPage, ToolDef, Transport, judge_tools};
use crate::policy::bind::{Catalog, Offered};
use crate::policy::pins::pin_of;
use crate::policy::snapshot::{OnDrift, Pin, Reach};

/// Bounds of one list of one server.
const MAX_PAGES: usize = 64;
const MAX_ITEMS: usize = 10_000;
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// Deepest item of a list; deeper ones have lost what is too deep for any message.
const MAX_ITEM_DEPTH: usize = 100;
/// Least time between two crawls that a server may ask for by `ttlMs`.
const TTL_FLOOR: Duration = Duration::from_secs(5);
/// Definitions that were left out are told by name up to here.
const MAX_TOLD: usize = 100;

/// A list, read whole.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) items: Vec<Value>,
    /// What could not be read.
    pub(super) dropped: Vec<Dropped>,
    /// The shortest that a page named.
    pub(super) ttl: Option<Duration>,
}

/// Why a list could not be had.
#[derive(Debug)]
pub(super) enum CrawlError {
    Lost(Lost),
    /// The server refused it, or a bound was crossed.
    Told(String),
}

impl std::fmt::Display for CrawlError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CrawlError::Lost(lost) => write!(f, "{lost}"),
            CrawlError::Told(why) => f.write_str(why),
        }
    }
}

/// All pages. A list ends only where a page names no next cursor; the empty text is a cursor.
pub(super) async fn crawl(
    link: &Link,
    list: List,
    progress: Option<&Progress>,
) -> Result<Listed, CrawlError> {
    let inbound: Arc<dyn Inbound> = Arc::new(Silent);
    let (mut items, mut dropped) = (Vec::new(), Vec::new());
    let mut bytes = 0;
    let mut ttl: Option<Duration> = None;
    let mut cursors: HashSet<String> = HashSet::new();
    let mut cursor: Option<String> = None;
    for _ in 0..MAX_PAGES {
        let mut params = Map::new();
        if let Some(cursor) = &cursor {
            params.insert("cursor".into(), Value::String(cursor.clone()));
        }
        let result = ask(link, list.method(), Value::Object(params), &inbound, progress).await?;
        let page = ListPage::of(list, &result)
            .map_err(|wrong| CrawlError::Told(format!("`{}`: {wrong}", list.method())))?;
        bytes += page.items.iter().map(|item| item.to_string().len()).sum::<usize>();
        for item in page.items {
            match is_deeper(item, MAX_ITEM_DEPTH) {
                true => dropped.push(too_deep(list, items.len() + dropped.len(), item)),
                false => items.push(item.clone()),
            }
        }
        if items.len() + dropped.len() > MAX_ITEMS || bytes > MAX_BYTES {
            let why =
                format!("the list is over the limit of {MAX_ITEMS} items or {MAX_BYTES} bytes");
            return Err(CrawlError::Told(why));
        }
        if let Some(told) = page.ttl_ms.map(Duration::from_millis) {
            ttl = Some(ttl.map_or(told, |ttl| ttl.min(told)).max(TTL_FLOOR));
        }
        let Some(next) = page.next_cursor else { return Ok(Listed { items, dropped, ttl }) };
        if !cursors.insert(next.to_owned()) {
            return Err(CrawlError::Told("the list names a page again that it has named".into()));
        }
        cursor = Some(next.to_owned());
    }
    Err(CrawlError::Told(format!("the list does not end within {MAX_PAGES} pages")))
}

/// Whether a value is nested deeper than this many levels.
fn is_deeper(value: &Value, most: usize) -> bool {
    match value {
        Value::Array(_) | Value::Object(_) if most == 0 => true,
        Value::Array(items) => items.iter().any(|item| is_deeper(item, most - 1)),
        Value::Object(members) => members.values().any(|value| is_deeper(value, most - 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn too_deep(list: List, at: usize, item: &Value) -> Dropped {
    let member = match list {
        List::Tools | List::Prompts => "name",
        List::Resources => "uri",
        List::ResourceTemplates => "uriTemplate",
    };
    let name = item.get(member).and_then(Value::as_str);
    let name = name.map_or_else(|| format!("#{at}"), str::to_owned);
    Dropped { name, reason: format!("it is nested deeper than {MAX_ITEM_DEPTH} levels") }
}

/// One request that belongs to no call.
pub(super) async fn ask(
    link: &Link,
    method: &str,
    params: Value,
    inbound: &Arc<dyn Inbound>,
    progress: Option<&Progress>,
) -> Result<Value, CrawlError> {
    match link.ask(method, params, inbound, progress).await {
        Ok(Reply::Result(result)) => Ok(result),
        Ok(Reply::Error(error)) => {
            let why = format!("`{method}` was refused ({}): {}", error.code, error.message);
            Err(CrawlError::Told(why))
        }
        Err(lost) => Err(CrawlError::Lost(lost)),
    }
}

/// A definition that is not the one that was trusted.
#[derive(Debug, Clone, PartialEq)]
pub struct Drift {
    pub tool: String,
    /// What it is now.
    pub definition: Arc<Value>,
    /// Of what it is now: what a person approves.
    pub pin: String,
    /// What was trusted, as far as it was kept; `None`: nobody has reviewed it yet.
    pub was: Option<Seen>,
    pub why: Arc<str>,
}

/// What came of a list of tools.
#[derive(Debug, Default)]
pub(super) struct Offer {
    pub(super) catalog: Catalog,
    pub(super) dropped: Vec<Dropped>,
    pub(super) drifts: Vec<Drift>,
    /// To be kept: tools that were seen for the first time.
    pub(super) to_pin: Option<Pinned>,
}

/// Judges the definitions, each alone, and compares them with their pins.
pub(super) fn offer(
    (items, too_deep): (Vec<Value>, Vec<Dropped>),
    reach: &Reach,
    pin: &Pin,
    on_drift: OnDrift,
    seen: &Pinned,
) -> Offer {
    let transport = match reach {
        Reach::Http => Transport::Http,
        Reach::Child(_) => Transport::Stdio,
    };
    let Judged { tools, mut dropped } = judge_tools(items, transport);
    dropped.extend(too_deep);
    if dropped.len() > MAX_TOLD {
        let more = dropped.split_off(MAX_TOLD).len();
        dropped.push(Dropped { name: "…".into(), reason: format!("{more} more were left out") });
    }
    let mut offer = Offer { dropped, ..Offer::default() };
    let mut pinned = seen.clone();
    for tool in tools {
        let why = drifted(&tool, pin, &mut pinned);
        if let Some(why) = &why {
            offer.drifts.push(drift(&tool, pin, &pinned, why));
        }
        let quarantined = why.filter(|_| on_drift != OnDrift::Warn);
        let own_name = tool.name.into();
        offer.catalog.tools.push(Offered { own_name, definition: tool.raw, quarantined });
    }
    if on_drift == OnDrift::Block
        && let Some(first) = offer.drifts.first()
    {
        let why: Arc<str> =
            format!("the server is blocked: `{}`: {}", first.tool, first.why).into();
        for tool in &mut offer.catalog.tools {
            tool.quarantined.get_or_insert_with(|| why.clone());
        }
    }
    offer.to_pin = (pinned != *seen).then_some(pinned);
    offer
}

fn drift(tool: &ToolDef, pin: &Pin, seen: &Pinned, why: &Arc<str>) -> Drift {
    let seen = seen.get(&tool.name);
    let was = match pin {
        Pin::None => None,
        Pin::FirstSeen => seen.cloned(),
        Pin::File(pins) => pins.get(&tool.name).map(|pin| Seen {
            pin: pin.clone(),
            definition: seen.filter(|seen| seen.pin == *pin).and_then(|s| s.definition.clone()),
        }),
    };
    Drift {
        tool: tool.name.clone(),
        definition: tool.raw.clone(),
        pin: pin_of(&tool.raw),
        was,
        why: why.clone(),
    }
}

/// Why a definition is not the pinned one. What is seen first is pinned by being seen, where the policy says so; what
/// is trusted is kept, for people who look at what comes after it.
fn drifted(tool: &ToolDef, pin: &Pin, seen: &mut Pinned) -> Option<Arc<str>> {
    let now = pin_of(&tool.raw);
    let pinned = match pin {
        Pin::None => return None,
        Pin::File(pins) => pins.get(&tool.name).cloned(),
        Pin::FirstSeen => {
            let first = seen.entry(tool.name.clone()).or_insert_with(|| Seen::of(&tool.raw));
            Some(first.pin.clone())
        }
    };
    let Some(pinned) = pinned else {
        return Some("it is not among the definitions that were reviewed".into());
    };
    if pinned.eq_ignore_ascii_case(&now) {
        if seen.get(&tool.name).is_none_or(|seen| seen.pin != now || seen.definition.is_none()) {
            seen.insert(tool.name.clone(), Seen { pin: now, definition: Some(tool.raw.clone()) });
        }
        return None;
    }
    let short = |text: &str| text.chars().skip(7).take(12).collect::<String>();
    let (was, is) = (short(&pinned), short(&now));
    Some(format!("its definition has changed since it was pinned (was {was}…, is {is}…)").into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(name: &str, words: &str) -> Value {
        json!({"name": name, "description": words, "inputSchema": {"type": "object"}})
    }

    fn quarantined(offer: &Offer) -> Vec<&str> {
        let tools = offer.catalog.tools.iter();
        tools.filter(|tool| tool.quarantined.is_some()).map(|tool| &*tool.own_name).collect()
    }

    fn first_seen(items: Vec<Value>, on_drift: OnDrift, seen: &Pinned) -> Offer {
        offer((items, Vec::new()), &Reach::Http, &Pin::FirstSeen, on_drift, seen)
    }

    #[test]
    fn what_is_seen_first_is_pinned_and_a_later_change_is_drift() {
        let first = first_seen(vec![tool("a", "x")], OnDrift::Quarantine, &Pinned::new());
        assert!(first.drifts.is_empty());
        let pins = first.to_pin.expect("a new tool");
        let changed = vec![tool("a", "y"), tool("b", "x")];
        let later = first_seen(changed.clone(), OnDrift::Quarantine, &pins);
        let was = later.drifts[0].was.as_ref().expect("it was seen");
        assert_eq!(was.definition.as_deref(), Some(&tool("a", "x")));
        assert_eq!(quarantined(&later), ["a"]);
        assert_eq!(later.to_pin.expect("b is new").len(), 2);
        let warned = first_seen(changed.clone(), OnDrift::Warn, &pins);
        assert_eq!((quarantined(&warned).len(), warned.drifts.len()), (0, 1));
        let blocked = first_seen(changed, OnDrift::Block, &pins);
        assert_eq!(quarantined(&blocked), ["a", "b"]);
    }

    #[test]
    fn a_tool_that_nobody_has_reviewed_is_drift_under_a_file_of_pins() {
        let pins = std::collections::BTreeMap::from([("a".to_owned(), pin_of(&tool("a", "x")))]);
        let items = vec![tool("a", "x"), tool("b", "x")];
        let pin = Pin::File(pins);
        let offer =
            offer((items, Vec::new()), &Reach::Http, &pin, OnDrift::Quarantine, &Pinned::new());
        assert_eq!(quarantined(&offer), ["b"]);
        assert_eq!(offer.drifts[0].was, None);
        let kept = offer.to_pin.expect("what was reviewed is kept as it was");
        assert_eq!(kept.keys().collect::<Vec<_>>(), ["a"]);
    }
}

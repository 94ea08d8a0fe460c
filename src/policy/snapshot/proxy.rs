//! Routes of plain HTTP clients: which tool a method and a path name.
//!
//! What is matched is what is sent: a path is compared as it will be read, once decoded, and refused where a server
//! that reads it less strictly would come to another route.

use std::borrow::Cow;
use std::sync::Arc;

use http::{HeaderName, Method};
use percent_encoding::percent_decode_str;

use super::{Target, Tool};
use crate::call::{Named, ToolName};

/// How requests reach a tool, and what of them goes on.
#[derive(Debug, Clone)]
pub struct ProxyRoute {
    pub methods: Vec<Method>,
    pub path: Vec<RoutePiece>,
    /// Fields of the client that go on, beside those that say what a body is.
    pub request_headers: Vec<HeaderName>,
    /// The policy says what a request may hold.
    pub has_schema: bool,
    /// Most bytes of a request's body.
    pub request_bytes: usize,
    /// Most bytes of an answer that is passed on as it comes; `None` = as many as come in time.
    pub response_bytes: Option<u64>,
}

impl Tool {
    /// The route of a tool that plain HTTP clients reach.
    pub fn route(&self) -> Option<&ProxyRoute> {
        match &self.target {
            Target::Proxy(route) => Some(route),
            Target::Http(_) | Target::Mcp(_) | Target::Passed => None,
        }
    }
}

/// One segment of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RoutePiece {
    /// Compared with the decoded segment.
    Literal(Arc<str>),
    One(Arc<str>),
    /// This and all that follow; last.
    Rest(Arc<str>),
}

impl RoutePiece {
    pub fn name(&self) -> Option<&Arc<str>> {
        match self {
            RoutePiece::Literal(_) => None,
            RoutePiece::One(name) | RoutePiece::Rest(name) => Some(name),
        }
    }
}

/// The routes of one upstream. More literal segments win, from the left.
#[derive(Debug, Clone, Default)]
pub struct RouteTable(Node);

#[derive(Debug, Clone, Default)]
struct Node {
    literal: Named<Arc<str>, Node>,
    one: Option<Box<Node>>,
    rest: Vec<Leaf>,
    end: Vec<Leaf>,
}

#[derive(Debug, Clone)]
struct Leaf {
    methods: Vec<Method>,
    path: Vec<RoutePiece>,
    tool: ToolName,
}

/// A tool, and the parts of the path that its route names, decoded.
#[derive(Debug, PartialEq, Eq)]
pub struct Routed {
    pub tool: ToolName,
    pub captures: Vec<(Arc<str>, String)>,
}

/// Why a path is none that could be matched and sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadPath {
    Escape,
    Text,
    Dots,
    Empty,
    /// A server that decodes twice, merges slashes or drops parameters would read another route.
    Ambiguous,
}

impl BadPath {
    /// One sentence for the client.
    pub fn why(self) -> &'static str {
        match self {
            BadPath::Escape => "the path holds a `%` that begins no escape",
            BadPath::Text => "the path is no UTF-8 text once decoded, or holds control characters",
            BadPath::Dots => "the path holds `.` or `..` as a segment",
            BadPath::Empty => "the path holds an empty segment",
            BadPath::Ambiguous => "the path can be read as that of another route",
        }
    }
}

impl RouteTable {
    pub fn insert(&mut self, tool: &ToolName, route: &ProxyRoute) {
        let leaf =
            Leaf { methods: route.methods.clone(), path: route.path.clone(), tool: tool.clone() };
        let mut node = &mut self.0;
        for piece in &route.path {
            node = match piece {
                RoutePiece::Literal(text) => node.literal.entry(Arc::clone(text)).or_default(),
                RoutePiece::One(_) => node.one.get_or_insert_default(),
                RoutePiece::Rest(_) => {
                    node.rest.push(leaf);
                    return;
                }
            };
        }
        node.end.push(leaf);
    }

    /// The tool of a method and a path that begins with `/`; `None` = no route has it.
    pub fn find(&self, method: &Method, path: &str) -> Result<Option<Routed>, BadPath> {
        let segments = segments(path)?;
        let found = self.0.find(method, &segments);
        if let Some(loose) = loosely(path, &segments)
            && let Some(other) = self.0.find(method, &loose)
            && found.is_none_or(|leaf| leaf.tool != other.tool)
        {
            return Err(BadPath::Ambiguous);
        }
        Ok(found.map(|leaf| leaf.routed(&segments)))
    }
}

impl Node {
    /// As deep as the longest route, whatever the path.
    fn find(&self, method: &Method, segments: &[Cow<'_, str>]) -> Option<&Leaf> {
        let takes = |leaf: &&Leaf| leaf.methods.contains(method);
        let Some((first, rest)) = segments.split_first() else {
            return self.end.iter().find(takes);
        };
        if let Some(found) =
            self.literal.get(first.as_ref()).and_then(|node| node.find(method, rest))
        {
            return Some(found);
        }
        let one = self.one.as_ref().filter(|_| !first.is_empty());
        if let Some(found) = one.and_then(|node| node.find(method, rest)) {
            return Some(found);
        }
        self.rest.iter().find(takes)
    }
}

impl Leaf {
    fn routed(&self, segments: &[Cow<'_, str>]) -> Routed {
        let mut captures = Vec::new();
        for (at, piece) in self.path.iter().enumerate() {
            match piece {
                RoutePiece::Literal(_) => {}
                RoutePiece::One(name) => {
                    let text = segments.get(at).map_or("", AsRef::as_ref);
                    captures.push((Arc::clone(name), text.to_owned()));
                }
                RoutePiece::Rest(name) => {
                    let rest = segments.get(at..).unwrap_or_default();
                    captures.push((Arc::clone(name), rest.join("/")));
                }
            }
        }
        Routed { tool: self.tool.clone(), captures }
    }
}

/// Decoded once, each for itself. Nothing in them climbs, however often a server decodes or splits them.
fn segments(path: &str) -> Result<Vec<Cow<'_, str>>, BadPath> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let mut out = Vec::with_capacity(8);
    let mut rest = path.split('/').peekable();
    while let Some(segment) = rest.next() {
        if segment.is_empty() && rest.peek().is_some() {
            return Err(BadPath::Empty);
        }
        let text = decoded(segment)?;
        let climbs = |part: &str| matches!(part.split(';').next(), Some("." | ".."));
        if text.split(['/', '\\']).any(climbs) {
            return Err(BadPath::Dots);
        }
        out.push(text);
    }
    Ok(out)
}

/// Text behind escapes (RFC 3986 §2.1), which must be whole.
pub fn decoded(text: &str) -> Result<Cow<'_, str>, BadPath> {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let hex = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_hexdigit());
        if byte == b'%' && !(hex(bytes.next()) && hex(bytes.next())) {
            return Err(BadPath::Escape);
        }
    }
    let text = percent_decode_str(text).decode_utf8().map_err(|_| BadPath::Text)?;
    if text.chars().any(char::is_control) { Err(BadPath::Text) } else { Ok(text) }
}

/// The same path as a careless server may read it: encoded slashes split, parameters dropped, slashes merged. `None`:
/// no difference.
fn loosely<'s>(path: &str, segments: &'s [Cow<'s, str>]) -> Option<Vec<Cow<'s, str>>> {
    if !path.bytes().any(|byte| matches!(byte, b'%' | b';' | b'\\')) {
        return None;
    }
    let parts: Vec<&str> = segments
        .iter()
        .flat_map(|segment| segment.split(['/', '\\']))
        .map(|part| part.split(';').next().unwrap_or_default())
        .collect();
    let last = parts.len().saturating_sub(1);
    let kept = parts.iter().enumerate().filter(|(at, part)| !part.is_empty() || *at == last);
    let loose: Vec<Cow<'s, str>> = kept.map(|(_, part)| Cow::Borrowed(*part)).collect();
    (loose != segments).then_some(loose)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(routes: &[(&str, &str, &str)]) -> RouteTable {
        let mut table = RouteTable::default();
        for (tool, methods, path) in routes {
            let piece = |text: &str| match text.strip_prefix('{').and_then(|t| t.strip_suffix('}'))
            {
                Some(name) => match name.strip_suffix('*') {
                    Some(name) => RoutePiece::Rest(name.into()),
                    None => RoutePiece::One(name.into()),
                },
                None => RoutePiece::Literal(text.into()),
            };
            let route = ProxyRoute {
                methods: methods.split(' ').map(|m| m.parse().expect("a method")).collect(),
                path: path[1..].split('/').map(piece).collect(),
                request_headers: Vec::new(),
                has_schema: false,
                request_bytes: 0,
                response_bytes: None,
            };
            table.insert(&ToolName::new(tool).expect("a name"), &route);
        }
        table
    }

    fn at(table: &RouteTable, method: &str, path: &str) -> Result<Option<String>, BadPath> {
        let method = method.parse().expect("a method");
        let found = table.find(&method, path)?;
        Ok(found.map(|routed| {
            let captures = routed.captures.iter().map(|(name, text)| format!(" {name}={text}"));
            format!("{}{}", routed.tool, captures.collect::<String>())
        }))
    }

    #[test]
    fn more_literal_segments_win_from_the_left_and_what_leads_nowhere_is_tried_otherwise() {
        let table = table(&[
            ("list", "GET", "/orders"),
            ("one", "GET HEAD", "/orders/{id}"),
            ("mine", "GET", "/orders/mine"),
            ("lines", "GET", "/orders/{id}/lines"),
            ("files", "GET", "/{rest*}"),
            ("root", "GET", "/"),
        ]);
        let found = |path: &str| at(&table, "GET", path).expect("a sound path");
        assert_eq!(found("/orders").as_deref(), Some("list"));
        assert_eq!(found("/orders/mine").as_deref(), Some("mine"));
        assert_eq!(found("/orders/7").as_deref(), Some("one id=7"));
        assert_eq!(found("/orders/mine/lines").as_deref(), Some("lines id=mine"));
        assert_eq!(found("/orders/mine/other").as_deref(), Some("files rest=orders/mine/other"));
        assert_eq!(found("/orders/").as_deref(), Some("files rest=orders/"));
        assert_eq!(found("/").as_deref(), Some("root"));
        assert_eq!(at(&table, "HEAD", "/orders/7"), Ok(Some("one id=7".into())));
        assert_eq!(at(&table, "HEAD", "/orders/mine"), Ok(Some("one id=mine".into())));
        assert_eq!(at(&table, "DELETE", "/orders/7"), Ok(None));
    }

    #[test]
    fn a_path_is_compared_as_it_will_be_read() {
        let table = table(&[("admin", "GET", "/admin"), ("page", "GET", "/{name}")]);
        assert_eq!(at(&table, "GET", "/%61dmin"), Ok(Some("admin".into())));
        assert_eq!(at(&table, "GET", "/a%20b"), Ok(Some("page name=a b".into())));
        assert_eq!(
            at(&table, "GET", "/group%2Fproject"),
            Ok(Some("page name=group/project".into()))
        );
        assert_eq!(at(&table, "GET", "/%252e%252e"), Ok(Some("page name=%2e%2e".into())));
        for (path, why) in [
            ("/%2fadmin", BadPath::Ambiguous),
            ("/admin;x=1", BadPath::Ambiguous),
            ("/%5Cadmin", BadPath::Ambiguous),
            ("/admin%2f", BadPath::Ambiguous),
            ("/..", BadPath::Dots),
            ("/%2e%2E", BadPath::Dots),
            ("/x%2f..%2fadmin", BadPath::Dots),
            ("/..;/admin", BadPath::Dots),
            ("/x%5c..", BadPath::Dots),
            ("//admin", BadPath::Empty),
            ("/a//b", BadPath::Empty),
            ("/%zz", BadPath::Escape),
            ("/%2", BadPath::Escape),
            ("/%ff", BadPath::Text),
            ("/a%00", BadPath::Text),
            ("/a%0d%0ab", BadPath::Text),
        ] {
            let found = at(&table, "GET", path);
            // A last empty part may be dropped or kept: another route either way, or none.
            if path != "/admin%2f" {
                assert_eq!(found, Err(why), "{path}");
            }
        }
    }

    #[test]
    fn a_long_path_costs_no_more_than_the_longest_route() {
        let table = table(&[("a", "GET", "/a/{x}/b"), ("rest", "GET", "/a/{r*}")]);
        let long = format!("/a/{}", "x/".repeat(15_000));
        assert!(
            at(&table, "GET", &long).expect("sound").expect("found").starts_with("rest r=x/x/")
        );
    }

    proptest::proptest! {
        /// Whatever is asked for: the tool that answers is the one that a literal reading names, or nothing is sent.
        #[test]
        fn no_spelling_reaches_a_tool_by_another_tools_route(path in "(/([a-c.%25F;\\\\]|%2[eEfF]|%61){0,6}){1,4}") {
            let table = table(&[("secret", "GET", "/a/b"), ("open", "GET", "/{x}/{y}"), ("any", "GET", "/c/{r*}")]);
            if let Ok(Some(found)) = table.find(&Method::GET, &path) {
                // Read as loosely as can be.
                let mut read = path.clone();
                for _ in 0..3 {
                    read = percent_decode_str(&read).decode_utf8_lossy().into_owned();
                }
                let once = percent_decode_str(&path).decode_utf8_lossy().into_owned();
                let parts: Vec<&str> = once.split(['/', '\\']).map(|p| p.split(';').next().unwrap_or_default()).filter(|p| !p.is_empty()).collect();
                proptest::prop_assert!(parts != ["a", "b"] || found.tool.as_str() == "secret", "{path}");
                proptest::prop_assert!(!parts.contains(&".."), "{path}");
            }
        }
    }
}

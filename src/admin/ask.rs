//! One request, read whole: path, query, precondition, and the members of its body. What is not known is refused.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, IF_MATCH};
use http::{HeaderMap, Method, Request};
use http_body_util::BodyExt;
use hyper::body::Body;
use serde_json::{Map, Value};

use super::answer::Problem;
use crate::people::reviews::{MAX_RESULT, MAX_WORDS};
use crate::strict_json::{self, Kind, Limits};

/// Longest body: a result and the words around it, in JSON's longest spelling of them.
const MAX_BODY: usize = 2 * (MAX_RESULT + 4 * MAX_WORDS);
const MAX_DEPTH: usize = 32;
/// Time for a body; people's tools send it at once.
const BODY_TIME: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Ask {
    pub(super) method: Method,
    pub(super) path: String,
    query: String,
    headers: HeaderMap,
    body: Map<String, Value>,
}

/// What every change says.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) who: Option<String>,
    pub(super) why: String,
}

/// What a change was decided on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seen {
    Any,
    Version(String),
}

impl Ask {
    pub(super) async fn read<B>(request: Request<B>) -> Result<Self, Problem>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let (head, body) = request.into_parts();
        let bytes = tokio::time::timeout(BODY_TIME, whole(body)).await;
        let bytes = bytes.map_err(|_| Problem::too_slow())??;
        let changes = head.method == Method::POST;
        if changes && !is_json(&head.headers) {
            return Err(Problem::media_type());
        }
        Ok(Self {
            method: head.method,
            path: head.uri.path().to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            headers: head.headers,
            body: if changes { members(&bytes)? } else { Map::new() },
        })
    }

    /// Values of the query, in the order of `names`; another name, or one twice, is refused.
    pub(super) fn query<const N: usize>(
        &self,
        names: [&str; N],
    ) -> Result<[Option<&str>; N], Problem> {
        let mut found = [None; N];
        for pair in self.query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let at = names.iter().position(|known| *known == name);
            match at.and_then(|at| found.get_mut(at)) {
                Some(place @ None) => *place = Some(value),
                Some(Some(_)) => return Err(Problem::invalid(format!("`{name}` stands twice"))),
                None => {
                    let known = names.join("`, `");
                    return Err(Problem::invalid(format!("the query may only hold `{known}`")));
                }
            }
        }
        Ok(found)
    }

    /// The body of a change that needs words only.
    pub(super) fn said(&self) -> Result<Said, Problem> {
        self.only(&["who", "why"])?;
        let why = self.text("why")?.filter(|why| !why.trim().is_empty());
        let Some(why) = why else {
            return Err(Problem::invalid("`/why` must say why; it is recorded"));
        };
        Ok(Said { who: self.text("who")?, why })
    }

    pub(super) fn only(&self, names: &[&str]) -> Result<(), Problem> {
        match self.body.keys().find(|name| !names.contains(&name.as_str())) {
            None => Ok(()),
            Some(_) => {
                let known = names.join("`, `");
                Err(Problem::invalid(format!("the body may only hold `{known}`")))
            }
        }
    }

    /// A member that is a text of bounded length, or absent.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>, Problem> {
        match self.body.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if text.len() <= MAX_WORDS => Ok(Some(text.clone())),
            Some(Value::String(_)) => {
                Err(Problem::invalid(format!("`/{name}` has more than {MAX_WORDS} bytes")))
            }
            Some(_) => Err(Problem::invalid(format!("`/{name}` must be a string"))),
        }
    }

    pub(super) fn member(&self, name: &str) -> Option<&Value> {
        self.body.get(name)
    }

    /// `If-Match`: one strong tag, or `*` (RFC 9110 §13.1.1). `None`: there is no such field.
    pub(super) fn if_match(&self) -> Result<Option<Seen>, Problem> {
        let mut fields = self.headers.get_all(IF_MATCH).iter();
        let (Some(field), None) = (fields.next(), fields.next()) else {
            return match self.headers.contains_key(IF_MATCH) {
                true => Err(Problem::invalid("more than one `If-Match`")),
                false => Ok(None),
            };
        };
        let text = field.to_str().unwrap_or_default().trim();
        if text == "*" {
            return Ok(Some(Seen::Any));
        }
        let tag = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        match tag.filter(|tag| !tag.contains('"')) {
            Some(tag) => Ok(Some(Seen::Version(tag.to_owned()))),
            None => Err(Problem::invalid("`If-Match` must be one ETag, in its quotes, or `*`")),
        }
    }
}

async fn whole<B>(mut body: B) -> Result<Bytes, Problem>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::invalid("the body broke off"))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > MAX_BODY {
            return Err(Problem::too_large(MAX_BODY));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

fn members(bytes: &[u8]) -> Result<Map<String, Value>, Problem> {
    let limits = Limits::arguments(MAX_BODY, MAX_DEPTH);
    match strict_json::parse(bytes, limits) {
        Ok(Value::Object(members)) => Ok(members),
        Ok(_) => Err(Problem::invalid("the body must be one JSON object")),
        Err(fault) if fault.kind == Kind::Empty => Ok(Map::new()),
        Err(fault) => Err(Problem::invalid(format!("the body is not sound: {fault}"))),
    }
}

//! The tool's credential, put in last: no fixed header and no argument can stand in its place.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::classify;
use crate::call::Failed;
use crate::policy::snapshot::{Auth, Secret};

/// What stands where a tool sent our credential back.
const BLOT: &str = "[redacted]";
/// A shorter secret cannot be told from ordinary text, and would tear holes into it.
const LEAST_BLOTTED: usize = 8;

/// The spellings of a credential that a tool may send back: debugging pages and error texts like to show the request
/// they got. Neither a model nor a record has a use for them.
pub(super) struct Blots(Vec<Vec<u8>>);

impl std::fmt::Debug for Blots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Blots({})", self.0.len())
    }
}

impl Blots {
    pub(super) fn of(auth: Option<&Auth>) -> Self {
        let texts = match auth {
            None => Vec::new(),
            Some(Auth::Bearer(secret) | Auth::Header { value: secret, .. }) => {
                text(secret).map(|text| vec![text.to_owned()]).unwrap_or_default()
            }
            Some(Auth::Basic { username, password }) => text(password)
                .map(|text| vec![pair(username, text), text.to_owned()])
                .unwrap_or_default(),
        };
        Self::of_texts(texts)
    }

    /// The same for secrets that are known by themselves.
    pub(super) fn of_texts(texts: Vec<String>) -> Self {
        let mut spellings: Vec<String> = Vec::new();
        for text in texts.into_iter().filter(|text| text.len() >= LEAST_BLOTTED) {
            // As it is, as a JSON string holds it, and as those writers do that escape every slash.
            let quoted = serde_json::Value::from(text.as_str()).to_string();
            let inner = quoted.trim_matches('"').to_owned();
            let slashed = inner.replace('/', "\\/");
            for spelling in [text, inner, slashed] {
                if !spellings.contains(&spelling) {
                    spellings.push(spelling);
                }
            }
        }
        Self(spellings.into_iter().map(String::into_bytes).collect())
    }

    /// Every spelling that is struck out.
    pub(super) fn spellings(&self) -> &[Vec<u8>] {
        &self.0
    }

    /// Fields whose value holds the credential are left out.
    pub(super) fn over_headers(&self, headers: &mut HeaderMap) {
        if self.0.is_empty() {
            return;
        }
        let holds = |value: &HeaderValue| {
            self.0.iter().any(|secret| find(secret, value.as_bytes()).is_some())
        };
        let names = headers.iter().filter(|(_, value)| holds(value));
        let names: Vec<HeaderName> = names.map(|(name, _)| name.clone()).collect();
        for name in names {
            drop(headers.remove(name));
        }
    }

    /// The bytes without the credential.
    pub(super) fn over(&self, bytes: Bytes) -> Bytes {
        self.0.iter().fold(bytes, |bytes, secret| blot(secret, bytes))
    }

    /// The text without the credential.
    pub(super) fn over_text(&self, text: &mut String) {
        let bytes = self.over(Bytes::copy_from_slice(text.as_bytes()));
        if bytes != text.as_bytes() {
            *text = String::from_utf8_lossy(&bytes).into_owned();
        }
    }
}

fn blot(secret: &[u8], bytes: Bytes) -> Bytes {
    let mut at = 0;
    let mut kept = Vec::new();
    while let Some(found) = find(secret, bytes.get(at..).unwrap_or_default()) {
        kept.extend_from_slice(bytes.get(at..at + found).unwrap_or_default());
        if secret.iter().all(u8::is_ascii_digit) {
            // It may stand as a number, and has to stay one.
            kept.resize(kept.len() + secret.len(), b'9');
        } else {
            kept.extend_from_slice(BLOT.as_bytes());
        }
        at += found + secret.len();
    }
    if at == 0 {
        return bytes;
    }
    kept.extend_from_slice(bytes.get(at..).unwrap_or_default());
    kept.into()
}

fn find(needle: &[u8], bytes: &[u8]) -> Option<usize> {
    let first = needle.first()?;
    let mut at = 0;
    loop {
        at += bytes.get(at..)?.iter().position(|byte| byte == first)?;
        if bytes.get(at..)?.starts_with(needle) {
            return Some(at);
        }
        at += 1;
    }
}

/// User and password as RFC 7617 writes them.
fn pair(username: &str, password: &str) -> String {
    STANDARD.encode(format!("{username}:{password}"))
}

/// Sets the credential's header, replacing whatever had its name. `Err`: it is missing, or no header can hold it.
pub(super) fn inject(headers: &mut HeaderMap, auth: Option<&Auth>) -> Result<(), Failed> {
    match auth {
        None => Ok(()),
        Some(Auth::Bearer(secret)) => {
            set(headers, &AUTHORIZATION, &format!("Bearer {}", text(secret)?), secret)
        }
        Some(Auth::Basic { username, password }) => {
            let pair = pair(username, text(password)?);
            set(headers, &AUTHORIZATION, &format!("Basic {pair}"), password)
        }
        Some(Auth::Header { name, prefix, value }) => {
            set(headers, name, &format!("{prefix}{}", text(value)?), value)
        }
    }
}

fn text(secret: &Secret) -> Result<&str, Failed> {
    secret
        .value
        .as_ref()
        .map(|value| value.0.as_ref())
        .filter(|value| !value.is_empty())
        .ok_or_else(|| classify::no_credential(&secret.origin))
}

fn set(
    headers: &mut HeaderMap,
    name: &HeaderName,
    value: &str,
    secret: &Secret,
) -> Result<(), Failed> {
    let mut value =
        HeaderValue::from_str(value).map_err(|_| classify::no_credential(&secret.origin))?;
    value.set_sensitive(true);
    headers.insert(name, value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::call::code::FailCode;
    use crate::policy::snapshot::SecretText;

    fn secret(value: Option<&str>) -> Secret {
        Secret {
            origin: Arc::from("env SHOP_TOKEN"),
            value: value.map(|value| SecretText(Arc::from(value))),
        }
    }

    #[test]
    fn each_form_sets_its_header_and_replaces_what_stood_there() {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer of-the-agent"));
        inject(&mut headers, Some(&Auth::Bearer(secret(Some("s3"))))).expect("there");
        assert_eq!(headers[AUTHORIZATION], "Bearer s3");
        assert!(headers[AUTHORIZATION].is_sensitive());
        let basic = Auth::Basic { username: "u".into(), password: secret(Some("p")) };
        inject(&mut headers, Some(&basic)).expect("there");
        assert_eq!(headers[AUTHORIZATION], "Basic dTpw");
        let name = HeaderName::from_static("x-api-key");
        let header =
            Auth::Header { name: name.clone(), prefix: "k=".into(), value: secret(Some("1")) };
        inject(&mut headers, Some(&header)).expect("there");
        assert_eq!(headers[name], "k=1");
    }

    #[test]
    fn a_credential_that_is_sent_back_is_blotted_in_every_spelling() {
        let over = |auth: &Auth, text: &str| {
            let bytes = Blots::of(Some(auth)).over(Bytes::copy_from_slice(text.as_bytes()));
            String::from_utf8(bytes.to_vec()).expect("text")
        };
        let bearer = Auth::Bearer(secret(Some(r#"ab/cd"ef+gh="#)));
        assert_eq!(over(&bearer, r#"Bearer ab/cd"ef+gh=."#), "Bearer [redacted].");
        assert_eq!(over(&bearer, r#"{"h":"ab/cd\"ef+gh="}"#), r#"{"h":"[redacted]"}"#);
        assert_eq!(over(&bearer, r#"{"h":"ab\/cd\"ef+gh="}"#), r#"{"h":"[redacted]"}"#);
        assert_eq!(over(&bearer, "abab/cd\"ef+gh"), "abab/cd\"ef+gh", "not whole: not it");
        let basic = Auth::Basic { username: "user".into(), password: secret(Some("pass word")) };
        assert_eq!(over(&basic, "dXNlcjpwYXNzIHdvcmQ= pass word"), "[redacted] [redacted]");
        let digits = Auth::Bearer(secret(Some("12345678")));
        assert_eq!(over(&digits, r#"{"key":12345678}"#), r#"{"key":99999999}"#);
        let short = Auth::Bearer(secret(Some("1234567")));
        assert_eq!(over(&short, "1234567"), "1234567");
        let none = Auth::Bearer(secret(None));
        assert_eq!(over(&none, "as it is"), "as it is");
    }

    #[test]
    fn a_missing_or_unusable_secret_is_told_by_its_origin_and_never_by_its_value() {
        for value in [None, Some(""), Some("line\nbreak")] {
            let failed = inject(&mut HeaderMap::new(), Some(&Auth::Bearer(secret(value))))
                .expect_err("unusable");
            assert_eq!(failed.code, FailCode::CredentialUnavailable);
            assert!(failed.message.contains("env SHOP_TOKEN"), "{}", failed.message);
            assert!(!failed.message.contains("break"), "{}", failed.message);
        }
    }
}

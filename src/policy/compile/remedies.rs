//! Keys that tools recognise, compiled.

use http::HeaderName;

use crate::policy::document::{self as written, KeyMode, Maybe};
use crate::policy::merge::get;
use crate::policy::snapshot::{Idempotency, SentAs};

/// The header that carries a key where the policy names none (draft-ietf-httpapi-idempotency-key-header).
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

pub(super) fn idempotency(section: &Maybe<written::Idempotency>) -> Option<Idempotency> {
    let written = &section.as_ref()?.value;
    let sent_as = match get(&written.mode)? {
        KeyMode::Header => {
            let name = written.name.as_ref().map(|name| name.value.as_str());
            let name = name.and_then(|name| HeaderName::from_bytes(name.as_bytes()).ok());
            SentAs::Header {
                name: name.unwrap_or(IDEMPOTENCY_KEY),
                quoted: get(&written.quoted).unwrap_or(false),
            }
        }
        KeyMode::Argument => SentAs::Argument(written.argument()?),
        KeyMode::Natural => SentAs::Natural,
    };
    Some(Idempotency { sent_as, window: get(&written.window) })
}

//! The tool's credential, put in last: no fixed header and no argument can stand in its place.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::classify;
use crate::call::Failed;
use crate::policy::snapshot::{Auth, Secret};

/// Sets the credential's header, replacing whatever had its name. `Err`: it is missing, or no header can hold it.
pub(super) fn inject(headers: &mut HeaderMap, auth: Option<&Auth>) -> Result<(), Failed> {
    match auth {
        None => Ok(()),
        Some(Auth::Bearer(secret)) => {
            set(headers, &AUTHORIZATION, &format!("Bearer {}", text(secret)?), secret)
        }
        Some(Auth::Basic { username, password }) => {
            // RFC 7617.
            let pair = STANDARD.encode(format!("{username}:{}", text(password)?));
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

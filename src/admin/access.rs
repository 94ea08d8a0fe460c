//! Who may come in. Over TCP a token, always, also on loopback: the agent is on this machine too. Over the Unix socket
//! the gateway's own uid, and a token where there are any. An agent's credential opens nothing.

use std::net::SocketAddr;

use http::Request;
use http::header::{HOST, ORIGIN};

use super::answer::Problem;
use crate::identity::{self, Peer, Shown};
use crate::people::Person;
use crate::policy::snapshot::Snapshot;

/// Shortest token: 16 characters are past guessing where each guess is a request.
const MIN_TOKEN: usize = 16;
/// Most tokens of a file.
const MAX_TOKENS: usize = 64;
/// Who shows the only token of a file that names nobody.
const UNNAMED: &str = "admin";

/// One person's credential.
#[derive(Clone)]
pub struct Token {
    pub name: String,
    secret: String,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Token {
    pub fn secret(&self) -> &str {
        &self.secret
    }
}

/// Why a file of tokens cannot be used; names the line, never what stands on it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadTokens(String);

/// The tokens of a file: `NAME TOKEN` a line, or one line that is a token alone. Empty lines and `#` lines are passed.
pub fn tokens(text: &str) -> Result<Vec<Token>, BadTokens> {
    let bad = |line: usize, what: &str| Err(BadTokens(format!("line {}: {what}", line + 1)));
    let mut found: Vec<Token> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace();
        let (name, secret) = match (words.next(), words.next(), words.next()) {
            (None, _, _) => continue,
            (Some(word), _, _) if word.starts_with('#') => continue,
            (Some(secret), None, _) => (UNNAMED, secret),
            (Some(name), Some(secret), None) => (name, secret),
            (Some(_), Some(_), Some(_)) => return bad(at, "wanted `NAME TOKEN`"),
        };
        if secret.len() < MIN_TOKEN || !identity::is_token(secret.as_bytes()) {
            return bad(at, "a token has 16 or more of the characters A-Z a-z 0-9 - . _ ~ + / =");
        }
        if Person::of("").named(name).is_err() {
            return bad(at, "the name is too long or holds control characters");
        }
        if found.iter().any(|token| token.name == name || token.secret == secret) {
            return bad(at, "a name or a token stands twice");
        }
        if found.len() >= MAX_TOKENS {
            return bad(at, "too many tokens");
        }
        found.push(Token { name: name.to_owned(), secret: secret.to_owned() });
    }
    match found.is_empty() {
        true => Err(BadTokens("there is no token in it".to_owned())),
        false => Ok(found),
    }
}

/// How the listener is guarded.
#[derive(Debug)]
pub enum Access {
    /// The port is part of every `Host`.
    Tcp { address: SocketAddr, tokens: Vec<Token> },
    /// `uid`: whose process may connect.
    Unix { uid: u32, tokens: Vec<Token> },
}

impl Access {
    /// Who asks; refused: a host that is not ours, a browser, no credential of a person.
    pub(super) fn admit<B>(
        &self,
        peer: Peer,
        request: &Request<B>,
        snapshot: &Snapshot,
    ) -> Result<Person, Problem> {
        let headers = request.headers();
        let mut hosts = headers.get_all(HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host.to_str().unwrap_or_default(),
            (None, _) | (Some(_), Some(_)) => return Err(Problem::wrong_host()),
        };
        let of_target = request.uri().authority().map(http::uri::Authority::as_str);
        if !self.is_ours(host) || of_target.is_some_and(|target| !self.is_ours(target)) {
            return Err(Problem::wrong_host());
        }
        if headers.contains_key(ORIGIN) {
            return Err(Problem::of_browser());
        }
        let (tokens, uid) = match self {
            Access::Tcp { tokens, .. } => (tokens, None),
            Access::Unix { uid, tokens } => (tokens, Some(*uid)),
        };
        if let Some(uid) = uid
            && peer != (Peer::Unix { uid: Some(uid) })
        {
            return Err(Problem::forbidden("only the gateway's own user may connect here"));
        }
        match (identity::shown(headers), uid) {
            (Shown::Nothing, Some(uid)) if tokens.is_empty() => {
                Ok(Person::of(&format!("uid:{uid}")))
            }
            (Shown::Token(shown), _) => {
                if identity::is_agents(shown, snapshot) {
                    return Err(Problem::forbidden("an agent's credential opens nothing here"));
                }
                owner(shown, tokens).ok_or_else(Problem::unauthenticated)
            }
            (Shown::Nothing | Shown::Unsound, _) => Err(Problem::unauthenticated()),
        }
    }

    /// A name that points here by somebody else's DNS is not ours, so a web page cannot come in by it.
    fn is_ours(&self, host: &str) -> bool {
        match self {
            Access::Tcp { address, .. } => {
                let local = format!("localhost:{}", address.port());
                host == address.to_string() || host.eq_ignore_ascii_case(&local)
            }
            // No name leads to a Unix socket; clients send `localhost`.
            Access::Unix { .. } => {
                let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
                name.eq_ignore_ascii_case("localhost")
            }
        }
    }
}

/// Compared with every token, to the end of each.
fn owner(shown: &[u8], tokens: &[Token]) -> Option<Person> {
    let mut found = None;
    for token in tokens {
        if identity::same(token.secret.as_bytes(), shown) {
            found = Some(Person::of(&token.name));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_tokens_names_people_and_a_single_token_may_stand_alone() {
        let named =
            tokens("# people\n\nada 0123456789abcdef\ngrace fedcba9876543210\n").expect("ok");
        assert_eq!(named.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["ada", "grace"]);
        assert_eq!(tokens("0123456789abcdef").expect("ok")[0].name, "admin");
        for bad in [
            "",
            "# nobody",
            "ada short",
            "ada 0123456789abcdef x",
            "ada 0123456789abcde\u{e9}",
            "ada 0123456789abcdef\nada fedcba9876543210",
            "ada 0123456789abcdef\ngrace 0123456789abcdef",
        ] {
            let told = tokens(bad).expect_err(bad).to_string();
            assert!(!told.contains("0123456789"), "{told}");
        }
    }

    #[test]
    fn only_our_own_names_are_ours() {
        let address = "127.0.0.1:7413".parse().expect("an address");
        let tcp = Access::Tcp { address, tokens: Vec::new() };
        for host in ["127.0.0.1:7413", "localhost:7413", "LOCALHOST:7413"] {
            assert!(tcp.is_ours(host), "{host}");
        }
        for host in
            ["127.0.0.1", "localhost", "localhost:80", "evil.example:7413", "", "127.0.0.1:7413.x"]
        {
            assert!(!tcp.is_ours(host), "{host}");
        }
        let unix = Access::Unix { uid: 1, tokens: Vec::new() };
        assert!(unix.is_ours("localhost") && unix.is_ours("localhost:1"));
        assert!(!unix.is_ours("evil.example") && !unix.is_ours(""));
    }
}

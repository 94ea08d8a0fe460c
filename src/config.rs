//! The process's settings: where it listens, where its policy and records are. Fixed for its life; everything that
//! may change while it runs stands in the policy.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Longest path of a Unix socket (sun_path less its closing zero, unix(7)).
const MAX_SOCKET_PATH: usize = 107;

/// What the process was told at its start.
#[derive(Debug, Clone)]
pub struct Config {
    pub policy: PathBuf,
    pub listen: Listen,
    /// Where clients of one upstream connect, by its name: each such address is that upstream's alone.
    pub proxies: Vec<(String, Listen)>,
    pub health: SocketAddr,
    /// Where people connect; `None` = nowhere.
    pub admin: Option<Listen>,
    /// Tokens of people. Needed over TCP.
    pub admin_token_file: Option<PathBuf>,
    /// How long a gateway that was told to stop goes on serving, not ready, so that address lists catch up.
    pub drain_delay: Duration,
    /// How long it waits for calls in flight after that; new ones are refused.
    pub drain_timeout: Duration,
    pub audit: Audit,
    pub store: Keeps,
    /// Where the durable store lies.
    pub state: PathBuf,
    /// Bytes the store may take; past it writes are refused.
    pub state_max: u64,
    /// `None`: the cores this process may use, at least 1, at most 2.
    pub workers: Option<usize>,
    pub max_series: usize,
    pub policy_poll: Duration,
    /// Names by which agents that speak MCP may reach the listener, beside its own: `gateway.example:7411`.
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages that may speak MCP here: `https://console.example`.
    pub allowed_origins: Vec<String>,
    /// Where people decide about calls that wait, as agents' users are told it; see [`console_url`].
    pub console_url: Option<String>,
    /// Whether MCP sessions are offered a stream by GET.
    pub mcp_get_stream: bool,
    /// Written once the gateway is ready: `data=ADDRESS`, `health=ADDRESS` and, where there is one, `admin=ADDRESS`,
    /// a line each.
    pub ready_file: Option<PathBuf>,
}

impl Config {
    /// The defaults, with a policy: loopback 7411, health on 7412.
    pub fn new(policy: impl Into<PathBuf>) -> Self {
        Self {
            policy: policy.into(),
            listen: Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 7411))),
            proxies: Vec::new(),
            health: SocketAddr::from(([0, 0, 0, 0], 7412)),
            admin: None,
            admin_token_file: None,
            drain_delay: Duration::ZERO,
            drain_timeout: Duration::from_secs(25),
            audit: Audit::Stdout,
            store: Keeps::Sqlite,
            state: PathBuf::from(DEFAULT_STATE),
            state_max: DEFAULT_STATE_MAX,
            workers: None,
            max_series: 20_000,
            policy_poll: Duration::from_secs(1),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            console_url: None,
            mcp_get_stream: true,
            ready_file: None,
        }
    }

    /// As for a test: any free loopback ports, no records, nothing that outlives it.
    pub fn loopback(policy: impl Into<PathBuf>) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self {
            listen: Listen::Tcp(any),
            health: any,
            audit: Audit::None,
            store: Keeps::Memory,
            ..Self::new(policy)
        }
    }

    /// How many threads take calls.
    pub fn worker_count(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.workers.unwrap_or_else(|| cores().clamp(1, 2))
    }
}

/// Where the store lies unless told otherwise, and how large it may become.
pub const DEFAULT_STATE: &str = "/var/lib/checkrein";
pub const DEFAULT_STATE_MAX: u64 = 128 << 20;
/// A smaller store could not hold its own tables and a log.
const LEAST_STATE_MAX: u64 = 1 << 20;

/// What keeps the memory of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// A file of the state folder: it outlives the process.
    Sqlite,
    /// Nothing outlives the process: for trials only.
    Memory,
}

impl FromStr for Keeps {
    type Err = BadSetting;

    fn from_str(text: &str) -> Result<Self, BadSetting> {
        match text {
            "sqlite" => Ok(Keeps::Sqlite),
            "memory" => Ok(Keeps::Memory),
            other => bad(format!("`{other}` is none of sqlite, memory")),
        }
    }
}

/// A whole number and its unit: `16MiB`, `1GiB`.
pub fn state_max(text: &str) -> Result<u64, BadSetting> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let one: u64 = match unit {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return bad(format!("`{text}` needs a whole number and one of KiB, MiB, GiB: 128MiB")),
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(one)) {
        Some(bytes) if bytes >= LEAST_STATE_MAX => Ok(bytes),
        Some(_) => bad(format!("`{text}` is too small: at least 1MiB")),
        None => bad(format!("`{text}` needs a whole number before its unit: 128MiB")),
    }
}

/// An address that people are shown: https, or http of this machine; nothing secret in it, no `/` at its end.
pub fn console_url(text: &str) -> Result<String, BadSetting> {
    let wrong = || bad(format!("`{text}` must be https://HOST…, or http:// of this machine"));
    let Some((scheme, rest)) = text.split_once("://") else { return wrong() };
    let authority = rest.split('/').next().unwrap_or_default();
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
        Some(_) | None => authority,
    };
    let sound = |b: u8| b.is_ascii_alphanumeric() || b"-._~:/[]%".contains(&b);
    let here = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
    let allowed = scheme == "https" || (scheme == "http" && here);
    match allowed && !host.is_empty() && rest.bytes().all(sound) {
        true => Ok(text.trim_end_matches('/').to_owned()),
        false => wrong(),
    }
}

/// Where agents connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Listen {
    /// True where an agent of another machine could connect.
    pub fn is_open(&self) -> bool {
        match self {
            Listen::Tcp(address) => !address.ip().to_canonical().is_loopback(),
            Listen::Unix(_) => false,
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => write!(f, "{address}"),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Why a text is no setting of its kind: one sentence naming the mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadSetting(pub String);

fn bad<T>(message: impl Into<String>) -> Result<T, BadSetting> {
    Err(BadSetting(message.into()))
}

impl FromStr for Listen {
    type Err = BadSetting;

    fn from_str(text: &str) -> Result<Self, BadSetting> {
        let Some(path) = text.strip_prefix("unix:") else {
            return address(text).map(Listen::Tcp);
        };
        if path.is_empty() {
            return bad(
                "`unix:` needs the socket's path, for example unix:/run/checkrein/agent.sock",
            );
        }
        if path.len() > MAX_SOCKET_PATH {
            return bad(format!("a Unix socket's path has at most {MAX_SOCKET_PATH} bytes"));
        }
        Ok(Listen::Unix(path.into()))
    }
}

/// `UPSTREAM=ADDRESS:PORT` or `UPSTREAM=unix:PATH`.
pub fn proxy(text: &str) -> Result<(String, Listen), BadSetting> {
    match text.split_once('=') {
        Some((upstream, listen)) if !upstream.is_empty() => {
            Ok((upstream.to_owned(), listen.parse()?))
        }
        Some(_) | None => {
            bad(format!("`{text}` is no UPSTREAM=ADDRESS:PORT, for example shop=127.0.0.1:7421"))
        }
    }
}

/// `ADDRESS:PORT`; `localhost` is 127.0.0.1.
pub fn address(text: &str) -> Result<SocketAddr, BadSetting> {
    let numeric = match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => text.to_owned(),
    };
    let wanted = "an address and a port, for example 127.0.0.1:7411 or [::1]:7411";
    numeric.parse().or_else(|_| bad(format!("`{text}` is not {wanted}")))
}

/// Where records go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Audit {
    Stdout,
    Stderr,
    File(PathBuf),
    None,
}

impl FromStr for Audit {
    type Err = BadSetting;

    fn from_str(text: &str) -> Result<Self, BadSetting> {
        match text {
            "stdout" => Ok(Audit::Stdout),
            "stderr" => Ok(Audit::Stderr),
            "none" => Ok(Audit::None),
            other => match other.strip_prefix("file:") {
                Some(path) if !path.is_empty() => Ok(Audit::File(path.into())),
                Some(_) | None => {
                    bad(format!("`{other}` is none of stdout, stderr, file:PATH, none"))
                }
            },
        }
    }
}

/// A whole number and its unit: `250ms`, `25s`, `2m`, `1h`.
pub fn duration(text: &str) -> Result<Duration, BadSetting> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return bad(format!("`{text}` needs a whole number and one of ms, s, m, h: 25s")),
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(millis)) {
        Some(millis) if millis <= MAX_DURATION_MS => Ok(Duration::from_millis(millis)),
        Some(_) => bad(format!("`{text}` is longer than a day")),
        None => bad(format!("`{text}` needs a whole number before its unit: 25s")),
    }
}

const MAX_DURATION_MS: u64 = 24 * 3_600_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_addresses_or_socket_paths() {
        let tcp = |text: &str| Listen::Tcp(text.parse().expect(text));
        assert_eq!("127.0.0.1:7411".parse(), Ok(tcp("127.0.0.1:7411")));
        assert_eq!("localhost:0".parse(), Ok(tcp("127.0.0.1:0")));
        assert_eq!("[::1]:80".parse(), Ok(tcp("[::1]:80")));
        assert_eq!("unix:/run/x".parse(), Ok(Listen::Unix("/run/x".into())));
        let long = format!("unix:/{}", "x".repeat(107));
        for text in ["7411", "example.org:80", "127.0.0.1", "unix:", "", &long] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_listener_of_an_upstream_names_it_first() {
        let listen = "127.0.0.1:7421".parse().expect("an address");
        assert_eq!(proxy("shop=127.0.0.1:7421"), Ok(("shop".into(), listen)));
        assert_eq!(
            proxy("shop=unix:/run/x=y"),
            Ok(("shop".into(), Listen::Unix("/run/x=y".into())))
        );
        for text in ["127.0.0.1:7421", "=127.0.0.1:7421", "shop", "shop=", "shop=7421"] {
            assert!(proxy(text).is_err(), "{text}");
        }
    }

    #[test]
    fn people_are_shown_https_or_this_machine_and_no_secret() {
        assert_eq!(
            console_url("https://console.example/x/"),
            Ok("https://console.example/x".into())
        );
        for text in ["https://c:8443", "http://localhost:7", "http://127.0.0.1", "http://[::1]:7/a"]
        {
            assert_eq!(console_url(text).as_deref(), Ok(text));
        }
        for text in [
            "",
            "console.example",
            "https://",
            "https:///x",
            "http://console.example",
            "http://127.0.0.1.example",
            "http://localhost@evil.example",
            "https://user:word@console.example",
            "https://console.example/?token=x",
            "https://console.example/#x",
            "javascript://localhost/",
            "https://a b",
        ] {
            assert!(console_url(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_loopback_and_sockets_are_closed_to_other_machines() {
        for (text, open) in [
            ("127.0.0.1:1", false),
            ("127.8.9.1:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("unix:/x", false),
            ("0.0.0.0:1", true),
            ("[::]:1", true),
            ("10.0.0.1:1", true),
        ] {
            assert_eq!(text.parse::<Listen>().expect(text).is_open(), open, "{text}");
        }
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("25s"), Ok(Duration::from_secs(25)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for text in ["25", "-1s", "1.5s", "s", "", "1d", "99999999999999999999s", "25h", " 1s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_store_has_a_size_and_a_kind() {
        assert_eq!(state_max("128MiB"), Ok(DEFAULT_STATE_MAX));
        assert_eq!(state_max("2GiB"), Ok(2 << 30));
        for text in ["128", "1023KiB", "0MiB", "MiB", "128MB", "-1MiB", "99999999999GiB"] {
            assert!(state_max(text).is_err(), "{text}");
        }
        assert_eq!(("sqlite".parse(), "memory".parse()), (Ok(Keeps::Sqlite), Ok(Keeps::Memory)));
        assert!("postgres".parse::<Keeps>().is_err());
    }

    #[test]
    fn records_go_to_one_of_four_places() {
        assert_eq!("file:/var/log/x".parse(), Ok(Audit::File("/var/log/x".into())));
        assert_eq!("none".parse(), Ok(Audit::None));
        assert!("file:".parse::<Audit>().is_err() && "syslog".parse::<Audit>().is_err());
    }
}

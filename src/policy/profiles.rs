//! The four built-in profiles: how long a kind of tool is waited for, how often it is asked again, when it is left alone.

use std::time::Duration;

/// One built-in profile. Its jitter is its back-off base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Builtin {
    pub name: &'static str,
    pub connect: Duration,
    pub first_byte: Duration,
    pub total: Duration,
    pub max_retries: u32,
    pub backoff_base: Duration,
    pub backoff_max: Duration,
    /// Of the whole retry loop.
    pub retry_deadline: Duration,
    pub consecutive_failures: u32,
}

/// What `defaults.profile` is when it is not written.
pub const DEFAULT: &str = "external_http";

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// In the order of the documentation.
pub const BUILTIN: [Builtin; 4] = [
    Builtin {
        name: "internal_rpc",
        connect: seconds(3),
        first_byte: seconds(10),
        total: seconds(15),
        max_retries: 2,
        backoff_base: seconds(1),
        backoff_max: seconds(30),
        retry_deadline: seconds(50),
        consecutive_failures: 3,
    },
    EXTERNAL_HTTP,
    Builtin {
        name: "llm_inference",
        connect: seconds(5),
        first_byte: seconds(60),
        total: seconds(120),
        max_retries: 2,
        backoff_base: seconds(2),
        backoff_max: seconds(30),
        retry_deadline: seconds(240),
        consecutive_failures: 2,
    },
    Builtin {
        name: "file_transfer",
        connect: seconds(5),
        first_byte: seconds(30),
        total: seconds(300),
        max_retries: 1,
        backoff_base: seconds(0),
        backoff_max: seconds(0),
        retry_deadline: seconds(600),
        consecutive_failures: 2,
    },
];

pub const EXTERNAL_HTTP: Builtin = Builtin {
    name: DEFAULT,
    connect: seconds(5),
    first_byte: seconds(30),
    total: seconds(60),
    max_retries: 3,
    backoff_base: seconds(1),
    backoff_max: seconds(30),
    retry_deadline: seconds(120),
    consecutive_failures: 3,
};

/// The built-in of that name.
pub fn find(name: &str) -> Option<&'static Builtin> {
    BUILTIN.iter().find(|builtin| builtin.name == name)
}

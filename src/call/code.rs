//! THE table of codes: name, HTTP status, what became of the operation, what to do next.
//!
//! Answers, metric labels, records and `docs/codes.md` all come from here. The sets are closed: a new code is a
//! new variant, and every match on it is exhaustive.

use super::ended::INPUT_REQUIRED;

/// Did the operation happen, as far as anyone can know?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executed {
    No,
    Yes,
    Unknown,
}

impl Executed {
    pub fn as_str(self) -> &'static str {
        match self {
            Executed::No => "no",
            Executed::Yes => "yes",
            Executed::Unknown => "unknown",
        }
    }
}

/// What the model may do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// The same call will not do better.
    Never,
    /// The same call may do better after `retry_after_ms` (or a while).
    After,
    /// Only a changed call may do better.
    Changed,
    /// A person has to act first.
    Person,
}

impl Again {
    pub fn as_str(self) -> &'static str {
        match self {
            Again::Never => "never",
            Again::After => "after",
            Again::Changed => "changed",
            Again::Person => "person",
        }
    }
}

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($variant:ident $text:literal $http:literal $executed:ident $again:ident $hint:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($variant,)* }
        impl $name {
            /// Every code of the set, in the order of the table.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
            /// HTTP status at the tools API.
            pub fn http(self) -> u16 {
                match self { $($name::$variant => $http,)* }
            }
            pub fn executed(self) -> Executed {
                match self { $($name::$variant => Executed::$executed,)* }
            }
            pub fn again(self) -> Again {
                match self { $($name::$variant => Again::$again,)* }
            }
            /// The next step, in words a model can act on.
            pub fn hint(self) -> &'static str {
                match self { $($name::$variant => $hint,)* }
            }
        }
    };
}

codes! {
    /// This call sent nothing.
    DenyCode {
        Unauthenticated "unauthenticated" 401 No Never "present the credential of an agent of the policy";
        RunUnknown "run_unknown" 404 No Never "open a new run";
        InvalidRequest "invalid_request" 400 No Changed "mend the request and send it again";
        MissingCallId "missing_call_id" 400 No Changed "repeat the whole message; every call needs an id of its own";
        DuplicateCallId "duplicate_call_id" 400 No Changed "repeat the whole message; every call needs an id of its own";
        CallIdReused "call_id_reused" 400 No Changed "repeat the whole message with call ids that this run has not used";
        UnsupportedCall "unsupported_call" 422 No Changed "only the listed functions can be called";
        UnknownTool "unknown_tool" 404 No Changed "choose one of the listed tools";
        ToolNotAllowed "tool_not_allowed" 403 No Never "choose one of the listed tools; this one is not permitted here";
        ToolQuarantined "tool_quarantined" 503 No Person "use another tool; this one waits for a person";
        InvalidArguments "invalid_arguments" 422 No Changed "mend the named arguments and call again";
        ArgumentsTooLarge "arguments_too_large" 413 No Changed "send smaller arguments";
        BudgetExhausted "budget_exhausted" 429 No Never "stop calling tools and summarise what is known";
        RunInterrupted "run_interrupted" 409 No Person "a person stopped this run; stop calling tools";
        RepeatBlocked "repeat_blocked" 409 No Changed "stop repeating this call; change the arguments, use another tool, or propose an alternative";
        DeadlineExceeded "deadline_exceeded" 504 No Changed "no time is left for this call; ask for less work or more time";
        ApprovalRequired "approval_required" 403 No Person "wait for a person's approval, then send the same call again; do other work meanwhile";
        ApprovalEdited "approval_edited" 403 No Changed "a person changed the arguments; send the call with exactly those of the message";
        ApprovalRejected "approval_rejected" 403 No Never "a person said no; do not ask again";
        ApprovalExpired "approval_expired" 403 No Never "nobody approved it in time; do not ask again";
        HookDenied "hook_denied" 403 No Never "this call was refused by a check of the platform";
        DryRun "dry_run" 403 No Never "the call passed every check and would have been sent; this agent only rehearses";
        RateLimited "rate_limited" 429 No After "called too often; try again later, other tools are free";
        CircuitOpen "circuit_open" 503 No After "the tool is temporarily unavailable; use another tool or try again later";
        ConcurrencyLimited "concurrency_limited" 503 No After "too many calls are running; try again in a moment";
        IdempotencyConflict "idempotency_conflict" 422 No Changed "this operation is known with other arguments; send the first ones or a new operation";
        InProgress "in_progress" 409 Unknown After "the same operation is still running; ask again later";
        ReviewRequired "review_required" 409 Unknown Person "this operation may already have happened; do not repeat it under any id, a person must check";
        SkippedPendingReview "skipped_pending_review" 409 No Person "not started: an earlier write of this message may have happened and must be checked first";
        SkippedInProgress "skipped_in_progress" 409 No After "not started: an earlier write of this message is still running; ask again once it has ended";
        LedgerUnavailable "ledger_unavailable" 503 No After "writes are refused for now; reads still work";
        Draining "draining" 503 No After "the gateway is restarting; try again in a moment";
    }
}

codes! {
    /// The call ended, and we know how. `executed` and `again` are those of a read where a write differs
    /// (a write whose delivery is unknown leaves the stack as `outcome_unknown`).
    FailCode {
        UpstreamUnreachable "upstream_unreachable" 502 No After "the tool cannot be reached; try again later or use another tool";
        UpstreamUntrusted "upstream_untrusted" 502 No Person "the tool's certificate is not trusted; use another tool";
        EgressBlocked "egress_blocked" 403 No Never "the address is not permitted; use another tool";
        CredentialUnavailable "credential_unavailable" 503 No Person "the gateway lacks the tool's credential; use another tool";
        UpstreamRefusedStream "upstream_refused_stream" 502 No After "the tool did not take the request; try again";
        ToolError "tool_error" 200 No Changed "the tool refused the request; read its answer and change the call";
        RateLimited "rate_limited" 429 No After "the tool is called too often; try again later, other tools are free";
        ToolUnavailable "tool_unavailable" 502 Unknown After "the tool failed; try again later or use another tool";
        UpstreamRedirect "upstream_redirect" 502 No Person "the tool answered with a redirect that is not followed; use another tool";
        UpstreamTimeout "upstream_timeout" 504 Unknown After "the tool did not answer in time; try again later or use another tool";
        UpstreamReset "upstream_reset" 502 Unknown After "the connection to the tool broke; try again later or use another tool";
        UpstreamProtocolError "upstream_protocol_error" 502 Unknown Person "the tool's answer is not what it promised; use another tool";
        ResultLost "result_lost" 502 Yes Never "it was executed but the result is lost; do not repeat it";
        ResultTooLarge "result_too_large" 502 Yes Changed "the result is too large; ask for less";
        ResultWithheld "result_withheld" 403 Yes Never "it was executed but the result is withheld";
        Internal "internal" 500 Unknown Never "a fault of the gateway; it has been reported";
    }
}

/// The one code of [`super::CallError::Unknown`]: a write that may have happened.
pub const OUTCOME_UNKNOWN: &str = "outcome_unknown";
pub const OUTCOME_UNKNOWN_HTTP: u16 = 409;
pub const OUTCOME_UNKNOWN_HINT: &str =
    "the write may have happened; do not repeat it under any id, a person must check first";

/// Every value the label `outcome` can have: success words first, then the codes, each name once.
pub fn outcome_labels() -> Vec<&'static str> {
    let mut labels = vec!["ok", "replayed", "stale", INPUT_REQUIRED, OUTCOME_UNKNOWN, "abandoned"];
    labels.extend(DenyCode::ALL.iter().map(|code| code.as_str()));
    for code in FailCode::ALL {
        if !labels.contains(&code.as_str()) {
            labels.push(code.as_str());
        }
    }
    labels
}

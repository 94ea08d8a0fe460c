//! What is wrong with a policy, and where: codes, places, and the three ways to print them.
//!
//! A code is stable: one code, one meaning, one page in `docs/lints/`. A printed line never shows a secret.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use serde_json::json;

/// How bad a finding is. An error stops loading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    Note,
    Warning,
    Error,
}

impl Level {
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }

    /// The word of `--fail-level`.
    pub fn parse(text: &str) -> Option<Self> {
        [Level::Note, Level::Warning, Level::Error].into_iter().find(|l| l.as_str() == text)
    }
}

/// A place in a file: line and column count from 1, in characters; `width` is what the caret underlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Place {
    pub line: u32,
    pub column: u32,
    pub width: u32,
}

impl Place {
    /// The beginning of a file.
    pub const START: Place = Place { line: 1, column: 1, width: 1 };
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// `CR1002`; a member of [`CODES`].
    pub code: &'static str,
    pub level: Level,
    /// The file as it was named on the command line.
    pub file: Arc<str>,
    pub place: Place,
    /// One sentence, without a full stop, that names the key or value. Never a secret's text.
    pub message: String,
    /// Stands beside the caret: `did you mean …?`, or what the value should be.
    pub label: Option<String>,
    /// How to mend it, on a line of its own.
    pub hint: Option<String>,
}

impl Problem {
    /// A finding of the code's usual level. `file` may be "" until the reader or the caller fills it in.
    pub fn new(code: &'static str, place: Place, message: impl Into<String>) -> Self {
        let level = find(code).map_or(Level::Error, |entry| entry.level);
        Self {
            code,
            level,
            file: "".into(),
            place,
            message: message.into(),
            label: None,
            hint: None,
        }
    }

    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Another level than the code's usual one.
    #[must_use]
    pub fn level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    #[must_use]
    pub fn file(mut self, file: &Arc<str>) -> Self {
        self.file = Arc::clone(file);
        self
    }
}

/// One line: `policy.yaml:14:7: error[CR1002]: unknown key …`.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { line, column, .. } = self.place;
        let (level, code) = (self.level.as_str(), self.code);
        write!(f, "{}:{line}:{column}: {level}[{code}]: {}", self.file, self.message)?;
        match &self.label {
            Some(label) => write!(f, "; {label}"),
            None => Ok(()),
        }
    }
}

/// Sorted as people read: file, line, column, code. The same finding is kept once.
pub fn sort(problems: &mut Vec<Problem>) {
    problems.sort_by(|a, b| {
        (&a.file, a.place.line, a.place.column, a.code, &a.message).cmp(&(
            &b.file,
            b.place.line,
            b.place.column,
            b.code,
            &b.message,
        ))
    });
    problems.dedup();
}

/// The worst level among the findings.
pub fn worst(problems: &[Problem]) -> Option<Level> {
    problems.iter().map(|problem| problem.level).max()
}

/// Texts of the files a check read, with what must not be shown of them already struck out.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    files: BTreeMap<Arc<str>, Vec<String>>,
}

impl Sources {
    /// Keeps a file's lines; every place in `masks` is struck out first.
    pub fn add(&mut self, file: &Arc<str>, text: &str, masks: &[Mask]) {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for mask in masks {
            mask.apply(&mut lines);
        }
        self.files.insert(Arc::clone(file), lines);
    }

    pub fn merge(&mut self, other: Sources) {
        self.files.extend(other.files);
    }

    fn line(&self, file: &Arc<str>, line: u32) -> Option<&str> {
        let lines = self.files.get(file)?;
        lines.get((line as usize).checked_sub(1)?).map(String::as_str)
    }
}

/// A stretch of text that is never printed: from (line, column) up to (line, column), both from 1, end exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mask {
    pub from: (u32, u32),
    pub to: (u32, u32),
}

impl Mask {
    fn apply(&self, lines: &mut [String]) {
        for number in self.from.0..=self.to.0 {
            let Some(line) = (number as usize).checked_sub(1).and_then(|at| lines.get_mut(at))
            else {
                return;
            };
            let first = if number == self.from.0 { self.from.1 } else { 1 };
            let last = if number == self.to.0 { self.to.1 } else { u32::MAX };
            *line = line
                .chars()
                .zip(1_u32..)
                .map(|(c, column)| if column >= first && column < last { strike(c) } else { c })
                .collect();
        }
    }
}

/// Keeps what carries the shape of a line, hides what carries its content.
fn strike(c: char) -> char {
    if c.is_whitespace() || "{}[],:\"'#|>".contains(c) { c } else { '*' }
}

/// For files on people's screens: the finding, its line, and a caret under the very key or value.
pub fn pretty(problems: &[Problem], sources: &Sources) -> String {
    let mut out = String::new();
    for problem in problems {
        pretty_one(problem, sources, &mut out);
    }
    out
}

fn pretty_one(problem: &Problem, sources: &Sources, out: &mut String) {
    let Place { line, column, width } = problem.place;
    let number = line.to_string();
    let gap = " ".repeat(number.len());
    let level = problem.level.as_str();
    let mut text = format!("{level}[{}]: {}\n", problem.code, clean(&problem.message));
    text.push_str(&format!("{gap}--> {}:{line}:{column}\n", problem.file));
    if let Some(source) = sources.line(&problem.file, line) {
        let (shown, indent) = window(source, column, width);
        let width = (width.max(1) as usize).min(shown.chars().count().max(indent + 1) - indent);
        let label = problem.label.as_deref().map(clean).unwrap_or_default();
        let under = format!("{}{} {label}", " ".repeat(indent), "^".repeat(width.max(1)));
        text.push_str(&format!("{gap} |\n{number} | {shown}\n{gap} | {}\n", under.trim_end()));
    } else if let Some(label) = &problem.label {
        text.push_str(&format!("{gap} = {}\n", clean(label)));
    }
    if let Some(hint) = &problem.hint {
        text.push_str(&format!("{gap} = help: {}\n", clean(hint)));
    }
    text.push_str(&format!("{gap} = help: checkrein check --explain {}\n", problem.code));
    out.push_str(&text);
}

/// Longest part of a source line that is shown.
const MAX_SHOWN: usize = 160;

/// The part of a line around the caret, and how far the caret is in.
fn window(source: &str, column: u32, width: u32) -> (String, usize) {
    let at = (column.max(1) - 1) as usize;
    let length = source.chars().count();
    if length <= MAX_SHOWN {
        return (clean(source), at.min(length));
    }
    let reach = (width as usize).min(MAX_SHOWN / 2);
    let start = (at + reach).saturating_sub(MAX_SHOWN).min(at);
    let shown: String = source.chars().skip(start).take(MAX_SHOWN).collect();
    (clean(&shown), at - start)
}

/// Text from a file may hold terminal controls: none is printed.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// One line a finding.
pub fn compact(problems: &[Problem]) -> String {
    let mut out = String::new();
    for problem in problems {
        // Writing to a String cannot fail.
        let _written = writeln!(out, "{}", clean(&problem.to_string()));
    }
    out
}

/// A JSON array; the fields' names are stable.
pub fn to_json(problems: &[Problem]) -> String {
    let items: Vec<_> = problems
        .iter()
        .map(|problem| {
            json!({
                "code": problem.code,
                "level": problem.level.as_str(),
                "file": problem.file.as_ref(),
                "line": problem.place.line,
                "column": problem.place.column,
                "width": problem.place.width,
                "message": problem.message,
                "label": problem.label,
                "hint": problem.hint,
            })
        })
        .collect();
    format!("{:#}\n", serde_json::Value::from(items))
}

/// A code of the table: its usual level and what it finds.
#[derive(Debug, Clone, Copy)]
pub struct CodeEntry {
    pub code: &'static str,
    pub level: Level,
    pub finding: &'static str,
    /// The page of `docs/lints/`, as `check --explain` prints it.
    pub page: &'static str,
}

/// The entry of a code; `None` for a text that is no code.
pub fn find(code: &str) -> Option<&'static CodeEntry> {
    CODES.iter().find(|entry| entry.code == code)
}

macro_rules! codes {
    ($($level:ident { $($code:ident $finding:literal;)+ })+) => {
        /// Every code this build can give, in order.
        pub const CODES: &[CodeEntry] = &[$($(CodeEntry {
            code: stringify!($code),
            level: Level::$level,
            finding: $finding,
            page: include_str!(concat!("../../docs/lints/", stringify!($code), ".md")),
        },)+)+];
    };
}

codes! {
    Error {
        CR0001 "not YAML, a tab in the indentation, or not UTF-8";
        CR0002 "duplicate key";
        CR0003 "anchor, alias, merge key, tag, directive or second document";
        CR0004 "empty, over 1 MiB, or nested deeper than 64";
        CR1001 "`apiVersion` or `kind` missing or unknown";
        CR1002 "unknown key";
        CR1003 "missing key";
        CR1004 "wrong type, or a value outside its set or range";
        CR1005 "quantity without a unit, or with a wrong one";
        CR1006 "literal where a reference to a secret belongs";
        CR1007 "JSON Schema that is invalid, refers outside itself, or has a pattern that is not linear";
        CR1008 "two alternatives given, or none";
        CR1009 "a key whose feature is not in this build";
        CR2001 "unknown profile, run, upstream or tool";
    }
    Warning { CR2002 "name or pattern that matches nothing"; }
    Note { CR2003 "a write not covered by a pattern, an entry without effect, or a tool nobody may call"; }
    Error {
        CR2004 "two tools of one name, or a server and an upstream";
        CR2005 "two patterns of equal rank";
        CR2006 "argument with no place or two in the request";
        CR2007 "key that the back end cannot honour";
        CR2008 "one credential under two agents, or an agent that cannot be told apart";
        CR2009 "argument pointer that is not in the tool's schema";
        CR2010 "host that `egress.allow_hosts` does not cover";
        CR2011 "a tool that names itself or a write where a read belongs";
        CR2012 "two currencies, or a cost budget without a cost";
        CR2013 "back-off that contradicts itself";
        CR2014 "breaker key that is not possible here";
        CR2016 "`weight` above a `burst` it meets";
        CR3001 "`retry` on a write";
        CR3002 "`cache` on a write";
        CR3003 "`write` on a read";
    }
    Warning { CR3004 "write without a business identity"; }
    Error {
        CR3005 "non-public address without `addresses`";
        CR3006 "plain `http` to a public host";
        CR3007 "fingerprint field that the schema does not require";
    }
    Warning {
        CR3008 "argument without an upper bound";
        CR3009 "a protection switched off";
        CR3010 "secret missing, empty, or readable by others";
    }
    Error { CR3011 "`identical: approve` where nobody is asked"; }
    Note {
        CR3012 "write whose circuit is probed by a real write";
        CR3013 "write over pooled connections";
    }
    Warning {
        CR3014 "method and effect that do not fit";
        CR3015 "alternative of a read is a write";
        CR3016 "a POST or PATCH said to change nothing when repeated";
    }
    Error { CR3017 "answers that a person let one agent have, shared with all"; }
    Warning {
        CR4001 "retry loop longer than the run";
    }
    Error {
        CR4002 "timeouts that contradict each other";
        CR4003 "`ttl` of a write shorter than a run that may ask again";
    }
    Warning { CR4004 "a question to a person that outlives the run"; }
    Warning { CR4006 "one call opens its own circuit"; }
    Note { CR4007 "`burst` below what one batch asks for"; }
    Warning {
        CR5002 "policy file is itself a mount point and will never reload";
    }
    Error { CR5003 "`default` agent on a listener that others can reach"; }
}

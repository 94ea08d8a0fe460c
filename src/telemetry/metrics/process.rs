//! `process_*` from `/proc/self`: CPU as float seconds, memory, descriptors, threads, start time.
//!
//! A figure the system does not tell is left out, never shown as 0.

use std::fs;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge, Opts};

use super::table::{self, Kind, Series, TABLE};

/// Clock ticks a second in `/proc`: `USER_HZ` is 100 on every Linux this program runs on (proc(5), `sysconf`).
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug)]
pub(super) struct ProcessCollector {
    descs: Vec<Desc>,
}

impl ProcessCollector {
    pub(super) fn new() -> Self {
        let own =
            |series: &&&Series| matches!(series.kind, Kind::ProcessCounter | Kind::ProcessGauge);
        let desc = |series: &&Series| gauge(series).desc().into_iter().cloned().collect::<Vec<_>>();
        Self { descs: TABLE.iter().filter(own).flat_map(desc).collect() }
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let facts = Facts::read();
        let mut families = Vec::new();
        if let Some(seconds) = facts.cpu {
            let cpu = counter(&table::CPU);
            cpu.inc_by(seconds);
            families.extend(cpu.collect());
        }
        let gauges = [
            (&table::RESIDENT, facts.resident),
            (&table::VIRTUAL, facts.virtual_memory),
            (&table::OPEN_FDS, facts.open_fds),
            (&table::MAX_FDS, facts.max_fds),
            (&table::START_TIME, facts.started),
            (&table::THREADS, facts.threads),
        ];
        for (series, value) in gauges {
            if let Some(value) = value {
                let gauge = gauge(series);
                gauge.set(value);
                families.extend(gauge.collect());
            }
        }
        families
    }
}

fn gauge(series: &Series) -> Gauge {
    Gauge::with_opts(Opts::new(series.name, series.help)).expect("names of the table are sound")
}

fn counter(series: &Series) -> Counter {
    Counter::with_opts(Opts::new(series.name, series.help)).expect("names of the table are sound")
}

#[derive(Debug, Default)]
struct Facts {
    cpu: Option<f64>,
    resident: Option<f64>,
    virtual_memory: Option<f64>,
    open_fds: Option<f64>,
    max_fds: Option<f64>,
    started: Option<f64>,
    threads: Option<f64>,
}

impl Facts {
    fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let status = text("/proc/self/status");
        let stat = Stat::parse(&text("/proc/self/stat"));
        let boot = line_value(&text("/proc/stat"), "btime");
        // The directory being read is itself open: one descriptor less.
        let fds = fs::read_dir("/proc/self/fd").ok().map(|dir| dir.count().saturating_sub(1));
        Self {
            cpu: stat.as_ref().map(|stat| stat.cpu_ticks / TICKS_PER_SECOND),
            started: stat.zip(boot).map(|(stat, boot)| boot + stat.start_ticks / TICKS_PER_SECOND),
            resident: line_value(&status, "VmRSS:").map(|kib| kib * 1024.0),
            virtual_memory: line_value(&status, "VmSize:").map(|kib| kib * 1024.0),
            threads: line_value(&status, "Threads:"),
            open_fds: fds.map(|n| n as f64),
            max_fds: line_value(&text("/proc/self/limits"), "Max open files"),
        }
    }
}

/// The first number after `key` at the start of a line; `unlimited` is none.
fn line_value(text: &str, key: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

#[derive(Debug)]
struct Stat {
    cpu_ticks: f64,
    start_ticks: f64,
}

impl Stat {
    /// proc(5): the second field is the program's name in brackets, which may hold spaces and brackets itself.
    fn parse(text: &str) -> Option<Self> {
        let rest = text.get(text.rfind(')')? + 1..)?;
        // `rest` begins with field 3.
        let field = |n: usize| rest.split_ascii_whitespace().nth(n - 3)?.parse::<f64>().ok();
        Some(Self { cpu_ticks: field(14)? + field(15)?, start_ticks: field(22)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let text = "7 (a) b (c) S 1 1 1 0 -1 0 0 0 0 0 150 50 0 0 20 0 4 0 1000 0 0";
        let stat = Stat::parse(text).expect("parses");
        assert_eq!((stat.cpu_ticks, stat.start_ticks), (200.0, 1000.0));
        assert!(Stat::parse("7 (cut").is_none());
    }

    #[test]
    fn limits_and_status_lines_are_read() {
        let limits =
            "Limit  Soft Limit\nMax open files            1024                 524288  files\n";
        assert_eq!(line_value(limits, "Max open files"), Some(1024.0));
        assert_eq!(line_value("Max open files   unlimited", "Max open files"), None);
        assert_eq!(line_value("VmRSS:\t  12 kB", "VmRSS:"), Some(12.0));
    }
}

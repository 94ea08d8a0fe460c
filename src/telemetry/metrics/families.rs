//! The registered families of the table, whose they are, and how many samples fit.

use std::collections::HashMap;

use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts,
    Registry,
};

use super::Labels;
use super::handles::Counters;
use super::table::{Kind, Series, TABLE, Values};

/// The registered families, by name.
#[derive(Debug, Default)]
pub(super) struct Families {
    counters: HashMap<&'static str, IntCounterVec>,
    gauges: HashMap<&'static str, GaugeVec>,
    histograms: HashMap<&'static str, HistogramVec>,
}

/// Whose series they are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Owner {
    Tool { write: bool },
    Agent,
    Upstream,
}

impl Owner {
    fn owns(self, series: &Series) -> bool {
        let first = series.labels.first().map(|label| label.values);
        match self {
            Owner::Tool { write } => {
                matches!(first, Some(Values::Tools)) && (write || !series.writes_only)
            }
            Owner::Agent => matches!(first, Some(Values::Agents)),
            Owner::Upstream => matches!(first, Some(Values::Upstreams)),
        }
    }

    fn cost(self) -> usize {
        TABLE.iter().filter(|series| self.owns(series)).map(|series| series.cost()).sum()
    }
}

/// What is left below the bound of series.
#[derive(Debug)]
pub(super) struct Room {
    left: usize,
    pub(super) dropped: u64,
}

impl Room {
    /// The process's own series, `_unknown` and the two `_overflow` are always there.
    pub(super) fn new(max: usize, labels: &Labels) -> Self {
        let shared = |series: &&&Series| {
            let owners = [Owner::Tool { write: true }, Owner::Agent, Owner::Upstream];
            !owners.iter().any(|owner| owner.owns(series))
        };
        let own: usize = TABLE.iter().filter(shared).map(|series| series.cost()).sum();
        let tool = Owner::Tool { write: false }.cost() + Owner::Tool { write: true }.cost();
        let agent = if labels.agent_label { Owner::Agent.cost() } else { 0 };
        Self { left: max.saturating_sub(own + tool + agent), dropped: 0 }
    }

    /// Once one does not fit, none after it does: the order of names decides, not their size.
    pub(super) fn take(&mut self, owner: Owner) -> bool {
        let cost = owner.cost();
        match self.left.checked_sub(cost) {
            Some(left) if self.dropped == 0 => {
                self.left = left;
                true
            }
            Some(_) | None => {
                self.dropped += cost as u64;
                false
            }
        }
    }
}

impl Families {
    pub(super) fn register(registry: &Registry) -> Self {
        let mut families = Self::default();
        let sound = "names, labels and buckets of the table are sound";
        let taken = "every series is registered once";
        for series in TABLE {
            let labels = series.label_names();
            let opts = Opts::new(series.name, series.help);
            match series.kind {
                Kind::Counter => {
                    let vec = IntCounterVec::new(opts, &labels).expect(sound);
                    registry.register(Box::new(vec.clone())).expect(taken);
                    families.counters.insert(series.name, vec);
                }
                Kind::Gauge => {
                    let vec = GaugeVec::new(opts, &labels).expect(sound);
                    registry.register(Box::new(vec.clone())).expect(taken);
                    families.gauges.insert(series.name, vec);
                }
                Kind::Histogram(buckets) => {
                    let opts = HistogramOpts::from(opts).buckets(buckets.to_vec());
                    let vec = HistogramVec::new(opts, &labels).expect(sound);
                    registry.register(Box::new(vec.clone())).expect(taken);
                    families.histograms.insert(series.name, vec);
                }
                Kind::State | Kind::ProcessCounter | Kind::ProcessGauge => {}
            }
        }
        families
    }

    pub(super) fn gauge_family(&self, series: &Series) -> Option<&GaugeVec> {
        self.gauges.get(series.name)
    }
    pub(super) fn counter(&self, series: &Series) -> IntCounter {
        self.counters.get(series.name).expect("stands in the table").with_label_values::<&str>(&[])
    }
    pub(super) fn gauge(&self, series: &Series, labels: &[&str]) -> Gauge {
        self.gauges.get(series.name).expect("stands in the table").with_label_values(labels)
    }
    pub(super) fn histogram(&self, series: &Series, labels: &[&str]) -> Histogram {
        self.histograms.get(series.name).expect("stands in the table").with_label_values(labels)
    }
    /// Every child of a counter, made at once.
    pub(super) fn counters(
        &self,
        series: &Series,
        owner: Option<&str>,
        dropped: &IntCounter,
    ) -> Counters {
        let family = self.counters.get(series.name).expect("stands in the table");
        Counters::new(family, series, owner, dropped)
    }

    /// Forgets every series of one name.
    pub(super) fn remove(&self, owner: Owner, name: &str) {
        for series in TABLE.iter().filter(|series| owner.owns(series)) {
            for set in series.label_sets(Some(name)) {
                // A child that is not there is what we want: only state gauges, which are never kept.
                let gone = match series.kind {
                    Kind::Counter => {
                        self.counters.get(series.name).map(|f| f.remove_label_values(&set))
                    }
                    Kind::Histogram(_) => {
                        self.histograms.get(series.name).map(|f| f.remove_label_values(&set))
                    }
                    Kind::Gauge => {
                        self.gauges.get(series.name).map(|f| f.remove_label_values(&set))
                    }
                    Kind::State | Kind::ProcessCounter | Kind::ProcessGauge => None,
                };
                debug_assert!(!matches!(gone, Some(Err(_))), "{} has no {set:?}", series.name);
            }
        }
    }
}

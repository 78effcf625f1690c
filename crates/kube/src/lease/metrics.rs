//! The metric of client-go's leader election.

use koord_app::metrics::register_first;
use prometheus::{IntGaugeVec, Opts, Registry};

/// Whether a process leads its elections: `leader_election_master_status`.
#[derive(Debug, Clone)]
pub struct LeaderMetrics(IntGaugeVec);

impl LeaderMetrics {
    /// Registers the metric. One that `registry` already has is not registered again.
    ///
    /// # Errors
    ///
    /// Fails if the definition of the metric is wrong, which the tests would detect.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let help = "[ALPHA] Whether this process leads.";
        let options = Opts::new("leader_election_master_status", help);
        let metric = IntGaugeVec::new(options, &["name"])?;
        register_first(registry, metric).map(Self)
    }

    /// Sets whether this process leads the election `name`.
    pub fn set(&self, name: &str, leads: bool) {
        self.0.with_label_values(&[name]).set(i64::from(leads));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_has_the_name_and_label_of_client_go() {
        let registry = Registry::new();
        let metrics = LeaderMetrics::register(&registry).unwrap();
        for (leads, value) in [(false, "0"), (true, "1"), (false, "0")] {
            metrics.set("koord-descheduler", leads);
            let text = koord_app::metrics::encode(&registry).unwrap();
            let series =
                format!("leader_election_master_status{{name=\"koord-descheduler\"}} {value}\n");
            assert!(text.contains(&series), "{text}");
        }
        assert!(LeaderMetrics::register(&registry).is_ok());
    }
}

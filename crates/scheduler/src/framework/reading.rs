//! What plugins measure of themselves.

/// A metric of a plugin's own, by the full name that upstream gives it.
#[derive(Debug)]
pub struct Family {
    /// `scheduler_...`.
    pub name: &'static str,
    /// For people.
    pub help: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What its values are.
    pub kind: Kind,
}

/// What the values of a [`Family`] are.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// How often something happened.
    Counter,
    /// How things are now.
    Gauge,
    /// Single observations, counted in buckets with these upper bounds.
    Histogram(fn() -> Vec<f64>),
}

/// One value.
#[derive(Debug, Clone)]
pub struct Reading {
    /// Of what.
    pub family: &'static Family,
    /// Values of the family's labels, in their order.
    pub labels: Vec<String>,
    /// The value.
    pub value: f64,
}

/// What was read from plugins: see [`super::Metered::read`].
#[derive(Debug, Default)]
pub struct Readings {
    renewed: Vec<&'static Family>,
    values: Vec<Reading>,
}

impl Readings {
    /// What follows of this family of gauges, from whatever instance of the plugin, is all there is:
    /// values of before are gone.
    pub fn renew(&mut self, family: &'static Family) {
        self.renewed.push(family);
    }

    /// Adds one value: of a counter, how often it happened since the last reading; of a gauge, how it
    /// is now; of a histogram, one observation.
    pub fn add(&mut self, family: &'static Family, labels: &[&str], value: f64) {
        self.values.push(Reading {
            family,
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
            value,
        });
    }

    /// The families that are renewed, and all values in the order in which they were added.
    #[must_use]
    pub fn into_parts(self) -> (Vec<&'static Family>, Vec<Reading>) {
        (self.renewed, self.values)
    }
}

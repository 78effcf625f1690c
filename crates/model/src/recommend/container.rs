//! What is learned of one container of a workload, from all its pods.

use super::settings::Settings;
use crate::histogram::{DecayingHistogram, Layout, UnixMillis};
use koord_api::Uid;

/// What is known of the container in one pod: the peak of the window it is in.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Instance {
    /// `metadata.uid` of the pod.
    pub(super) pod: Uid,
    /// The newest sample.
    pub(super) last: UnixMillis,
    /// When the window ends; the peak counts as seen then.
    pub(super) window_end: UnixMillis,
    /// The highest memory use of the window, in bytes; 0 before the first sample.
    pub(super) peak: f64,
    /// What an OOM kill in the window says that was needed, in bytes; 0 without one.
    pub(super) oom_peak: f64,
    /// The newest OOM kill that was learned from.
    pub(super) last_oom: UnixMillis,
}

impl Instance {
    fn new(pod: Uid, time: UnixMillis) -> Self {
        Self {
            pod,
            last: UnixMillis::MIN,
            window_end: time,
            peak: 0.0,
            oom_peak: 0.0,
            last_oom: UnixMillis::MIN,
        }
    }

    fn highest(&self) -> f64 {
        self.peak.max(self.oom_peak)
    }
}

/// A use of one container in one pod.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample<'a> {
    /// `metadata.uid` of the pod.
    pub pod: &'a str,
    /// When it was measured.
    pub time: UnixMillis,
    /// Cores, where measured.
    pub cpu: Option<f64>,
    /// Bytes, where measured.
    pub memory: Option<f64>,
}

/// The history of one container of a workload.
#[derive(Debug, Clone)]
pub struct ContainerModel {
    pub(super) cpu: DecayingHistogram,
    pub(super) memory: DecayingHistogram,
    /// Sorted by pod.
    pub(super) instances: Vec<Instance>,
    pub(super) first: Option<UnixMillis>,
    pub(super) last: Option<UnixMillis>,
    pub(super) count: u64,
}

impl ContainerModel {
    /// Nothing learned yet.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let cpu = DecayingHistogram::new(Layout::recommender_cpu(), settings.cpu_half_life_ms);
        let memory =
            DecayingHistogram::new(Layout::recommender_memory(), settings.memory_half_life_ms);
        Self {
            cpu,
            memory,
            instances: Vec::new(),
            first: None,
            last: None,
            count: 0,
        }
    }

    /// Time of the first sample.
    #[must_use]
    pub fn first(&self) -> Option<UnixMillis> {
        self.first
    }

    /// Time of the newest sample.
    #[must_use]
    pub fn last(&self) -> Option<UnixMillis> {
        self.last
    }

    /// How many samples were taken in.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Learns from a sample. `false`: it is not newer than the last one of this pod, or says
    /// nothing that can be learned from.
    pub fn add(&mut self, settings: &Settings, sample: Sample<'_>) -> bool {
        let usable = |value: &f64| value.is_finite() && *value >= 0.0;
        let cpu = sample.cpu.filter(usable);
        let memory = sample.memory.filter(usable);
        if cpu.is_none() && memory.is_none() {
            return false;
        }
        let (pod, time) = (Uid::from(sample.pod), sample.time);
        let instance = self.instance(&pod, time);
        if time <= instance.last {
            return false;
        }
        instance.last = time;
        if let Some(cpu) = cpu {
            self.cpu.add(cpu, 1.0, time);
        }
        if let Some(memory) = memory {
            self.raise(settings, &pod, time, memory, false);
        }
        self.first = Some(self.first.map_or(time, |first| first.min(time)));
        self.last = Some(self.last.map_or(time, |last| last.max(time)));
        self.count = self.count.saturating_add(1);
        true
    }

    /// Learns from a kill for want of memory at `time`, of a container that requested `request`
    /// bytes. `false`: it was learned from before, or is older than the window.
    pub fn oom(
        &mut self,
        settings: &Settings,
        pod: &str,
        time: UnixMillis,
        request: Option<f64>,
    ) -> bool {
        let pod = Uid::from(pod);
        let instance = self.instance(&pod, time);
        let begun = instance
            .window_end
            .saturating_sub(settings.memory_window_ms);
        if time <= instance.last_oom || time < begun {
            return false;
        }
        instance.last_oom = time;
        let request = request.filter(|bytes| bytes.is_finite() && *bytes > 0.0);
        let used = instance.peak.max(request.unwrap_or(0.0));
        let needed = (used + settings.oom_bump).max(used * settings.oom_ratio);
        self.raise(settings, &pod, time, needed, true);
        true
    }

    /// Drops pods whose window is over: their peaks are final. `true` when nothing was heard of any
    /// pod for so long that the whole history is out of date.
    pub fn expire(&mut self, settings: &Settings, now: UnixMillis) -> bool {
        self.instances.retain(|instance| now < instance.window_end);
        self.instances.shrink_to_fit();
        let seen = self.last.unwrap_or(now);
        now.saturating_sub(seen) > settings.expiry_ms()
    }

    /// Bytes on the heap, pods' uids that are no UUIDs aside.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.cpu.heap_bytes()
            + self.memory.heap_bytes()
            + self.instances.capacity() * size_of::<Instance>()
    }

    fn instance(&mut self, pod: &Uid, time: UnixMillis) -> &mut Instance {
        let found = self
            .instances
            .binary_search_by(|instance| instance.pod.cmp(pod));
        let at = found.unwrap_or_else(|at| {
            self.instances.reserve_exact(1);
            self.instances.insert(at, Instance::new(pod.clone(), time));
            at
        });
        &mut self.instances[at]
    }

    /// Counts `bytes` as the peak of the window of `time` if it is higher than what was seen in it.
    fn raise(
        &mut self,
        settings: &Settings,
        pod: &Uid,
        time: UnixMillis,
        bytes: f64,
        killed: bool,
    ) {
        let window = settings.memory_window_ms;
        let instance = self.instance(pod, time);
        let mut replaced = None;
        if time < instance.window_end {
            let old = instance.highest();
            if bytes <= old {
                return;
            }
            replaced = (old > 0.0).then_some(old);
        } else {
            let past = time.saturating_sub(instance.window_end);
            let shift = (past - past % window).saturating_add(window);
            instance.window_end = instance.window_end.saturating_add(shift);
            (instance.peak, instance.oom_peak) = (0.0, 0.0);
        }
        if killed {
            instance.oom_peak = bytes;
        } else {
            instance.peak = bytes;
        }
        let end = instance.window_end;
        if let Some(old) = replaced {
            self.memory.subtract(old, 1.0, end);
        }
        self.memory.add(bytes, 1.0, end);
    }
}

//! Usage history of one container of a workload, over all its pods.

use super::settings::Settings;
use crate::histogram::{DecayingHistogram, Layout, UnixMillis};
use koord_api::Uid;

/// State of the container in one pod: the peak of its current window.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Instance {
    /// `metadata.uid` of the pod.
    pub(super) pod: Uid,
    /// Time of the newest sample; `UnixMillis::MIN` before the first.
    pub(super) last: UnixMillis,
    /// End of the window; the peak counts as measured then.
    pub(super) window_end: UnixMillis,
    /// Highest memory usage of the window, in bytes; 0 before the first sample.
    pub(super) peak: f64,
    /// Memory that an OOM kill in the window indicates as needed, in bytes; 0 without one.
    pub(super) oom_peak: f64,
    /// Time of the newest OOM kill that is included; `UnixMillis::MIN` without one.
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

/// Usage sample of one container in one pod.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample<'a> {
    /// `metadata.uid` of the pod.
    pub pod: &'a str,
    /// Time of the measurement.
    pub time: UnixMillis,
    /// CPU usage in cores, if measured.
    pub cpu: Option<f64>,
    /// Memory usage in bytes, if measured.
    pub memory: Option<f64>,
}

/// Usage history of one container of a workload.
#[derive(Debug, Clone)]
pub struct ContainerModel {
    pub(super) cpu: DecayingHistogram,
    pub(super) memory: DecayingHistogram,
    /// Instances, sorted by pod.
    pub(super) instances: Vec<Instance>,
    pub(super) first: Option<UnixMillis>,
    pub(super) last: Option<UnixMillis>,
    pub(super) count: u64,
}

impl ContainerModel {
    /// Creates an empty history.
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

    /// Returns the time of the first sample.
    #[must_use]
    pub fn first(&self) -> Option<UnixMillis> {
        self.first
    }

    /// Returns the time of the newest sample.
    #[must_use]
    pub fn last(&self) -> Option<UnixMillis> {
        self.last
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds a sample. Returns false if it is not newer than the last one of this pod, or has no usable value.
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

    /// Adds an OOM kill at `time` of a container that requested `request` bytes. Returns false if it was
    /// added before, or is older than the window.
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

    /// Drops pods whose window has ended: their peaks are final. Returns true if there was no sample of any
    /// pod for so long that the whole history has expired.
    pub fn expire(&mut self, settings: &Settings, now: UnixMillis) -> bool {
        self.instances.retain(|instance| now < instance.window_end);
        self.instances.shrink_to_fit();
        let last_sample = self.last.unwrap_or(now);
        now.saturating_sub(last_sample) > settings.expiry_ms()
    }

    /// Returns the heap memory in bytes, without pod UIDs that are not UUIDs.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.cpu.heap_bytes()
            + self.memory.heap_bytes()
            + self.instances.capacity() * size_of::<Instance>()
    }

    fn instance(&mut self, pod: &Uid, time: UnixMillis) -> &mut Instance {
        let search = self
            .instances
            .binary_search_by(|instance| instance.pod.cmp(pod));
        let index = search.unwrap_or_else(|index| {
            self.instances.reserve_exact(1);
            self.instances
                .insert(index, Instance::new(pod.clone(), time));
            index
        });
        &mut self.instances[index]
    }

    /// Records `bytes` as the peak of the window of `time` if it is higher than earlier ones in it.
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

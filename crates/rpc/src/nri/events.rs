//! Names of events, and the events that a runtime supports.

use super::{ConfigureRequest, Event};

/// Events about pods, in the order of their numbers.
const PODS: [Event; 5] = [
    Event::RunPodSandbox,
    Event::StopPodSandbox,
    Event::RemovePodSandbox,
    Event::UpdatePodSandbox,
    Event::PostUpdatePodSandbox,
];

/// Events about containers.
const CONTAINERS: [Event; 9] = [
    Event::CreateContainer,
    Event::PostCreateContainer,
    Event::StartContainer,
    Event::PostStartContainer,
    Event::UpdateContainer,
    Event::PostUpdateContainer,
    Event::StopContainer,
    Event::RemoveContainer,
    Event::ValidateContainerAdjustment,
];

/// Parses names of events: `RunPodSandbox`, `RUN_POD_SANDBOX` or `run-pod-sandbox`, several separated by
/// commas, or the groups `pod` (also `podsandbox`), `container` and `all`.
///
/// # Errors
/// Returns a message with the first unknown name.
pub fn events_named<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<Event>, String> {
    let mut events = Vec::new();
    for name in names.into_iter().flat_map(|names| names.split(',')) {
        let name = name.trim();
        let plain = plain(name);
        match plain.as_str() {
            "all" => events.extend(PODS.into_iter().chain(CONTAINERS)),
            "pod" | "podsandbox" => events.extend(PODS),
            "container" => events.extend(CONTAINERS),
            _ => {
                let mut all = PODS.into_iter().chain(CONTAINERS);
                let event = all.find(|event| self::plain(event.as_str_name()) == plain);
                events.push(event.ok_or_else(|| format!("there is no event {name:?}"))?);
            }
        }
    }
    events.sort_unstable();
    events.dedup();
    Ok(events)
}

fn plain(name: &str) -> String {
    let letters = name.chars().filter(|c| !matches!(c, '_' | '-'));
    letters.flat_map(char::to_lowercase).collect()
}

/// Returns the mask that subscribes to these events: bit `n - 1` for event `n`.
pub fn mask(events: &[Event]) -> i32 {
    let bit = |event: &Event| match *event as i32 {
        number @ 1..=30 => 1 << (number - 1),
        _ => 0,
    };
    events.iter().fold(0, |mask, event| mask | bit(event))
}

/// Returns the mask of the events that the runtime supports. A runtime disconnects a plugin that subscribes
/// to others. Before NRI 0.10, which containerd 2.2 and CRI-O 1.34 have, there are only the first eleven
/// events. Runtimes report their NRI version since 0.12; for older ones the version of the runtime decides.
pub fn supported(request: &ConfigureRequest) -> i32 {
    const OLDEST: i32 = (1 << 11) - 1;
    const NEWEST: i32 = (1 << 14) - 1;
    let since = match (version(&request.nri_version), request.runtime_name.as_str()) {
        (Some(nri), _) => return if nri >= (0, 10) { NEWEST } else { OLDEST },
        (None, "containerd") => (2, 2),
        (None, "cri-o" | "crio") => (1, 34),
        (None, _) => return OLDEST,
    };
    match version(&request.runtime_version) {
        Some(runtime) if runtime >= since => NEWEST,
        _ => OLDEST,
    }
}

/// Parses major and minor of a version such as `v1.7.24~ds1`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim_start_matches('v').split('.');
    let number = |part: &str| {
        let digits = part.find(|c: char| !c.is_ascii_digit());
        part[..digits.unwrap_or(part.len())].parse().ok()
    };
    Some((number(parts.next()?)?, number(parts.next()?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_upstream_does() {
        let koordlet = [
            "RunPodSandbox",
            "REMOVE_POD_SANDBOX, createcontainer",
            "update-container",
        ];
        let koordlet = events_named(koordlet).unwrap();
        assert_eq!(mask(&koordlet), 141);
        assert_eq!(mask(&events_named(["all"]).unwrap()), (1 << 14) - 1);
        let pods = mask(&events_named(["Pod"]).unwrap());
        assert_eq!(pods, 0b1_1000_0000_0111);
        assert_eq!(
            mask(&events_named(["podsandbox", "container"]).unwrap()),
            (1 << 14) - 1
        );
        let error = events_named(["RunPodSandbox,RunPod"]).unwrap_err();
        assert_eq!(error, "there is no event \"RunPod\"");
    }

    #[test]
    fn only_supported_events_are_requested() {
        let supported_events = |runtime_name: &str, runtime_version: &str, nri_version: &str| {
            supported(&ConfigureRequest {
                runtime_name: runtime_name.into(),
                runtime_version: runtime_version.into(),
                nri_version: nri_version.into(),
                ..Default::default()
            })
        };
        let (old, new) = ((1 << 11) - 1, (1 << 14) - 1);
        for (name, version, nri, expected) in [
            ("containerd", "1.7.24~ds1", "", old),
            ("containerd", "v2.1.4", "", old),
            ("containerd", "v2.2.0-rc.1", "", new),
            ("containerd", "v2.2.1", "unknown", new),
            ("cri-o", "1.33.0", "", old),
            ("cri-o", "1.34.1", "", new),
            ("other", "9.9.9", "", old),
            ("other", "", "v0.12.2", new),
            ("other", "", "0.9.0", old),
            ("containerd", "", "", old),
        ] {
            assert_eq!(
                supported_events(name, version, nri),
                expected,
                "{name} {version} {nri}"
            );
        }
    }
}

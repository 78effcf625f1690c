use super::*;
use parking_lot::Mutex;
use std::sync::Arc;

/// Targets of the messages logged at level warning or above.
#[derive(Clone, Default)]
pub(crate) struct Warnings(Arc<Mutex<Vec<&'static str>>>);

impl Warnings {
    pub(crate) fn targets(&self) -> Vec<&'static str> {
        self.0.lock().clone()
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        self.0.lock().push(event.metadata().target());
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn text_is_logged_on_change_and_after_clear() {
    let mut log = LogOnChange::default();
    let mut is_logged = |key, text: &str| log.store(key, &text).is_some();
    assert!(is_logged("a", "x"));
    assert!(!is_logged("a", "x"), "the same text");
    assert!(is_logged("b", "x"), "another key");
    assert!(is_logged("a", "y"), "another text");
    log.clear("a");
    assert_eq!((log.text("a"), log.text("b")), (None, Some("x")));
    assert!(log.store("a", &"y").is_some(), "after it was over");
}

#[test]
fn first_failure_is_logged_until_it_is_over() {
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || {
        let mut log = LogOnChange::default();
        for text in ["pod a", "pod b", "pod a"] {
            log.log_first_failure("pods", &text);
        }
        assert_eq!(log.text("pods"), Some("pod a"));
        log.clear("pods");
        log.log_first_failure("pods", &"pod b");
    });
    assert_eq!(warnings.targets().len(), 2);
}

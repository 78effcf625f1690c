//! What plugins make of a pod, each its own part.

use std::any::Any;
use std::sync::OnceLock;

/// Values that were read from a pod, one per type; each is read when it is first asked for, and kept
/// as long as this state of the pod is.
#[derive(Default)]
pub(super) struct Facets(OnceLock<Box<Facet>>);

struct Facet {
    value: Box<dyn Any + Send + Sync>,
    next: Facets,
}

impl Facets {
    pub(super) fn get<T: Any + Send + Sync>(&self, read: impl Fn() -> T) -> &T {
        let mut at = self;
        loop {
            let facet = at.0.get_or_init(|| {
                Box::new(Facet {
                    value: Box::new(read()),
                    next: Self::default(),
                })
            });
            match facet.value.downcast_ref() {
                Some(value) => return value,
                None => at = &facet.next,
            }
        }
    }
}

/// A copy is made to be changed: what was read of the original may not hold for it.
impl Clone for Facets {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl std::fmt::Debug for Facets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Facets")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn each_type_is_read_once_until_the_pod_is_copied() {
        let (facets, reads) = (Facets::default(), Cell::new(0));
        let number = |facets: &Facets| {
            let read = || {
                reads.set(reads.get() + 1);
                7_i32
            };
            *facets.get(read)
        };
        let text = |facets: &Facets| facets.get(|| "seven".to_owned()).clone();
        for _ in 0..2 {
            assert_eq!((number(&facets), &*text(&facets)), (7, "seven"));
        }
        assert_eq!(reads.get(), 1);
        number(&facets.clone());
        assert_eq!(reads.get(), 2);
    }
}

//! The intended values of a dry run, in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of entries from which those of ended groups and processes are looked for.
const SWEEP_FROM: usize = 1024;

/// A value that would have been written.
#[derive(Debug)]
struct IntendedValue {
    path: PathBuf,
    value: String,
    /// Content of the file at that time.
    content: String,
}

#[derive(Debug, Default)]
struct IntendedState {
    /// Values by the name of their target.
    values: BTreeMap<String, IntendedValue>,
    /// Directories that would have been created (`true`) or removed.
    directories: BTreeMap<PathBuf, bool>,
    /// Threads that would have been moved, with the directory of their group.
    tasks: BTreeMap<u32, PathBuf>,
    /// The real and the intended cookie of processes.
    cookies: BTreeMap<u32, (u64, u64)>,
    next_cookie: u64,
    /// Number of entries after the last sweep.
    swept: usize,
}

impl IntendedState {
    fn len(&self) -> usize {
        self.values.len() + self.tasks.len() + self.cookies.len()
    }
}

/// Values that would have been written. A value counts as the current one until the content of its file changes.
#[derive(Debug, Default)]
pub(crate) struct Overlay(Mutex<IntendedState>);

impl Overlay {
    fn lock(&self) -> MutexGuard<'_, IntendedState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the intended value of the target `name`, whose file has `content`.
    pub(crate) fn value(&self, name: &str, content: &str) -> Option<String> {
        let state = self.lock();
        let entry = state.values.get(name)?;
        (entry.content == content).then(|| entry.value.clone())
    }

    /// Stores the intended value of the target `name`, whose file `path` has `content`.
    pub(crate) fn set_value(&self, name: String, path: &Path, value: &str, content: String) {
        let entry = IntendedValue {
            path: path.to_owned(),
            value: value.to_owned(),
            content,
        };
        self.lock().values.insert(name, entry);
    }

    /// Returns whether the directory would exist.
    pub(crate) fn has_dir(&self, dir: &Path) -> bool {
        let intended = self.lock().directories.get(dir).copied();
        intended.unwrap_or_else(|| dir.is_dir())
    }

    /// Returns whether the directory exists in the intention only.
    pub(crate) fn is_new_dir(&self, dir: &Path) -> bool {
        self.lock().directories.get(dir) == Some(&true)
    }

    /// Stores that the directory would be created, or removed with all that is in it.
    pub(crate) fn set_dir(&self, dir: &Path, exists: bool) {
        let mut state = self.lock();
        if dir.is_dir() == exists {
            state.directories.remove(dir);
        } else {
            state.directories.insert(dir.to_owned(), exists);
        }
        if !exists {
            state.tasks.retain(|_, group| group != dir);
            state.values.retain(|_, entry| !entry.path.starts_with(dir));
        }
    }

    /// Returns the directories directly below `parent` that exist in the intention only.
    pub(crate) fn new_dirs(&self, parent: &Path) -> Vec<PathBuf> {
        let state = self.lock();
        let new = state.directories.iter().filter(|(_, exists)| **exists);
        let below = new.filter(|(dir, _)| dir.parent() == Some(parent));
        below.map(|(dir, _)| dir.clone()).collect()
    }

    /// Stores that `thread` would have been moved to the group at `dir`; false if it already is.
    pub(crate) fn move_task(&self, thread: u32, dir: &Path) -> bool {
        let before = self.lock().tasks.insert(thread, dir.to_owned());
        before.as_deref() != Some(dir)
    }

    /// Returns the threads that the group at `dir` would have, whose real threads are `real`; `None` if it would
    /// not exist.
    pub(crate) fn tasks(&self, dir: &Path, real: Option<Vec<u32>>) -> Option<Vec<u32>> {
        if !self.has_dir(dir) {
            return None;
        }
        let state = self.lock();
        let mut threads: BTreeSet<u32> = real.unwrap_or_default().into_iter().collect();
        threads.retain(|thread| state.tasks.get(thread).is_none_or(|now| now == dir));
        let moved = state.tasks.iter().filter(|(_, now)| *now == dir);
        threads.extend(moved.map(|(thread, _)| *thread));
        Some(threads.into_iter().collect())
    }

    /// Returns the intended cookie of a process whose cookie is `real`.
    pub(crate) fn cookie(&self, pid: u32, real: u64) -> u64 {
        match self.lock().cookies.get(&pid) {
            Some((before, intended)) if *before == real => *intended,
            _ => real,
        }
    }

    /// Stores the intended cookie of a process whose cookie is `real`.
    pub(crate) fn set_cookie(&self, pid: u32, real: u64, cookie: u64) {
        self.lock().cookies.insert(pid, (real, cookie));
    }

    /// Returns a cookie that was not returned before.
    pub(crate) fn new_cookie(&self) -> u64 {
        let mut state = self.lock();
        state.next_cookie += 1;
        state.next_cookie
    }

    /// Drops entries of ended groups and processes once the number of entries has doubled. `proc` is the
    /// directory of processes.
    pub(crate) fn sweep(&self, proc: &Path) {
        let mut state = self.lock();
        if state.len() < SWEEP_FROM.max(2 * state.swept) {
            return;
        }
        let runs = |pid: u32| proc.join(pid.to_string()).is_dir();
        let IntendedState {
            values,
            directories,
            tasks,
            cookies,
            ..
        } = &mut *state;
        let created =
            |path: &Path| path.parent().and_then(|dir| directories.get(dir)) == Some(&true);
        values.retain(|_, entry| entry.path.exists() || created(&entry.path));
        tasks.retain(|thread, _| runs(*thread));
        cookies.retain(|pid, _| runs(*pid));
        state.swept = state.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_ended_groups_and_processes_are_dropped() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("7")).unwrap();
        let overlay = Overlay::default();
        let file = dir.path().join("present");
        std::fs::write(&file, "").unwrap();
        overlay.set_value("present".to_owned(), &file, "1", String::new());
        for number in 0..SWEEP_FROM {
            let gone = dir.path().join("gone").join(number.to_string());
            overlay.set_value(number.to_string(), &gone, "1", String::new());
        }
        overlay.move_task(7, dir.path());
        overlay.move_task(8, dir.path());
        overlay.set_cookie(7, 0, 1);
        overlay.set_cookie(8, 0, 1);
        overlay.sweep(dir.path());
        assert_eq!(overlay.lock().len(), 3);
        assert_eq!(overlay.value("present", "").as_deref(), Some("1"));
    }
}

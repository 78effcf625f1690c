//! How tasks come to the cookies of their groups.
//!
//! The kernel makes a cookie on a task and copies it from task to task; nobody can name one. So each
//! round looks at the cookies the tasks have, takes the first one of a group as the group's, and asks
//! for copies. Unlike upstream there is no cache of task ids that could go stale.

use super::Wanted;
use std::collections::{BTreeMap, BTreeSet};

/// A process and the cookie it has now; 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// The process id.
    pub pid: u32,
    /// Its cookie.
    pub cookie: u64,
}

/// The processes of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    /// Where they belong.
    pub wanted: Wanted,
    /// Those whose cookie could be read.
    pub tasks: Vec<Task>,
}

/// One thing to do, for a process with all its threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Make a new cookie on `pid`.
    Create {
        /// The process.
        pid: u32,
    },
    /// Copy the cookie of `from` to `to`.
    Share {
        /// A process that has the cookie, or gets it earlier in the same round.
        from: u32,
        /// The process that gets it.
        to: u32,
    },
    /// Take the cookie off `pid`.
    Clear {
        /// The process.
        pid: u32,
    },
}

/// What is remembered between rounds.
#[derive(Debug, Clone, Default)]
pub struct Cookies {
    of_group: BTreeMap<String, u64>,
    /// Cookies that we gave; others are not taken off.
    ours: BTreeSet<u64>,
    begun: bool,
}

impl Cookies {
    /// What brings every process to the cookie of its group. `containers` come in the order of their
    /// pods' creation: where a group has several cookies the first one stays.
    ///
    /// In the first round every cookie of a container that we may touch counts as ours: it is from
    /// before a restart.
    pub fn plan(&mut self, containers: &[Members]) -> Vec<Action> {
        let groups = groups(containers);
        if !self.begun && containers.iter().any(|c| !c.tasks.is_empty()) {
            self.begun = true;
            let touched = containers.iter().filter(|c| c.wanted != Wanted::Untouched);
            self.ours
                .extend(touched.flat_map(|c| &c.tasks).map(|task| task.cookie));
        }
        self.of_group.retain(|name, cookie| {
            let members = groups.iter().find(|(group, _)| group == name);
            members.is_some_and(|(_, tasks)| tasks.iter().any(|task| task.cookie == *cookie))
        });
        let mut actions = Vec::new();
        for (name, tasks) in &groups {
            self.bring(name, tasks, &mut actions);
        }
        let neutral = containers.iter().filter(|c| c.wanted == Wanted::Neutral);
        let clear = neutral
            .flat_map(|c| &c.tasks)
            .filter(|task| task.cookie != 0 && self.ours.contains(&task.cookie));
        actions.extend(clear.map(|task| Action::Clear { pid: task.pid }));
        let seen: BTreeSet<u64> = containers
            .iter()
            .flat_map(|c| &c.tasks)
            .map(|task| task.cookie)
            .collect();
        self.ours.retain(|cookie| seen.contains(cookie));
        actions
    }

    /// The cookie of a group, once it is known.
    #[must_use]
    pub fn of(&self, group: &str) -> Option<u64> {
        self.of_group.get(group).copied()
    }

    fn bring(&mut self, name: &str, tasks: &[Task], actions: &mut Vec<Action>) {
        let known = self.of_group.get(name).copied().or_else(|| {
            // A cookie of another group came along when a pod changed its group.
            let taken: BTreeSet<u64> = self.of_group.values().copied().collect();
            let mut cookies = tasks.iter().map(|task| task.cookie);
            cookies.find(|cookie| *cookie != 0 && !taken.contains(cookie))
        });
        if let Some(cookie) = known {
            self.of_group.insert(name.to_owned(), cookie);
            self.ours.insert(cookie);
            let holder = tasks.iter().find(|task| task.cookie == cookie);
            let Some(holder) = holder else { return };
            let others = tasks.iter().filter(|task| task.cookie != cookie);
            actions.extend(others.map(|task| Action::Share {
                from: holder.pid,
                to: task.pid,
            }));
            return;
        }
        // Best on a task without a cookie: if making one fails, copies from it do no harm.
        let bare = tasks.iter().find(|task| task.cookie == 0);
        let Some(leader) = bare.or_else(|| tasks.first()) else {
            return;
        };
        actions.push(Action::Create { pid: leader.pid });
        if bare.is_some() {
            let others = tasks.iter().filter(|task| task.pid != leader.pid);
            actions.extend(others.map(|task| Action::Share {
                from: leader.pid,
                to: task.pid,
            }));
        }
    }
}

/// The tasks of each group, groups and tasks in the order of the containers.
fn groups(containers: &[Members]) -> Vec<(&str, Vec<Task>)> {
    let mut groups: Vec<(&str, Vec<Task>)> = Vec::new();
    let mut index: BTreeMap<&str, usize> = BTreeMap::new();
    for container in containers {
        let Wanted::Group(name) = &container.wanted else {
            continue;
        };
        let at = *index.entry(name).or_insert_with(|| {
            groups.push((name, Vec::new()));
            groups.len() - 1
        });
        if let Some((_, tasks)) = groups.get_mut(at) {
            tasks.extend(&container.tasks);
        }
    }
    groups
}

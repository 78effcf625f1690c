//! Planning of the operations that give tasks the cookie of their group.
//!
//! The kernel creates a cookie on a task and copies it between tasks; a cookie cannot be chosen by value. So
//! each round reads the cookies of the tasks, uses the first one of a group as the group's, and plans copies.
//! Unlike upstream there is no cache of task ids that could become stale.

use super::CookieTarget;
use std::collections::{BTreeMap, BTreeSet};

/// Process and its current cookie; 0 means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// Process id.
    pub pid: u32,
    /// Current cookie.
    pub cookie: u64,
}

/// The processes of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CookieMembers {
    /// Desired cookie.
    pub target: CookieTarget,
    /// Processes whose cookie could be read.
    pub tasks: Vec<Task>,
}

/// One operation on a process with all its threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Create a new cookie on `pid`.
    Create {
        /// The process.
        pid: u32,
    },
    /// Copy the cookie of `from` to `to`.
    Share {
        /// Process that has the cookie, or gets it earlier in the same round.
        from: u32,
        /// Process that gets the cookie.
        to: u32,
    },
    /// Remove the cookie of `pid`.
    Clear {
        /// The process.
        pid: u32,
    },
}

/// State that is kept between rounds.
#[derive(Debug, Clone, Default)]
pub struct Cookies {
    of_group: BTreeMap<String, u64>,
    /// Cookies that this process created; others are not removed.
    ours: BTreeSet<u64>,
    begun: bool,
}

impl Cookies {
    /// Returns the operations that give every process the cookie of its group. `containers` must be in the
    /// order of their pods' creation: if a group has several cookies, the first one is kept.
    ///
    /// In the first round every cookie of a managed container counts as created by this process, because it
    /// dates from before a restart.
    pub fn plan(&mut self, containers: &[CookieMembers]) -> Vec<Action> {
        let groups = groups(containers);
        if !self.begun && containers.iter().any(|c| !c.tasks.is_empty()) {
            self.begun = true;
            let touched = containers
                .iter()
                .filter(|c| c.target != CookieTarget::Untouched);
            self.ours
                .extend(touched.flat_map(|c| &c.tasks).map(|task| task.cookie));
        }
        self.of_group.retain(|name, cookie| {
            let members = groups.iter().find(|(group, _)| group == name);
            members.is_some_and(|(_, tasks)| tasks.iter().any(|task| task.cookie == *cookie))
        });
        let mut actions = Vec::new();
        for (name, tasks) in &groups {
            self.plan_group(name, tasks, &mut actions);
        }
        let neutral = containers
            .iter()
            .filter(|c| c.target == CookieTarget::Neutral);
        let clear = neutral
            .flat_map(|c| &c.tasks)
            .filter(|task| task.cookie != 0 && self.ours.contains(&task.cookie));
        actions.extend(clear.map(|task| Action::Clear { pid: task.pid }));
        let in_use: BTreeSet<u64> = containers
            .iter()
            .flat_map(|c| &c.tasks)
            .map(|task| task.cookie)
            .collect();
        self.ours.retain(|cookie| in_use.contains(cookie));
        actions
    }

    /// Returns the cookie of a group; `None` until the group has one.
    #[must_use]
    pub fn cookie(&self, group: &str) -> Option<u64> {
        self.of_group.get(group).copied()
    }

    /// Appends the operations that give all `tasks` of group `name` its cookie, created if there is none.
    fn plan_group(&mut self, name: &str, tasks: &[Task], actions: &mut Vec<Action>) {
        let existing = self.of_group.get(name).copied().or_else(|| {
            // A pod that changed its group still has the cookie of the old one.
            let in_use: BTreeSet<u64> = self.of_group.values().copied().collect();
            let mut cookies = tasks.iter().map(|task| task.cookie);
            cookies.find(|cookie| *cookie != 0 && !in_use.contains(cookie))
        });
        if let Some(cookie) = existing {
            self.of_group.insert(name.to_owned(), cookie);
            self.ours.insert(cookie);
            let holder = tasks.iter().find(|task| task.cookie == cookie);
            let Some(holder) = holder else { return };
            let receivers = tasks.iter().filter(|task| task.cookie != cookie);
            actions.extend(receivers.map(|task| Action::Share {
                from: holder.pid,
                to: task.pid,
            }));
            return;
        }
        // Prefer a task without a cookie: if the creation fails, copies from it do no harm.
        let bare = tasks.iter().find(|task| task.cookie == 0);
        let Some(leader) = bare.or_else(|| tasks.first()) else {
            return;
        };
        actions.push(Action::Create { pid: leader.pid });
        if bare.is_some() {
            let receivers = tasks.iter().filter(|task| task.pid != leader.pid);
            actions.extend(receivers.map(|task| Action::Share {
                from: leader.pid,
                to: task.pid,
            }));
        }
    }
}

/// Returns the processes of each cookie group, by group name; groups and processes are in the order of the
/// containers.
fn groups(containers: &[CookieMembers]) -> Vec<(&str, Vec<Task>)> {
    let mut groups: Vec<(&str, Vec<Task>)> = Vec::new();
    let mut index: BTreeMap<&str, usize> = BTreeMap::new();
    for container in containers {
        let CookieTarget::Group(name) = &container.target else {
            continue;
        };
        let position = *index.entry(name).or_insert_with(|| {
            groups.push((name, Vec::new()));
            groups.len() - 1
        });
        if let Some((_, tasks)) = groups.get_mut(position) {
            tasks.extend(&container.tasks);
        }
    }
    groups
}

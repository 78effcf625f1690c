//! Core scheduling cookies: reads those of processes, and writes the changes that
//! [`koord_model::core_sched::Cookies`] plans.

use super::labels;
use crate::hooks::{Adjustment, HOOKS, Rules};
use crate::metrics::{self, Metrics};
use crate::qos::{Plan, View, Write};
use crate::states::{ContainerInfo, PodInfo};
use jiff::Timestamp;
use koord_host::Target;
use koord_host::target::Attribute;
use koord_model::core_sched::{Action, CookieMembers, CookieTarget, Cookies, Task};

/// The processes of one container.
#[derive(Debug)]
struct ContainerTasks {
    created: Option<Timestamp>,
    members: CookieMembers,
    at: Write,
    labels: metrics::Container,
}

/// Reconciles the cookies.
#[derive(Debug, Default)]
pub(super) struct CookieKeeper {
    cookies: Cookies,
    containers: Vec<ContainerTasks>,
    /// True if this round reads processes.
    reads_processes: bool,
    /// True if no cookie is left to clear while no class is enabled.
    done: bool,
    enabled: bool,
    with_processes: u32,
    /// True if the lack of cookies in this kernel was logged.
    logged: bool,
}

fn target(pid: u32) -> Target {
    Target::Process {
        pid,
        attribute: Attribute::CoreSchedCookie,
    }
}

impl CookieKeeper {
    /// Begins a round. While no class is enabled, processes are read until a round has nothing to clear.
    pub(super) fn begin(&mut self, rules: &Rules) {
        let row = HOOKS.iter().find(|hook| hook.name == "CoreSched");
        let is_active = row.is_some_and(|hook| rules.is_active(hook));
        self.enabled = is_active && rules.core_sched().is_enabled();
        self.reads_processes = self.enabled || (is_active && !self.done);
        self.containers.clear();
        self.with_processes = 0;
    }

    /// Returns whether this round reads processes.
    pub(super) fn reads_processes(&self) -> bool {
        self.reads_processes
    }

    /// Reads the processes of a container, or of the sandbox.
    pub(super) fn container(
        &mut self,
        view: &View<'_>,
        pod: &PodInfo,
        container: Option<&ContainerInfo>,
        write: &Write,
        adjustment: &Adjustment,
    ) {
        let Some((hook_value, group)) = adjustment.core_sched.as_ref().zip(write.target.group())
        else {
            return;
        };
        if !self.reads_processes || hook_value.value == CookieTarget::Untouched {
            return;
        }
        let processes = view.kernel.processes(group);
        self.with_processes += u32::from(!processes.is_empty());
        let task = |pid: u32| {
            let cookie = view.kernel.target(&target(pid))?.parse().ok()?;
            Some(Task { pid, cookie })
        };
        let mut write = write.clone();
        write.reason = hook_value.by;
        self.containers.push(ContainerTasks {
            created: pod.created,
            members: CookieMembers {
                target: hook_value.value.clone(),
                tasks: processes.into_iter().filter_map(task).collect(),
            },
            at: write,
            labels: labels(pod, container),
        });
    }

    /// Ends the round: plans the writes.
    pub(super) fn end(&mut self, metrics: &Metrics, plan: &mut Plan) {
        if !self.reads_processes {
            return;
        }
        let containers = std::mem::take(&mut self.containers);
        let readable = containers
            .iter()
            .any(|container| !container.members.tasks.is_empty());
        if !readable {
            // Containers that just ended have no processes; if none can be read, the kernel has no cookies.
            if self.with_processes > 0 && !std::mem::replace(&mut self.logged, true) {
                tracing::warn!(
                    hook = "CoreSched",
                    "core scheduling unavailable on this kernel or machine, setting no cookies"
                );
            }
            return;
        }
        let mut containers = containers;
        containers.sort_by_key(|container| container.created);
        let members: Vec<CookieMembers> = containers
            .iter()
            .map(|container| container.members.clone())
            .collect();
        let actions = self.cookies.plan(&members);
        self.done = !self.enabled && actions.is_empty();
        for container in &containers {
            let CookieTarget::Group(group) = &container.members.target else {
                continue;
            };
            if let Some(cookie) = self.cookies.cookie(group) {
                metrics.cookie(&container.labels, group, cookie);
            }
        }
        for action in actions {
            let (pid, value) = match action {
                Action::Create { pid } => (pid, "new".to_owned()),
                Action::Share { from, to } => (to, format!("from {from}")),
                Action::Clear { pid } => (pid, "0".to_owned()),
            };
            let owner = containers.iter().find(|container| {
                let mut tasks = container.members.tasks.iter();
                tasks.any(|task| task.pid == pid)
            });
            let Some(owner) = owner else { continue };
            let mut write = owner.at.clone().value(value);
            write.target = target(pid);
            write.cacheable = false;
            plan.write(write);
        }
    }
}

//! Values that the kernel rejects in procfs and sysfs.

use super::kernel::errno;
use libc::EINVAL;
use std::fs;
use std::io;
use std::path::Path;

/// Writes `value` to the existing file `path`, which is in no cgroup tree.
pub(super) fn write(path: &Path, value: &str) -> io::Result<()> {
    let text = path.to_string_lossy();
    let ends = |suffix: &str| text.ends_with(suffix);
    let range = if ends("/oom_score_adj") {
        Some((-1000, 1000))
    } else if ends("/vm/min_free_kbytes") {
        Some((0, i64::from(i32::MAX)))
    } else if ends("/vm/watermark_scale_factor") {
        Some((1, 3000))
    } else if ends("/sched_group_identity_enabled")
        || ends("/kernel/sched_core")
        || ends("/memcg_reaper/reap_background")
        || ends("/pagecache_limit/enabled")
    {
        Some((0, 1))
    } else if ends("/sched_idle_saver_wmark") {
        Some((0, i64::MAX))
    } else {
        None
    };
    if let Some((min, max)) = range
        && !value
            .parse::<i64>()
            .is_ok_and(|number| (min..=max).contains(&number))
    {
        return Err(errno(EINVAL));
    }
    if ends("/sched_features") || ends("/sched/features") {
        return feature(path, value);
    }
    fs::write(path, format!("{value}\n"))
}

/// Writes to a list of features: `NAME` enables one, `NO_NAME` disables it, and an unknown name is EINVAL.
fn feature(path: &Path, word: &str) -> io::Result<()> {
    let plain = |word: &str| word.strip_prefix("NO_").unwrap_or(word).to_owned();
    let list = fs::read_to_string(path)?;
    if !list
        .split_ascii_whitespace()
        .any(|listed| plain(listed) == plain(word))
    {
        return Err(errno(EINVAL));
    }
    let words = list.split_ascii_whitespace().map(|listed| {
        if plain(listed) == plain(word) {
            word
        } else {
            listed
        }
    });
    let words: Vec<&str> = words.collect();
    fs::write(path, words.join(" ") + "\n")
}

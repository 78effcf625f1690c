//! `koord audit`: shows what the node agent did, and why.

use crate::{http_get, running};
use anyhow::{Context as _, Result, bail};
use jiff::Timestamp;
use koord_app::console;
use koord_app::daemon::runtime;
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;

/// Number of records per request.
const PAGE: usize = 256;
/// Interval at which newer records are requested.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// Arguments of `koord audit`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Address of koordlet's HTTP server [default: the one of `koord up` on this machine, else 127.0.0.1:9316]
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Option<String>,
    /// Show only records about this pod.
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    pub pod: Option<String>,
    /// Show only records with this reason, such as the name of a strategy.
    #[arg(long)]
    pub reason: Option<String>,
    /// Show only records younger than this, such as 10m.
    #[arg(long, value_name = "DURATION", value_parser = koord_app::flags::duration)]
    pub since: Option<Duration>,
    /// Number of records to show, the newest ones; 0 shows all.
    #[arg(long, short = 'n', default_value_t = 50)]
    pub tail: usize,
    /// Continue to print new records.
    #[arg(long, short)]
    pub follow: bool,
    /// Print records as JSON, one per line.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Deserialize)]
struct Answer {
    #[serde(rename = "Events", default)]
    events: Vec<Value>,
    #[serde(rename = "NextPageToken")]
    next: Option<String>,
    #[serde(rename = "Newest", default)]
    newest: u64,
}

/// Prints records, oldest first.
///
/// # Errors
/// koordlet cannot be reached, or does not serve its audit log.
pub fn main(args: &Args) -> Result<()> {
    runtime()?.block_on(run(args))
}

/// Prints the matching records, and with `--follow` those that are added later.
async fn run(args: &Args) -> Result<()> {
    let filter = RecordFilter::from_args(args, Timestamp::now());
    let (records, newest) = read(args, &filter).await?;
    for record in records.iter().rev() {
        show(args, record);
    }
    if !args.follow {
        return match records.is_empty() {
            true => report_empty(args),
            false => Ok(()),
        };
    }
    // The response repeats records that were shown already.
    let mut last = newest;
    let mut after = 0;
    loop {
        let answer = query(args, &format!("/events?after={after}")).await?;
        for record in &answer.events {
            let position = position(record);
            if position > last && filter.fits(record) {
                show(args, record);
            }
            last = last.max(position);
        }
        after = answer.newest;
        tokio::time::sleep(FOLLOW_INTERVAL).await;
    }
}

/// Reports that there are no records; an error if a filter is set, since it may be misspelled.
fn report_empty(args: &Args) -> Result<()> {
    let pod = args.pod.as_ref().map(|pod| format!("of pod {pod:?}"));
    let reason = args.reason.as_ref();
    let reason = reason.map(|reason| format!("with reason {reason:?}"));
    let since = args.since.map(|since| format!("younger than {since:?}"));
    let filters: Vec<String> = [pod, reason, since].into_iter().flatten().collect();
    if filters.is_empty() {
        console::warn("koord: no records yet");
        return Ok(());
    }
    bail!("no record {}", filters.join(" "))
}

/// Returns the matching records, newest first, and the position of the newest record.
async fn read(args: &Args, filter: &RecordFilter) -> Result<(Vec<Value>, RecordPosition)> {
    let (mut records, mut newest) = (Vec::new(), None);
    let mut token = String::new();
    loop {
        let path = format!("/events?size={PAGE}&pageToken={token}");
        let answer = query(args, &path).await?;
        for record in answer.events {
            let position = position(&record);
            newest = newest.max(Some(position));
            if filter.is_past(position) {
                return Ok((records, newest.unwrap_or_default()));
            }
            if filter.fits(&record) {
                records.push(record);
            }
            if args.tail > 0 && records.len() >= args.tail {
                return Ok((records, newest.unwrap_or_default()));
            }
        }
        match answer.next {
            Some(next) => token = next,
            None => return Ok((records, newest.unwrap_or_default())),
        }
    }
}

async fn query(args: &Args, path: &str) -> Result<Answer> {
    let address = running::koordlet(args.address.as_deref());
    let (code, body) = http_get::get(&address, "koordlet", path).await?;
    match code {
        200 => serde_json::from_str(&body).context("invalid response from koordlet"),
        404 => bail!(
            "koordlet at {address} does not serve its audit log; start it with \
             --feature-gates=AuditEvents=true,AuditEventsHTTPHandler=true"
        ),
        _ => bail!("koordlet at {address} returned HTTP status {code}: {body}"),
    }
}

/// Creation time of a record, and its sequence number among those of the same time.
type RecordPosition = (Option<Timestamp>, u64);

fn position(record: &Value) -> RecordPosition {
    let created = record["createdAt"]
        .as_str()
        .and_then(|created| created.parse().ok());
    (created, record["sequence"].as_u64().unwrap_or_default())
}

/// Selects records according to the flags.
#[derive(Debug, Clone)]
struct RecordFilter {
    pod: Option<(Option<String>, String)>,
    reason: Option<String>,
    from: Option<Timestamp>,
}

impl RecordFilter {
    fn from_args(args: &Args, now: Timestamp) -> Self {
        let pod = args.pod.as_deref().map(|pod| match pod.split_once('/') {
            Some((namespace, name)) => (Some(namespace.to_owned()), name.to_owned()),
            None => (None, pod.to_owned()),
        });
        let from = args.since.and_then(|since| now.checked_sub(since).ok());
        Self {
            pod,
            reason: args.reason.clone(),
            from,
        }
    }

    fn is_past(&self, (at, _): RecordPosition) -> bool {
        self.from.is_some() && at < self.from
    }

    fn fits(&self, record: &Value) -> bool {
        let equals = |key: &str, want: &str| record[key].as_str() == Some(want);
        let pod = self.pod.as_ref().is_none_or(|(namespace, name)| {
            equals("type", "pod")
                && equals("name", name)
                && namespace
                    .as_ref()
                    .is_none_or(|want| equals("namespace", want))
        });
        let reason = self.reason.as_ref().is_none_or(|want| {
            let reason = record["reason"].as_str().unwrap_or_default();
            reason.eq_ignore_ascii_case(want)
        });
        pod && reason
    }
}

fn show(args: &Args, record: &Value) {
    if args.json {
        console::print_line(record);
    } else {
        console::print_line(line(record));
    }
}

/// Formats a record: time, object, reason, action.
fn line(record: &Value) -> String {
    let text = |key: &str| record[key].as_str().unwrap_or_default();
    let time = match position(record).0 {
        Some(time) => time.strftime("%Y-%m-%d %H:%M:%S").to_string(),
        None => text("createdAt").to_owned(),
    };
    let mut about = match text("type") {
        "pod" => format!("{}/{}", text("namespace"), text("name")),
        kind => format!("{kind} {}", text("name")).trim_end().to_owned(),
    };
    if !text("container").is_empty() {
        about = format!("{about}:{}", text("container"));
    }
    if text("type") == "group" {
        about = format!("group {}", text("cgroup"));
    }
    let reason = text("reason");
    let mark = if record["dryRun"] == true {
        "[dry run] "
    } else {
        ""
    };
    format!("{time}  {about:32}  {reason:16}  {mark}{}", action(record))
        .trim_end()
        .to_owned()
}

/// Returns the action of a record: the change of a file in short, otherwise the message.
fn action(record: &Value) -> String {
    let text = |key: &str| record[key].as_str();
    let message = text("message").unwrap_or_default();
    let (Some(file), Some(new)) = (text("file"), text("new")) else {
        return message.to_owned();
    };
    // The message ends with the reason, which has the figures.
    let because = message.rsplit_once(&format!(" to {new}: "));
    let because = because.map_or_else(String::new, |(_, because)| format!("  ({because})"));
    match text("old") {
        Some(old) => format!("{file} {} -> {new}{because}", old.trim()),
        None => format!("{file} -> {new}{because}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koordlet::audit::{Config, Entry, Log, Subject};

    fn args(address: String) -> Args {
        Args {
            address: Some(address),
            pod: None,
            reason: None,
            since: None,
            tail: 0,
            follow: false,
            json: false,
        }
    }

    /// Serves a log of 600 records of two pods, as koordlet does.
    async fn served() -> (String, tokio::task::JoinHandle<()>) {
        let log = Log::open(Config::default());
        for n in 0..600 {
            let reason = if n % 100 == 0 {
                "CPUBurst"
            } else {
                "BatchResource"
            };
            let entry = Entry {
                namespace: "shop".to_owned(),
                name: ["cart", "web"][n % 2].to_owned(),
                ..Entry::new(Subject::Pod, 1, reason, format!("m{n}"))
            };
            let time = Timestamp::from_second(1_700_000_000 + n as i64).unwrap();
            log.record(time, entry);
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = tokio::spawn(async move {
            axum::serve(listener, koordlet::events(log)).await.unwrap();
        });
        (address, serving)
    }

    #[tokio::test]
    async fn records_are_chosen_over_all_pages() {
        let (address, serving) = served().await;
        let messages = async |args: Args, now: Timestamp| {
            let filter = RecordFilter::from_args(&args, now);
            let (records, newest) = read(&args, &filter).await.unwrap();
            assert_eq!(newest.1, 600);
            let message = |record: &Value| record["message"].as_str().unwrap().to_owned();
            records.iter().map(message).collect::<Vec<_>>()
        };
        let now = Timestamp::from_second(1_700_000_600).unwrap();
        let all = || args(address.clone());
        assert_eq!(messages(all(), now).await.len(), 600);
        let last = Args { tail: 2, ..all() };
        assert_eq!(messages(last, now).await, ["m599", "m598"]);
        let burst = Args {
            reason: Some("cpuburst".to_owned()),
            pod: Some("shop/cart".to_owned()),
            ..all()
        };
        let bursts = ["m500", "m400", "m300", "m200", "m100", "m0"];
        assert_eq!(messages(burst.clone(), now).await, bursts);
        let young = Args {
            since: Some(Duration::from_secs(250)),
            ..burst.clone()
        };
        assert_eq!(messages(young, now).await, bursts[..2]);
        for (pod, count) in [("web", 300), ("other/web", 0), ("shop/absent", 0)] {
            let filtered = Args {
                pod: Some(pod.to_owned()),
                ..all()
            };
            assert_eq!(messages(filtered, now).await.len(), count, "{pod}");
        }
        serving.abort();
    }

    #[tokio::test]
    async fn missing_records_are_an_error() {
        let (address, serving) = served().await;
        let all = || args(address.clone());
        run(&all()).await.unwrap();
        let pod = |pod: &str| Some(pod.to_owned());
        for (args, message) in [
            (
                Args {
                    pod: pod("nonsense"),
                    ..all()
                },
                "no record of pod \"nonsense\"",
            ),
            (
                Args {
                    pod: pod("shop/cart"),
                    reason: Some("x".to_owned()),
                    ..all()
                },
                "no record of pod \"shop/cart\" with reason \"x\"",
            ),
            (
                Args {
                    since: Some(Duration::from_secs(1)),
                    ..all()
                },
                "no record younger than 1s",
            ),
        ] {
            assert_eq!(run(&args).await.unwrap_err().to_string(), message);
        }
        serving.abort();
    }

    #[test]
    fn a_record_is_a_line() {
        let record = serde_json::json!({
            "createdAt": "2026-01-01T00:00:00.5Z", "type": "pod", "level": 3, "sequence": 7,
            "namespace": "shop", "name": "cart", "container": "web", "reason": "CPUBurst",
            "message": "update cpu.cfs_burst_us to 100000"});
        assert_eq!(
            line(&record),
            "2026-01-01 00:00:00  shop/cart:web                     CPUBurst          \
             update cpu.cfs_burst_us to 100000"
        );
        let record = serde_json::json!({
            "createdAt": "2026-01-01T00:00:00Z", "type": "group", "reason": "BECPUSuppress",
            "cgroup": "kubepods/besteffort", "file": "cpu.cfs_quota_us", "old": "-1\n",
            "new": "30000", "message": "update kubepods/besteffort cpu.cfs_quota_us to 30000: cap 65 %"});
        assert_eq!(
            line(&record),
            "2026-01-01 00:00:00  group kubepods/besteffort         BECPUSuppress     \
             cpu.cfs_quota_us -1 -> 30000  (cap 65 %)"
        );
        let record = serde_json::json!({"type": "node", "name": "n1", "createdAt": "?"});
        assert_eq!(line(&record), "?  node n1");
    }
}

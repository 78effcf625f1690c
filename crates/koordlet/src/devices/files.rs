//! Accelerators that vendors' tools describe in files; see [`koord_model::device_report::xpu`].

use crate::states::malformed::Malformed;
use koord_model::device_report::xpu::{self, Card};
use koord_model::device_report::{Problem, Report};
use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Maximum size of a file in bytes: 64 devices take some 64 KiB.
const MAX_FILE_SIZE: u64 = 4 << 20;

/// Invalid input, by the object that it is reported for.
pub type DeviceProblems = Vec<(String, Vec<Malformed>)>;

/// The directory, and the last content of its files.
#[derive(Debug)]
pub struct XpuFiles {
    dir: PathBuf,
    cards: BTreeMap<String, Vec<Card>>,
    /// Objects, files and the directory, that had problems at the last read.
    with_problems: Vec<String>,
    last: Option<Report>,
}

impl XpuFiles {
    /// Creates the source without reading the directory.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            cards: BTreeMap::new(),
            with_problems: Vec::new(),
            last: None,
        }
    }

    /// Reads the directory. An invalid file keeps its last valid content, and the others are read
    /// nonetheless. Returns `None` if there never was a device; if there are none any more, the last report
    /// is kept, because the tool that writes them is being restarted.
    pub fn find(&mut self) -> (Option<Report>, DeviceProblems) {
        let mut problems_by_object = BTreeMap::new();
        let directory = format!("XPU directory {}", self.dir.display());
        match list(&self.dir) {
            Ok(names) => {
                self.cards.retain(|name, _| names.contains(name));
                for name in names {
                    let problems = self.read(&name);
                    problems_by_object.insert(format!("XPU file {name}"), problems);
                }
            }
            Err(error) => {
                let problem = Malformed::new("", self.dir.display().to_string(), &error);
                problems_by_object.insert(directory.clone(), vec![problem]);
            }
        }
        let cards: Vec<Card> = self.cards.values().flatten().cloned().collect();
        if !cards.is_empty() {
            let (report, problems) = xpu::report(&cards);
            self.last = Some(report);
            let problems = problems.into_iter().map(malformed);
            problems_by_object
                .entry(directory)
                .or_default()
                .extend(problems);
        }
        // Clear the problems of removed files.
        for object in std::mem::take(&mut self.with_problems) {
            problems_by_object.entry(object).or_default();
        }
        let invalid = problems_by_object
            .iter()
            .filter(|(_, wrong)| !wrong.is_empty());
        self.with_problems = invalid.map(|(object, _)| object.clone()).collect();
        (self.last.clone(), problems_by_object.into_iter().collect())
    }

    fn read(&mut self, name: &str) -> Vec<Malformed> {
        let wrong = |error: &dyn std::fmt::Display| vec![Malformed::new("", name, &error)];
        let text = match read(&self.dir.join(name)) {
            Ok(Some(text)) => text,
            // The file was removed since it was listed, or is no regular file.
            Ok(None) => {
                self.cards.remove(name);
                return Vec::new();
            }
            Err(error) => return wrong(&error),
        };
        match xpu::parse(&text) {
            Ok((cards, problems)) => {
                self.cards.insert(name.to_owned(), cards);
                problems.into_iter().map(malformed).collect()
            }
            Err(problem) => vec![malformed(problem)],
        }
    }
}

pub(super) fn malformed(problem: Problem) -> Malformed {
    Malformed::new(problem.field, problem.value, &problem.why)
}

/// Returns the names in `dir`, sorted; empty if there is no such directory.
fn list(dir: &Path) -> std::io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        // Skip names that are not UTF-8; upstream's tools do not write them.
        names.extend(entry?.file_name().into_string().ok());
    }
    names.sort_unstable();
    Ok(names)
}

/// Returns the content of a regular file; `None` if it is none, or does not exist.
fn read(path: &Path) -> std::io::Result<Option<String>> {
    let missing_is_none = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => Ok(None),
        _ => Err(error),
    };
    // Check the type first: opening a pipe would wait for its writer.
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => return Ok(None),
        Err(error) => return missing_is_none(error),
    }
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) => return missing_is_none(error),
    };
    let mut text = String::new();
    file.take(MAX_FILE_SIZE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_SIZE {
        let why = format!("longer than {MAX_FILE_SIZE} bytes");
        return Err(std::io::Error::other(why));
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(uuid: &str, minor: &str) -> String {
        format!(r#"{{"vendor": "v", "model": "m", "uuid": "{uuid}", "minor": "{minor}"}}"#)
    }

    fn ids(report: Option<Report>) -> Vec<String> {
        let devices = report.into_iter().flat_map(|report| report.devices);
        devices.map(|device| device.info.id).collect()
    }

    fn wrong(problems_by_object: &DeviceProblems) -> Vec<(&str, &str, &str)> {
        let each = problems_by_object.iter().flat_map(|(object, list)| {
            let list = list.iter();
            list.map(|entry| (object.as_str(), entry.field.as_str(), entry.value.as_str()))
        });
        each.collect()
    }

    #[test]
    fn invalid_file_keeps_its_last_content_and_others() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let mut files = XpuFiles::new(dir.path().join("x"));
        let (report, problems_by_object) = files.find();
        assert!(
            report.is_none() && problems_by_object.is_empty(),
            "no directory, no problem"
        );

        let mut files = XpuFiles::new(dir.path().to_owned());
        put("a", &format!("[{}]", card("a0", "0")));
        put("b", &format!("[{}, {}]", card("b1", "1"), card("b2", "x")));
        put("c", "[]");
        fs::create_dir(dir.path().join("d")).unwrap();
        let (report, problems_by_object) = files.find();
        assert_eq!(ids(report), ["a0", "b1"]);
        assert_eq!(
            wrong(&problems_by_object),
            [("XPU file b", "[1].minor", "x")]
        );

        // A partly written file, a repaired one, and one that is not text.
        put("a", r#"[{"uuid": "a0","#);
        put("b", &format!("[{}]", card("b3", "3")));
        fs::write(dir.path().join("e"), [0xff, 0xfe]).unwrap();
        let (report, problems_by_object) = files.find();
        assert_eq!(ids(report), ["a0", "b3"]);
        let named = wrong(&problems_by_object);
        assert_eq!(named.len(), 2, "{named:?}");
        assert_eq!(named[0], ("XPU file a", "", r#"[{"uuid": "a0","#));
        assert_eq!(named[1].0, "XPU file e");
        assert!(
            problems_by_object.contains(&("XPU file b".to_owned(), Vec::new())),
            "b is valid now"
        );

        fs::remove_file(dir.path().join("a")).unwrap();
        fs::remove_file(dir.path().join("e")).unwrap();
        let (report, problems_by_object) = files.find();
        assert_eq!(ids(report), ["b3"]);
        assert_eq!(wrong(&problems_by_object), []);
        // The tool that writes the one file is restarted.
        fs::remove_file(dir.path().join("b")).unwrap();
        assert_eq!(ids(files.find().0), ["b3"]);
    }

    #[test]
    fn two_files_with_one_minor() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), format!("[{}]", card("a0", "0"))).unwrap();
        fs::write(dir.path().join("b"), format!("[{}]", card("b0", "0"))).unwrap();
        let (report, problems_by_object) = XpuFiles::new(dir.path().to_owned()).find();
        assert_eq!(ids(report), ["a0"]);
        let named = wrong(&problems_by_object);
        assert!(named[0].0.starts_with("XPU directory"), "{named:?}");
        assert_eq!((named[0].1, named[0].2), ("minor", "0"));
    }
}

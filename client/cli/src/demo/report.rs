//! The end of the demo: each job, each device, each promise.

use gpulease_proto::v1;
use gpulease_words::Bytes;
use serde::Serialize;

use super::gauge::Use;
use super::narrator::Line;
use super::promise::{Promise, Verdict};
use super::record::{End, Record};
use crate::escape::printable;
use crate::grid::{self, Column, Narrow};
use crate::look::{Look, Tone};
use crate::state::{SCHEMA_VERSION, kind_word};

/// All that is told at the end.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    schema_version: u32,
    pub(super) kept: bool,
    pub(super) seconds: f64,
    pub(super) devices: Vec<Device>,
    pub(super) jobs: Vec<Record>,
    pub(super) promises: Vec<Verdict>,
    pub(super) timeline: Vec<Line>,
}

/// What one device held.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Device {
    index: u32,
    uuid: String,
    name: String,
    kind: Option<&'static str>,
    capacity_bytes: u64,
    /// The most that was in use at one time above what was before the demo, as the device says.
    highest_used_bytes: Option<u64>,
    /// The most that was charged at one time in the broker's book.
    book_peak_bytes: u64,
    /// Whether others use the device as well, so that the figure is not the demo's alone.
    shared: bool,
}

impl Device {
    pub(super) fn new(status: &v1::DeviceStatus, gauge: Use) -> Self {
        let info = status.info.clone().unwrap_or_default();
        let book_peak_bytes = status.memory.as_ref().map_or(0, |memory| memory.peak_charged_bytes);
        Self {
            index: info.index,
            kind: kind_word(info.kind()),
            uuid: info.uuid,
            name: info.name,
            capacity_bytes: info.capacity_bytes,
            highest_used_bytes: gauge.highest_above_first().map(Bytes::get),
            book_peak_bytes,
            shared: !status.strangers.is_empty(),
        }
    }

    /// Whether neither the device nor the book ever had more than the capacity, and whether the device had what the
    /// book said: a demo whose jobs do not touch their memory would show nothing.
    ///
    /// # Errors
    /// The numbers, where one of them had more, or the device had less than half of what the book says.
    pub(super) fn within_capacity(&self) -> Result<String, String> {
        let highest =
            self.highest_used_bytes.map_or_else(|| "N/A".to_owned(), |bytes| Bytes::new(bytes).to_string());
        let (book, capacity) = (Bytes::new(self.book_peak_bytes), Bytes::new(self.capacity_bytes));
        let index = self.index;
        let words =
            format!("device {index} had at most {highest} in use (the book {book}) of its {capacity}");
        if self.shared {
            let words = format!("{words}; others use it, too, so the book alone counts");
            return if self.book_peak_bytes <= self.capacity_bytes { Ok(words) } else { Err(words) };
        }
        let most = self.highest_used_bytes.unwrap_or(0).max(self.book_peak_bytes);
        let untouched = self.highest_used_bytes.is_some_and(|bytes| bytes < self.book_peak_bytes / 2);
        if most > self.capacity_bytes {
            Err(words)
        } else if untouched {
            Err(format!("{words}: the jobs touched less than half of what they held"))
        } else {
            Ok(words)
        }
    }
}

impl Report {
    pub(super) fn new(
        devices: Vec<Device>,
        jobs: Vec<Record>,
        promises: Vec<Verdict>,
        seconds: f64,
        timeline: Vec<Line>,
    ) -> Self {
        let kept = promises.iter().all(|verdict| verdict.kept);
        Self { schema_version: SCHEMA_VERSION, kept, seconds, devices, jobs, promises, timeline }
    }

    /// The names of the broken promises, for the last sentence.
    pub(super) fn broken(&self) -> Vec<Promise> {
        self.promises.iter().filter(|verdict| !verdict.kept).map(|verdict| verdict.promise).collect()
    }

    /// The report for a person.
    pub(super) fn text(&self, look: Look) -> String {
        let rows: Vec<Vec<String>> = self.jobs.iter().map(row).collect();
        let mut text = format!("\n{}\n", grid::lines(COLUMNS, &rows, look));
        for device in &self.devices {
            let (Ok(words) | Err(words)) = device.within_capacity();
            text.push_str(&format!("{words}  ({})\n", printable(&device.name)));
        }
        text.push('\n');
        for Verdict { promise, kept, detail } in &self.promises {
            let mark = if *kept { look.paint(Tone::Good, "kept  ") } else { look.paint(Tone::Bad, "BROKEN") };
            text.push_str(&format!("{mark}  {}\n        {}\n", promise.words(), printable(detail)));
        }
        text.push_str(&format!("\n{:.1} s in all\n", self.seconds));
        text
    }
}

const COLUMNS: &[Column] = &[
    Column::left("JOB", Narrow::Keep),
    Column::right("ASKED", Narrow::Keep),
    Column::right("LIMIT", Narrow::LeaveOut(2)),
    Column::right("HELD AT MOST", Narrow::Keep),
    Column::right("WAITED", Narrow::Keep),
    Column::right("LOSS FIRST", Narrow::Keep),
    Column::right("LOSS LAST", Narrow::Keep),
    Column::right("STEPS", Narrow::LeaveOut(3)),
    Column::left("END", Narrow::LeaveOut(1)),
];

fn row(job: &Record) -> Vec<String> {
    let figure = |value: Option<f64>, unit: &str, digits: usize| {
        value.map_or_else(|| "N/A".to_owned(), |value| format!("{value:.digits$}{unit}"))
    };
    vec![
        printable(&job.name).into_owned(),
        Bytes::new(job.asked_bytes).to_string(),
        Bytes::new(job.limit_bytes).to_string(),
        Bytes::new(job.held_at_most_bytes).to_string(),
        figure(job.waited_seconds, " s", 2),
        figure(job.loss_first, "", 4),
        figure(job.loss_last, "", 4),
        job.steps.to_string(),
        end(job.end.as_ref()),
    ]
}

fn end(end: Option<&End>) -> String {
    match end {
        None => "was still running".to_owned(),
        Some(End::Finished) => "finished".to_owned(),
        Some(End::Killed { signal }) => crate::signals::name(*signal),
        Some(End::Refused { reason, .. }) => printable(reason).into_owned(),
        Some(End::Failed { code, .. }) => format!("failed ({code})"),
    }
}

#[cfg(test)]
mod tests {
    use gpulease_words::{gib, mib};

    use super::super::promise::Verdicts;
    use super::*;

    fn device(highest: Option<u64>, book: u64) -> Device {
        Device {
            index: 0,
            uuid: "host-0".into(),
            name: "host memory".into(),
            kind: Some("host"),
            capacity_bytes: gib(1).get(),
            highest_used_bytes: highest,
            book_peak_bytes: book,
            shared: false,
        }
    }

    #[test]
    fn one_byte_above_the_capacity_is_too_much() {
        let capacity = gib(1).get();
        assert!(device(Some(capacity), capacity).within_capacity().is_ok());
        assert!(device(Some(capacity + 1), 0).within_capacity().is_err());
        assert!(device(Some(capacity), capacity + 1).within_capacity().is_err());
        assert!(device(Some(capacity / 2 - 1), capacity).within_capacity().is_err(), "the jobs used nothing");
        let shared = |book| Device { shared: true, ..device(Some(3 * capacity), book) };
        assert!(shared(capacity).within_capacity().is_ok_and(|words| words.contains("others use it")));
        assert!(shared(capacity + 1).within_capacity().is_err());
        assert!(device(None, capacity).within_capacity().is_ok_and(|words| words.contains("N/A")));
    }

    #[test]
    fn the_end_for_a_person_and_as_a_document() {
        let jobs = vec![
            Record {
                name: "anna".into(),
                asked_bytes: mib(384).get(),
                limit_bytes: mib(384).get(),
                held_at_most_bytes: mib(384).get(),
                waited_seconds: Some(0.001),
                loss_first: Some(2.4),
                loss_last: Some(0.2),
                steps: 400,
                end: Some(End::Finished),
                ..Record::default()
            },
            Record {
                name: "greta".into(),
                asked_bytes: mib(512).get(),
                limit_bytes: mib(512).get(),
                end: Some(End::Refused { reason: "over_budget".into(), message: "too much".into() }),
                ..Record::default()
            },
        ];
        let mut verdicts = Verdicts::default();
        verdicts.kept(Promise::Waits, "so long");
        let report = Report::new(
            vec![device(Some(mib(900).get()), mib(900).get())],
            jobs,
            verdicts.all(),
            12.0,
            vec![],
        );
        let text = report.text(Look::PLAIN);
        let table = "
JOB      ASKED    LIMIT  HELD AT MOST  WAITED  LOSS FIRST  LOSS LAST  STEPS  END
anna   384 MiB  384 MiB       384 MiB  0.00 s      2.4000     0.2000    400  finished
greta  512 MiB  512 MiB           0 B     N/A         N/A        N/A      0  over_budget

device 0 had at most 900 MiB in use (the book 900 MiB) of its 1 GiB  (host memory)
";
        assert!(text.starts_with(table), "{text}");
        assert!(
            text.contains("kept    who finds no room waits")
                && text.contains("BROKEN  every job's loss falls"),
            "{text}"
        );
        assert!(!report.kept && report.broken().len() == Promise::ALL.len() - 1);
        let document = serde_json::to_value(&report).expect("a document");
        assert_eq!(document["jobs"][1]["end"]["how"], "refused");
        assert!(document["jobs"][1]["loss_first"].is_null());
        assert_eq!(document["promises"][2]["promise"], "waits");
    }
}

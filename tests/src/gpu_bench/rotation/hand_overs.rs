//! How long the memory's way from one job to the next takes, by the broker's own events.

use std::time::Duration;

use gpulease_client::blocking::Observer;
use gpulease_client::proto::{EventMessage, EventsRequest};

use crate::gpu_bench::median;

/// Prints each way of a lease with this name, and the medians.
pub(super) fn print(observer: &Observer, names: &str) -> anyhow::Result<()> {
    let remembered = EventsRequest { from_start: true, no_follow: true, after: 0 };
    let events: Vec<EventMessage> = observer.events(remembered)?.collect::<Result<_, _>>()?;
    let ours: Vec<_> = events.iter().filter(|event| event.name.starts_with(names)).collect();
    let Some(first) = ours.first() else { return Ok(()) };
    let (mut out, mut handed) = (Vec::new(), Vec::new());
    for event in
        ours.iter().filter(|event| ["suspend_cancelled", "swap_failed"].contains(&event.kind.as_str()))
    {
        println!(
            "  at {:>6.1} s {} stayed: {}",
            between(first, event).as_secs_f64(),
            event.name,
            event.message
        );
    }
    for (index, event) in ours.iter().enumerate().filter(|(_, event)| event.kind == "suspending") {
        let later = |kinds: &[&str], same: bool| {
            let mut rest = ours[index..].iter();
            let found = rest.find(|next| {
                kinds.contains(&next.kind.as_str()) && (next.lease_id == event.lease_id) == same
            });
            found.map(|next| between(event, next))
        };
        let (gone, next) = (later(&["suspended"], true), later(&["resumed", "granted"], false));
        println!(
            "  at {:>6.1} s {} was to leave: it was out after {}, the next was in after {}",
            between(first, event).as_secs_f64(),
            event.name,
            seconds(gone),
            seconds(next)
        );
        out.extend(gone);
        handed.extend(next);
    }
    if !out.is_empty() && !handed.is_empty() {
        let (gone, next) = (seconds(Some(median(out))), seconds(Some(median(handed))));
        println!("  medians: out after {gone}, the next in after {next}");
    }
    Ok(())
}

fn between(from: &EventMessage, to: &EventMessage) -> Duration {
    Duration::from_millis(to.unix_ms.saturating_sub(from.unix_ms))
}

fn seconds(time: Option<Duration>) -> String {
    time.map_or("N/A".to_owned(), |time| format!("{:.2} s", time.as_secs_f64()))
}

//! `gpulease events`: what happened, and what happens.

use gpulease_proto::v1;
use gpulease_words::{AskId, Bytes, LeaseId};
use serde::Serialize;

use crate::arguments::{Common, EventsArguments};
use crate::clock::LocalTime;
use crate::connection;
use crate::escape::printable;
use crate::exit::{Exit, Failure, Outcome};
use crate::look::{Look, Tone};
use crate::output;
use crate::state::SCHEMA_VERSION;

/// Prints events, each as a line.
pub(crate) async fn events(common: &Common, arguments: &EventsArguments) -> Outcome {
    let observer = connection::observer(common).await?;
    let mut stream = observer.events(request(arguments)).await?;
    while let Some(event) = stream.next().await? {
        if common.json {
            output::print_line(&Document::from(&event))?;
        } else {
            output::print(&line(&event, LocalTime::of(event.unix_ms), Look::of_stdout()))?;
        }
    }
    if arguments.follow {
        return Err(Failure::new(Exit::NoBroker, "the broker stopped, so nothing more happens here"));
    }
    Ok(Exit::Done)
}

fn request(arguments: &EventsArguments) -> v1::EventsRequest {
    let from_start = arguments.since_start || !arguments.follow;
    v1::EventsRequest { after: 0, from_start, no_follow: !arguments.follow }
}

fn line(event: &v1::EventMessage, time: LocalTime, look: Look) -> String {
    let kind = format!("{:<12}", printable(&event.kind));
    let bytes = event.bytes.map(|bytes| format!(" [{}]", Bytes::new(bytes))).unwrap_or_default();
    let kind = look.paint(tone(&event.kind), &kind);
    format!("{} {kind} {}{bytes}\n", time, printable(&event.message))
}

fn tone(kind: &str) -> Tone {
    match kind {
        "granted" | "rejoined" | "resumed" => Tone::Good,
        "waiting" | "recalled" | "adrift" | "off_book" | "suspending" | "suspended" | "suspend_cancelled" => {
            Tone::Warning
        }
        "denied" | "refused" | "died" | "quarantined" | "overdue" | "device_trouble" | "dropped"
        | "swap_failed" | "terminated" => Tone::Bad,
        _ => Tone::Dim,
    }
}

/// One event as a document of one line.
#[derive(Debug, Serialize)]
pub(crate) struct Document<'a> {
    schema_version: u32,
    number: u64,
    unix_ms: u64,
    kind: &'a str,
    message: &'a str,
    lease: Option<String>,
    ask: Option<String>,
    session: Option<String>,
    uid: Option<u32>,
    pid: Option<u32>,
    device: Option<u32>,
    bytes: Option<u64>,
    name: Option<&'a str>,
    reason: Option<&'a str>,
}

impl<'a> From<&'a v1::EventMessage> for Document<'a> {
    fn from(event: &'a v1::EventMessage) -> Self {
        let word = |text: &'a str| Some(text).filter(|text| !text.is_empty());
        Self {
            schema_version: SCHEMA_VERSION,
            number: event.number,
            unix_ms: event.unix_ms,
            kind: &event.kind,
            message: &event.message,
            lease: event.lease_id.map(|id| LeaseId::new(id).to_string()),
            ask: event.ask_id.map(|id| AskId::new(id).to_string()),
            session: event.session_id.map(|id| gpulease_words::SessionId::new(id).to_string()),
            uid: event.uid,
            pid: event.pid,
            device: event.device_index,
            bytes: event.bytes,
            name: word(&event.name),
            reason: word(&event.reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use gpulease_words::gib;

    use super::*;

    fn event() -> v1::EventMessage {
        v1::EventMessage {
            number: 5,
            unix_ms: 1_000,
            kind: "granted".into(),
            message: "L7 \u{7}resnet has 8 GiB".into(),
            lease_id: Some(7),
            bytes: Some(gib(8).get()),
            ..Default::default()
        }
    }

    #[test]
    fn an_event_is_a_line() {
        let time = LocalTime::of(0);
        let expected = format!("{time} granted      L7 \\x07resnet has 8 GiB [8 GiB]\n");
        assert_eq!(line(&event(), time, Look::PLAIN), expected);
    }

    #[test]
    fn an_event_as_a_document() {
        let document = serde_json::to_value(Document::from(&event())).expect("a document");
        assert_eq!(document["lease"], "L7");
        assert_eq!(document["bytes"], gib(8).get());
        assert!(document["uid"].is_null() && document["name"].is_null());
    }

    #[test]
    fn without_options_all_that_is_remembered_and_no_more() {
        let ask = |follow, since_start| request(&EventsArguments { follow, since_start });
        assert!(ask(false, false).from_start && ask(false, false).no_follow);
        assert!(!ask(true, false).from_start && !ask(true, false).no_follow);
        assert!(ask(true, true).from_start && !ask(true, true).no_follow);
    }
}

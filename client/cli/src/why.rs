//! `gpulease why`: the numbers behind one ask or lease.

use gpulease_client::AskError;
use gpulease_proto::v1;
use gpulease_words::{AskId, Bytes, LeaseId};
use serde::Serialize;

use crate::arguments::{Common, Subject, WhyArguments};
use crate::connection;
use crate::escape::printable;
use crate::exit::{Exit, Failure, Outcome};
use crate::look::{Look, Tone};
use crate::output;
use crate::state::{SCHEMA_VERSION, seconds, span, user};

/// Says why an ask waits, or how a lease stands.
pub(crate) async fn why(common: &Common, arguments: &WhyArguments) -> Outcome {
    let observer = connection::observer(common).await?;
    let (id, answer) = match arguments.subject {
        Subject::Ask(ask) => (ask.to_string(), observer.why_ask(ask).await.map_err(no_such_ask)?),
        Subject::Lease(lease) => (lease.to_string(), observer.why_lease(lease).await?),
    };
    if common.json {
        output::print_document(&Document::new(&id, &answer))?;
    } else {
        output::print(&text(&id, &answer, Look::of_stdout()))?;
    }
    Ok(Exit::Done)
}

/// An ask that is over ends as a lease that is over does.
fn no_such_ask(error: AskError) -> Failure {
    let refused = error.denied().is_some();
    let failure = Failure::from(error);
    if refused { Failure { exit: Exit::NotAllowed, ..failure } } else { failure }
}

fn text(id: &str, why: &v1::Why, look: Look) -> String {
    let mut text = format!("{}: {}\n", look.paint(Tone::Heading, id), printable(&why.summary));
    for detail in &why.details {
        text.push_str(&format!("- {}\n", printable(detail)));
    }
    let Some(waiting) = &why.waiting else { return text };
    for holder in &waiting.holders {
        text.push_str(&format!("  {}\n", holder_words(holder)));
    }
    let latest = match waiting.at_latest_ms {
        Some(ms) => format!("it is answered in {} at the latest", span(ms)),
        None => "nobody can say by when it is answered".to_owned(),
    };
    text.push_str(&format!("- waited {}; {latest}\n", span(waiting.waited_ms)));
    text
}

fn holder_words(holder: &v1::Holder) -> String {
    let (lease, name) = (LeaseId::new(holder.lease_id), printable(&holder.name));
    let (user, bytes) = (user(&holder.user, holder.uid), Bytes::new(holder.bytes));
    format!("{lease} {name} of {user}, pid {}, has {bytes}", holder.pid)
}

#[derive(Serialize)]
struct Document<'a> {
    schema_version: u32,
    id: &'a str,
    summary: &'a str,
    details: &'a [String],
    waiting: Option<Waiting<'a>>,
}

#[derive(Serialize)]
struct Waiting<'a> {
    id: String,
    position: u32,
    short_by_bytes: u64,
    reason: &'a str,
    message: &'a str,
    holders: Vec<Holder<'a>>,
    at_latest_seconds: Option<f64>,
    waited_seconds: f64,
}

#[derive(Serialize)]
struct Holder<'a> {
    id: String,
    name: &'a str,
    user: &'a str,
    uid: u32,
    pid: u32,
    bytes: u64,
}

impl<'a> Document<'a> {
    fn new(id: &'a str, why: &'a v1::Why) -> Self {
        let waiting = why.waiting.as_ref().map(Waiting::from);
        Self { schema_version: SCHEMA_VERSION, id, summary: &why.summary, details: &why.details, waiting }
    }
}

impl<'a> From<&'a v1::Waiting> for Waiting<'a> {
    fn from(waiting: &'a v1::Waiting) -> Self {
        Self {
            id: AskId::new(waiting.ask_id).to_string(),
            position: waiting.position,
            short_by_bytes: waiting.short_by_bytes,
            reason: &waiting.reason,
            message: &waiting.message,
            holders: waiting.holders.iter().map(Holder::from).collect(),
            at_latest_seconds: waiting.at_latest_ms.map(seconds),
            waited_seconds: seconds(waiting.waited_ms),
        }
    }
}

impl<'a> From<&'a v1::Holder> for Holder<'a> {
    fn from(holder: &'a v1::Holder) -> Self {
        Self {
            id: LeaseId::new(holder.lease_id).to_string(),
            name: &holder.name,
            user: &holder.user,
            uid: holder.uid,
            pid: holder.pid,
            bytes: holder.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use gpulease_words::gib;

    use super::*;

    fn answer() -> v1::Why {
        let holder = v1::Holder {
            lease_id: 7,
            name: "res\u{1b}net".into(),
            user: "alice".into(),
            uid: 1001,
            pid: 4242,
            bytes: gib(8).get(),
        };
        v1::Why {
            summary: "waits as number 1 for 4 GiB".into(),
            details: vec!["2 GiB are short".into()],
            waiting: Some(v1::Waiting {
                ask_id: 3,
                position: 1,
                short_by_bytes: gib(2).get(),
                reason: "no_room".into(),
                message: "2 GiB are short".into(),
                holders: vec![holder],
                at_latest_ms: None,
                waited_ms: 12_000,
            }),
        }
    }

    #[test]
    fn an_answer_for_a_person() {
        assert_eq!(
            text("a3", &answer(), Look::PLAIN),
            "\
a3: waits as number 1 for 4 GiB
- 2 GiB are short
  L7 res\\x1bnet of alice, pid 4242, has 8 GiB
- waited 12s; nobody can say by when it is answered
"
        );
    }

    #[test]
    fn an_answer_as_a_document() {
        let answer = answer();
        let document = serde_json::to_value(Document::new("a3", &answer)).expect("a document");
        assert_eq!(document["schema_version"], 1);
        assert_eq!(document["waiting"]["short_by_bytes"], gib(2).get());
        assert_eq!(document["waiting"]["holders"][0]["id"], "L7");
        assert!(document["waiting"]["at_latest_seconds"].is_null());
        let lease = v1::Why { waiting: None, ..answer };
        assert!(serde_json::to_value(Document::new("L7", &lease)).expect("a document")["waiting"].is_null());
    }
}

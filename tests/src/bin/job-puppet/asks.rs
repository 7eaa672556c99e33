//! Asks that wait in the background.

use std::error::Error;

use gpulease_client::{AskError, Client, DeviceId, Lease, Uid, Waiting};
use gpulease_words::parse_duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::bytes;

/// An ask for a lease that is under way. Dropping it withdraws the ask.
pub(crate) struct Ask {
    task: JoinHandle<Result<Lease, AskError>>,
    waiting: watch::Receiver<Option<Waiting>>,
}

impl Ask {
    /// Puts `RESERVE [upto=SIZE] [wait=DURATION|now] [guest=UID] [on=D,D] [gpus=N]`.
    pub(crate) fn put(client: &Client, name: &str, words: &[&str]) -> Result<Self, Box<dyn Error>> {
        let (reserve, options) = words.split_first().ok_or("how much?")?;
        let wish = Wish::parse(options)?;
        let (tell, waiting) = watch::channel(None);
        let (client, name, reserve) = (client.clone(), name.to_owned(), bytes(reserve)?);
        let task = tokio::spawn(async move {
            let mut ask = client.lease(reserve).name(name);
            if let Some(limit) = wish.limit {
                ask = ask.up_to(limit);
            }
            if let Some(guest) = wish.guest {
                ask = ask.guest(guest);
            }
            ask = match wish.wait {
                None => ask.wait_forever(),
                Some(wait) if wait.is_zero() => ask.no_wait(),
                Some(wait) => ask.wait_at_most(wait),
            };
            if let Some(count) = wish.gpus {
                ask = ask.gpus(count);
            }
            if !wish.devices.is_empty() {
                ask = ask.on_devices(wish.devices);
            }
            ask.on_waiting(move |waiting| drop(tell.send_replace(Some(waiting.clone())))).acquire().await
        });
        Ok(Self { task, waiting })
    }

    /// Waits until it stands in the line; says where.
    pub(crate) async fn standing(&mut self) -> Result<String, Box<dyn Error>> {
        let seen = self.waiting.wait_for(Option::is_some).await.map_err(|_| "it never waited")?;
        let waiting = seen.as_ref().ok_or("it never waited")?;
        Ok(format!(
            "ask={} position={} short={} reason={}",
            waiting.ask.get(),
            waiting.position,
            waiting.short_by.get(),
            waiting.reason.map_or("unknown", gpulease_client::Reason::word)
        ))
    }

    /// Waits for the answer.
    pub(crate) async fn answer(mut self) -> Result<Lease, Box<dyn Error>> {
        Ok((&mut self.task).await??)
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Default)]
struct Wish {
    limit: Option<gpulease_client::Bytes>,
    /// Zero: not at all; none: without end.
    wait: Option<std::time::Duration>,
    guest: Option<Uid>,
    devices: Vec<DeviceId>,
    gpus: Option<u32>,
}

impl Wish {
    fn parse(options: &[&str]) -> Result<Self, Box<dyn Error>> {
        let mut wish = Self::default();
        for option in options {
            match option.split_once('=') {
                None if *option == "now" => wish.wait = Some(std::time::Duration::ZERO),
                Some(("upto", size)) => wish.limit = Some(bytes(size)?),
                Some(("wait", text)) => wish.wait = Some(parse_duration(text)?),
                Some(("guest", uid)) => wish.guest = Some(Uid::new(uid.parse()?)),
                Some(("gpus", count)) => wish.gpus = Some(count.parse()?),
                Some(("on", list)) => {
                    let devices = list.split(',').map(|n| n.parse().map(DeviceId::new));
                    wish.devices = devices.collect::<Result<_, _>>()?;
                }
                Some(_) | None => return Err(format!("{option} is no option of an ask").into()),
            }
        }
        Ok(wish)
    }
}

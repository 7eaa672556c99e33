//! The desk: where the edges ask the driver and wait for its answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gpulease_arbiter::{Budgets, RequestId, Terms, Time};
use gpulease_words::{Bytes, LeaseId, Pid, SegmentId, Uid};
use tokio::sync::{mpsc, oneshot, watch};

use super::command::{
    Act, AskUpdate, Body, Command, Departure, Guest, LeaseTerms, Left, News, Opened, Refusal, Reply, Segment,
    SegmentWish, Shown, Standing, World,
};
use super::view::View;
use crate::liveness::Caller;

/// The driver's address. Clones are one desk.
#[derive(Clone, Debug)]
pub(crate) struct Desk {
    commands: mpsc::Sender<Command>,
    world: mpsc::UnboundedSender<World>,
    views: watch::Sender<Arc<View>>,
    requests: Arc<AtomicU64>,
}

/// An ask that is under way. Dropping it tells the driver that its stream broke.
#[derive(Debug)]
pub(crate) struct Ask {
    // Dropped before the departure is told, so that a command that is still queued is seen to be deserted.
    updates: mpsc::UnboundedReceiver<AskUpdate>,
    departure: Departure,
}

impl Ask {
    /// The guard that tells the driver that its stream broke, and what comes of the ask. Bound in this order, the
    /// guard is dropped last, as it has to be.
    pub(crate) fn into_parts(self) -> (Departure, mpsc::UnboundedReceiver<AskUpdate>) {
        (self.departure, self.updates)
    }
}

impl Desk {
    pub(super) fn new(
        commands: mpsc::Sender<Command>,
        world: mpsc::UnboundedSender<World>,
        views: watch::Sender<Arc<View>>,
    ) -> Self {
        Self { commands, world, views, requests: Arc::new(AtomicU64::new(1)) }
    }

    pub(crate) async fn open(
        &self,
        caller: &Caller,
        program: String,
        rejoin: Option<Shown>,
    ) -> Result<Opened, Refusal> {
        self.ask(caller, |reply| Body::Open { program, rejoin, reply }).await
    }

    pub(crate) async fn close(&self, caller: &Caller, shown: Shown) -> Result<(), Refusal> {
        self.act(caller, shown, |reply| Act::Close { reply }).await
    }

    /// Asks for a lease; everything after that is on the ask.
    pub(crate) async fn acquire(
        &self,
        caller: &Caller,
        shown: Shown,
        ask_name: u64,
        terms: Terms,
    ) -> Result<Ask, Refusal> {
        self.follow(caller, shown, |updates| Act::Acquire { ask_name, terms, updates }).await
    }

    async fn follow(
        &self,
        caller: &Caller,
        shown: Shown,
        act: impl FnOnce(mpsc::UnboundedSender<AskUpdate>) -> Act,
    ) -> Result<Ask, Refusal> {
        let request = self.next_request();
        let (updates, inbox) = mpsc::unbounded_channel();
        let departure = Departure::new(self.world.clone(), Left::Request(request));
        let ask = Ask { updates: inbox, departure };
        let body = Body::Session { shown, act: act(updates) };
        self.send(Command::Ask { request, caller: caller.clone(), body }).await?;
        Ok(ask)
    }

    pub(crate) async fn withdraw(&self, caller: &Caller, shown: Shown, ask_name: u64) -> Result<(), Refusal> {
        self.act(caller, shown, |reply| Act::Withdraw { ask_name, reply }).await
    }

    pub(crate) async fn join(
        &self,
        caller: &Caller,
        shown: Shown,
        lease: LeaseId,
        token: Vec<u8>,
        ancestors: Vec<Pid>,
    ) -> Result<LeaseTerms, Refusal> {
        self.act(caller, shown, |reply| Act::Join { lease, token, ancestors, reply }).await
    }

    pub(crate) async fn admit(
        &self,
        caller: &Caller,
        shown: Shown,
        lease: LeaseId,
        guest: Guest,
    ) -> Result<(), Refusal> {
        self.act(caller, shown, |reply| Act::Admit { lease, guest, reply }).await
    }

    pub(crate) async fn resize(
        &self,
        caller: &Caller,
        shown: Shown,
        lease: LeaseId,
        (reserve, limit): (Bytes, Bytes),
    ) -> Result<LeaseTerms, Refusal> {
        self.act(caller, shown, |reply| Act::Resize { lease, reserve, limit, reply }).await
    }

    /// Gives a lease back; what is still mapped of it.
    pub(crate) async fn release(
        &self,
        caller: &Caller,
        shown: Shown,
        lease: LeaseId,
    ) -> Result<Bytes, Refusal> {
        self.act(caller, shown, |reply| Act::Release { lease, reply }).await
    }

    /// Gives a lease back on the word of the caller's user or of an operator.
    pub(crate) async fn end(
        &self,
        caller: &Caller,
        authority: Standing,
        lease: LeaseId,
    ) -> Result<Bytes, Refusal> {
        self.ask(caller, |reply| Body::End { authority, lease, reply }).await
    }

    /// Waits for a segment. Dropping this tells the driver that the caller left.
    pub(crate) async fn allocate(
        &self,
        caller: &Caller,
        shown: Shown,
        wish: SegmentWish,
    ) -> Result<Segment, Refusal> {
        let request = self.next_request();
        // Declared before the answer's receiver, so dropped after it.
        let mut departure = Departure::new(self.world.clone(), Left::Request(request));
        let (reply, answer) = oneshot::channel();
        let act = Act::Allocate { wish, reply };
        self.send(Command::Ask { request, caller: caller.clone(), body: Body::Session { shown, act } })
            .await?;
        let made = answer.await.map_err(|_| Refusal::Stopping)?;
        departure.disarm();
        made
    }

    pub(crate) async fn free(
        &self,
        caller: &Caller,
        shown: Shown,
        lease: LeaseId,
        segment: SegmentId,
    ) -> Result<(), Refusal> {
        self.act(caller, shown, |reply| Act::Free { lease, segment, reply }).await
    }

    /// A member says how a suspension or its guards stand.
    pub(crate) async fn report(
        &self,
        caller: &Caller,
        shown: Shown,
        lease: LeaseId,
        news: News,
    ) -> Result<(), Refusal> {
        self.act(caller, shown, |reply| Act::Report { lease, news, reply }).await
    }

    /// Asks for the memory of a suspended lease; everything after that is on the ask.
    pub(crate) async fn resume(&self, caller: &Caller, shown: Shown, lease: LeaseId) -> Result<Ask, Refusal> {
        self.follow(caller, shown, |updates| Act::Resume { lease, updates }).await
    }

    pub(crate) async fn pin(&self, caller: &Caller, shown: Shown, lease: LeaseId) -> Result<(), Refusal> {
        self.act(caller, shown, |reply| Act::Pin { lease, reply }).await
    }

    /// Asks a holder for bytes by a time; how much was asked for.
    pub(crate) async fn recall(
        &self,
        caller: &Caller,
        lease: LeaseId,
        bytes: Bytes,
        within: Duration,
    ) -> Result<Bytes, Refusal> {
        self.ask(caller, |reply| Body::Recall { lease, bytes, within, reply }).await
    }

    /// Puts these budgets in force, and these first groups of users for those who come from now on.
    pub(crate) async fn set_budgets(
        &self,
        budgets: Budgets,
        groups: BTreeMap<Uid, String>,
    ) -> Result<(), Refusal> {
        let (reply, answer) = oneshot::channel();
        let (request, budgets) = (self.next_request(), Box::new(budgets));
        self.send(Command::Budgets { request, budgets, groups, reply }).await?;
        answer.await.map_err(|_| Refusal::Stopping)?
    }

    /// The state as it is now or a moment later, and the time.
    pub(crate) async fn look(&self) -> Result<(Arc<View>, Time), Refusal> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Look { reply }).await?;
        answer.await.map_err(|_| Refusal::Stopping)
    }

    /// The state whenever it changes; views are made only while somebody is subscribed.
    pub(crate) fn views(&self) -> watch::Receiver<Arc<View>> {
        self.views.subscribe()
    }

    /// Tells the driver what happened outside.
    pub(crate) fn tell(&self, news: World) {
        // The driver is gone only when the broker stops, and then nobody needs to know.
        drop(self.world.send(news));
    }

    pub(super) fn next_request(&self) -> RequestId {
        RequestId(self.requests.fetch_add(1, Ordering::Relaxed))
    }

    async fn act<T>(
        &self,
        caller: &Caller,
        shown: Shown,
        act: impl FnOnce(Reply<T>) -> Act,
    ) -> Result<T, Refusal> {
        self.ask(caller, |reply| Body::Session { shown, act: act(reply) }).await
    }

    async fn ask<T>(&self, caller: &Caller, body: impl FnOnce(Reply<T>) -> Body) -> Result<T, Refusal> {
        let (reply, answer) = oneshot::channel();
        let request = self.next_request();
        self.send(Command::Ask { request, caller: caller.clone(), body: body(reply) }).await?;
        answer.await.map_err(|_| Refusal::Stopping)?
    }

    async fn send(&self, command: Command) -> Result<(), Refusal> {
        self.commands.send(command).await.map_err(|_| Refusal::Stopping)
    }
}

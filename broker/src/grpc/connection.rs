//! A connection of a known process.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::Sleep;
use tonic::transport::server::Connected;

use crate::entrance::{Guests, Listener, Seat, TurnedAway};
use crate::liveness::{Caller, Liveness};

/// How long a peer may take to say anything at all. After that nothing is asked of it: it may be
/// stopped for hours and still be there.
const FIRST_WORD: Duration = Duration::from_secs(10);

/// A stream to a process that was alive when it connected.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    caller: Caller,
    silence: Option<Pin<Box<Sleep>>>,
    _seat: Seat,
}

/// Accepts connections and passes on those that may come in; the others are closed.
pub(super) async fn accept(
    mut listener: Listener,
    liveness: Arc<Liveness>,
    guests: Arc<Guests>,
    accepted: mpsc::Sender<io::Result<Connection>>,
) {
    loop {
        let socket = listener.accept().await;
        match Connection::new(socket, &liveness, &guests) {
            Ok(connection) => {
                if accepted.send(Ok(connection)).await.is_err() {
                    return;
                }
            }
            Err(why) => listener.regret(&why).await,
        }
    }
}

impl Connection {
    fn new(socket: OwnedFd, liveness: &Liveness, guests: &Arc<Guests>) -> Result<Self, TurnedAway> {
        let (caller, seat) = guests.admit(liveness, socket.as_fd())?;
        let stream = UnixStream::from_std(socket.into())?;
        let silence = Some(Box::pin(tokio::time::sleep(FIRST_WORD)));
        Ok(Self { stream, caller, silence, _seat: seat })
    }
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let Some(silence) = &mut self.silence else {
            return read;
        };
        if read.is_ready() {
            self.silence = None;
            return read;
        }
        silence.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

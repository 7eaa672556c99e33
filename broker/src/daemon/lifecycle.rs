//! The daemon as a process: its log, its signals, its service manager.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use clap::Parser as _;
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Standing, StartError, runtime, serve};
use crate::budgets::Budgets;
use crate::driver::Desk;
use crate::settings::{Arguments, Settings, Work};

/// Bad configuration, as `sysexits.h` numbers it.
const BAD_CONFIGURATION: u8 = 78;

/// Runs the daemon with this command line.
pub(crate) fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            drop(error.print());
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let outcome =
        Settings::load(&arguments).map_err(StartError::from).and_then(|settings| match arguments.work() {
            Work::Serve => run(settings, arguments.clone()),
            Work::Check => super::report::check(&settings),
        });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpuleased: {error}");
            ExitCode::from(BAD_CONFIGURATION)
        }
    }
}

fn run(settings: Settings, arguments: Arguments) -> Result<(), StartError> {
    let log = super::log::start(&settings.log)?;
    let runtime = runtime()?;
    let outcome = runtime.block_on(supervise(settings, arguments));
    runtime.shutdown_timeout(Duration::from_millis(100));
    log.flush();
    outcome
}

/// Serves until a signal says stop; a second one does not wait for anybody.
async fn supervise(settings: Settings, arguments: Arguments) -> Result<(), StartError> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut reload = Reload { hang_up: signal(SignalKind::hangup())?, settings: settings.clone(), arguments };
    let budgets = OnceLock::new();
    let (tell, stop) = tokio::sync::oneshot::channel::<()>();
    let ready = |standing: &Standing| {
        announce(standing);
        let _ = budgets.set(standing.budgets.clone());
    };
    let serving = serve(settings, ready, async { drop(stop.await) });
    tokio::pin!(serving);
    loop {
        tokio::select! {
            ended = &mut serving => return ended,
            () = either(&mut terminate, &mut interrupt) => break,
            Some(()) = reload.hang_up.recv() => {}
        }
        let reloading = reload.reload(budgets.get());
        tokio::select! {
            ended = &mut serving => return ended,
            () = either(&mut terminate, &mut interrupt) => break,
            () = reloading => {}
        }
    }
    notify(&[NotifyState::Stopping]);
    drop(tell);
    tokio::select! {
        ended = &mut serving => ended,
        () = either(&mut terminate, &mut interrupt) => Ok(()),
    }
}

async fn either(one: &mut Signal, other: &mut Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}

/// Reads the configuration anew at SIGHUP: all of it or nothing.
struct Reload {
    hang_up: Signal,
    /// Those in force.
    settings: Settings,
    arguments: Arguments,
}

impl Reload {
    async fn reload(&mut self, budgets: Option<&Budgets>) {
        match self.try_reload(budgets).await {
            Ok(()) => tracing::info!("SIGHUP: the configuration was read anew, and its budgets are in force"),
            Err(why) => tracing::warn!("SIGHUP: nothing is changed: {why}"),
        }
    }

    async fn try_reload(&mut self, budgets: Option<&Budgets>) -> Result<(), String> {
        let budgets = budgets.ok_or("the broker is still starting")?;
        let arguments = self.arguments.clone();
        // Users are looked up, and a name service may be slow.
        let read = tokio::task::spawn_blocking(move || Settings::load(&arguments)).await;
        let fresh = read.map_err(|error| error.to_string())?.map_err(|bad| bad.to_string())?;
        let differences = self.settings.differences(&fresh);
        if !differences.is_empty() {
            let named = differences.join(", ");
            return Err(format!(
                "{named} changed, which takes another start; budgets alone can be read anew"
            ));
        }
        budgets.reload(fresh.accounts.clone()).await.map_err(|why| why.to_string())?;
        self.settings = fresh;
        Ok(())
    }
}

fn announce(standing: &Standing) {
    standing.devices.iter().for_each(|device| tracing::info!("{device}"));
    standing.remarks.iter().for_each(|remark| tracing::warn!("{remark}"));
    tracing::info!(socket = %standing.socket.display(), "ready; hold: {}", standing.hold);
    notify(&[NotifyState::Ready]);
    if let Some(period) = sd_notify::watchdog_enabled() {
        tokio::spawn(pat_watchdog(standing.desk.clone(), period / 2));
    }
}

/// Tells the service manager that the driver answers.
async fn pat_watchdog(desk: Desk, period: Duration) {
    while desk.look().await.is_ok() {
        notify(&[NotifyState::Watchdog]);
        tokio::time::sleep(period).await;
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager could not be told");
    }
}

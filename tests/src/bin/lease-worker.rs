//! One of several processes of a job: joins the lease of its environment, takes so many MiB, fills
//! them, says so, and gives them back at the end of its input.

use std::io::{Read as _, Write as _};

use gpulease_client::blocking::Client;
use gpulease_client::mib;

fn main() -> anyhow::Result<()> {
    let wanted = std::env::args().nth(1).unwrap_or_else(|| "2".to_owned()).parse()?;
    let lease = Client::join_from_env()?;
    let mut segment = lease.allocate(mib(wanted))?;
    {
        let resident = lease.enter()?;
        segment.as_mut_slice::<u8>(&resident)?.fill(7);
    }
    println!("{} has {wanted} MiB of {}", std::process::id(), lease.id());
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    segment.free()?;
    Ok(())
}

//! The state as it changes.

use std::time::Duration;

use gpulease_client::Observer;
use gpulease_proto::v1;

use super::{State, page};
use crate::arguments::Common;
use crate::exit::{Exit, Failure, Outcome};
use crate::look::Look;
use crate::output;

/// Ages grow although nothing changes: on a terminal the page is asked for anew so often.
const REFRESH: Duration = Duration::from_secs(1);

/// Shows the state whenever it changes, until the broker stops or the program is ended.
pub(crate) async fn watch(common: &Common, observer: &Observer) -> Outcome {
    let mut updates = observer.watch().await?;
    let mut screen = Screen::default();
    loop {
        let on_terminal = !common.json && Look::of_stdout().width.is_some();
        let changed = updates.next();
        let next = if on_terminal {
            match tokio::time::timeout(REFRESH, changed).await {
                Ok(changed) => changed?,
                Err(_) => Some(observer.status().await?),
            }
        } else {
            changed.await?
        };
        match next {
            Some(reply) if common.json => output::print_line(&State::from(&reply))?,
            Some(reply) => screen.show(&reply)?,
            None => {
                return Err(Failure::new(
                    Exit::NoBroker,
                    "the broker stopped; start it again, and watch again",
                ));
            }
        }
    }
}

/// Where pages go: drawn over one another on a terminal, one after the other elsewhere.
#[derive(Debug, Default)]
struct Screen {
    pages: u64,
}

impl Screen {
    fn show(&mut self, reply: &v1::StatusReply) -> Result<(), Failure> {
        let look = Look::of_stdout();
        let page = page::page(reply, look);
        let text = match look.width {
            Some(_) => over(&page, self.pages == 0, look.height),
            None if self.pages == 0 => page,
            None => format!("\n{page}"),
        };
        self.pages += 1;
        output::print(&text)
    }
}

/// The page with what is needed to draw it over the last one: home, each line cleared to its end,
/// the rest of the screen cleared.
fn over(page: &str, first: bool, height: Option<usize>) -> String {
    let room = height.map_or(usize::MAX, |height| height.saturating_sub(1));
    let total = page.lines().count();
    let mut text = String::from(if first { "\x1b[H\x1b[2J" } else { "\x1b[H" });
    let shown = if total > room { room.saturating_sub(1) } else { total };
    for line in page.lines().take(shown) {
        text.extend([line, "\x1b[K\n"]);
    }
    if shown < total {
        text.push_str(&format!("{} more lines; `gpulease` prints them all\x1b[K\n", total - shown));
    }
    text + "\x1b[J"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_drawn_over_the_last_one() {
        assert_eq!(over("a\nb\n", true, None), "\x1b[H\x1b[2Ja\x1b[K\nb\x1b[K\n\x1b[J");
        assert_eq!(over("a\nb\n", false, Some(3)), "\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J");
    }

    #[test]
    fn a_page_longer_than_the_screen_says_so() {
        let page = "1\n2\n3\n4\n5\n";
        let text = over(page, false, Some(4));
        assert_eq!(text, "\x1b[H1\x1b[K\n2\x1b[K\n3 more lines; `gpulease` prints them all\x1b[K\n\x1b[J");
    }
}

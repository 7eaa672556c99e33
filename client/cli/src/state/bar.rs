//! A device's memory as a bar.

use gpulease_proto::v1;

use crate::look::{Look, Tone};

/// What the letters of a bar mean.
pub(crate) const LEGEND: [&str; 6] =
    ["# held", "+ overhead", "= set aside", "~ draining or quarantined", "x off-book", ". free"];

const WIDEST: usize = 64;
const NARROWEST: usize = 10;

/// `[####==....xx]`: each letter stands for the same share of the capacity. Whatever is not
/// nothing has at least one letter, so that a small use is never invisible.
pub(crate) fn bar(memory: &v1::DeviceMemory, look: Look) -> String {
    let room = look.width.map_or(WIDEST, |width| width.saturating_sub(5).clamp(NARROWEST, WIDEST));
    let parts = [
        ('#', Tone::Used, memory.held_bytes),
        ('+', Tone::Used, memory.overhead_bytes),
        ('=', Tone::Good, memory.set_aside_bytes),
        ('~', Tone::Warning, memory.draining_bytes.saturating_add(memory.quarantined_bytes)),
        ('x', Tone::Bad, memory.off_book_bytes.unwrap_or(0)),
        ('.', Tone::Dim, memory.free_bytes),
    ];
    let counts = shares(&parts.map(|(_, _, bytes)| bytes), room);
    let letters = parts.iter().zip(counts).filter(|(_, count)| *count > 0);
    let painted =
        letters.map(|((letter, tone, _), count)| look.paint(*tone, &letter.to_string().repeat(count)));
    format!("[{}]", painted.collect::<String>())
}

/// How many of `room` letters each part gets: rounded down, at least one where it is not nothing,
/// and what is over or missing is settled with the largest.
fn shares(parts: &[u64; 6], room: usize) -> [usize; 6] {
    let whole: u128 = parts.iter().map(|part| u128::from(*part)).sum();
    if whole == 0 {
        return [0, 0, 0, 0, 0, room];
    }
    let share = |part: u64| usize::try_from(u128::from(part) * room as u128 / whole).unwrap_or(room);
    let mut counts = parts.map(|part| share(part).max(usize::from(part > 0)));
    let largest = (0..6).max_by_key(|i| parts[*i]).unwrap_or(5);
    let others: usize = counts.iter().sum::<usize>() - counts[largest];
    counts[largest] = room.saturating_sub(others);
    counts
}

#[cfg(test)]
mod tests {
    use gpulease_words::{gib, mib};

    use super::*;

    fn memory(held: u64, set_aside: u64, free: u64) -> v1::DeviceMemory {
        v1::DeviceMemory {
            held_bytes: held,
            set_aside_bytes: set_aside,
            free_bytes: free,
            ..Default::default()
        }
    }

    #[test]
    fn letters_stand_for_shares() {
        let look = Look { width: Some(25), ..Look::PLAIN };
        assert_eq!(bar(&memory(gib(4).get(), gib(2).get(), gib(2).get()), look), "[##########=====.....]");
        assert_eq!(bar(&memory(0, 0, gib(8).get()), look), "[....................]");
        assert_eq!(bar(&memory(0, 0, 0), look), "[....................]");
    }

    #[test]
    fn little_is_still_seen_and_the_width_stays() {
        let look = Look { width: Some(25), ..Look::PLAIN };
        assert_eq!(bar(&memory(mib(2).get(), 0, gib(140).get()), look), "[#...................]");
        let all = v1::DeviceMemory {
            held_bytes: 1,
            overhead_bytes: 1,
            set_aside_bytes: u64::MAX,
            draining_bytes: 1,
            off_book_bytes: Some(1),
            free_bytes: 1,
            ..Default::default()
        };
        assert_eq!(bar(&all, look), "[#+===============~x.]");
    }
}

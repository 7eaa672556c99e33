//! Columns of text that fit the terminal.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::look::{Look, Tone};

/// The narrowest that a column which may be cut is cut to, before other columns are left out.
const NARROWEST: usize = 10;

/// One column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    /// Heading.
    pub(crate) title: &'static str,
    /// Where its cells stand.
    pub(crate) side: Side,
    /// What happens to it where the terminal is narrow.
    pub(crate) narrow: Narrow,
}

/// Where cells stand in their column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Words.
    Left,
    /// Figures.
    Right,
}

/// What happens to a column where the terminal is narrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Narrow {
    /// It stays as it is.
    Keep,
    /// Its longest cells are cut.
    Cut,
    /// It is left out; higher numbers first.
    LeaveOut(u8),
}

impl Column {
    /// A column of words.
    pub(crate) const fn left(title: &'static str, narrow: Narrow) -> Self {
        Self { title, side: Side::Left, narrow }
    }

    /// A column of figures.
    pub(crate) const fn right(title: &'static str, narrow: Narrow) -> Self {
        Self { title, side: Side::Right, narrow }
    }
}

/// The lines of a table, heading first, each ended; cells must be safe to print.
pub(crate) fn lines(columns: &[Column], rows: &[Vec<String>], look: Look) -> String {
    let mut widths: Vec<Option<usize>> =
        (0..columns.len()).map(|i| Some(natural_width(columns, rows, i))).collect();
    if let Some(limit) = look.width {
        fit(columns, &mut widths, limit);
    }
    let titles: Vec<String> = columns.iter().map(|column| column.title.to_owned()).collect();
    let mut text = look.paint(Tone::Heading, &line(columns, &titles, &widths));
    text.push('\n');
    for row in rows {
        text.push_str(&line(columns, row, &widths));
        text.push('\n');
    }
    text
}

fn natural_width(columns: &[Column], rows: &[Vec<String>], index: usize) -> usize {
    rows.iter().map(|row| row[index].width()).chain([columns[index].title.width()]).max().unwrap_or(0)
}

fn fit(columns: &[Column], widths: &mut [Option<usize>], limit: usize) {
    cut(columns, widths, limit);
    while total(widths) > limit {
        let shown = (0..columns.len()).filter(|i| widths[*i].is_some());
        let droppable = shown.filter(|i| matches!(columns[*i].narrow, Narrow::LeaveOut(_)));
        match droppable.max_by_key(|i| columns[*i].narrow) {
            Some(index) => widths[index] = None,
            None => break,
        }
    }
}

fn cut(columns: &[Column], widths: &mut [Option<usize>], limit: usize) {
    for index in (0..columns.len()).filter(|i| columns[*i].narrow == Narrow::Cut) {
        let over = total(widths).saturating_sub(limit);
        widths[index] = widths[index].map(|width| width.min(width.saturating_sub(over).max(NARROWEST)));
    }
}

fn total(widths: &[Option<usize>]) -> usize {
    widths.iter().flatten().map(|width| width + 2).sum::<usize>().saturating_sub(2)
}

fn line(columns: &[Column], cells: &[String], widths: &[Option<usize>]) -> String {
    let mut text = String::new();
    for ((column, cell), width) in columns.iter().zip(cells).zip(widths) {
        let Some(width) = *width else { continue };
        if !text.is_empty() {
            text.push_str("  ");
        }
        let cell = clipped(cell, width);
        let space = " ".repeat(width - cell.width());
        match column.side {
            Side::Left => text.extend([cell.as_str(), &space]),
            Side::Right => text.extend([space.as_str(), &cell]),
        }
    }
    text.truncate(text.trim_end().len());
    text
}

/// The text, cut to the width with a mark where it is longer.
pub(crate) fn clipped(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut room = width.saturating_sub(1);
    let mut cut = String::new();
    for c in text.chars() {
        match room.checked_sub(c.width().unwrap_or(0)) {
            Some(left) => room = left,
            None => break,
        }
        cut.push(c);
    }
    if width > 0 {
        cut.push('~');
    }
    cut
}

#[cfg(test)]
mod tests {
    use crate::look::Paint;

    use super::*;

    const COLUMNS: &[Column] = &[
        Column::left("ID", Narrow::Keep),
        Column::left("NAME", Narrow::Cut),
        Column::left("USER", Narrow::LeaveOut(1)),
        Column::right("HELD", Narrow::Keep),
        Column::right("AGE", Narrow::LeaveOut(2)),
    ];

    fn table(width: Option<usize>) -> String {
        let row = |cells: [&str; 5]| cells.map(str::to_owned).to_vec();
        let rows = [
            row(["L1", "a-rather-long-name", "alice", "8 GiB", "2m3s"]),
            row(["L20", "研究", "bob", "512 MiB", "1h0m"]),
        ];
        lines(COLUMNS, &rows, Look { width, height: None, paint: Paint::Plain })
    }

    #[test]
    fn wide_enough_for_all() {
        let expected = "\
ID   NAME                USER      HELD   AGE
L1   a-rather-long-name  alice    8 GiB  2m3s
L20  研究                bob    512 MiB  1h0m
";
        assert_eq!(table(None), expected);
        assert_eq!(table(Some(45)), expected);
    }

    #[test]
    fn names_are_cut_first_then_columns_left_out() {
        assert_eq!(
            table(Some(40)),
            "\
ID   NAME           USER      HELD   AGE
L1   a-rather-lon~  alice    8 GiB  2m3s
L20  研究           bob    512 MiB  1h0m
"
        );
        assert_eq!(
            table(Some(33)),
            "\
ID   NAME        USER      HELD
L1   a-rather-~  alice    8 GiB
L20  研究        bob    512 MiB
"
        );
        assert!(table(Some(5)).starts_with("ID   NAME           HELD\n"));
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_while_something_can_go() {
        for width in 24..60 {
            assert!(table(Some(width)).lines().all(|line| line.width() <= width), "{width}");
        }
    }

    #[test]
    fn a_wide_letter_is_not_cut_in_half() {
        assert_eq!(clipped("研究室", 4), "研~");
        assert_eq!(clipped("abc", 3), "abc");
        assert_eq!(clipped("abc", 0), "");
    }
}

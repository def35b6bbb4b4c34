//! Text and tables for people.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

/// Text that is safe to print on a terminal. Names and values come from other users: control characters, invisible ones, and those
/// that turn the direction of writing are written as JSON writes them, such as `\u001b`. Line ends and tabs stay.
pub(crate) fn safe(text: &str) -> Cow<'_, str> {
    escaped(text, |c| acts(c) && !matches!(c, '\n' | '\t'))
}

/// As [`safe`], in one line.
pub(crate) fn safe_line(text: &str) -> Cow<'_, str> {
    escaped(text, acts)
}

/// True for a character that acts on the terminal instead of being shown.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// A text in at most `room` characters: the middle of a longer one is left out. In one line, and safe on a terminal.
pub(crate) fn shortened(text: &str, room: usize) -> String {
    let text = safe_line(text);
    let length = text.chars().count();
    if length <= room {
        return text.into_owned();
    }
    let (head, tail) = (room.saturating_sub(1).div_ceil(2), room.saturating_sub(1) / 2);
    text.chars().take(head).chain(['…']).chain(text.chars().skip(length - tail)).collect()
}

/// A number with its noun, in the plural but for one.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }

    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' if is_escaped(c) => safe.push_str("\\n"),
            '\t' if is_escaped(c) => safe.push_str("\\t"),
            '\r' if is_escaped(c) => safe.push_str("\\r"),
            // All of them are in the basic plane.
            c if is_escaped(c) => {
                let _ = write!(safe, "\\u{:04x}", u32::from(c));
            }
            c => safe.push(c),
        }
    }

    Cow::Owned(safe)
}

/// Columns of text, aligned by the widest cell. Columns of numbers are aligned to the right.
pub(crate) struct Table {
    header: Vec<String>,
    /// For each column, true if it holds numbers.
    numbers: Vec<bool>,
    /// Each has a cell for each column.
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns; those that start with `#` hold numbers.
    pub(crate) fn new(columns: &[&str]) -> Self {
        Self {
            header: columns.iter().map(|column| safe_line(column.trim_start_matches('#')).into_owned()).collect(),
            numbers: columns.iter().map(|column| column.starts_with('#')).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, with a cell for each column.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| safe_line(&cell).into_owned()).collect());
    }

    /// The table, without a line end after the last row.
    pub(crate) fn render(&self) -> String {
        let lines = || std::iter::once(&self.header).chain(&self.rows);
        let width = |column: usize| lines().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();

        let mut text = String::new();
        for row in lines() {
            let mut line = String::new();
            for ((cell, width), is_number) in row.iter().zip(&widths).zip(&self.numbers) {
                let pad = " ".repeat(width - cell.chars().count());
                let _ = if *is_number { write!(line, "{pad}{cell}  ") } else { write!(line, "{cell}{pad}  ") };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text.trim_end().to_owned()
    }
}

/// The widest matrix of round trips, in columns without those of the names before its rows.
const MATRIX: usize = 60;

/// Round trips between sites as a matrix, in milliseconds; `of` names the time from one to another. None if it would be too wide
/// for a terminal.
pub(crate) fn round_trips(names: &[&str], of: impl Fn(&str, &str) -> Option<Duration>) -> Option<String> {
    let width = names.iter().map(|name| name.len().max(5) + 2).sum::<usize>();
    if width > MATRIX {
        return None;
    }

    let columns: Vec<String> = names.iter().map(|name| format!("#{name}")).collect();
    let columns: Vec<&str> = std::iter::once("RTT, MS").chain(columns.iter().map(String::as_str)).collect();
    let mut table = Table::new(&columns);
    for from in names {
        let time = |to: &&str| of(from, to).map_or("-".to_owned(), |time| format!("{:.1}", time.as_secs_f64() * 1e3));
        table.row(std::iter::once((*from).to_owned()).chain(names.iter().map(time)));
    }
    Some(table.render())
}

/// `none` for nothing, otherwise the items with commas.
pub(crate) fn list(items: &[String]) -> String {
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_acts_on_the_terminal() {
        assert_eq!(safe("a\u{1b}[31mb\u{7f}\u{9b}\u{202e}\r\n\tc"), "a\\u001b[31mb\\u007f\\u009b\\u202e\\r\n\tc");
        assert_eq!(safe_line("a\tb\nc\0"), "a\\tb\\nc\\u0000");
        assert!(matches!(safe("größer\n"), Cow::Borrowed(_)));
        let mut table = Table::new(&["SITE"]);
        table.row(["u\x1bs\n".to_owned()]);
        assert_eq!(table.render(), "SITE\nu\\u001bs\\n");
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["SITE", "#TOKENS"]);
        table.row(["us".to_owned(), "5".to_owned()]);
        table.row(["größer".to_owned(), "12345678".to_owned()]);
        assert_eq!(table.render(), "SITE      TOKENS\nus             5\ngrößer  12345678");
    }

    #[test]
    fn round_trips_are_a_matrix_that_fits_a_terminal() {
        let of = |from: &str, to: &str| {
            (from != to).then(|| Duration::from_micros(if to == "eu" { 70_500 } else { 152_000 }))
        };
        let matrix = round_trips(&["us", "eu"], of).expect("it fits");
        assert_eq!(matrix, "RTT, MS     us    eu\nus           -  70.5\neu       152.0     -");
        assert_eq!(round_trips(&["a-region-with-a-long-name"; 3], of), None);
    }
}

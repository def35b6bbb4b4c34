//! Tables for people.

use std::fmt::Write as _;

/// Columns of text, aligned by the widest cell. Columns of numbers are aligned to the right.
pub(crate) struct Table {
    header: Vec<String>,
    numbers: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns; those that start with `#` hold numbers.
    pub(crate) fn new(columns: &[&str]) -> Self {
        Self {
            header: columns.iter().map(|column| column.trim_start_matches('#').to_owned()).collect(),
            numbers: columns.iter().map(|column| column.starts_with('#')).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, with a cell for each column.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
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

/// `none` for nothing, otherwise the items with commas.
pub(crate) fn list(items: &[String]) -> String {
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["SITE", "#TOKENS"]);
        table.row(["us".to_owned(), "5".to_owned()]);
        table.row(["größer".to_owned(), "12345678".to_owned()]);
        assert_eq!(table.render(), "SITE      TOKENS\nus             5\ngrößer  12345678");
    }
}

//! Tables and numbers as people read them.

use std::fmt;

/// Rows of cells under a heading; the first column is left-aligned, the others right-aligned.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    left_aligned: bool,
}

impl Table {
    pub(crate) fn new<const COLUMNS: usize>(heading: [&str; COLUMNS]) -> Self {
        Self::with_heading(heading.map(str::to_owned).to_vec())
    }

    pub(crate) fn with_heading(heading: Vec<String>) -> Self {
        Self { rows: vec![heading], left_aligned: false }
    }

    /// All columns left-aligned: for words instead of numbers.
    pub(crate) fn left_aligned(self) -> Self {
        Self { left_aligned: true, ..self }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows[0].len();
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = format!("{:<width$}", row[0], width = widths[0]);
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                line.push_str(&match self.left_aligned {
                    true => format!("  {cell:<width$}"),
                    false => format!("  {cell:>width$}"),
                });
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// `1 pool`, `1,024 pools`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// `9,059,696,640`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `8.44 GiB`: for reading; exact bytes stand beside it where they matter.
pub(crate) fn binary(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.2} {}", UNITS[unit]) }
}

/// `74.27 %`, of a share from 0 to 1; `-` where there is none.
pub(crate) fn percent(rate: Option<f64>) -> String {
    rate.map_or("-".to_owned(), |rate| format!("{:.2} %", 100.0 * rate))
}

/// `0-3, 5`: ascending numbers as ranges.
pub(crate) fn ranges(numbers: impl IntoIterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |&(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    runs.iter().map(run).collect::<Vec<_>>().join(", ")
}

/// Reads what [`ranges`] writes: `0-3, 5`. Each number once, ascending.
pub(crate) fn parse_ranges(text: &str) -> Result<Vec<u32>, String> {
    let unknown = |part: &str| format!("{part:?} is neither a number nor a range such as 2-6");
    let mut numbers: Vec<u32> = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |digits: &str| -> Result<u32, String> {
            let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
            all_digits.then(|| digits.parse().ok()).flatten().ok_or_else(|| unknown(part))
        };
        let (first, last) = (number(first.trim())?, number(last.trim())?);
        // No model has more blocks; a larger range is a slip, and would fill memory.
        if first > last || last - first > 1 << 16 {
            return Err(unknown(part));
        }
        if let Some(before) = numbers.last().filter(|&&before| before >= first) {
            return Err(format!("{part:?} does not come after {before}"));
        }
        numbers.extend(first..=last);
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_they_are_written() {
        assert_eq!(parse_ranges("0-2, 5,7-8"), Ok(vec![0, 1, 2, 5, 7, 8]));
        for text in ["", "a", "3-", "-3", "5-3", "1,1", "1-4,3", "1,,2", "0-4294967295", "99999999999"] {
            assert!(parse_ranges(text).is_err(), "{text:?} was taken for {:?}", parse_ranges(text));
        }
        // Any text: what is taken is written back as the same numbers.
        let mut state = 1_u64;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..8 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                text.push(char::from(b"0123459-,  x"[(state >> 33) as usize % 12]));
            }
            if let Ok(numbers) = parse_ranges(&text) {
                assert_eq!(parse_ranges(&ranges(numbers.iter().copied())), Ok(numbers), "{text:?}");
            }
        }
    }

    #[test]
    fn numbers_as_people_read_them() {
        assert_eq!([0, 999, 1_000, 9_059_696_640].map(grouped), ["0", "999", "1,000", "9,059,696,640"]);
        assert_eq!([1_023, 1_024, 9_059_696_640].map(binary), ["1023 B", "1.00 KiB", "8.44 GiB"]);
        assert_eq!(ranges([0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
        assert_eq!(ranges([]), "");
    }
}

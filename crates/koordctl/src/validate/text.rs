//! Texts, with the position of each character in its file: documents of a file, and texts in strings, such as
//! the JSON in a key of a ConfigMap.

use granit_parser::ScalarStyle;

/// Line and column of a character, both from 1. Columns count characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Position {
    /// The first character.
    pub(super) const START: Self = Self { line: 1, column: 1 };
}

/// A scalar in a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scalar {
    /// Position of its first character, which is the quote if it has one, and in a block the first of the content.
    pub(super) start: Position,
    /// Offset of that character in bytes.
    pub(super) offset: usize,
    pub(super) style: ScalarStyle,
    /// True if it ends on the line on which it starts.
    pub(super) is_on_one_line: bool,
}

/// Where the characters of a text are in its file.
#[derive(Debug)]
enum Origin {
    /// The text is a part of the file; its first line is this line of the file.
    File { first_line: usize },
    /// Position of each character, and of the end.
    Characters(Vec<Position>),
}

/// A text of a file.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) content: String,
    origin: Origin,
}

impl Text {
    /// Creates a text that begins at `first_line` of its file.
    pub(super) fn new(content: String, first_line: usize) -> Self {
        let origin = Origin::File { first_line };
        Self { content, origin }
    }

    /// Creates the text of `scalar`, whose value is `content`, in this text.
    pub(super) fn nested(&self, scalar: Scalar, content: &str) -> Self {
        let raw = self.content.get(scalar.offset..).unwrap_or_default();
        let local = match scalar.style {
            ScalarStyle::Literal => literal_positions(scalar.start, content),
            ScalarStyle::Folded => vec![scalar.start],
            _ if !scalar.is_on_one_line => vec![scalar.start],
            style => flow_positions(raw, scalar.start, style, content),
        };
        let positions = local.into_iter().map(|at| self.position(at)).collect();
        Self {
            content: content.to_owned(),
            origin: Origin::Characters(positions),
        }
    }

    /// Returns the position in the file of the character at `at` in this text.
    pub(super) fn position(&self, at: Position) -> Position {
        match &self.origin {
            Origin::File { first_line } => Position {
                line: at.line + first_line - 1,
                column: at.column,
            },
            Origin::Characters(positions) => {
                let lines = self.content.split('\n').take(at.line - 1);
                let before: usize = lines.map(|line| line.chars().count() + 1).sum();
                let position = positions.get(before + at.column - 1);
                let position = position.or_else(|| positions.last());
                position.copied().unwrap_or(Position::START)
            }
        }
    }
}

/// Returns the positions of the characters of a literal, whose first character that is not blank is at `start`.
fn literal_positions(start: Position, content: &str) -> Vec<Position> {
    let lines = || content.split('\n');
    let blank = lines().take_while(|line| line.trim().is_empty()).count();
    let first_line = start.line.saturating_sub(blank).max(1);
    let mut positions = Vec::with_capacity(content.len() + 1);
    for (at, line) in lines().enumerate() {
        let characters = line.chars().count();
        // The line break is a character, too.
        positions.extend((0..=characters).map(|column| Position {
            line: first_line + at,
            column: start.column + column,
        }));
    }
    positions
}

/// Returns the positions of the characters of a plain or quoted scalar on one line.
fn flow_positions(raw: &str, start: Position, style: ScalarStyle, content: &str) -> Vec<Position> {
    let mut raw = raw.chars();
    let mut column = start.column;
    let mut positions = Vec::with_capacity(content.len() + 1);
    if style != ScalarStyle::Plain {
        raw.next();
        column += 1;
    }
    for _ in content.chars() {
        positions.push(Position {
            line: start.line,
            column,
        });
        let length = match (style, raw.next()) {
            (ScalarStyle::DoubleQuoted, Some('\\')) => match raw.next() {
                Some('x') => 4,
                Some('u') => 6,
                Some('U') => 10,
                _ => 2,
            },
            (ScalarStyle::SingleQuoted, Some('\'')) => {
                raw.next();
                2
            }
            _ => 1,
        };
        for _ in 2..length {
            raw.next();
        }
        column += length;
    }
    positions.push(Position {
        line: start.line,
        column,
    });
    positions
}

/// Returns the position at the end of serde's message about a syntax error, `… at line 3 column 5`.
pub(super) fn position_in_message(message: &str) -> Position {
    let parse = || {
        let (_, position) = message.rsplit_once(" at line ")?;
        let (line, column) = position.split_once(" column ")?;
        let (line, column) = (line.parse::<usize>().ok()?, column.parse::<usize>().ok()?);
        Some(Position {
            line: line.max(1),
            column: column.max(1),
        })
    };
    parse().unwrap_or(Position::START)
}

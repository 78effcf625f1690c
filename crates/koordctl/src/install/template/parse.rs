//! Parser of templates: texts, and actions between `{{` and `}}`.

use super::value::Datum;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use std::collections::HashMap;
use std::iter::Peekable;
use std::vec::IntoIter;

/// A part of a template.
#[derive(Debug)]
pub(super) enum Node {
    /// Text that is written unchanged.
    Text(String),
    /// A pipeline; its value is written, unless it sets a variable.
    Action(Pipeline),
    /// `if` and `with`; `with` also sets the dot.
    Branch {
        sets_dot: bool,
        condition: Pipeline,
        body: Vec<Node>,
        otherwise: Vec<Node>,
    },
    /// `range`.
    Range {
        items: Pipeline,
        body: Vec<Node>,
        otherwise: Vec<Node>,
    },
}

/// Commands, each of which gets the value of the one before as its last argument.
#[derive(Debug)]
pub(super) struct Pipeline {
    /// Variables that get the value.
    pub(super) variables: Vec<String>,
    /// True if they are new variables.
    pub(super) declares: bool,
    pub(super) commands: Vec<Vec<Operand>>,
}

/// A word of a command.
#[derive(Debug)]
pub(super) enum Operand {
    /// A field below the dot; without names the dot itself.
    Field(Vec<String>),
    /// A field below a variable; the variable `$` has no name.
    Variable(String, Vec<String>),
    /// A field below the value of a pipeline in parentheses.
    Parenthesized(Pipeline, Vec<String>),
    Literal(Datum),
    Function(String),
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Text(String),
    Number(String),
    Variable(String, Vec<String>),
    Field(Vec<String>),
    Word(String),
    Open,
    Close(Vec<String>),
    Pipe,
    Comma,
    Declare,
    Assign,
}

/// Text or the tokens of an action.
enum Item {
    Text(String),
    Action(Vec<Token>),
}

/// The keyword that ended a block.
enum BlockEnd {
    End,
    Else(Vec<Token>),
    File,
}

/// Adds the template `name` and the templates that `text` defines to `templates`.
pub(super) fn parse(
    name: &str,
    text: &str,
    templates: &mut HashMap<String, Vec<Node>>,
) -> Result<()> {
    let items = items(text).with_context(|| format!("template {name}"))?;
    let mut parser = Parser {
        items: items.into_iter(),
        templates,
    };
    let (nodes, end) = parser.block().with_context(|| format!("template {name}"))?;
    ensure!(
        matches!(end, BlockEnd::File),
        "template {name}: unexpected end or else"
    );
    parser.templates.insert(name.to_owned(), nodes);
    Ok(())
}

struct Parser<'a> {
    items: IntoIter<Item>,
    templates: &'a mut HashMap<String, Vec<Node>>,
}

impl Parser<'_> {
    /// Parses up to the end of a block.
    fn block(&mut self) -> Result<(Vec<Node>, BlockEnd)> {
        let mut nodes = Vec::new();
        while let Some(item) = self.items.next() {
            let mut tokens = match item {
                Item::Text(text) => {
                    nodes.push(Node::Text(text));
                    continue;
                }
                Item::Action(tokens) => tokens,
            };
            let keyword = match tokens.first() {
                Some(Token::Word(word)) => word.clone(),
                _ => String::new(),
            };
            match keyword.as_str() {
                "end" => return Ok((nodes, BlockEnd::End)),
                "else" => {
                    tokens.remove(0);
                    return Ok((nodes, BlockEnd::Else(tokens)));
                }
                "define" => {
                    let Some(Token::Text(name)) = tokens.get(1).cloned() else {
                        bail!("define without a name");
                    };
                    let (body, end) = self.block()?;
                    ensure!(matches!(end, BlockEnd::End), "define {name} has no end");
                    self.templates.insert(name, body);
                }
                "if" | "with" | "range" => {
                    tokens.remove(0);
                    nodes.push(self.branch(&keyword, tokens)?);
                }
                "template" | "block" | "break" | "continue" => {
                    bail!("{keyword} is not supported")
                }
                _ => nodes.push(Node::Action(pipeline(tokens)?)),
            }
        }
        Ok((nodes, BlockEnd::File))
    }

    /// Parses the rest of `if`, `with` and `range` up to their end.
    fn branch(&mut self, keyword: &str, tokens: Vec<Token>) -> Result<Node> {
        let condition = pipeline(tokens)?;
        let (body, end) = self.block()?;
        let otherwise = match end {
            BlockEnd::End => Vec::new(),
            BlockEnd::File => bail!("{keyword} has no end"),
            BlockEnd::Else(mut tokens) => {
                if let Some(Token::Word(next)) = tokens.first().cloned() {
                    tokens.remove(0);
                    vec![self.branch(&next, tokens)?]
                } else {
                    let (otherwise, end) = self.block()?;
                    ensure!(matches!(end, BlockEnd::End), "else of {keyword} has no end");
                    otherwise
                }
            }
        };
        Ok(match keyword {
            "range" => Node::Range {
                items: condition,
                body,
                otherwise,
            },
            "if" | "with" => Node::Branch {
                sets_dot: keyword == "with",
                condition,
                body,
                otherwise,
            },
            _ => bail!("else {keyword} is not supported"),
        })
    }
}

/// Splits a template into texts and actions. Actions with a dash remove the white space next to them.
fn items(text: &str) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    let mut rest = text;
    let mut trims = false;
    loop {
        let (before, action) = match rest.split_once("{{") {
            Some((before, action)) => (before, Some(action)),
            None => (rest, None),
        };
        let mut before = if trims { before.trim_start() } else { before };
        let Some(mut action) = action else {
            items.push(Item::Text(before.to_owned()));
            return Ok(items);
        };
        if let Some(trimmed) = action
            .strip_prefix('-')
            .filter(|it| it.starts_with(char::is_whitespace))
        {
            before = before.trim_end();
            action = trimmed;
        }
        if !before.is_empty() {
            items.push(Item::Text(before.to_owned()));
        }
        let comment = action.trim_start().strip_prefix("/*");
        let (inner, after) = if let Some(comment) = comment {
            let (_, after) = comment.split_once("*/").context("a comment has no end")?;
            after.split_once("}}").context("a comment has no end")?
        } else {
            let end = closing(action).context("an action has no end")?;
            (&action[..end], &action[end + 2..])
        };
        let without_dash = inner.strip_suffix('-');
        trims = without_dash.is_some_and(|it| it.is_empty() || it.ends_with(char::is_whitespace));
        let inner = if trims {
            without_dash.unwrap_or(inner)
        } else {
            inner
        };
        if comment.is_none() {
            items.push(Item::Action(
                tokens(inner).with_context(|| format!("{{{{{inner}}}}}"))?,
            ));
        }
        rest = after;
    }
}

/// Returns the position of the `}}` that ends an action, which is not one in a text.
fn closing(action: &str) -> Option<usize> {
    let bytes = action.as_bytes();
    let mut quote = None;
    let mut at = 0;
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(b'"'), b'\\') => at += 1,
            (Some(open), byte) if byte == open => quote = None,
            (None, b'"' | b'`') => quote = Some(bytes[at]),
            (None, b'}') if bytes.get(at + 1) == Some(&b'}') => return Some(at),
            _ => {}
        }
        at += 1;
    }
    None
}

type Characters<'a> = Peekable<std::str::Chars<'a>>;

fn is_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

fn take_name(characters: &mut Characters<'_>) -> String {
    let mut name = String::new();
    while let Some(character) = characters.next_if(|it| is_name(*it)) {
        name.push(character);
    }
    name
}

/// Takes `.a.b`.
fn take_path(characters: &mut Characters<'_>) -> Vec<String> {
    let mut path = Vec::new();
    while characters.next_if_eq(&'.').is_some() {
        let name = take_name(characters);
        if name.is_empty() {
            break;
        }
        path.push(name);
    }
    path
}

fn tokens(action: &str) -> Result<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut characters = action.chars().peekable();
    while let Some(&character) = characters.peek() {
        match character {
            '"' | '`' => tokens.push(Token::Text(take_text(&mut characters)?)),
            '.' => tokens.push(Token::Field(take_path(&mut characters))),
            '$' => {
                characters.next();
                let name = take_name(&mut characters);
                tokens.push(Token::Variable(name, take_path(&mut characters)));
            }
            ')' => {
                characters.next();
                tokens.push(Token::Close(take_path(&mut characters)));
            }
            ':' => {
                characters.next();
                ensure!(characters.next() == Some('='), "unexpected ':'");
                tokens.push(Token::Declare);
            }
            '0'..='9' => {
                let mut number = String::new();
                while let Some(digit) = characters.next_if(|it| it.is_ascii_digit() || *it == '.') {
                    number.push(digit);
                }
                tokens.push(Token::Number(number));
            }
            _ if is_name(character) => tokens.push(Token::Word(take_name(&mut characters))),
            _ => {
                characters.next();
                match character {
                    '(' => tokens.push(Token::Open),
                    '|' => tokens.push(Token::Pipe),
                    ',' => tokens.push(Token::Comma),
                    '=' => tokens.push(Token::Assign),
                    _ if character.is_whitespace() => {}
                    _ => bail!("unexpected {character:?}"),
                }
            }
        }
    }
    Ok(tokens)
}

/// Takes a text in quotes.
fn take_text(characters: &mut Characters<'_>) -> Result<String> {
    let quote = characters.next();
    let mut text = String::new();
    loop {
        let character = characters.next().context("a text has no end")?;
        if Some(character) == quote {
            return Ok(text);
        }
        if character != '\\' || quote == Some('`') {
            text.push(character);
            continue;
        }
        text.push(match characters.next() {
            Some('n') => '\n',
            Some('t') => '\t',
            Some(escaped @ ('"' | '\\')) => escaped,
            other => bail!("unsupported escape {other:?}"),
        });
    }
}

fn pipeline(tokens: Vec<Token>) -> Result<Pipeline> {
    let mut tokens = tokens.into_iter().peekable();
    let pipeline = parse_pipeline(&mut tokens)?;
    match tokens.next() {
        None => Ok(pipeline),
        Some(token) => Err(anyhow!("unexpected {token:?}")),
    }
}

/// Parses a pipeline up to its end or a closing parenthesis, which stays.
fn parse_pipeline(tokens: &mut Peekable<IntoIter<Token>>) -> Result<Pipeline> {
    let mut commands = vec![Vec::new()];
    let mut variables = Vec::new();
    let mut declares = false;
    while let Some(token) = tokens.next_if(|it| !matches!(it, Token::Close(_))) {
        let operand = match token {
            Token::Pipe => {
                commands.push(Vec::new());
                continue;
            }
            Token::Comma => continue,
            Token::Declare | Token::Assign => {
                // All before are the names of variables.
                for operand in commands.pop().unwrap_or_default() {
                    let Operand::Variable(name, _) = operand else {
                        bail!("only a variable can be set");
                    };
                    variables.push(name);
                }
                declares = token == Token::Declare;
                commands.push(Vec::new());
                continue;
            }
            Token::Open => {
                let inner = parse_pipeline(tokens)?;
                let Some(Token::Close(path)) = tokens.next() else {
                    bail!("a parenthesis is not closed");
                };
                Operand::Parenthesized(inner, path)
            }
            Token::Text(text) => Operand::Literal(Datum::text(text)),
            Token::Number(number) => Operand::Literal(match number.parse() {
                Ok(number) => Datum::Int(number),
                Err(_) => Datum::Float(number.parse().context("invalid number")?),
            }),
            Token::Variable(name, path) => Operand::Variable(name, path),
            Token::Field(path) => Operand::Field(path),
            Token::Word(word) => match word.as_str() {
                "true" => Operand::Literal(Datum::Bool(true)),
                "false" => Operand::Literal(Datum::Bool(false)),
                "nil" => Operand::Literal(Datum::Null),
                _ => Operand::Function(word),
            },
            Token::Close(_) => bail!("unexpected ')'"),
        };
        if let Some(command) = commands.last_mut() {
            command.push(operand);
        }
    }
    ensure!(commands.iter().all(|it| !it.is_empty()), "an empty command");
    Ok(Pipeline {
        variables,
        declares,
        commands,
    })
}

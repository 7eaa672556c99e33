//! Just enough reading of Rust source to measure it: comments and strings blanked out, test
//! modules cut, functions counted. Lines keep their numbers throughout.

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The line of its `fn`, from 1.
    pub(crate) line: usize,
    /// From the line of its `fn` to its closing brace.
    pub(crate) lines: usize,
}

/// The source with comments, strings and characters replaced by blanks of the same length.
pub(crate) fn without_comments_and_strings(source: &str) -> String {
    let text: Vec<char> = source.chars().collect();
    let (mut out, mut at) = (String::with_capacity(source.len()), 0);
    while at < text.len() {
        let end = match text[at] {
            '/' if text.get(at + 1) == Some(&'/') => line_end(&text, at),
            '/' if text.get(at + 1) == Some(&'*') => comment_end(&text, at),
            '"' => string_end(&text, at),
            'r' if starts_raw_string(&text, at) => raw_string_end(&text, at),
            '\'' => character_end(&text, at),
            _ => at,
        };
        if end == at {
            out.push(text[at]);
            at += 1;
        } else {
            out.extend(text[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    out
}

fn line_end(text: &[char], at: usize) -> usize {
    text[at..].iter().position(|c| *c == '\n').map_or(text.len(), |n| at + n)
}

fn comment_end(text: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0_usize, at);
    while i + 1 < text.len() {
        match (text[i], text[i + 1]) {
            ('/', '*') => (depth, i) = (depth + 1, i + 2),
            ('*', '/') if depth == 1 => return i + 2,
            ('*', '/') => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
    }
    text.len()
}

fn string_end(text: &[char], at: usize) -> usize {
    let mut i = at + 1;
    while i < text.len() {
        match text[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    text.len()
}

fn starts_raw_string(text: &[char], at: usize) -> bool {
    let part_of_name =
        at > 0 && (text[at - 1].is_alphanumeric() || text[at - 1] == '_') && text[at - 1] != 'b';
    let after = text[at + 1..].iter().find(|c| **c != '#');
    !part_of_name && after == Some(&'"') && matches!(text.get(at + 1), Some('"' | '#'))
}

fn raw_string_end(text: &[char], at: usize) -> usize {
    let hashes = text[at + 1..].iter().take_while(|c| **c == '#').count();
    let mut i = at + 1 + hashes + 1;
    while i < text.len() {
        let closes =
            text[i] == '"' && text[i + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
        if closes {
            return i + 1 + hashes;
        }
        i += 1;
    }
    text.len()
}

/// The end of a character literal, or `at` itself where the quote begins a lifetime.
fn character_end(text: &[char], at: usize) -> usize {
    match (text.get(at + 1), text.get(at + 2)) {
        (Some('\\'), _) => {
            let from = at + 3;
            text[from.min(text.len())..].iter().position(|c| *c == '\'').map_or(text.len(), |n| from + n + 1)
        }
        (Some(_), Some('\'')) => at + 3,
        _ => at,
    }
}

/// The blanked source with the bodies of `#[cfg(test)] mod`s blanked too.
pub(crate) fn without_tests(code: &str) -> String {
    let mut lines: Vec<String> = code.lines().map(str::to_owned).collect();
    let mut at = 0;
    while at < lines.len() {
        let module = (at + 1..lines.len().min(at + 4)).find(|i| lines[*i].trim_start().starts_with("mod "));
        match module.filter(|_| lines[at].trim() == "#[cfg(test)]") {
            Some(start) => {
                let end = block_end(&lines, start);
                lines[at..=end].iter_mut().for_each(String::clear);
                at = end + 1;
            }
            None => at += 1,
        }
    }
    lines.join("\n")
}

/// The line on which the block that opens at or after line `start` is closed; `start` where a
/// semicolon comes first.
fn block_end(lines: &[String], start: usize) -> usize {
    let (mut depth, mut brackets) = (0_usize, 0_usize);
    for (i, line) in lines.iter().enumerate().skip(start) {
        for c in line.chars() {
            match c {
                '{' => depth += 1,
                '}' if depth == 1 => return i,
                '}' => depth = depth.saturating_sub(1),
                '[' => brackets += 1,
                ']' => brackets = brackets.saturating_sub(1),
                ';' if depth == 0 && brackets == 0 => return i,
                _ => {}
            }
        }
    }
    lines.len().saturating_sub(1)
}

/// Every function with its length, nested ones too.
pub(crate) fn functions(code: &str) -> Vec<Function> {
    let lines: Vec<String> = code.lines().map(str::to_owned).collect();
    let found = lines.iter().enumerate().filter_map(|(i, line)| {
        let name = function_name(line)?;
        Some(Function { name, line: i + 1, lines: block_end(&lines, i) - i + 1 })
    });
    found.collect()
}

fn function_name(line: &str) -> Option<String> {
    const QUALIFIERS: [&str; 7] = ["pub", "const", "async", "unsafe", "extern", "default", "fn"];
    let trimmed = line.trim_start();
    let at = if trimmed.starts_with("fn ") { 0 } else { trimmed.find(" fn ")? + 1 };
    let qualified = trimmed[..at]
        .split_whitespace()
        .all(|w| QUALIFIERS.contains(&w.split('(').next().unwrap_or(w)) || w.ends_with(')'));
    let name: String = trimmed[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (qualified && !name.is_empty()).then_some(name)
}

#[test]
fn comments_and_strings_are_blanked_and_lines_stay() {
    let source = "let a = \"{ \\\" }\"; // }\n/* { /* } */ */ let c = '{'; let l: &'a str = r#\"{\"#;\n";
    let code = without_comments_and_strings(source);
    assert_eq!(code.lines().count(), source.lines().count());
    assert!(!code.contains('{') && !code.contains('}'), "{code}");
    assert!(code.contains("let c =") && code.contains("&'a str"));
}

#[test]
fn functions_are_measured_without_their_tests() {
    let source = "pub(crate) const fn one() -> u8 {\n    1\n}\ntrait T {\n    fn none(a: [u8; 2]);\n}\n#[cfg(test)]\nmod tests {\n    fn long() {\n    }\n}\n";
    let found = functions(&without_tests(&without_comments_and_strings(source)));
    let lengths: Vec<(&str, usize)> = found.iter().map(|f| (f.name.as_str(), f.lines)).collect();
    assert_eq!(lengths, [("one", 3), ("none", 1)]);
}

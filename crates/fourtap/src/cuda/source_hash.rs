//! A hash of device code as the compiler reads it: comments and blank space do not count, so that mending a comment leaves
//! a kernel verified.

use std::iter::Peekable;
use std::str::Chars;

/// Of the parts of a source, in hexadecimal digits.
pub(super) fn source_hash(parts: &[&str]) -> String {
    blake3::hash(tokens(&parts.concat()).as_bytes())
        .to_hex()
        .to_string()
}

/// A source without comments, and without the blanks that separate nothing.
fn tokens(source: &str) -> String {
    let mut tokens = String::new();
    let mut rest = source.chars().peekable();
    // Directives end with their line.
    let mut in_directive = false;
    let mut is_blank = false;
    while let Some(next) = rest.next() {
        match (next, rest.peek()) {
            ('/', Some('/')) => while rest.next_if(|&next| next != '\n').is_some() {},
            ('/', Some('*')) => {
                skip_comment(&mut rest);
                is_blank = true;
            }
            ('\\', Some('\n')) => {
                rest.next();
                is_blank = true;
            }
            ('\n', _) if in_directive => {
                tokens.push('\n');
                (in_directive, is_blank) = (false, false);
            }
            _ if next.is_whitespace() => is_blank = true,
            _ => {
                if next == '#' && !in_directive {
                    in_directive = true;
                    if !tokens.ends_with('\n') {
                        tokens.push('\n');
                    }
                } else if is_blank && (in_directive || is_needed(&tokens, next)) {
                    tokens.push(' ');
                }
                is_blank = false;
                tokens.push(next);
                if next == '"' {
                    copy_string(&mut rest, &mut tokens);
                }
            }
        }
    }
    tokens
}

/// Whether `next` without a blank would become one with what comes before.
fn is_needed(before: &str, next: char) -> bool {
    let is_word = |one: char| one.is_alphanumeric() || one == '_';
    let last = before.chars().next_back();
    last.is_some_and(|last| last == next || is_word(last) && is_word(next))
}

fn skip_comment(rest: &mut Peekable<Chars<'_>>) {
    let mut last = ' ';
    rest.next();
    for next in rest {
        if (last, next) == ('*', '/') {
            return;
        }
        last = next;
    }
}

/// The rest of a string, in which every blank counts.
fn copy_string(rest: &mut Peekable<Chars<'_>>, tokens: &mut String) {
    while let Some(next) = rest.next() {
        tokens.push(next);
        match next {
            '"' => return,
            '\\' => tokens.extend(rest.next()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "#define TWICE(x) \\\n    (2 * (x)) // of it\n// Adds.\nint add(int a) {\n  return a + +1; /* one */\n}\n";

    #[test]
    fn comments_and_blanks_do_not_count() {
        let other =
            "\n#define TWICE(x) (2 * (x))\nint add(int a)\n{ /* what\nnot */ return a+ +1; }";
        assert_eq!(source_hash(&[SOURCE]), source_hash(&[other]));
        assert_eq!(
            tokens(SOURCE),
            "\n#define TWICE(x) (2 * (x))\nint add(int a){return a+ +1;}"
        );
    }

    #[test]
    fn everything_else_counts() {
        let of = |from: &str, to: &str| source_hash(&[&SOURCE.replacen(from, to, 1)]);
        let hash = source_hash(&[SOURCE]);
        for (from, to) in [
            ("+ +1", "++1"),
            ("int a", "inta"),
            ("TWICE(x)", "TWICE (x)"),
            ("(2 *", "(3 *"),
            ("// of it\n// Adds.\n", " "),
        ] {
            assert_ne!(of(from, to), hash, "{from} and {to}");
        }
    }

    #[test]
    fn strings_stay_as_they_are() {
        let string = r#"asm("ld.v2 {%0,  %1}, // \" [%2];");"#;
        assert_eq!(tokens(string), string);
    }
}

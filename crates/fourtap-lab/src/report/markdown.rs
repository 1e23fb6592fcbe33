//! Words that mean in Markdown what they say.

use super::chart::turns_text;

/// Text without anything that Markdown or HTML inside it would take for a sign; on one line, as cells of tables must be.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut before = ' ';
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '\\' | '|' | '*' | '`' | '[' | ']' | '~' => {
                escaped.push('\\');
                escaped.push(character);
            }
            // Inside a word an underscore is one.
            '_' if before.is_alphanumeric()
                && characters.peek().is_some_and(|next| next.is_alphanumeric()) =>
            {
                escaped.push('_');
            }
            '_' => escaped += "\\_",
            character if character.is_control() || turns_text(character) => escaped.push(' '),
            character => escaped.push(character),
        }
        before = character;
    }
    escaped
}

/// The path as part of a link.
pub fn link(path: &str) -> String {
    let mut link = String::new();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => {
                link.push(char::from(byte));
            }
            byte => link += &format!("%{byte:02X}"),
        }
    }
    link
}

/// With one empty line between paragraphs, however many the template left, and none at the ends.
pub fn tidied(text: &str) -> String {
    let mut tidied = String::with_capacity(text.len());
    let mut empty = true;
    for line in text.lines().map(str::trim_end) {
        if line.is_empty() && empty {
            continue;
        }
        empty = line.is_empty();
        tidied += line;
        tidied.push('\n');
    }
    tidied.truncate(tidied.trim_end().len());
    tidied.push('\n');
    tidied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_markdown_are_words() {
        assert_eq!(
            escaped("a|b*c`d[e](f) <img>\n_x_ grad_value &"),
            "a\\|b\\*c\\`d\\[e\\](f) &lt;img&gt; \\_x\\_ grad_value &amp;"
        );
    }

    #[test]
    fn links_hold_no_spaces_or_brackets() {
        assert_eq!(link("my plots/(a)"), "my%20plots/%28a%29");
    }

    #[test]
    fn empty_lines_come_alone() {
        assert_eq!(tidied("\n\na  \n\n\n\nb\n\n"), "a\n\nb\n");
    }
}

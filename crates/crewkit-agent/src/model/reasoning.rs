//! Separates `<think>` parts from the text of a reply.

/// Splits a text into words and reasoning. A part that is not closed extends to the end. If a part is closed but not opened,
/// the text is reasoning from its beginning, since some chat templates open the part themselves.
pub(super) fn split(text: &str) -> (String, Option<String>) {
    let mut words = String::new();
    let mut thoughts: Vec<&str> = Vec::new();
    let mut rest = text;
    if let Some((close, length)) = first_of(rest, ["</think>", "</thinking>"])
        && first_of(rest, ["<think>", "<thinking>"]).is_none_or(|(open, _)| open > close)
    {
        thoughts.push(rest[..close].trim());
        rest = &rest[close + length..];
    }
    while let Some((open, length)) = first_of(rest, ["<think>", "<thinking>"]) {
        words.push_str(&rest[..open]);
        let inside = &rest[open + length..];
        if let Some((close, length)) = first_of(inside, ["</think>", "</thinking>"]) {
            thoughts.push(inside[..close].trim());
            rest = &inside[close + length..];
        } else {
            thoughts.push(inside.trim());
            rest = "";
        }
    }
    words.push_str(rest);
    if thoughts.is_empty() {
        return (words, None);
    }
    let thoughts = thoughts.join("\n");
    (words.trim().to_owned(), (!thoughts.is_empty()).then_some(thoughts))
}

fn first_of(text: &str, tags: [&str; 2]) -> Option<(usize, usize)> {
    tags.into_iter().filter_map(|tag| text.find(tag).map(|at| (at, tag.len()))).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_thoughts() {
        for (text, words, thoughts) in [
            ("plain  text ", "plain  text ", None),
            ("<think>a</think>b", "b", Some("a")),
            ("x <thinking>a\n</thinking> y <think>c</think>", "x  y", Some("a\nc")),
            ("b <think>never closed [CONTRACT COMPLETE]", "b", Some("never closed [CONTRACT COMPLETE]")),
            ("opened by the template</think>answer", "answer", Some("opened by the template")),
            ("<think></think>answer", "answer", None),
        ] {
            assert_eq!(split(text), (words.to_owned(), thoughts.map(str::to_owned)), "{text}");
        }
    }
}

//! Suggestions for misspelt names.

/// Returns the name in `known` that `given` is most likely a misspelling of, or `None` if no name is near.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, name) = known.into_iter().map(|name| (edits(given, name), name)).min()?;
    (distance <= given.chars().count().max(3) / 3).then_some(name)
}

/// The number of characters to insert, remove or replace to get from one text to the other.
fn edits(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (above, from) in left.chars().enumerate() {
        let mut diagonal = above;
        let mut before = above + 1;
        for (column, to) in right.iter().enumerate() {
            let Some(cell) = row.get_mut(column + 1) else { break };
            let replaced = diagonal + usize::from(from != *to);
            diagonal = *cell;
            *cell = replaced.min(diagonal + 1).min(before + 1);
            before = *cell;
        }
        if let Some(first) = row.first_mut() {
            *first = above + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_suggested_only_when_it_is_near() {
        let known = ["name", "project", "page_size"];
        for (given, expected) in [
            ("nam", Some("name")),
            ("nmae", None),
            ("projct", Some("project")),
            ("pagesize", Some("page_size")),
            ("page-size", Some("page_size")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(given, known), expected, "{given}");
        }
        assert_eq!(nearest("x", []), None);
        assert_eq!((edits("", "abc"), edits("abc", ""), edits("kitten", "sitting")), (3, 3, 3));
    }
}

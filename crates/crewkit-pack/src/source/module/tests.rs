use super::*;
use crate::fs::path::RelPath;
use crate::overlay::OverlayScope;
use std::sync::Arc;
use std::time::SystemTime;

fn outcome(kind: &str, files: &[(&str, &str)]) -> String {
    let module: Module = serde_json::from_value(json!({
        "id": format!("{kind}:x"), "type": kind, "source": {"local_path": {"path": "m"}}
    }))
    .unwrap();
    let files: Vec<_> = files
        .iter()
        .map(|(path, text)| {
            TreeFile::in_memory(
                RelPath::new(*path).unwrap(),
                text.as_bytes().to_vec(),
                false,
                OverlayScope::Global,
            )
        })
        .collect();
    let cache = HashCache::in_memory(Arc::new(SystemTime::now));
    match check(&module, &files, &Limits::default(), &cache) {
        Ok(_) => "ok".to_owned(),
        Err(error) => format!("{} {error}", error.code()),
    }
}

type Files<'a> = &'a [(&'a str, &'a str)];

#[test]
fn content_must_fit_the_type() {
    let good = "---\nname: a\ndescription: b\n---\nbody\n";
    let cases: &[(&str, Files<'_>, &str)] = &[
        ("instructions", &[("AGENTS.md", "")], "ok"),
        ("instructions", &[("AGENTS.md", ""), ("more.txt", "")], "ok"),
        (
            "instructions",
            &[("agents.md", "")],
            "E_MODULE_INVALID instructions module instructions:x is missing AGENTS.md",
        ),
        ("skill", &[("SKILL.md", good), ("run.sh", "")], "ok"),
        ("skill", &[("SKILL.md", "---\r\nname: a\r\ndescription: b\r\n---\r\n")], "ok"),
        ("skill", &[("x.md", good)], "E_CONFIG_INVALID skill module skill:x is missing SKILL.md"),
        (
            "skill",
            &[("SKILL.md", "# hi")],
            "E_CONFIG_INVALID skill module skill:x is missing YAML frontmatter in SKILL.md",
        ),
        (
            "skill",
            &[("SKILL.md", "---\nname: a\n---\n")],
            "E_CONFIG_INVALID skill module skill:x frontmatter is missing description",
        ),
        (
            "skill",
            &[("SKILL.md", "---\nname: [a]\ndescription: b\n---\n")],
            "E_CONFIG_INVALID skill module skill:x frontmatter name must be a string",
        ),
        (
            "skill",
            &[("SKILL.md", "---\nname: a\ndescription: ' '\n---\n")],
            "E_CONFIG_INVALID skill module skill:x frontmatter description is empty",
        ),
        (
            "skill",
            &[("SKILL.md", "---\n- a\n---\n")],
            "E_CONFIG_INVALID skill module skill:x frontmatter must be a YAML mapping",
        ),
        (
            "skill",
            &[("SKILL.md", "---\nname: a\n")],
            "E_CONFIG_INVALID skill module skill:x has invalid YAML frontmatter in SKILL.md: the closing --- is missing",
        ),
        ("prompt", &[("p.md", "")], "ok"),
        // What Finder leaves behind used to break a prompt.
        ("prompt", &[(".DS_Store", ""), ("p.md", "")], "ok"),
        (
            "prompt",
            &[("a.md", ""), ("b.md", "")],
            "E_MODULE_INVALID prompt module prompt:x must contain exactly one file, found 2",
        ),
        ("prompt", &[("a.txt", "")], "E_MODULE_INVALID prompt module prompt:x must be a .md file: a.txt"),
        ("command", &[("c.md", "---\ndescription: d\n---\nhi")], "ok"),
        (
            "command",
            &[("c.md", "hi")],
            "E_MODULE_INVALID command module command:x is missing YAML frontmatter (--- … ---)",
        ),
        (
            "command",
            &[("c.md", "---\nx: 1\n---\n")],
            "E_MODULE_INVALID command module command:x frontmatter is missing description",
        ),
        (
            "command",
            &[("c.md", "---\ndescription: d\n---\n!bash ls")],
            "E_MODULE_INVALID command module command:x uses bash but frontmatter is missing allowed-tools",
        ),
        (
            "command",
            &[("c.md", "---\ndescription: d\nallowed-tools: Read\n---\n!`bash`")],
            "E_MODULE_INVALID command module command:x uses bash but allowed-tools does not include Bash(...)",
        ),
        (
            "command",
            &[("c.md", "---\ndescription: d\nallowed-tools: [Read, 'Bash(ls:*)']\n---\n!bash")],
            "ok",
        ),
        ("command", &[("c.md", "---\ndescription: d\nallowed-tools: Bash(ls)\n---\n!bash")], "ok"),
    ];
    for (kind, files, want) in cases {
        assert_eq!(outcome(kind, files), *want, "{kind} {files:?}");
    }
}

#[test]
fn skills_are_checked_by_the_published_rules() {
    let broken = |id: &str, name: &str, description: &str| {
        let module: Module = serde_json::from_value(json!({
            "id": id, "type": "skill", "source": {"local_path": {"path": "m"}}
        }))
        .unwrap();
        unsound(&module, name, description)
    };
    let long = "d".repeat(1025);
    assert_eq!(broken("skill:a-b2", "a-b2", "d"), []);
    assert_eq!(broken("skill:a-b2", "a-b2", &long[1..]), []);
    assert_eq!(broken("skill:x", "a", &long), [BrokenRule::NameOfDirectory, BrokenRule::Description]);
    for name in ["A", "a_b", "-a", "a-", "a--b", "", &"a".repeat(65)] {
        assert_eq!(broken(&format!("skill:{name}"), name, "d"), [BrokenRule::Name], "{name}");
    }
}

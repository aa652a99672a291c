use super::*;
use crate::source::spec;
use proptest::prelude::*;

const HEAD: &str =
    "# my pack\nversion: 1\nprofiles: {default: {include_tags: [base]}}  # all\nfuture_key: kept\n";

fn module(id: &str) -> Module {
    let kind = crate::config::manifest::ModuleType::Skill;
    let source = spec::parse("local:modules/x").unwrap();
    Module { tags: vec!["base".to_owned()], ..Module::new(id.to_owned(), kind, source) }
}

fn added(text: &str, id: &str) -> String {
    match add(text, &module(id), Path::new("f"), &Limits::default()) {
        Ok(text) => text,
        Err(error) => format!("{} {error}", error.code()),
    }
}

fn removed(text: &str, id: &str) -> String {
    match remove(text, id, Path::new("f"), &Limits::default()) {
        Ok(text) => text,
        Err(error) => format!("{} {error}", error.code()),
    }
}

const ITEM: &str = "- id: skill:b\n    type: skill\n    tags: [base]\n    source:\n      local_path:\n        path: modules/x\n";

#[test]
fn added_modules_leave_the_rest_alone() {
    let a = "- {id: a, type: skill, source: {local_path: {path: a}}}";
    for (modules, want) in [
        ("modules: []\n", format!("modules:\n  {ITEM}")),
        ("modules: [] # none yet\ntargets: {}\n", format!("modules: # none yet\n  {ITEM}targets: {{}}\n")),
        ("modules:\n", format!("modules:\n  {ITEM}")),
        ("", format!("modules:\n  {ITEM}")),
        (
            &format!("modules:\n  # first\n  {a} # a\n\n# the end\ntargets: {{}}\n"),
            format!("modules:\n  # first\n  {a} # a\n  {ITEM}\n# the end\ntargets: {{}}\n"),
        ),
        (&format!("modules:\n  {a}"), format!("modules:\n  {a}\n  {ITEM}")),
        (
            "modules:\n- id: a\n  type: skill\n  x: |\n    - id: text\n    # text\n  source: {local_path: {path: a}}\n",
            format!(
                "modules:\n- id: a\n  type: skill\n  x: |\n    - id: text\n    # text\n  source: {{local_path: {{path: a}}}}\n{}",
                ITEM.replace("\n  ", "\n")
            ),
        ),
    ] {
        let text = format!("{HEAD}{modules}");
        assert_eq!(added(&text, "skill:b"), format!("{HEAD}{want}"), "{modules}");
    }
}

#[test]
fn flow_lists_stay_flow_lists() {
    let text = format!(
        "{HEAD}modules: [{{id: a, type: skill, source: {{local_path: {{path: a}}}}}} , # why ]\n  ]\n"
    );
    let with = added(&text, "skill:b");
    assert!(
        with.contains("{id: a") && with.contains("# why ]") && with.contains("\"id\":\"skill:b\""),
        "{with}"
    );
    assert!(!removed(&with, "a").contains("id: a"));
}

#[test]
fn windows_line_ends_stay() {
    let text = format!("{HEAD}modules: []\n").replace('\n', "\r\n");
    let with = added(&text, "skill:b");
    assert_eq!(with.matches('\n').count(), with.matches("\r\n").count(), "{with:?}");
}

#[test]
fn removed_modules_leave_the_rest_alone() {
    let text = format!(
        "{HEAD}modules:\n  # about a\n  - id: a\n    type: skill\n    source: {{local_path: {{path: a}}}}\n  # about b\n  - id: b   # b!\n    type: skill\n    unknown: 1\n    source: {{local_path: {{path: b}}}}\n\n# end\n"
    );
    assert_eq!(
        removed(&text, "a"),
        text.replace("  - id: a\n    type: skill\n    source: {local_path: {path: a}}\n", "")
    );
    let without_b = removed(&text, "b");
    assert!(without_b.contains("  # about b\n\n# end\n") && !without_b.contains("id: b"), "{without_b}");
    let empty = removed(&without_b, "a");
    assert!(empty.contains("modules: []\n  # about a\n  # about b\n"), "{empty}");
    assert_eq!(added(&empty, "skill:b").matches("skill:b").count(), 1);
}

#[test]
fn what_cannot_be_is_refused_and_says_why() {
    let text = format!("{HEAD}modules:\n  - {{id: a, type: skill, source: {{local_path: {{path: a}}}}}}\n");
    assert_eq!(added(&text, "a"), "E_CONFIG_INVALID duplicate module id: a");
    assert_eq!(removed(&text, "c"), "E_MODULE_NOT_FOUND module not found: c");
    let odd = "{version: 1, profiles: {default: {}}, modules: []}\n";
    assert!(added(odd, "a").starts_with("E_CONFIG_INVALID f is written in a way"), "{}", added(odd, "a"));
}

proptest! {
    #[test]
    fn any_id_survives(id in "[ -~]{1,20}|[a-zé]{1,4}") {
        let with = added(&format!("{HEAD}modules: []\n"), &id);
        let manifest = Manifest::parse(&with, Path::new("f"), &Limits::default()).unwrap();
        prop_assert_eq!(&manifest.modules[0].id, &id);
    }

    #[test]
    fn adding_then_removing_keeps_every_other_line(count in 0_usize..5, comments in proptest::collection::vec("(  )?# [a-z]{0,5}", 5)) {
        let mut text = format!("{HEAD}modules:\n");
        for (index, comment) in comments.iter().take(count).enumerate() {
            text.push_str(&format!("{comment}\n  - id: m{index}\n    type: skill\n    source: {{local_path: {{path: a}}}}\n"));
        }
        text.push_str("\n# end\nother: {}\n");
        prop_assume!(count > 0);
        let with = added(&text, "skill:b");
        prop_assert_eq!(removed(&with, "skill:b"), text);
    }
}

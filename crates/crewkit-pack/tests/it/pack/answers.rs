//! Answers as text: programs read, compare and hash them.

use crewkit_pack::commands::{
    Add, Consent, Explain, Init, OverlayEdit, OverlayRef, OverlayScope, Prune, Update,
};
use crewkit_pack::envelope::{Answer, sorted};
use serde::Serialize;

use super::place::{Place, SKILL, adopt, all, snapshot_id};

#[track_caller]
fn in_order<T: Serialize>(answer: &Answer<T>) {
    assert_eq!(answer.json().to_string(), sorted(answer.json()).to_string());
}

#[test]
fn the_members_of_every_answer_are_in_alphabetical_order() {
    let place = Place::with("{codex: {mode: files, scope: both}}", &[]);
    let (pack, yes) = (place.pack(), Consent::Given);
    in_order(&pack.init(&all(), Init { git: true }, yes).unwrap());
    place.source("s/SKILL.md", SKILL);
    let add = Add {
        kind: "skill".to_owned(),
        source: "local:s".to_owned(),
        id: None,
        tags: vec!["base".to_owned()],
        targets: Vec::new(),
    };
    in_order(&pack.add(&all(), &add, yes).unwrap());
    in_order(&pack.lock_modules(&all(), yes).unwrap());
    in_order(&pack.fetch(&all(), yes).unwrap());
    in_order(&pack.update(&all(), Update { lock: true, ..Update::default() }, yes).unwrap());
    place.git("proj", &["init", "-q"]);
    in_order(&pack.doctor(&all(), Some(yes)).unwrap());
    place.write("proj/.codex/skills/s/SKILL.md", "mine");
    place.write("proj/.codex/skills/extra", "mine");
    in_order(&pack.status(&all(), &[crewkit_pack::plan::status::Kind::Extra]).unwrap());
    in_order(&pack.plan(&all()).unwrap());
    in_order(&pack.preview(&all(), true).unwrap());
    in_order(&pack.explain(&all(), Explain::Plan).unwrap());
    in_order(&pack.explain(&all(), Explain::Status).unwrap());
    in_order(&pack.deploy_for_approval(&all()).unwrap());
    let deployed = adopt(&pack).unwrap();
    in_order(&deployed);
    let id = snapshot_id(&deployed);
    in_order(&pack.snapshots_list().unwrap());
    in_order(&pack.snapshots_show(&id).unwrap());
    in_order(&pack.snapshots_prune(&all(), Prune { keep: None }, yes).unwrap());
    let which = OverlayRef { module_id: "skill:s".to_owned(), scope: OverlayScope::Machine };
    in_order(&pack.overlay_path(&all(), &which).unwrap());
    in_order(&pack.overlay_edit(&all(), &which, OverlayEdit::default(), yes).unwrap());
    in_order(&pack.overlay_rebase(&all(), &which, false, yes).unwrap());
    in_order(&pack.remove(&all(), "skill:s", yes).unwrap());
    in_order(&pack.explain(&all(), Explain::Plan).unwrap());
    in_order(&pack.rollback(&all(), &format!("before:{id}"), yes).unwrap());
    in_order(&pack.help(Vec::new(), Vec::new()));
    in_order(&pack.schema());
}

//! What was approved is what is applied.

use crewkit_core::Code;
use crewkit_pack::PackError;
use crewkit_pack::commands::Select;
use crewkit_pack::commands::{Consent, Deploy, Pack, Planned};
use crewkit_pack::envelope::Answer;

use super::place::{Place, all, code};

fn place() -> Place {
    let module =
        "{id: \"instructions:a\", type: instructions, tags: [base], source: {local_path: {path: i}}}";
    let place =
        Place::with("{codex: {mode: files, scope: project}, zed: {mode: files, scope: project}}", &[module]);
    place.source("i/AGENTS.md", "# hi\n");
    place
}

fn token(pack: &Pack) -> String {
    pack.deploy_for_approval(&all()).unwrap().data.confirm_token.unwrap()
}

fn apply(pack: &Pack, select: &Select, token: &str) -> Result<Answer<Planned>, PackError> {
    let deploy = Deploy { apply: Some(Consent::Given), adopt: false, confirm_token: Some(token.to_owned()) };
    pack.deploy(select, &deploy)
}

#[test]
fn the_approved_plan_is_applied_once() {
    let place = place();
    let pack = place.pack();
    let token = token(&pack);
    assert_eq!(token.len(), 64);
    assert_eq!(apply(&pack, &all(), &token).unwrap().data.applied, Some(true));
    assert_eq!(code(apply(&pack, &all(), &token)), Code::ConfirmTokenMismatch, "a token is used up");
}

#[test]
fn another_plan_than_the_approved_one_is_refused() {
    let place = place();
    let pack = place.pack();
    let changes: [(&str, &dyn Fn()); 3] = [
        ("a source changes", &|| drop(place.source("i/AGENTS.md", "# other\n"))),
        ("a destination changes", &|| drop(place.write("proj/.rules", "mine\n"))),
        ("a module is added", &|| {
            let text = std::fs::read_to_string(place.repo("agentpack.yaml")).unwrap();
            let more = "  - {id: \"instructions:b\", type: instructions, tags: [base], source: {local_path: {path: i}}}\n";
            std::fs::write(place.repo("agentpack.yaml"), text + more).unwrap();
        }),
    ];
    for (what, change) in changes {
        let token = token(&pack);
        change();
        let error = apply(&pack, &all(), &token).unwrap_err();
        assert_eq!(error.code(), Code::ConfirmTokenMismatch, "{what}");
        assert_eq!(error.details().unwrap()["expected_confirm_plan_hash"], token, "{what}");
        assert!(!place.path("proj/AGENTS.md").exists(), "{what}");
    }
}

#[test]
fn a_token_is_bound_to_its_arguments_and_its_time() {
    let place = place();
    let pack = place.pack();
    let first = token(&pack);
    let select = Select { target: "zed".to_owned(), ..all() };
    assert_eq!(code(apply(&pack, &select, &first)), Code::ConfirmTokenMismatch);
    assert_eq!(code(apply(&pack, &all(), &"0".repeat(64))), Code::ConfirmTokenMismatch);
    assert_eq!(
        code(apply(&place.pack(), &all(), &first)),
        Code::ConfirmTokenMismatch,
        "issued by somebody else"
    );
    place.wait(601);
    assert_eq!(code(apply(&pack, &all(), &first)), Code::ConfirmTokenExpired);
    assert!(!place.path("proj/AGENTS.md").exists());
    let second = token(&pack);
    assert_eq!(second, first, "the same plan has the same hash");
    apply(&pack, &all(), &second).unwrap();
}

#[test]
fn a_failed_plan_gets_no_token() {
    let place = place();
    std::fs::remove_file(place.repo("i/AGENTS.md")).unwrap();
    assert_eq!(code(place.pack().deploy_for_approval(&all())), Code::ModuleInvalid);
}

/// A caller who gives up after so many reports.
#[derive(Debug)]
struct Impatient(std::sync::atomic::AtomicUsize);

impl crewkit_pack::env::Progress for Impatient {
    fn at(&self, _: &str, _: usize, _: usize) {}

    fn wanted(&self) -> bool {
        let left = self.0.load(std::sync::atomic::Ordering::SeqCst);
        self.0.store(left.saturating_sub(1), std::sync::atomic::Ordering::SeqCst);
        left > 0
    }
}

#[test]
fn a_call_nobody_waits_for_ends_before_it_changes_anything() {
    let place = place();
    let deploy = Deploy { apply: Some(Consent::Given), adopt: false, confirm_token: None };
    let mut patience = 0;
    let applied = loop {
        let pack = place.pack().telling(std::sync::Arc::new(Impatient(patience.into())));
        match pack.deploy(&all(), &deploy) {
            Ok(applied) => break applied,
            Err(error) => assert_eq!(error.code(), Code::Cancelled, "{error}"),
        }
        assert!(!place.path("proj/AGENTS.md").exists(), "after {patience} looks");
        patience += 1;
    };
    assert_eq!(patience, 2, "for its module under the lock, and once more before the first write");
    assert_eq!(applied.data.applied, Some(true));
}

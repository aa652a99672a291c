//! Replays what the fuzz targets of workspaces found worth keeping.

#[path = "../../../../fuzz/harness/workspace.rs"]
mod workspace;

use std::path::Path;

fn replay(corpus: &str, harness: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(corpus);
    let mut count = 0;
    for file in std::fs::read_dir(&directory).unwrap() {
        harness(&std::fs::read(file.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 0, "{} is empty", directory.display());
}

#[test]
fn the_corpus_of_what_agents_leave_is_survived() {
    replay("taskfile", workspace::taskfile);
    replay("git_output", workspace::git_output);
}

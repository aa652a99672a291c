//! Replays what the fuzz targets of the doors found worth keeping.

#[path = "../../../../fuzz/harness/doors.rs"]
mod doors;

use std::path::Path;

/// Runs `harness` on every file of a corpus. Off the runtime of the test, since the harness has its own.
fn replay(corpus: &str, harness: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(corpus);
    let files = std::fs::read_dir(&directory).unwrap();
    let mut count = 0;
    for file in files {
        harness(&std::fs::read(file.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 0, "{} is empty", directory.display());
}

/// One test: the doors share a server, and a server has one runtime.
#[test]
fn the_corpus_of_every_door_is_survived() {
    replay("http", doors::http);
    replay("websocket", doors::websocket);
    replay("mcp_stdio", doors::mcp);
}

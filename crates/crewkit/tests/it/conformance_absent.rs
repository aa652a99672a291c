//! What is made for the conformance suite stays out of the builds people get.

use std::collections::BTreeSet;
use std::path::Path;

/// The only lines of manifests that may speak of the feature: where it is declared, off by default.
const DECLARATIONS: [&str; 2] = ["conformance = []", "conformance = [\"crewkit-server/conformance\"]"];

#[test]
fn no_manifest_switches_the_feature_on() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let crates = std::fs::read_dir(workspace.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let manifests = crates
        .chain([workspace.clone(), workspace.join("xtask"), workspace.join(".cargo")])
        .flat_map(|directory| [directory.join("Cargo.toml"), directory.join("config.toml")]);
    let texts: Vec<String> =
        manifests.filter_map(|manifest| std::fs::read_to_string(manifest).ok()).collect();
    assert!(texts.len() > 5, "the manifests are somewhere else now");
    let lines = texts.iter().flat_map(|text| text.lines()).map(str::trim);
    let found: BTreeSet<_> =
        lines.filter(|line| !line.starts_with('#') && line.contains("conformance")).collect();
    assert_eq!(found, BTreeSet::from(DECLARATIONS));
}

#[cfg(not(feature = "conformance"))]
mod in_a_default_build {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Command, Stdio};

    const CREWKIT: &str = env!("CARGO_BIN_EXE_crewkit");

    #[test]
    fn the_toolset_is_unknown() {
        let home = tempfile::tempdir().unwrap();
        for command in ["serve", "mcp"] {
            let output = Command::new(CREWKIT)
                .args([command, "--toolsets", "conformance"])
                .env("CREWKIT_HOME", home.path())
                .stdin(Stdio::null())
                .output()
                .unwrap();
            assert_eq!(output.status.code(), Some(2), "{command}");
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert!(
                stderr.contains("unknown toolset `conformance`; known are pack, fleet and agents"),
                "{stderr}"
            );
        }
    }

    #[test]
    fn no_tool_of_the_fixture_is_listed_or_in_the_binary() {
        let home = tempfile::tempdir().unwrap();
        let mut server = Command::new(CREWKIT)
            .arg("mcp")
            .env("CREWKIT_HOME", home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = [
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#,
        ];
        let mut stdin = server.stdin.take().unwrap();
        stdin.write_all((lines.join("\n") + "\n").as_bytes()).unwrap();
        let mut answers = BufReader::new(server.stdout.take().unwrap()).lines().map(Result::unwrap);
        let listed = answers.find(|answer| answer.contains("\"id\":2")).unwrap();
        drop(stdin);
        assert!(server.wait().unwrap().success());
        assert!(listed.contains("\"tools\":[") && !listed.contains("\"test_"), "{listed}");

        let binary = std::fs::read(CREWKIT).unwrap();
        let name = b"test_input_required_result_";
        assert!(!binary.windows(name.len()).any(|window| window == name));
    }
}

//! Manners of the command line.

use crate::support::{crewkit, output};

#[test]
fn the_settings_in_force_are_shown_with_their_origin() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("crewkit.toml"), "[server]\nlisten = \"127.0.0.1:7\"\n").unwrap();
    let mut command = crewkit(home.path());
    command.env("CREWKIT_LIMITS_MCP_SESSIONS", "9").args(["config", "show"]);
    let (code, page, _) = output(&mut command);
    assert_eq!(code, 0);
    let line =
        |key: &str| page.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{page}"));
    assert!(
        line("server.listen").contains("\"127.0.0.1:7\"") && line("server.listen").ends_with("crewkit.toml")
    );
    assert!(line("limits.mcp_sessions").ends_with("# $CREWKIT_LIMITS_MCP_SESSIONS"));
    assert!(line("server.auth").ends_with("# default"));
    let (code, json, _) = output(command.arg("--json"));
    assert_eq!(code, 0);
    let document: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(document["settings"].as_array().unwrap().len(), page.lines().count() - 1);
}

#[test]
fn mistakes_are_told_with_a_code_and_a_next_step() {
    let home = tempfile::tempdir().unwrap();
    for (arguments, code, expected) in [
        (&["mcp", "--toolsets", "nope"][..], 2, "known are pack, fleet and agents"),
        (&["mcp", "--exclude-tools", "nope"], 2, "Unknown tool `nope`"),
        (&["serve", "--listen", "0.0.0.0:0"], 1, "error[E_LISTEN_REFUSED]"),
        (&["serve", "--listen", "[::]:0"], 1, "error[E_LISTEN_REFUSED]"),
        (&["serve", "--listen", "nowhere"], 1, "error[E_SETTING_INVALID]"),
        (&["no-such-command"], 2, "unrecognized subcommand"),
    ] {
        let (status, out, err) = output(crewkit(home.path()).args(arguments));
        assert_eq!((status, out.as_str()), (code, ""), "{arguments:?} {err}");
        assert!(err.contains(expected), "{arguments:?}: {err}");
    }
    let (status, out, _) = output(crewkit(home.path()).args(["--json", "serve", "--listen", "0.0.0.0:0"]));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, &json["error"]), (1, &"E_LISTEN_REFUSED".into()));
    std::fs::write(home.path().join("crewkit.toml"), "[server]\nlisen = 1\n").unwrap();
    let (status, _, err) = output(crewkit(home.path()).args(["config", "show"]));
    assert_eq!(status, 1);
    assert!(err.contains("did you mean `server.listen`?") && err.contains("next: "), "{err}");
}

#[test]
fn completions_manual_and_version_are_there() {
    let home = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let (code, script, _) = output(crewkit(home.path()).args(["completions", shell]));
        assert!(code == 0 && script.contains("crewkit"), "{shell}");
    }
    let (code, page, _) = output(crewkit(home.path()).arg("man"));
    assert!(code == 0 && page.contains(".TH crewkit"));
    let (code, version, _) = output(crewkit(home.path()).arg("--version"));
    assert_eq!((code, version.as_str()), (0, concat!("crewkit ", env!("CARGO_PKG_VERSION"), "\n")));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let home = tempfile::tempdir().unwrap();
    let mut child = crewkit(home.path())
        .args(["config", "show"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn a_service_is_written_and_removed_and_a_foreign_file_stays() {
    let home = tempfile::tempdir().unwrap();
    let units = tempfile::tempdir().unwrap();
    let service = |command: &str| {
        let mut crewkit = crewkit(home.path());
        output(crewkit.env("XDG_CONFIG_HOME", units.path()).args(["service", command]))
    };
    let file = units.path().join("systemd/user/crewkit.service");
    assert!(service("status").1.contains("Not installed"));
    for _ in 0..2 {
        let (code, out, err) = service("install");
        assert_eq!(code, 0, "{err}");
        assert!(out.contains("systemctl --user enable --now crewkit.service"), "{out}");
        let unit = std::fs::read_to_string(&file).unwrap();
        assert!(unit.contains(&format!("serve --home \"{}\"", home.path().display())), "{unit}");
        assert!(out.contains(&unit) && service("status").1.contains("Installed for this home"));
    }
    assert_eq!(service("uninstall").0, 0);
    assert!(!file.exists());
    assert_eq!(service("uninstall").0, 0, "removing what is not there is no failure");
    std::fs::write(&file, "[Service]\nExecStart=/usr/bin/mine\n").unwrap();
    for command in ["install", "uninstall", "status"] {
        let (code, _, err) = service(command);
        assert!(code == 1 && err.contains("was not written by"), "{err}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "[Service]\nExecStart=/usr/bin/mine\n");
}

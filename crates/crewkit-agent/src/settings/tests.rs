use std::ffi::OsString;
use std::sync::Arc;

use crewkit_core::Secret;
use proptest::prelude::*;

use super::*;
use crate::tools::mcp::Transport;

fn vault() -> Vault {
    Vault::new(Secret::new("the key of the home"))
}

/// Settings with a secret wherever there can be one.
fn settings() -> RunSettings {
    let variables = |names: &[&str]| -> Vec<(OsString, OsString)> {
        names.iter().map(|name| ((*name).into(), format!("sesame-of-{name}").into())).collect()
    };
    let mut driver = ProcessDriver::presets().remove(0);
    driver.command.extend(["--api-key", "sesame-1", "--header=Cookie: sesame-2", "plain"].map(str::to_owned));
    driver.environment = variables(&["ANTHROPIC_API_KEY", "GH_PASSWD"]);
    let servers = r#"{"files": {"command": "srv", "args": ["--token=sesame-3", "--fast"],
                                "env": {"MY_TOKEN": "sesame-4", "MODE": "plain"}},
                      "web": {"url": "https://host/sesame-5/mcp", "headers": {"X-Auth": "sesame-6"}}}"#;
    RunSettings {
        models: vec![
            Endpoint {
                api_key: Some(Secret::new("sesame-7")),
                ..Endpoint::new("default", "http://m/v1", "one")
            },
            Endpoint {
                proxy: Some("user:sesame-8@proxy:80".to_owned()),
                ..Endpoint::new("second", "https://u:sesame-9@n/v1?key=sesame-10", "two")
            },
        ],
        drivers: vec![driver],
        tool_servers: crate::tools::mcp::parse(servers).unwrap(),
        commands: CommandPolicy::Unconfined { environment: variables(&["DB_CREDENTIALS"]) },
        environment: vec![
            ("PATH".into(), "/usr/bin".into()),
            ("HTTPS_PROXY".into(), "http://u:sesame-11@proxy".into()),
        ],
    }
}

#[test]
fn what_is_written_down_has_no_secret_and_is_whole_again_with_the_vault() {
    let (vault, settings) = (vault(), settings());
    let recorded = vault.record(&settings);
    assert!(!recorded.body().contains("sesame"), "{}", recorded.body());
    for plain in ["/usr/bin", "http://m/v1", "--fast", "plain", "https://********@n/v1?key=********"] {
        assert!(recorded.body().contains(plain), "{plain}: {}", recorded.body());
    }
    let read = RecordedSettings::parse(recorded.body().to_owned()).unwrap();
    assert_eq!(read, recorded);
    assert_eq!(vault.fill(&read), settings);
    assert_eq!(vault.record(&settings).id(), recorded.id(), "equal settings are one row");
    let other = Vault::new(Secret::new("another home"));
    assert_ne!(other.record(&settings).id(), recorded.id(), "fingerprints are of one home");
}

#[test]
fn a_run_needs_the_secrets_it_uses_and_no_others() {
    let recorded = vault().record(&settings());
    let restarted = vault();
    let missing = |what| {
        let missing = restarted.missing(&recorded, what);
        missing.into_iter().map(|secret| format!("{} of {}", secret.name, secret.of)).collect::<Vec<_>>()
    };
    let everywhere = "HTTPS_PROXY of the environment";
    let of_loops = [
        "files.argument 0 of tool server files",
        "files.MY_TOKEN of tool server files",
        "web.url of https://host",
        "web.X-Auth of https://host",
        "DB_CREDENTIALS of commands",
        everywhere,
    ];
    let second = ["endpoint", "proxy"]
        .map(|field| format!("llm.endpoints.second.{field} of https://********@n/v1?key=********"));
    assert_eq!(missing(Use::Loop(None)), of_loops);
    assert_eq!(
        missing(Use::Loop(Some("default"))),
        [&["llm.api_key of http://m/v1"], &of_loops[..]].concat()
    );
    assert_eq!(missing(Use::Loop(Some("second")))[..2], second);
    assert_eq!(
        missing(Use::Driver("claude")),
        [
            "agents.drivers.claude.argument 6 of driver claude",
            "agents.drivers.claude.argument 7 of driver claude",
            "ANTHROPIC_API_KEY of driver claude",
            "GH_PASSWD of driver claude",
            everywhere,
        ]
    );
    // What another run needs is left out, not half filled in.
    restarted.learn(["sesame-7", "http://u:sesame-11@proxy"].into_iter());
    let filled = restarted.fill(&recorded);
    assert_eq!(filled.models, settings().models[..1]);
    assert_eq!(
        (filled.drivers.len(), filled.tool_servers.len(), filled.commands),
        (0, 0, CommandPolicy::Off)
    );
    // Another key for the same address is not the same secret.
    let mut rotated = settings();
    rotated.models[0].api_key = Some(Secret::new("another"));
    let rotated = vault().record(&rotated);
    assert!(rotated.has_all(&restarted.missing(&recorded, Use::Driver("claude"))));
    assert_ne!(rotated.id(), recorded.id());
}

#[test]
fn settings_show_no_values() {
    let (settings, recorded) = (settings(), vault().record(&settings()));
    assert!(!format!("{settings:?} {recorded:?}").contains("sesame"));
}

proptest! {
    #[test]
    fn any_text_comes_back(texts in proptest::collection::vec((".{0,12}", "(\0|-|--key|http://a:b@)?.{0,12}"), 0..12)) {
        let vault = vault();
        let variables: Vec<(OsString, OsString)> =
            texts.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let map = || texts.iter().map(|(name, value)| (name.clone(), Secret::new(value))).collect();
        let mut driver = ProcessDriver::presets().remove(0);
        driver.command = texts.iter().map(|(_, value)| value.clone()).collect();
        driver.environment.clone_from(&variables);
        let models = texts.iter().enumerate().map(|(n, (url, key))| Endpoint {
            api_key: (!key.is_empty()).then(|| Secret::new(key)),
            ..Endpoint::new(n.to_string(), url, "m")
        });
        let stdio = Transport::Stdio { command: "x".into(), args: driver.command.clone(), env: map(), cwd: None };
        let http = Transport::Http { url: Secret::new("http://h/"), headers: map() };
        let servers = [stdio, http].map(|transport| ServerConfig { name: "s".into(), transport, per_agent: false });
        let settings = RunSettings {
            models: models.collect(),
            drivers: vec![driver],
            tool_servers: servers.into(),
            commands: CommandPolicy::Unconfined { environment: variables.clone() },
            environment: variables,
        };
        let recorded = vault.record(&settings);
        let read = RecordedSettings::parse(recorded.body().to_owned()).unwrap();
        prop_assert_eq!(Arc::new(vault.fill(&read)), Arc::new(settings));
    }
}

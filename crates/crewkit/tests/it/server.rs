//! The server of a home: one at a time, started in the background, gone when it should be.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crewkit_testkit::model::{Request, ScriptedModel, Turn};
use serde_json::{Value, json};

use crate::support::{Served, crewkit, output, record, wait_until};

/// Starts a background server as a client does, and returns what it reports.
pub(crate) fn start(command: &mut Command) -> Value {
    let (code, out, err) = output(command.args(["serve", "--background"]));
    assert_eq!(code, 0, "{out} {err}");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out:?} {err:?}"))
}

/// A background server, ended with the test.
pub(crate) struct Background {
    home: tempfile::TempDir,
}

impl Background {
    fn start() -> Self {
        Self::with(|_| ())
    }

    pub(crate) fn with(prepare: impl FnOnce(&Path)) -> Self {
        let home = tempfile::tempdir().unwrap();
        prepare(home.path());
        assert_eq!(start(&mut crewkit(home.path())), json!({"ready": true}));
        Self { home }
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(crate) fn pid(&self) -> u32 {
        u32::try_from(record(self.home()).unwrap()["pid"].as_u64().unwrap()).unwrap()
    }

    fn proc(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.pid().to_string()).join(name)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let Some(record) = record(self.home()) else { return };
        let pid = u32::try_from(record["pid"].as_u64().unwrap()).unwrap();
        if record["start_ticks"] == json!(crewkit::server::identity::start_ticks(pid)) {
            signal(pid, rustix::process::Signal::KILL);
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.home().join("run/server.log")).unwrap_or_default();
            let _ = writeln!(std::io::stderr(), "server.log:\n{log}");
        }
    }
}

pub(crate) fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    let _ = rustix::process::kill_process(pid, signal);
}

pub(crate) fn is_alive(pid: u32) -> bool {
    // A process that is killed has its locks until its last thread is gone; its first one can be a zombie before that.
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    let mut states =
        texts.filter_map(|text| text.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()));
    states.any(|state| !matches!(state, 'Z' | 'X'))
}

/// One request over the socket of the home.
pub(crate) fn ask(home: &Path, method: &str, path: &str, asker: Option<&str>, body: &Value) -> (u16, Value) {
    let socket = record(home).unwrap()["socket"].as_str().unwrap().to_owned();
    let mut stream = UnixStream::connect(socket).unwrap();
    let body = body.to_string();
    let asker = asker.map(|id| format!("crewkit-asker: {id}\r\n")).unwrap_or_default();
    // In one piece: a server that refuses may answer and close before it has read everything.
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n{asker}\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_default())
}

fn hello(home: &Path, settings: &Value, environment: &Value) -> String {
    let body = json!({"build": "0.0.0", "protocol": 1, "directory": "/", "settings": settings, "environment": environment});
    let (status, answer) = ask(home, "POST", "/api/hello", None, &body);
    assert_eq!(status, 200, "{answer}");
    answer["asker"].as_str().unwrap().to_owned()
}

#[test]
fn a_background_server_keeps_nothing_of_who_started_it() {
    let home = tempfile::tempdir().unwrap();
    // A descriptor that is inherited, a directory, a terminal's group, a mask and a secret that must not come along.
    let directory = tempfile::tempdir().unwrap();
    let leaked = std::fs::File::create(directory.path().join("leaked")).unwrap();
    rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "umask 000; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_crewkit")]);
    command.env("CREWKIT_HOME", home.path()).env("SECRET_TOKEN", "sesame").current_dir(directory.path());
    assert_eq!(start(&mut command), json!({"ready": true}));
    let server = Background { home };
    drop(leaked);
    assert_eq!(std::fs::read_link(server.proc("cwd")).unwrap(), Path::new("/"));
    let environment = std::fs::read(server.proc("environ")).unwrap();
    let names: Vec<_> = environment
        .split(|byte| *byte == 0)
        .filter(|entry| !entry.is_empty())
        .map(|entry| String::from_utf8_lossy(entry).split('=').next().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["HOME", "PATH"]);
    let open: Vec<PathBuf> = std::fs::read_dir(server.proc("fd"))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .collect();
    assert!(!open.iter().any(|path| path.starts_with(directory.path())), "{open:?}");
    for stream in ["fd/0", "fd/1", "fd/2"] {
        assert_eq!(std::fs::read_link(server.proc(stream)).unwrap(), Path::new("/dev/null"), "{stream}");
    }
    // Read from /proc: `getsid` cannot name a session whose leader is outside this process namespace.
    let parent_session_terminal = |stat: PathBuf| {
        let stat = std::fs::read_to_string(stat).unwrap();
        let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').map(str::to_owned).collect();
        [fields[1].clone(), fields[3].clone(), fields[4].clone()]
    };
    let [parent, session, terminal] = parent_session_terminal(server.proc("stat"));
    assert_ne!(parent, std::process::id().to_string(), "it is nobody's child");
    assert_ne!(session, parent_session_terminal("/proc/self/stat".into())[1]);
    assert_eq!(terminal, "0", "it has no terminal");
    let status = std::fs::read_to_string(server.proc("status")).unwrap();
    assert!(status.contains("Umask:\t0077"), "{status}");
    for file in ["run/server.json", "run/server.lock", "run/server.log", "run/server.sock"] {
        let mode = std::fs::metadata(server.home().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    assert_eq!(std::fs::metadata(server.home().join("run")).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn the_record_tells_who_the_server_is() {
    let server = Background::start();
    let record = record(server.home()).unwrap();
    let namespace =
        |name: &str| std::fs::read_link(server.proc(name)).unwrap().to_string_lossy().into_owned();
    assert_eq!(record["namespaces"], json!({"mnt": namespace("ns/mnt"), "pid": namespace("ns/pid")}));
    assert_eq!(record["socket"], json!(server.home().join("run/server.sock")));
    assert_eq!(record["kind"], "background");
    assert_eq!(record["http"], Value::Null);
    assert_eq!(record["protocol"], 1);
    assert!(record["build"].as_str().unwrap().starts_with(concat!(env!("CARGO_PKG_VERSION"), "+")));
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(record["boot_id"], boot.trim());
    let stat = std::fs::read_to_string(server.proc("stat")).unwrap();
    let started = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().to_owned();
    assert_eq!(record["start_ticks"].to_string(), started);
    let status = std::fs::read_to_string(server.proc("status")).unwrap();
    assert!(status.contains("Umask"));
}

#[test]
fn of_many_that_start_at_once_one_becomes_the_server() {
    let home = tempfile::tempdir().unwrap();
    let children: Vec<Child> = (0..6)
        .map(|_| {
            let mut command = crewkit(home.path());
            command.args(["serve", "--background"]).stdout(Stdio::piped()).stderr(Stdio::null());
            command.spawn().unwrap()
        })
        .collect();
    let reports: Vec<Value> = children
        .into_iter()
        .map(|child| serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap())
        .collect();
    let server = Background { home };
    let (ready, refused): (Vec<_>, Vec<_>) = reports.iter().partition(|report| report["ready"] == true);
    assert_eq!(ready.len(), 1, "{reports:?}");
    for report in refused {
        assert_eq!(report["error"], "E_HOME_IN_USE", "{report}");
    }
    assert!(is_alive(server.pid()));
}

#[test]
fn a_killed_server_is_followed_by_another_at_the_same_socket() {
    let server = Background::start();
    let killed = server.pid();
    signal(killed, rustix::process::Signal::KILL);
    wait_until("the end of the server", || !is_alive(killed));
    assert!(server.home().join("run/server.sock").exists(), "a stale socket is left");
    assert_eq!(start(&mut crewkit(server.home())), json!({"ready": true}));
    assert_ne!(server.pid(), killed);
    assert_eq!(ask(server.home(), "GET", "/api/health", None, &json!({})).0, 200);
}

#[test]
fn signals_end_the_server_and_leave_the_home_clean() {
    for (name, end) in [
        ("SIGTERM", rustix::process::Signal::TERM),
        ("SIGHUP", rustix::process::Signal::HUP),
        ("SIGINT", rustix::process::Signal::INT),
    ] {
        let server = Background::start();
        let pid = server.pid();
        signal(pid, end);
        wait_until(name, || !is_alive(pid));
        for file in ["run/server.json", "run/server.sock"] {
            assert!(!server.home().join(file).exists(), "{name}: {file}");
        }
    }
}

#[test]
fn a_server_whose_home_is_moved_or_given_away_leaves() {
    let server = Background::start();
    let pid = server.pid();
    std::fs::remove_file(server.home().join("run/server.lock")).unwrap();
    // The first one keeps the home until it has noticed.
    wait_until("the start of the next server", || start(&mut crewkit(server.home()))["ready"] == true);
    let next = server.pid();
    assert_ne!(next, pid);
    wait_until("the end of the first server", || !is_alive(pid));
    assert_eq!(server.pid(), next, "it does not take the record of the next one along");
    assert_eq!(ask(server.home(), "GET", "/api/health", None, &json!({})).0, 200);
    let elsewhere = server.home().with_extension("moved");
    std::fs::rename(server.home(), &elsewhere).unwrap();
    wait_until("the end of the second server", || !is_alive(next));
    std::fs::rename(&elsewhere, server.home()).unwrap();
}

#[test]
fn a_server_that_nobody_uses_leaves_and_one_with_a_client_stays() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("crewkit.toml"), "[server]\nidle_minutes = 1\n").unwrap();
    assert_eq!(start(crewkit(home.path()).env("CREWKIT_TEST_MINUTE_MS", "300")), json!({"ready": true}));
    let server = Background { home };
    let pid = server.pid();
    let connected = UnixStream::connect(server.home().join("run/server.sock")).unwrap();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        assert!(is_alive(pid), "a server with a client left");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(connected);
    wait_until("the end of the idle server", || !is_alive(pid));
    let log = std::fs::read_to_string(server.home().join("run/server.log")).unwrap();
    assert!(log.contains("server.idle_minutes"), "{log}");
}

#[test]
fn serve_takes_over_from_a_background_server_and_two_serves_do_not_share_a_home() {
    let server = Background::start();
    let background = server.pid();
    let foreground = Served::start(server.home(), &[]);
    wait_until("the end of the background server", || !is_alive(background));
    let now = record(server.home()).unwrap();
    assert_eq!(
        (now["kind"].as_str(), now["pid"].as_u64()),
        (Some("foreground"), Some(foreground.child.id().into()))
    );
    assert_eq!(now["http"], json!(foreground.base));
    let (code, _, err) = output(crewkit(server.home()).args(["serve", "--listen", "127.0.0.1:0"]));
    assert_eq!(code, 1);
    assert!(
        err.contains("E_HOME_IN_USE") && err.contains(&format!("pid {}", foreground.child.id())),
        "{err}"
    );
    assert!(err.contains(&foreground.base), "{err}");
    let report = start(&mut crewkit(server.home()));
    assert_eq!(report["error"], "E_HOME_IN_USE", "{report}");
}

#[test]
fn each_asker_has_its_own_settings_and_narrowing() {
    let server = Background::with(|home| {
        std::fs::write(home.join("crewkit.toml"), "[mcp]\nexclude_tools = [\"list_agents\"]\n").unwrap();
    });
    let home = server.home();
    let narrow = hello(home, &json!({"mcp.read_only": true}), &json!({}));
    let wide = hello(home, &json!({"mcp.exclude_tools": []}), &json!({}));
    let again = hello(home, &json!({"mcp.read_only": true}), &json!({}));
    assert_eq!(narrow, again, "equal askers are one");
    assert_ne!(narrow, wide);
    let run = |asker: Option<&str>, name: &str| {
        ask(home, "POST", &format!("/api/ops/{name}"), asker, &json!({"contract": "x"})).0
    };
    assert_eq!(run(Some(&narrow), "agent_start"), 404);
    assert_eq!(run(Some(&wide), "agent_start"), 200);
    assert_eq!(run(None, "agent_start"), 200);
    let tools = |asker: Option<&str>| ask(home, "POST", "/api/ops/list_agents", asker, &json!({})).0;
    assert_eq!(tools(Some(&wide)), 200);
    assert_eq!(tools(Some(&narrow)), 404, "the asker's settings lie over those of the file");
    assert_eq!(tools(None), 404);
    let (status, body) = ask(home, "POST", "/api/ops/agent_start", Some("nobody"), &json!({"contract": "x"}));
    assert_eq!((status, body["error"].as_str()), (409, Some("E_ASKER_UNKNOWN")));
}

#[test]
fn a_hello_with_what_cannot_be_used_is_refused() {
    let server = Background::start();
    let say = |body: &Value| ask(server.home(), "POST", "/api/hello", None, body);
    let base = json!({"build": "0.0.0", "protocol": 1, "directory": "/"});
    for (field, value, status, code) in [
        ("protocol", json!(99), 409, "E_PROTOCOL_DIFFERS"),
        ("directory", json!("here"), 400, "E_BODY_INVALID"),
        ("directory", json!(7), 400, "E_BODY_INVALID"),
        ("settings", json!({"server.auth": true}), 400, "E_SETTING_INVALID"),
        ("settings", json!({"limits.http_connections": 1}), 400, "E_SETTING_INVALID"),
        ("settings", json!({"llm.modle": "x"}), 400, "E_SETTING_INVALID"),
        ("settings", json!({"mcp.tools": ["plann"]}), 400, "E_ARGUMENT_INVALID"),
        ("environment", json!({"A": 1}), 400, "E_BODY_INVALID"),
    ] {
        let mut body = base.clone();
        body[field] = value;
        let (answered, answer) = say(&body);
        assert_eq!((answered, answer["error"].as_str()), (status, Some(code)), "{body} {answer}");
    }
    let mut secret = base;
    secret["settings"] = json!({"llm.api_key": ["sesame"]});
    assert!(!say(&secret).1.to_string().contains("sesame"));
}

#[tokio::test]
async fn a_hello_is_not_taken_over_tcp() {
    let home = tempfile::tempdir().unwrap();
    let served = Served::start(home.path(), &[]);
    let body = json!({"build": "0.0.0", "protocol": 1, "directory": "/"});
    let client = crewkit_agent::http_client().build().unwrap();
    let answer = client.post(format!("{}/api/hello", served.base)).json(&body).send().await.unwrap();
    assert_eq!(answer.status(), 403);
}

#[test]
fn a_client_that_waits_learns_why_the_server_did_not_start() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("crewkit.toml"), "[server]\nlisen = 1\n").unwrap();
    let report = start(&mut crewkit(home.path()));
    assert_eq!(report["error"], "E_SETTING_INVALID");
    assert!(report["message"].as_str().unwrap().contains("server.listen"), "{report}");
}

/// The pipe on which a client waits is closed when the server is there, so that nobody waits for its end.
#[test]
fn the_report_ends_when_the_server_is_ready() {
    let home = tempfile::tempdir().unwrap();
    let mut command = crewkit(home.path());
    command.args(["serve", "--background"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), json!({"ready": true}).to_string());
    let server = Background { home };
    assert!(lines.next().is_none());
    child.wait().unwrap();
    assert!(is_alive(server.pid()));
}

/// Starts a run and waits for its end; returns its transcript as text.
fn run_to_end(home: &Path, asker: &str, arguments: &Value) -> String {
    let op = |name: &str, body: &Value| {
        let (status, answer) = ask(home, "POST", &format!("/api/ops/{name}"), Some(asker), body);
        assert_eq!(status, 200, "{name}: {answer}");
        answer
    };
    let id = op("agent_start", arguments)["agent_id"].clone();
    let waited = op("agent_wait", &json!({"agent_ids": [id], "timeout_seconds": 60}));
    assert_eq!(waited["done"], true, "{waited}");
    op("agent_output", &json!({"agent_id": id})).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_askers_use_their_own_models_keys_and_path_at_once() {
    let model = |name: &'static str| ScriptedModel::start(move |_: &Request| Turn::complete(name));
    let (first, second) = (model("said by the first").await, model("said by the second").await);
    let programs = tempfile::tempdir().unwrap();
    let server = Background::with(|home| {
        let settings = "[agents.drivers.teller]\ncommand = [\"teller\"]\nenv_from = [\"TELLER_KEY\"]\n";
        std::fs::write(home.join("crewkit.toml"), settings).unwrap();
    });
    let asker = |name: &str, model: &ScriptedModel| {
        let directory = programs.path().join(name);
        std::fs::create_dir(&directory).unwrap();
        let script = format!("#!/bin/sh\necho \"{name} has $TELLER_KEY and not $UNLISTED_KEY.\"\n");
        std::fs::write(directory.join("teller"), script).unwrap();
        std::fs::set_permissions(directory.join("teller"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let settings = json!({
            "llm.endpoint": model.url(), "llm.model": name, "llm.api_key": format!("key-of-{name}-sesame"),
        });
        let path = format!("{}:/usr/bin:/bin", directory.display());
        let key = format!("token-of-{name}-sesame");
        let environment = json!({"PATH": path, "TELLER_KEY": key, "UNLISTED_KEY": "unlisted"});
        hello(server.home(), &settings, &environment)
    };
    let askers = [
        ("one", asker("one", &first), "said by the first"),
        ("two", asker("two", &second), "said by the second"),
    ];
    std::thread::scope(|scope| {
        for (name, asker, said) in &askers {
            let home = server.home();
            scope.spawn(move || {
                for _ in 0..3 {
                    let told = run_to_end(home, asker, &json!({"contract": "Tell"}));
                    assert!(told.contains(said), "{name}: {told}");
                    let told = run_to_end(home, asker, &json!({"contract": "Tell", "driver": "teller"}));
                    let expected = format!("{name} has token-of-{name}-sesame and not .");
                    assert!(told.contains(&expected), "{name}: {told}");
                }
            });
        }
    });
    for (model, name) in [(&first, "one"), (&second, "two")] {
        assert_eq!(model.requests(), 3);
        assert!(model.bodies().iter().all(|body| body["model"] == name), "{:?}", model.bodies());
    }
    let keys = output(
        Command::new("grep")
            .args(["--recursive", "--text", "--files-with-matches", "key-of-"])
            .arg(server.home()),
    );
    assert_eq!(keys.1, "", "a key is on disk");
}

#[test]
fn a_server_that_is_stopped_ends_its_work_with_it() {
    let mark = format!("4{}", std::process::id());
    let server = Background::with(|home| {
        let settings = format!("[agents.drivers.napper]\ncommand = [\"sleep\", \"{mark}\"]\n");
        std::fs::write(home.join("crewkit.toml"), settings).unwrap();
    });
    let naps = || {
        let is_nap = |pid: u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line == format!("sleep\0{mark}\0").as_bytes() && is_alive(pid)
        };
        let listed = std::fs::read_dir("/proc").unwrap().flatten();
        listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|pid| is_nap(*pid)).count()
    };
    let (status, answer) = ask(
        server.home(),
        "POST",
        "/api/ops/agent_start",
        None,
        &json!({"contract": "x", "driver": "napper"}),
    );
    assert_eq!(status, 200, "{answer}");
    wait_until("the driver", || naps() == 1);
    let pid = server.pid();
    let (status, stopping) = ask(server.home(), "POST", "/api/server/stop", None, &json!({}));
    assert_eq!(status, 200, "{stopping}");
    wait_until("the end of the server", || !is_alive(pid));
    wait_until("the end of the driver", || naps() == 0);
    assert!(record(server.home()).is_none());
    // The end is recorded as one that was asked for, so that the next server does not go on with the run.
    assert_eq!(start(&mut crewkit(server.home())), json!({"ready": true}));
    let ids = json!({"agent_ids": [answer["agent_id"]]});
    let (_, status) = ask(server.home(), "POST", "/api/ops/agent_status", None, &ids);
    let ended = &status["result"][0];
    assert_eq!(
        (ended["status"].as_str(), ended["reason"].as_str()),
        (Some("stopped"), Some("server_stopped")),
        "{status}"
    );
}

#[test]
fn helpers_start_from_the_program_that_runs_although_its_file_is_gone() {
    let root = tempfile::tempdir().unwrap();
    let copy = root.path().join("crewkit");
    std::fs::copy(env!("CARGO_BIN_EXE_crewkit"), &copy).unwrap();
    let home = tempfile::tempdir().unwrap();
    std::fs::write(
        home.path().join("crewkit.toml"),
        "[agents.drivers.shell]\ncommand = [\"echo\", \"{contract}\"]\n",
    )
    .unwrap();
    let mut command = Command::new(&copy);
    command.env_clear().env("HOME", home.path()).env("CREWKIT_HOME", home.path());
    assert_eq!(start(&mut command), json!({"ready": true}));
    let server = Background { home };
    std::fs::write(root.path().join("crewkit.new"), "#!/bin/sh\nexit 1\n").unwrap();
    std::fs::rename(root.path().join("crewkit.new"), &copy).unwrap();
    let asker = hello(server.home(), &json!({}), &json!({"PATH": "/usr/bin:/bin"}));
    let told = run_to_end(server.home(), &asker, &json!({"contract": "heard", "driver": "shell"}));
    assert!(told.contains("heard"), "{told}");
}

/// A command that needs a server, run in `wrapper` if it is not empty.
fn client(home: &Path, wrapper: &[&str]) -> Command {
    let mut command = match wrapper {
        [] => crewkit(home),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(env!("CARGO_BIN_EXE_crewkit"));
            command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
            command.env("HOME", home).env("CREWKIT_HOME", home);
            command
        }
    };
    command.args(["runs", "list"]);
    command
}

/// Runs a command that must not start a server, and returns what it says.
fn refused(home: &Path, mut command: Command) -> String {
    let (code, out, err) = output(&mut command);
    assert_eq!(code, 1, "{out} {err}");
    assert!(err.contains("--in-process"), "{err}");
    assert!(record(home).is_none(), "a server was started: {err}");
    err
}

#[test]
fn of_many_clients_at_once_one_starts_the_server_and_all_use_it() {
    let home = tempfile::tempdir().unwrap();
    let children: Vec<Child> =
        (0..6).map(|_| client(home.path(), &[]).stdout(Stdio::piped()).spawn().unwrap()).collect();
    for child in children {
        let ended = child.wait_with_output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
    let server = Background { home };
    let log = std::fs::read_to_string(server.home().join("run/server.log")).unwrap();
    assert_eq!(log.matches("owns its home").count(), 1, "{log}");
    let (code, out, err) = output(crewkit(server.home()).args(["stop", "--yes"]));
    assert_eq!(code, 0, "{out} {err}");
    assert!(record(server.home()).is_none());
}

#[test]
fn no_server_is_started_from_inside_a_sandbox_an_agent_or_another_user() {
    let home = tempfile::tempdir().unwrap();
    for mark in ["CREWKIT_RUN", "CREWKIT_TASK"] {
        let mut command = client(home.path(), &[]);
        command.env(mark, "x");
        assert!(refused(home.path(), command).contains(mark));
    }
    let sandboxed = client(home.path(), &["setpriv", "--no-new-privs"]);
    assert!(refused(home.path(), sandboxed).contains("no_new_privs"));
    if crate::doors::is_root("a home of another user") {
        std::os::unix::fs::chown(home.path(), Some(65534), None).unwrap();
        assert!(refused(home.path(), client(home.path(), &[])).contains("belongs to user 65534"));
    }
}

#[test]
fn no_server_is_started_in_a_home_that_is_read_only_or_full() {
    if !crate::doors::is_root("a home that is read-only or full") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    for (mount, expected) in [
        ("mount -t tmpfs -o size=1m t \"$HOME\" && mount -o remount,ro \"$HOME\"", "is read-only"),
        ("mount -t tmpfs -o size=16k t \"$HOME\"", "is full"),
    ] {
        let script = format!("{mount} && exec \"$0\" \"$@\"");
        let message = refused(home.path(), client(home.path(), &["unshare", "--mount", "sh", "-c", &script]));
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_server_in_another_namespace_is_named_and_not_used() {
    if !crate::doors::is_root("namespaces of its own") {
        return;
    }
    let server = Background::start();
    let pid = server.pid();
    for namespace in [&["unshare", "--mount"][..], &["unshare", "--pid", "--fork"]] {
        let (code, _, err) = output(&mut client(server.home(), namespace));
        assert_eq!(code, 1, "{namespace:?}");
        assert!(err.contains("E_HOME_IN_USE") && err.contains(&format!("pid {pid}")), "{err}");
        assert!(err.contains("namespace") && err.contains("--in-process"), "{err}");
    }
    assert_eq!(server.pid(), pid);
}

#[test]
fn a_newer_build_takes_over_and_an_older_one_works_with_what_is_there() {
    let server = Background::start();
    let first = server.pid();
    let run = |build: &str| {
        let (code, out, err) = output(client(server.home(), &[]).env("CREWKIT_TEST_BUILD", build));
        assert_eq!(code, 0, "{build}: {out} {err}");
        server.pid()
    };
    assert_eq!(run("0.0.1+1"), first);
    let second = run("99.0.0+1");
    assert_ne!(second, first);
    wait_until("the end of the first server", || !is_alive(first));
    assert_eq!(record(server.home()).unwrap()["build"], "99.0.0+1");
    assert_eq!(run("99.0.0+1"), second);
    assert_eq!(run("98.0.0+9"), second);
    let mut other = client(server.home(), &[]);
    let (code, _, err) = output(other.env("CREWKIT_TEST_PROTOCOL", "7"));
    assert_eq!(code, 1);
    assert!(err.contains("E_PROTOCOL_DIFFERS") && err.contains(&format!("pid {second}")), "{err}");
    // Whatever protocol it speaks, it is shown and can be stopped.
    let shown = output(crewkit(server.home()).env("CREWKIT_TEST_PROTOCOL", "7").arg("status"));
    assert!(shown.0 == 0 && shown.1.contains(&format!("pid {second}")), "{shown:?}");
    let stopped = output(crewkit(server.home()).env("CREWKIT_TEST_PROTOCOL", "7").args(["stop", "--yes"]));
    assert!(stopped.0 == 0 && stopped.1.contains(&format!("pid {second}")), "{stopped:?}");
    assert!(record(server.home()).is_none() && !is_alive(second));
}

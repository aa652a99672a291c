//! Who gets in through the doors of a running server, tried from outside: other users, other addresses, the home's socket,
//! and processes that agents started.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use crewkit_testkit::model::{Request, ScriptedModel, Turn};
use serde_json::{Value, json};

use crate::support::{Served, crewkit, output, text};

/// An address of the machine that is no loopback address, inside a network namespace of the test.
const LAN: &str = "198.51.100.7";

/// Says what was not tried, and why.
fn not_tried(what: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "NOT TRIED: {what}: {why}");
}

/// Whether the programs are there that a test looks at the server with.
fn has(what: &str, programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &&str| std::env::split_paths(&path).any(|directory| directory.join(name).is_file());
    match programs.iter().find(|name| !is_there(name)) {
        None => true,
        Some(missing) => {
            not_tried(what, &format!("`{missing}` is not installed"));
            false
        }
    }
}

/// Whether this test can become another user, in network namespaces of its own.
pub(crate) fn is_root(what: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        not_tried(what, "needs root to become another user");
    }
    is_root && has(what, &["bash", "curl", "ip", "nsenter", "setpriv", "unshare"])
}

/// A server in a network namespace where the machine also has the address [`LAN`].
fn served_with_lan(home: &Path, arguments: &str) -> Served {
    let binary = env!("CARGO_BIN_EXE_crewkit");
    let script =
        format!("ip link set lo up && ip addr add {LAN}/32 dev lo && exec {binary} serve {arguments}");
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", &script]).env("CREWKIT_HOME", home).current_dir(home);
    Served::spawn(command)
}

/// A command in the network namespace of `served`, as another user or as this one.
fn beside(served: &Served, uid: u32, program: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", served.child.id()));
    let uid = uid.to_string();
    command.args(["setpriv", "--reuid", &uid, "--regid", &uid, "--clear-groups", program]).current_dir("/");
    command
}

const NOBODY: u32 = 65534;

/// Asks with curl and returns status and body.
fn ask(mut curl: Command, arguments: &[&str]) -> (u16, String) {
    let (code, out, err) = output(
        curl.args(["--silent", "--show-error", "--max-time", "20", "--write-out", "\n%{http_code}"])
            .args(arguments),
    );
    let (body, status) = out.rsplit_once('\n').unwrap_or_else(|| panic!("{code} {out} {err}"));
    (status.parse().unwrap(), body.to_owned())
}

fn curl() -> Command {
    Command::new("curl")
}

#[test]
fn another_user_stays_out_from_whatever_address_he_comes() {
    if !is_root("another user's process") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let served = served_with_lan(home.path(), "--listen 127.0.0.1:0");
    let (metrics, health) = (format!("{}/metrics", served.base), format!("{}/api/health", served.base));
    for source in ["127.0.0.1", LAN] {
        let stranger = || beside(&served, NOBODY, "curl");
        let (status, body) = ask(stranger(), &["--ipv4", "--interface", source, &metrics]);
        assert!(status == 403 && body.contains("E_PEER_REFUSED"), "{source}: {status} {body}");
        let start = ["-H", "content-type: application/json", "-d", r#"{"contract": "x"}"#];
        let url = format!("{}/api/ops/agent_start", served.base);
        let (status, body) =
            ask(stranger(), &[&["--ipv4", "--interface", source, &url], &start[..]].concat());
        assert_eq!(status, 403, "{source}: {body}");
        let (status, body) = ask(stranger(), &["--ipv4", "--interface", source, &health]);
        assert_eq!((status, body.as_str()), (200, r#"{"status":"ok"}"#), "{source}");
        let (status, body) = ask(beside(&served, 0, "curl"), &["--ipv4", "--interface", source, &metrics]);
        assert_eq!(status, 200, "the owner from {source}: {body}");
    }
}

#[test]
fn the_check_of_users_can_be_turned_off() {
    if !is_root("another user's process") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("crewkit.toml"), "[server]\ncheck_peer = false\n").unwrap();
    let served = Served::start(home.path(), &[]);
    let (status, body) = ask(beside(&served, NOBODY, "curl"), &[&format!("{}/metrics", served.base)]);
    assert_eq!(status, 200, "{body}");
}

/// The kernel lists a socket whose process is gone under user 0, which this server runs as.
#[test]
fn a_request_whose_sender_is_gone_is_not_carried_out() {
    if !is_root("requests of another user's dead process") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let served = Served::start(home.path(), &[]);
    let port = served.base.rsplit(':').next().unwrap();
    let body = r#"{"contract":"ghost"}"#;
    let script = format!(
        "for i in 1 2 3; do exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'POST /api/ops/agent_start HTTP/1.1\\r\\nHost: localhost\\r\\n\
         Content-Type: application/json\\r\\nContent-Length: {}\\r\\n\\r\\n{body}' >&3; timeout 0.2 cat /dev/zero >&3; exec 3>&-; done; true",
        body.len()
    );
    // The server sees the connections only when their sender is gone, and more is on the way than it takes in at once, so that
    // their end does not show.
    let process = rustix::process::Pid::from_child(&served.child);
    rustix::process::kill_process(process, rustix::process::Signal::STOP).unwrap();
    let (code, _, err) = output(beside(&served, NOBODY, "bash").args(["-c", &script]));
    rustix::process::kill_process(process, rustix::process::Signal::CONT).unwrap();
    assert_eq!(code, 0, "{err}");
    let refused = "crewkit_http_requests_total{door=\"rest\",status=\"403\"} 3";
    let metrics = || ask(curl(), &[&format!("{}/metrics", served.base)]).1;
    let deadline = std::time::Instant::now() + std::time::Duration::from_mins(1);
    while !metrics().contains(refused) {
        assert!(std::time::Instant::now() < deadline, "not all were refused: {}", metrics());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let (_, list, _) = output(crewkit(home.path()).args(["runs", "list", "--json"]));
    assert_eq!(serde_json::from_str::<Value>(&list).unwrap(), json!({"runs": [], "total_count": 0}));
}

#[test]
fn strangers_cannot_use_up_the_connections_of_the_owner() {
    if !is_root("connections of another user") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let limits = "[limits]\nhttp_connections = 4\nhttp_unidentified_connections = 4\n";
    std::fs::write(home.path().join("crewkit.toml"), limits).unwrap();
    let served = Served::start(home.path(), &[]);
    let port = served.base.rsplit(':').next().unwrap();
    let script =
        format!("for i in $(seq 60); do exec {{fd}}<>/dev/tcp/127.0.0.1/{port}; done; echo ready; cat");
    let mut command = beside(&served, NOBODY, "bash");
    let mut strangers =
        command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    strangers.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    for _ in 0..10 {
        let (status, body) = ask(curl(), &[&format!("{}/metrics", served.base)]);
        assert_eq!(status, 200, "{body}");
    }
    drop(strangers.stdin.take());
    strangers.wait().unwrap();
}

#[test]
fn the_address_that_is_printed_answers_and_so_does_that_of_the_machine() {
    if !is_root("a server on all addresses") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let served = served_with_lan(home.path(), "--listen 0.0.0.0:0 --auth");
    let token = std::fs::read_to_string(home.path().join("token")).unwrap();
    let header = format!("Authorization: Bearer {}", token.trim());
    let port = served.base.rsplit(':').next().unwrap();
    for (base, token, expected) in [
        (served.base.clone(), true, 200),
        (format!("http://{LAN}:{port}"), true, 200),
        (served.base.clone(), false, 401),
        (format!("http://{LAN}:{port}"), false, 401),
    ] {
        let headers: &[&str] = if token { &["-H", &header] } else { &[] };
        let url = format!("{base}/metrics");
        let (status, body) = ask(beside(&served, 0, "curl"), &[&["--ipv4", &url], headers].concat());
        assert_eq!(status, expected, "{base} {token}: {body}");
    }
    let evil = ["-H", "Host: rebound.example", &format!("http://{LAN}:{port}/healthz")];
    assert_eq!(ask(beside(&served, 0, "curl"), &evil).0, 403);
}

#[test]
fn health_tells_strangers_nothing_and_the_owner_no_secret() {
    if !has("health", &["curl"]) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let settings = "[llm]\nendpoint = \"http://user:canary-1@127.0.0.1:9/v1/chat/completions?key=canary-2\"\nmodel = \"m\"\n";
    std::fs::write(home.path().join("crewkit.toml"), settings).unwrap();
    let served = Served::start(home.path(), &["--auth"]);
    let health = format!("{}/api/health", served.base);
    assert_eq!(ask(curl(), &[&health]), (200, r#"{"status":"ok"}"#.to_owned()));
    let token = std::fs::read_to_string(home.path().join("token")).unwrap();
    let (_, body) = ask(curl(), &["-H", &format!("Authorization: Bearer {}", token.trim()), &health]);
    let told: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&told["status"], &told["model"]), (&json!("ok"), &json!("m")), "{body}");
    assert_eq!(told["endpoint"], "http://********@127.0.0.1:9/v1/chat/completions?key=********");
    for arguments in [&["config", "show"][..], &["config", "show", "--json"]] {
        let (_, shown, _) = output(crewkit(home.path()).args(arguments));
        assert!(shown.contains("/v1/chat/completions") && !shown.contains("canary"), "{shown}");
    }
    std::fs::write(home.path().join("crewkit.toml"), "[llm]\napi_key = \"canary-3\nmodel = \"m\"\n").unwrap();
    let (code, _, err) = output(crewkit(home.path()).args(["config", "show"]));
    assert!(code == 1 && err.contains("line 2") && !err.contains("canary"), "{err}");
}

#[test]
fn commands_use_the_socket_of_their_home() {
    let root = tempfile::tempdir().unwrap();
    // Longer than the system takes for the path of a socket.
    let long = root.path().join("h".repeat(120)).join("home");
    for home in [root.path().join("home"), long] {
        std::fs::create_dir_all(&home).unwrap();
        let served = Served::start(&home, &["--auth"]);
        let mode = |name: &str| std::fs::metadata(home.join("run").join(name)).unwrap().permissions().mode();
        assert_eq!((mode("") & 0o777, mode("server.sock") & 0o777), (0o700, 0o600));
        // Nobody sends this token over TCP by itself; without it the socket is the only way.
        std::fs::remove_file(home.join("token")).unwrap();
        let (code, out, err) = output(crewkit(&home).args(["run", "tidy up", "--json"]));
        assert!(code == 0 && out.contains("completed"), "{out} {err}");
        assert_eq!(served.terminate(), Some(0));
        assert!(!home.join("run/server.sock").exists() && !home.join("run/server.json").exists());
    }
}

#[test]
fn a_socket_left_by_a_dead_server_misleads_nobody() {
    let home = tempfile::tempdir().unwrap();
    let fleet = || output(crewkit(home.path()).args(["fleet", "list"]));
    let served = Served::start(home.path(), &[]);
    assert_eq!(fleet().0, 0);
    drop(served);
    assert!(home.path().join("run/server.sock").exists(), "a killed server leaves its socket");
    let (code, _, err) = fleet();
    assert_eq!(code, 0, "the command starts another server: {err}");
    let _again = Served::start(home.path(), &[]);
    let (code, _, err) = fleet();
    assert_eq!(code, 0, "{err}");
}

#[test]
fn no_token_goes_to_a_server_that_nobody_named() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("token"), "canary-token-0123456789").unwrap();
    std::fs::set_permissions(home.path().join("token"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let thief = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = thief.local_addr().unwrap();
    // Where earlier versions wrote down the address of a server, which may be another program's by now.
    std::fs::create_dir(home.path().join("state")).unwrap();
    std::fs::write(home.path().join("state/server"), format!("http://{address}\n")).unwrap();
    thief.set_nonblocking(true).unwrap();
    let usual = TcpListener::bind("127.0.0.1:8101").inspect(|usual| usual.set_nonblocking(true).unwrap());
    for arguments in [&["fleet", "list"][..], &["runs", "list"]] {
        output(crewkit(home.path()).args(arguments));
        assert!(thief.accept().is_err(), "{arguments:?} connected to an address it found");
        match &usual {
            Ok(usual) => assert!(usual.accept().is_err(), "{arguments:?} connected to the usual port"),
            Err(_) => not_tried("the usual port", "it is taken"),
        }
    }
    // The user's own word is enough.
    thief.set_nonblocking(false).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = thief.accept().unwrap();
        let mut asked = [0; 4096];
        let length = stream.read(&mut asked).unwrap();
        text(&asked[..length])
    });
    output(crewkit(home.path()).args(["runs", "list"]).env("CREWKIT_SERVER", format!("http://{address}")));
    assert!(server.join().unwrap().to_ascii_lowercase().contains("authorization: bearer canary-token"));
}

#[test]
fn another_user_at_the_socket_is_refused() {
    if !is_root("another user at the socket") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let served = Served::start(home.path(), &[]);
    let socket = home.path().join("run/server.sock");
    let request = ["--unix-socket", socket.to_str().unwrap(), "http://localhost/metrics"];
    assert_eq!(ask(curl(), &request).0, 200);
    // Even when somebody opens the way to it.
    for (path, mode) in
        [(home.path().to_owned(), 0o755), (home.path().join("run"), 0o755), (socket.clone(), 0o666)]
    {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let (status, body) = ask(beside(&served, NOBODY, "curl"), &request);
    assert!(status == 403 && body.contains("E_PEER_REFUSED"), "{status} {body}");
}

/// A driver that asks the server for something in many ways and writes down what it hears.
const CURIOUS: &str = r#"
ask() { curl --silent --max-time 20 --output "$1.body" --write-out '%{http_code}' "${@:2}" > "$1.status"; }
json='content-type: application/json'
start='{"contract": "escape"}'
token="Authorization: Bearer $CREWKIT_AGENT_TOKEN"
sock="--unix-socket $CREWKIT_SERVER_SOCKET"
ask tcp "$BASE/metrics"
ask tcp_start -H "$json" -d "$start" "$BASE/api/ops/agent_start"
ask socket $sock http://localhost/metrics
ask socket_start $sock -H "$json" -d "$start" http://localhost/api/ops/agent_start
env -i PATH="$PATH" setsid --wait curl -s --max-time 20 -o daemon.body -w '%{http_code}' "$BASE/metrics" > daemon.status
env -i PATH="$PATH" setsid --wait curl -s --max-time 20 -o nested.body -w '%{http_code}' $sock http://localhost/metrics > nested.status
ask health "$BASE/api/health"
ask token_metrics -H "$token" "$BASE/metrics"
ask token_list -H "$token" "$BASE/api/agents"
ask token_start -H "$token" -H "$json" -d "$start" "$BASE/api/ops/agent_start"
ask token_stop -H "$token" -H "$json" -d "{\"agent_id\": \"$CREWKIT_AGENT_ID\"}" "$BASE/api/ops/agent_stop"
ask token_other -H "$token" -H "$json" -d '{"agent_id": "agent-other", "summary": "x"}' "$BASE/api/ops/agent_complete"
ask token_tools -H "$token" -H "$json" -H 'accept: application/json, text/event-stream' \
    -d '{"jsonrpc":"2.0","id":1,"method":"tools/list"}' "$BASE/mcp"
printf %s "$CREWKIT_AGENT_TOKEN" > token
# The last words of this process: completing ends it.
ask complete -H "$token" -H "$json" $sock -d '{"summary": "I am done"}' http://localhost/api/ops/agent_complete
cat > /dev/null
"#;

#[tokio::test]
async fn what_an_agent_started_is_that_agent() {
    if !has("an agent that asks the server", &["bash", "curl", "setsid"]) {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let (home, work) = (root.path().join("home"), root.path().join("work"));
    std::fs::create_dir(&home).unwrap();
    std::fs::create_dir(&work).unwrap();
    std::fs::write(work.join("curious.sh"), CURIOUS).unwrap();
    let settings = "[agents.drivers.curious]\ncommand = [\"bash\", \"curious.sh\"]\nstdin = \"contract\"\n";
    std::fs::write(home.join("crewkit.toml"), settings).unwrap();
    let served = Served::start(&home, &["--stateless"]);
    std::fs::write(work.join("curious.sh"), format!("BASE={}\n{CURIOUS}", served.base)).unwrap();
    let directory = work.to_str().unwrap();
    let start = ["run", "go", "--driver", "curious", "--dir", directory, "--json"];
    let (code, out, err) = output(crewkit(&home).args(start));
    let told = |name: &str| {
        let read =
            |kind: &str| std::fs::read_to_string(work.join(format!("{name}.{kind}"))).unwrap_or_default();
        (read("status"), read("body"))
    };
    for (name, status, word) in [
        ("tcp", "403", "E_AGENT_REFUSED"),
        ("tcp_start", "403", "E_AGENT_REFUSED"),
        ("socket", "403", "E_AGENT_REFUSED"),
        ("socket_start", "403", "E_AGENT_REFUSED"),
        ("daemon", "403", "E_AGENT_REFUSED"),
        ("nested", "403", "E_AGENT_REFUSED"),
        ("token_metrics", "403", "E_AGENT_REFUSED"),
        ("token_list", "403", "E_AGENT_REFUSED"),
        ("token_start", "403", "E_AGENT_REFUSED"),
        ("token_stop", "403", "E_AGENT_REFUSED"),
        ("token_other", "403", "E_AGENT_REFUSED"),
        ("token_tools", "200", "agent_complete"),
    ] {
        let (heard, body) = told(name);
        assert!(heard == status && body.contains(word), "{name}: {heard} {body}\n{out} {err}");
    }
    assert_eq!(told("health").1, r#"{"status":"ok"}"#);
    assert!(!told("token_tools").1.contains("\"name\":\"agent_start\""), "{}", told("token_tools").1);
    assert!(code == 0 && out.contains("I am done"), "{out} {err}");
    // The token is dead with its attempt, and nowhere in the home.
    let token = std::fs::read_to_string(work.join("token")).unwrap();
    assert_eq!(token.len(), 64);
    let header = format!("Authorization: Bearer {token}");
    let complete = ["-H", &header, "-H", "content-type: application/json", "-d", r#"{"summary": "again"}"#];
    let url = format!("{}/api/ops/agent_complete", served.base);
    let (status, body) = ask(curl(), &[&complete[..], &[&url]].concat());
    assert_eq!(
        status, 400,
        "a dead token makes nobody an attempt, and the owner has to name an agent: {body}"
    );
    let found = output(Command::new("grep").args(["--recursive", "--files-with-matches", &token]).arg(&home));
    assert_eq!(found.1, "", "the token is on disk");
    let (_, list, _) = output(crewkit(&home).args(["runs", "list", "--json"]));
    let agents = serde_json::from_str::<Value>(&list).unwrap()["runs"].as_array().unwrap().len();
    assert_eq!(agents, 1, "nothing was started: {list}");
}

#[tokio::test]
async fn narrowing_holds_at_every_door() {
    if !has("narrowing", &["curl"]) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let (status, stop) = {
        let served = Served::start(home.path(), &["--exclude-tools", "agent_stop"]);
        let (_, out) = ask(curl(), &["-X", "POST", &format!("{}/api/agents", served.base)]);
        let id = serde_json::from_str::<Value>(&out).unwrap()["id"].as_str().unwrap().to_owned();
        let url = |path: &str| format!("{}/api/agents/{id}{path}", served.base);
        let stop = ask(curl(), &["-X", "POST", &url("/stop")]).0;
        assert_eq!(ask(curl(), &["-X", "DELETE", &url("")]).0, 404, "removing ends it");
        assert_eq!(ask(curl(), &["-X", "POST", &format!("{}/api/agents/prune", served.base)]).0, 404);
        let socket = home.path().join("run/server.sock");
        let through = ["--unix-socket", socket.to_str().unwrap(), "-X", "POST"];
        let over_socket = format!("http://localhost/api/agents/{id}/stop");
        assert_eq!(ask(curl(), &[&through[..], &[&over_socket]].concat()).0, 404);
        (ask(curl(), &[&url("")]).0, stop)
    };
    assert_eq!((status, stop), (200, 404));
    let served = Served::start(home.path(), &["--read-only"]);
    for (method, path) in [("POST", "/api/agents"), ("POST", "/api/agents/prune"), ("GET", "/ws/talk")] {
        let mut command = curl();
        for header in ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"] {
            command.args(["-H", header]);
        }
        command.args(["-H", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]);
        let (status, body) = ask(command, &["-X", method, &format!("{}{path}", served.base)]);
        assert!(matches!(status, 404 | 405), "{method} {path}: {status} {body}");
    }
    assert_eq!(ask(curl(), &[&format!("{}/api/agents", served.base)]).0, 200);
}

#[tokio::test]
async fn what_an_agent_says_gives_no_orders_to_a_terminal() {
    const ORDERS: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31mred\u{202e}";
    let home = tempfile::tempdir().unwrap();
    let model = ScriptedModel::start(|request: &Request| match request.turn {
        0 => Turn::call("run_command", &json!({"command": format!("printf '{ORDERS}'")})),
        _ => Turn::deliver(&format!("done {ORDERS}"), &format!("payload {ORDERS}")),
    })
    .await;
    let settings = format!("[llm]\nendpoint = \"{}\"\nmodel = \"m\"\n", model.url());
    std::fs::write(home.path().join("crewkit.toml"), settings).unwrap();
    let _served = Served::start(home.path(), &[]);
    let directory = home.path().to_str().unwrap();
    let run = async |arguments: Vec<String>| {
        let mut command = crewkit(home.path());
        command.args(arguments);
        tokio::task::spawn_blocking(move || output(&mut command)).await.unwrap()
    };
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let (_, started, _) =
        run([words("agent start"), vec![format!("say {ORDERS}")], words(&format!("--dir {directory}"))]
            .concat())
        .await;
    let id = started.trim().to_owned();
    for line in
        ["wait ID", "status ID", "status ID --json", "output ID", "output ID --json", "list", "list --json"]
    {
        let line = format!("agent {}", line.replace("ID", &id));
        let (_, out, err) = run(words(&line)).await;
        let orders =
            |text: &str| text.chars().any(|c| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}');
        assert!(!out.is_empty() && !orders(&out) && !orders(&err), "{line}: {out:?} {err:?}");
    }
    let (_, payload, _) = run(words(&format!("agent payload {id}"))).await;
    assert_eq!(payload, format!("payload {ORDERS}"), "a file or a program gets what the agent made");
}

#[test]
fn pack_prints_no_control_characters_of_others() {
    let home = tempfile::tempdir().unwrap();
    let repo = "/no/such/\u{1b}[2J\u{9b}1m/repo";
    let (_, out, err) = output(crewkit(home.path()).args(["pack", "--repo", repo, "plan"]));
    assert!(format!("{out}{err}").contains("\\u001b[2J"), "{out:?} {err:?}");
    assert!(!format!("{out}{err}").contains(['\u{1b}', '\u{9b}']), "{out:?} {err:?}");
}

/// Bytes over the home's socket are bounded like all others.
#[test]
fn a_silent_client_of_the_socket_is_let_go() {
    let home = tempfile::tempdir().unwrap();
    let limits = "[limits]\nhttp_idle_seconds = 1\nhttp_identify_seconds = 1\n";
    std::fs::write(home.path().join("crewkit.toml"), limits).unwrap();
    let _served = Served::start(home.path(), &[]);
    for bytes in [&b""[..], b"PRI * HTTP/2.0\r\n", b"GET /healthz HTTP/1.1\r\nHost: loc"] {
        let mut silent = UnixStream::connect(home.path().join("run/server.sock")).unwrap();
        silent.write_all(bytes).unwrap();
        let mut rest = Vec::new();
        // Returns when the server closes; a server that waits for ever fails by the time of the whole run.
        let _ = silent.read_to_end(&mut rest);
    }
}

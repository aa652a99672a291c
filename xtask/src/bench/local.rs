//! The fleet on this machine: two hundred agents on a command line that waits, a server that is killed, and kits.
//!
//! `cargo xtask bench local [--agents N] [--rounds N]`. Times stand beside what bare git takes for the same worktrees in the same
//! run; the rest is counted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::process::{self, Running};

const AGENTS: usize = 200;
const KIT_FILES: usize = 50;
const KILLS: usize = 10;
/// Agents deleted at a time.
const DELETES: usize = 32;

/// Double-forks, ignores the polite signal and holds its pipes.
const STUBBORN: &str = r#"trap "" TERM; (setsid sh -c "trap \"\" TERM; while :; do sleep 5; done" &); echo up; while :; do sleep 5; done"#;

pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let number = |name: &str, usual: usize| -> Result<usize> {
        let at = arguments.iter().position(|argument| *argument == name);
        match at.and_then(|at| arguments.get(at + 1)) {
            Some(text) => Ok(text.parse()?),
            None => Ok(usual),
        }
    };
    let (agents, kills) = (number("--agents", AGENTS)?, number("--rounds", KILLS)?);
    process::build(&["--release", "-p", "crewkit", "--bin", "crewkit"])?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(agents, kills))
}

/// A home, a repository and the server on them.
struct World {
    dir: tempfile::TempDir,
    binary: PathBuf,
    client: reqwest::Client,
}

struct Server {
    process: Running,
    base: String,
}

impl World {
    fn new(agents: usize, kills: usize) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let world = Self {
            dir,
            binary: process::target()?.join("release/crewkit"),
            client: crewkit_agent::http_client().build()?,
        };
        std::fs::create_dir(world.home())?;
        let command = serde_json::to_string(&["sh", "-c", STUBBORN])?;
        let settings = format!(
            "[fleet]\ndriver = \"stubborn\"\n[agents.drivers.stubborn]\ncommand = {command}\n\
             [limits]\nfleet_tasks_active = {}\nfleet_stop_confirm_ms = 1500\n",
            // Each round adds a few more.
            agents + 8 * kills
        );
        std::fs::write(world.home().join("crewkit.toml"), settings)?;
        let repository = world.repository();
        std::fs::create_dir(&repository)?;
        world.git(&["init", "-q", "-b", "main"])?;
        for number in 0..200 {
            std::fs::write(
                repository.join(format!("file{number}.txt")),
                format!("line {number}\n").repeat(40),
            )?;
        }
        world.git(&["add", "."])?;
        world.git(&["commit", "-q", "-m", "base"])?;
        world.write_pack("first")?;
        Ok(world)
    }

    fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    fn repository(&self) -> PathBuf {
        self.dir.path().join("demo")
    }

    fn git(&self, arguments: &[&str]) -> Result<()> {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@b"];
        let status =
            Command::new("git").args(identity).args(arguments).current_dir(self.repository()).status()?;
        ensure!(status.success(), "git {arguments:?} failed");
        Ok(())
    }

    /// A skill of fifty files.
    fn write_pack(&self, words: &str) -> Result<()> {
        let repo = self.home().join(".agentpack/repo");
        let skill = repo.join("modules/skills/kit");
        std::fs::create_dir_all(&skill)?;
        std::fs::write(
            skill.join("SKILL.md"),
            format!("---\nname: kit\ndescription: {words}\n---\n{words}\n"),
        )?;
        for number in 1..KIT_FILES {
            std::fs::write(skill.join(format!("page{number}.md")), format!("{words} {number}\n").repeat(30))?;
        }
        let manifest = "version: 1\nprofiles:\n  default:\n    include_tags: [base]\ntargets:\n  claude_code:\n    mode: files\n    \
                        scope: project\n    options: {write_repo_skills: true}\nmodules:\n  - id: skill:kit\n    type: skill\n    tags: [base]\n    \
                        source:\n      local_path:\n        path: modules/skills/kit\n";
        Ok(std::fs::write(repo.join("agentpack.yaml"), manifest)?)
    }

    fn serve(&self) -> Result<Server> {
        let mut command = Command::new(&self.binary);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.home()).env("CREWKIT_HOME", self.home()).current_dir(self.repository());
        command.args(["serve", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let stdout = child.stdout.take().context("no standard output")?;
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stdout));
        let base = lines.find_map(|line| {
            Some(line.ok()?.split_once("serves MCP at ")?.1.strip_suffix("/mcp")?.to_owned())
        });
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Server { process: Running(child), base: base.context("the server said no address")? })
    }

    /// Runs an operation; its answer, and how long it took.
    async fn call(&self, server: &Server, operation: &str, arguments: Value) -> Result<(Value, Duration)> {
        call(&self.client, &server.base, operation, arguments).await
    }

    async fn statuses(&self, server: &Server) -> Result<BTreeMap<String, String>> {
        let (list, _) = self.call(server, "list_agents", json!({"include_metadata": false})).await?;
        let agents = list["agents"].as_array().into_iter().flatten();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(agents.map(|agent| (text(&agent["name"]), text(&agent["status"]))).collect())
    }
}

async fn measure(agents: usize, kills: usize) -> Result<()> {
    let world = World::new(agents, kills)?;
    let server = world.serve()?;
    let mut creates = Vec::new();
    let mut bare = Vec::new();
    for number in 0..agents {
        let wish = json!({"name": format!("a{number}"), "project": "demo", "spec": "Wait"});
        creates.push(world.call(&server, "create_agent", wish).await?.1);
        if number % 10 == 0 {
            let path = world.dir.path().join(format!("bare{number}"));
            let began = Instant::now();
            let path = path.to_string_lossy();
            world.git(&["worktree", "add", "-q", "-b", &format!("bare{number}"), &path])?;
            bare.push(began.elapsed());
        }
    }
    until_all(&world, &server, "busy", Duration::from_mins(2)).await?;
    let (p50, p99) = (at(&mut creates, 50), at(&mut creates, 99));
    let git = at(&mut bare, 50);
    println!(
        "create_agent       p50 {} p99 {}   bare git worktree add p50 {}   ratio {:.1}",
        ms(p50),
        ms(p99),
        ms(git),
        p50.as_secs_f64() / git.as_secs_f64()
    );

    let mut lists = Vec::new();
    world.call(&server, "list_agents", json!({})).await?;
    for _ in 0..30 {
        lists.push(world.call(&server, "list_agents", json!({})).await?.1);
    }
    println!(
        "list_agents        p50 {} p99 {}   for {agents} agents with metadata",
        ms(at(&mut lists, 50)),
        ms(at(&mut lists, 99))
    );

    let (server_kb, shims_kb, shims) = memory(&server)?;
    println!(
        "memory             server {} MB, {shims} shims {} MB, together {} MB (proportional)",
        server_kb / 1024,
        shims_kb / 1024,
        (server_kb + shims_kb) / 1024
    );

    world.write_pack("second")?;
    let (report, took) = world.call(&server, "equip_agents", json!({"all": true, "yes": true})).await?;
    ensure!(report["equipped"] == agents, "not every workspace was equipped: {}", report["message"]);
    println!("equip --all        {} for {agents} workspaces × {KIT_FILES} files", ms(took));

    let server = kill_rounds(&world, server, agents, kills).await?;

    let began = Instant::now();
    delete_all(&world, &server).await?;
    let left = processes_below(&world.home());
    println!("delete all         {}   processes left {left}", ms(began.elapsed()));
    ensure!(left == 0, "{left} processes outlived their agents");
    Ok(())
}

/// Each of them has to be waited for until it is dead; many at a time, as a person with a script would.
async fn delete_all(world: &World, server: &Server) -> Result<()> {
    let mut deleting = tokio::task::JoinSet::new();
    for name in world.statuses(server).await?.into_keys() {
        if deleting.len() >= DELETES {
            deleting.join_next().await.context("nothing is being deleted")???;
        }
        let (client, base) = (world.client.clone(), server.base.clone());
        deleting
            .spawn(async move { call(&client, &base, "delete_agent", json!({"agent_name": name})).await });
    }
    while let Some(done) = deleting.join_next().await {
        done??;
    }
    Ok(())
}

/// Runs an operation; its answer, and how long it took.
async fn call(
    client: &reqwest::Client,
    base: &str,
    operation: &str,
    arguments: Value,
) -> Result<(Value, Duration)> {
    let began = Instant::now();
    let body: Value =
        client.post(format!("{base}/api/ops/{operation}")).json(&arguments).send().await?.json().await?;
    if body.get("error").is_some() {
        bail!("{operation}: {body}");
    }
    Ok((body, began.elapsed()))
}

/// Kills the server at random moments while agents are made; what was acknowledged must be there once, and alive.
async fn kill_rounds(world: &World, mut server: Server, agents: usize, kills: usize) -> Result<Server> {
    let mut slowest = Duration::ZERO;
    let mut known: Vec<String> = (0..agents).map(|number| format!("a{number}")).collect();
    let mut dice = 0x9e37_79b9_u64;
    for round in 0..kills {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let moment = Duration::from_millis((dice >> 33) % 400);
        let names: Vec<String> = (0..4).map(|number| format!("k{round}-{number}")).collect();
        let (mut acknowledged, mut unsure) = (Vec::new(), Vec::new());
        let killing = tokio::time::sleep(moment);
        tokio::pin!(killing);
        for name in &names {
            let wish = json!({"name": name, "project": "demo", "spec": "Wait"});
            tokio::select! {
                () = &mut killing => unsure.push(name.clone()),
                made = world.call(&server, "create_agent", wish) => match made {
                    Ok(_) => acknowledged.push(name.clone()),
                    Err(_) => unsure.push(name.clone()),
                },
            }
            if !unsure.is_empty() {
                break;
            }
        }
        drop(server);
        let began = Instant::now();
        server = world.serve()?;
        known.extend(acknowledged.iter().cloned());
        let seen = world.statuses(&server).await?;
        for name in &known {
            ensure!(seen.contains_key(name), "{name} was acknowledged and is gone");
        }
        ensure!(
            known.iter().filter(|name| name.starts_with('a')).all(|name| seen[name] == "busy"),
            "a living agent is not seen as one"
        );
        slowest = slowest.max(began.elapsed());
        until_all(world, &server, "busy", Duration::from_mins(1)).await?;
        known = world.statuses(&server).await?.into_keys().collect();
    }
    println!("kill -9            {kills} rounds: nothing lost, living agents adopted within {}", ms(slowest));
    Ok(server)
}

async fn until_all(world: &World, server: &Server, status: &str, patience: Duration) -> Result<()> {
    let until = Instant::now() + patience;
    loop {
        let seen = world.statuses(server).await?;
        let other: Vec<_> = seen.iter().filter(|(_, word)| *word != status).collect();
        if other.is_empty() {
            return Ok(());
        }
        if Instant::now() > until {
            let mut told = Vec::new();
            for (name, _) in other {
                told.push(world.call(server, "show_agent", json!({"agent_name": name})).await?.0);
            }
            bail!("not {status}: {}", Value::from(told));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn at(times: &mut [Duration], percent: usize) -> Duration {
    times.sort();
    let index = (times.len() * percent / 100).min(times.len().saturating_sub(1));
    times.get(index).copied().unwrap_or_default()
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

/// Memory of the server and of the shims in kB; pages that are shared count in parts.
fn memory(server: &Server) -> Result<(u64, u64, usize)> {
    let own = proportional(server.process.0.id()).context("no memory of the server")?;
    let mut shims = (0, 0);
    for pid in pids() {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        let is_ours = words.next().is_some_and(|program| program.ends_with(b"release/crewkit"));
        if is_ours && words.any(|word| word == b"--hold") {
            shims = (shims.0 + proportional(pid).unwrap_or_default(), shims.1 + 1);
        }
    }
    Ok((own, shims.0, shims.1))
}

fn proportional(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().split(' ').next()?.parse().ok())
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
}

/// Processes that work somewhere below the fleet of `home`.
fn processes_below(home: &Path) -> usize {
    let fleet = home.join("fleet");
    pids()
        .filter(|pid| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(&fleet)))
        .count()
}

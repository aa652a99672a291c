//! `cargo xtask bench pack`: our `agentpack` beside the published 0.9.1, on the same generated config repo, in memory.
//!
//! Rounds alternate between the two programs, so that a busy machine is busy for both; medians are compared.

mod mcp;
mod world;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::shell::{self, cargo, root};
use mcp::Session;
use world::World;

/// What is measured, and by how much ours must win.
const GOALS: &[(&str, f64)] = &[
    ("plan, nothing to do", 10.0),
    ("status", 8.0),
    ("plan over MCP, per call", 12.0),
    ("deploy, first", 3.0),
    ("deploy, one file changed", 8.0),
    ("peak memory of plan", 1.5),
    ("peak memory of status", 1.5),
    ("peak memory of first deploy", 1.5),
    ("peak memory of one-file deploy", 1.5),
];

/// How many times as many skills the cost per file is looked at with.
const GROWTH: usize = 5;
/// What is looked at with more skills.
const GROWING: &[&str] = &["plan, nothing to do", "status", "deploy, first", "deploy, one file changed"];

/// How many times as long as `plan` a `status` may take when many files are wanted no more.
const REMOVED_GOAL: f64 = 2.0;

/// How many times as long as a plan for the 4 targets of version 1 one for 8 targets of version 2 may take.
const EIGHT_TARGETS_GOAL: f64 = 2.5;

const DEFAULT_SKILLS: usize = 1000;
const DEFAULT_ROUNDS: usize = 5;
const MCP_CALLS: usize = 8;

/// Reads `[--skills N] [--rounds N] [--binary PATH]` and measures.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let mut skills = DEFAULT_SKILLS;
    let mut rounds = DEFAULT_ROUNDS;
    let mut binary = None;
    for pair in words.chunks(2) {
        match pair {
            ["--skills", value] => skills = value.parse().context("--skills takes a number")?,
            ["--rounds", value] => rounds = value.parse().context("--rounds takes a number")?,
            ["--binary", value] => binary = Some(PathBuf::from(value)),
            _ => bail!("usage: cargo xtask bench pack [--skills N] [--rounds N] [--binary PATH]"),
        }
    }
    let ours = match binary {
        Some(binary) => binary,
        None => build()?,
    };
    let mut programs = vec![Program::new("crewkit", ours)];
    match baseline() {
        Some(path) => programs.push(Program::new("0.9.1", path)),
        None => println!("no agentpack 0.9.1 found: set AGENTPACK_BASELINE to compare"),
    }
    let base = Path::new("/dev/shm");
    let base = if base.is_dir() { base.to_owned() } else { std::env::temp_dir() };
    let base = base.join(format!("crewkit-bench-{}", std::process::id()));
    println!("{skills} skills of 5 files, 4 targets, {rounds} rounds, in {}", base.display());
    let mut large = Program::new("crewkit", programs[0].path.clone());
    let mut removed = (Vec::new(), Vec::new());
    let mut eight = (Vec::new(), Vec::new());
    let measured = measure(&mut programs, &base, skills, rounds)
        .and_then(|()| {
            (0..rounds).try_for_each(|_| measure_removed(&programs[0], &base, skills, &mut removed))
        })
        .and_then(|()| (0..rounds).try_for_each(|_| measure_eight(&programs[0], &base, skills, &mut eight)))
        .and_then(|()| measure(std::slice::from_mut(&mut large), &base, GROWTH * skills, rounds.min(3)));
    std::fs::remove_dir_all(&base).with_context(|| base.display().to_string())?;
    measured?;
    report(&programs);
    report_growth(&programs[0], &large, skills);
    let (plan, status) = (median(removed.0), median(removed.1));
    let verdict = if status <= REMOVED_GOAL * plan { "" } else { "  missed" };
    println!(
        "\nall skills removed: plan {plan:.1} ms, status {status:.1} ms, {:.2}× (at most {REMOVED_GOAL}×){verdict}",
        status / plan
    );
    let (four, eight) = (median(eight.0), median(eight.1));
    let verdict = if eight <= EIGHT_TARGETS_GOAL * four { "" } else { "  missed" };
    println!(
        "8 targets of version 2: plan {eight:.1} ms, for 4 of version 1 {four:.1} ms, {:.2}× (at most \
         {EIGHT_TARGETS_GOAL}×){verdict}",
        eight / four
    );
    Ok(())
}

fn build() -> Result<PathBuf> {
    shell::run(cargo().args([
        "build",
        "--release",
        "--locked",
        "--package",
        "crewkit",
        "--bin",
        "agentpack",
    ]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    Ok(root().join(target).join("release/agentpack"))
}

fn baseline() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("AGENTPACK_BASELINE") {
        return Some(PathBuf::from(path));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join("agentpack-0.9.1")).find(|path| path.is_file())
}

/// A program and what was measured of it, by goal.
struct Program {
    name: &'static str,
    path: PathBuf,
    samples: Vec<Vec<f64>>,
}

impl Program {
    fn new(name: &'static str, path: PathBuf) -> Self {
        Self { name, path, samples: vec![Vec::new(); GOALS.len()] }
    }

    fn note(&mut self, goal: &str, value: f64) {
        if let Some(index) = GOALS.iter().position(|(name, _)| *name == goal) {
            self.samples[index].push(value);
        }
    }

    fn median_of(&self, goal: &str) -> Option<f64> {
        self.median(GOALS.iter().position(|(name, _)| *name == goal)?)
    }

    fn median(&self, index: usize) -> Option<f64> {
        Some(self.samples[index].clone()).filter(|samples| !samples.is_empty()).map(median)
    }
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}

/// How one run of a program went.
struct Run {
    took: Duration,
    peak_kilobytes: u64,
    answer: String,
}

fn measure(programs: &mut [Program], base: &Path, skills: usize, rounds: usize) -> Result<()> {
    for round in 0..rounds {
        for program in programs.iter_mut() {
            let world = World::build(&base.join(format!("{}-{round}", program.name)), skills)?;
            let first = command(program, &world, &["deploy", "--apply", "--yes"])?;
            program.note("deploy, first", milliseconds(first.took));
            program.note("peak memory of first deploy", megabytes(first.peak_kilobytes));
            // Twice, so that whatever a program remembers from the first look is there.
            command(program, &world, &["plan"])?;
            let plan = command(program, &world, &["plan"])?;
            ensure!(!plan.answer.contains("\"create\": 1"), "{}: the plan is not empty", program.name);
            program.note("plan, nothing to do", milliseconds(plan.took));
            program.note("peak memory of plan", megabytes(plan.peak_kilobytes));
            let status = command(program, &world, &["status"])?;
            program.note("status", milliseconds(status.took));
            program.note("peak memory of status", megabytes(status.peak_kilobytes));
            world.change_one_file(round)?;
            let one = command(program, &world, &["deploy", "--apply", "--yes"])?;
            program.note("deploy, one file changed", milliseconds(one.took));
            program.note("peak memory of one-file deploy", megabytes(one.peak_kilobytes));
            let mut session = Session::start(&program.path, &world)?;
            for _ in 0..MCP_CALLS {
                let took = session.call_plan(&world)?;
                program.note("plan over MCP, per call", milliseconds(took));
            }
            session.end()?;
            std::fs::remove_dir_all(world.path())?;
        }
        println!("round {} of {rounds}", round + 1);
    }
    Ok(())
}

/// Looks at what was deployed when no skill is wanted any more: ten thousand files to remove, with a thousand skills.
fn measure_removed(
    program: &Program,
    base: &Path,
    skills: usize,
    (plan, status): &mut (Vec<f64>, Vec<f64>),
) -> Result<()> {
    let world = World::build(&base.join("removed"), skills)?;
    command(program, &world, &["deploy", "--apply", "--yes"])?;
    world.remove_skills()?;
    command(program, &world, &["plan"])?;
    plan.push(milliseconds(command(program, &world, &["plan"])?.took));
    let run = command(program, &world, &["status"])?;
    ensure!(run.answer.matches("\"extra\"").count() > skills, "status does not list what was removed");
    status.push(milliseconds(run.took));
    Ok(std::fs::remove_dir_all(world.path())?)
}

/// Plans with nothing to do: for 4 targets of version 1, then for 8 of version 2.
fn measure_eight(
    program: &Program,
    base: &Path,
    skills: usize,
    (four, eight): &mut (Vec<f64>, Vec<f64>),
) -> Result<()> {
    let world = World::build(&base.join("eight"), skills)?;
    for (version, times) in [(1, four), (2, eight)] {
        if version == 2 {
            world.use_version_2()?;
        }
        command(program, &world, &["deploy", "--apply", "--yes"])?;
        command(program, &world, &["plan"])?;
        let run = command(program, &world, &["plan"])?;
        ensure!(
            run.answer.contains("\"changes\": []") || run.answer.contains("\"changes\":[]"),
            "something is left to do"
        );
        times.push(milliseconds(run.took));
    }
    Ok(std::fs::remove_dir_all(world.path())?)
}

fn command(program: &Program, world: &World, words: &[&str]) -> Result<Run> {
    let mut command = Command::new(&program.path);
    world.prepare(&mut command);
    let repo = world.repo().display().to_string();
    let output = world.path().join("answer.json");
    let answer = std::fs::File::create(&output)?;
    command.args(["--repo", &repo, "--json"]).args(words).stdout(answer).stderr(Stdio::null());
    let began = Instant::now();
    let mut child = command.spawn().with_context(|| format!("could not start {}", program.path.display()))?;
    let mut peak_kilobytes = 0;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        peak_kilobytes = peak_kilobytes.max(peak_of(child.id()));
        std::thread::sleep(Duration::from_micros(500));
    };
    let took = began.elapsed();
    let answer = std::fs::read_to_string(&output)?;
    ensure!(
        status.success(),
        "{} {words:?} failed: {}",
        program.name,
        answer.chars().take(2000).collect::<String>()
    );
    Ok(Run { took, peak_kilobytes, answer })
}

/// The most memory a process had so far; 0 when it is gone.
fn peak_of(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

#[expect(clippy::cast_precision_loss, reason = "a size to be shown")]
fn megabytes(kilobytes: u64) -> f64 {
    kilobytes as f64 / 1024.0
}

fn report(programs: &[Program]) {
    println!("\n{:<30} {:>12} {:>12} {:>8} {:>8}", "", "crewkit", "0.9.1", "ratio", "goal");
    for (index, (name, goal)) in GOALS.iter().enumerate() {
        let unit = if name.starts_with("peak") { "MB" } else { "ms" };
        let shown = |value: Option<f64>| value.map_or("–".to_owned(), |value| format!("{value:.1} {unit}"));
        let ours = programs[0].median(index);
        let theirs = programs.get(1).and_then(|program| program.median(index));
        let (ratio, verdict) = match (ours, theirs) {
            (Some(ours), Some(theirs)) => {
                let ratio = theirs / ours;
                (format!("{ratio:.1}×"), if ratio >= *goal { "" } else { "  missed" })
            }
            _ => ("–".to_owned(), ""),
        };
        println!("{name:<30} {:>12} {:>12} {ratio:>8} {goal:>7}×{verdict}", shown(ours), shown(theirs));
    }
}

/// The cost of a file among many, beside its cost among few: 1.0 when it does not grow.
#[expect(clippy::cast_precision_loss, reason = "a number to be shown")]
fn report_growth(small: &Program, large: &Program, skills: usize) {
    println!("\ncost per file with {} skills beside {skills}", GROWTH * skills);
    for name in GROWING {
        if let (Some(small), Some(large)) = (small.median_of(name), large.median_of(name)) {
            let growth = large / small / GROWTH as f64;
            println!("{name:<30} {large:>9.1} ms {small:>9.1} ms {growth:>7.2}×");
        }
    }
}

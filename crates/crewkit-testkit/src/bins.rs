//! The fake programs, built on demand.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

/// Path of a fake program of this crate.
#[track_caller]
pub fn fake(name: &str) -> PathBuf {
    build("crewkit-testkit", "--bin", name, name)
}

/// Path of an example of another crate of the workspace.
#[track_caller]
pub fn example(package: &str, name: &str) -> PathBuf {
    build(package, "--example", name, &format!("examples/{name}"))
}

/// Cargo builds test binaries but not the programs of other packages; so they are built when first asked for.
#[track_caller]
fn build(package: &str, kind: &str, name: &str, file: &str) -> PathBuf {
    static BUILT: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut built = BUILT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let directory = target_directory();
    let path = directory.join(file);
    let key = format!("{package} {name}");
    if !built.contains(&key) {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["build", "--quiet", "--offline", "-p", package, kind, name]);
        if directory.ends_with("release") {
            command.arg("--release");
        }
        if let Some(target) = directory.parent() {
            command.arg("--target-dir").arg(target);
        }
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        let status = command.status();
        assert!(
            status.as_ref().is_ok_and(std::process::ExitStatus::success),
            "cannot build {name}: {status:?}"
        );
        built.push(key);
    }
    path
}

/// The directory of the profile the running test was built with.
fn target_directory() -> PathBuf {
    let exe = std::env::current_exe().unwrap_or_default();
    let directory = exe.parent().unwrap_or_else(|| std::path::Path::new("."));
    let directory = if directory.ends_with("deps") || directory.ends_with("examples") {
        directory.parent().unwrap_or(directory)
    } else {
        directory
    };
    directory.to_owned()
}

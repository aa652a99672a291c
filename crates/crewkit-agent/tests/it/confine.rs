//! The helper on kernels that cannot do everything: what cannot be denied is refused, not run.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use crewkit_agent::confine::Confinement;
use crewkit_testkit::bins;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

fn confinement(directory: &Path) -> Confinement {
    Confinement {
        writable: vec![directory.to_owned()],
        readable: ["/usr", "/bin", "/lib", "/lib64", "/etc"].map(Into::into).to_vec(),
        network: true,
        closed_ports: vec![8101],
        ..Confinement::default()
    }
}

/// Runs the helper where the kernel does not know `missing`.
fn run_without(missing: Option<i64>, confinement: &Confinement, script: &str) -> Output {
    let helper = bins::example("crewkit-agent", "confined");
    let arguments = confinement.to_arguments(["sh", "-c", script].map(Into::into));
    // A filter holds for the thread that sets it and whatever it starts.
    let running = std::thread::spawn(move || {
        if let Some(call) = missing {
            let unknown = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
            let here = std::env::consts::ARCH.try_into().unwrap();
            let calls = BTreeMap::from([(call, Vec::new())]);
            let filter = SeccompFilter::new(calls, SeccompAction::Allow, unknown, here).unwrap();
            rustix::thread::set_no_new_privs(true).unwrap();
            seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
        }
        Command::new(helper).args(arguments).output().unwrap()
    });
    running.join().unwrap()
}

#[test]
fn what_the_kernel_cannot_deny_is_refused() {
    if !crewkit_agent::confine::available() {
        eprintln!("NOT TRIED: this kernel has no Landlock, so there is nothing to take away from it");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let ran = directory.path().join("ran");
    let script = format!("touch {}; exit 7", ran.display());
    let confinement = confinement(directory.path());
    let output = run_without(None, &confinement, &script);
    assert_eq!((output.status.code(), ran.exists()), (Some(7), true), "{output:?}");
    std::fs::remove_file(&ran).unwrap();
    for missing in [
        libc::SYS_landlock_create_ruleset,
        libc::SYS_landlock_add_rule,
        libc::SYS_landlock_restrict_self,
        libc::SYS_seccomp,
        libc::SYS_capset,
    ] {
        let output = run_without(Some(missing), &confinement, &script);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(126), "without call {missing}: {output:?}");
        assert!(said.contains("cannot confine"), "without call {missing}: {said}");
        assert!(!ran.exists(), "without call {missing} it ran all the same");
    }
}

/// Whoever reads the end of a command sees how it ended, not how the helper did.
#[test]
fn the_helper_ends_as_the_command_did() {
    use std::os::unix::process::ExitStatusExt as _;
    if !crewkit_agent::confine::available() {
        eprintln!("NOT TRIED: this kernel has no Landlock, so no command can be confined");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for (script, code, signal) in [
        ("exit 0", Some(0), None),
        ("exit 255", Some(255), None),
        ("kill -9 $$", None, Some(9)),
        ("kill -11 $$", None, Some(11)),
    ] {
        let status = run_without(None, &confinement(directory.path()), script).status;
        assert_eq!((status.code(), status.signal()), (code, signal), "{script}");
    }
}

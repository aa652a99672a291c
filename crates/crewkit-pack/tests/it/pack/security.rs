//! Nothing in a config repo runs a command or leads outside of its place.

use std::fs;
use std::os::unix::fs::symlink;

use crewkit_core::Code;
use crewkit_pack::commands::Select;
use crewkit_pack::commands::{Add, Consent, Deploy};

use super::place::{Place, SKILL, all, apply, changes, code};

const CODEX_USER: &str = "{codex: {mode: files, scope: user}}";

fn skill(id: &str, source: &str) -> String {
    format!("{{id: \"{id}\", type: skill, tags: [base], source: {source}}}")
}

/// A url that git took for an option used to run its command, in a plan.
#[test]
fn a_git_url_never_becomes_an_option_or_a_transport_helper() {
    let place = Place::new();
    let canary = place.path("PWNED");
    for (url, reference) in [
        (format!("--upload-pack=touch {};", canary.display()), "main"),
        (format!("ext::sh -c touch% {}", canary.display()), "main"),
        ("ssh://-oProxyCommand=touch/x".to_owned(), "main"),
        ("https://example.invalid/x".to_owned(), "--upload-pack=touch"),
    ] {
        let source = format!("{{git: {{url: \"{url}\", ref: \"{reference}\"}}}}");
        place.manifest(CODEX_USER, &[&skill("skill:a", &source)]);
        let pack = place.pack();
        assert_eq!(code(pack.plan(&all())), Code::SourceInvalid, "{url}");
        assert_eq!(code(pack.lock_modules(&all(), Consent::Given)), Code::SourceInvalid, "{url}");
        assert!(!canary.exists(), "{url}");
    }
    let add = Add {
        kind: "skill".to_owned(),
        source: "git:--upload-pack=x".to_owned(),
        id: None,
        tags: Vec::new(),
        targets: Vec::new(),
    };
    assert_eq!(code(place.pack().add(&all(), &add, Consent::Given)), Code::SourceInvalid);
}

#[test]
fn a_module_id_cannot_lead_out_of_the_root() {
    let place = Place::new();
    place.source("m/SKILL.md", SKILL);
    for id in [
        "skill:../../../pwned",
        "skill:..",
        "skill:/etc",
        "skill:a/../../b",
        "skill:",
        "skill:a//b",
        "skill:.",
    ] {
        place.manifest(CODEX_USER, &[&skill(id, "{local_path: {path: m}}")]);
        let before = place.everything();
        assert_eq!(code(apply(&place.pack())), Code::ModuleInvalid, "{id}");
        assert_eq!(place.everything(), before, "{id}");
    }
    place.manifest(CODEX_USER, &[&skill("skill:group/name", "{local_path: {path: m}}")]);
    apply(&place.pack()).unwrap();
    assert_eq!(place.read("home/.codex/skills/group/name/SKILL.md"), SKILL);
}

#[test]
fn a_local_path_stays_in_the_repo_unless_it_is_absolute() {
    let place = Place::new();
    place.write("secret/SKILL.md", SKILL);
    fs::create_dir_all(place.repo("")).unwrap();
    symlink(place.path("secret"), place.repo("way-out")).unwrap();
    for path in ["../../../secret", "a/../../../../secret", "way-out", "way-out/."] {
        place.manifest(CODEX_USER, &[&skill("skill:a", &format!("{{local_path: {{path: {path}}}}}"))]);
        assert_eq!(code(place.pack().plan(&all())), Code::SourceInvalid, "{path}");
    }
    let absolute = place.path("secret").display().to_string();
    place.manifest(CODEX_USER, &[&skill("skill:a", &format!("{{local_path: {{path: {absolute}}}}}"))]);
    let answer = place.pack().plan(&all()).unwrap();
    assert_eq!(changes(&answer, &place.base()), ["create home/.codex/skills/a/SKILL.md"]);
    assert!(answer.warnings[0].contains("absolute path"), "{:?}", answer.warnings);

    // A link that stays inside the repo is an ordinary way to share a source.
    place.source("real/SKILL.md", SKILL);
    symlink("real", place.repo("alias")).unwrap();
    place.manifest(CODEX_USER, &[&skill("skill:a", "{local_path: {path: alias}}")]);
    place.pack().plan(&all()).unwrap();
}

#[test]
fn links_inside_a_module_may_not_leave_it() {
    let module = skill("skill:a", "{local_path: {path: m}}");
    let with_link = |target: &str, name: &str| {
        let place = Place::with(CODEX_USER, &[&module]);
        place.source("m/SKILL.md", SKILL);
        place.source("m/lib/x.txt", "x");
        place.write("outside.txt", "secret");
        symlink(target.replace("BASE", &place.base().display().to_string()), place.repo("m").join(name))
            .unwrap();
        place
    };
    for (target, name) in [
        ("BASE/outside.txt", "leak"),
        ("../../../../outside.txt", "leak"),
        ("/etc", "dir"),
        ("nowhere", "dangling"),
        (".", "loop"),
        ("..", "up"),
    ] {
        let place = with_link(target, name);
        let error = place.pack().plan(&all()).unwrap_err();
        assert_eq!(error.code(), Code::ModuleInvalid, "{target}: {error}");
        assert!(error.message().contains(name), "{error}");
    }
    for (target, name, file) in [("lib/x.txt", "y.txt", "y.txt"), ("lib", "dir", "dir/x.txt")] {
        let place = with_link(target, name);
        apply(&place.pack()).unwrap();
        let deployed = place.path("home/.codex/skills/a").join(file);
        assert_eq!(fs::read_to_string(&deployed).unwrap(), "x");
        assert!(!fs::symlink_metadata(&deployed).unwrap().is_symlink());
    }
}

#[test]
fn a_link_below_a_target_root_is_an_escape_but_the_root_may_be_one() {
    let place = Place::with(CODEX_USER, &[&skill("skill:a", "{local_path: {path: m}}")]);
    place.source("m/SKILL.md", SKILL);
    fs::create_dir_all(place.path("dotfiles/skills")).unwrap();
    symlink(place.path("dotfiles"), place.path("home/.codex")).unwrap();
    apply(&place.pack()).unwrap();
    assert_eq!(place.read("dotfiles/skills/a/SKILL.md"), SKILL);

    fs::remove_dir_all(place.path("dotfiles/skills/a")).unwrap();
    fs::create_dir_all(place.path("elsewhere")).unwrap();
    symlink(place.path("elsewhere"), place.path("dotfiles/skills/a")).unwrap();
    assert_eq!(code(place.pack().plan(&all())), Code::TargetEscape);
    assert_eq!(code(apply(&place.pack())), Code::TargetEscape);
    assert_eq!(fs::read_dir(place.path("elsewhere")).unwrap().count(), 0);
}

#[test]
fn a_broken_or_hostile_lockfile_stops_everything_that_would_use_it() {
    let place = Place::new();
    place.git_repo("upstream", &[("SKILL.md", SKILL)]);
    let url = place.path("upstream").display().to_string();
    place.manifest(CODEX_USER, &[&skill("skill:a", &format!("{{git: {{url: \"{url}\"}}}}"))]);
    place.pack().lock_modules(&all(), Consent::Given).unwrap();
    let good = fs::read_to_string(place.repo("agentpack.lock.json")).unwrap();
    let commit = place.git("upstream", &["rev-parse", "HEAD"]);
    place.write("evil/SKILL.md", SKILL);
    for bad in [
        "{".to_owned(),
        "[]".to_owned(),
        good.replace(&format!("\"commit\": \"{commit}\""), "\"commit\": \"../../../../../evil\""),
        good.replace("\"subdir\": \"\"", "\"subdir\": \"../../evil\""),
    ] {
        fs::write(place.repo("agentpack.lock.json"), &bad).unwrap();
        let pack = place.pack();
        let select = all();
        for result in [
            pack.plan(&select).map(drop),
            pack.preview(&select, true).map(drop),
            pack.status(&select, &[]).map(drop),
            apply(&pack).map(drop),
            pack.fetch(&select, Consent::Given).map(drop),
            pack.doctor(&select, None).map(drop),
            pack.explain(&select, crewkit_pack::commands::Explain::Plan).map(drop),
        ] {
            assert_eq!(code(result), Code::LockfileInvalid, "{bad}");
        }
    }
    fs::write(place.repo("agentpack.lock.json"), &good).unwrap();
    place.pack().plan(&all()).unwrap();
}

/// A tampered checkout used to be deployed; only `fetch` noticed.
#[test]
fn a_changed_checkout_is_never_deployed() {
    let place = Place::new();
    place.git_repo("upstream", &[("SKILL.md", SKILL), ("run.sh", "true\n")]);
    let url = place.path("upstream").display().to_string();
    place.manifest(CODEX_USER, &[&skill("skill:a", &format!("{{git: {{url: \"{url}\"}}}}"))]);
    let find = || {
        let cache = place.path("home/.agentpack/cache/git");
        let repo = fs::read_dir(cache).unwrap().next().unwrap().unwrap().path();
        fs::read_dir(repo).unwrap().map(|entry| entry.unwrap().path()).find(|path| path.is_dir()).unwrap()
    };

    // Not locked: fetched anew, with a warning.
    place.pack().plan(&all()).unwrap();
    fs::write(find().join("run.sh"), "evil\n").unwrap();
    let answer = place.pack().plan(&all()).unwrap();
    assert!(
        answer.warnings.iter().any(|warning| warning.contains("had been changed")),
        "{:?}",
        answer.warnings
    );
    assert_eq!(fs::read_to_string(find().join("run.sh")).unwrap(), "true\n");

    // Locked: refused until it is fetched anew.
    place.pack().lock_modules(&all(), Consent::Given).unwrap();
    for tamper in ["run.sh", "added.sh"] {
        fs::write(find().join(tamper), "evil\n").unwrap();
        assert_eq!(code(apply(&place.pack())), Code::SourceMismatch, "{tamper}");
        assert!(!place.path("home/.codex/skills/a").exists());
        place.pack().fetch(&all(), Consent::Given).unwrap();
    }
    apply(&place.pack()).unwrap();
    assert_eq!(place.read("home/.codex/skills/a/run.sh"), "true\n");
}

#[test]
fn a_subdir_cannot_leave_the_checkout() {
    let place = Place::new();
    place.git_repo("upstream", &[("s/SKILL.md", SKILL)]);
    symlink("/etc", place.path("upstream/out")).unwrap();
    place.git_repo("upstream", &[("x", "")]);
    let url = place.path("upstream").display().to_string();
    for subdir in ["../../../../secret", "/etc", "out"] {
        let source = format!("{{git: {{url: \"{url}\", subdir: \"{subdir}\"}}}}");
        place.manifest(CODEX_USER, &[&skill("skill:a", &source)]);
        assert_eq!(code(place.pack().plan(&all())), Code::SourceInvalid, "{subdir}");
    }
    let source = format!("{{git: {{url: \"{url}\", subdir: s}}}}");
    place.manifest(CODEX_USER, &[&skill("skill:a", &source)]);
    place.pack().plan(&all()).unwrap();
}

#[test]
fn a_machine_id_cannot_lead_out_of_the_repo() {
    let place = Place::with(CODEX_USER, &[&skill("skill:a", "{local_path: {path: m}}")]);
    place.source("m/SKILL.md", SKILL);
    // Where the overlay would be if the id went into the path as it is.
    let key = crewkit_pack::config::ids::fs_key("skill:a");
    for outside in
        ["home/.agentpack/repo", "home/.agentpack", "home", "home/.agentpack/repo/overlays/machines"]
    {
        place.write(&format!("{outside}/{key}/SKILL.md"), "---\nname: evil\ndescription: d\n---\n");
    }
    let select = Select { machine: Some("../../..".to_owned()), ..all() };
    let deploy = Deploy { apply: Some(Consent::Given), adopt: false, confirm_token: None };
    place.pack().deploy(&select, &deploy).unwrap();
    assert_eq!(
        place.read("home/.codex/skills/a/SKILL.md"),
        SKILL,
        "an overlay from outside the repo was used"
    );
}

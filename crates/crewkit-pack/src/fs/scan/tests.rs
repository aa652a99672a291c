use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::SystemTime;

use super::*;
use crate::fs::unix::UnixFs;
use crate::fs::{Fs as _, PathFs};

fn observed(root: &Path, path: &str) -> Result<Observed> {
    let cache = HashCache::in_memory(Arc::new(SystemTime::now));
    let Some(root) = RootDir::open(&UnixFs::default(), root, None)? else { return Ok(Observed::Absent) };
    Ok(observe(&UnixFs::default(), &root, [&RelPath::new(path).unwrap()], InTheWay::Refuse, &cache)?
        .remove(0)
        .observed)
}

#[test]
fn a_sorted_list_is_observed_like_single_places() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let paths = ["a", "a-b/c", "b/c/d", "b/c/e", "b/x", "b-/x", "m/n", "z"];
    for path in ["a", "a-b/c", "b/c/e", "b/x", "z"] {
        std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        std::fs::write(root.join(path), path).unwrap();
    }
    let paths: Vec<_> = paths.iter().map(|path| RelPath::new(*path).unwrap()).collect();
    let cache = HashCache::in_memory(Arc::new(SystemTime::now));
    let opened = RootDir::open(&UnixFs::default(), root, None).unwrap().unwrap();
    let all = observe(&UnixFs::default(), &opened, &paths, InTheWay::Refuse, &cache).unwrap();
    for (path, found) in paths.iter().zip(all) {
        assert_eq!(found.observed, observed(root, path.as_str()).unwrap(), "{path}");
        let want = std::fs::read(root.join(path.as_path())).ok().map(|bytes| Digest::of(&bytes));
        assert_eq!(found.observed.entry().map(|entry| entry.sha256), want, "{path}");
    }
}

#[test]
fn links_below_the_root_are_an_escape_but_the_root_may_be_one() {
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().join("real");
    std::fs::create_dir_all(real.join("sub")).unwrap();
    std::fs::write(real.join("f"), "x").unwrap();
    std::fs::write(real.join("sub/f"), "x").unwrap();
    symlink(&real, dir.path().join("root")).unwrap();
    symlink(real.join("sub"), real.join("link")).unwrap();
    symlink("f", real.join("file-link")).unwrap();
    let root = dir.path().join("root");
    assert!(observed(&root, "sub/f").unwrap().entry().is_some());
    assert_eq!(observed(&root, "link/f").unwrap_err().code(), Code::TargetEscape);
    assert_eq!(observed(&root, "f/below").unwrap_err().code(), Code::TargetNotAFile);
    assert_eq!(observed(&root, "sub").unwrap(), Observed::Directory);
    assert_eq!(observed(&root, "file-link").unwrap().entry().unwrap().kind, EntryKind::Symlink);
    assert_eq!(observed(&dir.path().join("none"), "f").unwrap(), Observed::Absent);
}

/// The files below `root` as a walk with `cache` shows them.
fn walked(root: &Path, cache: &HashCache) -> Vec<String> {
    let disk = UnixFs::default();
    let (Opened::Directory(dir), stat) = disk.open_any(root).unwrap() else { panic!("not a directory") };
    let mut seen = Vec::new();
    walk(&disk, &dir, root, &Limits::default(), Some((cache, &stat)), |item| {
        if item.kind == FileKind::Directory {
            return Ok(Next::Descend);
        }
        let mut text = String::new();
        if item.kind == FileKind::File {
            assert_eq!(item.stat().unwrap().kind, FileKind::File);
            io::Read::read_to_string(&mut item.open().unwrap(), &mut text).unwrap();
        }
        seen.push(format!("{} {:?} {text}", item.path, item.kind));
        Ok(Next::Skip)
    })
    .unwrap();
    seen.sort();
    seen
}

#[test]
fn remembered_names_are_used_and_never_outlive_a_change() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    for path in ["a", "b/c", "b/d/e", "x/y/z"] {
        std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
        std::fs::write(root.join(path), path).unwrap();
    }
    // A clock a minute ahead: everything counts as settled.
    let ahead = || SystemTime::now() + std::time::Duration::from_mins(1);
    let cache = HashCache::in_memory(Arc::new(ahead));
    let first = walked(root, &cache);
    assert_eq!(first, ["a File a", "b/c File b/c", "b/d/e File b/d/e", "x/y/z File x/y/z"]);
    let stat = |path: &str| UnixFs::default().open_any(&root.join(path)).unwrap().1;
    for path in ["", "b", "b/d", "x", "x/y"] {
        assert!(cache.names(&stat(path)).is_some(), "the names in `{path}` are remembered");
    }
    assert_eq!(walked(root, &cache), first);

    let changes: [(&str, &dyn Fn()); 6] = [
        ("added", &|| std::fs::write(root.join("b/d/new"), "n").unwrap()),
        ("removed", &|| std::fs::remove_file(root.join("b/c")).unwrap()),
        ("renamed", &|| std::fs::rename(root.join("x/y/z"), root.join("x/y/w")).unwrap()),
        ("another kind", &|| {
            std::fs::remove_file(root.join("a")).unwrap();
            std::fs::create_dir(root.join("a")).unwrap();
        }),
        ("a link for a directory", &|| {
            std::fs::rename(root.join("x"), root.join("moved")).unwrap();
            symlink("moved", root.join("x")).unwrap();
        }),
        ("content alone", &|| std::fs::write(root.join("b/d/e"), "other").unwrap()),
    ];
    for (what, change) in changes {
        change();
        let fresh = HashCache::in_memory(Arc::new(SystemTime::now));
        assert_eq!(walked(root, &cache), walked(root, &fresh), "{what}");
        assert_eq!(walked(root, &cache), walked(root, &fresh), "{what}, and again");
    }
}

#[test]
fn a_directory_changed_within_the_clock_tick_is_not_remembered() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a"), "a").unwrap();
    let stat = UnixFs::default().open_any(dir.path()).unwrap().1;
    let changed =
        SystemTime::UNIX_EPOCH + std::time::Duration::from_nanos(u64::try_from(stat.changed).unwrap());
    let cache = HashCache::in_memory(Arc::new(move || changed + std::time::Duration::from_millis(50)));
    walked(dir.path(), &cache);
    assert_eq!(cache.names(&stat), None);
}

#[test]
fn nothing_is_opened_through_a_link() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("real/sub")).unwrap();
    std::fs::write(dir.path().join("real/sub/f"), "x").unwrap();
    symlink("real", dir.path().join("link")).unwrap();
    for disk in [UnixFs::default(), UnixFs::portable()] {
        let handle = disk.open_root(dir.path()).unwrap();
        assert!(disk.open_below(&handle, "real/sub/f").is_ok());
        assert!(disk.open_below(&handle, "link/sub/f").is_err());
    }
    let disk = PathFs::default();
    let handle = disk.open_root(dir.path()).unwrap();
    assert!(disk.open_below(&handle, "real/sub/f").is_ok());
    assert!(disk.open_below(&handle, "link/sub/f").is_err());
}

fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for path in ["a", "b/c/d", "b/e", "deep/1/2/3/4/f"] {
        let place = dir.path().join(path);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(&place, path).unwrap();
    }
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    symlink("b/e", dir.path().join("link")).unwrap();
    symlink("b", dir.path().join("dir-link")).unwrap();
    symlink("/", dir.path().join("out")).unwrap();
    dir
}

fn roots(path: &Path) -> (RootDir<PathFs>, RootDir<UnixFs>) {
    let portable = RootDir::open(&PathFs::default(), path, None).unwrap().unwrap();
    (portable, RootDir::open(&UnixFs::default(), path, None).unwrap().unwrap())
}

/// The things below `root` as a walk shows them.
fn walked_by<F: ScanFs>(
    disk: &F,
    root: &RootDir<F>,
    limits: &Limits,
) -> Result<BTreeSet<(String, String, u64)>> {
    let mut seen = BTreeSet::new();
    walk(disk, root.handle(), root.path(), limits, None, |item| {
        seen.insert((item.path.to_owned(), format!("{:?}", item.kind), item.stat().unwrap().size));
        Ok(if item.path == "b/c" { Next::Skip } else { Next::Descend })
    })?;
    Ok(seen)
}

/// By paths and by handles a walk shows the same.
#[test]
fn a_walk_shows_the_same() {
    let dir = tree();
    let limits = Limits::default();
    let (portable, real) = roots(dir.path());
    let (by_paths, by_handles) = (PathFs::default(), UnixFs::default());
    let here = walked_by(&by_paths, &portable, &limits).unwrap();
    assert_eq!(here, walked_by(&by_handles, &real, &limits).unwrap());
    assert!(here.iter().any(|(path, ..)| path == "deep/1/2/3/4/f"));
    let shallow = Limits { pack_tree_depth: 3, ..limits };
    let errors = [
        walked_by(&by_paths, &portable, &shallow).unwrap_err(),
        walked_by(&by_handles, &real, &shallow).unwrap_err(),
    ];
    assert_eq!(errors[0].to_string(), errors[1].to_string());
}

#[test]
fn places_look_the_same() {
    let dir = tree();
    let cache = HashCache::in_memory(Arc::new(SystemTime::now));
    let (portable, real) = roots(dir.path());
    let paths = ["a", "b/c/d", "b/c", "empty", "empty/x", "link", "nothing/x", "a/x", "dir-link/e"];
    for (path, how) in paths.iter().flat_map(|path| [(path, InTheWay::Refuse), (path, InTheWay::IsAbsent)]) {
        let path = RelPath::new(path).unwrap();
        // The number of a directory differs: one is the system's, the other stands for its path.
        let told = |found: Result<Vec<Found>>| {
            let found = found.map_err(|error| error.to_string())?;
            Ok::<_, String>((found[0].observed, found[0].rest))
        };
        let here = observe(&PathFs::default(), &portable, [&path], how, &cache);
        let there = observe(&UnixFs::default(), &real, [&path], how, &cache);
        assert_eq!(told(here), told(there), "{path}");
    }
}

#[test]
fn a_source_stays_below_its_base() {
    let dir = tree();
    let here = Base::open(PathFs::default(), dir.path()).unwrap();
    let there = Base::open(UnixFs::default(), dir.path()).unwrap();
    let without = Base::open(UnixFs::portable(), dir.path()).unwrap();
    for path in ["a", "", "b/c", "link", "dir-link/c/d", "out", "out/etc", "nothing", "a/x"] {
        let kind = |opened: io::Result<Stat>| opened.map(|stat| stat.kind).map_err(|error| error.kind());
        let want = kind(here.open_beneath(path).map(|found| found.1));
        assert_eq!(kind(there.open_beneath(path).map(|found| found.1)), want, "{path}");
        assert_eq!(kind(without.open_beneath(path).map(|found| found.1)), want, "{path}");
    }
}

/// A name that is not UTF-8 is shown as well as it can be, and nothing else is lost for it.
#[test]
fn names_that_are_not_utf8_are_met() {
    use std::os::unix::ffi::OsStrExt as _;
    let dir = tempfile::tempdir().unwrap();
    let odd = dir.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    std::fs::create_dir(&odd).unwrap();
    std::fs::write(odd.join("inside"), "x").unwrap();
    std::fs::write(dir.path().join("plain"), "x").unwrap();
    let disk = UnixFs::default();
    let handle = disk.open_root(&dir.path().canonicalize().unwrap()).unwrap();
    let mut seen = Vec::new();
    walk(&disk, &handle, dir.path(), &Limits::default(), None, |item| {
        seen.push((item.path.to_owned(), item.utf8));
        Ok(Next::Descend)
    })
    .unwrap();
    seen.sort();
    assert_eq!(seen, [("caf\u{fffd}".to_owned(), false), ("plain".to_owned(), true)]);
}

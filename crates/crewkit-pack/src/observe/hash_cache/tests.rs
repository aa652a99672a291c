use super::*;
use crate::fs::FileKind;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

fn later(by: Duration) -> Arc<dyn Fn() -> SystemTime + Send + Sync> {
    Arc::new(move || SystemTime::now() + by)
}

fn stat(path: &Path) -> Stat {
    crate::fs::stat_of(File::open(path).unwrap()).unwrap()
}

fn hash(cache: &HashCache, path: &Path) -> Digest {
    cache.hash(&stat(path), || File::open(path)).unwrap().sha256
}

fn numbered(number: u64) -> Stat {
    Stat { kind: FileKind::File, mode: 0o644, device: 1, inode: number, size: 3, modified: 5, changed: 7 }
}

fn limits(entries: u64) -> Limits {
    Limits { pack_hash_cache_entries: entries, ..Limits::default() }
}

#[test]
fn an_edit_of_the_same_size_and_modification_time_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, "one").unwrap();
    let cache = HashCache::in_memory(later(Duration::from_mins(1)));
    assert_eq!(hash(&cache, &path), Digest::of(b"one"));
    assert!(cache.get(&stat(&path)).is_some(), "a settled file is remembered");

    let times = std::fs::metadata(&path).unwrap();
    std::fs::write(&path, "two").unwrap();
    File::options().write(true).open(&path).unwrap().set_modified(times.modified().unwrap()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().mtime_nsec(), times.mtime_nsec());
    assert_eq!(hash(&cache, &path), Digest::of(b"two"));
}

#[test]
fn a_file_changed_within_the_clock_tick_is_not_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, "one").unwrap();
    let changed = UNIX_EPOCH + Duration::from_nanos(u64::try_from(stat(&path).changed).unwrap());
    let cache = HashCache::in_memory(Arc::new(move || changed + Duration::from_millis(50)));
    hash(&cache, &path);
    assert_eq!(cache.get(&stat(&path)), None);
}

#[test]
fn what_counts_as_settled() {
    let second = 1_000_000_000;
    for (changed, modified, now_ms, want) in [
        (second + 1, second + 1, 1_050, false),
        (second + 1, second + 1, 1_200, true),
        // No fraction: the clock may be as coarse as two seconds.
        (second, second, 2_500, false),
        (second, second, 3_500, true),
        // From the future, by either time.
        (9 * second + 1, second + 1, 5_000, false),
        (second + 1, 9 * second + 1, 5_000, false),
    ] {
        let stat = Stat { modified, changed, ..numbered(1) };
        assert_eq!(
            settled(&stat, UNIX_EPOCH + Duration::from_millis(now_ms)),
            want,
            "{changed} {modified} {now_ms}"
        );
    }
}

#[test]
fn entries_survive_the_file_and_damage_empties_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = file_in(dir.path());
    let open = || HashCache::open(file.clone(), &limits(1000), later(Duration::ZERO));
    let cache = open();
    for number in 1..=100_u64 {
        let known = Known { sha256: Digest::of(&number.to_le_bytes()), marks: Marks::NONE };
        cache.put(&numbered(number), Held::File(known));
    }
    cache.mark(&numbered(7), Marks::SKILL);
    let names: Names = [(FileKind::File, "SKILL.md"), (FileKind::Directory, "scripts")].into_iter().collect();
    let empty: Names = [].into_iter().collect();
    cache.keep_names(&numbered(1001), names.clone());
    cache.keep_names(&numbered(1002), empty.clone());
    cache.save();
    // Saved twice, so that what was there before is carried over.
    let more = open();
    for number in 2001..=2100 {
        more.put(&numbered(number), Held::File(Known { sha256: Digest::of(b""), marks: Marks::NONE }));
    }
    more.save();

    let again = open();
    for number in 1..=100_u64 {
        let known = again.get(&numbered(number)).unwrap();
        assert_eq!(known.sha256, Digest::of(&number.to_le_bytes()));
        assert_eq!(known.marks.has(Marks::SKILL), number == 7);
    }
    assert_eq!(again.get(&numbered(101)), None);
    assert!(again.get(&numbered(2100)).is_some());
    assert_eq!(again.names(&numbered(1001)), Some(names));
    assert_eq!(again.names(&numbered(1002)), Some(empty));
    // A file is no directory, and the other way round.
    assert_eq!((again.get(&numbered(1001)), again.names(&numbered(7))), (None, None));

    let whole = std::fs::read(&file).unwrap();
    for position in [0, 9, 20, 27, 40, whole.len() / 2, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[position] ^= 1;
        std::fs::write(&file, &damaged).unwrap();
        assert_eq!(open().get(&numbered(7)), None, "byte {position}");
    }
    std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    assert_eq!(open().get(&numbered(7)), None);
}

#[test]
fn above_the_limit_only_what_is_new_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let file = file_in(dir.path());
    let known = Known { sha256: Digest::of(b""), marks: Marks::NONE };
    for range in [1..=60, 61..=120] {
        let cache = HashCache::open(file.clone(), &limits(100), later(Duration::ZERO));
        range.for_each(|number| cache.put(&numbered(number), Held::File(known)));
        cache.save();
    }
    let cache = HashCache::open(file, &limits(100), later(Duration::ZERO));
    assert_eq!((cache.get(&numbered(1)), cache.get(&numbered(100))), (None, Some(known)));
}

#[test]
fn a_few_entries_are_not_worth_a_write() {
    let dir = tempfile::tempdir().unwrap();
    let cache = HashCache::open(file_in(dir.path()), &limits(100), later(Duration::ZERO));
    cache.put(&numbered(1), Held::File(Known { sha256: Digest::of(b""), marks: Marks::NONE }));
    cache.save();
    assert!(!file_in(dir.path()).exists());
}

#[test]
fn it_is_written_only_when_something_was_learned_and_forgets_what_nobody_uses() {
    const DAY: Duration = Duration::from_hours(24);
    let dir = tempfile::tempdir().unwrap();
    let file = file_in(dir.path());
    let days = Limits::default().pack_cache_days;
    let after =
        |days: u64| HashCache::open(file.clone(), &limits(1000), later(DAY * u32::try_from(days).unwrap()));
    let known = Known { sha256: Digest::of(b""), marks: Marks::NONE };
    let cache = after(0);
    (1..=100).for_each(|number| cache.put(&numbered(number), Held::File(known)));
    cache.save();
    let written = || std::fs::metadata(&file).unwrap().ino();
    let first = written();
    cache.save();
    assert!(cache.get(&numbered(1)).is_some());
    cache.save();
    assert_eq!(written(), first, "it was written again although nothing was learned");
    let another = after(1);
    assert!(another.get(&numbered(1)).is_some());
    another.save();
    assert_eq!(written(), first, "it was written by a process that learned nothing");

    // Half the time later one of them is used; that is noted, so that it outlives the others.
    let later_on = after(days / 2 + 2);
    assert!(later_on.get(&numbered(1)).is_some());
    later_on.save();
    let second = written();
    assert_ne!(second, first);
    later_on.save();
    assert_eq!(written(), second, "the day is noted once");
    let much_later = after(days + 2);
    (201..=300).for_each(|number| much_later.put(&numbered(number), Held::File(known)));
    much_later.save();
    let last = after(days + 2);
    assert_eq!(
        (last.get(&numbered(1)), last.get(&numbered(2)), last.get(&numbered(201))),
        (Some(known), None, Some(known))
    );
}

//! Plays every file of `tests/scenarios` and compares its output; `GPULEASE_BLESS=1` rewrites them.

use std::fs;
use std::path::{Path, PathBuf};

use gpulease_tests::scenario;

const BLESS: &str = "GPULEASE_BLESS";

#[test]
fn scenarios_end_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let Ok(entries) = fs::read_dir(&folder) else {
        println!("skipped: the scenario files are not on this machine");
        return;
    };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "txt"));
    files.sort();
    assert!(!files.is_empty(), "there are no scenarios in {}", folder.display());
    let bless = std::env::var_os(BLESS).is_some_and(|value| value == "1");
    let wrong: Vec<String> = files.iter().filter_map(|path| difference(path, bless)).collect();
    assert!(wrong.is_empty(), "{}\n{BLESS}=1 rewrites the files; then read the diff", wrong.join("\n"));
}

/// What is different in a file, if anything is.
fn difference(path: &Path, bless: bool) -> Option<String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let written = fs::read_to_string(path).unwrap_or_else(|e| panic!("{name}: {e}"));
    let fresh = scenario::play(&written).unwrap_or_else(|e| panic!("{name}: {e}"));
    if fresh == written {
        return None;
    }
    if bless {
        fs::write(path, fresh).unwrap_or_else(|e| panic!("{name}: {e}"));
        return None;
    }
    let (is, was): (Vec<&str>, Vec<&str>) = (fresh.lines().collect(), written.lines().collect());
    let at = is.iter().zip(&was).position(|(is, was)| is != was).unwrap_or(is.len().min(was.len()));
    let line = |lines: &[&str]| lines.get(at).map_or("(end of file)".to_owned(), |line| (*line).to_owned());
    Some(format!("{name}, line {}:\n  written {}\n  now     {}", at + 1, line(&was), line(&is)))
}

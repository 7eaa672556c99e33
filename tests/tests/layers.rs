//! The layers of the workspace: which crate may depend on which, what the arbiter may not touch,
//! and how large a file and a function may be.
//!
//! The sources are read from the workspace this test was built in; where they are gone (a test
//! bundle on another machine) each test says so and passes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::rust_source::{functions, without_comments_and_strings, without_tests};

const FILE_LINES_MAX: usize = 400;
const FUNCTION_LINES_MAX: usize = 70;

/// What each crate may name of the others, in `[dependencies]` and `[build-dependencies]`.
/// The one upward edge is the command line's `demo`, which links the daemon and the examples.
const MAY_DEPEND_ON: &[(&str, &[&str])] = &[
    ("gpulease-words", &[]),
    ("gpulease-proto", &["gpulease-words"]),
    ("gpulease-arbiter", &["gpulease-words"]),
    ("gpulease-cuda", &["gpulease-words"]),
    ("gpulease-broker", &["gpulease-words", "gpulease-proto", "gpulease-arbiter", "gpulease-cuda"]),
    ("gpulease-client", &["gpulease-words", "gpulease-proto", "gpulease-cuda"]),
    ("gpulease-preload", &["gpulease-words", "gpulease-client", "gpulease-cuda"]),
    ("gpulease-python", &["gpulease-words", "gpulease-client", "gpulease-cuda"]),
    ("gpulease-examples", &["gpulease-words", "gpulease-client", "gpulease-cuda"]),
    (
        "gpulease-cli",
        &[
            "gpulease-words",
            "gpulease-proto",
            "gpulease-client",
            "gpulease-cuda",
            "gpulease-broker",
            "gpulease-examples",
        ],
    ),
    ("gpulease-tests-linked", &[]),
    ("gpulease-standin-card", &["gpulease-words"]),
    ("gpulease-standin-cuda", &["gpulease-words", "gpulease-standin-card"]),
    ("gpulease-standin-nvml", &["gpulease-words", "gpulease-standin-card"]),
];

/// What must not occur in the arbiter, with the reason that is shown.
const BANNED_IN_ARBITER: &[(&str, &str)] = &[
    ("tokio", "the core does no I/O"),
    ("tonic", "the core knows no transport"),
    ("dashmap", "order is behaviour, and one task owns the core"),
    ("tracing", "the core says what happened by its effects"),
    ("std::sync", "one task owns the core"),
    ("std::thread", "one task owns the core"),
    ("Instant", "time is handed in"),
    ("SystemTime", "time is handed in"),
    ("HashMap", "order is behaviour"),
    ("HashSet", "order is behaviour"),
    ("rand", "the core draws no lots"),
    ("getrandom", "the core draws no lots"),
    ("async", "the core never waits"),
    ("unsafe", "the core needs none"),
    ("println", "the core does no I/O"),
];

/// The broker's resources and what they must not know.
const RESOURCES: &[&str] = &["arena", "device", "journal", "witness", "tickets"];
const UNKNOWN_TO_RESOURCES: &[&str] =
    &["gpulease_arbiter", "tonic", "gpulease_proto", "crate::driver", "crate::grpc"];

/// The workspace's root, or `None` (and a line) where its sources are not here.
fn workspace() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf);
    let found = root.filter(|root| root.join("broker/arbiter/src/lib.rs").is_file());
    if found.is_none() {
        println!("skipped: the sources of the workspace are not on this machine");
    }
    found
}

fn manifests(root: &Path) -> BTreeMap<String, (PathBuf, toml::Table)> {
    let read = |path: &Path| -> toml::Table {
        let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        text.parse().unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    let members = read(&root.join("Cargo.toml"))["workspace"]["members"].clone();
    let members = members.as_array().expect("members are a list").clone();
    let named = members.iter().map(|member| {
        let folder = root.join(member.as_str().expect("a member is a path"));
        let manifest = read(&folder.join("Cargo.toml"));
        let name = manifest["package"]["name"].as_str().expect("a package has a name").to_owned();
        (name, (folder, manifest))
    });
    named.collect()
}

fn dependencies<'a>(manifest: &'a toml::Table, sections: &[&str]) -> Vec<&'a str> {
    let tables = sections.iter().filter_map(|section| manifest.get(*section)?.as_table());
    tables.flat_map(|table| table.keys().map(String::as_str)).collect()
}

/// All `.rs` files below a folder, in order of their paths.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.sort();
    let below = paths.into_iter().flat_map(|path| match path.is_dir() {
        true => sources(&path),
        false if path.extension().is_some_and(|e| e == "rs") => vec![path],
        false => Vec::new(),
    });
    below.collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn crates_depend_only_downwards() {
    let Some(root) = workspace() else { return };
    let allowed: BTreeMap<&str, &[&str]> = MAY_DEPEND_ON.iter().copied().collect();
    let mut wrong = Vec::new();
    for (name, (_, manifest)) in manifests(&root) {
        let Some(allowed) = allowed.get(name.as_str()) else {
            // The tests may look at everything.
            assert_eq!(name, "gpulease-tests", "a new crate needs its line in MAY_DEPEND_ON");
            continue;
        };
        let ours = dependencies(&manifest, &["dependencies", "build-dependencies"]);
        let ours = ours.into_iter().filter(|dependency| dependency.starts_with("gpulease-"));
        wrong.extend(ours.filter(|d| !allowed.contains(d)).map(|d| format!("{name} depends on {d}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn words_and_arbiter_stand_alone() {
    let Some(root) = workspace() else { return };
    let manifests = manifests(&root);
    let all = |name: &str| dependencies(&manifests[name].1, &["dependencies", "build-dependencies"]);
    assert_eq!(all("gpulease-words"), Vec::<&str>::new());
    assert_eq!(all("gpulease-arbiter"), ["gpulease-words"]);
}

#[test]
fn the_arbiter_touches_nothing_of_the_world() {
    let Some(root) = workspace() else { return };
    let mut found = Vec::new();
    for path in sources(&root.join("broker/arbiter/src")) {
        let code = without_tests(&without_comments_and_strings(&read(&path)));
        found.extend(
            banned(&code, BANNED_IN_ARBITER)
                .map(|(line, word, why)| format!("{}:{line}: {word}: {why}", path.display())),
        );
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// The lines of `code` that hold a banned word as a word of its own.
fn banned<'a>(
    code: &'a str,
    words: &'a [(&'a str, &'a str)],
) -> impl Iterator<Item = (usize, &'a str, &'a str)> + 'a {
    code.lines().enumerate().flat_map(move |(i, line)| {
        let hits = words.iter().filter(|(word, _)| holds_word(line, word));
        hits.map(move |(word, why)| (i + 1, *word, *why)).collect::<Vec<_>>()
    })
}

fn holds_word(line: &str, word: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(part_of_name) && !after.is_some_and(part_of_name)
    })
}

#[test]
fn resources_know_no_policy() {
    let Some(root) = workspace() else { return };
    let broker = root.join("broker/src");
    let banned_words: Vec<(&str, &str)> =
        UNKNOWN_TO_RESOURCES.iter().map(|word| (*word, "a resource knows nothing above it")).collect();
    let mut found = Vec::new();
    for resource in RESOURCES {
        let mut files = sources(&broker.join(resource));
        files.extend(Some(broker.join(format!("{resource}.rs"))).filter(|path| path.is_file()));
        for path in files {
            let code = without_tests(&without_comments_and_strings(&read(&path)));
            found.extend(
                banned(&code, &banned_words)
                    .map(|(line, word, why)| format!("{}:{line}: {word}: {why}", path.display())),
            );
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn only_the_driver_owns_the_arbiter() {
    let Some(root) = workspace() else { return };
    let makes_one = |path: &PathBuf| {
        let code = without_tests(&without_comments_and_strings(&read(path)));
        code.lines().any(|line| line.contains("Arbiter::new"))
    };
    let owners: Vec<PathBuf> = sources(&root.join("broker/src")).into_iter().filter(makes_one).collect();
    assert!(owners.len() <= 1, "one task owns the arbiter, made in one place: {owners:#?}");
}

#[test]
fn files_and_functions_stay_small() {
    let Some(root) = workspace() else { return };
    let mut large = Vec::new();
    for (folder, _) in manifests(&root).into_values() {
        // Tests don't count, in a file of their own neither.
        let is_code = |path: &PathBuf| path.file_name().is_none_or(|name| name != "tests.rs");
        for path in sources(&folder.join("src")).into_iter().filter(is_code) {
            let text = read(&path);
            let lines = text.lines().count() - tests_lines(&text);
            if lines > FILE_LINES_MAX {
                large.push(format!("{}: {lines} lines", path.display()));
            }
            let code = without_tests(&without_comments_and_strings(&text));
            let long = functions(&code).into_iter().filter(|f| f.lines > FUNCTION_LINES_MAX);
            large.extend(
                long.map(|f| format!("{}:{}: fn {} has {} lines", path.display(), f.line, f.name, f.lines)),
            );
        }
    }
    assert!(
        large.is_empty(),
        "at most {FILE_LINES_MAX} lines a file and {FUNCTION_LINES_MAX} a function: {large:#?}"
    );
}

fn tests_lines(text: &str) -> usize {
    let code = without_comments_and_strings(text);
    let kept = without_tests(&code);
    code.lines().zip(kept.lines()).filter(|(all, kept)| all != kept).count()
}

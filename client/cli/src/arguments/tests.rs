use clap::CommandFactory as _;

use super::*;

fn parse(line: &str) -> Result<Arguments, clap::Error> {
    Arguments::read(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
}

fn run(line: &str) -> Box<RunArguments> {
    match parse(line).expect(line).command {
        Some(Command::Run(arguments)) => arguments,
        other => panic!("{line} is {other:?}"),
    }
}

#[test]
fn the_model_is_consistent() {
    Arguments::command().debug_assert();
}

#[test]
fn a_run_with_everything() {
    let arguments =
        run("gpulease run -m 8GiB..20GiB --gpus 2 -t 4h -n resnet --pinned --wait 10m -- ./train -m 3");
    assert_eq!(arguments.wish.memory, "8GiB..20GiB".parse().expect("a size"));
    assert_eq!(arguments.wish.gpus, NonZeroU32::new(2));
    assert_eq!(arguments.time, Some(Duration::from_secs(4 * 3600)));
    assert_eq!(arguments.wish.wait, Some(Duration::from_secs(600)));
    assert_eq!(arguments.command, ["./train", "-m", "3"]);
    let devices = run("gpulease --json run -m 1G --device 0,GPU-1 -- x").wish.device.clone();
    assert_eq!(devices, ["0", "GPU-1"]);
}

#[test]
fn alone_it_is_the_state() {
    let alone = parse("gpulease --json --watch").expect("the state");
    assert!(alone.command.is_none() && alone.common.json && alone.status.watch);
    assert!(
        matches!(parse("gpulease status --watch").expect("status").command, Some(Command::Status(s)) if s.watch)
    );
}

#[test]
fn nonsense_is_refused_with_what_to_do() {
    for (line, word) in [
        ("gpulease run -m 8GiB", "CMD"),
        ("gpulease run -m 8GiB python", "after `--`"),
        ("gpulease run -- python", "--memory"),
        ("gpulease run -m 8 -- python", "no unit"),
        ("gpulease run -m 0GiB -- python", "at least 2MiB"),
        ("gpulease run -m 1G --gpus 0 -- python", "0"),
        ("gpulease run -m 1G --gpus 2 --device 0 -- python", "cannot be used with"),
        ("gpulease run -m 1G --no-wait --wait 5s -- python", "cannot be used with"),
        ("gpulease run -m 1G --wait 90 -- python", "90s"),
        ("gpulease run -m 1G -t 0s -- python", "1s or more"),
        ("gpulease release", "ID"),
        ("gpulease release seven", "like L7"),
        ("gpulease why 3", "ask like a3"),
        ("gpulease frobnicate", "frobnicate"),
        ("gpulease completion tcsh", "bash"),
    ] {
        let error = parse(line).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
        assert!(error.to_string().contains(word), "{line}: {error}");
    }
}

#[test]
fn help_shows_examples_and_codes() {
    let help = Arguments::command().render_long_help().to_string();
    assert!(help.contains("gpulease run -m 8GiB -- python train.py"), "{help}");
    assert!(help.contains("69  no broker answers"), "{help}");
}

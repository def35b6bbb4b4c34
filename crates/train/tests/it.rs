//! The program, from the command line to the file.

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use slackline_forecast::{Fitted, Kind, time};

/// A series of some days: twice the demand at noon than at midnight, and noise.
fn series(days: i64) -> String {
    let mut text = String::from("period,count\n");
    let mut noise = 1u64;
    for minute in 0..days * 1440 {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let share = (noise >> 33) as f64 / (1u64 << 31) as f64;
        let of_day = (minute % 1440) as f64 / 1440.0;
        let usual = 300.0 - 100.0 * (std::f64::consts::TAU * of_day).cos();
        let _ = writeln!(text, "{},{}", time::format(minute * 60), (usual * (0.9 + 0.2 * share)).round());
    }
    text
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_slackline-train")).args(arguments).output().expect("the program starts")
}

fn fails(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn path(directory: &Path, name: &str) -> String {
    directory.join(name).display().to_string()
}

#[test]
fn every_kind_is_fitted_written_and_read_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let (demand, out) = (path(directory.path(), "demand.csv"), path(directory.path(), "model.json"));
    std::fs::write(&demand, series(6)).expect("the series is written");
    for kind in Kind::ALL {
        let output = run(&[
            "fit",
            "--series",
            &demand,
            "--model",
            kind.name(),
            "--step",
            "15m",
            "--horizon",
            "2",
            "--out",
            &out,
        ]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let model = Fitted::load(Path::new(&out), 900).expect("it loads");
        assert_eq!((model.kind(), model.frame().horizon), (kind, 2));
        // At midnight a quarter of an hour has about 3,000.
        let said = model.forecast(&vec![Some(3_000.0); model.window()], 6 * 86_400).expect("it forecasts");
        assert!((4_000.0..8_000.0).contains(&said), "{kind}: {said}");
    }
}

#[test]
fn evaluation_compares_all_models_on_the_same_points() {
    let directory = tempfile::tempdir().expect("a directory");
    let (demand, plots) = (path(directory.path(), "demand.csv"), path(directory.path(), "plots"));
    std::fs::write(&demand, series(8)).expect("the series is written");
    let arguments = ["eval", "--series", &demand, "--step", "1h", "--horizon", "6", "--json", "--plot", &plots];
    let output = run(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(
        (&report["step_s"], &report["horizon"], &report["series"]),
        (&3600.into(), &6.into(), &demand.clone().into())
    );
    let models = report["models"].as_array().expect("a list");
    let names: Vec<&str> = models.iter().filter_map(|model| model["model"].as_str()).collect();
    assert_eq!(names, Kind::ALL.map(Kind::name));
    let of = |name: &str| {
        models.iter().find(|model| model["model"] == name).and_then(|model| model["of_random_walk"].as_f64())
    };
    assert_eq!(of("random-walk"), Some(1.0));
    // The demand is the course of a day, and some noise.
    for name in ["seasonal", "arima", "lstm"] {
        assert!(of(name).expect("a number") < 0.5, "{report}");
    }
    // Of 192 hours, 153 are fitted to; the last forecast is made six hours before the end.
    assert_eq!(report["points"], 192 - 153 - 5);

    for figure in ["forecast-errors.svg", "forecast-last-day.svg"] {
        let drawn = std::fs::read_to_string(Path::new(&plots).join(figure)).expect("it is drawn");
        assert!(drawn.contains("lstm") && !drawn.contains("NaN"), "{figure}");
    }

    // The same seed gives the same errors.
    let again: Value = serde_json::from_slice(&run(&arguments).stdout).expect("it is JSON");
    let errors = |report: &Value| {
        report["models"].as_array().expect("a list").iter().map(|model| model["mae"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(errors(&again), errors(&report));
}

#[test]
fn what_comes_later_changes_no_forecast_before() {
    let directory = tempfile::tempdir().expect("a directory");
    let (short, long) = (path(directory.path(), "short.csv"), path(directory.path(), "long.csv"));
    let text = series(8);
    std::fs::write(&short, &text).expect("the series is written");
    // The same, and two days of something else.
    let later: String = (8 * 1440..10 * 1440).map(|minute| format!("{},9999\n", time::format(minute * 60))).collect();
    std::fs::write(&long, text + &later).expect("the series is written");

    let errors = |demand: &str, train: &str| {
        let output =
            run(&["eval", "--series", demand, "--step", "1h", "--until", "1970-01-09", "--train", train, "--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
        report["models"].as_array().expect("a list").iter().map(|model| model["mae"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(errors(&short, "0.8"), errors(&long, "0.8"));
}

#[test]
fn bad_input_is_refused_in_one_sentence() {
    let directory = tempfile::tempdir().expect("a directory");
    let demand = path(directory.path(), "demand.csv");
    let fit = ["fit", "--series", &demand, "--model", "lstm", "--out", "/dev/null"];
    assert!(fails(&fit).contains("cannot read the series"), "it is missing");

    std::fs::write(&demand, "period,count\n1998-04-30 21:31:00,2\n1998-04-30 21:30:00,2\n").expect("it is written");
    let error = fails(&fit);
    assert!(error.contains("line 3: the time goes back") && error.lines().count() == 1, "{error}");

    std::fs::write(&demand, "period,count\n1998-04-30 21:30:00,2\n1998-04-30 21:31:00,2\n").expect("it is written");
    let error = fails(&fit);
    assert!(error.contains("the series is too short") && error.lines().count() == 1, "{error}");
    assert!(fails(&["eval", "--series", &demand]).contains("too short"));
    assert!(fails(&["eval", "--series", &demand, "--horizon", "0"]).contains("a horizon of 0 makes no sense"));
    assert!(fails(&["eval", "--series", &demand, "--step", "30s"]).contains("a step of 30 s makes no sense"));
    assert!(fails(&["eval", "--series", &demand, "--step", "1h"]).contains("has no whole step of 3600 s"));
}

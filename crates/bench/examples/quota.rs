//! `bench quota` on its own, for a profiler: `[--live] [TRACE FORMAT [LIMIT [PLOTS]]]`.

use slackline_bench::quota::{QuotaOptions, quota};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut options = QuotaOptions::default();
    if arguments.first().is_some_and(|first| first == "--live") {
        arguments.remove(0);
        (options.live, options.sites) = (Some(".".into()), 3);
        (options.speed, options.events) = (20.0, Some(2_000));
    }
    if let [path, format, ..] = &arguments[..] {
        options.trace = Some((path.into(), format.parse()?));
    }
    if let Some(limit) = arguments.get(2) {
        options.limit = limit.parse()?;
    }
    let report = quota(&options)?;
    print!("{}", report.to_table());
    if let Some(directory) = arguments.get(3) {
        report.plot(directory.as_ref())?;
    }
    Ok(())
}

//! `bench quota` on its own, for a profiler: [TRACE FORMAT LIMIT [PLOTS]].
use slackline_bench::quota::{Limit, QuotaOptions, quota};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut options = QuotaOptions::default();
    if let [path, format, limit, ..] = &arguments[..] {
        options.trace = Some((path.into(), format.parse()?));
        options.limit = limit.parse()?;
    }
    if let [limit] = &arguments[..] {
        options.limit = limit.parse::<Limit>()?;
    }
    let report = quota(&options)?;
    print!("{}", report.to_table());
    println!("{}", report.to_json());
    if let Some(directory) = arguments.get(3) {
        report.plot(directory.as_ref())?;
    }
    Ok(())
}

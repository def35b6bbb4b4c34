//! `bench hot --live` and `bench footprint` on their own: `BINARY hot|footprint [CALLERS|QUOTAS]`.

use std::path::PathBuf;

use slackline_bench::footprint::{FootprintOptions, footprint};
use slackline_bench::hot::{HotOptions, Live, hot};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [binary, workload, rest @ ..] = &arguments[..] else { return Err("BINARY hot|footprint [NUMBER]".into()) };
    let number = rest.first().map(|text| text.parse::<usize>()).transpose()?;
    let report = match workload.as_str() {
        "sim" => hot(&HotOptions { callers: vec![1, 64, 512], ..HotOptions::default() })?,
        "hot" => {
            let live = Some(Live { binary: Some(binary.into()), directory: PathBuf::from(".") });
            hot(&HotOptions { callers: vec![number.unwrap_or(64)], live, ..HotOptions::default() })?
        }
        _ => {
            let mut options =
                FootprintOptions::new(Live { binary: Some(binary.into()), directory: PathBuf::from(".") });
            options.quotas = number.unwrap_or(options.quotas);
            footprint(&options)?
        }
    };
    print!("{}", report.to_table());
    Ok(())
}

//! `bench core` on its own, for a profiler.
fn main() {
    let number = |at: usize| std::env::args().nth(at).and_then(|text| text.parse::<u64>().ok());
    let mut options = slackline_bench::handle::CoreOptions::default();
    if let Some(batch) = number(1) {
        options.batches = vec![batch as usize];
    }
    if let Some(acquires) = number(2) {
        options.acquires = acquires;
    }
    print!("{}", slackline_bench::handle::core(&options).to_table());
}

//! The model check in small, for every test run; the large one is `cargo run --release -p slackline-model`.

use slackline_model::setups;

#[test]
fn every_setup_holds_as_far_as_a_test_run_reaches() {
    for setup in setups() {
        let explored = setup.explore(20_000);
        assert!(explored.unique > 5_000 || explored.exhausted, "{explored:?}");
        assert!(explored.violation.is_none(), "{explored:#?}");
    }
}

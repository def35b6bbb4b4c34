//! Logarithms of demand.
//!
//! Demand of a service grows and falls by factors: its changes at night and by day, before and after it became popular, are alike in
//! their logarithms. A model of those that was fitted at one level serves at another.

/// The logarithm of a demand. One is added, so that there is one of 0; [`f64::exp_m1`] is the inverse. What is no number stays none.
pub fn log(demand: f64) -> f64 {
    let demand = if demand < 0.0 { 0.0 } else { demand };
    demand.ln_1p()
}

//! Demand models: what forecasts the demand of a quota from the demand before.
//!
//! # The problem
//!
//! A site grants from the tokens that it has. It asks for more before they run out, so it needs to know what is likely to be asked of
//! it soon. A model gives that number. It decides when tokens move, and never what a site may grant: a forecast that is wrong costs
//! messages, and nothing else.
//!
//! # Words
//!
//! - A [`Series`] has the demand of each *step*: a minute, or a whole number of minutes. A step that was not observed is a *gap*, which is
//!   not a zero: nothing is known of it.
//! - A [`Model`] reads a *window*, the steps just before now, and forecasts the sum of the next steps, as many as its *horizon*. It does
//!   so only where the window has no gap.
//! - A [`Fitted`] model is a kind with its parameters, for a [`Frame`]: a step and a horizon. A file has one as JSON.
//!
//! | kind | what it says of the next steps | parameters |
//! | --- | --- | --- |
//! | [`RandomWalk`] | each is like the last step | none |
//! | [`Seasonal`] | the level of the last steps, by the usual course of the day | the course of a day |
//! | [`Ewma`] | each is the exponentially weighted mean of the last steps | the weight of the last step |
//! | [`Arima`] | the logarithm changes as changes before say: an autoregression on differences | lags and coefficients |
//! | [`Lstm`] | the same, by a small recurrent net | its weights |
//!
//! Nothing here fits a model: `slackline-train` does, which is not part of a site. Nothing here reads a clock.

mod arima;
mod ewma;
mod file;
mod logs;
mod lstm;
mod model;
mod random_walk;
mod seasonal;
mod series;
pub mod time;

pub use arima::Arima;
pub use ewma::Ewma;
pub use file::{Fitted, LoadError, Parameters};
pub use logs::log;
pub use lstm::{Features, Lstm, Seen, State, tanh};
pub use model::{Frame, Kind, LONGEST_WINDOW, Model};
pub use random_walk::RandomWalk;
pub use seasonal::Seasonal;
pub use series::{Series, SeriesError};

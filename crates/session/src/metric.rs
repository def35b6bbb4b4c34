//! Metrics and statements, as programs write them: numbers computed from counters of several regions, and what can be said of
//! them (*Predictive Treaties*, EuroSys 2019, section 5.1).
//!
//! ```
//! use slackline_session::key::Key;
//!
//! let margin = |region: &str| Key::new(region, "votes/a").metric() - Key::new(region, "votes/b").metric();
//! let a_leads = (margin("us") + margin("eu")).at_least(1);
//! assert_eq!(a_leads.to_string(), "us:votes/a - us:votes/b + eu:votes/a - eu:votes/b >= 1");
//! ```

use std::fmt;
use std::ops::{Add, Mul, Neg, Sub};

use slackline_core::object::{self, ObjectKey, is_key, treaty};

use crate::key::Key;
use crate::outcome::Reason;
use crate::topology::Topology;

/// A number computed from counters. A counter that is not there counts as zero.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Metric(Form);

/// What a metric is.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Form {
    Counter(Key),
    Log2(Key),
    Everywhere(String),
    /// The sum of the counters of one name in these regions, by position, which were all of the cluster when it was placed.
    Across(String, Vec<u16>, Vec<Key>),
    Sum(Vec<Metric>),
    Times(i64, Box<Metric>),
    Min(Vec<Metric>),
}

/// Something that is said of metrics, and that is true or false.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statement(Says);

/// What a statement says.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Says {
    AtLeast(Metric, i64),
    AtMost(Metric, i64),
    Equals(Metric, i64),
    All(Vec<Statement>),
}

impl Key {
    /// The number that this counter has come to.
    pub fn metric(&self) -> Metric {
        Metric(Form::Counter(self.clone()))
    }

    /// The binary logarithm of this counter, rounded down; -1 of a counter below one. For what grows by doubling.
    pub fn log2(&self) -> Metric {
        Metric(Form::Log2(self.clone()))
    }
}

impl Metric {
    /// The smaller of two.
    pub fn min(self, other: Metric) -> Metric {
        let mut metrics = match self.0 {
            Form::Min(metrics) => metrics,
            form => vec![Metric(form)],
        };
        metrics.push(other);
        Metric(Form::Min(metrics))
    }

    /// The sum of the counters of one name in all regions of the cluster. It takes as much room as one counter, so a statement
    /// can be about thousands of things that every region counts.
    pub fn everywhere(name: impl Into<String>) -> Metric {
        Metric(Form::Everywhere(name.into()))
    }

    /// The sum of several; zero if there are none.
    pub fn sum(metrics: impl IntoIterator<Item = Metric>) -> Metric {
        Metric(Form::Sum(metrics.into_iter().collect()))
    }

    /// Says that it is this number or more.
    pub fn at_least(self, number: i64) -> Statement {
        Statement(Says::AtLeast(self, number))
    }

    /// Says that it is this number or less.
    pub fn at_most(self, number: i64) -> Statement {
        Statement(Says::AtMost(self, number))
    }

    /// Says that it is this number.
    pub fn equals(self, number: i64) -> Statement {
        Statement(Says::Equals(self, number))
    }

    /// The metric over positions of regions instead of their names.
    pub(crate) fn place(&self, topology: &Topology) -> Result<treaty::Metric, Reason> {
        let all = |metrics: &[Metric]| metrics.iter().map(|metric| metric.place(topology)).collect::<Result<_, _>>();
        Ok(match &self.0 {
            Form::Counter(key) => treaty::Metric::Counter(place(key, topology)?),
            Form::Log2(key) => treaty::Metric::Log2(place(key, topology)?),
            Form::Everywhere(name) => {
                check_name(name, topology)?;
                treaty::Metric::Everywhere(name.clone(), topology.homes().into_iter().collect())
            }
            Form::Across(name, homes, _) => treaty::Metric::Everywhere(name.clone(), homes.clone()),
            Form::Sum(metrics) => treaty::Metric::Sum(all(metrics)?),
            Form::Times(factor, metric) => treaty::Metric::Times(*factor, Box::new(metric.place(topology)?)),
            Form::Min(metrics) => treaty::Metric::Min(all(metrics)?),
        })
    }

    /// The metric that is over these positions.
    fn named(metric: &treaty::Metric, topology: &Topology) -> Self {
        let all = |metrics: &[treaty::Metric]| metrics.iter().map(|metric| Self::named(metric, topology)).collect();
        Metric(match metric {
            treaty::Metric::Counter(key) => Form::Counter(topology.key(key)),
            treaty::Metric::Log2(key) => Form::Log2(topology.key(key)),
            treaty::Metric::Everywhere(name, homes) if homes.iter().copied().eq(topology.homes()) => {
                Form::Everywhere(name.clone())
            }
            // It is what it was when it was made, though the cluster has other regions by now: placed again, it is the same.
            treaty::Metric::Everywhere(name, homes) => {
                let counter = |home: &u16| topology.key(&ObjectKey::new(*home, name.clone()));
                Form::Across(name.clone(), homes.clone(), homes.iter().map(counter).collect())
            }
            treaty::Metric::Sum(metrics) => Form::Sum(all(metrics)),
            treaty::Metric::Times(factor, metric) => Form::Times(*factor, Box::new(Self::named(metric, topology))),
            treaty::Metric::Min(metrics) => Form::Min(all(metrics)),
        })
    }
}

/// The object of a key.
fn place(key: &Key, topology: &Topology) -> Result<ObjectKey, Reason> {
    let unknown = || Reason::UnknownRegion { region: key.region().to_owned(), known: topology.regions.clone() };
    let home = topology.region(key.region()).ok_or_else(unknown)?;
    check_name(key.name(), topology)?;
    Ok(ObjectKey::new(home, key.name()))
}

/// An error if no object can have this name.
fn check_name(name: &str, topology: &Topology) -> Result<(), Reason> {
    if is_key(name) {
        return Ok(());
    }
    let abort = object::Abort { key: None, ..object::Abort::of(object::Cause::InvalidKey) };
    Err(Reason::of_abort(abort, topology))
}

impl Statement {
    /// Says that all of these are true.
    pub fn all(statements: impl IntoIterator<Item = Statement>) -> Statement {
        Statement(Says::All(statements.into_iter().collect()))
    }

    /// The statement over positions of regions instead of their names.
    pub(crate) fn place(&self, topology: &Topology) -> Result<treaty::Statement, Reason> {
        Ok(match &self.0 {
            Says::AtLeast(metric, number) => treaty::Statement::AtLeast(metric.place(topology)?, *number),
            Says::AtMost(metric, number) => treaty::Statement::AtMost(metric.place(topology)?, *number),
            Says::Equals(metric, number) => treaty::Statement::Equals(metric.place(topology)?, *number),
            Says::All(statements) => {
                let all = statements.iter().map(|statement| statement.place(topology)).collect::<Result<_, _>>()?;
                treaty::Statement::All(all)
            }
        })
    }

    /// The statement that is over these positions.
    pub fn named(statement: &treaty::Statement, topology: &Topology) -> Self {
        let metric = |metric: &treaty::Metric| Metric::named(metric, topology);
        Statement(match statement {
            treaty::Statement::AtLeast(of, number) => Says::AtLeast(metric(of), *number),
            treaty::Statement::AtMost(of, number) => Says::AtMost(metric(of), *number),
            treaty::Statement::Equals(of, number) => Says::Equals(metric(of), *number),
            treaty::Statement::All(statements) => {
                Says::All(statements.iter().map(|statement| Self::named(statement, topology)).collect())
            }
        })
    }
}

impl Add for Metric {
    type Output = Metric;

    fn add(self, other: Metric) -> Metric {
        let mut metrics = match self.0 {
            Form::Sum(metrics) => metrics,
            form => vec![Metric(form)],
        };
        match other.0 {
            Form::Sum(more) => metrics.extend(more),
            form => metrics.push(Metric(form)),
        }
        Metric(Form::Sum(metrics))
    }
}

impl Sub for Metric {
    type Output = Metric;

    fn sub(self, other: Metric) -> Metric {
        self + -other
    }
}

impl Neg for Metric {
    type Output = Metric;

    fn neg(self) -> Metric {
        self * -1
    }
}

impl Mul<i64> for Metric {
    type Output = Metric;

    fn mul(self, factor: i64) -> Metric {
        match self.0 {
            Form::Times(other, metric) if other.checked_mul(factor).is_some() => {
                Metric(Form::Times(other * factor, metric))
            }
            form => Metric(Form::Times(factor, Box::new(Metric(form)))),
        }
    }
}

impl std::iter::Sum for Metric {
    fn sum<I: Iterator<Item = Metric>>(metrics: I) -> Metric {
        Metric::sum(metrics)
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Form::Counter(key) => key.fmt(f),
            Form::Log2(key) => write!(f, "log2({key})"),
            Form::Everywhere(name) => write!(f, "*:{name}"),
            Form::Across(_, _, counters) => {
                let counters: Vec<String> = counters.iter().map(Key::to_string).collect();
                f.write_str(&counters.join(" + "))
            }
            Form::Sum(metrics) if metrics.is_empty() => f.write_str("0"),
            Form::Sum(metrics) => {
                for (at, metric) in metrics.iter().enumerate() {
                    match &metric.0 {
                        Form::Times(-1, metric) if at > 0 => write!(f, " - {}", Factor(metric))?,
                        Form::Times(factor, metric) if *factor < 0 && at > 0 => {
                            write!(f, " - {} * {}", factor.unsigned_abs(), Factor(metric))?;
                        }
                        _ if at > 0 => write!(f, " + {metric}")?,
                        _ => metric.fmt(f)?,
                    }
                }
                Ok(())
            }
            Form::Times(-1, metric) => write!(f, "-{}", Factor(metric)),
            Form::Times(factor, metric) => write!(f, "{factor} * {}", Factor(metric)),
            Form::Min(metrics) => {
                let metrics: Vec<String> = metrics.iter().map(Metric::to_string).collect();
                write!(f, "min({})", metrics.join(", "))
            }
        }
    }
}

/// A metric as a factor: a sum stands in parentheses.
struct Factor<'a>(&'a Metric);

impl fmt::Display for Factor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.0 {
            Form::Sum(_) | Form::Across(..) | Form::Times(..) => write!(f, "({})", self.0),
            _ => self.0.fmt(f),
        }
    }
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Says::AtLeast(metric, number) => write!(f, "{metric} >= {number}"),
            Says::AtMost(metric, number) => write!(f, "{metric} <= {number}"),
            Says::Equals(metric, number) => write!(f, "{metric} = {number}"),
            Says::All(statements) => {
                let statements: Vec<String> = statements.iter().map(Statement::to_string).collect();
                f.write_str(&statements.join(" and "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_read_as_they_are_written() {
        let (x, y) = (|| Key::new("us", "x").metric(), || Key::new("eu", "y").metric());
        let told = |metric: Metric, text: &str| assert_eq!(metric.to_string(), text);
        told(x() - y() + x() * 3, "us:x - eu:y + 3 * us:x");
        told((x() + y()) * -2, "-2 * (us:x + eu:y)");
        told(x() - y() * 2, "us:x - 2 * eu:y");
        told(-(x() + y()), "-(us:x + eu:y)");
        told(x().min(y()).min(Key::new("ap", "z").log2()), "min(us:x, eu:y, log2(ap:z))");
        told(Metric::sum([]), "0");
        told(Metric::everywhere("votes/a") - Metric::everywhere("votes/b"), "*:votes/a - *:votes/b");
        let all = Statement::all([x().at_most(3), y().equals(-1)]);
        assert_eq!(all.to_string(), "us:x <= 3 and eu:y = -1");
    }

    /// What was said of all regions is placed as it was, though there are more of them by now: else nobody would find the treaty true.
    #[test]
    fn metric_of_all_regions_of_before_is_the_same_when_it_is_placed_again() {
        let regions = ["us", "eu", "ap"].map(String::from).to_vec();
        let topology = Topology { cluster: "test".into(), regions, lanes: 1, sites: Vec::new() };
        for (homes, text) in [(vec![0, 1], "us:n + eu:n >= 3"), (vec![0, 1, 2], "*:n >= 3")] {
            let placed = treaty::Statement::AtLeast(treaty::Metric::Everywhere("n".into(), homes), 3);
            let named = Statement::named(&placed, &topology);
            assert_eq!(named.to_string(), text);
            assert_eq!(named.place(&topology).ok(), Some(placed), "placed again it is another one");
        }
        let minus = treaty::Metric::Times(-1, Box::new(treaty::Metric::Everywhere("n".into(), vec![0, 1])));
        assert_eq!(Metric::named(&minus, &topology).to_string(), "-(us:n + eu:n)");
    }
}

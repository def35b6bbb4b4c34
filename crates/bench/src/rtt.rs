//! Round trips between the sites of a benchmark.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use slackline_wire::rtt::{RttError, RttTable};

/// The source of round-trip times.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rtt {
    /// The built-in table of AWS regions.
    Aws,
    /// The built-in table of GCP regions: those of the Samya paper.
    Gcp,
    /// A CSV file, `from,to,rtt_ms`.
    File(PathBuf),
}

impl FromStr for Rtt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "" => return Err("name a table: aws, gcp or a CSV file".into()),
            "aws" => Self::Aws,
            "gcp" => Self::Gcp,
            path => Self::File(path.into()),
        })
    }
}

impl fmt::Display for Rtt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aws => f.write_str("aws"),
            Self::Gcp => f.write_str("gcp"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// Round trips between numbered sites. With more sites than regions, the regions are gone through again.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// The region of each site.
    pub regions: Vec<String>,
    /// Microseconds, row by row.
    micros: Vec<u64>,
    /// The table itself.
    pub table: RttTable,
}

/// A table of round trips does not do.
#[derive(Debug, thiserror::Error)]
pub enum MatrixError {
    /// It cannot be read.
    #[error(transparent)]
    Table(#[from] RttError),
    /// There is no such table.
    #[error("{} is neither aws nor gcp nor a file: name one of them, or write a CSV file with lines `from,to,rtt_ms`", .0.display())]
    Unknown(PathBuf),
    /// It lacks a pair of regions.
    #[error("the RTT table has no time between {0} and {1}; add a line `{0},{1},` and milliseconds")]
    Missing(String, String),
}

impl Matrix {
    /// The round trips between the first `sites` regions of a table.
    pub fn new(rtt: &Rtt, sites: usize) -> Result<Self, MatrixError> {
        let table = match rtt {
            Rtt::Aws => RttTable::aws(),
            Rtt::Gcp => RttTable::gcp(),
            Rtt::File(path) if !path.exists() => return Err(MatrixError::Unknown(path.clone())),
            Rtt::File(path) => RttTable::from_csv(path)?,
        };
        let regions: Vec<String> = table.regions().iter().cycle().take(sites).cloned().collect();

        // Every pair must be known: a default would be a figure that nobody has measured.
        let mut micros = Vec::with_capacity(sites * sites);
        for from in &regions {
            for to in &regions {
                let time = table.rtt(from, to).ok_or_else(|| MatrixError::Missing(from.clone(), to.clone()))?;
                micros.push(time.as_micros() as u64);
            }
        }
        Ok(Self { regions, micros, table })
    }

    /// The number of sites.
    pub fn sites(&self) -> usize {
        self.regions.len()
    }

    /// The round trip between two sites in microseconds; between a site and itself, the one inside its region.
    pub fn micros(&self, from: usize, to: usize) -> u64 {
        self.micros[from * self.regions.len() + to]
    }

    /// The shortest and the longest round trip between different sites, in words.
    pub fn describe(&self) -> String {
        let sites = self.sites();
        let pairs = (0..sites).flat_map(|from| (0..from).map(move |to| (from, to)));
        let times: Vec<u64> = pairs.map(|(from, to)| self.micros(from, to)).collect();

        let ms = |micros: Option<&u64>| *micros.unwrap_or(&0) as f64 / 1e3;
        let (shortest, longest) = (ms(times.iter().min()), ms(times.iter().max()));
        format!("{shortest} to {longest} ms between {} ({})", self.regions.join(", "), self.table.source())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_gone_through_again_when_there_are_more_sites() {
        let matrix = Matrix::new(&Rtt::Gcp, 7).expect("built in");
        assert_eq!(matrix.regions[5], matrix.regions[0]);
        assert_eq!(matrix.micros(0, 5), matrix.micros(0, 0));
        assert_eq!(matrix.micros(0, 1), matrix.micros(6, 5));
        assert!(matrix.describe().starts_with("0.3 to 303 ms between us-west1"), "{}", matrix.describe());
    }

    #[test]
    fn a_table_that_lacks_a_pair_is_refused_by_name() {
        let path = std::env::temp_dir().join(format!("slackline-rtt-{}.csv", std::process::id()));
        std::fs::write(&path, "from,to,rtt_ms\na,b,10\nb,c,20\n").expect("temporary file");
        let error = Matrix::new(&Rtt::File(path.clone()), 3).expect_err("a to c is missing").to_string();
        std::fs::remove_file(path).expect("temporary file");
        assert!(error.contains("no time between a and c"), "{error}");
    }
}

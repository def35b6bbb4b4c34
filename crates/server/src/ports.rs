//! Ports of this machine for sites that tests and benchmarks start, stop and start again.
//!
//! A port that the system picks (port 0) is no address for a site that has yet to start: the system gives the same ports to
//! outgoing connections, so a connection may hold the port when the site wants it. Even a connection to that very port may hold
//! it: while nobody listens there it can connect to itself. So these ports lie below those that systems give away by default
//! (from 32,768 on Linux, from 49,152 by RFC 6335).

use std::io;
use std::net::TcpListener;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The first port, and the number of ports.
const FIRST: u32 = 10_000;
const COUNT: u32 = 22_000;

/// The port with which this process begins, counted from the first.
static BEGINNING: OnceLock<u32> = OnceLock::new();
/// The number of ports that it has tried.
static TRIED: AtomicU32 = AtomicU32::new(0);

/// Ports at which nobody listens on 127.0.0.1, different ones at each call of this process.
///
/// # Errors
///
/// The system's, where the last port that was tried cannot be listened at: all of them are taken.
pub fn free(count: usize) -> io::Result<Vec<u16>> {
    // Processes that run at the same time begin at different ports, whatever their ids.
    let beginning = BEGINNING.get_or_init(|| {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
        (std::process::id() ^ nanos) % COUNT
    });

    // The counter goes on at each call: a port that was given once is not given again until all others were tried.
    let next = || {
        let mut refused = None;
        for _ in 0..COUNT {
            let port = FIRST + (beginning + TRIED.fetch_add(1, Ordering::Relaxed)) % COUNT;
            let port = u16::try_from(port).map_err(io::Error::other)?;
            match TcpListener::bind(("127.0.0.1", port)) {
                Ok(_) => return Ok(port),
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
    };
    (0..count).map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::free;
    use std::collections::BTreeSet;
    use std::net::TcpListener;

    #[test]
    fn ports_are_free_and_not_given_twice() {
        let ports: Vec<u16> = (0..50).flat_map(|_| free(4).expect("free ports")).collect();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 200);
        assert!(ports.iter().all(|port| *port < 32_768), "{ports:?}");

        let taken = ports[199] + 1;
        let _taken = TcpListener::bind(("127.0.0.1", taken));
        assert!(!free(4).expect("free ports").contains(&taken));
    }
}

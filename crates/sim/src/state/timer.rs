//! Timers of a simulation, and the tokens by which a world hands them back.

/// What a timer of the simulation is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Timer {
    /// A client acts.
    Client(usize),
    /// A response reaches its client.
    Mail(usize),
    /// A fault strikes.
    Strike,
    /// A fault ends.
    Mend(usize),
    /// A site that is down is started.
    Restart(usize),
    /// A step of a swizzle.
    Swizzle(usize),
    /// A copy of a disk is taken.
    Copy(usize),
    /// Phases end.
    Phase,
    /// Somebody meets a transaction at the brink: a writer, or else a reader.
    Brink(bool),
    /// Clocks are looked at.
    Vigil,
    /// A site crashes that was told that a session is over.
    Closed(usize),
    /// A person says that a site's earlier storage is lost.
    Word(usize),
    /// A volume that was not mounted is mounted.
    Mount(usize),
    /// A site that has just lost its disk loses it again.
    Relapse(usize),
    /// Who is up and connected is looked at.
    Refusals,
    /// A call is read whose home has not heard of a loss.
    Unheard,
    /// A time has come that a caller waits for.
    Caller(usize),
    /// A site is told what to expect.
    Forecast,
}

/// The kind is above this many bits of a token; a position is below.
const POSITION_BITS: u32 = 56;

impl Timer {
    /// The token that stands for it in a world.
    pub(crate) fn token(self) -> u64 {
        let (kind, of) = match self {
            Timer::Client(of) => (0, of),
            Timer::Mail(of) => (1, of),
            Timer::Strike => (2, 0),
            Timer::Mend(of) => (3, of),
            Timer::Restart(of) => (4, of),
            Timer::Swizzle(of) => (5, of),
            Timer::Copy(of) => (6, of),
            Timer::Phase => (7, 0),
            Timer::Brink(writes) => (8, usize::from(writes)),
            Timer::Vigil => (9, 0),
            Timer::Word(of) => (10, of),
            Timer::Mount(of) => (11, of),
            Timer::Relapse(of) => (12, of),
            Timer::Closed(of) => (13, of),
            Timer::Refusals => (14, 0),
            Timer::Unheard => (15, 0),
            Timer::Caller(of) => (16, of),
            Timer::Forecast => (17, 0),
        };
        kind << POSITION_BITS | of as u64
    }

    /// The timer that a token stands for.
    pub(crate) fn of_token(token: u64) -> Self {
        let of = (token & ((1 << POSITION_BITS) - 1)) as usize;
        match token >> POSITION_BITS {
            0 => Timer::Client(of),
            1 => Timer::Mail(of),
            2 => Timer::Strike,
            3 => Timer::Mend(of),
            4 => Timer::Restart(of),
            5 => Timer::Swizzle(of),
            6 => Timer::Copy(of),
            7 => Timer::Phase,
            8 => Timer::Brink(of == 1),
            10 => Timer::Word(of),
            11 => Timer::Mount(of),
            12 => Timer::Relapse(of),
            13 => Timer::Closed(of),
            14 => Timer::Refusals,
            15 => Timer::Unheard,
            16 => Timer::Caller(of),
            17 => Timer::Forecast,
            _ => Timer::Vigil,
        }
    }
}

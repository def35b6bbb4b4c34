//! What clients ask for: mostly tokens of quotas that exist, and now and then what must be refused.

use slackline_core::api::{Agreement, Hold, Operation};
use slackline_core::avantan::Charter;
use slackline_core::clock::{MILLISECOND, SECOND};
use slackline_core::config::NAMES_KEPT;
use slackline_core::id::{GrantId, Incarnation, SiteId};

use crate::quotas::{
    FLEETING, KINDS, Kind, METER_REFILL, METERS, PASSERS, PASSING, PLENTY, PRUNED, SKEWED, TREE, charter_of, creation,
};
use crate::state::Simulation;
use crate::world::World;

impl Simulation {
    /// An operation, and how long it may wait.
    pub(super) fn invent(&mut self, world: &World, at: usize) -> (Operation, u64) {
        let timeouts = [30 * MILLISECOND, 300 * MILLISECOND, SECOND, 2 * SECOND, 5 * SECOND];
        let timeout = timeouts[self.rng.below(5) as usize];
        let name = |kind: &Kind| kind.name.to_owned();
        let any = KINDS[self.rng.below(KINDS.len() as u64) as usize];
        let fleeting = KINDS[FLEETING];

        let operation = match self.rng.below(1000) {
            // More is given back than there is.
            0..=1 => Operation::Release { quota: name(&PLENTY), amount: PLENTY.limit + 1 },
            // A grant that nobody was given.
            2..=3 => {
                let number = 1 + self.rng.below(1_000_000_000);
                let site = self.settings.members[self.rng.below(world.len() as u64) as usize];
                {
                    let grant = GrantId { site, incarnation: Incarnation(1), number: number << 20 };
                    Operation::ReleaseGrant { grant, used: self.rng.below(2) as i64 }
                }
            }
            // A creation of what exists, with its limit and with another.
            4..=5 => Operation::create(name(&PLENTY), PLENTY.limit),
            6 => Operation::create(name(&PLENTY), 5),
            7 => {
                let charter = Charter { agreement: Agreement::Any, ..Charter::default() };
                Operation::Create { quota: name(&PLENTY), limit: PLENTY.limit, charter }
            }
            // A name, and limits, that no quota can have.
            8 => Operation::create("a\nb", 5),
            9 => Operation::create(name(&fleeting), -(self.rng.below(3) as i64)),
            // A quota that does not exist, amounts that nobody can hold, and a hold that is over before it begins.
            10..=11 => {
                let quota = ["nobody", "", "ghost"][self.rng.below(3) as usize].to_owned();
                Operation::Acquire { quota, amount: 1, hold: Hold::Counted, waits: false }
            }
            12..=13 => Operation::Acquire {
                quota: name(&any),
                amount: -(self.rng.below(2) as i64),
                hold: Hold::Counted,
                waits: false,
            },
            14 => Operation::Acquire { quota: name(&PLENTY), amount: 1, hold: Hold::For(3), waits: false },
            // More than the limit.
            15..=16 => Operation::Acquire { quota: "tight".to_owned(), amount: 421, hold: Hold::Counted, waits: false },
            // A quota that comes and goes.
            17..=19 => return (Operation::Delete { quota: self.fleeting(world.now()) }, 5 * SECOND),
            20..=29 => {
                // Two limits: whoever is first wins, and the others are told.
                let limit = fleeting.limit + i64::from(self.rng.one_in(8));
                let quota = self.fleeting(world.now());
                // What is soon left alone is left deleted.
                if quota != fleeting.name && world.now() % PASSING > PASSING / 2 {
                    return (Operation::Delete { quota }, 5 * SECOND);
                }
                return (creation(&quota, limit), 5 * SECOND);
            }
            // A quota that some clients ask for before it exists.
            30..=34 => {
                let quota = self.late(world.now());
                let limit = 40 + i64::from(self.rng.one_in(3));
                return (creation(&quota, limit), 5 * SECOND);
            }
            35..=54 => {
                let quota = self.late(world.now());
                let hold = if self.rng.one_in(2) { Hold::Counted } else { Hold::For(SECOND) };
                Operation::Acquire { quota, amount: 1 + self.rng.below(4) as i64, hold, waits: false }
            }
            // One whose limit changes while it is in use.
            55..=58 => {
                let quota = if self.rng.one_in(2) { self.late(world.now()) } else { self.fleeting(world.now()) };
                return (Operation::SetLimit { quota, limit: 1 + self.rng.below(80) as i64 }, 5 * SECOND);
            }
            // What lost storage had.
            59..=66 => match self.reclaim(world) {
                Some(operation) => return (operation, 5 * SECOND),
                None => Operation::Acquire { quota: name(&PLENTY), amount: 1, hold: Hold::Counted, waits: false },
            },
            // One that refills: nothing of it is given back, and it is created with one rate.
            67..=99 => {
                let meter = METERS[self.rng.below(3) as usize / 2];
                let amount = 1 + self.rng.below(meter.most as u64) as i64;
                match self.rng.below(40) {
                    0 => Operation::Release { quota: name(&meter), amount },
                    1 => return (creation(meter.name, meter.limit), 5 * SECOND),
                    2 => {
                        let charter = Charter { refill: METER_REFILL / 2, ..charter_of(meter.name) };
                        let creation = Operation::Create { quota: name(&meter), limit: meter.limit, charter };
                        return (creation, 5 * SECOND);
                    }
                    draw => {
                        let hold = if draw == 3 { Hold::For(SECOND) } else { Hold::Counted };
                        let waits = self.rng.one_in(4);
                        Operation::Acquire { quota: name(&meter), amount, hold, waits }
                    }
                }
            }
            // One of a tree.
            100..=139 => {
                let kind = TREE[self.rng.below(TREE.len() as u64) as usize];
                if self.rng.one_in(40) {
                    return (creation(kind.name, kind.limit), 5 * SECOND);
                }
                // What has quotas below it stays.
                let has_child = (0..self.oracle.books.len()).any(|book| {
                    let book = &self.oracle.books[book];
                    book.name == TREE[1].name && book.decisions.newest().is_some_and(|(_, table)| table.limit.is_some())
                });
                if has_child && self.rng.one_in(80) {
                    return (Operation::Delete { quota: name(&TREE[0]) }, 5 * SECOND);
                }
                if kind.name == PRUNED && self.rng.one_in(8) {
                    let is_deletion = self.rng.one_in(2);
                    let change = if is_deletion {
                        Operation::Delete { quota: name(&kind) }
                    } else {
                        creation(kind.name, kind.limit)
                    };
                    return (change, 5 * SECOND);
                }
                if self.rng.one_in(40) {
                    let limit = kind.limit / 2 + self.rng.below(kind.limit as u64) as i64;
                    return (Operation::SetLimit { quota: name(&kind), limit }, 5 * SECOND);
                }
                let hold = self.hold_of(&kind);
                let amount = 1 + self.rng.below(kind.most as u64) as i64;
                Operation::Acquire { quota: name(&kind), amount, hold, waits: self.rng.one_in(4) }
            }
            // Everything else is ordinary.
            _ => {
                let kind = self.kind_for(world, at);
                let hold = self.hold_of(&kind);
                let amount = 1 + self.rng.below(kind.most as u64) as i64;
                let quota = if kind.name == fleeting.name { self.fleeting(world.now()) } else { name(&kind) };
                // Some stay in line for as long as they may.
                Operation::Acquire { quota, amount, hold, waits: self.rng.one_in(4) }
            }
        };
        (operation, timeout)
    }

    /// The way in which tokens of a quota are held.
    fn hold_of(&mut self, kind: &Kind) -> Hold {
        match self.rng.below(100) {
            part if part < kind.open => Hold::Open,
            part if part < kind.open + kind.timed => {
                Hold::For(50 * MILLISECOND + self.rng.below(3 * kind.held * MILLISECOND))
            }
            _ => Hold::Counted,
        }
    }

    /// The quota that is deleted and created again. Where names are forgotten soon, there are several, in turn, and each is left alone
    /// for so long in between that its name may be forgotten.
    fn fleeting(&mut self, now: u64) -> String {
        let turn = now / PASSING % PASSERS;
        if self.settings.names_kept >= NAMES_KEPT || turn == 0 {
            return KINDS[FLEETING].name.to_owned();
        }
        let name = format!("passing-{turn}");

        let book = self.oracle.book(&name);
        self.oracle.books[book].deletable = true;
        name
    }

    /// An operator's true word about a quota of which storage was lost, or a word that makes no sense: of an incarnation that lives, or of
    /// one lost site where there are several.
    fn reclaim(&mut self, world: &World) -> Option<Operation> {
        // What a lost site had to refill is not known to be back before its time.
        let books = &self.oracle.books;
        let reborn = (0..books.len()).filter(|&at| !books[at].lost.is_empty() && !books[at].refills);
        let reborn: Vec<_> = reborn
            .filter(|&at| self.oracle.books[at].decisions.newest().is_some_and(|(_, t)| t.limit.is_some()))
            .collect();
        let at = *reborn.get(self.rng.below(reborn.len().max(1) as u64) as usize)?;
        let book = &self.oracle.books[at];

        if self.rng.one_in(10) {
            let site = self.rng.below(world.len() as u64) as usize;
            let living = (self.settings.members[site], self.oracle.incarnation(site));
            return Some(Operation::Reclaim { quota: book.name.clone(), lost: vec![living], in_use: 0 });
        }

        let (mut lost, in_use) = self.true_word(at)?;
        if lost.len() > 1 && self.rng.one_in(4) {
            lost.pop();
        }
        // All of it was reclaimed: here is the same word again.
        if lost.is_empty() {
            let (_, table) = self.oracle.books[at].decisions.newest()?;
            let known = table.reclaimed.as_ref()?.known.first()?;
            lost.push((known.0, Incarnation(known.1.0 - 1)));
        }
        let more = if self.rng.one_in(8) { 1 << 40 } else { 0 };
        Some(Operation::Reclaim {
            quota: self.oracle.books[at].name.clone(),
            lost,
            in_use: in_use.saturating_add(more),
        })
    }

    /// What an operator truly says of a quota of which storage was lost: the newest lost incarnations, and what they had granted and not
    /// taken back, whatever clients know of it. What was lost before the last word is in that.
    pub(crate) fn true_word(&self, book: usize) -> Option<(Vec<(SiteId, Incarnation)>, i64)> {
        let book = &self.oracle.books[book];
        let (_, table) = book.decisions.newest()?;
        let lost: Vec<_> = table.lost().collect();
        let since = |site| {
            let known = table.reclaimed.iter().flat_map(|reclaimed| &reclaimed.known);
            known.into_iter().find(|known| known.0 == site).map_or(Incarnation(1), |known| known.1)
        };
        let accounts = book.lost.iter().filter(|account| {
            let is_newly_lost = account.incarnation >= since(account.site);
            account.generation == table.generation && is_newly_lost
        });
        let in_use: i128 = accounts.map(|account| account.granted as i128 - account.taken_back as i128).sum();
        Some((lost, in_use.max(0) as i64))
    }

    /// The quota of this part of the run: it does not exist until some client creates it.
    fn late(&mut self, now: u64) -> String {
        let name = format!("late-{}", now / (15 * SECOND));
        self.oracle.book(&name);
        name
    }

    /// The quota that a client acquires tokens of.
    fn kind_for(&mut self, world: &World, at: usize) -> Kind {
        let mut draw = self.rng.below(100);
        for (position, kind) in KINDS.iter().enumerate() {
            if draw < kind.weight {
                // Everybody wants it, then only the clients of one region do.
                let turn = (world.now() / (8 * SECOND)) as usize % (world.len() + 1);
                if position == SKEWED && turn < world.len() && self.clients.all[at].home != turn {
                    return PLENTY;
                }
                return *kind;
            }
            draw -= kind.weight;
        }
        PLENTY
    }
}

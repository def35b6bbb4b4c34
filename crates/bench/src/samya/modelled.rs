//! A protocol as an event-driven model: its sites run on a [`Net`], and its books are audited after every event.

use super::ask::{Ask, Counts, Fault, Heard, System};
use super::net::{Call, Event, Net};

/// What a model's sites know of the tokens, together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Books {
    /// Tokens that sites could grant.
    pub(super) free: i64,
    /// Tokens that have left one site and not arrived at another.
    pub(super) under_way: i64,
    /// Tokens granted and not taken back.
    pub(super) in_use: i64,
}

/// The rules of a system's sites.
pub(super) trait Protocol {
    /// What its sites say to each other.
    type Message;

    /// The site that the clients of a region ask.
    fn site_of(&self, region: usize) -> usize;

    /// A request arrives at a site.
    fn request(&mut self, net: &mut Net<Self::Message>, site: usize, call: Call);

    /// A message arrives at a site.
    fn message(&mut self, net: &mut Net<Self::Message>, site: usize, from: usize, message: Self::Message);

    /// A timer of a site fires.
    fn timer(&mut self, net: &mut Net<Self::Message>, site: usize, token: u64);

    /// What the sites know of the tokens.
    fn books(&self) -> Books;

    /// Rounds that moved tokens, and one-way moves.
    fn moves(&self) -> (u64, u64);
}

/// The longest that sites may take to come to rest, in microseconds.
const REST: u64 = 60_000_000;

/// See the module.
#[derive(Debug)]
pub(super) struct Modelled<P: Protocol> {
    net: Net<P::Message>,
    protocol: P,
    /// The number of tokens; none if they are not limited.
    limit: Option<i64>,
    /// What was found wrong, once something is.
    wrong: Option<String>,
}

impl<P: Protocol> Modelled<P> {
    /// A protocol that has these tokens, at time zero.
    pub(super) fn new(net: Net<P::Message>, protocol: P, limit: Option<i64>) -> Self {
        Self { net, protocol, limit, wrong: None }
    }

    /// Handles an event, if one happens up to `until`. Returns what a client hears of it.
    fn step(&mut self, until: u64) -> Option<Option<Heard>> {
        match self.net.next(until)? {
            Event::Hear { heard, .. } => return Some(Some(heard)),
            Event::Request { site, call } => {
                self.protocol.request(&mut self.net, site, call);
                self.net.finish(site, 1);
            }
            Event::Message { to, from, message } => {
                self.protocol.message(&mut self.net, to, from, message);
                self.net.finish(to, 0);
            }
            Event::Timer { site, token } => {
                self.protocol.timer(&mut self.net, site, token);
                self.net.finish(site, 0);
            }
        }
        self.check();
        Some(None)
    }

    /// No more in use than the limit, and every token is somewhere.
    fn check(&mut self) {
        let books = self.protocol.books();
        let Books { free, under_way, in_use } = books;
        let is_right = match self.limit {
            Some(limit) => {
                free >= 0 && under_way >= 0 && (0..=limit).contains(&in_use) && free + under_way + in_use == limit
            }
            None => in_use >= 0,
        };
        if !is_right && self.wrong.is_none() {
            let limit = self.limit.map_or("no limit".to_owned(), |limit| format!("a limit of {limit}"));
            self.wrong = Some(format!("at {} µs: {books:?} with {limit}", self.net.now()));
        }
    }
}

impl<P: Protocol> System for Modelled<P> {
    fn now(&self) -> u64 {
        self.net.now()
    }

    fn advance(&mut self, until: u64, heard: &mut Vec<Heard>) {
        while let Some(answer) = self.step(until) {
            if let Some(answer) = answer {
                heard.push(answer);
                return;
            }
        }
    }

    fn ask(&mut self, region: usize, call: u32, ask: Ask) {
        let site = self.protocol.site_of(region);
        self.net.request(site, Call { call, region, ask });
    }

    fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::Lose(region) => {
                self.net.lose_clients(region);
                // A replicated database has as many sites, though not all of them where clients are: one is lost each time.
                self.net.lose_site(region);
            }
            Fault::Part(is_parted) => self.net.part(is_parted),
        }
    }

    fn audit(&mut self) -> Result<(), String> {
        match &self.wrong {
            Some(wrong) => Err(wrong.clone()),
            None => Ok(()),
        }
    }

    fn close(&mut self, held: Option<i64>) -> Result<(), String> {
        let patience = self.net.now() + REST;
        while self.step(patience).is_some() {}
        self.audit()?;

        // The sites' books say what the clients know.
        let in_use = self.protocol.books().in_use;
        match held {
            Some(held) if held != in_use => Err(format!("{in_use} tokens are in use, and clients have {held}")),
            _ => Ok(()),
        }
    }

    fn counts(&self) -> Counts {
        let (rebalances, gifts) = self.protocol.moves();
        Counts { rebalances, gifts, wan_messages: self.net.wan_messages, syncs: self.net.syncs }
    }
}

#[cfg(test)]
mod tests {
    use slackline_sim::Costs;

    use super::super::ask::Told;
    use super::super::geography::Globe;
    use super::*;
    use crate::rtt::Rtt;

    /// A site that grants what it does not have.
    struct Cheat {
        books: Books,
    }

    impl Protocol for Cheat {
        type Message = ();

        fn site_of(&self, _: usize) -> usize {
            0
        }

        fn request(&mut self, net: &mut Net<()>, _: usize, call: Call) {
            let Ask::Acquire { amount, .. } = call.ask else { unreachable!("nothing else is asked here") };
            self.books.in_use += amount;
            self.books.free -= amount.min(self.books.free);
            net.answer(call, Told::Granted, true);
        }

        fn message(&mut self, _: &mut Net<()>, _: usize, _: usize, (): ()) {}

        fn timer(&mut self, _: &mut Net<()>, _: usize, _: u64) {}

        fn books(&self) -> Books {
            self.books
        }

        fn moves(&self) -> (u64, u64) {
            (0, 0)
        }
    }

    #[test]
    fn token_that_is_made_is_noticed() {
        let globe = Globe::new(&Rtt::Gcp).expect("built in");
        let cheat = Cheat { books: Books { free: 10, under_way: 0, in_use: 0 } };
        let mut system = Modelled::new(Net::new(globe.shared(5), Costs::NONE), cheat, Some(10));
        let mut heard = Vec::new();
        for (call, is_right) in [(0, true), (1, false)] {
            system.ask(0, call, Ask::Acquire { amount: 8, deadline: 1_000_000 });
            system.advance(1_000_000, &mut heard);
            assert_eq!(system.audit().is_ok(), is_right);
        }
        let wrong = system.close(None).expect_err("it is told in the end, too");
        assert!(wrong.contains("in_use: 16") && wrong.contains("a limit of 10"), "{wrong}");
    }

    #[test]
    fn clients_that_know_otherwise_are_noticed() {
        let globe = Globe::new(&Rtt::Gcp).expect("built in");
        let cheat = Cheat { books: Books { free: 10, under_way: 0, in_use: 0 } };
        let mut system = Modelled::new(Net::new(globe.shared(5), Costs::NONE), cheat, Some(10));
        assert_eq!(system.close(Some(0)), Ok(()));
        assert_eq!(system.close(Some(1)), Err("0 tokens are in use, and clients have 1".into()));
    }
}

//! A treaty as a program names it, and where it is: its home, its statement over positions of regions, and whom its leaves ask.

use std::collections::BTreeSet;
use std::sync::Arc;

use slackline_core::id::SiteId;
use slackline_core::object::treaty::{self, Tree, treaty_key};
use slackline_core::object::{self, ObjectKey};

use crate::metric::Statement;
use crate::outcome::{Reason, TreatyRefusal};
use crate::topology::{OBJECTS_LANE, Topology};

/// A treaty: a statement that several regions keep true, with a name. Cheap to clone; nothing happens before it is used.
#[derive(Clone, Debug)]
pub struct Treaty {
    name: Arc<str>,
    statement: Arc<Statement>,
    /// The region of its home, if one is given.
    home: Option<Arc<str>>,
    order: Order,
}

/// Which regions are asked for slack first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// All at once.
    Flat,
    /// The near ones first.
    #[default]
    Near,
    /// Groups of regions that ask each other first.
    Given(Vec<Vec<String>>),
}

/// The longest name of a treaty, in bytes.
const NAME_BYTES: usize = 1_000;

/// A treaty over positions of regions.
#[derive(Clone, Debug)]
pub struct Placed {
    /// Its object.
    pub(crate) key: ObjectKey,
    /// Its statement.
    pub(crate) statement: treaty::Statement,
    /// Which leaves are asked for slack first.
    pub(crate) tree: Tree,
}

impl Placed {
    /// Its object.
    pub fn object(&self) -> &ObjectKey {
        &self.key
    }

    /// The position of its home.
    pub fn home(&self) -> u16 {
        self.key.home
    }

    /// The site at which it has its home.
    pub fn site(&self) -> SiteId {
        SiteId::new(self.key.home, OBJECTS_LANE)
    }

    /// Its statement.
    pub fn statement(&self) -> &treaty::Statement {
        &self.statement
    }

    /// The counters that its statement is about.
    pub fn counters(&self) -> BTreeSet<ObjectKey> {
        let mut counters = BTreeSet::new();
        self.statement.counters(&mut counters);
        counters
    }
}

impl Treaty {
    /// The treaty of this name, over this statement.
    pub fn new(name: &str, statement: Statement) -> Self {
        Self { name: name.into(), statement: Arc::new(statement), home: None, order: Order::default() }
    }

    /// Sets its home: the region whose site says whether it is valid. Without, it is the first region, in the order of the cluster,
    /// of which a counter is in the statement. One treaty has one home: clients must agree about it.
    pub fn home(self, region: &str) -> Self {
        Self { home: Some(region.into()), ..self }
    }

    /// Sets which regions are asked for slack first. Without, the near ones are.
    pub fn order(self, order: Order) -> Self {
        Self { order, ..self }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if a client named it by what it says, for itself; see [`Treaty::from`].
    pub fn is_unnamed(&self) -> bool {
        treaty::is_unnamed(&self.name)
    }

    /// Its statement.
    pub fn statement(&self) -> &Statement {
        &self.statement
    }

    /// The treaty over positions of regions. An error if a region is not there, a name is not valid, or it is about no counter.
    pub fn place(&self, topology: &Topology) -> Result<Placed, Reason> {
        let unknown =
            |region: &str| Reason::UnknownRegion { region: region.to_owned(), known: topology.regions.clone() };
        let statement = self.statement.place(topology)?;
        let first = statement.first_home().ok_or(Reason::Treaty(TreatyRefusal::NoCounter))?;
        let home = match &self.home {
            Some(region) => topology.region(region).ok_or_else(|| unknown(region))?,
            None => first,
        };

        let key = treaty_key(home, &self.name);
        if self.name.is_empty() || self.name.len() > NAME_BYTES || !object::is_call(&key.name) {
            return Err(Reason::Treaty(TreatyRefusal::InvalidName));
        }
        let group = |group: &Vec<String>| {
            group.iter().map(|region| topology.region(region).ok_or_else(|| unknown(region))).collect::<Result<_, _>>()
        };
        let tree = match &self.order {
            Order::Flat => Tree::Flat,
            Order::Near => Tree::Near,
            Order::Given(groups) => Tree::Given(groups.iter().map(group).collect::<Result<_, _>>()?),
        };
        Ok(Placed { key, statement, tree })
    }
}

/// A statement that needs no name of its own: its treaty is named by what it says.
impl From<&Statement> for Treaty {
    fn from(statement: &Statement) -> Self {
        // FNV-1a, in 64 bits: two statements of one home with the same name are told apart by what they say.
        let text = statement.to_string();
        let hash = text
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Treaty::new(&format!("{}{hash:016x}", treaty::UNNAMED), statement.clone())
    }
}

impl From<&Treaty> for Treaty {
    fn from(treaty: &Treaty) -> Self {
        treaty.clone()
    }
}

//! The changes that a transaction wants to make, while its program runs, in layers. Each nested block has a layer of
//! its own, which is merged into the one below when the block is done, and thrown away when it fails.

use std::collections::{BTreeMap, BTreeSet};

use crate::object::{Change, ObjectKey, Value};

/// The position of a layer.
pub type LayerId = usize;
/// The lowest layer: its changes are committed in the end.
pub const ROOT: LayerId = 0;

/// The reason why a change cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Misfit {
    /// It adds to an object that is no counter.
    NotACounter,
    /// The counter would leave the range of 64-bit integers.
    OutOfRange,
    /// The layer, or one below it, has been merged or thrown away.
    Over,
}

/// The changes of a transaction, in layers.
#[derive(Debug)]
pub struct Buffer {
    /// The layers by position; none for one that was merged or thrown away. The root is always there.
    layers: Vec<Option<Layer>>,
}

/// The changes of one block.
#[derive(Debug)]
struct Layer {
    /// The layer below, at a lower position; the root's is the root itself.
    below: LayerId,
    /// The changes by object, one each. An add is to the value that the layers below leave.
    changes: BTreeMap<ObjectKey, Change>,
}

impl Default for Buffer {
    fn default() -> Self {
        Self::new()
    }
}

impl Buffer {
    /// A buffer with the root alone, and no changes.
    pub fn new() -> Self {
        Self { layers: vec![Some(Layer { below: ROOT, changes: BTreeMap::new() })] }
    }

    /// Lays a new layer upon another.
    pub fn open(&mut self, below: LayerId) -> Result<LayerId, Misfit> {
        self.chain(below)?;
        self.layers.push(Some(Layer { below, changes: BTreeMap::new() }));
        Ok(self.layers.len() - 1)
    }

    /// The change of an object by this layer and those below, as one.
    pub fn change(&self, layer: LayerId, key: &ObjectKey) -> Result<Option<Change>, Misfit> {
        let mut all = None;
        for layer in self.chain(layer)? {
            if let Some(change) = layer.changes.get(key) {
                all = Some(compose(all.as_ref(), change)?);
            }
        }
        Ok(all)
    }

    /// Makes a change in a layer.
    pub fn write(&mut self, layer: LayerId, key: ObjectKey, change: Change) -> Result<(), Misfit> {
        let change = self.fitting(layer, &key, &change)?;
        self.changes_of(layer).insert(key, change);
        Ok(())
    }

    /// Ends a block that is done: its layer becomes a part of the one below, as a whole or not at all.
    pub fn merge(&mut self, layer: LayerId) -> Result<(), Misfit> {
        assert!(layer != ROOT, "the root has no layer below");
        self.chain(layer)?;
        let Layer { below, changes } = self.layers[layer].take().expect("looked up above");

        // All changes are looked at before the first is made: one that does not fit leaves the layer below as it was,
        // and the whole block has failed.
        let mut fitting = Vec::with_capacity(changes.len());
        for (key, change) in changes {
            let change = self.fitting(below, &key, &change)?;
            fitting.push((key, change));
        }
        self.changes_of(below).extend(fitting);
        Ok(())
    }

    /// The change of an object by a layer alone after one more change.
    fn fitting(&self, layer: LayerId, key: &ObjectKey, change: &Change) -> Result<Change, Misfit> {
        // It must fit upon all layers together as well as within its own: adds of two layers may be out of range only
        // in sum.
        let all = self.change(layer, key)?;
        compose(all.as_ref(), change)?;
        compose(self.layers[layer].as_ref().and_then(|layer| layer.changes.get(key)), change)
    }

    /// The changes of a layer that is there.
    fn changes_of(&mut self, layer: LayerId) -> &mut BTreeMap<ObjectKey, Change> {
        &mut self.layers[layer].as_mut().expect("the caller has looked it up").changes
    }

    /// Ends a block that has failed: its layer is thrown away.
    pub fn discard(&mut self, layer: LayerId) {
        self.layers[layer] = None;
    }

    /// The objects of a region that this layer or one below changes and whose names satisfy `is_wanted`, with the
    /// changes.
    pub fn changed(
        &self,
        layer: LayerId,
        home: u16,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<(ObjectKey, Change)>, Misfit> {
        let keys = |layer: &Layer| layer.changes.keys().cloned().collect::<Vec<_>>();
        let keys: BTreeSet<ObjectKey> = self.chain(layer)?.into_iter().flat_map(keys).collect();
        let wanted = keys.into_iter().filter(|key| key.home == home && is_wanted(&key.name));
        wanted.map(|key| Ok((key.clone(), self.change(layer, &key)?.expect("one of them changes it")))).collect()
    }

    /// The changes that are to be committed: the root's.
    pub fn changes(&self) -> impl Iterator<Item = (&ObjectKey, &Change)> {
        self.layers[ROOT].iter().flat_map(|root| &root.changes)
    }

    /// True if a layer, and those below, change nothing.
    pub fn is_empty(&self, layer: LayerId) -> bool {
        self.chain(layer).is_ok_and(|chain| chain.iter().all(|layer| layer.changes.is_empty()))
    }

    /// A layer and those below, from the root up.
    fn chain(&self, layer: LayerId) -> Result<Vec<&Layer>, Misfit> {
        let mut chain = Vec::new();
        let mut at = layer;
        loop {
            let layer = self.layers.get(at).and_then(Option::as_ref).ok_or(Misfit::Over)?;
            chain.push(layer);
            if at == ROOT {
                chain.reverse();
                return Ok(chain);
            }
            at = layer.below;
        }
    }
}

/// One change after another, as one change.
fn compose(before: Option<&Change>, change: &Change) -> Result<Change, Misfit> {
    let Change::Add(delta) = change else { return Ok(change.clone()) };
    let sum = |count: i64| count.checked_add(*delta).ok_or(Misfit::OutOfRange);
    Ok(match before {
        None => Change::Add(*delta),
        Some(Change::Add(earlier)) => Change::Add(sum(*earlier)?),
        Some(Change::Put(Value::Counter(count))) => Change::Put(Value::Counter(sum(*count)?)),
        Some(Change::Put(Value::Bytes(_) | Value::Derived(_))) => return Err(Misfit::NotACounter),
        Some(Change::Delete) => Change::Put(Value::Counter(*delta)),
    })
}

/// The value of an object after a change.
pub fn apply(value: Option<Value>, change: &Change) -> Result<Option<Value>, Misfit> {
    match change {
        Change::Put(value) => Ok(Some(value.clone())),
        Change::Delete => Ok(None),
        Change::Add(delta) => {
            let count = match value {
                None => 0,
                Some(Value::Counter(count)) => count,
                Some(Value::Bytes(_) | Value::Derived(_)) => return Err(Misfit::NotACounter),
            };
            count.checked_add(*delta).map(|count| Some(Value::Counter(count))).ok_or(Misfit::OutOfRange)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new(0, name)
    }

    fn put(text: &str) -> Change {
        Change::Put(Value::Bytes(text.to_owned().into()))
    }

    fn counter(count: i64) -> Change {
        Change::Put(Value::Counter(count))
    }

    #[test]
    fn changes_of_one_object_become_one() {
        let of = |changes: &[Change]| {
            let mut buffer = Buffer::new();
            let written = changes.iter().try_for_each(|change| buffer.write(ROOT, key("x"), change.clone()));
            written.map(|()| buffer.changes().next().expect("it is changed").1.clone())
        };
        assert_eq!(of(&[put("a"), put("b")]), Ok(put("b")));
        assert_eq!(of(&[put("a"), Change::Delete]), Ok(Change::Delete));
        assert_eq!(of(&[Change::Add(2), Change::Add(-5)]), Ok(Change::Add(-3)));
        assert_eq!(of(&[counter(7), Change::Add(-5)]), Ok(counter(2)));
        assert_eq!(of(&[Change::Add(1), Change::Delete, Change::Add(4)]), Ok(counter(4)));
        assert_eq!(of(&[put("a"), Change::Add(1)]), Err(Misfit::NotACounter));
        assert_eq!(of(&[counter(i64::MAX), Change::Add(1)]), Err(Misfit::OutOfRange));
        assert_eq!(of(&[Change::Add(i64::MIN), Change::Add(-1)]), Err(Misfit::OutOfRange));
    }

    /// Any changes in any layers, against a map that is copied where a block begins.
    #[test]
    fn layers_are_what_copies_of_the_whole_would_be() {
        let mut state = 7u64;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        let names = ["a", "b", "c"];
        for _ in 0..300 {
            // What is there before the transaction: a is absent, b a counter, c bytes.
            let present = BTreeMap::from([(key("b"), Value::Counter(10)), (key("c"), Value::Bytes(vec![1].into()))]);
            let mut buffer = Buffer::new();
            let mut open: Vec<(LayerId, BTreeMap<ObjectKey, Value>)> = vec![(ROOT, present.clone())];
            for _ in 0..40 {
                let (layer, depth) = (open.last().expect("the root stays").0, open.len());
                match below(6) {
                    0 if depth < 5 => {
                        let copy = open.last().expect("the root stays").1.clone();
                        open.push((buffer.open(layer).expect("the one below is there"), copy));
                    }
                    1 if depth > 1 => {
                        let (_, done) = open.pop().expect("looked at above");
                        buffer.merge(layer).expect("each change was possible");
                        open.last_mut().expect("the root stays").1 = done;
                    }
                    2 if depth > 1 => {
                        open.pop();
                        buffer.discard(layer);
                    }
                    _ => {
                        let key = key(names[below(3) as usize]);
                        let change = match below(4) {
                            0 => Change::Delete,
                            1 => counter(below(50) as i64),
                            2 => put("x"),
                            _ => Change::Add(below(9) as i64 - 4),
                        };
                        let (_, expected) = open.last_mut().expect("the root stays");
                        let before = expected.get(&key).cloned();
                        // What is in storage is not known here, so an add to it is judged by the home.
                        let known = buffer.change(layer, &key).expect("it is there").is_some();
                        let applied = apply(before, &change);
                        let written = if known || applied.is_ok() {
                            buffer.write(layer, key.clone(), change)
                        } else {
                            Err(Misfit::NotACounter)
                        };
                        assert_eq!(written, applied.clone().map(|_| ()));
                        match applied {
                            Ok(Some(value)) => drop(expected.insert(key, value)),
                            Ok(None) => drop(expected.remove(&key)),
                            Err(_) => {}
                        }
                    }
                }
                let (layer, expected) = open.last().expect("the root stays");
                for name in names {
                    let base = present.get(&key(name)).cloned();
                    let change = buffer.change(*layer, &key(name)).expect("it is there");
                    let seen = change.map_or(Ok(base.clone()), |change| apply(base.clone(), &change));
                    assert_eq!(seen, Ok(expected.get(&key(name)).cloned()));
                }
            }
        }
    }

    #[test]
    fn block_that_is_over_takes_no_changes() {
        let mut buffer = Buffer::new();
        let outer = buffer.open(ROOT).expect("the root is there");
        let inner = buffer.open(outer).expect("it is there");
        buffer.discard(outer);
        assert_eq!(buffer.write(inner, key("x"), Change::Delete), Err(Misfit::Over));
        assert_eq!(buffer.merge(inner), Err(Misfit::Over));
        assert_eq!(buffer.change(ROOT, &key("x")), Ok(None));
    }

    #[test]
    fn block_that_does_not_fit_any_more_changes_nothing() {
        let mut buffer = Buffer::new();
        let block = buffer.open(ROOT).expect("the root is there");
        buffer.write(block, key("a"), put("one")).expect("open");
        buffer.write(block, key("b"), Change::Add(1)).expect("open");
        // Another branch of the program makes it something else.
        buffer.write(ROOT, key("b"), put("text")).expect("open");
        assert_eq!(buffer.merge(block), Err(Misfit::NotACounter));
        assert_eq!(buffer.changes().map(|(key, _)| &*key.name).collect::<Vec<_>>(), ["b"]);
    }
}

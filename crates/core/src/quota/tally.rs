//! Counting a quota over all sites: from two rounds of tallies to a number, or to an interval while something moves.
//!
//! Each site's totals of tokens granted (A) and taken back (R) only grow. Between the end of the first round of tallies
//! and the start of the second, every site's A lies between its two readings, and so does its R; hence at any such
//! moment ΣA₁ − ΣR₂ ≤ in use ≤ ΣA₂ − ΣR₁. When nothing is granted or taken back in between, both ends are the same.
//! What a lost incarnation had granted, or a member that has left, is not in the totals: it shows as what the tokens do not account for.

use crate::api::{Refusal, Shown, ShownSite, Work};
use crate::avantan::Membership;
use crate::id::SiteSet;
use crate::peer::quota::Tally;

/// Counts from two rounds of tallies, by member; none where a member did not answer in time.
/// `incarnations` are those of the members that gave the second round.
pub fn count(
    name: &str,
    site: Membership,
    first: &[Option<Tally>],
    second: &[Option<Tally>],
    incarnations: &[crate::id::Incarnation],
) -> Result<Shown, Refusal> {
    // Who is gone has nothing: what it had is in use.
    let mut missing = SiteSet::default();
    for (position, _) in site.members.iter().enumerate().filter(|(_, member)| site.is_present(**member)) {
        if first[position].is_none() || second[position].is_none() {
            missing.insert(position);
        }
    }

    // That none of those who have answered knows it says nothing while one has not: it may be the one that created it.
    let newest = second.iter().flatten().max_by_key(|tally| (tally.generation, tally.rounds.applied));
    let unknown = if missing.is_empty() { Refusal::UnknownQuota } else { Refusal::Unreachable { missing } };
    let newest = newest.filter(|tally| tally.limit.0 > 0).ok_or(unknown)?.clone();
    let (generation, (limit, excess), agreement) = (newest.generation, newest.limit, newest.agreement);
    // Tokens, gifts and what is in use add up to this.
    let all = limit.saturating_add(excess).max(0);

    // A site that does not know this generation has nothing of it.
    let of_generation = |round: &[Option<Tally>]| -> Vec<Option<Tally>> {
        let nothing = |site| Tally { site, generation, limit: (limit, excess), ..Tally::default() };
        let known = round.iter().map(|tally| {
            tally.as_ref().map(|tally| if tally.generation == generation { tally.clone() } else { nothing(tally.site) })
        });
        known.collect()
    };
    let (first, second) = (&of_generation(first)[..], &of_generation(second)[..]);

    // What lost storage granted, and a member that has left, is in no total, while what others take back of it is.
    let is_whole = incarnations.iter().all(|incarnation| incarnation.0 == 1)
        && site.members.iter().all(|member| site.is_present(*member));
    // Nothing is under way between sites: then tokens account for all that is not in use.
    let is_settled = missing.is_empty()
        && have_rounds_ended(second, newest.rounds.applied)
        && have_gifts_arrived(second, incarnations);
    let (least, most) = in_use((first, second), i128::from(all), is_whole, is_settled, missing.is_empty());

    // Clients that released what they never had have spoiled the count by so much at least: nobody is to be blamed for what one site has told
    // and another one, read later or not at all, has not. What was taken back before the first readings, and was not granted before the second
    // ones, never was; and where nothing moved in between, tokens beyond all that there are were given back by one who had none.
    let is_still = is_settled && [acquired, released].iter().all(|part| sum(first, *part) == sum(second, *part));
    let unmatched = sum(first, released) - sum(second, acquired);
    let unmatched = if is_whole && missing.is_empty() { unmatched } else { 0 };
    let beyond = if is_still { sum(second, tokens) - i128::from(all) } else { 0 };
    let spoiled = unmatched.max(beyond).max(0);
    let clamp = |value: i128, most: i64| value.clamp(0, i128::from(most)) as i64;
    Ok(Shown {
        name: name.to_owned(),
        limit,
        agreement,
        excess,
        // In use is what tokens and gifts leave of all, so whatever the totals allow, it is not more.
        in_use_min: clamp(least, all),
        in_use_max: clamp(most, all),
        estimate: None,
        sites: second
            .iter()
            .enumerate()
            .filter_map(|(position, tally)| Some((position, tally.as_ref()?)))
            .map(|(position, tally)| ShownSite {
                site: tally.site,
                tokens: tally.tokens,
                set_aside: tally.held,
                incarnation: incarnations[position],
                age: Some(0),
            })
            .collect(),
        missing,
        work: Work {
            local: second.iter().flatten().map(|tally| tally.work.local).sum(),
            // Each site applies every round; one that was away counts several as one.
            rebalances: second.iter().flatten().map(|tally| tally.work.rebalances).max().unwrap_or(0),
            gifts: second.iter().flatten().map(|tally| tally.work.gifts).sum(),
        },
        released_above: clamp(spoiled, i64::MAX),
        refill: 0,
    })
}

/// The least and the most that can have been in use between two rounds of tallies, of `all` there is.
fn in_use(
    (first, second): (&[Option<Tally>], &[Option<Tally>]),
    all: i128,
    is_whole: bool,
    is_settled: bool,
    is_complete: bool,
) -> (i128, i128) {
    // Between the two rounds every site's totals lie between its two readings, so this interval has the number in use then.
    let least = sum(first, acquired) - sum(second, released);
    let most = sum(second, acquired) - sum(first, released);
    if is_settled && most == least {
        // Includes what lost incarnations had granted or held.
        let used = all - sum(second, tokens);
        return (used, used);
    }
    if !is_whole && is_settled && has_stayed(first, second) {
        // No token went from site to site between the readings, so those of the first account for what was in use then, and the totals for
        // what has come and gone since.
        let used = all - sum(first, tokens);
        let since = |part: fn(&Tally) -> i128| sum(second, part) - sum(first, part);
        return (used - since(released), used + since(acquired));
    }
    // Tokens that move between two readings are read twice or not at all, and totals that are not whole, or not all there, do not tell all
    // that was granted: then only the limit is certain, and what was over it.
    if is_whole && is_complete { (least, most) } else { (0, all) }
}

/// The sum of a part of each tally of a round.
fn sum(round: &[Option<Tally>], part: fn(&Tally) -> i128) -> i128 {
    round.iter().flatten().map(part).fold(0, i128::saturating_add)
}

fn tokens(tally: &Tally) -> i128 {
    i128::from(tally.tokens)
}

fn acquired(tally: &Tally) -> i128 {
    i128::try_from(tally.acquired).unwrap_or(i128::MAX)
}

fn released(tally: &Tally) -> i128 {
    i128::try_from(tally.released).unwrap_or(i128::MAX)
}

/// True if each member had in the first reading what it has in the second, but for what it granted and took back in between: nothing was
/// moved by a round, a gift or a change of the limit.
fn has_stayed(first: &[Option<Tally>], second: &[Option<Tally>]) -> bool {
    let stayed = |(before, after): (&Option<Tally>, &Option<Tally>)| match (before, after) {
        (Some(before), Some(after)) => {
            let granted = i128::try_from(after.acquired.saturating_sub(before.acquired)).unwrap_or(i128::MAX);
            let returned = i128::try_from(after.released.saturating_sub(before.released)).unwrap_or(i128::MAX);
            (before.limit, &before.rounds) == (after.limit, &after.rounds)
                && (&before.given, &before.received) == (&after.given, &after.received)
                && i128::from(before.tokens) - granted + returned == i128::from(after.tokens)
        }
        // Who is gone has nothing.
        (before, after) => before.is_none() && after.is_none(),
    };
    first.iter().zip(second).all(stayed)
}

/// True if no member is in a round, all have applied every instance, and any two the same rounds among subsets that name both. The readings are of different moments: one may be
/// of before such a round, and the other of after.
fn have_rounds_ended(tallies: &[Option<Tally>], applied: u64) -> bool {
    let at_rest = tallies.iter().flatten().all(|tally| !tally.rounds.is_open && tally.rounds.applied == applied);
    let with = |one: usize, other: usize| {
        let tally = tallies[one].as_ref();
        tally.and_then(|tally| tally.rounds.subset.get(other).copied()).unwrap_or(0)
    };
    let members = (0..tallies.len()).filter(|member| tallies[*member].is_some());
    let is_alike = |one, other| one == other || with(one, other) == with(other, one);
    at_rest && members.clone().all(|one| members.clone().all(|other| is_alike(one, other)))
}

/// True if all that members have given to present incarnations was received there, by tallies of all members.
fn have_gifts_arrived(tallies: &[Option<Tally>], incarnations: &[crate::id::Incarnation]) -> bool {
    let mut told = tallies.iter().enumerate().filter_map(|(donor, tally)| Some((donor, tally.as_ref()?)));
    told.all(|(donor, tally)| {
        tally.given.iter().enumerate().all(|(receiver, &(to, given))| {
            // One that has joined since, of which who asks does not know yet: nothing is said of what it was given.
            let Some(present) = incarnations.get(receiver) else { return given == 0 };

            // The readings are of different moments: one may show a gift that the other does not know of, either way.
            let arrived = tallies[receiver].as_ref().and_then(|other| other.received.get(donor).copied());
            let arrived = arrived.filter(|(from, _)| *from == incarnations[donor]).map_or(0, |(_, tokens)| tokens);
            let sent = if to == *present { given } else { 0 };
            donor == receiver || arrived == sent
        })
    })
}

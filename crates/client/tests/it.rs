//! The client against sites that do what a test tells them to: real sockets, no protocol.

mod site;
mod txns;

use std::time::{Duration, Instant};

use site::{Cluster, Fault};
use slackline::{Client, Effect, Left, LeftWhat, NotDone, Options, Outcome, Reason, UnknownReason};

const SHORT: Duration = Duration::from_millis(700);

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), test).await.expect("in time") });
}

/// A client that prefers the first site, however busy this machine is while it measures.
async fn at_us(cluster: &Cluster) -> Client {
    let options = Options { region: Some("us".into()), ..Options::default() };
    Client::connect_with(cluster.addresses(), options).await.expect("connected")
}

/// Polls until `condition` holds; panics after five seconds.
async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(5);
    while !condition() {
        assert!(Instant::now() < until, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn grants_name_their_site_and_are_released() {
    run(async {
        let cluster = Cluster::start(&["us", "eu"], 1);
        let client = at_us(&cluster).await;
        assert_eq!(client.nearest(), "us");
        let gpus = client.quota("gpus");
        assert_eq!(gpus.create(100).await.done(), Ok(100));
        let grant = gpus.acquire(3).tracked().at("eu").await.done().expect("granted");
        assert_eq!((grant.site().as_str(), grant.amount(), grant.name().as_str()), ("eu", 3, "eu-1-1"));
        assert_eq!(cluster.site("eu").tokens(), 97);
        assert_eq!(client.topology().parse_grant("eu-1-1"), Ok(grant.id()));
        assert!(grant.release().await.is_done());
        assert_eq!(cluster.site("eu").tokens(), 100);
        assert_eq!(grant.release().await.refusal(), Some(&Reason::UnknownGrant));
        client.close().await;
        assert_eq!(cluster.site("eu").open_sessions(), 0);
    });
}

#[test]
fn site_that_is_not_ready_is_not_said_to_be_without_a_connection() {
    run(async {
        let mut cluster = Cluster::start(&["us", "eu"], 1);
        let client = at_us(&cluster).await;
        cluster.site("us").set_ready(false);
        cluster.kill("eu");
        let gpus = client.quota("gpus");
        let nowhere = gpus.acquire(1).deadline(SHORT).await;
        assert_eq!(nowhere.refusal(), Some(&Reason::NotReady));
        let pinned = gpus.acquire(1).at("us").deadline(SHORT).await;
        assert_eq!(pinned.refusal(), Some(&Reason::NotReady));
        cluster.site("us").set_ready(true);
        assert!(gpus.create(100).at("us").await.is_done());
    });
}

#[test]
fn concurrent_calls_travel_in_batches() {
    run(async {
        let cluster = Cluster::start(&["us"], 1);
        let client = at_us(&cluster).await;
        let callers = (0..512).map(|_| {
            let gpus = client.quota("gpus");
            tokio::spawn(async move {
                for _ in 0..20 {
                    gpus.acquire(1).await.done().expect("granted");
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.expect("no panic");
        }
        let site = cluster.site("us");
        assert_eq!(site.executed(), 512 * 20);
        // In a crowd three are under way at a time.
        assert!(site.batches() <= 90, "{} batches", site.batches());
    });
}

#[test]
fn calls_that_wait_do_not_block_others() {
    run(async {
        let cluster = Cluster::start(&["us"], 1);
        let client = at_us(&cluster).await;
        let slow = client.quota("slow");
        // The machine may be busy.
        let waiting = tokio::spawn(async move { slow.acquire(1).deadline(Duration::from_secs(55)).await });
        let gpus = client.quota("gpus");
        for _ in 0..3000 {
            gpus.acquire(1).await.done().expect("granted");
        }
        cluster.site("us").answer_slow();
        assert!(waiting.await.expect("no panic").is_done());
    });
}

#[test]
fn answer_lost_on_the_way_is_fetched_under_the_same_id() {
    run(async {
        let cluster = Cluster::start(&["us", "eu"], 1);
        let client = at_us(&cluster).await;
        let gpus = client.quota("gpus");
        for fault in [Fault::BreakAfterExecuting, Fault::BreakBeforeExecuting] {
            let before = cluster.site("us").executed();
            cluster.site("us").set_fault(fault);
            let grant = gpus.acquire(1).await.done().expect("granted");
            assert_eq!(grant.site(), "us");
            assert_eq!(cluster.site("us").executed(), before + 1, "{fault:?}");
        }
        assert_eq!(cluster.site("eu").executed(), 0);
    });
}

#[test]
fn dead_site_fails_over_unless_the_call_is_pinned() {
    run(async {
        let mut cluster = Cluster::start(&["us", "eu"], 1);
        let client = at_us(&cluster).await;
        let gpus = client.quota("gpus");
        assert_eq!(gpus.acquire(1).await.done().expect("granted").site(), "us");
        cluster.kill("us");
        // A call that leaves before the end of the connection is noticed would be in doubt.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(gpus.acquire(1).await.done().expect("granted").site(), "eu");
        let pinned = gpus.acquire(1).at("us").deadline(SHORT).await;
        assert_eq!(pinned.refusal(), Some(&Reason::NotSent { sites: vec!["us".into()] }));
        cluster.restart("us");
        let until = Instant::now() + Duration::from_secs(5);
        while gpus.acquire(1).await.done().expect("granted").site() != "us" {
            assert!(Instant::now() < until, "never came back to the nearest site");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

#[test]
fn site_that_is_not_ready_is_passed_over() {
    run(async {
        let cluster = Cluster::start(&["us", "eu"], 1);
        cluster.site("us").set_ready(false);
        let client = at_us(&cluster).await;
        let gpus = client.quota("gpus");
        assert_eq!(gpus.acquire(1).await.done().expect("granted").site(), "eu");
        let pinned = tokio::spawn({
            let gpus = gpus.clone();
            async move { gpus.acquire(1).at("us").await }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        cluster.site("us").set_ready(true);
        assert_eq!(pinned.await.expect("no panic").done().expect("granted").site(), "us");
    });
}

#[test]
fn call_in_doubt_at_its_deadline_is_unknown_and_can_be_asked_about() {
    run(async {
        let mut cluster = Cluster::start(&["us", "eu"], 1);
        let client = at_us(&cluster).await;
        let gpus = client.quota("gpus");
        for (fault, carried_out) in [(Fault::MuteAfterExecuting, true), (Fault::MuteBeforeExecuting, false)] {
            // The link is up (again).
            gpus.acquire(1).at("us").await.done().expect("granted");
            cluster.site("us").set_fault(fault);
            let Outcome::Unknown(unknown) = gpus.acquire(1).deadline(SHORT).await else { panic!("{fault:?}") };
            assert_eq!(unknown.why, UnknownReason::DeadlinePassed);
            cluster.kill("us");
            cluster.restart("us");
            let outcome = client.outcome_of(unknown.operation).await;
            if carried_out {
                assert!(matches!(outcome, Outcome::Done(Effect::Granted { .. })), "{outcome:?}");
            } else {
                assert_eq!(outcome.refusal(), Some(&Reason::Withdrawn));
            }
        }
        assert_eq!(cluster.site("eu").executed(), 0);
    });
}

#[test]
fn acquire_that_goes_elsewhere_gives_the_first_back() {
    run(async {
        let mut cluster = Cluster::start(&["us", "eu"], 1);
        let client = at_us(&cluster).await;
        let gpus = client.quota("gpus");
        for dies in [true, false] {
            assert_eq!(gpus.acquire(1).at("us").await.done().expect("granted").site(), "us");
            let tokens = cluster.site("us").tokens();
            cluster.site("us").set_fault(Fault::MuteAfterExecuting);
            let call = tokio::spawn({
                let gpus = gpus.clone();
                async move { gpus.acquire(5).patience(SHORT).await }
            });
            eventually("the first is carried out", || cluster.site("us").tokens() == tokens - 5).await;
            if dies {
                cluster.kill("us");
            }
            // If its connection stays, the patience alone decides.
            assert_eq!(call.await.expect("no panic").done().expect("granted").site(), "eu");
            assert_eq!(gpus.acquire(1).await.done().expect("granted").site(), "eu", "it says nothing");
            if !dies {
                cluster.kill("us");
            }
            cluster.restart("us");
            eventually("the first is given back", || cluster.site("us").tokens() == tokens).await;
        }
        assert!(client.close().await.is_empty());
    });
}

#[test]
fn hold_goes_elsewhere_by_default_and_its_release_is_handed_over() {
    run(async {
        let mut cluster = Cluster::start(&["us", "eu"], 1);
        let client = at_us(&cluster).await;
        let gpus = client.quota("gpus");
        let hold = || gpus.acquire(3).hold_for(Duration::from_secs(3600));
        let (one, other) = (hold().await.done().expect("granted"), hold().await.done().expect("granted"));
        let tokens = cluster.site("us").tokens();

        // One release is under way when the site dies, the other one is called for afterwards.
        cluster.site("us").set_fault(Fault::MuteAfterExecuting);
        let call = tokio::spawn(one.release().into_future());
        eventually("the release is carried out", || cluster.site("us").tokens() == tokens + 3).await;
        let executed = cluster.site("us").executed();
        cluster.kill("us");
        let outcome = call.await.expect("no panic");
        assert!(outcome.is_handed_over(), "{outcome:?}");
        let outcome = other.release().await;
        assert!(outcome.is_handed_over(), "{outcome:?}");
        assert_eq!(hold().await.done().expect("granted").site(), "eu");

        cluster.restart("us");
        eventually("both are back", || cluster.site("us").tokens() == site::TOKENS).await;
        assert_eq!(cluster.site("us").executed(), executed + 1, "each is carried out once");
        assert!(client.close().await.is_empty());
    });
}

#[test]
fn all_sites_gone_the_call_that_left_is_unknown_and_can_be_asked_about() {
    run(async {
        let mut cluster = Cluster::start(&["us", "eu"], 1);
        let client = at_us(&cluster).await;
        let gpus = client.quota("gpus");
        gpus.acquire(1).await.done().expect("granted");
        let tokens = cluster.site("us").tokens();
        cluster.site("us").set_fault(Fault::MuteAfterExecuting);
        // Whether eu is away is not known until it is tried.
        cluster.kill("eu");
        let call = gpus.acquire(5).patience(Duration::from_millis(200)).deadline(Duration::from_secs(2));
        let call = tokio::spawn(call.into_future());
        eventually("the first is carried out", || cluster.site("us").tokens() == tokens - 5).await;
        cluster.kill("us");
        let Outcome::Unknown(unknown) = call.await.expect("no panic") else { panic!("it may have been granted") };
        assert!(unknown.name.starts_with("us-"), "{unknown}");
        cluster.restart("us");
        let outcome = client.outcome_of(unknown.operation).await;
        assert!(matches!(outcome, Outcome::Done(Effect::Granted { .. })), "{outcome:?}");
        assert_eq!(cluster.site("us").tokens(), tokens - 5, "the caller has it now, so it is not given back");
        assert!(client.close().await.is_empty());
    });
}

#[test]
fn two_doubtful_calls_of_one_caller_the_first_is_given_back_and_the_second_is_asked_about() {
    run(async {
        let mut cluster = Cluster::start(&["us", "eu"], 1);
        let client = at_us(&cluster).await;
        let gpus = client.quota("gpus");
        gpus.acquire(1).await.done().expect("granted");
        let tokens = ["us", "eu"].map(|site| cluster.site(site).tokens());
        for site in ["us", "eu"] {
            cluster.site(site).set_fault(Fault::MuteAfterExecuting);
        }
        let call = gpus.acquire(5).tracked().patience(Duration::from_millis(200)).deadline(Duration::from_secs(1));
        let Outcome::Unknown(unknown) = call.await else { panic!("nobody answers") };
        assert!(unknown.name.starts_with("eu-"), "{unknown}");
        for site in ["us", "eu"] {
            cluster.kill(site);
            cluster.restart(site);
        }
        eventually("the first is given back", || cluster.site("us").tokens() == tokens[0]).await;
        let Outcome::Done(Effect::Granted { grant, .. }) = client.outcome_of(unknown.operation).await else {
            panic!("it was granted")
        };
        assert_eq!(client.release_grant(grant).await.done(), Ok(5));
        assert_eq!(cluster.site("eu").tokens(), tokens[1]);
        assert!(client.close().await.is_empty());
    });
}

#[test]
fn closed_client_says_what_it_leaves() {
    run(async {
        let mut cluster = Cluster::start(&["us", "eu"], 1);
        let client = at_us(&cluster).await;
        let gpus = client.quota("gpus");
        gpus.acquire(1).await.done().expect("granted");
        cluster.site("us").set_fault(Fault::MuteAfterExecuting);
        let grant = gpus.acquire(5).patience(Duration::from_millis(200)).await.done().expect("granted");
        assert_eq!(grant.site(), "eu");
        cluster.kill("us");
        let left = client.close().await;
        let [Left { what: LeftWhat::Acquire { amount: 5, .. }, why: NotDone::Unknown(unknown), .. }] = &left[..] else {
            panic!("{left:?}")
        };
        // Another client can ask, and give it back.
        cluster.restart("us");
        let client = at_us(&cluster).await;
        let outcome = client.outcome_of(unknown.operation).await;
        assert!(matches!(outcome, Outcome::Done(Effect::Granted { .. })), "{outcome:?}");
    });
}

#[test]
fn dropped_call_that_waits_is_withdrawn() {
    run(async {
        let cluster = Cluster::start(&["us"], 1);
        let client = at_us(&cluster).await;
        let slow = client.quota("slow");
        let dropped = tokio::time::timeout(Duration::from_millis(100), slow.acquire(1).into_future()).await;
        assert!(dropped.is_err());
        eventually("it is withdrawn", || cluster.site("us").slow() == 0).await;
        assert_eq!(cluster.site("us").tokens(), site::TOKENS);
    });
}

#[test]
fn holds_end_by_the_clock_of_before_the_request() {
    run(async {
        let cluster = Cluster::start(&["us"], 1);
        let client = at_us(&cluster).await;
        let slow = client.quota("slow");
        let sent = Instant::now();
        let hold = Duration::from_secs(5);
        let call = tokio::spawn(async move { slow.acquire(1).hold_for(hold).await });
        eventually("the site has it", || cluster.site("us").slow() == 1).await;
        let arrived = Instant::now();
        tokio::time::sleep(Duration::from_millis(300)).await;
        cluster.site("us").answer_slow();
        let grant = call.await.expect("no panic").done().expect("granted");
        let expires_at = grant.expires_at().expect("a hold with an end");
        // The clock of the site may be off by a tenth of a second, either way.
        let error = Duration::from_millis(100);
        assert!(expires_at <= arrived + hold - error, "counted from the answer, or as if clocks were exact");
        assert!(expires_at > sent + hold - 2 * error);
    });
}

#[test]
fn lanes_are_hidden() {
    run(async {
        let cluster = Cluster::start(&["us"], 2);
        let client = Client::connect(&cluster.addresses()[..1]).await.expect("connected");
        let mut lanes = [0, 0];
        for number in 0..20 {
            let name = format!("quota-{number}");
            client.quota(&name).acquire(1).await.done().expect("granted");
            lanes[usize::from(slackline::lane_of(&name, 2))] += 1;
        }
        assert_eq!([cluster.site("us").executed(), cluster.site("us:1").executed()], lanes);
        assert!(lanes[0] > 0 && lanes[1] > 0);
    });
}

#[test]
fn bad_input_is_refused_before_it_is_sent() {
    run(async {
        let cluster = Cluster::start(&["us"], 1);
        let client = at_us(&cluster).await;
        let gpus = client.quota("gpus");
        for amount in [0, -1, i64::MIN] {
            assert_eq!(gpus.acquire(amount).await.refusal(), Some(&Reason::InvalidAmount));
            assert_eq!(gpus.release(amount).await.refusal(), Some(&Reason::InvalidAmount));
            assert_eq!(gpus.create(amount).await.refusal(), Some(&Reason::InvalidAmount));
        }
        for name in ["", "a\nb", &"x".repeat(257)] {
            assert_eq!(client.quota(name).acquire(1).await.refusal(), Some(&Reason::InvalidName));
        }
        let nowhere = Reason::UnknownRegion { region: "mars".into(), known: vec!["us".into()] };
        assert_eq!(gpus.acquire(1).at("mars").await.refusal(), Some(&nowhere));
        assert_eq!(cluster.site("us").executed(), 0);
    });
}

#[test]
fn connecting_says_what_is_wrong() {
    run(async {
        let none = Client::connect([""; 0]).await.expect_err("no address");
        assert!(none.to_string().contains("no address"), "{none}");
        let invalid = Client::connect(["nonsense"]).await.expect_err("no port");
        assert!(invalid.to_string().contains("host:port"), "{invalid}");
        let free = site::free_address();
        let nobody = Client::connect([&free]).await.expect_err("nobody listens");
        assert!(nobody.to_string().contains(&free), "{nobody}");
        let cluster = Cluster::start(&["us"], 1);
        let options = Options { region: Some("mars".into()), ..Options::default() };
        let nowhere = Client::connect_with(cluster.addresses(), options).await.expect_err("no such region");
        assert!(nowhere.to_string().contains("there are us"), "{nowhere}");
    });
}

#[test]
fn status_names_the_sites_that_do_not_answer() {
    run(async {
        let mut cluster = Cluster::start(&["us", "eu"], 1);
        let client = at_us(&cluster).await;
        cluster.kill("eu");
        let states = client.status(SHORT).await;
        let up: Vec<_> = states.iter().map(|state| (state.site.as_str(), state.is_up(), state.is_ready())).collect();
        assert_eq!(up, [("us", true, true), ("eu", false, false)]);
    });
}

#[test]
fn tracked_grant_is_released_through_another_site() {
    run(async {
        let mut cluster = Cluster::start(&["us", "eu"], 1);
        let client = at_us(&cluster).await;
        let grant = client.quota("gpus").acquire(3).tracked().await.done().expect("granted");
        assert_eq!(grant.site(), "us");
        cluster.site("us").set_relayed(true);
        cluster.kill("us");
        assert_eq!(grant.release().await.done(), Ok(3));
        assert_eq!(cluster.site("us").tokens(), site::TOKENS);
    });
}

#[test]
fn quotas_are_listed_page_by_page_to_the_last() {
    run(async {
        let cluster = Cluster::start(&["us"], 1);
        let client = at_us(&cluster).await;
        let names = |count: usize| (0..count).map(|number| format!("q{number:05}"));
        let listed = async || client.list().await.expect("it answers").into_iter().map(|one| one.name).collect();
        for count in [0, 1, 999, 1000, 1001, 2000, 2500] {
            cluster.site("us").set_quotas(names(count), None);
            let listed: Vec<String> = listed().await;
            assert_eq!(listed, names(count).collect::<Vec<_>>());
        }

        // The last of a page goes, and one comes before it and one behind it.
        cluster.site("us").set_quotas(
            names(1500),
            Some(|quotas| {
                quotas.remove("q00999");
                quotas.extend(["q00998-new".to_owned(), "q01000-new".to_owned()]);
            }),
        );
        let listed: Vec<String> = listed().await;
        let mut expected: Vec<String> = names(1500).collect();
        expected.insert(1001, "q01000-new".to_owned());
        assert_eq!(listed, expected);
    });
}

//! The ids of operations that a person types: what is wrong with one, and if there ever was such an operation.

use slackline::{Client, Key, OperationId, ParseNameError, SiteId};

use crate::end::Finish;

/// The error for a text that should be the id of an operation, and is none.
pub(super) fn malformed(client: &Client, text: &str, error: &ParseNameError) -> Finish {
    Finish::WrongUse(match error {
        ParseNameError::Malformed if client.topology().parse_grant(text).is_ok() => {
            format!(
                "{text:?} is a grant's id, and not an operation's; `slackline quota release --grant {text}` gives it back"
            )
        }
        ParseNameError::Malformed => format!(
            "{text:?} is not an operation's id: expected a region and three numbers joined by '-', such as eu-1-9-12"
        ),
        error => format!("{text:?}: {error}"),
    })
}

/// A sentence, if there never was an operation with this id. A session that was never opened differs from one that is forgotten:
/// numbers of sessions and incarnations only rise, so its number is above all that were given.
pub(super) async fn never_was(client: &Client, operation: OperationId) -> Option<String> {
    let newest = newest(client, operation.site).await?;
    is_beyond(operation, newest).then(|| {
        let topology = client.topology();
        let (name, site) = (topology.operation_text(operation), topology.name(operation.site));
        format!("nothing is known of {name}: there never was such an operation at {site}")
    })
}

/// True if no operation can have this id; `newest` is in the newest session of its site.
pub(super) fn is_beyond(operation: OperationId, newest: OperationId) -> bool {
    let session = |id: OperationId| (id.incarnation, id.session);
    session(operation) > session(newest) || operation.sequence == 0
}

/// An operation in the newest session of a site: it reads a name without an object, to learn the session's number.
pub(super) async fn newest(client: &Client, site: SiteId) -> Option<OperationId> {
    let region = client.topology().regions.get(usize::from(site.region))?;
    let nothing = &Key::new(region, "nothing");
    let read = client.transaction().at(region).run_and_tell(|txn| async move { txn.value(nothing).await });
    let operation = read.await.ok()?.done().ok()?.operation?;
    (operation.site == site).then_some(operation)
}

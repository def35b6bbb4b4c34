//! Changes of the members of a lane.

use slackline_core::api::SeatChange;
use slackline_core::id::SiteId;
use slackline_session::call::Place;
use slackline_session::command::Command;

use crate::call::{Call, Seat};
use crate::client::Client;

impl Client {
    /// Gives a site a place among the members of its lane, empties it, or takes it out. A change of the members needs a majority of them. One that
    /// joins is named by its region, a space and the `host:port` at which others reach it.
    ///
    /// # Errors
    ///
    /// [`Reason::NoSeat`](crate::Reason::NoSeat), with why.
    pub fn change_members(&self, site: SiteId, change: SeatChange, label: &str) -> Call<Seat> {
        let command = Command::Seat { site, change, label: label.into() };
        let place = match change {
            SeatChange::Joins | SeatChange::Lost => Place::Nearest,
            // What only the site itself can do.
            SeatChange::Drains | SeatChange::Serves | SeatChange::Leaves => Place::Site(site),
        };
        Call::new(self.clone(), site.lane, command, place)
    }
}

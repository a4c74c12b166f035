//! The page for the relay's managers, `/admin`: clients, bans and allows, reports, members, roles,
//! the state of the server and the audit log. Everything works without scripts, except for the login
//! with a browser extension.
//!
//! `routes` answers the requests. `login` begins sessions (`sessions`), and `view` is the frame of
//! every page. Each other file makes one page. `acts` carries out the changes, with the functions
//! that carry out the calls of NIP-86.
//!
//! A browser sends the session's cookie only with requests from pages of this relay (SameSite). A
//! change also needs the secret that the session's forms have, and an `Origin` header of this relay.

mod acts;
mod audit;
mod clients;
mod form;
mod login;
mod members;
mod names;
mod overview;
mod reports;
mod request;
mod roles;
mod routes;
mod rulings;
mod sessions;
mod view;

pub(crate) use login::link_path;
pub(crate) use request::AdminRequest;
pub(crate) use routes::{answer, is_path};
pub(crate) use sessions::{AdminSessions, SessionFault};

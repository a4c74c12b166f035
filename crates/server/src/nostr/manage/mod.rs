//! The relay management API (NIP-86): HTTP requests, signed by managers (NIP-98), that change the
//! bans and allows, the relay's description of itself, and the roles.
//!
//! `door` answers a request: `http_auth` checks its signature, `managers` and `roles` decide whether
//! the key may call the method, `call` reads the call, and `execute` carries it out. `page` is the
//! page `/admin` with the same changes, for browsers.

mod call;
mod door;
mod execute;
mod fault;
mod http_auth;
mod managers;
mod method;
mod page;
mod roles;
mod ruling_methods;
mod state;

pub(crate) use call::RoleDefinition;
pub(crate) use door::{MEDIA_TYPE, ManageClient, answer};
pub use fault::ManageResult;
pub use managers::{ManagerRole, Managers, SharedManagers};
pub use method::ManageMethod;
pub(crate) use page::{AdminRequest, answer as answer_page, is_path, link_path};
pub(crate) use roles::{RoleList, member_name, withdraw_roles};
pub(crate) use state::Management;
pub use state::ManagerKeys;

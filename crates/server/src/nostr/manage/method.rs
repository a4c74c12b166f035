//! The methods of the relay management API (NIP-86).

use crate::metrics::{MetricLabel, labels};

labels! {
    /// A method of the relay management API.
    ManageMethod {
        /// Lists the methods that the asking key may call.
        SupportedMethods = "supportedmethods",
        /// Bans a key.
        BanPubkey = "banpubkey",
        /// Lifts the ban of a key.
        UnbanPubkey = "unbanpubkey",
        /// Lists the banned keys.
        ListBannedPubkeys = "listbannedpubkeys",
        /// Allows a key.
        AllowPubkey = "allowpubkey",
        /// Withdraws the permission of a key.
        UnallowPubkey = "unallowpubkey",
        /// Lists the allowed keys.
        ListAllowedPubkeys = "listallowedpubkeys",
        /// Defines a role.
        CreateRole = "createrole",
        /// Changes the definition of a role.
        EditRole = "editrole",
        /// Deletes a role, and withdraws the role from all its keys.
        DeleteRole = "deleterole",
        /// Assigns a role to a key.
        AssignRole = "assignrole",
        /// Withdraws a role from a key.
        UnassignRole = "unassignrole",
        /// Lists the reported events that nobody has decided about.
        ListEventsNeedingModeration = "listeventsneedingmoderation",
        /// Allows an event.
        AllowEvent = "allowevent",
        /// Bans an event.
        BanEvent = "banevent",
        /// Lists the banned events.
        ListBannedEvents = "listbannedevents",
        /// Changes the name of the relay.
        ChangeRelayName = "changerelayname",
        /// Changes the description of the relay.
        ChangeRelayDescription = "changerelaydescription",
        /// Changes the icon of the relay.
        ChangeRelayIcon = "changerelayicon",
        /// Allows a kind.
        AllowKind = "allowkind",
        /// Bans a kind.
        DisallowKind = "disallowkind",
        /// Lists the allowed kinds.
        ListAllowedKinds = "listallowedkinds",
        /// Bans an address, or a network of addresses.
        BlockIp = "blockip",
        /// Lifts the ban of an address.
        UnblockIp = "unblockip",
        /// Lists the banned addresses.
        ListBlockedIps = "listblockedips",
    }
}

impl ManageMethod {
    /// The method with this name in NIP-86. `None` if there is no such method.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(method, _)| *method)
    }

    /// All methods except [`ManageMethod::SupportedMethods`], which every manager may call.
    pub fn grantable() -> impl Iterator<Item = Self> + Clone {
        Self::ALL.iter().skip(1).map(|(method, _)| *method)
    }

    /// The name of the method in NIP-86.
    pub fn text(self) -> &'static str {
        self.name()
    }
}

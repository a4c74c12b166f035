//! The bounds of a running server, with the effect of reaching each bound.
//!
//! The bounds are plain numbers. The binary fills in the numbers from its settings, the doors read
//! the numbers, and the NIP-11 document is derived from these numbers.

use hark_networks::{EventLimits, FilterLimits};

pub use crate::rate::{Rate, RateLimits};

/// The bounds of a server. Names end with their unit; `_max` means "up to and including".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of connections at a time. One more connection is answered with HTTP status
    /// 503 and closed.
    pub connections_max: usize,
    /// Maximum number of connections from one address at a time. An IPv6 address counts by its
    /// first 64 bits. One more connection is answered with HTTP status 429 and closed.
    pub connections_per_address_max: usize,
    /// How long a connection may take for its TLS handshake, and then to send its HTTP request
    /// head. After that, the connection is closed.
    pub handshake_timeout_ms: u64,
    /// Maximum size of one message from a client, in bytes. A longer message closes the connection
    /// with code 1009. The bound of a question may be lower.
    pub message_bytes_max: usize,
    /// Silence after which the server pings.
    pub ping_after_s: u64,
    /// Silence after which a connection is closed; an incomplete frame counts as silence. A
    /// connection is also closed if its client reads none of the waiting bytes for this time, even
    /// if the client sends messages.
    pub idle_timeout_s: u64,

    /// Maximum number of subscriptions of one connection. One more REQ is answered with CLOSED
    /// `blocked:`.
    pub subscriptions_max: usize,
    /// Maximum total size, in bytes, of the REQs of one connection's subscriptions. The memory of a
    /// subscription grows with the length of its REQ. A REQ above the bound is answered with CLOSED
    /// `blocked:`.
    pub subscription_bytes_max: usize,
    /// Maximum memory, in bytes, of the REQs, COUNTs and comparison messages of all connections,
    /// from their arrival to their end. The memory is estimated from the length of the messages and
    /// from their filters. One address may use a quarter of the bound. Above the bound, these
    /// messages are answered with CLOSED or NEG-ERR `rate-limited:`.
    pub questions_bytes_max: usize,
    /// Maximum number of characters of a subscription's name. A longer name is answered with CLOSED
    /// or NOTICE `invalid:`.
    pub subscription_id_chars_max: usize,
    /// Bounds of filters, and of the answers to questions.
    pub filters: FilterLimits,

    /// Maximum number of comparisons (NIP-77) of one connection. One more comparison is answered
    /// with NEG-ERR `blocked:`. With 0, comparisons are not offered.
    pub negentropy_per_connection_max: usize,
    /// Maximum number of events of a comparison. Above the bound, NEG-OPEN is answered with NEG-ERR
    /// `blocked:` and the bound.
    pub negentropy_events_max: usize,
    /// Maximum memory of the comparisons of one connection, in bytes (about 40 bytes per event).
    /// Above the bound, NEG-OPEN is answered with NEG-ERR `blocked:`.
    pub negentropy_connection_bytes_max: usize,
    /// Maximum memory of the comparisons of all connections, in bytes. One address may use a
    /// quarter of the bound. Above the bound, NEG-OPEN is answered with NEG-ERR `rate-limited:`.
    pub negentropy_bytes_max: usize,
    /// Maximum size, in bytes, of a NEG-MSG that the server sends. The message is shorter if less
    /// memory is free for questions. The rest is sent in the next message.
    pub negentropy_message_bytes_max: usize,
    /// How long a client may take to continue a comparison. After that, the comparison is ended
    /// with NEG-ERR `closed:`.
    pub negentropy_idle_s: u64,

    /// Bounds of events.
    pub events: EventLimits,

    /// Maximum number of keys that one connection may prove to own (NIP-42). One more key is
    /// answered with OK false `restricted:`.
    pub auth_keys_max: usize,
    /// How far the time of an AUTH may differ from the current time, in either direction. Any other
    /// AUTH is answered with OK false `invalid:`.
    pub auth_age_s_max: u64,

    /// The rate limits of events, of other messages, and of visited rows.
    pub rates: RateLimits,
    /// Number of rows that a search visits in one time slice, before the next search continues. In
    /// an archive in files, a slice also ends after 2 ms.
    pub slice_rows: u64,
    /// Maximum number of REQs, COUNTs and comparison messages of one connection that are being
    /// answered or wait for an answer. Above the bound, nothing more is read from the connection
    /// until one of these messages is answered.
    pub searches_per_connection_max: usize,

    /// Maximum number of events of one connection that have no OK yet. Above the bound, nothing
    /// more is read from the connection until one of these events has an OK.
    pub events_per_connection_max: usize,
    /// Maximum total size in bytes of all events that have no OK yet, over all connections. Above
    /// the bound, the server reads nothing from connections that publish until there is space; they
    /// then continue in the order of their arrival.
    pub intake_bytes_max: usize,

    /// Maximum total size in bytes of all messages of more than 1 KiB that are incomplete or wait
    /// for space in the intake, over all connections. One address may use a quarter of the bound. A
    /// connection that would exceed the bound is closed with code 1013.
    pub inbound_bytes_max: usize,

    /// Number of unread bytes of one client above which the client's searches pause.
    pub outbox_pause_bytes: usize,
    /// Number of unread bytes of one client above which the client is too slow, and its connection
    /// is closed.
    pub outbox_bytes_max: usize,
    /// Maximum number of unread bytes of all clients of one address. Above the bound, a search
    /// waits while its client has unread bytes, an HTTP request gets status 503, and a live event
    /// closes the connection if the connection has more than its share, the bound divided by the
    /// number of connections of the address. The pages of other doors are counted separately, with
    /// the same bound.
    pub outboxes_per_address_bytes_max: usize,
    /// Maximum number of unread bytes of all clients. Above half of the bound, a search waits while
    /// its client has unread bytes. Above the bound, every search waits, an HTTP request gets
    /// status 503, and a live event closes the connection if the connection has more than its
    /// share, the bound divided by the number of connections. The pages of other doors are counted
    /// separately, with the same bound, and are refused above the bound.
    pub outboxes_bytes_max: usize,
    /// Maximum number of bytes of live messages that one subscription holds back until its stored
    /// messages are sent. Above the bound, the connection is too slow and is closed.
    pub held_bytes_max: usize,

    /// Maximum number of connections to `control.sock`. One more connection is closed at once.
    pub control_connections_max: usize,
    /// Maximum size of one frame on `control.sock`, in bytes. A longer frame ends the connection.
    pub control_frame_bytes_max: usize,
    /// Maximum number of unanswered records of one control connection. Above the bound, the server
    /// reads nothing more from the connection.
    pub control_window: usize,

    /// How long a shutdown waits for work under way before it drops that work.
    pub drain_timeout_ms: u64,
    /// How long a server waits for a step of a process that takes over, while writes wait. After
    /// that, the server continues as before. If the other process may already write, this server
    /// refuses writes until the other process has reported its start, or has ended.
    pub takeover_wait_ms: u64,
    /// How long a server continues to serve its connections after another process has taken over.
    /// After that, the connections are closed, and their clients reconnect to the new server.
    pub takeover_drain_s: u64,
    /// Maximum number of records that a server receives and keeps in memory after another process
    /// has taken over. Above the bound, the server closes its connections.
    pub takeover_records_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 20_000,
            connections_per_address_max: 100,
            handshake_timeout_ms: 10_000,
            // A little more than 1 MiB, because other relays accept events of 1 MiB.
            message_bytes_max: 1_088 << 10,
            ping_after_s: 45,
            idle_timeout_s: 120,
            subscriptions_max: 200,
            subscription_bytes_max: 2 << 20,
            questions_bytes_max: 128 << 20,
            subscription_id_chars_max: 64,
            filters: FilterLimits::default(),
            negentropy_per_connection_max: 16,
            negentropy_events_max: 400_000,
            negentropy_connection_bytes_max: 16 << 20,
            negentropy_bytes_max: 64 << 20,
            negentropy_message_bytes_max: 1 << 20,
            negentropy_idle_s: 60,
            events: EventLimits::default(),
            auth_keys_max: 16,
            auth_age_s_max: 600,
            rates: RateLimits::default(),
            slice_rows: 2_000,
            searches_per_connection_max: 64,
            events_per_connection_max: 1_024,
            intake_bytes_max: 32 << 20,
            inbound_bytes_max: 64 << 20,
            outbox_pause_bytes: 256 << 10,
            outbox_bytes_max: 16 << 20,
            outboxes_per_address_bytes_max: 64 << 20,
            outboxes_bytes_max: 256 << 20,
            held_bytes_max: 4 << 20,
            control_connections_max: 16,
            control_frame_bytes_max: 2 << 20,
            control_window: 1_024,
            drain_timeout_ms: 10_000,
            takeover_wait_ms: 30_000,
            takeover_drain_s: 3_600,
            takeover_records_max: 1_000_000,
        }
    }
}

impl Limits {
    /// Returns one line for each bound that contradicts another bound or would let nothing through.
    /// A line begins with the bound's name.
    pub fn faults(&self) -> Vec<String> {
        let positive = [
            ("connections_max", self.connections_max),
            ("connections_per_address_max", self.connections_per_address_max),
            ("message_bytes_max", self.message_bytes_max),
            ("subscriptions_max", self.subscriptions_max),
            ("subscription_id_chars_max", self.subscription_id_chars_max),
            ("filters_max", self.filters.filters_max),
            ("filter_values_max", self.filters.filter_values_max),
            ("limit_max", self.filters.limit_max),
            ("negentropy_events_max", self.negentropy_events_max),
            ("negentropy_idle_s", self.negentropy_idle_s as usize),
            ("event_bytes_max", self.events.event_bytes_max),
            ("query_rows_max", self.filters.query_rows_max as usize),
            ("slice_rows", self.slice_rows as usize),
            ("searches_per_connection_max", self.searches_per_connection_max),
            ("events_per_connection_max", self.events_per_connection_max),
            ("outboxes_per_address_bytes_max", self.outboxes_per_address_bytes_max),
            ("outboxes_bytes_max", self.outboxes_bytes_max),
            ("questions_bytes_max", self.questions_bytes_max),
            ("inbound_bytes_max", self.inbound_bytes_max),
            ("control_window", self.control_window),
        ];
        let ordered = [
            ("limit_default", self.filters.limit_default, "limit_max", self.filters.limit_max),
            (
                "message_bytes_max",
                self.message_bytes_max,
                "intake_bytes_max",
                self.intake_bytes_max,
            ),
            (
                "outbox_pause_bytes",
                self.outbox_pause_bytes,
                "outbox_bytes_max",
                self.outbox_bytes_max,
            ),
            (
                "negentropy_connection_bytes_max",
                self.negentropy_connection_bytes_max,
                "negentropy_bytes_max",
                self.negentropy_bytes_max,
            ),
            (
                "ping_after_s",
                self.ping_after_s as usize,
                "idle_timeout_s",
                self.idle_timeout_s as usize,
            ),
        ];
        let zeros = positive
            .iter()
            .filter(|(_, value)| *value == 0)
            .map(|(name, _)| format!("`{name}` is 0, so nothing could pass; set it to at least 1"));
        let reversed = ordered.iter().filter(|(_, low, _, high)| low > high);
        let reversed = reversed.map(|(low, low_is, high, high_is)| {
            format!(
                "`{low}` ({low_is}) is above `{high}` ({high_is}); lower the first or raise the second"
            )
        });
        zeros.chain(reversed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_agree_with_each_other_and_contradictions_are_named() {
        assert_eq!(Limits::default().faults(), [""; 0]);
        let none = Limits { slice_rows: 0, ..Limits::default() };
        assert!(none.faults()[0].starts_with("`slice_rows` is 0"));
        let wide = Limits {
            filters: FilterLimits { limit_default: 1 << 30, ..FilterLimits::default() },
            ping_after_s: 9_000,
            ..Limits::default()
        };
        let faults = wide.faults();
        assert!(faults[0].contains("above `limit_max`"), "{faults:?}");
        assert!(faults[1].contains("above `idle_timeout_s`"), "{faults:?}");
        // An event is also bounded by the size of a message, so this bound of messages may be below
        // the bound of events.
        let short = Limits { message_bytes_max: 1 << 17, ..Limits::default() };
        assert_eq!(short.faults(), [""; 0]);
    }
}

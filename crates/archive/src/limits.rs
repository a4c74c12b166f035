//! Every bound of a running Hark in one place, with what happens when it is reached.
//!
//! Plain numbers: the doors read them, the binary fills them from its configuration, and NIP-11 is
//! derived from them. A queue or buffer whose bound is not here is a mistake.

/// Records that one commit deletes, at most: what deletes more (a request to vanish, an erase without
/// a limit) is carried out in steps of so many, and other writes are committed between them. Some
/// tens of milliseconds in a database.
pub const ERASE_STEP: usize = 1_000;

/// So many a minute, and so many at once after a rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many come back in a minute.
    pub per_minute: u64,
    /// How many there can be.
    pub at_once: u64,
}

/// How fast things may come; none is without end. Faster is answered with OK false or CLOSED
/// `rate-limited:`, and the connection is not read from until there is room again, a second at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rates {
    /// EVENT and AUTH messages from one address, whatever becomes of them.
    pub events_per_address: Option<Rate>,
    /// Events of one key with a good signature.
    pub events_per_key: Option<Rate>,
    /// All other messages but CLOSE from one address.
    pub questions_per_address: Option<Rate>,
    /// REQs and COUNTs of one key that was proved (NIP-42).
    pub questions_per_key: Option<Rate>,
    /// Rows that the searches of one connection visit; a record that is told counts as ten more. The
    /// question that goes beyond it is answered, and the next one is not.
    pub rows_per_connection: Option<Rate>,
    /// Rows that the searches of one address visit, in the same way.
    pub rows_per_address: Option<Rate>,
}

impl Rates {
    /// No bound on any.
    pub const fn none() -> Self {
        Self {
            events_per_address: None,
            events_per_key: None,
            questions_per_address: None,
            questions_per_key: None,
            rows_per_connection: None,
            rows_per_address: None,
        }
    }
}

impl Default for Rates {
    fn default() -> Self {
        let rate = |per_minute, at_once| Some(Rate { per_minute, at_once });
        Self {
            events_per_address: rate(600, 1_200),
            events_per_key: rate(300, 600),
            questions_per_address: rate(1_200, 1_200),
            questions_per_key: rate(1_200, 1_200),
            rows_per_connection: rate(12_000_000, 3_000_000),
            rows_per_address: rate(24_000_000, 6_000_000),
        }
    }
}

/// The bounds. Units stand last in the names; `_max` means "up to and including".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time. One more is told so with HTTP status 503 and closed.
    pub connections_max: usize,
    /// Connections of one address (of IPv6, of its first 64 bits) at a time. One more is told so with
    /// HTTP status 429 and closed.
    pub connections_per_address_max: usize,
    /// How long a connection may take to send its HTTP request head. After that it is closed.
    pub handshake_timeout_ms: u64,
    /// Bytes of one message from a client. A longer one ends the connection with close code 1009.
    pub message_bytes_max: usize,
    /// Silence after which the server pings.
    pub ping_after_s: u64,
    /// Silence after which a connection is closed, half a frame is silence; and how long a client may
    /// take nothing of what waits for it, whatever it says meanwhile.
    pub idle_timeout_s: u64,

    /// Subscriptions of one connection. One more REQ is answered with CLOSED `blocked:`.
    pub subscriptions_max: usize,
    /// Bytes of the REQs that one connection is subscribed with, together: what a subscription costs
    /// in memory grows with them. More are answered with CLOSED `blocked:`.
    pub subscription_bytes_max: usize,
    /// Bytes of memory that the questions of all connections take, from their coming to their end,
    /// reckoned from their length and their filters. An address may have a quarter of it. Above it REQ
    /// and COUNT are answered with CLOSED `rate-limited:`.
    pub questions_bytes_max: usize,
    /// Characters of a subscription's name. A longer one is answered with CLOSED or NOTICE
    /// `invalid:`.
    pub subscription_id_chars_max: usize,
    /// Filters in a REQ or COUNT. More are answered with CLOSED `blocked:`.
    pub filters_max: usize,
    /// Values in one filter (ids, authors, kinds and tag values together). More are answered with
    /// CLOSED `blocked:`.
    pub filter_values_max: usize,
    /// Stored records a filter gets that names no limit.
    pub limit_default: usize,
    /// Stored records a filter gets at most; a higher limit is lowered to it.
    pub limit_max: usize,

    /// Bytes of one event. A larger one is answered with OK false `invalid:`.
    pub event_bytes_max: usize,
    /// Characters of an event's content. More are answered with OK false `invalid:`.
    pub content_chars_max: usize,
    /// Tags of an event. More are answered with OK false `invalid:`.
    pub event_tags_max: usize,
    /// How far an event's time may lie ahead. Further is answered with OK false `invalid:`.
    pub created_at_ahead_s_max: u64,
    /// How old an event may be when it comes in, if that is bounded at all. Older is answered with
    /// OK false `invalid:`.
    pub created_at_behind_s_max: Option<u64>,

    /// Keys that one connection may show to be its own (NIP-42). One more is answered with OK false
    /// `restricted:`.
    pub auth_keys_max: usize,
    /// How far the time of an AUTH may be from now, before and after. Further is answered with OK
    /// false `invalid:`.
    pub auth_age_s_max: u64,

    /// How fast events, questions and rows may come.
    pub rates: Rates,
    /// Rows that the searches of one REQ or COUNT may visit in all. Above it the answer ends with
    /// CLOSED `error:`.
    pub query_rows_max: u64,
    /// Rows a search visits before the next one has its turn.
    pub slice_rows: u64,
    /// REQs and COUNTs of one connection that are being answered or wait for it. Above it nothing
    /// more is read from the connection until one is done.
    pub searches_per_connection_max: usize,

    /// Events of one connection that have no OK yet. Above it nothing more is read from the
    /// connection until one has.
    pub events_per_connection_max: usize,
    /// Bytes of events, of all connections, that have no OK yet. Above it connections that publish
    /// are not read from until there is room, first come, first served.
    pub intake_bytes_max: usize,

    /// Bytes of messages of more than 1 KiB that have not come whole or wait for room in the intake, of
    /// all connections. An address may have a quarter of it. A connection that would go above it is
    /// closed with code 1013.
    pub inbound_bytes_max: usize,

    /// Bytes waiting for a client to take them, above which its searches pause.
    pub outbox_pause_bytes: usize,
    /// Bytes waiting for a client to take them, above which it is too slow and its connection is
    /// closed.
    pub outbox_bytes_max: usize,
    /// Bytes waiting for all clients of one address together. Above it, questions of those that have
    /// something to take wait, and an HTTP request gets status 503; a live event closes a connection
    /// that has more than its share.
    pub outboxes_per_address_bytes_max: usize,
    /// Bytes waiting for all clients together. Above half of it, questions of those that have something
    /// to take wait; above all of it, every question does, an HTTP request gets status 503, and a live
    /// event closes a connection that has more than its share.
    pub outboxes_bytes_max: usize,
    /// Bytes of live messages that one subscription holds back until its stored ones are told. Above
    /// it its connection is too slow and closed.
    pub held_bytes_max: usize,

    /// Connections to `control.sock`. One more is closed at once.
    pub control_connections_max: usize,
    /// Bytes of one frame on `control.sock`. A longer one ends the connection.
    pub control_frame_bytes_max: usize,
    /// Records of one control connection without an answer. Above it nothing more is read from it.
    pub control_window: usize,

    /// How long a shutdown waits for what is under way, before it drops it.
    pub drain_timeout_ms: u64,
    /// How long a server waits for a step of a process that takes over, while writes wait. After that
    /// it goes on as before; if that process may write by then, writes are refused until it says so or
    /// has ended.
    pub takeover_wait_ms: u64,
    /// How long a server that was taken over serves the connections that it has. After that they are
    /// closed, and their clients come again to the new one.
    pub takeover_drain_s: u64,
    /// Records that it takes in meanwhile, as it keeps them in memory. After that the same happens.
    pub takeover_records_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 20_000,
            connections_per_address_max: 100,
            handshake_timeout_ms: 10_000,
            message_bytes_max: 256 << 10,
            ping_after_s: 45,
            idle_timeout_s: 120,
            subscriptions_max: 200,
            subscription_bytes_max: 2 << 20,
            questions_bytes_max: 128 << 20,
            subscription_id_chars_max: 64,
            filters_max: 20,
            filter_values_max: 2_500,
            limit_default: 500,
            limit_max: 5_000,
            event_bytes_max: 128 << 10,
            content_chars_max: 100_000,
            event_tags_max: 2_500,
            created_at_ahead_s_max: 900,
            created_at_behind_s_max: None,
            auth_keys_max: 16,
            auth_age_s_max: 600,
            rates: Rates::default(),
            query_rows_max: 2_000_000,
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
    /// Says what is wrong where bounds contradict each other or would let nothing through.
    pub fn check(&self) -> Result<(), String> {
        let positive = [
            ("connections_max", self.connections_max),
            ("connections_per_address_max", self.connections_per_address_max),
            ("message_bytes_max", self.message_bytes_max),
            ("subscriptions_max", self.subscriptions_max),
            ("subscription_id_chars_max", self.subscription_id_chars_max),
            ("filters_max", self.filters_max),
            ("filter_values_max", self.filter_values_max),
            ("limit_max", self.limit_max),
            ("event_bytes_max", self.event_bytes_max),
            ("query_rows_max", self.query_rows_max as usize),
            ("slice_rows", self.slice_rows as usize),
            ("searches_per_connection_max", self.searches_per_connection_max),
            ("events_per_connection_max", self.events_per_connection_max),
            ("outboxes_per_address_bytes_max", self.outboxes_per_address_bytes_max),
            ("outboxes_bytes_max", self.outboxes_bytes_max),
            ("questions_bytes_max", self.questions_bytes_max),
            ("inbound_bytes_max", self.inbound_bytes_max),
            ("control_window", self.control_window),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(format!("{name} is 0, so nothing could pass; set it to at least 1"));
        }
        let ordered = [
            ("limit_default", self.limit_default, "limit_max", self.limit_max),
            ("event_bytes_max", self.event_bytes_max, "message_bytes_max", self.message_bytes_max),
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
                "ping_after_s",
                self.ping_after_s as usize,
                "idle_timeout_s",
                self.idle_timeout_s as usize,
            ),
        ];
        match ordered.iter().find(|(_, low, _, high)| low > high) {
            Some((low, low_is, high, high_is)) => Err(format!(
                "{low} ({low_is}) is above {high} ({high_is}); lower the one or raise the other"
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_agree_with_each_other_and_contradictions_are_named() {
        Limits::default().check().unwrap();
        let none = Limits { slice_rows: 0, ..Limits::default() };
        assert!(none.check().unwrap_err().starts_with("slice_rows is 0"));
        let wide = Limits { event_bytes_max: 1 << 30, ..Limits::default() };
        assert!(wide.check().unwrap_err().contains("above message_bytes_max"));
    }
}

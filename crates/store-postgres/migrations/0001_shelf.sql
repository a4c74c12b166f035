-- One shelf of one network. All of it lies in a schema of its own, which is also the search path.
--
-- Times are the network's own, from 0 to 2^64-1, with the top bit turned over, so that their order is
-- that of bigint. Terms are keyed 64-bit hashes of a label's name and value.

-- What is decided once: the secret of the hashes, the width of a part.
CREATE TABLE meta (
    name text PRIMARY KEY,
    value bytea NOT NULL
);

-- One row. Whoever commits holds it, so that commits of all nodes come one after another.
CREATE TABLE state (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    -- Number of the newest put.
    seq bigint NOT NULL DEFAULT 0,
    -- Records that are kept.
    records bigint NOT NULL DEFAULT 0,
    -- Grows with every change of the parts.
    parts bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10);
INSERT INTO state DEFAULT VALUES;

-- The parts that records are divided into by time: record_<number> and tag_<number> hold the times
-- from start up to, but not including, stop.
CREATE TABLE part (
    number bigint PRIMARY KEY,
    start bigint NOT NULL,
    stop bigint NOT NULL
);

-- Bytes of a record go where they are to go as they are: see codec/src/record.rs.
CREATE TABLE record (
    seq bigint NOT NULL,
    time bigint NOT NULL,
    expires bigint,
    kind integer NOT NULL,
    id bytea NOT NULL,
    author bytea,
    terms bigint[] NOT NULL,
    body bytea NOT NULL
) PARTITION BY RANGE (time);
CREATE UNIQUE INDEX ON record (time DESC, id);
CREATE INDEX ON record (id);
CREATE INDEX ON record (author, kind, time DESC, id);
CREATE INDEX ON record (kind, time DESC, id);
CREATE INDEX ON record (seq);
CREATE INDEX ON record (expires) WHERE expires IS NOT NULL;

-- A row for each label of a record: a page of what has a label is a range of this index.
CREATE TABLE tag (
    term bigint NOT NULL,
    time bigint NOT NULL,
    kind integer NOT NULL,
    id bytea NOT NULL
) PARTITION BY RANGE (time);
CREATE INDEX ON tag (term, kind, time DESC, id);

-- What lies outside of all parts: very old, or far ahead.
CREATE TABLE record_other PARTITION OF record DEFAULT;
CREATE TABLE tag_other PARTITION OF tag DEFAULT;

-- Records that forbid others to come (deletions, requests to vanish), by a keyed hash of author, kind
-- and label. Each put is looked up here, so it is one small table and not as many as there are parts.
CREATE TABLE forbid (
    key bigint NOT NULL,
    time bigint NOT NULL,
    id bytea NOT NULL
);
CREATE INDEX ON forbid (key, time DESC, id);
CREATE INDEX ON forbid (id);

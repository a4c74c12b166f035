-- One shelf of one network, over the workers of a Citus cluster. Small tables that all commits change or
-- read stay on the coordinator; they are as in the layout for one server. Records, their labels and their
-- ids are divided into shards.
--
-- Times are the network's own, from 0 to 2^64-1, with the top bit turned over, so that their order is
-- that of bigint. Terms are keyed 64-bit hashes of a label's name and value.

-- What is decided once: the secret of the hashes.
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
    -- The version of the parts, which this layout does not have.
    parts bigint NOT NULL DEFAULT 0,
    -- The id of the line that numbers belong to now.
    line bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10);
INSERT INTO state DEFAULT VALUES;

-- Lines of numbers, as in the layout for one server.
CREATE TABLE line (
    number bigint PRIMARY KEY,
    id bigint NOT NULL,
    since bigint NOT NULL,
    place text NOT NULL,
    begun timestamptz NOT NULL DEFAULT now()
);
INSERT INTO line VALUES (0, 0, 0, '');

-- Records are not divided by time: these tables stay empty.
CREATE TABLE part (
    number bigint PRIMARY KEY,
    start bigint NOT NULL,
    stop bigint NOT NULL
);
CREATE TABLE retired (
    number bigint PRIMARY KEY,
    records bigint NOT NULL
);

-- Records that forbid others to come, by a keyed hash of author, kind and label.
CREATE TABLE forbid (
    key bigint NOT NULL,
    time bigint NOT NULL,
    id bytea NOT NULL,
    place bytea NOT NULL
);
CREATE INDEX ON forbid (key, time DESC, id);
CREATE INDEX ON forbid (id);

-- The values of labels that the network lists, and how many records have each.
CREATE TABLE label_value (
    term bigint PRIMARY KEY,
    name smallint NOT NULL,
    value bytea NOT NULL,
    records bigint NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE listed_label (
    name smallint PRIMARY KEY
);

-- A record is in the shard of its place: its author, or its id if it has no author.
CREATE TABLE record (
    place bytea NOT NULL,
    -- The first 8 bytes of the id, as a list of these is much shorter than one of ids.
    id_head bigint NOT NULL,
    seq bigint NOT NULL,
    time bigint NOT NULL,
    expires bigint,
    kind integer NOT NULL,
    id bytea NOT NULL,
    author bytea,
    terms bigint[] NOT NULL,
    body bytea NOT NULL
);
CREATE INDEX ON record (time DESC, id);
CREATE INDEX ON record (id_head);
-- Logical replication, by which a shard moves while it is written, tells rows apart by this index.
CREATE UNIQUE INDEX record_place ON record (place, kind, time DESC, id);
ALTER TABLE record REPLICA IDENTITY USING INDEX record_place;
CREATE INDEX ON record (kind, time DESC, id);
CREATE INDEX ON record (seq);
CREATE INDEX ON record (expires) WHERE expires IS NOT NULL;

-- The place of each id, in the shard of the id.
CREATE TABLE id_place (
    id bytea PRIMARY KEY,
    place bytea NOT NULL
);

-- A row for each label of a record, in the shard of the label.
CREATE TABLE tag (
    term bigint NOT NULL,
    time bigint NOT NULL,
    kind integer NOT NULL,
    id bytea NOT NULL,
    place bytea NOT NULL
);
CREATE UNIQUE INDEX tag_term ON tag (term, kind, time DESC, id);
ALTER TABLE tag REPLICA IDENTITY USING INDEX tag_term;

-- citus.shard_count says how many shards each has.
SELECT create_distributed_table('record', 'place', colocate_with => 'none');
SELECT create_distributed_table('id_place', 'id', colocate_with => 'record');
SELECT create_distributed_table('tag', 'term', colocate_with => 'none');

-- Window(WindowForm { order: NewestFirst, table: Tag, values: One, kinds: One, has_not_kinds: false })
SELECT r.time, r.id, r.place FROM tag r WHERE r.time >= $1 AND r.time <= $2 AND r.kind = $6::int AND r.term = $7::bigint AND r.time <= $4 AND (r.time < $4 OR r.id > $5) ORDER BY r.time DESC, r.id LIMIT $3
-- Window(WindowForm { order: NewestFirst, table: Tag, values: One, kinds: Arms(2), has_not_kinds: false })
SELECT r.time, r.id, r.place FROM ((SELECT r.time, r.id, r.place FROM tag r WHERE r.time >= $1 AND r.time <= $2 AND r.kind = ($6::int[])[1] AND r.term = $7::bigint AND r.time <= $4 AND (r.time < $4 OR r.id > $5) ORDER BY r.time DESC, r.id LIMIT $3) UNION ALL (SELECT r.time, r.id, r.place FROM tag r WHERE r.time >= $1 AND r.time <= $2 AND r.kind = ($6::int[])[2] AND r.term = $7::bigint AND r.time <= $4 AND (r.time < $4 OR r.id > $5) ORDER BY r.time DESC, r.id LIMIT $3)) r ORDER BY r.time DESC, r.id LIMIT $3
-- Window(WindowForm { order: NewestFirst, table: Tag, values: Many, kinds: None, has_not_kinds: true })
SELECT r.time, r.id, r.place FROM tag r WHERE r.time >= $1 AND r.time <= $2 AND r.term = ANY($6::bigint[]) AND r.kind <> ALL($7::int[]) AND r.time <= $4 AND (r.time < $4 OR r.id > $5) ORDER BY r.time DESC, r.id LIMIT $3
-- Window(WindowForm { order: NewestFirst, table: Author, values: One, kinds: One, has_not_kinds: false })
SELECT r.time, r.id, r.body FROM record r WHERE r.time >= $1 AND r.time <= $2 AND r.kind = $6::int AND r.place = $7::bytea AND r.seq + 0 <= $8 AND ($9::bigint[] IS NULL OR r.terms && $9) AND r.time <= $4 AND (r.time < $4 OR r.id > $5) ORDER BY r.time DESC, r.id LIMIT $3
-- Window(WindowForm { order: NewestFirst, table: Author, values: Many, kinds: Many, has_not_kinds: false })
SELECT r.time, r.id, r.body FROM record r WHERE r.time >= $1 AND r.time <= $2 AND r.kind = ANY($6::int[]) AND r.place = ANY($7::bytea[]) AND r.seq + 0 <= $8 AND ($9::bigint[] IS NULL OR r.terms && $9) AND r.time <= $4 AND (r.time < $4 OR r.id > $5) ORDER BY r.time DESC, r.id LIMIT $3
-- Window(WindowForm { order: NewestFirst, table: Record, values: None, kinds: One, has_not_kinds: false })
SELECT r.time, r.id, r.body FROM record r WHERE r.time >= $1 AND r.time <= $2 AND r.kind = $6::int AND r.seq + 0 <= $7 AND ($8::bigint[] IS NULL OR r.terms && $8) AND r.time <= $4 AND (r.time < $4 OR r.id > $5) ORDER BY r.time DESC, r.id LIMIT $3
-- Window(WindowForm { order: NewestFirst, table: Record, values: None, kinds: None, has_not_kinds: true })
SELECT r.time, r.id, r.body FROM record r WHERE r.time >= $1 AND r.time <= $2 AND r.kind <> ALL($6::int[]) AND r.seq + 0 <= $7 AND ($8::bigint[] IS NULL OR r.terms && $8) AND r.time <= $4 AND (r.time < $4 OR r.id > $5) ORDER BY r.time DESC, r.id LIMIT $3
-- Window(WindowForm { order: OldestFirst, table: Tag, values: Many, kinds: Many, has_not_kinds: false })
SELECT r.time, r.id, r.place FROM tag r WHERE r.time >= $1 AND r.time <= $2 AND r.kind = ANY($6::int[]) AND r.term = ANY($7::bigint[]) AND r.time >= $4 AND (r.time > $4 OR r.id > $5) ORDER BY r.time, r.id LIMIT $3
-- Few(WindowForm { order: NewestFirst, table: Author, values: Many, kinds: Many, has_not_kinds: false })
SELECT r.time, r.id, r.place FROM record r WHERE r.time >= $1 AND r.time <= $2 AND r.kind = ANY($4::int[]) AND r.place = ANY($5::bytea[]) AND r.seq + 0 <= $6 AND ($7::bigint[] IS NULL OR r.terms && $7) LIMIT $3
-- Places(One)
SELECT p.id, p.place FROM id_place p WHERE p.id = $1::bytea
-- Places(Many)
SELECT p.id, p.place FROM id_place p WHERE p.id = ANY($1::bytea[])
-- PlacedBodies(One)
SELECT r.time, r.id, r.body FROM record r WHERE r.id_head = $1::bigint AND r.seq + 0 <= $2 AND ($3::bigint[] IS NULL OR r.terms && $3) AND r.place = $4::bytea
-- PlacedBodies(Many)
SELECT r.time, r.id, r.body FROM record r WHERE r.id_head = ANY($1::bigint[]) AND r.seq + 0 <= $2 AND ($3::bigint[] IS NULL OR r.terms && $3) AND r.place = ANY($4::bytea[])
-- PlacedBodies(None)
SELECT r.time, r.id, r.body FROM record r WHERE r.id_head = ANY($1::bigint[]) AND r.seq + 0 <= $2 AND ($3::bigint[] IS NULL OR r.terms && $3) AND true
-- OnShard(Places, 102008)
SELECT r.*, g.here FROM (SELECT (SELECT p.groupid FROM pg_dist_placement p WHERE p.shardid = 102008) = (SELECT l.groupid FROM pg_dist_local_group l) AS here OFFSET 0) g LEFT JOIN LATERAL (SELECT p.id, p.place FROM id_place_102008 p WHERE p.id = ANY($1::bytea[])) r ON g.here
-- OnShard(Bodies, 102009)
SELECT r.*, g.here FROM (SELECT (SELECT p.groupid FROM pg_dist_placement p WHERE p.shardid = 102009) = (SELECT l.groupid FROM pg_dist_local_group l) AS here OFFSET 0) g LEFT JOIN LATERAL (SELECT r.time, r.id, r.body FROM record_102009 r WHERE r.id_head = ANY($1::bigint[]) AND r.seq + 0 <= $2 AND ($3::bigint[] IS NULL OR r.terms && $3)) r ON g.here
-- OnShard(Window(WindowForm { order: NewestFirst, table: Tag, values: One, kinds: One, has_not_kinds: false }), 102010)
SELECT r.*, g.here FROM (SELECT (SELECT p.groupid FROM pg_dist_placement p WHERE p.shardid = 102010) = (SELECT l.groupid FROM pg_dist_local_group l) AS here OFFSET 0) g LEFT JOIN LATERAL (SELECT r.time, r.id, r.place FROM tag_102010 r WHERE r.time >= $1 AND r.time <= $2 AND r.kind = $6::int AND r.term = $7::bigint AND r.time <= $4 AND (r.time < $4 OR r.id > $5) ORDER BY r.time DESC, r.id LIMIT $3) r ON g.here
-- OnShard(Few(WindowForm { order: NewestFirst, table: Tag, values: One, kinds: One, has_not_kinds: false }), 102010)
SELECT r.*, g.here FROM (SELECT (SELECT p.groupid FROM pg_dist_placement p WHERE p.shardid = 102010) = (SELECT l.groupid FROM pg_dist_local_group l) AS here OFFSET 0) g LEFT JOIN LATERAL (SELECT r.time, r.id, r.place FROM tag_102010 r WHERE r.time >= $1 AND r.time <= $2 AND r.kind = $4::int AND r.term = $5::bigint LIMIT $3) r ON g.here
-- OnShard(Window(WindowForm { order: NewestFirst, table: Author, values: Each, kinds: One, has_not_kinds: false }), 102012)
SELECT r.*, g.here FROM (SELECT (SELECT p.groupid FROM pg_dist_placement p WHERE p.shardid = 102012) = (SELECT l.groupid FROM pg_dist_local_group l) AS here OFFSET 0) g LEFT JOIN LATERAL (SELECT r.time, r.id, r.body FROM unnest($7::bytea[]) AS v(value) CROSS JOIN LATERAL (SELECT r.time, r.id, r.body FROM record_102012 r WHERE r.time >= $1 AND r.time <= $2 AND r.kind = $6::int AND r.place = v.value AND r.seq + 0 <= $8 AND ($9::bigint[] IS NULL OR r.terms && $9) AND r.time <= $4 AND (r.time < $4 OR r.id > $5) ORDER BY r.time DESC, r.id LIMIT $3) r ORDER BY r.time DESC, r.id LIMIT $3) r ON g.here
-- OnShard(Few(WindowForm { order: NewestFirst, table: Author, values: Each, kinds: One, has_not_kinds: false }), 102012)
SELECT r.*, g.here FROM (SELECT (SELECT p.groupid FROM pg_dist_placement p WHERE p.shardid = 102012) = (SELECT l.groupid FROM pg_dist_local_group l) AS here OFFSET 0) g LEFT JOIN LATERAL (SELECT r.time, r.id, r.place FROM unnest($5::bytea[]) AS v(value) CROSS JOIN LATERAL (SELECT r.time, r.id, r.place FROM record_102012 r WHERE r.time >= $1 AND r.time <= $2 AND r.kind = $4::int AND r.place = v.value AND r.seq + 0 <= $6 AND ($7::bigint[] IS NULL OR r.terms && $7) LIMIT $3) r LIMIT $3) r ON g.here
-- OnShards(WindowForm { order: NewestFirst, table: Record, values: None, kinds: Arms(2), has_not_kinds: false }, ShardSet([102008, 102011]))
SELECT r.*, g.here FROM (SELECT (SELECT count(*) FROM pg_dist_placement p WHERE p.shardid = ANY('{102008,102011}'::bigint[]) AND p.groupid = (SELECT l.groupid FROM pg_dist_local_group l)) = 2 AS here OFFSET 0) g LEFT JOIN LATERAL (SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record_102008 r WHERE r.time >= $1 AND r.time <= $2 AND r.kind = ($6::int[])[1] AND r.seq + 0 <= $7 AND ($8::bigint[] IS NULL OR r.terms && $8) AND r.time <= $4 AND (r.time < $4 OR r.id > $5) ORDER BY r.time DESC, r.id LIMIT $3) UNION ALL (SELECT r.time, r.id, r.body FROM record_102008 r WHERE r.time >= $1 AND r.time <= $2 AND r.kind = ($6::int[])[2] AND r.seq + 0 <= $7 AND ($8::bigint[] IS NULL OR r.terms && $8) AND r.time <= $4 AND (r.time < $4 OR r.id > $5) ORDER BY r.time DESC, r.id LIMIT $3)) r ORDER BY r.time DESC, r.id LIMIT $3) UNION ALL (SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record_102011 r WHERE r.time >= $1 AND r.time <= $2 AND r.kind = ($6::int[])[1] AND r.seq + 0 <= $7 AND ($8::bigint[] IS NULL OR r.terms && $8) AND r.time <= $4 AND (r.time < $4 OR r.id > $5) ORDER BY r.time DESC, r.id LIMIT $3) UNION ALL (SELECT r.time, r.id, r.body FROM record_102011 r WHERE r.time >= $1 AND r.time <= $2 AND r.kind = ($6::int[])[2] AND r.seq + 0 <= $7 AND ($8::bigint[] IS NULL OR r.terms && $8) AND r.time <= $4 AND (r.time < $4 OR r.id > $5) ORDER BY r.time DESC, r.id LIMIT $3)) r ORDER BY r.time DESC, r.id LIMIT $3)) r ORDER BY r.time DESC, r.id LIMIT $3) r ON g.here
-- NewestTimes
SELECT r.time FROM record r ORDER BY r.time DESC, r.id LIMIT $1
-- OldestTime
SELECT r.time FROM record r ORDER BY r.time LIMIT 1
-- Enter
SELECT pg_advisory_xact_lock(hashtextextended(current_schema(), 7235419860234518))
-- Lock
SELECT seq, records, parts, line, NULL::bigint, 0::bigint, current_setting('hark.session', true) FROM state FOR UPDATE
-- Known
SELECT array_position($1::bytea[], p.id)::bigint FROM id_place p WHERE p.id = ANY($1)
-- KnownRecords
SELECT r.id FROM record r WHERE r.place = ANY($1::bytea[]) AND r.id_head = ANY($2::bigint[])
-- RecordPlaces
SELECT r.id, r.place FROM record r WHERE r.id_head = ANY($1::bigint[])
-- RecordTimes
SELECT r.time, r.id FROM record r WHERE r.id_head = ANY($1::bigint[]) AND r.seq + 0 <= $2
-- Forbids
SELECT f.key, f.id, f.place FROM unnest($1::bigint[]) AS v(key) CROSS JOIN LATERAL (SELECT f.key, f.id, f.place FROM forbid f WHERE f.key = v.key ORDER BY f.time DESC, f.id LIMIT 1) f
-- Slots
SELECT r.author, r.kind, r.time, r.id FROM record r WHERE r.place = ANY($1::bytea[]) AND r.kind = ANY($2::int[]) AND r.author IS NOT NULL
-- TermSlots
SELECT t.term, t.kind, t.id, t.place FROM tag t WHERE t.term = ANY($1::bigint[]) AND t.kind = ANY($2::int[])
-- Delete
DELETE FROM record WHERE place = ANY($1::bytea[]) AND id = ANY($2::bytea[]) AND id_head = ANY($3::bigint[]) RETURNING time, id, kind, terms
-- DeleteTags
DELETE FROM tag t USING unnest($1::bigint[], $2::int[], $3::bigint[], $4::bytea[]) AS v(term, kind, time, id) WHERE t.term = v.term AND t.kind = v.kind AND t.time = v.time AND t.id = v.id
-- DeletePlaces
DELETE FROM id_place WHERE id = ANY($1::bytea[])
-- CopyRecords
COPY record (place, id_head, seq, time, expires, kind, id, author, terms, body) FROM STDIN BINARY
-- CopyTags
COPY tag (term, time, kind, id, place) FROM STDIN BINARY
-- CopyPlaces
COPY id_place (id, place) FROM STDIN BINARY
-- AddForbids
INSERT INTO forbid SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[])
-- Advance
UPDATE state SET seq = $1, records = $2
-- Publish
WITH done AS (INSERT INTO published (line, seq) SELECT s.line, $1::bigint FROM state s ON CONFLICT (one) DO UPDATE SET line = excluded.line, seq = excluded.seq WHERE published.line <> excluded.line OR published.seq < excluded.seq) SELECT (SELECT coalesce(hashtextextended(string_agg(n.groupid || ' ' || n.nodename || ' ' || n.nodeport, ',' ORDER BY n.groupid), 0), 0) FROM pg_dist_node n WHERE n.noderole = 'primary')
-- PublishTelling
WITH done AS (INSERT INTO published (line, seq) SELECT s.line, $1::bigint FROM state s ON CONFLICT (one) DO UPDATE SET line = excluded.line, seq = excluded.seq WHERE published.line <> excluded.line OR published.seq < excluded.seq) SELECT (SELECT coalesce(hashtextextended(string_agg(n.groupid || ' ' || n.nodename || ' ' || n.nodeport, ',' ORDER BY n.groupid), 0), 0) FROM pg_dist_node n WHERE n.noderole = 'primary'), pg_notify(current_schema(), $1::bigint || ' ' || $2::int || ' ' || s.parts || ' ' || s.line) FROM state s
-- Newest
SELECT p.line, p.seq, (SELECT coalesce(hashtextextended(string_agg(n.groupid || ' ' || n.nodename || ' ' || n.nodeport, ',' ORDER BY n.groupid), 0), 0) FROM pg_dist_node n WHERE n.noderole = 'primary') FROM published p JOIN state s ON s.line = p.line
-- WholeState
SELECT s.line, s.seq, (SELECT coalesce(hashtextextended(string_agg(n.groupid || ' ' || n.nodename || ' ' || n.nodeport, ',' ORDER BY n.groupid), 0), 0) FROM pg_dist_node n WHERE n.noderole = 'primary') FROM (SELECT pg_advisory_lock_shared(hashtextextended(current_schema(), 7235419860234518)), pg_advisory_unlock_shared(hashtextextended(current_schema(), 7235419860234518))) l, LATERAL (SELECT line, seq FROM state WHERE l IS NOT NULL) s
-- News
SELECT r.seq, r.body FROM record r WHERE r.seq > $1 AND r.seq <= $2 ORDER BY r.seq LIMIT $3
-- lower_values
WITH lost AS (SELECT * FROM unnest($1::bigint[], $2::bigint[]) AS l(term, records)), ended AS (DELETE FROM label_value v USING lost l WHERE v.term = l.term AND v.records <= l.records), lowered AS (UPDATE label_value v SET records = v.records - l.records FROM lost l WHERE v.term = l.term AND v.records > l.records) SELECT count(*) FROM lost
-- sizes
SELECT s.records, d.bytes, d.bytes - d.tables, 0::bigint, r.oldest, r.newest, s.seq FROM state s, (SELECT min(time) AS oldest, max(time) AS newest FROM record) r, (SELECT sum(citus_total_relation_size(c.oid))::bigint AS bytes, sum(citus_table_size(c.oid))::bigint AS tables FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1::text AND c.relname IN ('record', 'tag', 'id_place')) d
-- setting jit
off
-- setting max_parallel_workers_per_gather
0
-- setting default_transaction_isolation
read committed
-- setting synchronous_commit
on
-- setting client_min_messages
warning
-- setting idle_in_transaction_session_timeout
30s
-- setting citus.max_adaptive_executor_pool_size
1
-- migration 1 shelf
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

-- migration 2 published
-- The number up to which every put is committed on all workers. The number in `state` is visible a little
-- earlier: the coordinator commits before the workers. A commit writes this row when the workers have
-- committed, and before the senders get their acknowledgements. Questions of other nodes read it.
--
-- The table is not logged, so that a write waits for no disk. After a crash, and on a standby that takes over,
-- it has no row until the next commit.
CREATE UNLOGGED TABLE published (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    line bigint NOT NULL,
    seq bigint NOT NULL
) WITH (fillfactor = 10);


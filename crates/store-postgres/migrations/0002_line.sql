-- Numbers of puts belong to a line. A standby that is promoted while it lags, and a backup that is put
-- in the database's place, go back to a lower number, and what is put then has numbers that others had
-- before. Whoever first writes to such a database begins a new line, before anything is put there.
CREATE TABLE line (
    number bigint PRIMARY KEY,
    -- Drawn at random, as the same number may be given again after another loss.
    id bigint NOT NULL,
    -- Up to this number of puts, it is what the line before was.
    since bigint NOT NULL,
    -- Which server and table it was begun in; not known of the first one before somebody writes.
    place text NOT NULL,
    begun timestamptz NOT NULL DEFAULT now()
);
INSERT INTO line VALUES (0, 0, 0, '');

-- The id of the line that numbers belong to now.
ALTER TABLE state ADD COLUMN line bigint NOT NULL DEFAULT 0;

-- Parts that are no longer asked: their tables are retired_record_<number> and retired_tag_<number>,
-- and are dropped once their records are counted. `records` is what `state` no longer counts of them.
CREATE TABLE retired (
    number bigint PRIMARY KEY,
    records bigint NOT NULL
);

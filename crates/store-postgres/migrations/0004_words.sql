-- The words of records, for full-text search. A word is its folded text, in UTF-8: words are compared as bytes,
-- whatever the database's encoding and collation, and the beginning of a word is a range of the index.

-- Which texts the words are of: a number that changes with the settings. Not known before anyone indexes.
ALTER TABLE state ADD COLUMN texts bigint;
-- Words are indexed of all puts up to this number, and of none above it.
ALTER TABLE state ADD COLUMN words_seq bigint NOT NULL DEFAULT 0;

-- Servers of earlier versions do not know words: they would delete records without their words, and make and
-- drop parts without these tables. So nothing that they write is committed from here on, as every commit
-- changes `state`. Sessions that know words say so.
CREATE FUNCTION refuse_earlier_versions() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION 'a later version of Hark has changed the database; this one may read, but not write. '
        'Stop it, and start the later version';
END $$;
CREATE TRIGGER refuse_earlier_versions BEFORE UPDATE ON state FOR EACH ROW
    WHEN (current_setting('hark.writes_words', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION refuse_earlier_versions();

-- A row for each word of a record: a page of what has a word is a range of this index.
CREATE TABLE word (
    time bigint NOT NULL,
    -- The first 62 bits of the record's id and, in the lowest two, the word's class. With the first bit
    -- turned over, so that the order is that of ids.
    mark bigint NOT NULL,
    kind integer NOT NULL,
    word bytea NOT NULL
) PARTITION BY RANGE (time);
CREATE INDEX ON word (word, kind, time DESC, mark);

-- The words of each record, by which they are deleted with it, whatever the settings are then.
CREATE TABLE worded (
    time bigint NOT NULL,
    -- As in `word`, of class 0.
    mark bigint NOT NULL,
    kind integer NOT NULL,
    words bytea[] NOT NULL
) PARTITION BY RANGE (time);
CREATE INDEX ON worded (time, mark);

CREATE TABLE word_other PARTITION OF word DEFAULT;
CREATE TABLE worded_other PARTITION OF worded DEFAULT;
DO $$ DECLARE
    p record;
BEGIN
    FOR p IN SELECT number, start, stop FROM part LOOP
        EXECUTE format('CREATE TABLE word_%s PARTITION OF word FOR VALUES FROM (%s) TO (%s)',
            p.number, p.start, p.stop);
        EXECUTE format('CREATE TABLE worded_%s PARTITION OF worded FOR VALUES FROM (%s) TO (%s)',
            p.number, p.start, p.stop);
    END LOOP;
END $$;

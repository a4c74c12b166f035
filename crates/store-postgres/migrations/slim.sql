-- The form of the tables for a network whose records have exactly one label each: an index of the
-- records themselves has the label's term, so labels need no rows of their own, and there are no
-- indices by author and by kind. It is applied to new shelves of such networks, and by `hark migrate
-- up` to existing ones. It is not a numbered migration, because not all networks have it.
--
-- `tag` becomes a view, so that statements for both forms read the same columns. A trigger discards
-- the rows that are written to the view.
DO $$ DECLARE
    p record;
BEGIN
    -- No commit runs meanwhile.
    PERFORM FROM state FOR UPDATE;
    IF (SELECT relkind FROM pg_class WHERE oid = 'tag'::regclass) = 'v' THEN
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_constraint WHERE conrelid = 'record'::regclass AND conname = 'one_term') THEN
        ALTER TABLE record ADD CONSTRAINT one_term CHECK (cardinality(terms) = 1);
    END IF;
    CREATE INDEX IF NOT EXISTS record_term_time_id_idx ON record ((terms[1]), time DESC, id);
    CREATE INDEX IF NOT EXISTS record_hashed_id_idx ON record USING hash (id);
    DROP INDEX IF EXISTS record_id_idx, record_author_kind_time_id_idx, record_kind_time_id_idx;
    DROP TABLE tag;
    CREATE VIEW tag AS SELECT terms[1] AS term, time, kind, id FROM record;
    CREATE FUNCTION discard_tag() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
    CREATE TRIGGER discard_tag INSTEAD OF INSERT OR DELETE ON tag
        FOR EACH ROW EXECUTE FUNCTION discard_tag();
    FOR p IN SELECT number FROM part LOOP
        EXECUTE format('CREATE VIEW tag_%1$s AS SELECT terms[1] AS term, time, kind, id FROM record_%1$s', p.number);
    END LOOP;
    UPDATE state SET parts = parts + 1;
    PERFORM pg_notify(current_schema(), seq || ' 1 ' || parts || ' ' || line) FROM state;
END $$;

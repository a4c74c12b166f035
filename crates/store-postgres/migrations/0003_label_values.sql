-- The values of labels that the network lists, and how many records have each. A term is a hash, which
-- does not tell its value. Each commit keeps the numbers.
CREATE TABLE label_value (
    term bigint PRIMARY KEY,
    -- The label's name, one ASCII letter.
    name smallint NOT NULL,
    value bytea NOT NULL,
    records bigint NOT NULL
) WITH (fillfactor = 50);

-- The labels that are listed. Where this is not what the network lists, the next `hark migrate up` counts
-- the values of all records.
CREATE TABLE listed_label (
    name smallint PRIMARY KEY
);

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

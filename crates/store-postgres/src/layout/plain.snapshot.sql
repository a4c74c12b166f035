-- TermKeys(NewestFirst)
SELECT v.n, r.time, r.id FROM unnest($6::bigint[], $1::int[], $2::bigint[], $3::bytea[]) WITH ORDINALITY AS v(term, kind, time, id, n) CROSS JOIN LATERAL (SELECT * FROM ((SELECT r.time, r.id FROM tag r WHERE r.term = v.term AND r.kind = v.kind AND r.time >= $4 AND r.time <= $5 AND r.time = v.time AND r.id > v.id ORDER BY r.time DESC, r.id LIMIT $7) UNION ALL (SELECT r.time, r.id FROM tag r WHERE r.term = v.term AND r.kind = v.kind AND r.time >= $4 AND r.time <= $5 AND r.time < v.time ORDER BY r.time DESC, r.id LIMIT $7)) r ORDER BY r.time DESC, r.id LIMIT $7) r
-- AuthorKeys(NewestFirst)
SELECT v.n, r.time, r.id FROM unnest($6::bytea[], $1::int[], $2::bigint[], $3::bytea[]) WITH ORDINALITY AS v(author, kind, time, id, n) CROSS JOIN LATERAL (SELECT * FROM ((SELECT r.time, r.id FROM record r WHERE r.author = v.author AND r.kind = v.kind AND r.time >= $4 AND r.time <= $5 AND r.time = v.time AND r.id > v.id ORDER BY r.time DESC, r.id LIMIT $7) UNION ALL (SELECT r.time, r.id FROM record r WHERE r.author = v.author AND r.kind = v.kind AND r.time >= $4 AND r.time <= $5 AND r.time < v.time ORDER BY r.time DESC, r.id LIMIT $7)) r ORDER BY r.time DESC, r.id LIMIT $7) r
-- KindKeys(NewestFirst)
SELECT v.n, r.time, r.id, r.author FROM unnest($1::int[], $2::bigint[], $3::bytea[]) WITH ORDINALITY AS v(kind, time, id, n) CROSS JOIN LATERAL (SELECT * FROM ((SELECT r.time, r.id, r.author FROM record r WHERE r.kind = v.kind AND r.time >= $4 AND r.time <= $5 AND r.time = v.time AND r.id > v.id ORDER BY r.time DESC, r.id LIMIT $6) UNION ALL (SELECT r.time, r.id, r.author FROM record r WHERE r.kind = v.kind AND r.time >= $4 AND r.time <= $5 AND r.time < v.time ORDER BY r.time DESC, r.id LIMIT $6)) r ORDER BY r.time DESC, r.id LIMIT $6) r
-- TimeKeys(NewestFirst)
SELECT * FROM ((SELECT 1::bigint, r.time, r.id, r.author FROM record r WHERE r.time >= $3 AND r.time <= $4 AND r.time = $1::bigint AND r.id > $2::bytea ORDER BY r.time DESC, r.id LIMIT $5) UNION ALL (SELECT 1::bigint, r.time, r.id, r.author FROM record r WHERE r.time >= $3 AND r.time <= $4 AND r.time < $1::bigint ORDER BY r.time DESC, r.id LIMIT $5)) r ORDER BY r.time DESC, r.id LIMIT $5
-- TimeKeysBut(NewestFirst)
SELECT * FROM ((SELECT 1::bigint, r.time, r.id, r.author FROM record r WHERE r.time >= $3 AND r.time <= $4 AND r.kind <> ALL($6::int[]) AND r.time = $1::bigint AND r.id > $2::bytea ORDER BY r.time DESC, r.id LIMIT $5) UNION ALL (SELECT 1::bigint, r.time, r.id, r.author FROM record r WHERE r.time >= $3 AND r.time <= $4 AND r.kind <> ALL($6::int[]) AND r.time < $1::bigint ORDER BY r.time DESC, r.id LIMIT $5)) r ORDER BY r.time DESC, r.id LIMIT $5
-- TimePage(NewestFirst, All)
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record r WHERE r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.time < $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time DESC, r.id LIMIT $5)) r ORDER BY r.time DESC, r.id LIMIT $5
-- TimePage(NewestFirst, Behind(7))
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record_7 r WHERE r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.time = $3::bigint AND r.id > $4::bytea ORDER BY r.time DESC, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record_7 r WHERE r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.time < $3::bigint ORDER BY r.time DESC, r.id LIMIT $5)) r ORDER BY r.time DESC, r.id LIMIT $5
-- TimePageBut(NewestFirst, All)
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record r WHERE r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.kind <> ALL($7::int[]) AND (r.time < $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time DESC, r.id LIMIT $5)) r ORDER BY r.time DESC, r.id LIMIT $5
-- WordKeys(NewestFirst)
SELECT v.n, r.time, r.mark, ARRAY(SELECT (SELECT (w.mark & 3)::int FROM word w WHERE w.word = o.word AND w.kind = v.kind AND w.time = r.time AND w.mark >= (r.mark | 3) - 3 AND w.mark <= (r.mark | 3) LIMIT 1) FROM unnest($8::bytea[]) AS o(word)) FROM unnest($1::bytea[], $2::int[], $3::bigint[], $4::bigint[], $7::bigint[]) WITH ORDINALITY AS v(word, kind, time, mark, most, n) CROSS JOIN LATERAL (SELECT * FROM ((SELECT r.time, r.mark FROM word r WHERE r.word = v.word AND r.kind = v.kind AND r.time >= $5 AND r.time <= $6 AND r.time = v.time AND r.mark >= v.mark ORDER BY r.time DESC, r.mark LIMIT v.most) UNION ALL (SELECT r.time, r.mark FROM word r WHERE r.word = v.word AND r.kind = v.kind AND r.time >= $5 AND r.time <= $6 AND r.time < v.time ORDER BY r.time DESC, r.mark LIMIT v.most)) r ORDER BY r.time DESC, r.mark LIMIT v.most) r
-- TermTimePage(NewestFirst, All)
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record r WHERE r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.terms[1] IN (SELECT unnest($7::bigint[])) OR cardinality(r.terms) > 1) AND (r.time < $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time DESC, r.id LIMIT $5)) r ORDER BY r.time DESC, r.id LIMIT $5
-- TermTimePage(NewestFirst, Behind(7))
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record_7 r WHERE r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.terms[1] IN (SELECT unnest($7::bigint[])) OR cardinality(r.terms) > 1) AND r.time = $3::bigint AND r.id > $4::bytea ORDER BY r.time DESC, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record_7 r WHERE r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.terms[1] IN (SELECT unnest($7::bigint[])) OR cardinality(r.terms) > 1) AND r.time < $3::bigint ORDER BY r.time DESC, r.id LIMIT $5)) r ORDER BY r.time DESC, r.id LIMIT $5
-- SlimWindow(NewestFirst, None, All)
SELECT r.time, r.id, r.body FROM unnest($5::bigint[]) AS v(term) CROSS JOIN LATERAL (SELECT r.time, r.id, r.body FROM record r WHERE r.terms[1] = v.term AND r.kind = $6::int AND r.seq <= $4 AND r.time >= $1 AND r.time <= $2 OFFSET 0) r LIMIT $3
-- SlimWindow(NewestFirst, None, First)
SELECT r.time, r.id, r.body FROM (SELECT r.time, r.id, r.body FROM unnest($5::bigint[]) AS v(term) CROSS JOIN LATERAL (SELECT r.time, r.id, r.body FROM record r WHERE r.terms[1] = v.term AND r.kind = $6::int AND r.seq <= $4 AND r.time >= $1 AND r.time <= $2 ORDER BY r.time DESC, r.id LIMIT $3) r) r ORDER BY r.time DESC, r.id LIMIT $3
-- SlimWindow(NewestFirst, Some(7), Behind)
SELECT r.time, r.id, r.body FROM (SELECT r.time, r.id, r.body FROM unnest($5::bigint[]) AS v(term) CROSS JOIN LATERAL (SELECT r.time, r.id, r.body FROM record_7 r WHERE r.terms[1] = v.term AND r.kind = $6::int AND r.seq <= $4 AND r.time = $7::bigint AND r.id > $8::bytea ORDER BY r.time DESC, r.id LIMIT $3) r UNION ALL SELECT r.time, r.id, r.body FROM unnest($5::bigint[]) AS v(term) CROSS JOIN LATERAL (SELECT r.time, r.id, r.body FROM record_7 r WHERE r.terms[1] = v.term AND r.kind = $6::int AND r.seq <= $4 AND r.time >= $1 AND r.time <= $2 ORDER BY r.time DESC, r.id LIMIT $3) r) r ORDER BY r.time DESC, r.id LIMIT $3
-- TermPage(NewestFirst, 1, All)
SELECT t.time, t.id, CASE WHEN b.id = t.id AND ($9::bigint[] IS NULL OR b.terms && $9) THEN b.body END FROM (SELECT r.time, r.id FROM ((SELECT r.time, r.id FROM tag r WHERE r.term = ($8::bigint[])[1] AND r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND (r.time < $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time DESC, r.id LIMIT $5)) r ORDER BY r.time DESC, r.id LIMIT $5) t LEFT JOIN LATERAL (SELECT r.id, r.terms, r.body FROM record r WHERE r.time = t.time AND r.id >= t.id AND r.seq <= $6 ORDER BY r.time DESC, r.id LIMIT 1) b ON true
-- TermPage(NewestFirst, 1, First(7))
SELECT t.time, t.id, CASE WHEN b.id = t.id AND ($9::bigint[] IS NULL OR b.terms && $9) THEN b.body END FROM (SELECT r.time, r.id FROM ((SELECT r.time, r.id FROM tag_7 r WHERE r.term = ($8::bigint[])[1] AND r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND (r.time < $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time DESC, r.id LIMIT $5)) r ORDER BY r.time DESC, r.id LIMIT $5) t LEFT JOIN LATERAL (SELECT r.id, r.terms, r.body FROM record_7 r WHERE r.time = t.time AND r.id >= t.id AND r.seq <= $6 ORDER BY r.time DESC, r.id LIMIT 1) b ON true
-- AuthorPage(NewestFirst, 1, All)
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record r WHERE r.author = ($8::bytea[])[1] AND r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.time < $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time DESC, r.id LIMIT $5)) r ORDER BY r.time DESC, r.id LIMIT $5
-- AuthorPage(NewestFirst, 1, Behind(7))
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record_7 r WHERE r.author = ($8::bytea[])[1] AND r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.time = $3::bigint AND r.id > $4::bytea ORDER BY r.time DESC, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record_7 r WHERE r.author = ($8::bytea[])[1] AND r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.time < $3::bigint ORDER BY r.time DESC, r.id LIMIT $5)) r ORDER BY r.time DESC, r.id LIMIT $5
-- KindPage(NewestFirst, 1, All)
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record r WHERE r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.time < $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time DESC, r.id LIMIT $5)) r ORDER BY r.time DESC, r.id LIMIT $5
-- TermPage(NewestFirst, 3, All)
SELECT t.time, t.id, CASE WHEN b.id = t.id AND ($9::bigint[] IS NULL OR b.terms && $9) THEN b.body END FROM (SELECT r.time, r.id FROM ((SELECT r.time, r.id FROM tag r WHERE r.term = ($8::bigint[])[1] AND r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND (r.time < $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time DESC, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id FROM tag r WHERE r.term = ($8::bigint[])[2] AND r.kind = ($7::int[])[2] AND r.time >= $1 AND r.time <= $2 AND (r.time < $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time DESC, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id FROM tag r WHERE r.term = ($8::bigint[])[3] AND r.kind = ($7::int[])[3] AND r.time >= $1 AND r.time <= $2 AND (r.time < $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time DESC, r.id LIMIT $5)) r ORDER BY r.time DESC, r.id LIMIT $5) t LEFT JOIN LATERAL (SELECT r.id, r.terms, r.body FROM record r WHERE r.time = t.time AND r.id >= t.id AND r.seq <= $6 ORDER BY r.time DESC, r.id LIMIT 1) b ON true
-- TermPage(NewestFirst, 3, First(7))
SELECT t.time, t.id, CASE WHEN b.id = t.id AND ($9::bigint[] IS NULL OR b.terms && $9) THEN b.body END FROM (SELECT r.time, r.id FROM ((SELECT r.time, r.id FROM tag_7 r WHERE r.term = ($8::bigint[])[1] AND r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND (r.time < $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time DESC, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id FROM tag_7 r WHERE r.term = ($8::bigint[])[2] AND r.kind = ($7::int[])[2] AND r.time >= $1 AND r.time <= $2 AND (r.time < $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time DESC, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id FROM tag_7 r WHERE r.term = ($8::bigint[])[3] AND r.kind = ($7::int[])[3] AND r.time >= $1 AND r.time <= $2 AND (r.time < $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time DESC, r.id LIMIT $5)) r ORDER BY r.time DESC, r.id LIMIT $5) t LEFT JOIN LATERAL (SELECT r.id, r.terms, r.body FROM record_7 r WHERE r.time = t.time AND r.id >= t.id AND r.seq <= $6 ORDER BY r.time DESC, r.id LIMIT 1) b ON true
-- AuthorPage(NewestFirst, 3, All)
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record r WHERE r.author = ($8::bytea[])[1] AND r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.time < $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time DESC, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record r WHERE r.author = ($8::bytea[])[2] AND r.kind = ($7::int[])[2] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.time < $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time DESC, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record r WHERE r.author = ($8::bytea[])[3] AND r.kind = ($7::int[])[3] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.time < $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time DESC, r.id LIMIT $5)) r ORDER BY r.time DESC, r.id LIMIT $5
-- AuthorPage(NewestFirst, 3, Behind(7))
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record_7 r WHERE r.author = ($8::bytea[])[1] AND r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.time = $3::bigint AND r.id > $4::bytea ORDER BY r.time DESC, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record_7 r WHERE r.author = ($8::bytea[])[1] AND r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.time < $3::bigint ORDER BY r.time DESC, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record_7 r WHERE r.author = ($8::bytea[])[2] AND r.kind = ($7::int[])[2] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.time = $3::bigint AND r.id > $4::bytea ORDER BY r.time DESC, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record_7 r WHERE r.author = ($8::bytea[])[2] AND r.kind = ($7::int[])[2] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.time < $3::bigint ORDER BY r.time DESC, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record_7 r WHERE r.author = ($8::bytea[])[3] AND r.kind = ($7::int[])[3] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.time = $3::bigint AND r.id > $4::bytea ORDER BY r.time DESC, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record_7 r WHERE r.author = ($8::bytea[])[3] AND r.kind = ($7::int[])[3] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.time < $3::bigint ORDER BY r.time DESC, r.id LIMIT $5)) r ORDER BY r.time DESC, r.id LIMIT $5
-- KindPage(NewestFirst, 3, All)
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record r WHERE r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.time < $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time DESC, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record r WHERE r.kind = ($7::int[])[2] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.time < $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time DESC, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record r WHERE r.kind = ($7::int[])[3] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.time < $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time DESC, r.id LIMIT $5)) r ORDER BY r.time DESC, r.id LIMIT $5
-- TermKeys(OldestFirst)
SELECT v.n, r.time, r.id FROM unnest($6::bigint[], $1::int[], $2::bigint[], $3::bytea[]) WITH ORDINALITY AS v(term, kind, time, id, n) CROSS JOIN LATERAL (SELECT * FROM ((SELECT r.time, r.id FROM tag r WHERE r.term = v.term AND r.kind = v.kind AND r.time >= $4 AND r.time <= $5 AND r.time = v.time AND r.id > v.id ORDER BY r.time, r.id LIMIT $7) UNION ALL (SELECT r.time, r.id FROM tag r WHERE r.term = v.term AND r.kind = v.kind AND r.time >= $4 AND r.time <= $5 AND r.time > v.time ORDER BY r.time, r.id LIMIT $7)) r ORDER BY r.time, r.id LIMIT $7) r
-- AuthorKeys(OldestFirst)
SELECT v.n, r.time, r.id FROM unnest($6::bytea[], $1::int[], $2::bigint[], $3::bytea[]) WITH ORDINALITY AS v(author, kind, time, id, n) CROSS JOIN LATERAL (SELECT * FROM ((SELECT r.time, r.id FROM record r WHERE r.author = v.author AND r.kind = v.kind AND r.time >= $4 AND r.time <= $5 AND r.time = v.time AND r.id > v.id ORDER BY r.time, r.id LIMIT $7) UNION ALL (SELECT r.time, r.id FROM record r WHERE r.author = v.author AND r.kind = v.kind AND r.time >= $4 AND r.time <= $5 AND r.time > v.time ORDER BY r.time, r.id LIMIT $7)) r ORDER BY r.time, r.id LIMIT $7) r
-- KindKeys(OldestFirst)
SELECT v.n, r.time, r.id, r.author FROM unnest($1::int[], $2::bigint[], $3::bytea[]) WITH ORDINALITY AS v(kind, time, id, n) CROSS JOIN LATERAL (SELECT * FROM ((SELECT r.time, r.id, r.author FROM record r WHERE r.kind = v.kind AND r.time >= $4 AND r.time <= $5 AND r.time = v.time AND r.id > v.id ORDER BY r.time, r.id LIMIT $6) UNION ALL (SELECT r.time, r.id, r.author FROM record r WHERE r.kind = v.kind AND r.time >= $4 AND r.time <= $5 AND r.time > v.time ORDER BY r.time, r.id LIMIT $6)) r ORDER BY r.time, r.id LIMIT $6) r
-- TimeKeys(OldestFirst)
SELECT * FROM ((SELECT 1::bigint, r.time, r.id, r.author FROM record r WHERE r.time >= $3 AND r.time <= $4 AND r.time = $1::bigint AND r.id > $2::bytea ORDER BY r.time, r.id LIMIT $5) UNION ALL (SELECT 1::bigint, r.time, r.id, r.author FROM record r WHERE r.time >= $3 AND r.time <= $4 AND r.time > $1::bigint ORDER BY r.time, r.id LIMIT $5)) r ORDER BY r.time, r.id LIMIT $5
-- TimeKeysBut(OldestFirst)
SELECT * FROM ((SELECT 1::bigint, r.time, r.id, r.author FROM record r WHERE r.time >= $3 AND r.time <= $4 AND r.kind <> ALL($6::int[]) AND r.time = $1::bigint AND r.id > $2::bytea ORDER BY r.time, r.id LIMIT $5) UNION ALL (SELECT 1::bigint, r.time, r.id, r.author FROM record r WHERE r.time >= $3 AND r.time <= $4 AND r.kind <> ALL($6::int[]) AND r.time > $1::bigint ORDER BY r.time, r.id LIMIT $5)) r ORDER BY r.time, r.id LIMIT $5
-- TimePage(OldestFirst, All)
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record r WHERE r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.time > $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time, r.id LIMIT $5)) r ORDER BY r.time, r.id LIMIT $5
-- TimePage(OldestFirst, Behind(7))
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record_7 r WHERE r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.time = $3::bigint AND r.id > $4::bytea ORDER BY r.time, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record_7 r WHERE r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.time > $3::bigint ORDER BY r.time, r.id LIMIT $5)) r ORDER BY r.time, r.id LIMIT $5
-- TimePageBut(OldestFirst, All)
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record r WHERE r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.kind <> ALL($7::int[]) AND (r.time > $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time, r.id LIMIT $5)) r ORDER BY r.time, r.id LIMIT $5
-- WordKeys(OldestFirst)
SELECT v.n, r.time, r.mark, ARRAY(SELECT (SELECT (w.mark & 3)::int FROM word w WHERE w.word = o.word AND w.kind = v.kind AND w.time = r.time AND w.mark >= (r.mark | 3) - 3 AND w.mark <= (r.mark | 3) LIMIT 1) FROM unnest($8::bytea[]) AS o(word)) FROM unnest($1::bytea[], $2::int[], $3::bigint[], $4::bigint[], $7::bigint[]) WITH ORDINALITY AS v(word, kind, time, mark, most, n) CROSS JOIN LATERAL (SELECT * FROM ((SELECT r.time, r.mark FROM word r WHERE r.word = v.word AND r.kind = v.kind AND r.time >= $5 AND r.time <= $6 AND r.time = v.time AND r.mark >= v.mark ORDER BY r.time, r.mark LIMIT v.most) UNION ALL (SELECT r.time, r.mark FROM word r WHERE r.word = v.word AND r.kind = v.kind AND r.time >= $5 AND r.time <= $6 AND r.time > v.time ORDER BY r.time, r.mark LIMIT v.most)) r ORDER BY r.time, r.mark LIMIT v.most) r
-- TermTimePage(OldestFirst, All)
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record r WHERE r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.terms[1] IN (SELECT unnest($7::bigint[])) OR cardinality(r.terms) > 1) AND (r.time > $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time, r.id LIMIT $5)) r ORDER BY r.time, r.id LIMIT $5
-- TermTimePage(OldestFirst, Behind(7))
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record_7 r WHERE r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.terms[1] IN (SELECT unnest($7::bigint[])) OR cardinality(r.terms) > 1) AND r.time = $3::bigint AND r.id > $4::bytea ORDER BY r.time, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record_7 r WHERE r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.terms[1] IN (SELECT unnest($7::bigint[])) OR cardinality(r.terms) > 1) AND r.time > $3::bigint ORDER BY r.time, r.id LIMIT $5)) r ORDER BY r.time, r.id LIMIT $5
-- SlimWindow(OldestFirst, None, All)
SELECT r.time, r.id, r.body FROM unnest($5::bigint[]) AS v(term) CROSS JOIN LATERAL (SELECT r.time, r.id, r.body FROM record r WHERE r.terms[1] = v.term AND r.kind = $6::int AND r.seq <= $4 AND r.time >= $1 AND r.time <= $2 OFFSET 0) r LIMIT $3
-- SlimWindow(OldestFirst, None, First)
SELECT r.time, r.id, r.body FROM (SELECT r.time, r.id, r.body FROM unnest($5::bigint[]) AS v(term) CROSS JOIN LATERAL (SELECT r.time, r.id, r.body FROM record r WHERE r.terms[1] = v.term AND r.kind = $6::int AND r.seq <= $4 AND r.time >= $1 AND r.time <= $2 ORDER BY r.time, r.id LIMIT $3) r) r ORDER BY r.time, r.id LIMIT $3
-- SlimWindow(OldestFirst, Some(7), Behind)
SELECT r.time, r.id, r.body FROM (SELECT r.time, r.id, r.body FROM unnest($5::bigint[]) AS v(term) CROSS JOIN LATERAL (SELECT r.time, r.id, r.body FROM record_7 r WHERE r.terms[1] = v.term AND r.kind = $6::int AND r.seq <= $4 AND r.time = $7::bigint AND r.id > $8::bytea ORDER BY r.time, r.id LIMIT $3) r UNION ALL SELECT r.time, r.id, r.body FROM unnest($5::bigint[]) AS v(term) CROSS JOIN LATERAL (SELECT r.time, r.id, r.body FROM record_7 r WHERE r.terms[1] = v.term AND r.kind = $6::int AND r.seq <= $4 AND r.time >= $1 AND r.time <= $2 ORDER BY r.time, r.id LIMIT $3) r) r ORDER BY r.time, r.id LIMIT $3
-- TermPage(OldestFirst, 1, All)
SELECT t.time, t.id, CASE WHEN b.id = t.id AND ($9::bigint[] IS NULL OR b.terms && $9) THEN b.body END FROM (SELECT r.time, r.id FROM ((SELECT r.time, r.id FROM tag r WHERE r.term = ($8::bigint[])[1] AND r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND (r.time > $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time, r.id LIMIT $5)) r ORDER BY r.time, r.id LIMIT $5) t LEFT JOIN LATERAL (SELECT r.id, r.terms, r.body FROM record r WHERE r.time = t.time AND r.id >= t.id AND r.seq <= $6 ORDER BY r.time DESC, r.id LIMIT 1) b ON true
-- TermPage(OldestFirst, 1, First(7))
SELECT t.time, t.id, CASE WHEN b.id = t.id AND ($9::bigint[] IS NULL OR b.terms && $9) THEN b.body END FROM (SELECT r.time, r.id FROM ((SELECT r.time, r.id FROM tag_7 r WHERE r.term = ($8::bigint[])[1] AND r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND (r.time > $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time, r.id LIMIT $5)) r ORDER BY r.time, r.id LIMIT $5) t LEFT JOIN LATERAL (SELECT r.id, r.terms, r.body FROM record_7 r WHERE r.time = t.time AND r.id >= t.id AND r.seq <= $6 ORDER BY r.time DESC, r.id LIMIT 1) b ON true
-- AuthorPage(OldestFirst, 1, All)
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record r WHERE r.author = ($8::bytea[])[1] AND r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.time > $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time, r.id LIMIT $5)) r ORDER BY r.time, r.id LIMIT $5
-- AuthorPage(OldestFirst, 1, Behind(7))
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record_7 r WHERE r.author = ($8::bytea[])[1] AND r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.time = $3::bigint AND r.id > $4::bytea ORDER BY r.time, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record_7 r WHERE r.author = ($8::bytea[])[1] AND r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.time > $3::bigint ORDER BY r.time, r.id LIMIT $5)) r ORDER BY r.time, r.id LIMIT $5
-- KindPage(OldestFirst, 1, All)
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record r WHERE r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.time > $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time, r.id LIMIT $5)) r ORDER BY r.time, r.id LIMIT $5
-- TermPage(OldestFirst, 3, All)
SELECT t.time, t.id, CASE WHEN b.id = t.id AND ($9::bigint[] IS NULL OR b.terms && $9) THEN b.body END FROM (SELECT r.time, r.id FROM ((SELECT r.time, r.id FROM tag r WHERE r.term = ($8::bigint[])[1] AND r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND (r.time > $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id FROM tag r WHERE r.term = ($8::bigint[])[2] AND r.kind = ($7::int[])[2] AND r.time >= $1 AND r.time <= $2 AND (r.time > $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id FROM tag r WHERE r.term = ($8::bigint[])[3] AND r.kind = ($7::int[])[3] AND r.time >= $1 AND r.time <= $2 AND (r.time > $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time, r.id LIMIT $5)) r ORDER BY r.time, r.id LIMIT $5) t LEFT JOIN LATERAL (SELECT r.id, r.terms, r.body FROM record r WHERE r.time = t.time AND r.id >= t.id AND r.seq <= $6 ORDER BY r.time DESC, r.id LIMIT 1) b ON true
-- TermPage(OldestFirst, 3, First(7))
SELECT t.time, t.id, CASE WHEN b.id = t.id AND ($9::bigint[] IS NULL OR b.terms && $9) THEN b.body END FROM (SELECT r.time, r.id FROM ((SELECT r.time, r.id FROM tag_7 r WHERE r.term = ($8::bigint[])[1] AND r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND (r.time > $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id FROM tag_7 r WHERE r.term = ($8::bigint[])[2] AND r.kind = ($7::int[])[2] AND r.time >= $1 AND r.time <= $2 AND (r.time > $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id FROM tag_7 r WHERE r.term = ($8::bigint[])[3] AND r.kind = ($7::int[])[3] AND r.time >= $1 AND r.time <= $2 AND (r.time > $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time, r.id LIMIT $5)) r ORDER BY r.time, r.id LIMIT $5) t LEFT JOIN LATERAL (SELECT r.id, r.terms, r.body FROM record_7 r WHERE r.time = t.time AND r.id >= t.id AND r.seq <= $6 ORDER BY r.time DESC, r.id LIMIT 1) b ON true
-- AuthorPage(OldestFirst, 3, All)
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record r WHERE r.author = ($8::bytea[])[1] AND r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.time > $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record r WHERE r.author = ($8::bytea[])[2] AND r.kind = ($7::int[])[2] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.time > $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record r WHERE r.author = ($8::bytea[])[3] AND r.kind = ($7::int[])[3] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.time > $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time, r.id LIMIT $5)) r ORDER BY r.time, r.id LIMIT $5
-- AuthorPage(OldestFirst, 3, Behind(7))
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record_7 r WHERE r.author = ($8::bytea[])[1] AND r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.time = $3::bigint AND r.id > $4::bytea ORDER BY r.time, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record_7 r WHERE r.author = ($8::bytea[])[1] AND r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.time > $3::bigint ORDER BY r.time, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record_7 r WHERE r.author = ($8::bytea[])[2] AND r.kind = ($7::int[])[2] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.time = $3::bigint AND r.id > $4::bytea ORDER BY r.time, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record_7 r WHERE r.author = ($8::bytea[])[2] AND r.kind = ($7::int[])[2] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.time > $3::bigint ORDER BY r.time, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record_7 r WHERE r.author = ($8::bytea[])[3] AND r.kind = ($7::int[])[3] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.time = $3::bigint AND r.id > $4::bytea ORDER BY r.time, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record_7 r WHERE r.author = ($8::bytea[])[3] AND r.kind = ($7::int[])[3] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND r.time > $3::bigint ORDER BY r.time, r.id LIMIT $5)) r ORDER BY r.time, r.id LIMIT $5
-- KindPage(OldestFirst, 3, All)
SELECT r.time, r.id, r.body FROM ((SELECT r.time, r.id, r.body FROM record r WHERE r.kind = ($7::int[])[1] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.time > $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record r WHERE r.kind = ($7::int[])[2] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.time > $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time, r.id LIMIT $5) UNION ALL (SELECT r.time, r.id, r.body FROM record r WHERE r.kind = ($7::int[])[3] AND r.time >= $1 AND r.time <= $2 AND r.seq <= $6 AND (r.time > $3::bigint OR r.time = $3 AND r.id > $4::bytea) ORDER BY r.time, r.id LIMIT $5)) r ORDER BY r.time, r.id LIMIT $5
-- Ids { whole: false }
SELECT r.time, r.id FROM unnest($1::bytea[]) AS v(id) CROSS JOIN LATERAL (SELECT r.time, r.id FROM record r WHERE r.id = v.id AND r.seq <= $2 OFFSET 0) r
-- Ids { whole: true }
SELECT r.time, r.id, r.body FROM unnest($1::bytea[]) AS v(id) CROSS JOIN LATERAL (SELECT r.time, r.id, r.body FROM record r WHERE r.id = v.id AND r.seq <= $2 OFFSET 0) r
-- TermFew
SELECT v.n, r.time, r.id, r.kind FROM unnest($1::bigint[]) WITH ORDINALITY AS v(term, n) CROSS JOIN LATERAL (SELECT r.time, r.id, r.kind FROM tag r WHERE r.term = v.term AND r.time >= $3 AND r.time <= $4 LIMIT $2) r
-- AuthorFew
SELECT v.n, r.time, r.id, r.kind FROM unnest($1::bytea[]) WITH ORDINALITY AS v(author, n) CROSS JOIN LATERAL (SELECT r.time, r.id, r.kind FROM record r WHERE r.author = v.author AND r.time >= $3 AND r.time <= $4 LIMIT $2) r
-- TermFewBut
SELECT v.n, r.time, r.id, r.kind FROM unnest($1::bigint[]) WITH ORDINALITY AS v(term, n) CROSS JOIN LATERAL (SELECT r.time, r.id, r.kind FROM unnest($3::int[], $4::int[]) AS k(first, last) CROSS JOIN LATERAL (SELECT r.time, r.id, r.kind FROM tag r WHERE r.term = v.term AND r.kind >= k.first AND r.kind <= k.last AND r.time >= $5 AND r.time <= $6 LIMIT $2) r LIMIT $2) r
-- AuthorFewBut
SELECT v.n, r.time, r.id, r.kind FROM unnest($1::bytea[]) WITH ORDINALITY AS v(author, n) CROSS JOIN LATERAL (SELECT r.time, r.id, r.kind FROM unnest($3::int[], $4::int[]) AS k(first, last) CROSS JOIN LATERAL (SELECT r.time, r.id, r.kind FROM record r WHERE r.author = v.author AND r.kind >= k.first AND r.kind <= k.last AND r.time >= $5 AND r.time <= $6 LIMIT $2) r LIMIT $2) r
-- ListedSize
SELECT (SELECT coalesce(sum(v.records), 0)::bigint FROM label_value v WHERE v.term = ANY($1::bigint[])), s.records FROM state s
-- TermKinds
SELECT v.n, k.kind FROM unnest($1::bigint[]) WITH ORDINALITY AS v(term, n) CROSS JOIN LATERAL (WITH RECURSIVE k AS ((SELECT r.kind FROM tag r WHERE r.term = v.term AND r.time >= $2 AND r.time <= $3 ORDER BY r.kind LIMIT 1) UNION ALL SELECT (SELECT r.kind FROM tag r WHERE r.term = v.term AND r.kind > k.kind AND r.time >= $2 AND r.time <= $3 ORDER BY r.kind LIMIT 1) FROM k WHERE k.kind IS NOT NULL) SELECT kind FROM k WHERE kind IS NOT NULL) k
-- AuthorKinds
SELECT v.n, k.kind FROM unnest($1::bytea[]) WITH ORDINALITY AS v(author, n) CROSS JOIN LATERAL (WITH RECURSIVE k AS ((SELECT r.kind FROM record r WHERE r.author = v.author AND r.time >= $2 AND r.time <= $3 ORDER BY r.kind LIMIT 1) UNION ALL SELECT (SELECT r.kind FROM record r WHERE r.author = v.author AND r.kind > k.kind AND r.time >= $2 AND r.time <= $3 ORDER BY r.kind LIMIT 1) FROM k WHERE k.kind IS NOT NULL) SELECT kind FROM k WHERE kind IS NOT NULL) k
-- TermSize
SELECT coalesce(sum(r.rows), 0)::bigint FROM unnest($1::bigint[]) AS v(term) CROSS JOIN LATERAL (SELECT count(*) AS rows FROM (SELECT 1 FROM tag r WHERE r.term = v.term AND r.time >= $3 AND r.time <= $4 LIMIT $2) r) r
-- AuthorSize
SELECT coalesce(sum(r.rows), 0)::bigint FROM unnest($1::bytea[]) AS v(author) CROSS JOIN LATERAL (SELECT count(*) AS rows FROM (SELECT 1 FROM record r WHERE r.author = v.author AND r.time >= $3 AND r.time <= $4 LIMIT $2) r) r
-- TermSizeBut
SELECT coalesce(sum(r.rows), 0)::bigint FROM unnest($1::bigint[]) AS v(term) CROSS JOIN unnest($3::int[], $4::int[]) AS k(first, last) CROSS JOIN LATERAL (SELECT count(*) AS rows FROM (SELECT 1 FROM tag r WHERE r.term = v.term AND r.kind >= k.first AND r.kind <= k.last AND r.time >= $5 AND r.time <= $6 LIMIT $2) r) r
-- AuthorSizeBut
SELECT coalesce(sum(r.rows), 0)::bigint FROM unnest($1::bytea[]) AS v(author) CROSS JOIN unnest($3::int[], $4::int[]) AS k(first, last) CROSS JOIN LATERAL (SELECT count(*) AS rows FROM (SELECT 1 FROM record r WHERE r.author = v.author AND r.kind >= k.first AND r.kind <= k.last AND r.time >= $5 AND r.time <= $6 LIMIT $2) r) r
-- Bodies(None)
SELECT v.n, b.body, b.seq FROM unnest($1::bigint[], $2::bytea[]) WITH ORDINALITY AS v(time, id, n) CROSS JOIN LATERAL (SELECT r.id, r.seq, r.terms, r.body FROM record r WHERE r.time = v.time AND r.id >= v.id ORDER BY r.time DESC, r.id LIMIT 1) b WHERE b.id = v.id AND b.seq <= $3 AND ($4::bigint[] IS NULL OR b.terms && $4)
-- Bodies(Some(7))
SELECT v.n, b.body, b.seq FROM unnest($1::bigint[], $2::bytea[]) WITH ORDINALITY AS v(time, id, n) CROSS JOIN LATERAL (SELECT r.id, r.seq, r.terms, r.body FROM record_7 r WHERE r.time = v.time AND r.id >= v.id ORDER BY r.time DESC, r.id LIMIT 1) b WHERE b.id = v.id AND b.seq <= $3 AND ($4::bigint[] IS NULL OR b.terms && $4)
-- Begin
BEGIN
-- Lock
SELECT seq, records, parts, line, texts, words_seq, current_setting('hark.session', true) FROM state FOR UPDATE
-- Known
SELECT v.n FROM unnest($1::bigint[], $2::bytea[]) WITH ORDINALITY AS v(time, id, n) CROSS JOIN LATERAL (SELECT r.id FROM record r WHERE r.time = v.time AND r.id >= v.id ORDER BY r.time DESC, r.id LIMIT 1) b WHERE b.id = v.id
-- Forbids
SELECT f.key, r.body FROM unnest($1::bigint[]) AS v(key) CROSS JOIN LATERAL (SELECT f.key, f.time, f.id FROM forbid f WHERE f.key = v.key ORDER BY f.time DESC, f.id LIMIT 1) f CROSS JOIN LATERAL (SELECT r.body FROM record r WHERE r.time = f.time AND r.id = f.id LIMIT 1) r
-- Slots
SELECT v.n, r.time, r.id, octet_length(r.body) FROM unnest($1::bytea[], $2::int[]) WITH ORDINALITY AS v(author, kind, n) CROSS JOIN LATERAL (SELECT r.time, r.id, r.body FROM record r WHERE r.author = v.author AND r.kind = v.kind OFFSET 0) r
-- TermSlots
SELECT v.n, t.time, t.id, octet_length(r.body) FROM unnest($1::bigint[], $2::int[], $3::bytea[]) WITH ORDINALITY AS v(term, kind, author, n) CROSS JOIN LATERAL (SELECT t.time, t.id FROM tag t WHERE t.term = v.term AND t.kind = v.kind OFFSET 0) t CROSS JOIN LATERAL (SELECT r.author, r.body FROM record r WHERE r.time = t.time AND r.id = t.id LIMIT 1) r WHERE r.author = v.author
-- NamedRecords
SELECT r.time, r.id, octet_length(r.body), r.author, r.kind, CASE WHEN r.kind = ANY($2::int[]) THEN ARRAY(SELECT t.term FROM unnest(r.terms) AS t(term) WHERE t.term = ANY($3::bigint[])) ELSE '{}'::bigint[] END FROM unnest($1::bytea[]) AS v(id) CROSS JOIN LATERAL (SELECT r.time, r.id, r.author, r.kind, r.terms, r.body FROM record r WHERE r.id = v.id OFFSET 0) r
-- Delete
WITH gone AS (DELETE FROM record r USING unnest($1::bigint[], $2::bytea[], $3::bigint[]) AS v(time, id, mark) WHERE r.time = v.time AND r.id = v.id RETURNING r.time, r.id, r.kind, r.terms, v.mark), tags AS (DELETE FROM tag t USING (SELECT g.time, g.id, g.kind, unnest(g.terms) AS term FROM gone g) g WHERE t.term = g.term AND t.kind = g.kind AND t.time = g.time AND t.id = g.id), listed AS (DELETE FROM worded w USING gone g WHERE w.time = g.time AND w.mark = g.mark AND w.kind = g.kind RETURNING w.time, w.mark, w.kind, w.words), words AS (DELETE FROM word w USING (SELECT l.time, l.mark, l.kind, unnest(l.words) AS word FROM listed l) l WHERE w.word = l.word AND w.kind = l.kind AND w.time = l.time AND w.mark >= l.mark AND w.mark <= l.mark + 3) SELECT count(*) FROM gone
-- DeleteListed
WITH gone AS (DELETE FROM record r USING unnest($1::bigint[], $2::bytea[], $3::bigint[]) AS v(time, id, mark) WHERE r.time = v.time AND r.id = v.id RETURNING r.time, r.id, r.kind, r.terms, v.mark), tags AS (DELETE FROM tag t USING (SELECT g.time, g.id, g.kind, unnest(g.terms) AS term FROM gone g) g WHERE t.term = g.term AND t.kind = g.kind AND t.time = g.time AND t.id = g.id), listed AS (DELETE FROM worded w USING gone g WHERE w.time = g.time AND w.mark = g.mark AND w.kind = g.kind RETURNING w.time, w.mark, w.kind, w.words), words AS (DELETE FROM word w USING (SELECT l.time, l.mark, l.kind, unnest(l.words) AS word FROM listed l) l WHERE w.word = l.word AND w.kind = l.kind AND w.time = l.time AND w.mark >= l.mark AND w.mark <= l.mark + 3), lost AS (SELECT t.term, count(*) AS records FROM gone g CROSS JOIN LATERAL unnest(g.terms) AS t(term) GROUP BY t.term), ended AS (DELETE FROM label_value v USING lost l WHERE v.term = l.term AND v.records <= l.records), lowered AS (UPDATE label_value v SET records = v.records - l.records FROM lost l WHERE v.term = l.term AND v.records > l.records) SELECT count(*) FROM gone
-- DeleteForbids
DELETE FROM forbid WHERE id = ANY($1::bytea[])
-- CopyRecords
COPY record (seq, time, expires, kind, id, author, terms, body) FROM STDIN BINARY
-- CopyTags
COPY tag (term, time, kind, id) FROM STDIN BINARY
-- AddForbids
INSERT INTO forbid SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[])
-- AddValues
INSERT INTO label_value SELECT * FROM unnest($1::bigint[], $2::smallint[], $3::bytea[], $4::bigint[]) ON CONFLICT (term) DO UPDATE SET records = label_value.records + excluded.records
-- Values
SELECT term, value, records FROM label_value WHERE name = $1 AND term > $2 ORDER BY term LIMIT $3
-- Advance
WITH s AS (UPDATE state SET seq = $1, records = $2, words_seq = $4 RETURNING seq, parts, line) SELECT pg_notify(current_schema(), seq || ' ' || $3::int || ' ' || parts || ' ' || line) FROM s
-- News
SELECT s.line, s.seq, r.seq, r.body FROM state s LEFT JOIN LATERAL (SELECT r.seq, r.body FROM record r WHERE r.seq > $1 AND r.seq <= $2 ORDER BY r.seq LIMIT $3) r ON true
-- Newest
SELECT line, seq FROM state
-- Expired
SELECT id FROM record WHERE expires <= $1 LIMIT $2
-- Parts
SELECT start, stop, number FROM part ORDER BY start
-- WordState
SELECT texts, words_seq, seq FROM state
-- WordsFrom
WITH RECURSIVE k AS ((SELECT r.word FROM word r WHERE r.word >= $1::bytea AND r.word < $2::bytea ORDER BY r.word LIMIT 1) UNION ALL SELECT (SELECT r.word FROM word r WHERE r.word > k.word AND r.word < $2::bytea ORDER BY r.word LIMIT 1) FROM k WHERE k.word IS NOT NULL) SELECT word FROM k WHERE word IS NOT NULL LIMIT $3
-- WordSize
SELECT count(*) FROM (SELECT 1 FROM unnest($1::bytea[]) AS v(word) CROSS JOIN unnest($3::int[]) AS k(kind) CROSS JOIN LATERAL (SELECT 1 FROM word r WHERE r.word = v.word AND r.kind = k.kind LIMIT $2) r LIMIT $2) r
-- WordBodies(None)
SELECT v.n, b.time, b.id, b.body FROM unnest($1::bigint[], $2::bytea[], $3::bytea[]) WITH ORDINALITY AS v(time, low, high, n) CROSS JOIN LATERAL (SELECT r.time, r.id, r.seq, r.terms, r.body FROM record r WHERE r.time = v.time AND r.id >= v.low AND r.id <= v.high ORDER BY r.time DESC, r.id LIMIT 16) b WHERE b.seq <= $4 AND ($5::bigint[] IS NULL OR b.terms && $5)
-- WordBodies(Some(7))
SELECT v.n, b.time, b.id, b.body FROM unnest($1::bigint[], $2::bytea[], $3::bytea[]) WITH ORDINALITY AS v(time, low, high, n) CROSS JOIN LATERAL (SELECT r.time, r.id, r.seq, r.terms, r.body FROM record_7 r WHERE r.time = v.time AND r.id >= v.low AND r.id <= v.high ORDER BY r.time DESC, r.id LIMIT 16) b WHERE b.seq <= $4 AND ($5::bigint[] IS NULL OR b.terms && $5)
-- WordedBodies(None)
SELECT v.n, b.body FROM unnest($1::bigint[], $2::bytea[], $5::bigint[]) WITH ORDINALITY AS v(time, id, mark, n) CROSS JOIN LATERAL (SELECT r.id, r.seq, r.kind, r.terms, r.body FROM record r WHERE r.time = v.time AND r.id >= v.id ORDER BY r.time DESC, r.id LIMIT 1) b WHERE b.id = v.id AND b.seq <= $3 AND ($4::bigint[] IS NULL OR b.terms && $4) AND (SELECT count(*) FROM unnest($6::bytea[]) AS o(word) CROSS JOIN LATERAL (SELECT FROM word w WHERE w.word = o.word AND w.kind = b.kind AND w.time = v.time AND w.mark >= v.mark AND w.mark <= v.mark + 3 LIMIT 1) w) = cardinality($6::bytea[])
-- WordedBodies(Some(7))
SELECT v.n, b.body FROM unnest($1::bigint[], $2::bytea[], $5::bigint[]) WITH ORDINALITY AS v(time, id, mark, n) CROSS JOIN LATERAL (SELECT r.id, r.seq, r.kind, r.terms, r.body FROM record_7 r WHERE r.time = v.time AND r.id >= v.id ORDER BY r.time DESC, r.id LIMIT 1) b WHERE b.id = v.id AND b.seq <= $3 AND ($4::bigint[] IS NULL OR b.terms && $4) AND (SELECT count(*) FROM unnest($6::bytea[]) AS o(word) CROSS JOIN LATERAL (SELECT FROM word w WHERE w.word = o.word AND w.kind = b.kind AND w.time = v.time AND w.mark >= v.mark AND w.mark <= v.mark + 3 LIMIT 1) w) = cardinality($6::bytea[])
-- CopyWords
COPY word (time, mark, kind, word) FROM STDIN BINARY
-- CopyWorded
COPY worded (time, mark, kind, words) FROM STDIN BINARY
-- AdvanceWords
UPDATE state SET words_seq = $1
-- StillThere
SELECT v.seq FROM unnest($1::bigint[]) AS v(seq) CROSS JOIN LATERAL (SELECT FROM record r WHERE r.seq = v.seq LIMIT 1) r
-- LabelCounts
SELECT v.n, c.count FROM unnest($1::bigint[], $2::int[], $3::bigint[], $4::bytea[]) WITH ORDINALITY AS v(term, kind, time, id, n) CROSS JOIN LATERAL (SELECT count(*) AS count FROM tag t WHERE t.term = v.term AND t.kind = v.kind AND t.time = v.time AND t.id = v.id) c WHERE c.count <> 1
-- WordLists
SELECT v.n, w.words FROM unnest($1::bigint[], $2::bigint[], $3::int[]) WITH ORDINALITY AS v(time, mark, kind, n) CROSS JOIN LATERAL (SELECT w.words FROM worded w WHERE w.time = v.time AND w.mark = v.mark AND w.kind = v.kind OFFSET 0) w
-- WordCounts
SELECT v.n, c.count FROM unnest($1::bytea[], $2::int[], $3::bigint[], $4::bigint[], $5::bigint[]) WITH ORDINALITY AS v(word, kind, time, mark, class, n) CROSS JOIN LATERAL (SELECT count(*) AS count, min(w.mark) AS mark FROM word w WHERE w.word = v.word AND w.kind = v.kind AND w.time = v.time AND w.mark >= v.mark AND w.mark <= v.mark + 3) c WHERE c.count <> 1 OR v.class >= 0 AND c.mark <> v.mark + v.class
-- RepairColumns
UPDATE record SET time = $3, expires = $4, kind = $5, id = $6, author = $7, terms = $8 WHERE time = $1 AND id = $2
-- make_part 0
CREATE TABLE record_19000 (LIKE record INCLUDING CONSTRAINTS);
                     ALTER TABLE record_19000 SET (autovacuum_vacuum_insert_scale_factor = 0.05,
                         autovacuum_analyze_scale_factor = 0.05);
                     WITH moved AS (DELETE FROM record_other WHERE time >= -7 AND time < 7
                         RETURNING *)
                     INSERT INTO record_19000 SELECT * FROM moved;
                     ALTER TABLE record ATTACH PARTITION record_19000
                         FOR VALUES FROM (-7) TO (7)
-- make_part 1
CREATE TABLE tag_19000 (LIKE tag INCLUDING CONSTRAINTS);
                     ALTER TABLE tag_19000 SET (autovacuum_vacuum_insert_scale_factor = 0.05,
                         autovacuum_analyze_scale_factor = 0.05);
                     WITH moved AS (DELETE FROM tag_other WHERE time >= -7 AND time < 7
                         RETURNING *)
                     INSERT INTO tag_19000 SELECT * FROM moved;
                     ALTER TABLE tag ATTACH PARTITION tag_19000
                         FOR VALUES FROM (-7) TO (7)
-- make_part 2
CREATE TABLE IF NOT EXISTS word_19000 (LIKE word);
                     ALTER TABLE word_19000 SET (autovacuum_vacuum_insert_scale_factor = 0.05,
                         autovacuum_analyze_scale_factor = 0.05);
                     WITH moved AS (DELETE FROM word_other WHERE time >= -7 AND time < 7
                         RETURNING *)
                     INSERT INTO word_19000 SELECT * FROM moved;
                     DO $$ BEGIN
                         IF NOT (SELECT relispartition FROM pg_class
                                 WHERE oid = 'word_19000'::regclass) THEN
                     ALTER TABLE word ATTACH PARTITION word_19000
                         FOR VALUES FROM (-7) TO (7);
                         END IF;
                     END $$
-- make_part 3
CREATE TABLE IF NOT EXISTS worded_19000 (LIKE worded);
                     ALTER TABLE worded_19000 SET (autovacuum_vacuum_insert_scale_factor = 0.05,
                         autovacuum_analyze_scale_factor = 0.05);
                     WITH moved AS (DELETE FROM worded_other WHERE time >= -7 AND time < 7
                         RETURNING *)
                     INSERT INTO worded_19000 SELECT * FROM moved;
                     DO $$ BEGIN
                         IF NOT (SELECT relispartition FROM pg_class
                                 WHERE oid = 'worded_19000'::regclass) THEN
                     ALTER TABLE worded ATTACH PARTITION worded_19000
                         FOR VALUES FROM (-7) TO (7);
                         END IF;
                     END $$
-- make_part 4
INSERT INTO part VALUES (19000, -7, 7)
-- count_spared
SELECT count(*), coalesce(sum(1 + cardinality(r.terms) + coalesce((SELECT sum(1 + cardinality(w.words)) FROM worded w WHERE w.time = r.time AND w.mark = ((('x' || encode(substr(r.id, 1, 8), 'hex'))::bit(64)::bigint | 3) - 3) # (-9223372036854775808) AND w.kind = r.kind), 0)), 0)::bigint FROM (SELECT time, id, kind, terms FROM record_19000 WHERE kind = ANY($1) LIMIT $2) r
-- count_part
SELECT count(*), max(seq) FROM (SELECT seq FROM record_19000 WHERE seq > $1 ORDER BY seq LIMIT $2) r
-- count_part retired
SELECT count(*), max(seq) FROM (SELECT seq FROM retired_record_19000 WHERE seq > $1 ORDER BY seq LIMIT $2) r
-- retire_part
CREATE TEMP TABLE spared_record ON COMMIT DROP AS SELECT * FROM record_19000 WHERE kind = ANY('{5,62}'::int[]);
         CREATE TEMP TABLE spared_tag ON COMMIT DROP AS SELECT t.* FROM spared_record r CROSS JOIN LATERAL (SELECT DISTINCT unnest(r.terms) AS term) v CROSS JOIN LATERAL (SELECT t.* FROM tag_19000 t WHERE t.term = v.term AND t.kind = r.kind AND t.time = r.time AND t.id = r.id OFFSET 0) t;
         CREATE TEMP TABLE spared_worded ON COMMIT DROP AS SELECT w.* FROM spared_record r CROSS JOIN LATERAL (SELECT w.* FROM worded_19000 w WHERE w.time = r.time AND w.mark = ((('x' || encode(substr(r.id, 1, 8), 'hex'))::bit(64)::bigint | 3) - 3) # (-9223372036854775808) AND w.kind = r.kind OFFSET 0) w;
         CREATE TEMP TABLE spared_word ON COMMIT DROP AS SELECT w.* FROM spared_worded l CROSS JOIN LATERAL (SELECT unnest(l.words) AS word) v CROSS JOIN LATERAL (SELECT w.* FROM word_19000 w WHERE w.word = v.word AND w.kind = l.kind AND w.time = l.time AND w.mark >= l.mark AND w.mark <= l.mark + 3 OFFSET 0) w;
         SET LOCAL lock_timeout = 50;
         ALTER TABLE record DETACH PARTITION record_19000;
         ALTER TABLE tag DETACH PARTITION tag_19000;
         ALTER TABLE tag_19000 RENAME TO retired_tag_19000;
         ALTER TABLE word DETACH PARTITION word_19000;
         ALTER TABLE worded DETACH PARTITION worded_19000;
         ALTER TABLE record_19000 RENAME TO retired_record_19000;
         DROP TABLE word_19000, worded_19000;
         INSERT INTO record SELECT * FROM spared_record;
         INSERT INTO tag SELECT * FROM spared_tag;
         INSERT INTO word SELECT * FROM spared_word;
         INSERT INTO worded SELECT * FROM spared_worded;
         DELETE FROM part WHERE number = 19000;
         INSERT INTO retired VALUES (19000, 100);
         UPDATE state SET parts = parts + 1, records = records + 3 - 100, seq = seq + 1, words_seq = words_seq + (words_seq = seq)::int;
         SELECT pg_notify(current_schema(), seq || ' 1 ' || parts || ' ' || line) FROM state
-- retire_part slim
CREATE TEMP TABLE spared_record ON COMMIT DROP AS SELECT * FROM record_19000 WHERE kind = ANY('{5,62}'::int[]);
         CREATE TEMP TABLE spared_tag ON COMMIT DROP AS SELECT t.* FROM spared_record r CROSS JOIN LATERAL (SELECT DISTINCT unnest(r.terms) AS term) v CROSS JOIN LATERAL (SELECT t.* FROM tag_19000 t WHERE t.term = v.term AND t.kind = r.kind AND t.time = r.time AND t.id = r.id OFFSET 0) t;
         CREATE TEMP TABLE spared_worded ON COMMIT DROP AS SELECT w.* FROM spared_record r CROSS JOIN LATERAL (SELECT w.* FROM worded_19000 w WHERE w.time = r.time AND w.mark = ((('x' || encode(substr(r.id, 1, 8), 'hex'))::bit(64)::bigint | 3) - 3) # (-9223372036854775808) AND w.kind = r.kind OFFSET 0) w;
         CREATE TEMP TABLE spared_word ON COMMIT DROP AS SELECT w.* FROM spared_worded l CROSS JOIN LATERAL (SELECT unnest(l.words) AS word) v CROSS JOIN LATERAL (SELECT w.* FROM word_19000 w WHERE w.word = v.word AND w.kind = l.kind AND w.time = l.time AND w.mark >= l.mark AND w.mark <= l.mark + 3 OFFSET 0) w;
         SET LOCAL lock_timeout = 50;
         ALTER TABLE record DETACH PARTITION record_19000;
         DROP VIEW tag_19000;
         ALTER TABLE word DETACH PARTITION word_19000;
         ALTER TABLE worded DETACH PARTITION worded_19000;
         ALTER TABLE record_19000 RENAME TO retired_record_19000;
         DROP TABLE word_19000, worded_19000;
         INSERT INTO record SELECT * FROM spared_record;
         INSERT INTO tag SELECT * FROM spared_tag;
         INSERT INTO word SELECT * FROM spared_word;
         INSERT INTO worded SELECT * FROM spared_worded;
         DELETE FROM part WHERE number = 19000;
         INSERT INTO retired VALUES (19000, 100);
         UPDATE state SET parts = parts + 1, records = records + 3 - 100, seq = seq + 1, words_seq = words_seq + (words_seq = seq)::int;
         SELECT pg_notify(current_schema(), seq || ' 1 ' || parts || ' ' || line) FROM state
-- make_label_view
CREATE OR REPLACE VIEW tag_19000 AS SELECT terms[1] AS term, time, kind, id FROM record_19000
-- drop_part
SET LOCAL lock_timeout = 50;
         DROP TABLE retired_record_19000;
         DROP TABLE IF EXISTS retired_tag_19000;
         UPDATE state SET records = records + 100 - 98;
         COMMIT
-- keep_spared_values
UPDATE label_value v SET records = v.records + s.records FROM (SELECT term, count(*) AS records FROM spared_tag GROUP BY term) s WHERE v.term = s.term
-- count_values
WITH r AS MATERIALIZED (SELECT seq, terms FROM retired_record_19000 WHERE seq > $1 ORDER BY seq LIMIT $2) SELECT l.seq, c.term, c.records FROM (SELECT max(seq) AS seq FROM r) l LEFT JOIN LATERAL (SELECT v.term, count(*) AS records FROM r CROSS JOIN LATERAL unnest(r.terms) AS t(term) JOIN label_value v ON v.term = t.term GROUP BY v.term) c ON true
-- lower_values
WITH lost AS (SELECT * FROM unnest($1::bigint[], $2::bigint[]) AS l(term, records)), ended AS (DELETE FROM label_value v USING lost l WHERE v.term = l.term AND v.records <= l.records), lowered AS (UPDATE label_value v SET records = v.records - l.records FROM lost l WHERE v.term = l.term AND v.records > l.records) SELECT count(*) FROM lost
-- sizes
SELECT (SELECT records FROM state), coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint, coalesce(sum(pg_indexes_size(c.oid)), 0)::bigint, coalesce(sum(pg_stat_get_dead_tuples(c.oid)) FILTER (WHERE c.relname LIKE 'record%'), 0)::bigint, (SELECT min(time) FROM record), (SELECT max(time) FROM record), (SELECT seq FROM state) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1::text AND c.relkind = 'r'
-- setting plan_cache_mode
force_generic_plan
-- setting jit
off
-- setting enable_seqscan
off
-- setting enable_bitmapscan
off
-- setting enable_hashjoin
off
-- setting enable_mergejoin
off
-- setting enable_sort
off
-- setting enable_material
off
-- setting enable_memoize
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
-- setting hark.writes_words
on
-- migration 1 shelf
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

-- migration 2 line
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

-- migration 3 label_values
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

-- migration 4 words
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


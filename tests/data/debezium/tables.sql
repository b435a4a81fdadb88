CREATE TABLE customers (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    balance numeric(12, 2),
    exact numeric,
    score double precision,
    small smallint,
    active boolean,
    born date,
    seen timestamp,
    called timestamp(3),
    changed timestamptz,
    code uuid,
    extra jsonb,
    tags text[],
    numbers int[],
    photo bytea
);
CREATE TABLE lines (order_id int, line int, amount numeric(10, 2) NOT NULL, PRIMARY KEY (order_id, line));
CREATE TABLE documents (id int PRIMARY KEY, title text, body text, bytes bytea, words text[], numbers int[], extra jsonb);
CREATE TABLE papers (id int PRIMARY KEY, title text, body text);
CREATE TABLE visits (id int PRIMARY KEY, page text);
CREATE TABLE races (id int PRIMARY KEY, who text NOT NULL);
CREATE TABLE over (done int PRIMARY KEY);
ALTER TABLE papers REPLICA IDENTITY FULL;
ALTER TABLE documents ALTER body SET STORAGE EXTERNAL, ALTER bytes SET STORAGE EXTERNAL, ALTER words SET STORAGE EXTERNAL,
    ALTER numbers SET STORAGE EXTERNAL, ALTER extra SET STORAGE EXTERNAL;
ALTER TABLE papers ALTER body SET STORAGE EXTERNAL;

INSERT INTO customers
SELECT n, 'name ' || n, (n * 7919 % 100000 - 50000) / 100.0, n * 1234567890.123456789 / 7, n / 7.0, n, n % 2 = 0,
    date '1970-01-01' - 200 * n, timestamp '2024-01-01 00:00:00.123456' + n * interval '1 hour',
    timestamp '1969-12-31 23:59:59.987' + n * interval '1 day', timestamptz '2024-06-01 12:00:00.000001+02' + n * interval '1 minute',
    ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid, jsonb_build_object('n', n, 'deep', jsonb_build_array(n, null, 'é')),
    ARRAY['a' || n, NULL, 'comma, "quote"'], ARRAY[n, NULL, -n], decode(lpad(to_hex(n), 8, 'fe'), 'hex')
FROM generate_series(1, 30) AS n;
INSERT INTO customers (id, name) VALUES (31, 'only what it needs'), (32, '');
INSERT INTO lines SELECT o, l, o * 10 + l / 4.0 FROM generate_series(1, 10) AS o, generate_series(1, 3) AS l;
INSERT INTO papers SELECT n, 'paper ' || n, repeat(n::text || ' ', 1200) FROM generate_series(1, 3) AS n;
INSERT INTO visits SELECT n, 'page ' || n FROM generate_series(1, 3) AS n;
INSERT INTO races VALUES (1, 'before'), (2, 'before');

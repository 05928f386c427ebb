-- The schema of incumbent's leases. Apply it with `incumbent doctor --fix`, or:
--     psql --set ON_ERROR_STOP=1 --file schema.sql "postgresql://..."
-- It may be applied again at any time. Whoever applies it owns it. A schema of another format is left
-- alone, and its clients refuse it by what hello() says.
-- Every other role needs no more than:
--     GRANT USAGE ON SCHEMA incumbent TO app;
--     GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA incumbent TO app;
--
-- Theory of operation:
-- * A record is one row. Its columns have what every lease has: the last grant, and the claim that
--   holds the name alone. `rest` is the text of everything else (a line, sharers, a pause), as
--   incumbent.rules writes it; of a plain record it is empty. A plain record is granted, renewed and
--   given back by one statement: take(), renew(), give(). So is one with a line but nothing else, as
--   long as the line stays as it is: its hot fields are columns, too. Everything else is decided by
--   the client, by what load() says, and written by swap() if the row still has the version read.
-- * Each operation is one function, one statement, one transaction, and keeps nothing in its session.
-- * Instants are microseconds since 1970 by the server's clock_timestamp(), and never those of a
--   transaction's start. One that begins with a write is 2^62 + the microseconds until then.
-- * Each write has another version, a renewal as well: whoever decided by an older one is refused. The
--   incarnation is compared in the same step.
-- * What would only be lost in a crash does not wait for the disk (synchronous_commit off): a crash
--   empties `epoch`, which is unlogged, and then nothing is granted for a while.
-- * A take is carried out by p_until or not at all: one that a network or a frozen server kept back
--   leaves nothing.

BEGIN;
SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL check_function_bodies = off;
SELECT pg_advisory_xact_lock(7596558240718152301);

CREATE SCHEMA IF NOT EXISTS incumbent;

CREATE TABLE IF NOT EXISTS incumbent.version (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    format integer NOT NULL
);
DO $$ BEGIN
    IF EXISTS (SELECT FROM incumbent.version WHERE format <> 1) THEN
        RAISE EXCEPTION 'the schema incumbent has another format than this file: nothing was changed';
    END IF;
END $$;

-- The incarnation of this store. Crash recovery, a promotion and a restored backup leave no row, or
-- one of another table: either means that the newest commits may be missing. Its id begins with the
-- format, so that a client that is connected already sees with each grant whose functions it called.
CREATE UNLOGGED TABLE IF NOT EXISTS incumbent.epoch (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    id text NOT NULL,
    born timestamptz NOT NULL,
    place text NOT NULL,
    -- The longest ttl, in microseconds, of those who may have held something when it began; not below
    -- the default one.
    longest bigint NOT NULL DEFAULT 15000000,
    -- Above every token of the epochs before.
    floor bigint NOT NULL DEFAULT 0
);

-- claim: who holds the name alone, or held it last without giving it back; empty: nobody, or several
-- share it, and then `ttl` is the longest of theirs, and `expires` the last end. `started`, `ended`:
-- of the last grant. `due`, `overtaken`: of the line in `rest`, whose first waiter is next_claim if
-- `rest` says nothing else. `noticed`: a notice waits; `waited`: somebody waits for a change.
CREATE TABLE IF NOT EXISTS incumbent.record (
    key text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,
    written bigint NOT NULL DEFAULT 0, token bigint NOT NULL DEFAULT 0,
    granted bigint NOT NULL DEFAULT 0, changes bigint NOT NULL DEFAULT 0,
    claim text NOT NULL DEFAULT '', holder text NOT NULL DEFAULT '',
    ttl bigint NOT NULL DEFAULT 0,
    since bigint NOT NULL DEFAULT 0, expires bigint NOT NULL DEFAULT 0,
    meta bytea NOT NULL DEFAULT '',
    started bigint NOT NULL DEFAULT 0, ended bigint NOT NULL DEFAULT 0,
    field_version bigint NOT NULL DEFAULT 0, keep_until bigint NOT NULL DEFAULT 0,
    rest text NOT NULL DEFAULT '',
    due bigint NOT NULL DEFAULT 0, overtaken integer NOT NULL DEFAULT 0,
    next_claim text NOT NULL DEFAULT '', next_heartbeat bigint NOT NULL DEFAULT 0,
    next_fair boolean NOT NULL DEFAULT false,
    noticed boolean NOT NULL DEFAULT false, waited bigint NOT NULL DEFAULT 0,
    forget_on date NOT NULL DEFAULT current_date + 2
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
-- By the day, so that an operation hardly ever changes what is indexed (a HOT update).
CREATE INDEX IF NOT EXISTS record_forget_on ON incumbent.record (forget_on);

-- Fields, and slots until their end (`until`).
CREATE TABLE IF NOT EXISTS incumbent.beside (
    key text COLLATE "C",
    kind text COLLATE "C", name text COLLATE "C",
    written bigint NOT NULL, until bigint,
    value text NOT NULL,
    PRIMARY KEY (key, kind, name)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- The 19 grants before the last one.
CREATE TABLE IF NOT EXISTS incumbent.history (
    key text COLLATE "C",
    place smallint,
    holder text NOT NULL,
    token bigint NOT NULL,
    started bigint NOT NULL, ended bigint NOT NULL,
    PRIMARY KEY (key, place)
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Who joined a line since its record was written: the next swap moves them into it.
CREATE UNLOGGED TABLE IF NOT EXISTS incumbent.joined (
    key text COLLATE "C",
    claim text COLLATE "C",
    place bigint GENERATED ALWAYS AS IDENTITY,
    at bigint NOT NULL, value text NOT NULL,
    PRIMARY KEY (key, claim)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Where each new record begins: the highest token and version of all records that were forgotten, or
-- lost with an epoch before.
CREATE TABLE IF NOT EXISTS incumbent.forgotten (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    highest bigint NOT NULL
);
INSERT INTO incumbent.forgotten (highest) VALUES (0) ON CONFLICT DO NOTHING;

-- The highest token that wrote under with_token().
CREATE TABLE IF NOT EXISTS incumbent.fence (
    key text COLLATE "C" PRIMARY KEY,
    highest bigint NOT NULL
) WITH (fillfactor = 40);

-- The server's clock.
CREATE OR REPLACE FUNCTION incumbent.clock() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint
$$;

-- An instant of a record that is written at p_written.
CREATE OR REPLACE FUNCTION incumbent.known(p_instant bigint, p_written bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_instant < 2305843009213693952 THEN p_instant
        ELSE p_instant - 4611686018427387904 + p_written END
$$;

-- The day from which on a record may be forgotten.
CREATE OR REPLACE FUNCTION incumbent.forgettable(p_keep_until bigint) RETURNS date
LANGUAGE sql IMMUTABLE AS $$
    SELECT date '1970-01-01' + (least(p_keep_until, 253402300800000000) / 86400000000)::integer + 2
$$;

-- Where this data lives: a copy of it, restored elsewhere or beside it, is another place.
CREATE OR REPLACE FUNCTION incumbent.here() RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    cluster text := '';
BEGIN
    BEGIN
        SELECT system_identifier INTO cluster FROM pg_control_system();
    EXCEPTION WHEN insufficient_privilege THEN
        NULL;  -- a provider may keep it to itself
    END;
    RETURN concat_ws('.', cluster, (SELECT oid FROM pg_database WHERE datname = current_database()),
        'incumbent.epoch'::regclass::oid);
END $$;

CREATE OR REPLACE FUNCTION incumbent.begin_epoch() RETURNS incumbent.epoch
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    e incumbent.epoch;
    found_here text := incumbent.here();
    lost bigint;
BEGIN
    DELETE FROM incumbent.epoch WHERE place <> found_here;
    -- A copy that lags behind by up to one ttl still shows a holder.
    INSERT INTO incumbent.epoch (id, born, place, longest)
        SELECT '1.' || replace(gen_random_uuid()::text, '-', ''), clock_timestamp(), found_here,
            greatest(15000000, max(ttl))
        FROM incumbent.record WHERE expires > incumbent.clock() - ttl
        ON CONFLICT DO NOTHING;
    IF FOUND THEN
        -- The newest grants may be missing, and this server's clock be behind that of the one that
        -- gave them: by a minute at most. Nothing is added to the floor of the epoch before: tokens
        -- would then be further ahead than a server without the data can know. The floor is on disk
        -- before any token of this epoch.
        SET LOCAL synchronous_commit TO DEFAULT;
        INSERT INTO incumbent.forgotten AS f (highest)
            VALUES (60000001 + incumbent.clock())
            ON CONFLICT (one) DO UPDATE SET highest = greatest(f.highest + 1, excluded.highest)
            RETURNING highest INTO lost;
        UPDATE incumbent.epoch SET floor = lost;
    END IF;
    SELECT * INTO e FROM incumbent.epoch;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'another client began the epoch' USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN e;
END $$;

-- What a client asks on a new connection.
CREATE OR REPLACE FUNCTION incumbent.hello() RETURNS text LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    now CONSTANT timestamptz := clock_timestamp();
    v incumbent.version;
    e incumbent.epoch;
BEGIN
    SELECT * INTO v FROM incumbent.version;
    SELECT * INTO e FROM incumbent.epoch;
    IF NOT FOUND OR e.place <> incumbent.here() THEN
        e := incumbent.begin_epoch();
    END IF;
    RETURN json_build_object('format', v.format, 'pid', pg_backend_pid(),
        'up', date_part('epoch', clock_timestamp() - e.born), 'longest', e.longest,
        'now', date_part('epoch', now));
END $$;

-- Begin a record. Only after a statement that found none: a record that is forgotten meanwhile would
-- come back with a token and a version from before.
CREATE OR REPLACE FUNCTION incumbent.remember(p_key text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO incumbent.record (key, token, field_version, version)
        SELECT p_key, highest, highest, highest FROM incumbent.forgotten
        ON CONFLICT DO NOTHING;
    IF NOT FOUND AND NOT EXISTS (SELECT FROM incumbent.forgotten) THEN
        RAISE EXCEPTION 'incumbent.forgotten has lost its row' USING ERRCODE = 'undefined_table';
    END IF;
END $$;

-- What is known of some names, as json, with the clock that was read before. Of the values beside
-- them those of these kinds and names; or all, and the history, if p_kinds is null.
CREATE OR REPLACE FUNCTION incumbent.load(p_keys text[], p_kinds text[], p_names text[])
RETURNS text LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s'
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    now CONSTANT bigint := incumbent.clock();
    e incumbent.epoch;
BEGIN
    SELECT * INTO e FROM incumbent.epoch;
    IF NOT FOUND THEN
        e := incumbent.begin_epoch();
    END IF;
    RETURN (SELECT json_build_object('now', now,
        'epoch', json_build_array(e.id, date_part('epoch', clock_timestamp() - e.born), e.longest),
        'floor', e.floor, 'highest', (SELECT highest FROM incumbent.forgotten),
        'rows', coalesce(json_agg(json_build_array(r.key, r.version, r.written,
            json_build_array(r.token, r.granted, r.changes, r.claim, r.holder, r.ttl, r.since,
                r.expires, encode(r.meta, 'hex'), r.started, r.ended, r.field_version,
                r.keep_until, r.rest), r.due, r.overtaken,
            (SELECT json_agg(json_build_array(j.place, j.value, j.at) ORDER BY j.place)
                FROM incumbent.joined j WHERE j.key = r.key),
            CASE WHEN p_kinds IS NULL THEN
                (SELECT json_agg(json_build_array(b.kind, b.name, b.value, b.written))
                    FROM incumbent.beside b WHERE b.key = r.key)
            WHEN p_kinds <> '{}' THEN
                (SELECT json_agg(json_build_array(b.kind, b.name, b.value, b.written))
                    FROM unnest(p_kinds, p_names) AS w (kind, name)
                    JOIN incumbent.beside b ON b.key = r.key AND b.kind = w.kind
                        AND b.name = w.name)
            END,
            CASE WHEN p_kinds IS NULL THEN
                (SELECT json_agg(json_build_array(h.place, h.holder, h.token, h.started, h.ended))
                    FROM incumbent.history h WHERE h.key = r.key)
            END)), '[]'))::text
        FROM incumbent.record r WHERE r.key = ANY (p_keys));
END $$;

-- For people: as load(), all of at most p_count names that begin so, after p_after.
CREATE OR REPLACE FUNCTION incumbent.scan(p_prefix text, p_after text, p_count integer) RETURNS text
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT incumbent.load(ARRAY(
        SELECT key FROM incumbent.record
        WHERE key > p_after AND key >= p_prefix AND starts_with(key, p_prefix)
            AND key < p_prefix || chr(127)
        ORDER BY key LIMIT p_count), NULL, NULL)
$$;

-- Answers 'granted <claim> <token> <us> <epoch>'; 'late <claim>' after p_until; or what load() does, if
-- the name is not free, or its record not plain. Nothing is granted until p_wait us of the epoch are
-- over: null means the longest ttl that may be believed.
-- It locks nothing before it has decided, and then changes only what is as it was: whoever is
-- refused writes nothing, and does not wait for those who do.
-- p_told: everybody who waits learns of the grant.
CREATE OR REPLACE FUNCTION incumbent.take(
    p_key text, p_claim text, p_ttl bigint, p_holder text, p_meta bytea, p_keep bigint,
    p_wait bigint, p_until bigint, p_told boolean
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    e incumbent.epoch;
    r incumbent.record;
    now bigint;
    new_token bigint;
    awaited boolean;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    SELECT * INTO e FROM incumbent.epoch;
    IF NOT FOUND THEN
        e := incumbent.begin_epoch();
    END IF;
    IF p_wait IS DISTINCT FROM 0 AND clock_timestamp()
        < e.born + coalesce(p_wait, greatest(p_ttl, e.longest)) * interval '1 microsecond'
    THEN
        RETURN incumbent.load(ARRAY[p_key], '{}', '{}');
    END IF;
    LOOP
        SELECT * INTO r FROM incumbent.record WHERE key = p_key;
        IF NOT FOUND THEN
            PERFORM incumbent.remember(p_key);
            CONTINUE;
        END IF;
        now := incumbent.clock();
        IF now > p_until THEN
            RETURN 'late ' || p_claim;
        END IF;
        -- A few may overtake a first waiter that is not fair, in its turn.
        IF r.expires > now OR r.rest <> '' AND NOT (r.next_claim <> '' AND NOT r.next_fair
            AND r.due > now AND r.overtaken < 4 AND position(p_claim IN r.rest) = 0)
        THEN
            RETURN incumbent.load(ARRAY[p_key], '{}', '{}');
        END IF;
        new_token := greatest(r.token + 1, now, e.floor);
        UPDATE incumbent.record SET
            version = greatest(r.version + 1, now), token = new_token, granted = r.granted + 1,
            changes = r.changes + 1, claim = p_claim, holder = p_holder, ttl = p_ttl, since = now,
            expires = now + p_ttl, meta = p_meta, started = now, ended = 0,
            overtaken = r.overtaken + (r.next_claim <> '')::integer,
            keep_until = greatest(r.keep_until, now + greatest(p_ttl, p_keep)),
            forget_on = incumbent.forgettable(greatest(r.keep_until, now + greatest(p_ttl, p_keep)))
        WHERE key = p_key AND version = r.version
            AND NOT EXISTS (SELECT FROM incumbent.joined j WHERE j.key = p_key)
        RETURNING waited > now INTO awaited;
        -- Else it has changed since it was read, and is decided about anew.
        EXIT WHEN FOUND;
        IF EXISTS (SELECT FROM incumbent.joined j WHERE j.key = p_key) THEN
            RETURN incumbent.load(ARRAY[p_key], '{}', '{}');
        END IF;
    END LOOP;
    -- It may have waited for the row's lock: then nothing of it is kept.
    IF incumbent.clock() > p_until THEN
        RAISE EXCEPTION 'the row was locked until nobody waited for the take any more'
            USING ERRCODE = 'lock_not_available';
    END IF;
    IF r.granted > 0 THEN
        INSERT INTO incumbent.history (key, place, holder, token, started, ended)
            VALUES (p_key, (r.granted - 1) % 19, r.holder, r.token, r.started, r.ended)
            ON CONFLICT (key, place) DO UPDATE SET holder = excluded.holder,
                token = excluded.token, started = excluded.started, ended = excluded.ended;
    END IF;
    -- Of a name that was not known nobody could say that it waits.
    IF p_told AND (awaited OR r.changes = 0) THEN
        PERFORM pg_notify('incumbent', p_key);
    END IF;
    IF new_token % 256 = 0 THEN
        PERFORM incumbent.sweep();
    END IF;
    RETURN concat_ws(' ', 'granted', p_claim, new_token, p_ttl, e.id);
END $$;

-- Renews those that hold a name alone, without a notice: it leaves the rest of a record as it is.
-- Answers the first claim, and as json which renewals were done.
CREATE OR REPLACE FUNCTION incumbent.renew(
    p_epoch text, p_keys text[], p_claims text[], p_tokens bigint[], p_ttls bigint[]
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    now bigint;
    done json;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    -- In the order of the keys, so that two batches never wait for each other.
    PERFORM FROM incumbent.record WHERE key = ANY (p_keys) ORDER BY key FOR UPDATE;
    now := incumbent.clock();
    -- The clock after the locks: a lease may have run out while its row was waited for.
    WITH renewed AS (
        UPDATE incumbent.record r SET
            version = greatest(r.version + 1, now), expires = greatest(r.expires, now + a.ttl),
            keep_until = greatest(r.keep_until, now + a.ttl)
        FROM unnest(p_keys, p_claims, p_tokens, p_ttls)
            WITH ORDINALITY AS a (key, claim, token, ttl, which)
        WHERE r.key = a.key AND r.claim = a.claim AND r.token = a.token AND r.expires > now
            AND NOT r.noticed AND EXISTS (SELECT FROM incumbent.epoch WHERE id = p_epoch)
        RETURNING a.which
    )
    SELECT json_agg(which) INTO done FROM renewed;
    RETURN p_claims[1] || ' ' || coalesce(done::text, '[]');
END $$;

-- Answers 'released <claim>'; or what load() does, if the claim does not hold the name, or the record
-- is not plain but for a line: its first waiter's turn begins.
CREATE OR REPLACE FUNCTION incumbent.give(p_key text, p_claim text, p_token bigint) RETURNS text LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    awaited boolean;
    next_one text;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE incumbent.record SET
        version = greatest(version + 1, incumbent.clock()), changes = changes + 1, claim = '',
        ttl = 0, since = 0, expires = 0, meta = '', ended = incumbent.clock(),
        due = CASE WHEN rest = '' THEN 0 ELSE incumbent.clock() + next_heartbeat END
    WHERE key = p_key AND claim = p_claim AND token = p_token AND expires > incumbent.clock()
        AND (rest = '' OR next_claim <> '' AND position(p_claim IN rest) = 0)
        AND NOT EXISTS (SELECT FROM incumbent.joined j WHERE j.key = p_key)
    RETURNING waited > incumbent.clock(), next_claim INTO awaited, next_one;
    IF NOT FOUND THEN
        RETURN incumbent.load(ARRAY[p_key], '{}', '{}');
    END IF;
    IF awaited THEN
        PERFORM pg_notify('incumbent', concat_ws(' ', p_key, nullif(next_one, '')));
    END IF;
    RETURN 'released ' || p_claim;
END $$;

-- Leaves a waiter beside the record, for the next swap; answers what load() does, or 'late' after
-- p_until.
CREATE OR REPLACE FUNCTION incumbent.join_line(
    p_epoch text, p_key text, p_claim text, p_value text, p_until bigint
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    -- One after the other, so that each sees who is before it.
    PERFORM FROM incumbent.record WHERE key = p_key FOR UPDATE;
    IF incumbent.clock() > p_until THEN
        RETURN 'late';
    END IF;
    INSERT INTO incumbent.joined (key, claim, at, value)
        SELECT p_key, p_claim, incumbent.clock(), p_value FROM incumbent.epoch
        WHERE FOUND AND id = p_epoch
        ON CONFLICT DO NOTHING;
    RETURN incumbent.load(ARRAY[p_key], '{}', '{}');
END $$;

-- Writes records, in the order of their keys so that two swaps never wait for each other, each if its
-- row has the version that was read; `version` 0 stands for a name that was not known. Answers for
-- each, as json, [key, null, version, instant], as it is written; or [key, what], what load() says
-- instead, also if the clock is behind `not_before`, or somebody joined a line that is said to be
-- `alone`; or 'late' after p_until.
CREATE OR REPLACE FUNCTION incumbent.swap(p_swaps json, p_durable boolean, p_until bigint)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s'
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    s record;
    n incumbent.record;
    r incumbent.record;
    now bigint;
    fresh boolean;
    wrote boolean := false;
    answers json[];
BEGIN
    IF NOT p_durable THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    FOR s IN SELECT * FROM json_to_recordset(p_swaps) AS s (
        key text, version bigint, epoch text, not_before bigint, written json, entries json,
        past json, joined json, alone boolean, wake text, kinds text[], names text[])
    LOOP
        LOOP
            SELECT * INTO r FROM incumbent.record WHERE key = s.key FOR UPDATE;
            EXIT WHEN FOUND OR s.version <> 0;
            PERFORM incumbent.remember(s.key);
        END LOOP;
        -- Only of a record that was just begun nothing is known.
        fresh := r.granted = 0 AND r.changes = 0 AND r.written = 0;
        now := incumbent.clock();
        -- FOUND is that of the SELECT above: an assignment leaves it alone.
        IF NOT FOUND OR NOT (r.version = s.version OR s.version = 0 AND fresh)
            OR now < s.not_before
            OR NOT EXISTS (SELECT FROM incumbent.epoch WHERE id = s.epoch)
            OR s.alone AND EXISTS (SELECT FROM incumbent.joined j WHERE j.key = s.key)
        THEN
            answers := answers || json_build_array(s.key,
                incumbent.load(ARRAY[s.key], s.kinds, s.names)::json);
        ELSIF now > p_until AND wrote THEN
            RAISE EXCEPTION 'nobody waits for the takes any more'
                USING ERRCODE = 'lock_not_available';
        ELSIF now > p_until THEN
            RETURN 'late';
        ELSE
            n := json_populate_record(NULL::incumbent.record, s.written);
            n.keep_until := incumbent.known(n.keep_until, now);
            UPDATE incumbent.record SET
                version = greatest(r.version + 1, now), written = now, token = n.token,
                granted = n.granted, changes = n.changes, claim = n.claim, holder = n.holder,
                ttl = n.ttl, since = incumbent.known(n.since, now),
                expires = incumbent.known(n.expires, now), meta = n.meta, started = n.started,
                ended = n.ended, field_version = n.field_version, keep_until = n.keep_until,
                rest = n.rest, due = incumbent.known(n.due, now), overtaken = n.overtaken,
                next_claim = n.next_claim, next_heartbeat = n.next_heartbeat,
                next_fair = n.next_fair, noticed = n.noticed,
                forget_on = incumbent.forgettable(n.keep_until)
            WHERE key = s.key;
            IF s.past IS NOT NULL THEN
                INSERT INTO incumbent.history (key, place, holder, token, started, ended)
                    SELECT s.key, (h ->> 0)::smallint, h ->> 1, (h ->> 2)::bigint,
                        (h ->> 3)::bigint, (h ->> 4)::bigint
                    FROM json_array_elements(s.past) AS h
                    ON CONFLICT (key, place) DO UPDATE SET holder = excluded.holder,
                        token = excluded.token, started = excluded.started,
                        ended = excluded.ended;
            END IF;
            IF s.entries IS NOT NULL OR s.joined IS NOT NULL THEN
                PERFORM incumbent.beside(s.key, now, s.entries, s.joined);
            END IF;
            IF s.wake IS NOT NULL AND (fresh OR r.waited > now) THEN
                PERFORM pg_notify('incumbent', s.wake);
            END IF;
            answers := answers || json_build_array(s.key, NULL, greatest(r.version + 1, now), now);
            wrote := true;
        END IF;
    END LOOP;
    IF now % 256 = 0 THEN
        PERFORM incumbent.sweep();
    END IF;
    RETURN array_to_json(answers);
END $$;

-- What changes beside a record that is written now: [kind, name, value or null, us or null] of the
-- values, [claim, place] of those who joined.
CREATE OR REPLACE FUNCTION incumbent.beside(
    p_key text, p_now bigint, p_entries json, p_joined json
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    it json;
BEGIN
    FOR it IN SELECT value FROM json_array_elements(p_entries) LOOP
        DELETE FROM incumbent.beside
            WHERE key = p_key AND (kind = it ->> 0 AND name = it ->> 1 OR until <= p_now);
        INSERT INTO incumbent.beside (key, kind, name, written, until, value)
            SELECT p_key, it ->> 0, it ->> 1, p_now, p_now + (it ->> 3)::bigint, it ->> 2
            WHERE it ->> 2 IS NOT NULL;
    END LOOP;
    DELETE FROM incumbent.joined j USING json_array_elements(p_joined) AS g
        WHERE j.key = p_key AND j.claim = g ->> 0 AND j.place = (g ->> 1)::bigint;
END $$;

-- Answers 'same' if the record is as p_seen says, and what load() does if not. Whoever changes it in
-- the next p_wait us notifies.
CREATE OR REPLACE FUNCTION incumbent.changed(p_key text, p_seen text, p_wait bigint) RETURNS text LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    now CONSTANT bigint := incumbent.clock();
    seen text;
BEGIN
    IF p_wait > 0 THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        -- For longer than asked, so that many waiters write it once.
        UPDATE incumbent.record SET waited = now + 2 * p_wait
            WHERE key = p_key AND waited < now + p_wait;
    END IF;
    SELECT concat(e.id, ':', r.changes) INTO seen FROM incumbent.record r, incumbent.epoch e
        WHERE r.key = p_key AND r.changes > 0;
    IF coalesce(seen, '') = p_seen THEN
        RETURN 'same';
    END IF;
    RETURN incumbent.load(ARRAY[p_key], '{}', '{}');
END $$;

-- Looks at some records whose time is over, as many as it meets unlocked, and forgets those of which
-- nothing is left but the highest token and version. Answers how many these were.
CREATE OR REPLACE FUNCTION incumbent.sweep() RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now CONSTANT bigint := incumbent.clock();
    today CONSTANT date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    old text[];
BEGIN
    -- One at a time: another sweep leaves it to this one.
    PERFORM FROM incumbent.forgotten FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    SELECT array_agg(o.key) INTO old FROM (
        SELECT key FROM incumbent.record WHERE forget_on < today
        ORDER BY forget_on LIMIT 64 FOR UPDATE SKIP LOCKED
    ) o;
    IF old IS NULL THEN
        RETURN 0;
    END IF;
    -- A record that is still needed is looked at again later, or it would be in the way of the rest.
    UPDATE incumbent.record r SET forget_on = today + 7
    WHERE r.key = ANY (old) AND (r.expires > now OR r.keep_until > now OR r.noticed
        OR EXISTS (SELECT FROM incumbent.beside b
            WHERE b.key = r.key AND coalesce(b.until > now, true)));
    SELECT array_agg(key) INTO old FROM incumbent.record
        WHERE key = ANY (old) AND forget_on < today;
    DELETE FROM incumbent.beside WHERE key = ANY (old);
    DELETE FROM incumbent.history WHERE key = ANY (old);
    DELETE FROM incumbent.joined WHERE key = ANY (old);
    -- A row that is locked belongs to a writer whose transaction is open: it stays.
    DELETE FROM incumbent.fence WHERE key IN (
        SELECT f.key FROM incumbent.fence f WHERE f.key = ANY (old) FOR UPDATE SKIP LOCKED);
    WITH gone AS (DELETE FROM incumbent.record WHERE key = ANY (old) RETURNING token, version)
    UPDATE incumbent.forgotten SET highest = greatest(highest,
        (SELECT max(greatest(token, version)) FROM gone));
    RETURN coalesce(cardinality(old), 0);
END $$;

-- In the writer's own transaction: whether p_token may write, which is so while its record is the last
-- one of the key. A forgotten record has no holder. The row stays locked until the transaction ends,
-- so that those of an earlier and a later holder follow each other.
CREATE OR REPLACE FUNCTION incumbent.fence(p_key text, p_token bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO incumbent.fence AS f (key, highest) VALUES (p_key, p_token)
        ON CONFLICT (key) DO UPDATE SET highest = excluded.highest
        WHERE f.highest <= excluded.highest;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    RETURN EXISTS (SELECT FROM incumbent.record WHERE key = p_key AND token = p_token);
END $$;

REVOKE ALL ON ALL TABLES IN SCHEMA incumbent FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA incumbent FROM PUBLIC;
SELECT incumbent.begin_epoch();
INSERT INTO incumbent.version (format) VALUES (1) ON CONFLICT DO NOTHING;
COMMIT;

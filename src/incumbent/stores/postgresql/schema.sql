-- The schema of incumbent's leases. Apply it with `incumbent doctor --fix`, or:
--     psql --set ON_ERROR_STOP=1 --file schema.sql "postgresql://..."
-- It may be applied again at any time. Whoever applies it owns it. A schema of another format is left
-- alone, and its clients refuse it by what hello() says.
-- Every other role needs no more than:
--     GRANT USAGE ON SCHEMA incumbent TO app;
--     GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA incumbent TO app;
--
-- Rules:
-- * Each operation is one function, one statement, one transaction, and keeps nothing in its session.
-- * Instants are the server's clock_timestamp(), and never those of a transaction's start.
-- * What would only be lost in a crash does not wait for the disk (synchronous_commit off): a crash
--   empties `epoch`, which is unlogged, and then nothing is granted for a while.
-- * A take is carried out by p_until or not at all, and never once its claim was given up: one that a
--   network or a frozen server kept back leaves nothing.

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

-- claim = '': nobody holds it; until `expires` it is closed, but for `reserved_for`. Until `doubted`
-- some claim of the key may be in `given_up`: hardly any take has to look there.
CREATE TABLE IF NOT EXISTS incumbent.record (
    key text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL DEFAULT 0,
    claim text NOT NULL DEFAULT '',
    holder text NOT NULL DEFAULT '',
    meta bytea NOT NULL DEFAULT '',
    ttl bigint NOT NULL DEFAULT 0,
    since timestamptz,
    expires timestamptz NOT NULL DEFAULT '-infinity',
    ended timestamptz,
    reserved_for text NOT NULL DEFAULT '',
    grants bigint NOT NULL DEFAULT 0,
    changes bigint NOT NULL DEFAULT 0,
    switched boolean NOT NULL DEFAULT false,
    field_version bigint NOT NULL DEFAULT 0,
    waited timestamptz NOT NULL DEFAULT '-infinity',
    doubted timestamptz NOT NULL DEFAULT '-infinity',
    forget_on date NOT NULL DEFAULT current_date + 2
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
-- By the day, so that an operation hardly ever changes what is indexed (a HOT update).
CREATE INDEX IF NOT EXISTS record_forget_on ON incumbent.record (forget_on);

-- Those who hold a lease together. Its record is then a latch: its claim is '*', it ends with the last
-- of them, its ttl is the longest of theirs, and it names the one that was granted last. So whoever
-- asks for it exclusively finds it held. Without a latch these rows mean nothing, and the next latch
-- begins without them. They change only while the record is locked.
CREATE TABLE IF NOT EXISTS incumbent.sharer (
    key text COLLATE "C",
    claim text COLLATE "C",
    holder text NOT NULL,
    token bigint NOT NULL,
    ttl bigint NOT NULL,
    meta bytea NOT NULL,
    since timestamptz NOT NULL,
    expires timestamptz NOT NULL,
    permits integer NOT NULL,
    PRIMARY KEY (key, claim)
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE IF NOT EXISTS incumbent.slot (
    key text COLLATE "C",
    name text COLLATE "C",
    claim text NOT NULL,
    token bigint NOT NULL,
    holder text NOT NULL,
    ttl bigint NOT NULL,
    since timestamptz NOT NULL,
    expires timestamptz NOT NULL,
    PRIMARY KEY (key, name)
);

CREATE TABLE IF NOT EXISTS incumbent.field (
    key text COLLATE "C",
    name text COLLATE "C",
    value bytea NOT NULL,
    version bigint NOT NULL,
    PRIMARY KEY (key, name)
);

-- The 19 holdings before the one that `record` has.
CREATE TABLE IF NOT EXISTS incumbent.history (
    key text COLLATE "C",
    place smallint,
    holder text NOT NULL,
    token bigint NOT NULL,
    started timestamptz NOT NULL,
    ended timestamptz,
    PRIMARY KEY (key, place)
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE IF NOT EXISTS incumbent.candidate (
    key text COLLATE "C",
    holder text COLLATE "C",
    expires timestamptz NOT NULL,
    PRIMARY KEY (key, holder)
) WITH (fillfactor = 40);

-- Claims that were given up while nobody knew whether they had been granted: a take of theirs may
-- still be on its way. A crash may empty it, for it ends the connections too.
CREATE UNLOGGED TABLE IF NOT EXISTS incumbent.given_up (
    key text COLLATE "C",
    claim text COLLATE "C",
    until timestamptz NOT NULL,
    PRIMARY KEY (key, claim)
);

-- Where each new record begins: the highest token of all records that were forgotten, or lost with
-- an epoch before.
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
        FROM incumbent.record
        WHERE claim <> '' AND expires > clock_timestamp() - ttl * interval '1 microsecond'
        ON CONFLICT DO NOTHING;
    IF FOUND THEN
        -- The newest grants may be missing, and this server's clock be behind that of the one that
        -- gave them: by a minute at most. Nothing is added to the floor of the epoch before: tokens
        -- would then be further ahead than a server without the data can know. The floor is on disk
        -- before any token of this epoch.
        SET LOCAL synchronous_commit TO DEFAULT;
        INSERT INTO incumbent.forgotten AS f (highest)
            VALUES (60000001 + (date_part('epoch', clock_timestamp()) * 1000000)::bigint)
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
CREATE OR REPLACE FUNCTION incumbent.hello() RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
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

-- Answers 'wait <us left> <us since the epoch began>', 'granted <claim> <token> <us> <epoch>',
-- 'late <claim>' after p_until (us since 1970), or what a refusal shows, as json. Durations are
-- microseconds; no p_wait means the longest ttl that may be believed.
-- It locks nothing before it has decided, and then changes only what is as it was: whoever is
-- refused writes nothing, and does not wait for those who do.
CREATE OR REPLACE FUNCTION incumbent.take(
    p_key text, p_claim text, p_ttl bigint, p_holder text, p_meta bytea, p_keep bigint,
    p_wait bigint, p_slot text, p_slot_keep bigint, p_candidacy bigint, p_until bigint
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    us CONSTANT interval := interval '1 microsecond';
    wait bigint;
    e incumbent.epoch;
    r incumbent.record;
    now timestamptz;
    new_token bigint;
    left_us bigint;
    reason text;
    fresh boolean := false;
BEGIN
    IF p_slot IS NULL THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    SELECT * INTO e FROM incumbent.epoch;
    IF NOT FOUND THEN
        e := incumbent.begin_epoch();
    END IF;
    now := clock_timestamp();
    IF now < e.born + coalesce(p_wait, greatest(p_ttl, e.longest)) * us
        AND p_wait IS DISTINCT FROM 0
    THEN
        wait := coalesce(p_wait, greatest(p_ttl, e.longest));
        left_us := wait - date_part('epoch', now - e.born) * 1000000;
        RETURN 'wait ' || left_us || ' ' || (wait - left_us);
    END IF;

    LOOP
        SELECT * INTO r FROM incumbent.record WHERE key = p_key;
        IF NOT FOUND THEN
            PERFORM incumbent.remember(p_key);
            fresh := true;
            CONTINUE;
        END IF;
        now := clock_timestamp();
        -- One condition, and a simple one: each costs every take some microseconds.
        IF r.doubted > now OR now > timestamptz 'epoch' + p_until * us THEN
            IF now > timestamptz 'epoch' + p_until * us THEN
                RETURN 'late ' || p_claim;
            END IF;
            IF EXISTS (SELECT FROM incumbent.given_up
                WHERE key = p_key AND claim = p_claim AND until > now)
            THEN
                RETURN json_build_object('reason', 'given_up', 'seen', r.token || '.' || r.changes);
            END IF;
        END IF;

        IF r.expires > now AND r.claim = p_claim THEN
            UPDATE incumbent.record SET expires = greatest(expires, now + p_ttl * us)
                WHERE key = p_key AND claim = p_claim AND token = r.token
                    AND expires > clock_timestamp()
                RETURNING ceil(date_part('epoch', expires - now) * 1000000) INTO left_us;
            CONTINUE WHEN NOT FOUND;
            RETURN concat_ws(' ', 'granted', p_claim, r.token, greatest(p_ttl, left_us), e.id);
        END IF;

        IF r.expires > now OR r.switched OR p_slot IS NOT NULL THEN
            reason := incumbent.why_not(r, now, p_claim, p_holder, p_slot);
            IF reason IS NOT NULL THEN
                IF p_candidacy > 0 THEN
                    PERFORM incumbent.stand(p_key, p_holder, now, p_candidacy);
                END IF;
                RETURN reason;
            END IF;
        END IF;

        new_token := greatest(r.token + 1, (date_part('epoch', now) * 1000000)::bigint, e.floor);
        UPDATE incumbent.record SET
            token = new_token, claim = p_claim, holder = p_holder, meta = p_meta, ttl = p_ttl,
            since = now, expires = now + p_ttl * us, ended = NULL, reserved_for = '',
            grants = r.grants + 1, changes = r.changes + 1,
            forget_on = ((now + greatest(p_ttl, p_keep) * us) AT TIME ZONE 'UTC')::date + 2
        WHERE key = p_key AND changes = r.changes AND token = r.token AND expires = r.expires
            AND doubted = r.doubted;
        EXIT WHEN FOUND;
    END LOOP;
    -- It may have waited for the row's lock: then nothing of it is kept.
    IF clock_timestamp() > timestamptz 'epoch' + p_until * us THEN
        RAISE EXCEPTION 'the row was locked until nobody waited for the take any more'
            USING ERRCODE = 'lock_not_available';
    END IF;

    IF r.grants > 0 THEN
        INSERT INTO incumbent.history AS h (key, place, holder, token, started, ended)
            VALUES (p_key, r.grants % 19, r.holder, r.token, r.since, r.ended)
            ON CONFLICT (key, place) DO UPDATE SET holder = excluded.holder,
                token = excluded.token, started = excluded.started, ended = excluded.ended;
    END IF;
    IF r.switched THEN
        DELETE FROM incumbent.field WHERE key = p_key AND name = 'resign';
        UPDATE incumbent.record SET switched = false WHERE key = p_key;
    END IF;
    IF p_slot IS NOT NULL THEN
        INSERT INTO incumbent.slot (key, name, claim, token, holder, ttl, since, expires)
            VALUES (p_key, p_slot, p_claim, new_token, p_holder, p_ttl, now,
                now + p_slot_keep * us)
            ON CONFLICT (key, name) DO UPDATE SET claim = excluded.claim, token = excluded.token,
                holder = excluded.holder, ttl = excluded.ttl, since = excluded.since,
                expires = excluded.expires;
        DELETE FROM incumbent.slot WHERE key = p_key AND expires <= now;
    END IF;
    IF p_candidacy > 0 THEN
        DELETE FROM incumbent.candidate WHERE key = p_key AND holder = p_holder;
        PERFORM pg_notify('incumbent', p_key) FROM incumbent.record
            WHERE key = p_key AND (fresh OR waited > now);
    END IF;
    IF new_token % 256 = 0 THEN
        PERFORM incumbent.sweep();
    END IF;
    RETURN concat_ws(' ', 'granted', p_claim, new_token, p_ttl, e.id);
END $$;

-- As take(), for p_permits at once (0: any number). Two takes of one latch follow each other; whoever
-- finds no room at the first look does not wait for them.
CREATE OR REPLACE FUNCTION incumbent.share(
    p_key text, p_claim text, p_ttl bigint, p_holder text, p_meta bytea, p_keep bigint,
    p_wait bigint, p_permits integer, p_candidacy bigint, p_until bigint
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    r incumbent.record;
    s incumbent.sharer;
    now timestamptz;
    locked boolean := false;
    latched boolean;
    refusal text;
    answer text;
BEGIN
    LOOP
        SELECT * INTO r FROM incumbent.record WHERE key = p_key;
        IF NOT FOUND THEN
            PERFORM incumbent.remember(p_key);
            CONTINUE;
        END IF;
        now := clock_timestamp();
        latched := r.claim = '*' AND r.expires > now;
        SELECT * INTO s FROM incumbent.sharer
            WHERE latched AND key = p_key AND claim = p_claim AND expires > now;
        refusal := NULL;
        IF latched AND s.key IS NULL THEN
            refusal := incumbent.no_room(r, now, p_permits);
        ELSIF r.claim NOT IN ('', '*') AND r.expires > now THEN
            refusal := incumbent.why_not(r, now, p_claim, p_holder, NULL);
        END IF;
        EXIT WHEN locked OR refusal IS NOT NULL;
        PERFORM FROM incumbent.record WHERE key = p_key FOR UPDATE;
        locked := FOUND;
    END LOOP;
    latched := latched AND locked;  -- else it may be another one by now

    IF latched AND s.key IS NULL AND refusal IS NULL THEN
        -- For a take to look at: nobody else sees it so. A notice to those who share is not over.
        UPDATE incumbent.record SET claim = '', expires = '-infinity', switched = r.switched
            AND EXISTS (SELECT FROM incumbent.field WHERE key = p_key AND name = 'pause')
        WHERE key = p_key;
    END IF;
    answer := incumbent.take(p_key, p_claim, p_ttl, p_holder, p_meta, p_keep, p_wait, NULL, NULL,
        CASE WHEN s.key IS NULL THEN p_candidacy ELSE 0 END, p_until);
    IF answer LIKE 'granted %' THEN
        DELETE FROM incumbent.sharer
            WHERE key = p_key AND (NOT latched OR expires <= now OR claim = p_claim);
        INSERT INTO incumbent.sharer
            (key, claim, holder, token, ttl, meta, since, expires, permits)
            SELECT key, claim, holder, token, ttl, meta, since, expires, p_permits
            FROM incumbent.record WHERE key = p_key;
        UPDATE incumbent.record SET claim = '*',
            expires = CASE WHEN latched THEN greatest(expires, r.expires) ELSE expires END,
            ttl = CASE WHEN latched THEN greatest(ttl, r.ttl) ELSE ttl END,
            switched = CASE WHEN latched THEN r.switched ELSE switched END
        WHERE key = p_key;
        RETURN answer;
    END IF;
    IF latched AND s.key IS NULL AND refusal IS NULL THEN
        UPDATE incumbent.record
            SET claim = '*', expires = r.expires, switched = r.switched WHERE key = p_key;
    END IF;
    IF answer NOT LIKE '{"reason" : "held"%' THEN
        RETURN answer;
    ELSIF s.key IS NULL THEN
        -- As it was at the first look: what changed since is news to whoever waits.
        RETURN coalesce(refusal, answer);
    END IF;
    UPDATE incumbent.sharer
        SET expires = greatest(expires, now + p_ttl * interval '1 microsecond')
        WHERE key = p_key AND claim = p_claim RETURNING * INTO s;
    UPDATE incumbent.record SET expires = greatest(expires, s.expires) WHERE key = p_key;
    RETURN concat_ws(' ', 'granted', p_claim, s.token,
        greatest(p_ttl, ceil(date_part('epoch', s.expires - now) * 1000000)::bigint),
        (SELECT id FROM incumbent.epoch));
END $$;

-- Several takes in one transaction, each a json array of what take() is asked, without p_until. Answers
-- those up to the first that is not granted, as json. All records are locked before anything else, in
-- the order of their keys, as by renew(): two that want the same ones never wait for each other.
CREATE OR REPLACE FUNCTION incumbent.take_all(p_takes json, p_until bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    next_key text;
    t json;
    answer text;
    answers text[];
BEGIN
    FOR next_key IN
        SELECT value ->> 0 FROM json_array_elements(p_takes) ORDER BY (value ->> 0) COLLATE "C"
    LOOP
        LOOP
            PERFORM FROM incumbent.record WHERE key = next_key FOR UPDATE;
            EXIT WHEN FOUND;
            PERFORM incumbent.remember(next_key);
        END LOOP;
    END LOOP;
    FOR t IN SELECT value FROM json_array_elements(p_takes) LOOP
        answer := incumbent.take(t ->> 0, t ->> 1, (t ->> 2)::bigint, t ->> 3, (t ->> 4)::bytea,
            (t ->> 5)::bigint, (t ->> 6)::bigint, t ->> 7, (t ->> 8)::bigint, (t ->> 9)::bigint,
            p_until);
        IF answer LIKE 'late %' AND answers IS NOT NULL THEN
            RAISE EXCEPTION 'nobody waits for the takes any more'
                USING ERRCODE = 'lock_not_available';
        END IF;
        answers := answers || answer;
        EXIT WHEN answer NOT LIKE 'granted %';
    END LOOP;
    RETURN array_to_json(answers);
END $$;

-- Begin a record. Only after a statement that found none: a record that is forgotten meanwhile would
-- come back with a token from before.
CREATE OR REPLACE FUNCTION incumbent.remember(p_key text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO incumbent.record (key, token) SELECT p_key, highest FROM incumbent.forgotten
        ON CONFLICT DO NOTHING;
    IF NOT FOUND AND NOT EXISTS (SELECT FROM incumbent.forgotten) THEN
        RAISE EXCEPTION 'incumbent.forgotten has lost its row' USING ERRCODE = 'undefined_table';
    END IF;
END $$;

-- Why a record is not granted, as json, or null. A switched record that is granted has no pause.
CREATE OR REPLACE FUNCTION incumbent.why_not(
    r incumbent.record, p_now timestamptz, p_claim text, p_holder text, p_slot text
) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s incumbent.slot;
    seen CONSTANT text := r.token || '.' || r.changes;
    reason text;
BEGIN
    IF p_slot IS NOT NULL THEN
        SELECT * INTO s FROM incumbent.slot
            WHERE key = r.key AND name = p_slot AND expires > p_now AND claim <> p_claim;
    END IF;
    IF r.expires > p_now AND r.claim <> '' THEN
        reason := 'held';
    ELSIF s.key IS NOT NULL THEN
        reason := 'used';
        r.claim := s.claim; r.token := s.token; r.holder := s.holder; r.ttl := s.ttl;
        r.since := s.since; r.expires := s.expires; r.meta := '';
    ELSIF r.switched AND EXISTS (
        SELECT FROM incumbent.field WHERE key = r.key AND name = 'pause'
    ) THEN
        reason := 'paused';
    ELSIF r.expires > p_now AND r.reserved_for = '' THEN
        reason := 'closed';
    ELSIF r.expires > p_now AND r.reserved_for <> p_holder THEN
        reason := 'reserved';
    END IF;
    IF reason IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN json_build_object('reason', reason, 'seen', seen,
        'holding', incumbent.holding(r, p_now), 'reserved_for', r.reserved_for,
        'sharers', CASE WHEN r.claim = '*' THEN incumbent.sharers(r, p_now) END);
END $$;

-- Why nobody else can share a latch with p_permits, as json, or null.
CREATE OR REPLACE FUNCTION incumbent.no_room(
    r incumbent.record, p_now timestamptz, p_permits integer
) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    used integer;
    is_full boolean;
    in_the_way json;
BEGIN
    -- In one statement, at one instant: a sharer that was counted may be gone at the next one.
    SELECT c.used, c.is_full, CASE WHEN c.is_full THEN incumbent.sharers(r, p_now) END
    INTO used, is_full, in_the_way
    FROM (
        SELECT max(permits) AS used,
            max(permits) <> p_permits OR count(*) >= nullif(p_permits, 0) AS is_full
        FROM incumbent.sharer WHERE key = r.key AND expires > p_now
    ) c;
    IF is_full IS NOT TRUE THEN
        RETURN NULL;
    END IF;
    RETURN json_build_object(
        'reason', CASE WHEN used = p_permits THEN 'no_room' ELSE 'permits' END,
        'seen', r.token || '.' || r.changes, 'permits', used, 'sharers', in_the_way);
END $$;

CREATE OR REPLACE FUNCTION incumbent.stand(
    p_key text, p_holder text, p_now timestamptz, p_candidacy bigint
) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO incumbent.candidate (key, holder, expires)
        VALUES (p_key, p_holder, p_now + p_candidacy * interval '1 microsecond')
        ON CONFLICT (key, holder) DO UPDATE SET expires = excluded.expires;
    -- Whoever stands by at the same time may do it too: nobody waits for another here.
    DELETE FROM incumbent.candidate d WHERE d.key = p_key AND d.holder IN (
        SELECT c.holder FROM incumbent.candidate c
        WHERE c.key = p_key AND (c.expires <= p_now OR c.holder IN (
            SELECT o.holder FROM incumbent.candidate o WHERE o.key = p_key AND o.expires > p_now
            ORDER BY o.expires DESC, o.holder DESC OFFSET 100))
        FOR UPDATE SKIP LOCKED);
END $$;

-- Looks at some records whose time is over, as many as it meets unlocked, and forgets those of which
-- nothing is left but the highest token. Answers how many these were.
CREATE OR REPLACE FUNCTION incumbent.sweep() RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now CONSTANT timestamptz := clock_timestamp();
    today CONSTANT date := (now AT TIME ZONE 'UTC')::date;
    old text[];
BEGIN
    -- One at a time: another sweep leaves it to this one.
    PERFORM FROM incumbent.forgotten FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    DELETE FROM incumbent.given_up WHERE (key, claim) IN (
        SELECT key, claim FROM incumbent.given_up WHERE until <= now
        LIMIT 256 FOR UPDATE SKIP LOCKED);
    SELECT array_agg(o.key) INTO old FROM (
        SELECT key FROM incumbent.record WHERE forget_on < today
        ORDER BY forget_on LIMIT 64 FOR UPDATE SKIP LOCKED
    ) o;
    IF old IS NULL THEN
        RETURN 0;
    END IF;
    -- A record that is still needed is looked at again later, or it would be in the way of the rest.
    UPDATE incumbent.record r SET forget_on = today + 7
    WHERE r.key = ANY (old) AND (r.expires > now OR r.doubted > now
        OR EXISTS (SELECT FROM incumbent.field f WHERE f.key = r.key)
        OR EXISTS (SELECT FROM incumbent.slot s WHERE s.key = r.key AND s.expires > now));
    SELECT array_agg(key) INTO old FROM incumbent.record
        WHERE key = ANY (old) AND forget_on < today;
    DELETE FROM incumbent.slot WHERE key = ANY (old);
    DELETE FROM incumbent.history WHERE key = ANY (old);
    DELETE FROM incumbent.sharer WHERE key = ANY (old);
    DELETE FROM incumbent.candidate WHERE key IN (
        SELECT c.key FROM incumbent.candidate c WHERE c.key = ANY (old) FOR UPDATE SKIP LOCKED);
    DELETE FROM incumbent.fence WHERE key IN (
        SELECT f.key FROM incumbent.fence f WHERE f.key = ANY (old) FOR UPDATE SKIP LOCKED);
    WITH gone AS (DELETE FROM incumbent.record WHERE key = ANY (old) RETURNING token)
    UPDATE incumbent.forgotten SET highest = greatest(highest, (SELECT max(token) FROM gone));
    RETURN coalesce(cardinality(old), 0);
END $$;

-- Answers the first claim, and as json [[1, pause, resign], ...] which renewals were done, with the
-- switches that their holders have to know; null if they are of an earlier epoch.
CREATE OR REPLACE FUNCTION incumbent.renew(
    p_epoch text, p_keys text[], p_claims text[], p_tokens bigint[], p_ttls bigint[], p_metas bytea[]
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    now timestamptz;
    answer json;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM FROM incumbent.epoch WHERE id = p_epoch;
    IF NOT FOUND THEN
        RETURN p_claims[1] || ' null';
    END IF;
    -- In the order of the keys, so that two batches never wait for each other.
    PERFORM FROM incumbent.record WHERE key = ANY (p_keys) ORDER BY key FOR UPDATE;
    now := clock_timestamp();
    WITH asked AS (
        SELECT * FROM unnest(p_keys, p_claims, p_tokens, p_ttls, p_metas)
            WITH ORDINALITY AS a (key, claim, token, ttl, meta, which)
    ), done AS (
        UPDATE incumbent.record r SET
            expires = greatest(r.expires, now + a.ttl * interval '1 microsecond'),
            meta = coalesce(a.meta, r.meta),
            changes = r.changes + (a.meta IS DISTINCT FROM r.meta AND a.meta IS NOT NULL)::int
        FROM asked a
        WHERE r.key = a.key AND r.claim = a.claim AND r.token = a.token AND r.expires > now
        RETURNING r.key, r.claim, r.token, r.switched
    ), notified AS (
        SELECT pg_notify('incumbent', r.key) FROM incumbent.record r JOIN asked a USING (key)
        WHERE r.claim = a.claim AND r.token = a.token AND r.expires > now
            AND r.waited > now AND a.meta IS NOT NULL AND a.meta <> r.meta
    )
    SELECT json_agg(CASE WHEN d.switched THEN json_build_array(a.which,
            (SELECT encode(f.value, 'hex') FROM incumbent.field f
                WHERE f.key = d.key AND f.name = 'pause'),
            (SELECT encode(f.value, 'hex') FROM incumbent.field f
                WHERE f.key = d.key AND f.name = 'resign'))
        ELSE json_build_array(a.which, NULL, NULL) END) INTO answer
    FROM asked a JOIN done d USING (key, claim, token)
    WHERE (SELECT count(*) FROM notified) IS NOT NULL;
    RETURN p_claims[1] || ' ' || coalesce(answer::text, '[]');
END $$;

-- As renew(), for those who share.
CREATE OR REPLACE FUNCTION incumbent.share_renew(
    p_epoch text, p_keys text[], p_claims text[], p_tokens bigint[], p_ttls bigint[], p_metas bytea[]
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    now timestamptz;
    answer json;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM FROM incumbent.epoch WHERE id = p_epoch;
    IF NOT FOUND THEN
        RETURN p_claims[1] || ' null';
    END IF;
    PERFORM FROM incumbent.record WHERE key = ANY (p_keys) ORDER BY key FOR UPDATE;
    now := clock_timestamp();
    WITH asked AS (
        SELECT * FROM unnest(p_keys, p_claims, p_tokens, p_ttls, p_metas)
            WITH ORDINALITY AS a (key, claim, token, ttl, meta, which)
    ), done AS (
        UPDATE incumbent.sharer s SET
            expires = greatest(s.expires, now + a.ttl * interval '1 microsecond'),
            meta = coalesce(a.meta, s.meta)
        FROM asked a JOIN incumbent.record r ON r.key = a.key
            JOIN incumbent.sharer o ON o.key = a.key AND o.claim = a.claim
        WHERE s.key = a.key AND s.claim = a.claim AND s.token = a.token AND s.expires > now
            AND r.claim = '*'
        RETURNING a.which, s.key, s.expires, r.switched,
            (a.meta IS NOT NULL AND a.meta <> o.meta)::int AS changed
    ), latch AS (
        UPDATE incumbent.record r
        SET expires = greatest(r.expires, d.last), changes = r.changes + d.changed
        FROM (SELECT key, max(expires) AS last, sum(changed) AS changed FROM done GROUP BY key) d
        WHERE r.key = d.key
        RETURNING r.key, d.changed > 0 AND r.waited > now AS notifies
    ), notified AS (
        SELECT pg_notify('incumbent', key) FROM latch WHERE notifies
    )
    SELECT json_agg(json_build_array(d.which,
            (SELECT encode(f.value, 'hex') FROM incumbent.field f
                WHERE d.switched AND f.key = d.key AND f.name = 'pause'),
            (SELECT encode(f.value, 'hex') FROM incumbent.field f
                WHERE d.switched AND f.key = d.key AND f.name = 'resign'))) INTO answer
    FROM done d
    WHERE (SELECT count(*) FROM notified) IS NOT NULL;
    RETURN p_claims[1] || ' ' || coalesce(answer::text, '[]');
END $$;

-- As give(), for one who shares. With the last of them the latch goes.
CREATE OR REPLACE FUNCTION incumbent.share_give(p_key text, p_claim text, p_token bigint)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    now timestamptz;
    given bigint;
    last timestamptz;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    IF p_token IS NULL THEN
        PERFORM incumbent.give_up(p_key, p_claim);
    END IF;
    -- The record's lock first, as everywhere.
    PERFORM FROM incumbent.record WHERE key = p_key AND claim = '*' FOR UPDATE;
    now := clock_timestamp();
    DELETE FROM incumbent.sharer
        WHERE FOUND AND key = p_key AND claim = p_claim AND (p_token IS NULL OR token = p_token)
            AND expires > now
        RETURNING token INTO given;
    IF given IS NULL THEN
        RETURN 'gone ' || p_claim;
    END IF;
    SELECT max(expires) INTO last FROM incumbent.sharer WHERE key = p_key AND expires > now;
    UPDATE incumbent.record SET
        claim = CASE WHEN last IS NULL THEN '' ELSE '*' END, expires = coalesce(last, '-infinity'),
        ended = CASE WHEN token = given THEN now ELSE ended END, changes = changes + 1
    WHERE key = p_key;
    UPDATE incumbent.history SET ended = now WHERE key = p_key AND token = given;
    PERFORM pg_notify('incumbent', p_key) FROM incumbent.record WHERE key = p_key AND waited > now;
    RETURN 'released ' || p_claim;
END $$;

CREATE OR REPLACE FUNCTION incumbent.give(
    p_key text, p_claim text, p_token bigint, p_closed_for bigint, p_reserve_for text, p_slot text
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    freed boolean := false;
    awaited boolean;
    given boolean;
BEGIN
    IF p_closed_for = 0 AND p_slot IS NULL THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    IF p_slot IS NOT NULL THEN
        -- The record's lock first, as everywhere.
        PERFORM FROM incumbent.record WHERE key = p_key FOR UPDATE;
        DELETE FROM incumbent.slot WHERE key = p_key AND name = p_slot AND claim = p_claim;
        IF FOUND THEN
            UPDATE incumbent.record SET changes = changes + 1 WHERE key = p_key
                RETURNING waited > clock_timestamp() INTO freed;
        END IF;
    END IF;
    IF p_token IS NULL THEN
        PERFORM incumbent.give_up(p_key, p_claim);
    END IF;
    UPDATE incumbent.record SET
        claim = '', ended = clock_timestamp(), changes = changes + 1,
        reserved_for = CASE WHEN p_closed_for > 0 THEN coalesce(p_reserve_for, '') ELSE '' END,
        expires = CASE WHEN p_closed_for > 0
            THEN clock_timestamp() + p_closed_for * interval '1 microsecond'
            ELSE '-infinity' END
    WHERE key = p_key AND claim = p_claim AND (p_token IS NULL OR token = p_token)
        AND expires > clock_timestamp()
    RETURNING waited > clock_timestamp() INTO awaited;
    given := FOUND;
    IF awaited OR freed THEN
        PERFORM pg_notify('incumbent', p_key);
    END IF;
    RETURN CASE WHEN given THEN 'released ' ELSE 'gone ' END || p_claim;
END $$;

-- Several releases in one transaction; answers what give() does, as json.
CREATE OR REPLACE FUNCTION incumbent.give_all(p_keys text[], p_claims text[], p_tokens bigint[])
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
BEGIN
    PERFORM FROM incumbent.record WHERE key = ANY (p_keys) ORDER BY key FOR UPDATE;
    RETURN (SELECT json_agg(incumbent.give(key, claim, token, 0, NULL, NULL) ORDER BY place)
        FROM unnest(p_keys, p_claims, p_tokens)
            WITH ORDINALITY AS g (key, claim, token, place));
END $$;

-- Nobody knows whether the claim was granted: for an hour, after which each of its connections is
-- dead, a take of it is refused.
CREATE OR REPLACE FUNCTION incumbent.give_up(p_key text, p_claim text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    life CONSTANT interval := interval '1 hour';
BEGIN
    LOOP
        -- The record's lock first, as everywhere. It always changes: a take that looked looks again.
        UPDATE incumbent.record
            SET doubted = greatest(doubted + interval '1 microsecond', clock_timestamp() + life)
            WHERE key = p_key;
        EXIT WHEN FOUND;
        PERFORM incumbent.remember(p_key);
    END LOOP;
    INSERT INTO incumbent.given_up (key, claim, until)
        VALUES (p_key, p_claim, clock_timestamp() + life)
        ON CONFLICT (key, claim) DO UPDATE SET until = excluded.until;
END $$;

-- p_guard is 'none', 'absent', 'version' or 'claim'. Answers the version (0: removed; -1: the guard
-- did not hold). It waits for the disk as the database is set to.
CREATE OR REPLACE FUNCTION incumbent.put(
    p_key text, p_name text, p_value bytea, p_guard text, p_number bigint, p_claim text
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    r incumbent.record;
    old bigint;
    now timestamptz;
    next_version bigint := 0;
    fresh boolean := false;
BEGIN
    SELECT * INTO r FROM incumbent.record WHERE key = p_key FOR UPDATE;
    IF NOT FOUND THEN
        IF p_guard IN ('version', 'claim') THEN
            RETURN '-1';
        ELSIF p_value IS NULL THEN
            RETURN '0';
        END IF;
        LOOP
            PERFORM incumbent.remember(p_key);
            SELECT * INTO r FROM incumbent.record WHERE key = p_key FOR UPDATE;
            EXIT WHEN FOUND;
        END LOOP;
        fresh := true;
    END IF;
    now := clock_timestamp();
    SELECT version INTO old FROM incumbent.field WHERE key = p_key AND name = p_name;
    IF (p_guard = 'absent' AND old IS NOT NULL)
        OR (p_guard = 'version' AND old IS DISTINCT FROM p_number)
        OR (p_guard = 'claim' AND NOT (
            r.claim = p_claim AND r.token = p_number AND r.expires > now))
    THEN
        RETURN '-1';
    END IF;
    IF p_value IS NULL THEN
        DELETE FROM incumbent.field WHERE key = p_key AND name = p_name;
    ELSE
        -- Not below the clock, so that none comes back after the record was forgotten or lost.
        next_version := greatest(r.field_version + 1, (date_part('epoch', now) * 1000000)::bigint,
            (SELECT highest FROM incumbent.forgotten));
        INSERT INTO incumbent.field (key, name, value, version)
            VALUES (p_key, p_name, p_value, next_version)
            ON CONFLICT (key, name) DO UPDATE SET value = excluded.value, version = excluded.version;
    END IF;
    UPDATE incumbent.record SET
        changes = changes + 1,
        field_version = greatest(field_version, next_version),
        forget_on = greatest(forget_on, (now AT TIME ZONE 'UTC')::date + 2),
        switched = EXISTS (SELECT FROM incumbent.field
            WHERE key = p_key AND name IN ('pause', 'resign'))
    WHERE key = p_key;
    IF fresh OR r.waited > now THEN
        PERFORM pg_notify('incumbent', p_key);
    END IF;
    RETURN next_version::text;
END $$;

-- Whether the record is as p_seen says. Whoever changes it in the next p_wait us notifies.
CREATE OR REPLACE FUNCTION incumbent.changed(p_key text, p_seen text, p_wait bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
    now timestamptz := clock_timestamp();
    seen text;
BEGIN
    IF p_wait > 0 THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        -- For longer than asked, so that many waiters write it once.
        UPDATE incumbent.record SET waited = now + 2 * p_wait * interval '1 microsecond'
            WHERE key = p_key AND waited < now + p_wait * interval '1 microsecond';
    END IF;
    SELECT token || '.' || changes INTO seen FROM incumbent.record WHERE key = p_key;
    RETURN CASE WHEN coalesce(seen, '') = p_seen THEN 'same' ELSE 'changed' END;
END $$;

CREATE OR REPLACE FUNCTION incumbent.holding(r incumbent.record, p_now timestamptz) RETURNS json
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT json_build_object('holder', r.holder, 'token', r.token, 'claim', r.claim,
        'ttl', r.ttl, 'meta', encode(r.meta, 'hex'), 'for', date_part('epoch', p_now - r.since),
        'left', CASE WHEN r.expires > p_now THEN date_part('epoch', r.expires - p_now) ELSE 0 END)
$$;

CREATE OR REPLACE FUNCTION incumbent.sharers(r incumbent.record, p_now timestamptz) RETURNS json
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT json_agg(json_build_object('holder', s.holder, 'token', s.token, 'claim', s.claim,
        'ttl', s.ttl, 'meta', encode(s.meta, 'hex'), 'for', date_part('epoch', p_now - s.since),
        'left', date_part('epoch', s.expires - p_now), 'permits', s.permits) ORDER BY s.token)
    FROM incumbent.sharer s WHERE s.key = r.key AND s.expires > p_now AND r.expires > p_now
$$;

CREATE OR REPLACE FUNCTION incumbent.shown(r incumbent.record, p_now timestamptz) RETURNS json
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT json_build_object('key', r.key, 'seen', r.token || '.' || r.changes,
        'reserved_for', r.reserved_for, 'holding', incumbent.holding(r, p_now),
        'sharers', CASE WHEN r.claim = '*' THEN incumbent.sharers(r, p_now) END,
        'fields', (SELECT json_agg(json_build_array(f.name, encode(f.value, 'hex'), f.version))
            FROM incumbent.field f WHERE f.key = r.key),
        'slots', (SELECT json_agg(json_build_array(s.name, date_part('epoch', s.expires - p_now)))
            FROM incumbent.slot s WHERE s.key = r.key AND s.expires > p_now),
        'candidates', (SELECT json_agg(json_build_array(c.holder,
                date_part('epoch', c.expires - p_now)) ORDER BY c.holder)
            FROM incumbent.candidate c WHERE c.key = r.key AND c.expires > p_now),
        'history', (SELECT json_agg(json_build_array(h.holder, h.token,
                date_part('epoch', h.started), date_part('epoch', h.ended)) ORDER BY h.token)
            FROM (SELECT holder, token, started, ended FROM incumbent.history WHERE key = r.key
                UNION ALL SELECT r.holder, r.token, r.since, r.ended WHERE r.grants > 0) h))
$$;

-- For people: one record, or nothing.
CREATE OR REPLACE FUNCTION incumbent.read(p_key text) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT incumbent.shown(r, clock_timestamp())::text FROM incumbent.record r WHERE r.key = p_key
$$;

-- For people: at most p_count records whose key begins so, after p_after.
CREATE OR REPLACE FUNCTION incumbent.scan(p_prefix text, p_after text, p_count integer) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(json_agg(incumbent.shown(s.r, clock_timestamp()))::text, '[]') FROM (
        SELECT r FROM incumbent.record r
        WHERE r.key > p_after AND r.key >= p_prefix AND starts_with(r.key, p_prefix)
            AND r.key < p_prefix || chr(127)
        ORDER BY r.key LIMIT p_count) s
$$;

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

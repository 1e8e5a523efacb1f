"""The tables in PostgreSQL: numbered steps, each of which runs once, under a lock that other Gateways wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openclaw.storage.base import StorageRefused

if TYPE_CHECKING:
    from openclaw.storage.postgres.database import Connection

STEPS: tuple[str, ...] = (
    """
CREATE TABLE sessions (
  agent_id text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  entry bytea NOT NULL,
  version bigint NOT NULL DEFAULT 1,
  updated_at bigint NOT NULL,
  session_id text COLLATE "C",
  label text COLLATE "C",
  spawned_by text COLLATE "C",
  session_ids text[] NOT NULL,
  words text NOT NULL,
  is_alias boolean NOT NULL,
  PRIMARY KEY (agent_id, key)
) WITH (fillfactor = 70);
CREATE INDEX sessions_recent ON sessions (updated_at DESC, key, agent_id);
CREATE INDEX sessions_of_agent ON sessions (agent_id, updated_at DESC, key);
CREATE INDEX sessions_key ON sessions (key);
CREATE INDEX sessions_label ON sessions (label) WHERE label IS NOT NULL;
CREATE INDEX sessions_spawned ON sessions (spawned_by) WHERE spawned_by IS NOT NULL;
CREATE INDEX sessions_ids ON sessions USING gin (session_ids);
CREATE TABLE transcripts (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  agent_id text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  session_id text COLLATE "C" NOT NULL,
  last_seq bigint NOT NULL,
  created_at bigint NOT NULL,
  updated_at bigint NOT NULL,
  UNIQUE (agent_id, name)
) WITH (fillfactor = 70);
CREATE TABLE entries (
  transcript_id bigint NOT NULL,
  seq bigint NOT NULL,
  id text COLLATE "C",
  parent_id text COLLATE "C",
  type text COLLATE "C" NOT NULL,
  body bytea NOT NULL,
  PRIMARY KEY (transcript_id, seq)
);
CREATE TABLE messages (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  run_id text COLLATE "C" NOT NULL UNIQUE,
  dedupe_key text COLLATE "C" NOT NULL,
  agent_id text COLLATE "C" NOT NULL,
  session_key text COLLATE "C" NOT NULL,
  session_id text COLLATE "C" NOT NULL,
  source text NOT NULL,
  route bytea NOT NULL,
  body bytea NOT NULL,
  state text COLLATE "C" NOT NULL,
  code text NOT NULL DEFAULT '',
  detail text NOT NULL DEFAULT '',
  attempts integer NOT NULL DEFAULT 0,
  accepted_at bigint NOT NULL,
  started_at bigint,
  ended_at bigint,
  result bytea
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX messages_dedupe ON messages (dedupe_key) WHERE dedupe_key <> '';
CREATE INDEX messages_unfinished ON messages (id) WHERE ended_at IS NULL;
CREATE INDEX messages_session ON messages (session_key, id);
CREATE INDEX messages_ended ON messages (ended_at) WHERE ended_at IS NOT NULL;
CREATE TABLE story (
  ledger_id bigint NOT NULL,
  step integer NOT NULL,
  at bigint NOT NULL,
  state text NOT NULL,
  code text NOT NULL DEFAULT '',
  detail text NOT NULL DEFAULT '',
  PRIMARY KEY (ledger_id, step)
);
CREATE FUNCTION tell_accepted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO story (ledger_id, step, at, state) VALUES (NEW.id, 1, NEW.accepted_at, 'accepted');
  IF NEW.state <> 'accepted' THEN
    INSERT INTO story (ledger_id, step, at, state, code, detail)
    VALUES (NEW.id, 2, NEW.accepted_at, NEW.state, NEW.code, NEW.detail);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER accepted AFTER INSERT ON messages FOR EACH ROW EXECUTE FUNCTION tell_accepted();
CREATE FUNCTION tell_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO story (ledger_id, step, at, state, code, detail)
  SELECT NEW.id, coalesce(max(step), 0) + 1, NEW.ended_at, NEW.state, NEW.code, NEW.detail
  FROM story WHERE ledger_id = NEW.id;
  RETURN NULL;
END $$;
CREATE TRIGGER ended AFTER UPDATE OF ended_at ON messages FOR EACH ROW
WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL) EXECUTE FUNCTION tell_ended();
CREATE TABLE tool_calls (
  step bigint GENERATED ALWAYS AS IDENTITY,
  ledger_id bigint NOT NULL,
  call_id text COLLATE "C" NOT NULL,
  name text NOT NULL,
  arguments text NOT NULL,
  started_at bigint NOT NULL,
  finished_at bigint,
  ok boolean,
  PRIMARY KEY (ledger_id, call_id)
);
CREATE TABLE outbox (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  ledger_id bigint NOT NULL,
  run_id text COLLATE "C" NOT NULL,
  part integer NOT NULL,
  channel text COLLATE "C" NOT NULL,
  route bytea NOT NULL,
  payload bytea NOT NULL,
  state text COLLATE "C" NOT NULL,
  attempts integer NOT NULL DEFAULT 0,
  next_at bigint NOT NULL DEFAULT 0,
  created_at bigint NOT NULL,
  error text NOT NULL DEFAULT '',
  doubts integer NOT NULL DEFAULT 0,
  code text NOT NULL DEFAULT '',
  message_id text NOT NULL DEFAULT '',
  UNIQUE (ledger_id, part)
);
CREATE INDEX outbox_pending ON outbox (next_at, id) WHERE state = 'pending';
CREATE TABLE seen (
  step bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key text COLLATE "C" NOT NULL UNIQUE,
  at bigint NOT NULL
);
CREATE INDEX seen_at ON seen (at);
CREATE TABLE held (
  step bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key text COLLATE "C" NOT NULL UNIQUE,
  message bytea NOT NULL,
  attempts integer NOT NULL DEFAULT 0
);
CREATE TABLE turned_away (
  step bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  message_id text COLLATE "C" NOT NULL,
  channel text COLLATE "C" NOT NULL,
  chat text COLLATE "C" NOT NULL,
  sender text NOT NULL,
  code text NOT NULL,
  detail text NOT NULL,
  count integer NOT NULL,
  first_at bigint NOT NULL,
  last_at bigint NOT NULL,
  UNIQUE (message_id, channel, chat, code)
);
CREATE TABLE jobs (
  step bigint GENERATED ALWAYS AS IDENTITY,
  id text COLLATE "C" PRIMARY KEY,
  kind text COLLATE "C" NOT NULL,
  owner_key text COLLATE "C" NOT NULL,
  run_id text COLLATE "C" NOT NULL,
  trace text COLLATE "C" NOT NULL,
  state bytea NOT NULL,
  created_at bigint NOT NULL,
  ended_at bigint
);
CREATE INDEX jobs_owner ON jobs (owner_key);
CREATE INDEX jobs_run ON jobs (run_id);
CREATE INDEX jobs_trace ON jobs (trace);
CREATE INDEX jobs_open ON jobs (created_at) WHERE ended_at IS NULL;
CREATE TABLE blobs (
  digest text COLLATE "C" PRIMARY KEY,
  data bytea NOT NULL
);
""",
    """
CREATE TABLE nodes (
  id text COLLATE "C" PRIMARY KEY,
  url text NOT NULL,
  fingerprint text NOT NULL DEFAULT '',
  host text NOT NULL,
  pid integer NOT NULL,
  version text NOT NULL,
  state text COLLATE "C" NOT NULL,
  started_at timestamptz NOT NULL DEFAULT now(),
  lease_until timestamptz NOT NULL,
  ended_at timestamptz,
  load bytea NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);
CREATE SEQUENCE claim_epochs;
CREATE TABLE claims (
  name text COLLATE "C" PRIMARY KEY,
  node text COLLATE "C" NOT NULL,
  epoch bigint NOT NULL DEFAULT nextval('claim_epochs')
);
CREATE INDEX claims_node ON claims (node);
CREATE TABLE documents (
  name text COLLATE "C" PRIMARY KEY,
  version bigint NOT NULL DEFAULT 1,
  data bytea NOT NULL,
  updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE secrets (
  name text COLLATE "C" PRIMARY KEY,
  value text NOT NULL
);
INSERT INTO secrets VALUES
  ('links', replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''));
DROP INDEX messages_unfinished;
CREATE INDEX messages_open ON messages (session_key, id) WHERE ended_at IS NULL;
CREATE FUNCTION fence() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  writer text := current_setting('openclaw.node', true);
BEGIN
  IF writer <> '' THEN
    -- The takeover of the node takes this lock alone. So either it waits for this transaction, or this one sees it.
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('openclaw-write/' || writer, 0));
    PERFORM 1 FROM nodes WHERE id = writer AND state IN ('alive', 'draining');
    IF NOT FOUND THEN
      RAISE EXCEPTION 'the node % no longer counts', writer USING ERRCODE = 'OC001';
    END IF;
  END IF;
  RETURN NULL;
END $$;
DO $$
DECLARE
  written text;
BEGIN
  FOREACH written IN ARRAY ARRAY['sessions', 'transcripts', 'entries', 'messages', 'story', 'tool_calls', 'outbox',
    'seen', 'held', 'turned_away', 'jobs', 'blobs', 'claims', 'documents']
  LOOP
    EXECUTE format('CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON %I FOR EACH STATEMENT '
      'EXECUTE FUNCTION fence()', written);
  END LOOP;
END $$;
""",
    """
CREATE OR REPLACE FUNCTION fence() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  writer text := current_setting('openclaw.node', true);
BEGIN
  -- The lock is held until the transaction ends, so one look is enough for all its writes.
  IF writer <> '' AND current_setting('openclaw.counts', true) IS DISTINCT FROM 'yes' THEN
    -- The takeover of the node takes this lock alone. So either it waits for this transaction, or this one sees it.
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('openclaw-write/' || writer, 0));
    PERFORM 1 FROM nodes WHERE id = writer AND state IN ('alive', 'draining');
    IF NOT FOUND THEN
      RAISE EXCEPTION 'the node % no longer counts', writer USING ERRCODE = 'OC001';
    END IF;
    PERFORM set_config('openclaw.counts', 'yes', true);
  END IF;
  RETURN NULL;
END $$;
CREATE FUNCTION must_hold(wanted text, is_held boolean) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF NOT is_held THEN
    RAISE EXCEPTION '%', wanted USING ERRCODE = 'OC002';
  END IF;
  RETURN true;
END $$;
CREATE FUNCTION hold_message(ledger_id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  wanted text := (SELECT 'session:' || agent_id || ':' || session_key FROM messages WHERE id = ledger_id);
BEGIN
  PERFORM 1 FROM claims WHERE name = wanted AND node = current_setting('openclaw.node', true) FOR KEY SHARE;
  RETURN must_hold(wanted, wanted IS NULL OR FOUND);
END $$;
""",
)
"""A step is never changed once it was released. ``schema_version`` holds how many have run."""


async def migrate(connection: Connection, schema: str) -> int:
    """Makes the schema and runs the steps that are missing. Returns how many ran."""
    # The names of the steps below are looked up in the schema, so it is the only one on the path.
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('openclaw-migrate/' || $1, 0))", schema)
        quoted = '"' + schema.replace('"', '""') + '"'
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted}")
        await connection.execute(f"SET LOCAL search_path = {quoted}")
        await connection.execute("CREATE TABLE IF NOT EXISTS schema_version (steps integer NOT NULL)")
        done = await connection.fetchval("SELECT steps FROM schema_version")
        if done is None:
            await connection.execute("INSERT INTO schema_version VALUES (0)")
            done = 0
        if done > len(STEPS):
            raise StorageRefused(
                f"the schema {schema} was made by a newer version ({done} steps, known {len(STEPS)}); "
                "upgrade this program or use another schema"
            )
        for step in STEPS[done:]:
            await connection.execute(step)
        await connection.execute("UPDATE schema_version SET steps = $1", len(STEPS))
        return len(STEPS) - done

CREATE SCHEMA idempotency_gateway;
CREATE FUNCTION idempotency_gateway.add_partition(drop_day integer) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    day_table text := format('idempotency_gateway.response_%s', drop_day);
BEGIN
    IF to_regclass(day_table) IS NULL THEN
        EXECUTE format('CREATE TABLE %s (LIKE idempotency_gateway.response INCLUDING ALL)', day_table);
    END IF;
    EXECUTE format('ALTER TABLE idempotency_gateway.response ATTACH PARTITION %s FOR VALUES IN (%s)', day_table, drop_day);
END
$$;
CREATE FUNCTION idempotency_gateway.drop_day(now_us bigint, replay_us bigint) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    SELECT (((now_us + replay_us) / 86400000000 + coarseness) / coarseness * coarseness)::integer
    FROM (SELECT CASE
        WHEN replay_us <= 10 * 86400000000 THEN 1
        WHEN replay_us <= 70 * 86400000000 THEN 7
        WHEN replay_us <= 728 * 86400000000 THEN 28
        WHEN replay_us <= 3640 * 86400000000 THEN 364
        ELSE 36400
    END AS coarseness) steps
$$;
CREATE FUNCTION idempotency_gateway.drop_partition(drop_day integer) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    EXECUTE format('DROP TABLE idempotency_gateway.response_%s', drop_day);
END
$$;
CREATE TABLE idempotency_gateway.audit (
    operation_id uuid NOT NULL,
    entry bigint NOT NULL,
    at_us bigint NOT NULL,
    keep_until_us bigint NOT NULL,
    token bigint NOT NULL,
    event text NOT NULL,
    who text NOT NULL,
    why text NOT NULL,
    sealed_by text GENERATED ALWAYS AS (
CASE
    WHEN ("left"(why, 1) = ''::text) THEN split_part(substr(why, 2), ':'::text, 1)
    ELSE NULL::text
END) STORED
);
ALTER TABLE idempotency_gateway.audit ALTER COLUMN entry ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME idempotency_gateway.audit_entry_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE idempotency_gateway.content (
    digest bytea NOT NULL,
    operation_id uuid NOT NULL,
    until_us bigint NOT NULL,
    check_us bigint NOT NULL,
    fingerprint bytea NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_insert_scale_factor='0.1', autovacuum_analyze_scale_factor='0.05');
CREATE TABLE idempotency_gateway.delivery (
    operation_id uuid NOT NULL,
    acceptance_id uuid NOT NULL,
    accepted_us bigint NOT NULL,
    since_us bigint NOT NULL,
    next_attempt_us bigint NOT NULL,
    deliver_until_us bigint NOT NULL,
    credited_us bigint DEFAULT 0 NOT NULL,
    request_bytes integer NOT NULL,
    answers integer NOT NULL,
    lane_number bigint DEFAULT 0 NOT NULL,
    lane_rank bigint,
    stopped_us bigint,
    stops_lane boolean DEFAULT true NOT NULL,
    is_behind boolean DEFAULT false NOT NULL,
    lane bytea,
    waits text,
    service text NOT NULL,
    operation text NOT NULL,
    route text NOT NULL,
    scope_digest bytea NOT NULL,
    failure text,
    reason text
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_insert_scale_factor='0.1', autovacuum_analyze_scale_factor='0.05');
CREATE TABLE idempotency_gateway.epoch (
    only_row boolean DEFAULT true NOT NULL,
    identity uuid NOT NULL,
    timeline text NOT NULL,
    memo bytea NOT NULL,
    generation text DEFAULT ''::text NOT NULL,
    level smallint DEFAULT 1 NOT NULL,
    CONSTRAINT epoch_only_row_check CHECK (only_row)
);
CREATE TABLE idempotency_gateway.event (
    at_us bigint NOT NULL,
    since_us bigint NOT NULL,
    due_us bigint NOT NULL,
    lease_until_us bigint DEFAULT 0 NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    redeliveries integer DEFAULT 0 NOT NULL,
    is_dead boolean DEFAULT false NOT NULL,
    service text NOT NULL,
    sink text NOT NULL,
    event_id text NOT NULL,
    type text NOT NULL,
    why text DEFAULT ''::text NOT NULL,
    content bytea NOT NULL,
    response bytea,
    line bytea,
    place bigint,
    is_behind boolean DEFAULT false NOT NULL,
    sealed_by text GENERATED ALWAYS AS (
CASE
    WHEN (substr(response, 1, 1) = '\x01'::bytea) THEN split_part(encode(substr(response, 2, 65), 'escape'::text), ':'::text, 1)
    ELSE NULL::text
END) STORED
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_insert_scale_factor='0.1', autovacuum_analyze_scale_factor='0.05');
CREATE TABLE idempotency_gateway.gateway (
    gateway_id uuid NOT NULL,
    service text NOT NULL,
    operations text[] NOT NULL,
    seen_us bigint NOT NULL,
    beat bigint,
    notes uuid,
    host text DEFAULT ''::text NOT NULL,
    boot text DEFAULT ''::text NOT NULL,
    vouched_for text DEFAULT ''::text NOT NULL,
    level smallint DEFAULT 1 NOT NULL
)
WITH (fillfactor='70');
CREATE TABLE idempotency_gateway.migration (
    version integer NOT NULL,
    name text NOT NULL,
    checksum text DEFAULT ''::text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
CREATE TABLE idempotency_gateway.observation (
    entry uuid NOT NULL,
    service text NOT NULL,
    route text NOT NULL,
    operation_id uuid,
    began_us bigint NOT NULL,
    content bytea,
    seen bytea NOT NULL,
    verdict text NOT NULL,
    is_refused boolean NOT NULL,
    is_repeat boolean NOT NULL,
    is_rekeyed boolean NOT NULL
);
CREATE TABLE idempotency_gateway.operation (
    operation_id uuid NOT NULL,
    attempt_id uuid NOT NULL,
    resolution_id uuid,
    token bigint NOT NULL,
    first_claimed_us bigint NOT NULL,
    claimed_us bigint NOT NULL,
    lease_until_us bigint NOT NULL,
    replay_until_us bigint DEFAULT 0 NOT NULL,
    remember_until_us bigint DEFAULT 0 NOT NULL,
    completed_us bigint,
    due_us bigint,
    attention_us bigint,
    attempts integer NOT NULL,
    drop_day integer,
    version smallint NOT NULL,
    status smallint,
    carries_doubt boolean NOT NULL,
    is_kept boolean DEFAULT false NOT NULL,
    state text NOT NULL,
    last_event text NOT NULL,
    doubt text,
    holder text NOT NULL,
    route text NOT NULL,
    operation text NOT NULL,
    scope_digest bytea NOT NULL,
    key_digest bytea NOT NULL,
    key text,
    recipe bytea,
    digest bytea,
    raw bytea,
    key_id text,
    parts bytea,
    resource bytea,
    api_version bytea,
    probe_target bytea,
    probe_host bytea,
    sealed_by text,
    request text DEFAULT ''::text NOT NULL,
    request_id text,
    trace_id text
)
WITH (fillfactor='45', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_insert_scale_factor='0.1', autovacuum_analyze_scale_factor='0.05');
CREATE TABLE idempotency_gateway.outbox (
    service text NOT NULL,
    content bytea NOT NULL
);
CREATE TABLE idempotency_gateway.pause (
    service text NOT NULL,
    operation text NOT NULL,
    since_us bigint NOT NULL,
    who text NOT NULL,
    why text NOT NULL,
    sealed_by text GENERATED ALWAYS AS (
CASE
    WHEN ("left"(why, 1) = ''::text) THEN split_part(substr(why, 2), ':'::text, 1)
    ELSE NULL::text
END) STORED
);
CREATE TABLE idempotency_gateway.pause_audit (
    entry bigint NOT NULL,
    at_us bigint NOT NULL,
    is_resumed boolean NOT NULL,
    service text NOT NULL,
    operation text NOT NULL,
    who text NOT NULL,
    why text NOT NULL,
    sealed_by text GENERATED ALWAYS AS (
CASE
    WHEN ("left"(why, 1) = ''::text) THEN split_part(substr(why, 2), ':'::text, 1)
    ELSE NULL::text
END) STORED
);
ALTER TABLE idempotency_gateway.pause_audit ALTER COLUMN entry ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME idempotency_gateway.pause_audit_entry_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE idempotency_gateway.recipe (
    service text NOT NULL,
    operation text NOT NULL,
    recipe bytea NOT NULL,
    routes text NOT NULL,
    is_current boolean NOT NULL
);
CREATE TABLE idempotency_gateway.recovery (
    operation_id uuid NOT NULL,
    token bigint NOT NULL,
    held_until_us bigint NOT NULL,
    put_off_until_us bigint NOT NULL,
    check_us bigint NOT NULL,
    tries integer NOT NULL,
    background_tries integer DEFAULT 0 NOT NULL,
    asked_us bigint DEFAULT 0 NOT NULL,
    finding text DEFAULT ''::text NOT NULL
)
WITH (fillfactor='70');
CREATE TABLE idempotency_gateway.request (
    operation_id uuid NOT NULL,
    acceptance_id uuid NOT NULL,
    key_id text NOT NULL,
    sealed bytea NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='1000', toast.autovacuum_vacuum_scale_factor='0.01', toast.autovacuum_vacuum_threshold='1000');
ALTER TABLE ONLY idempotency_gateway.request ALTER COLUMN sealed SET STORAGE EXTERNAL;
CREATE TABLE idempotency_gateway.response (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
)
PARTITION BY LIST (drop_day);
CREATE TABLE idempotency_gateway.response_36400 (
    token bigint NOT NULL,
    drop_day integer NOT NULL,
    reason bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea
);
CREATE TABLE idempotency_gateway.suspension (
    service text NOT NULL,
    sink text NOT NULL,
    why text NOT NULL,
    sealed_by text GENERATED ALWAYS AS (
CASE
    WHEN ("left"(why, 1) = ''::text) THEN split_part(substr(why, 2), ':'::text, 1)
    ELSE NULL::text
END) STORED
);
CREATE SEQUENCE idempotency_gateway.token
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE idempotency_gateway.upkeep (
    only_row boolean DEFAULT true NOT NULL,
    passed_token bigint NOT NULL,
    CONSTRAINT upkeep_only_row_check CHECK (only_row)
);
CREATE TABLE idempotency_gateway.witness (
    link uuid NOT NULL,
    number bigint NOT NULL,
    kept_number bigint NOT NULL,
    check_us bigint NOT NULL
)
WITH (fillfactor='20');
ALTER TABLE ONLY idempotency_gateway.response ATTACH PARTITION idempotency_gateway.response_36400 FOR VALUES IN (36400);
INSERT INTO idempotency_gateway.delivery VALUES ('ffad008b-f793-85de-8016-562c07b4053e', '5b3c6b2a-5e19-4215-b203-8637806c064e', 1795680918336123, 1795680918336123, 1795680918888559, 1827216918336123, 0, 260, 1, 0, NULL, NULL, true, false, NULL, 'accepted', 'shop', 'order', 'order', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', 'answered_503', NULL);
INSERT INTO idempotency_gateway.epoch VALUES (true, 'c7d77f1f-b387-4c8e-8608-32f5b1927023', '00000001', '\x', '', 1);
INSERT INTO idempotency_gateway.gateway VALUES ('57a90ffb-728f-49f2-a03a-52c2f5815ab7', 'shop', '{charge,order}', 1795680917688891, 1, '41f0ea53-34f7-4202-b4d5-740879b8212f', 'vm', 'dbbd0c81-b95f-45d4-98c6-656b10a0b858', '', 1);
INSERT INTO idempotency_gateway.migration VALUES (1, '0001_operations', '62d515f39f102a416b106cb0ca7e97006ec67914541f4a4bc79da829c9e64b19', '2026-11-26 08:15:17.404537+00');
INSERT INTO idempotency_gateway.operation VALUES ('1efa8387-21f5-83a7-bea9-c4ac3f5f1f16', '3c537e73-2b4e-4688-bcc3-955140f7e327', NULL, 1, 1795680918078848, 1795680918078848, 0, 2111040918166345, 2111040918166345, 1795680918166345, 2111040918166345, NULL, 1, 36400, 1, 201, false, false, 'completed', 'complete', NULL, 'vm:9429:25252ad2', 'charge', 'charge', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\xb95d455b5fc690efe0a2afe6ace94cdda261f0c4393997b9e690be0d5eec63ec', NULL, '\xb763ff21c1c48900cdb440e03ce4c020', '\xc08335a2ed84fedb0f3f698bac518236bb56113194f855a2154e5712b1699d08', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\x878662386bd19df0a4d76bfb5d8c7bc370b07f5472d46f403360869d', NULL, NULL, NULL, NULL, 'frozen', 'POST - frozen:sUTFC8/q2MsDFvURw7ruE+gFzUf369vdp1MKOUVnR8vnF6agPwvxKLomcXLLDABygS+Tq1TWh5SkY6t6', NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES ('a596fc96-0a32-817d-a73c-6bf10c513eb8', '1be26e05-ad2b-4557-b9b1-e906dd804f24', NULL, 2, 1795680918184567, 1795680918184567, 0, 0, 2111040918204518, NULL, 2111040923184567, NULL, 1, NULL, 1, NULL, false, false, 'released', 'release', NULL, 'vm:9429:25252ad2', 'charge', 'charge', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\x545abad01019b97e48c5dedade40c4faeef7400a3ca7a69627b6864d4cd14b6a', NULL, '\xb763ff21c1c48900cdb440e03ce4c020', '\xc08335a2ed84fedb0f3f698bac518236bb56113194f855a2154e5712b1699d08', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\xfe8f56806e9dc1ad7f59524a32bad1b1f46e7b1a4c5624e55c7c5cbe', NULL, NULL, NULL, NULL, 'frozen', 'POST - frozen:lbxTHZ223fbZVfF0nUefyB1z06+c2aL/JQ0nnB6QzmxzJffcAet5bh1NhApWwbSbi5/RmJHrhTGv5Uyg', NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES ('f69ff997-ed3f-87d3-91aa-1435b869a4b2', '9d05f162-3ea5-4bbd-be2e-87c5a5eb2f7d', NULL, 3, 1795680918241379, 1795680918241379, 1795680948241379, 0, 0, NULL, NULL, 1795680918256108, 1, NULL, 1, NULL, false, false, 'in_doubt', 'abandon', 'reset', 'vm:9429:25252ad2', 'charge', 'charge', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\x554dad576657d3838e66bf80c1973dfce5ef9cb9aa648b6563ad34121f9e6f99', NULL, '\xb763ff21c1c48900cdb440e03ce4c020', '\xc08335a2ed84fedb0f3f698bac518236bb56113194f855a2154e5712b1699d08', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\x38dd993fd2cbcdc1824fa40bfe11a94eb20f2e9ae64edf4cb48b056a', NULL, NULL, NULL, NULL, 'frozen', 'POST - frozen:30PNiftMzzHF4k2H5EaQ5xuy55d9lW4iHXBIDcGeLMZxDD/my0s4ySNvjRLKYpcyO0J9jRllVKp9bAAw', NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES ('e1e61c76-0614-86ff-bf39-8f5964b1cb7b', '7014a171-67ca-4c7a-99ff-3b5602bf53af', NULL, 6, 1795680918363790, 1795680918363790, 1795680948363790, 0, 0, NULL, 2111040923363790, NULL, 1, NULL, 1, NULL, false, false, 'claimed', 'claim', NULL, 'vm:9429:25252ad2', 'charge', 'charge', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\x7faf5c80bc41c5fa7e6064df1429277b4723052226d14cfc3bbbb540a5e33977', NULL, '\xb763ff21c1c48900cdb440e03ce4c020', '\xc08335a2ed84fedb0f3f698bac518236bb56113194f855a2154e5712b1699d08', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\xe1c93b8a14f439650f26894bc1c70e2dbd0b3dad157aef917065028e', NULL, NULL, NULL, NULL, 'frozen', 'POST - frozen:u5gyNIHStb7nsviILa7yCIoQpnUBGXWAn9cTWnoLl8Y+FGtUkidORdpyVprlvIXHmt1RzxWMzCfgn238', NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES ('e40120c8-d512-87d7-b44d-c83f14f3f9f3', 'a670bf78-59ce-43e0-8b34-02146108b7b6', NULL, 7, 1795680918367710, 1795680918367710, 1795680948367710, 0, 0, NULL, 2111040923367710, NULL, 1, NULL, 1, NULL, false, false, 'claimed', 'claim', NULL, 'vm:9429:25252ad2', 'charge', 'charge', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\xf7d67622d33169e90d2c66efab38d3180386001ca9c2bc122481dc3626e972a2', NULL, '\xb763ff21c1c48900cdb440e03ce4c020', '\xc08335a2ed84fedb0f3f698bac518236bb56113194f855a2154e5712b1699d08', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\x2e9dd3abd296e0954f5b9a65be084d18f0f47fcea7b904fcfaecf502', NULL, NULL, NULL, NULL, 'frozen', 'POST - frozen:GsT/z3Vl8ayRnD9VG7B0RRRAVAnX+R62Ed1ecfM+vkOn8lBySLLG+B5qP1oELE0Zn1VA9K5irM60K1oN', NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES ('ffad008b-f793-85de-8016-562c07b4053e', '59e3e1d7-3f8e-485a-abe2-ba66ef1c4d82', NULL, 5, 1795680918336123, 1795680918350697, 0, 0, 0, NULL, 1827216918336123, NULL, 1, NULL, 1, NULL, false, true, 'accepted', 'postpone', NULL, 'vm:9429:25252ad2', 'order', 'order', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\x609fbd65d00f80c4c8f75aebdd3108c4ded494c184bbf087c1cc586696ae81ba', NULL, '\xb763ff21c1c48900cdb440e03ce4c020', '\x3b127e647326a501dc691215262afc7c5b404443d89a001b5ca4ad0e97cdfa79', '\x39175aab2e26dab244f63d4c2c9299239e4e6acf56d3c6f76b9e487be65b68ce', '', '\x85f9cc305a7cf0ba666b65947a110e3ecb794b95a3299e2aa6e40aeb', NULL, NULL, NULL, NULL, 'frozen', 'POST - frozen:qCo0zRquM2+dU9/qUgb7WehyF/nV15oljv9GgHP38xc397DeRKKPXcF5bz8ldcfWL0VgmIvORrxhySc=', NULL, NULL);
INSERT INTO idempotency_gateway.outbox VALUES ('shop', '\x7b2273657276696365223a2273686f70222c22736f75726365223a2275726e3a6964656d706f74656e63792d676174657761793a73686f70222c226576656e745f62797465735f6d6178223a36353533362c22737562736372697074696f6e73223a5b5d7d');
INSERT INTO idempotency_gateway.recipe VALUES ('shop', 'charge', '\xc4293a9926c43091a5294e47334ed90bf6a5561b5b02f570c40390ea55a22c86', '[{"order": 0, "methods": ["PATCH", "POST"], "host": null, "path": "/charges", "enforced": 1.0}]', true);
INSERT INTO idempotency_gateway.recipe VALUES ('shop', 'order', '\x6692733b03b23631671303df32d8a5632597fe3409de1a0dfe06f789cc8c9ff7', '[{"order": 1, "methods": ["PATCH", "POST"], "host": null, "path": "/orders", "enforced": 1.0}]', true);
INSERT INTO idempotency_gateway.request VALUES ('ffad008b-f793-85de-8016-562c07b4053e', '5b3c6b2a-5e19-4215-b203-8637806c064e', 'frozen', '\x04cb626734110b0f7daa580bb1847f55774ad16e3ecb5363266f10d0710e46a1e1e93e92468b3ae225c91c0650d9ff3645db877ed1a0784de7f7a87d2e364b479266c90db1c84134850934de100b3e1bf5a42f833c99f3831b2f5eb832d4c31c4a499acd39957423ed5756e778ddab34f4e8a8337066212818dd0c002420d4f07e8057889c425175c8f835fbda0f6eb886cdfc97ed10c13c12c80711237a12e1e02e95d3534e8290f59c65d48b27e7ee5291f604336a9f020e1221fa83a566c8bb7a10a7c3f6fa774ca1bc203a27a671c47d198a1a5bcf41e41db73c69c3b411d043992c5bf2220b68f77f62ac1ae9bec7eff1e3df580a6279718545b2dd8c4114dd36ea');
INSERT INTO idempotency_gateway.response_36400 VALUES (1, 36400, '\x', '\x00000002000000080000007701686561646572730166726f7a656e3a83b6330174d10d951d52a160673dc7c2bba7ae113c3c921cf2cf5c66cba1c364094708bee2387e77456d1dba9848857a9e488e4e02bff045486b03de01fd0f1ec99a5e7ad3bdcb547dd7a3b3f6b73182e3bf23ebde6c64a862ace9edd8aea872e29c1d0299a96f68eaee10c1d587aa', '\x0166726f7a656e3a49177762b6500c1fbb270cad6c8193029654ee42cb72f471d374d2307e64f93fc605d68293ef13ff');
INSERT INTO idempotency_gateway.upkeep VALUES (true, 0);
INSERT INTO idempotency_gateway.witness VALUES ('b5fb9856-2ce9-4824-8ed7-b90c1e030754', 3, 0, 1803456918148689);
INSERT INTO idempotency_gateway.witness VALUES ('e4057fb0-d797-4153-a881-74077cefd632', 6, 0, 1803456918061420);
INSERT INTO idempotency_gateway.witness VALUES ('a3c258c8-f0f2-4824-bcbe-b675a7cb30ee', 5, 0, 1803456917677113);
SELECT pg_catalog.setval('idempotency_gateway.audit_entry_seq', 1, false);
SELECT pg_catalog.setval('idempotency_gateway.pause_audit_entry_seq', 1, false);
SELECT pg_catalog.setval('idempotency_gateway.token', 33, true);
ALTER TABLE ONLY idempotency_gateway.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (operation_id, entry);
ALTER TABLE ONLY idempotency_gateway.content
    ADD CONSTRAINT content_pkey PRIMARY KEY (digest, operation_id);
ALTER TABLE ONLY idempotency_gateway.delivery
    ADD CONSTRAINT delivery_pkey PRIMARY KEY (operation_id);
ALTER TABLE ONLY idempotency_gateway.epoch
    ADD CONSTRAINT epoch_pkey PRIMARY KEY (only_row);
ALTER TABLE ONLY idempotency_gateway.event
    ADD CONSTRAINT event_pkey PRIMARY KEY (service, sink, event_id);
ALTER TABLE ONLY idempotency_gateway.gateway
    ADD CONSTRAINT gateway_pkey PRIMARY KEY (gateway_id);
ALTER TABLE ONLY idempotency_gateway.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (version);
ALTER TABLE ONLY idempotency_gateway.observation
    ADD CONSTRAINT observation_pkey PRIMARY KEY (entry);
ALTER TABLE ONLY idempotency_gateway.operation
    ADD CONSTRAINT operation_pkey PRIMARY KEY (operation_id);
ALTER TABLE ONLY idempotency_gateway.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (service);
ALTER TABLE ONLY idempotency_gateway.pause_audit
    ADD CONSTRAINT pause_audit_pkey PRIMARY KEY (entry);
ALTER TABLE ONLY idempotency_gateway.pause
    ADD CONSTRAINT pause_pkey PRIMARY KEY (service, operation);
ALTER TABLE ONLY idempotency_gateway.recipe
    ADD CONSTRAINT recipe_pkey PRIMARY KEY (service, operation);
ALTER TABLE ONLY idempotency_gateway.recovery
    ADD CONSTRAINT recovery_pkey PRIMARY KEY (operation_id);
ALTER TABLE ONLY idempotency_gateway.request
    ADD CONSTRAINT request_pkey PRIMARY KEY (operation_id);
ALTER TABLE ONLY idempotency_gateway.response
    ADD CONSTRAINT response_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.response_36400
    ADD CONSTRAINT response_36400_pkey PRIMARY KEY (token, drop_day);
ALTER TABLE ONLY idempotency_gateway.suspension
    ADD CONSTRAINT suspension_pkey PRIMARY KEY (service, sink);
ALTER TABLE ONLY idempotency_gateway.upkeep
    ADD CONSTRAINT upkeep_pkey PRIMARY KEY (only_row);
ALTER TABLE ONLY idempotency_gateway.witness
    ADD CONSTRAINT witness_pkey PRIMARY KEY (link);
CREATE UNIQUE INDEX audit_entry ON idempotency_gateway.audit USING btree (entry);
CREATE INDEX audit_keep ON idempotency_gateway.audit USING btree (keep_until_us);
CREATE INDEX audit_sealed ON idempotency_gateway.audit USING btree (sealed_by) WHERE (sealed_by IS NOT NULL);
CREATE INDEX content_check ON idempotency_gateway.content USING btree (check_us);
CREATE INDEX delivery_dead ON idempotency_gateway.delivery USING btree (service) WHERE (waits = 'dead_letter'::text);
CREATE INDEX delivery_end ON idempotency_gateway.delivery USING btree (service, operation, deliver_until_us) WHERE (waits = 'accepted'::text);
CREATE UNIQUE INDEX delivery_lane ON idempotency_gateway.delivery USING btree (lane, lane_rank) WHERE (lane_rank IS NOT NULL);
CREATE INDEX delivery_next ON idempotency_gateway.delivery USING btree (service, operation, next_attempt_us) WHERE ((waits = 'accepted'::text) AND (NOT is_behind));
CREATE INDEX delivery_scope ON idempotency_gateway.delivery USING btree (service, operation, scope_digest) WHERE (waits = 'accepted'::text);
CREATE INDEX delivery_stopped ON idempotency_gateway.delivery USING btree (service, route, stopped_us) WHERE ((stopped_us IS NOT NULL) AND (NOT is_behind));
CREATE INDEX event_dead ON idempotency_gateway.event USING btree (service, sink, event_id) WHERE is_dead;
CREATE INDEX event_due ON idempotency_gateway.event USING btree (service, sink, is_behind, due_us) INCLUDE (since_us) WHERE (NOT is_dead);
CREATE INDEX event_line ON idempotency_gateway.event USING btree (service, sink, line, place) WHERE ((line IS NOT NULL) AND (NOT is_dead));
CREATE INDEX event_sealed ON idempotency_gateway.event USING btree (sealed_by) WHERE (sealed_by IS NOT NULL);
CREATE INDEX observation_content ON idempotency_gateway.observation USING btree (service, content, began_us) WHERE (content IS NOT NULL);
CREATE INDEX observation_finding ON idempotency_gateway.observation USING btree (service, route, verdict, is_refused, began_us);
CREATE INDEX observation_history ON idempotency_gateway.observation USING btree (service, operation_id, began_us) WHERE (operation_id IS NOT NULL);
CREATE INDEX observation_time ON idempotency_gateway.observation USING btree (began_us);
CREATE INDEX operation_attention ON idempotency_gateway.operation USING btree (operation_id) WHERE (attention_us IS NOT NULL);
CREATE INDEX operation_due ON idempotency_gateway.operation USING btree (due_us);
CREATE INDEX operation_sealed ON idempotency_gateway.operation USING btree (sealed_by) WHERE (sealed_by IS NOT NULL);
CREATE UNIQUE INDEX operation_token ON idempotency_gateway.operation USING btree (token);
CREATE INDEX pause_audit_by_time ON idempotency_gateway.pause_audit USING btree (service, at_us);
CREATE INDEX recovery_check ON idempotency_gateway.recovery USING btree (check_us);
CREATE INDEX request_sealed ON idempotency_gateway.request USING btree (key_id);
CREATE INDEX witness_check ON idempotency_gateway.witness USING btree (check_us);
ALTER INDEX idempotency_gateway.response_pkey ATTACH PARTITION idempotency_gateway.response_36400_pkey;

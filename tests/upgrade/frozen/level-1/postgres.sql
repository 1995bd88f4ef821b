CREATE SCHEMA idempotency_gateway;
CREATE FUNCTION idempotency_gateway.may_have_standby() RETURNS boolean
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pg_stat_replication);
EXCEPTION WHEN insufficient_privilege OR undefined_table OR undefined_function OR feature_not_supported THEN
    RETURN NULL;
END
$$;
CREATE FUNCTION idempotency_gateway.server_system() RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RETURN (SELECT system_identifier FROM pg_control_system());
EXCEPTION WHEN insufficient_privilege OR undefined_function OR feature_not_supported THEN
    RETURN NULL;
END
$$;
CREATE FUNCTION idempotency_gateway.server_timeline() RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RETURN left(pg_walfile_name(pg_current_wal_lsn()), 8);
EXCEPTION WHEN insufficient_privilege OR undefined_function OR feature_not_supported THEN
    RETURN NULL;
END
$$;
CREATE FUNCTION idempotency_gateway.settings_loaded_at() RETURNS timestamp with time zone
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RETURN pg_conf_load_time();
EXCEPTION WHEN insufficient_privilege OR undefined_function OR feature_not_supported THEN
    RETURN NULL;
END
$$;
CREATE TABLE idempotency_gateway.audit (
    "row" bigint NOT NULL,
    id bytea NOT NULL,
    at_us bigint NOT NULL,
    event text NOT NULL,
    token bigint NOT NULL,
    who text NOT NULL,
    why text NOT NULL,
    keep_until_us bigint NOT NULL,
    sealed_by text GENERATED ALWAYS AS (
CASE
    WHEN ("left"(why, 1) = ''::text) THEN split_part(substr(why, 2), ':'::text, 1)
    ELSE NULL::text
END) STORED
);
CREATE TABLE idempotency_gateway.content (
    digest bytea NOT NULL,
    id bytea NOT NULL,
    fingerprint bytea NOT NULL,
    until_us bigint NOT NULL,
    check_us bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_insert_scale_factor='0.1', autovacuum_analyze_scale_factor='0.05');
CREATE TABLE idempotency_gateway.delivery (
    "row" bytea NOT NULL,
    service text NOT NULL,
    acceptance_id bytea NOT NULL,
    accepted_us bigint NOT NULL,
    since_us bigint NOT NULL,
    next_attempt_us bigint NOT NULL,
    deliver_until_us bigint NOT NULL,
    request_bytes bigint NOT NULL,
    answers bigint NOT NULL,
    failure text,
    reason text,
    lane bytea,
    lane_number bigint NOT NULL,
    stops_lane boolean NOT NULL,
    is_behind boolean NOT NULL,
    is_accepted boolean NOT NULL,
    lane_rank bigint,
    stopped_us bigint,
    operation text NOT NULL,
    route text NOT NULL,
    scope_digest bytea NOT NULL,
    credited_us bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_insert_scale_factor='0.1', autovacuum_analyze_scale_factor='0.05');
CREATE TABLE idempotency_gateway.epoch (
    one bigint NOT NULL,
    identity text NOT NULL,
    memo bytea NOT NULL,
    generation text DEFAULT ''::text NOT NULL,
    floor bigint DEFAULT 0 NOT NULL,
    ceiling bigint DEFAULT 0 NOT NULL,
    level bigint DEFAULT 1 NOT NULL,
    system text DEFAULT ''::text NOT NULL,
    timeline text DEFAULT ''::text NOT NULL,
    CONSTRAINT epoch_one_check CHECK ((one = 1))
);
CREATE TABLE idempotency_gateway.event (
    "row" bytea NOT NULL,
    service text NOT NULL,
    sink text NOT NULL,
    event_id text NOT NULL,
    type text NOT NULL,
    at_us bigint NOT NULL,
    since_us bigint NOT NULL,
    due_us bigint NOT NULL,
    lease_until_us bigint DEFAULT 0 NOT NULL,
    content bytea NOT NULL,
    response bytea,
    tries bigint DEFAULT 0 NOT NULL,
    redeliveries bigint DEFAULT 0 NOT NULL,
    is_dead boolean DEFAULT false NOT NULL,
    why text DEFAULT ''::text NOT NULL,
    line bytea,
    place bigint,
    is_behind boolean DEFAULT false NOT NULL,
    sealed_by text GENERATED ALWAYS AS (
CASE
    WHEN (substr(response, 1, 1) = '\x01'::bytea) THEN split_part(encode(substr(response, 2, 65), 'escape'::text), ':'::text, 1)
    ELSE NULL::text
END) STORED,
    why_sealed_by text GENERATED ALWAYS AS (
CASE
    WHEN ("left"(why, 1) = ''::text) THEN split_part(substr(why, 2), ':'::text, 1)
    ELSE NULL::text
END) STORED
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_insert_scale_factor='0.1', autovacuum_analyze_scale_factor='0.05');
CREATE TABLE idempotency_gateway.gateway (
    id bytea NOT NULL,
    service text NOT NULL,
    operations text NOT NULL,
    host text NOT NULL,
    seen_us bigint NOT NULL,
    level bigint NOT NULL,
    beat bigint,
    notes bytea,
    boot text DEFAULT ''::text NOT NULL,
    vouched_for text DEFAULT ''::text NOT NULL
)
WITH (fillfactor='70');
CREATE TABLE idempotency_gateway.kind (
    kind bytea NOT NULL,
    attempts bigint NOT NULL,
    status bigint NOT NULL,
    kept_us bigint NOT NULL,
    service text NOT NULL,
    route text NOT NULL,
    operation text NOT NULL,
    last_event text NOT NULL,
    fingerprint_key_id text NOT NULL,
    fingerprint_recipe bytea NOT NULL,
    api_version bytea NOT NULL
);
CREATE TABLE idempotency_gateway.migration (
    version integer NOT NULL,
    name text NOT NULL,
    checksum text DEFAULT ''::text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
CREATE TABLE idempotency_gateway.observation (
    entry bytea NOT NULL,
    service text NOT NULL,
    route text NOT NULL,
    id bytea,
    began_us bigint NOT NULL,
    content bytea,
    seen bytea NOT NULL,
    verdict text NOT NULL,
    is_refused boolean NOT NULL,
    is_repeat boolean NOT NULL,
    is_rekeyed boolean NOT NULL
);
CREATE TABLE idempotency_gateway.operation (
    token bigint NOT NULL,
    remember_until_us bigint NOT NULL,
    due_us bigint,
    version integer NOT NULL,
    id bytea NOT NULL,
    state text,
    kind bytea,
    completed_us bigint,
    attempt_id bytea,
    last_event text,
    holder text,
    carried_us bigint,
    fingerprint_recipe bytea,
    fingerprint_digest bytea,
    fingerprint_raw bytea,
    fingerprint_key_id text,
    fingerprint_parts bytea,
    attempts bigint,
    first_claimed_us bigint,
    claimed_us bigint,
    lease_until_us bigint,
    lease_us bigint,
    replay_until_us bigint,
    doubt text,
    resolution_id bytea,
    status bigint,
    reason bytea,
    headers bytea,
    api_version bytea,
    resource bytea,
    body_kept boolean,
    body bytea,
    request_kept boolean,
    probe_target bytea,
    probe_host bytea,
    sealed_by text,
    route text,
    operation text,
    scope_digest bytea NOT NULL,
    key_digest bytea,
    key text,
    request text DEFAULT ''::text,
    request_id text,
    trace_id text,
    CONSTRAINT operation_whole CHECK (((kind IS NOT NULL) OR ((state IS NOT NULL) AND (attempt_id IS NOT NULL) AND (last_event IS NOT NULL) AND (holder IS NOT NULL) AND (attempts IS NOT NULL) AND (first_claimed_us IS NOT NULL) AND (claimed_us IS NOT NULL) AND (lease_until_us IS NOT NULL) AND (lease_us IS NOT NULL) AND (replay_until_us IS NOT NULL) AND (body_kept IS NOT NULL) AND (request_kept IS NOT NULL) AND (route IS NOT NULL) AND (operation IS NOT NULL) AND (key_digest IS NOT NULL) AND (request IS NOT NULL))))
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_insert_scale_factor='0.1', autovacuum_analyze_scale_factor='0.05');
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
    resumed_us bigint,
    place_us bigint DEFAULT '9223372036854775807'::bigint NOT NULL,
    place_row bytea NOT NULL,
    sealed_by text GENERATED ALWAYS AS (
CASE
    WHEN ("left"(why, 1) = ''::text) THEN split_part(substr(why, 2), ':'::text, 1)
    ELSE NULL::text
END) STORED
);
CREATE TABLE idempotency_gateway.pause_audit (
    "row" bigint NOT NULL,
    at_us bigint NOT NULL,
    operation text NOT NULL,
    is_resumed boolean NOT NULL,
    who text NOT NULL,
    why text NOT NULL,
    service text NOT NULL,
    sealed_by text GENERATED ALWAYS AS (
CASE
    WHEN ("left"(why, 1) = ''::text) THEN split_part(substr(why, 2), ':'::text, 1)
    ELSE NULL::text
END) STORED
);
CREATE TABLE idempotency_gateway.recipe (
    service text NOT NULL,
    operation text NOT NULL,
    recipe bytea NOT NULL,
    routes text NOT NULL,
    is_current boolean NOT NULL
);
CREATE TABLE idempotency_gateway.recovery (
    id bytea NOT NULL,
    token bigint NOT NULL,
    held_until_us bigint NOT NULL,
    put_off_until_us bigint NOT NULL,
    tries bigint NOT NULL,
    check_us bigint NOT NULL,
    background_tries bigint DEFAULT 0 NOT NULL,
    asked_us bigint DEFAULT 0 NOT NULL,
    finding text DEFAULT ''::text NOT NULL
)
WITH (fillfactor='70');
CREATE TABLE idempotency_gateway.request (
    "row" bytea NOT NULL,
    key_id text NOT NULL,
    sealed bytea NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='1000', toast.autovacuum_vacuum_scale_factor='0.01', toast.autovacuum_vacuum_threshold='1000');
ALTER TABLE ONLY idempotency_gateway.request ALTER COLUMN sealed SET STORAGE EXTERNAL;
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
CREATE TABLE idempotency_gateway.turn (
    name text NOT NULL,
    holder bytea NOT NULL,
    until_us bigint NOT NULL
)
WITH (fillfactor='20');
CREATE TABLE idempotency_gateway.witness (
    link bytea NOT NULL,
    number bigint NOT NULL,
    kept_number bigint NOT NULL,
    check_us bigint NOT NULL
)
WITH (fillfactor='20');
INSERT INTO idempotency_gateway.delivery VALUES ('\xffad008bf79385de8016562c07b4053e', 'shop', '\xcf706b48499340059e4148e6c249a317', 1795779960679099, 1795779960679099, 1795779960679099, 1827315960679099, 260, 0, NULL, NULL, NULL, 0, true, false, false, NULL, NULL, 'order', 'order', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', 0);
INSERT INTO idempotency_gateway.epoch VALUES (1, '58be6ad2-f05e-45e5-80c9-40fec91db7e4', '\x', '', 0, 0, 1, '7712816166014630056', '00000001');
INSERT INTO idempotency_gateway.gateway VALUES ('\x69cc45023a5845aea81ccdcb811a044e', 'shop', '["charge", "order"]', 'vm', 1795779960290363, 1, 1, '\x05e1cbcc35004835a025ff8a25bd5991', 'ec87c132-b430-4a76-af54-85aeb8f3d7a9', '');
INSERT INTO idempotency_gateway.migration VALUES (1, '0001_operations', 'e5599679e5d7b496fff4b704472cb9c305ef0364725bbf8d0cebfbf4936de2cf', '2026-11-27 11:46:00.175807+00');
INSERT INTO idempotency_gateway.operation VALUES (1, 2111139960636031, 2111139960636031, 1, '\x1efa838721f583a7bea9c4ac3f5f1f16', 'completed', NULL, 1795779960636031, '\x32ea78cfd03b4fb082823a892ddb5999', 'complete', 'vm:18977:aa2c28de', NULL, '\x047f1576f4e385e9b1f940e3f2413086', '\x96bb50019985cef293a28869b5ce2befd32e2b603819fab784310186d31c6cf0', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\xfb512062fb616042a491bff9f160f89300000000000000009a012a319756a147', 1, 1795779960562027, 1795779960562027, 0, 0, 2111139960636031, NULL, NULL, 201, '\x', '\x00000002000000080000007701686561646572730166726f7a656e3abe653859d3b4de215cee45910b743cc0a5aeadb1764bfe40f35fcb075d2d2f2625a9d2e7b0007506cc5f934867a7c74d2f64b554d95a1bc593e5661b9fb97023284eb2d46ce0ae24f82af68a60e12993f0b1fc91fda51d77a76c7d6a99e39463d91a2a9ab9c503b7fb75cc6ca2106e', NULL, NULL, true, '\x0166726f7a656e3a4775bcf5ac080cecfa09491a3e8e0f9581e3177e7ea10f078638c54ba3bf852cabeb395fb234d18c', false, NULL, NULL, 'frozen', 'charge', 'charge', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\xb95d455b5fc690efe0a2afe6ace94cdda261f0c4393997b9e690be0d5eec63ec', NULL, 'POST - frozen:cK72zekr9+CvRz7SeaC40fvOcU8gZCqrEZapMCbRGVb6jrFy1vWMZBY06waSVkE7H/TP2T+xqGpIoA9Z', NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES (2, 2111139960652794, 2111139960652794, 1, '\xa596fc960a32817da73c6bf10c513eb8', 'released', NULL, NULL, '\x748d99a958c1467889429d59eae8e457', 'release', 'vm:18977:aa2c28de', NULL, '\x047f1576f4e385e9b1f940e3f2413086', '\x96bb50019985cef293a28869b5ce2befd32e2b603819fab784310186d31c6cf0', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\x52738655a808ada04c5b8e9e66664fe900000000000000008d8d9700ac6d1ecd', 1, 1795779960639918, 1795779960639918, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL, false, NULL, NULL, 'frozen', 'charge', 'charge', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\x545abad01019b97e48c5dedade40c4faeef7400a3ca7a69627b6864d4cd14b6a', NULL, 'POST - frozen:pUe2x/VJp6V/IuAkOrAMd1fj+Eu8io4NdEeG18Pj3Jqu9owiEadFAKzKHi0iCrqYLm2YpXLIvUNQJlxG', NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES (3, 0, NULL, 1, '\xf69ff997ed3f87d391aa1435b869a4b2', 'in_doubt', NULL, NULL, '\x24320d3e700949c9a6b19556ba6a13bf', 'abandon', 'vm:18977:aa2c28de', NULL, '\x047f1576f4e385e9b1f940e3f2413086', '\x96bb50019985cef293a28869b5ce2befd32e2b603819fab784310186d31c6cf0', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\x52b2fa5ffc69a20f1b0bd87e499ad2f200000000000000001bfcf3fe54daf01b', 1, 1795779960663101, 1795779960663101, 1795779960664734, 30000000, 0, 'reset', NULL, NULL, NULL, NULL, NULL, NULL, false, NULL, false, NULL, NULL, 'frozen', 'charge', 'charge', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\x554dad576657d3838e66bf80c1973dfce5ef9cb9aa648b6563ad34121f9e6f99', NULL, 'POST - frozen:qNssVTUgiSEY3M2P4Pe4cC0/zfsPsjm2ca5FtNOeICEUl0VMB2JPr7eZMvH/fwkpXm1ysyJ1hxgSPG3d', NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES (5, 0, 1795779990692684, 1, '\xe1e61c76061486ffbf398f5964b1cb7b', 'claimed', NULL, NULL, '\xe3b8dd42a655413ba787f1b7b9c5d4c9', 'claim', 'vm:18977:aa2c28de', NULL, '\x047f1576f4e385e9b1f940e3f2413086', '\x96bb50019985cef293a28869b5ce2befd32e2b603819fab784310186d31c6cf0', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\x7008695abf2d539e81df1ad0025f020700000000000000007ee0fde1048c1ff6', 1, 1795779960692684, 1795779960692684, 1795779990692684, 30000000, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL, false, NULL, NULL, 'frozen', 'charge', 'charge', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\x7faf5c80bc41c5fa7e6064df1429277b4723052226d14cfc3bbbb540a5e33977', NULL, 'POST - frozen:PP3ChvHJvMOpuQYrE+Ps3wWLo1mTP8rs6a/8ao2BjYIdEAnT8+jt+P6JFZieyyb3x+FLCoFMSWvcnz7i', NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES (6, 0, 1795779990692684, 1, '\xe40120c8d51287d7b44dc83f14f3f9f3', 'claimed', NULL, NULL, '\xab9ed3b863f1433c92f0d860369ca401', 'claim', 'vm:18977:aa2c28de', NULL, '\x047f1576f4e385e9b1f940e3f2413086', '\x96bb50019985cef293a28869b5ce2befd32e2b603819fab784310186d31c6cf0', '\x080c12d4b9899829741e7cc68d818dbf0a610062bfb8ec7444c45d8b2930023a', '', '\x52463e79b00d54d5294e6a611c597f1a00000000000000009ca65adbd6c84567', 1, 1795779960692684, 1795779960692684, 1795779990692684, 30000000, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL, false, NULL, NULL, 'frozen', 'charge', 'charge', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\xf7d67622d33169e90d2c66efab38d3180386001ca9c2bc122481dc3626e972a2', NULL, 'POST - frozen:isw4P75NQAlPk+MiJcBUio9zgE8hWmMLRt6wl7Fb63/BkgOc7ZoSdsGPSIDH4pp6aNTdl2Q80pD/JvmC', NULL, NULL);
INSERT INTO idempotency_gateway.operation VALUES (7, 0, 1795779990690722, 1, '\xffad008bf79385de8016562c07b4053e', 'claimed', NULL, NULL, '\x19f8e54923cf4809bef03d8f3d43fe9d', 'dispatch', 'vm:18977:aa2c28de', NULL, '\x047f1576f4e385e9b1f940e3f2413086', '\xc5603ef6b1d64f935ba6fd954c2f091854857827161294053d73fe158d709991', '\x39175aab2e26dab244f63d4c2c9299239e4e6acf56d3c6f76b9e487be65b68ce', '', '\x9e18a38f897bbb8aa0bb98b8a2ecb04400000000000000007ad3f4abbb7e5639', 1, 1795779960679099, 1795779960690722, 1795779990690722, 30000000, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL, true, NULL, NULL, 'frozen', 'order', 'order', '\x2cfdfcc638acd71e6e7c5c9d89f2a7306de9137de30c4b3d974696061146625f', '\x609fbd65d00f80c4c8f75aebdd3108c4ded494c184bbf087c1cc586696ae81ba', NULL, 'POST - frozen:kEyv82Z30+Xl2qMZVLB+WdxzvK03z/9qM1EfPAnIgIL8upQ5KZdVquVL/HoRlbB7lL0ddwT9xdyeTPg=', NULL, NULL);
INSERT INTO idempotency_gateway.outbox VALUES ('shop', '\x7b2273657276696365223a2273686f70222c22736f75726365223a2275726e3a6964656d706f74656e63792d676174657761793a73686f70222c226576656e745f62797465735f6d6178223a36353533362c22737562736372697074696f6e73223a5b5d7d');
INSERT INTO idempotency_gateway.recipe VALUES ('shop', 'charge', '\xc4293a9926c43091a5294e47334ed90bf6a5561b5b02f570c40390ea55a22c86', '[{"order": 0, "methods": ["PATCH", "POST"], "host": null, "path": "/charges", "enforced": 1.0, "fingerprint_keys": {}}]', true);
INSERT INTO idempotency_gateway.recipe VALUES ('shop', 'order', '\x6692733b03b23631671303df32d8a5632597fe3409de1a0dfe06f789cc8c9ff7', '[{"order": 1, "methods": ["PATCH", "POST"], "host": null, "path": "/orders", "enforced": 1.0, "fingerprint_keys": {}}]', true);
INSERT INTO idempotency_gateway.request VALUES ('\xffad008bf79385de8016562c07b4053e', 'frozen', '\xe1e1d03d2c499dc1d4c85c115c4139d90be8cf597f11df38770c3a27cbd8dc4a3ad72780169b43ef22365d591426e6d20a7d3adb2e4d03f0ed191fa6dd7d1ea40b422caab72e90790444fc0d454aee6df8dd1ef9b4c70fe85214bd307a235fd1bb209ca25d048bc227cba3c75a5071cb62098f5792d1d2cafebdec5e5ae24253429dd7025b3c591b614b7332852777d6af62c59b072357747eb1e3fc92a02a2508673c6dd04f6802f0c633e9c27aee4b149b48d30e8db0ab247cd455d7a08251f5e62b37eba9defe161aec69029eab8476117bb37443e0dd4b688b7078b70e767e82b098ce9fad5664a3c2c3c333d3baba26fb07fbadf9091056fae65071f76ed08bcbae');
INSERT INTO idempotency_gateway.turn VALUES ('recovery shop e3b0c44298fc1c14', '\x3237c25c8c02419197a6d3fc93999937', 1795779975508870);
INSERT INTO idempotency_gateway.turn VALUES ('sweep', '\x3237c25c8c02419197a6d3fc93999937', 1795779975508870);
INSERT INTO idempotency_gateway.turn VALUES ('tally shop f3f76c9c19d737c2', '\x3237c25c8c02419197a6d3fc93999937', 1795779975508870);
INSERT INTO idempotency_gateway.witness VALUES ('\x2d317452973e4e219ab30527557d87e2', 5, 0, 1803555960555607);
INSERT INTO idempotency_gateway.witness VALUES ('\xd47ab666a0e2451290799d1a680606aa', 6, 0, 1803555960627624);
SELECT pg_catalog.setval('idempotency_gateway.token', 33, true);
ALTER TABLE ONLY idempotency_gateway.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY ("row");
ALTER TABLE ONLY idempotency_gateway.content
    ADD CONSTRAINT content_pkey PRIMARY KEY (digest, id);
ALTER TABLE ONLY idempotency_gateway.delivery
    ADD CONSTRAINT delivery_pkey PRIMARY KEY ("row");
ALTER TABLE ONLY idempotency_gateway.epoch
    ADD CONSTRAINT epoch_pkey PRIMARY KEY (one);
ALTER TABLE ONLY idempotency_gateway.event
    ADD CONSTRAINT event_pkey PRIMARY KEY ("row");
ALTER TABLE ONLY idempotency_gateway.gateway
    ADD CONSTRAINT gateway_pkey PRIMARY KEY (id);
ALTER TABLE ONLY idempotency_gateway.kind
    ADD CONSTRAINT kind_pkey PRIMARY KEY (kind);
ALTER TABLE ONLY idempotency_gateway.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (version);
ALTER TABLE ONLY idempotency_gateway.observation
    ADD CONSTRAINT observation_pkey PRIMARY KEY (entry);
ALTER TABLE ONLY idempotency_gateway.operation
    ADD CONSTRAINT operation_pkey PRIMARY KEY (id);
ALTER TABLE ONLY idempotency_gateway.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (service);
ALTER TABLE ONLY idempotency_gateway.pause_audit
    ADD CONSTRAINT pause_audit_pkey PRIMARY KEY ("row");
ALTER TABLE ONLY idempotency_gateway.pause
    ADD CONSTRAINT pause_pkey PRIMARY KEY (service, operation);
ALTER TABLE ONLY idempotency_gateway.recipe
    ADD CONSTRAINT recipe_pkey PRIMARY KEY (service, operation);
ALTER TABLE ONLY idempotency_gateway.recovery
    ADD CONSTRAINT recovery_pkey PRIMARY KEY (id);
ALTER TABLE ONLY idempotency_gateway.request
    ADD CONSTRAINT request_pkey PRIMARY KEY ("row");
ALTER TABLE ONLY idempotency_gateway.suspension
    ADD CONSTRAINT suspension_pkey PRIMARY KEY (service, sink);
ALTER TABLE ONLY idempotency_gateway.turn
    ADD CONSTRAINT turn_pkey PRIMARY KEY (name);
ALTER TABLE ONLY idempotency_gateway.witness
    ADD CONSTRAINT witness_pkey PRIMARY KEY (link);
CREATE INDEX audit_keep ON idempotency_gateway.audit USING btree (keep_until_us);
CREATE INDEX audit_operation ON idempotency_gateway.audit USING btree (id);
CREATE INDEX audit_sealed ON idempotency_gateway.audit USING btree (sealed_by) WHERE (sealed_by IS NOT NULL);
CREATE INDEX content_check ON idempotency_gateway.content USING btree (check_us);
CREATE INDEX delivery_age ON idempotency_gateway.delivery USING btree (service, route, accepted_us) WHERE is_accepted;
CREATE INDEX delivery_dead ON idempotency_gateway.delivery USING btree (service, route, reason) WHERE (reason IS NOT NULL);
CREATE INDEX delivery_due ON idempotency_gateway.delivery USING btree (service, operation, route, next_attempt_us, deliver_until_us) WHERE (is_accepted AND (NOT is_behind));
CREATE INDEX delivery_end ON idempotency_gateway.delivery USING btree (service, operation, deliver_until_us) WHERE is_accepted;
CREATE UNIQUE INDEX delivery_lane ON idempotency_gateway.delivery USING btree (lane, lane_rank) WHERE (lane_rank IS NOT NULL);
CREATE INDEX delivery_number ON idempotency_gateway.delivery USING btree (lane, lane_number) WHERE (lane IS NOT NULL);
CREATE INDEX delivery_scope ON idempotency_gateway.delivery USING btree (service, route, scope_digest, deliver_until_us) WHERE is_accepted;
CREATE INDEX delivery_stopped ON idempotency_gateway.delivery USING btree (service, route, stopped_us) WHERE ((stopped_us IS NOT NULL) AND (NOT is_behind));
CREATE INDEX event_dead ON idempotency_gateway.event USING btree (service, sink, event_id) WHERE is_dead;
CREATE INDEX event_due ON idempotency_gateway.event USING btree (service, sink, is_behind, due_us, since_us) WHERE (NOT is_dead);
CREATE INDEX event_failed ON idempotency_gateway.event USING btree (service, sink, due_us) WHERE ((why <> ''::text) AND (NOT is_dead));
CREATE UNIQUE INDEX event_identity ON idempotency_gateway.event USING btree (event_id, sink);
CREATE INDEX event_line ON idempotency_gateway.event USING btree (service, sink, line, place) WHERE ((line IS NOT NULL) AND (NOT is_dead));
CREATE INDEX event_sealed ON idempotency_gateway.event USING btree (sealed_by) WHERE (sealed_by IS NOT NULL);
CREATE INDEX event_why_sealed ON idempotency_gateway.event USING btree (why_sealed_by) WHERE (why_sealed_by IS NOT NULL);
CREATE INDEX observation_content ON idempotency_gateway.observation USING btree (service, content, began_us) WHERE (content IS NOT NULL);
CREATE INDEX observation_finding ON idempotency_gateway.observation USING btree (service, route, verdict, is_refused, began_us);
CREATE INDEX observation_history ON idempotency_gateway.observation USING btree (service, id, began_us) WHERE (id IS NOT NULL);
CREATE INDEX observation_time ON idempotency_gateway.observation USING btree (began_us);
CREATE INDEX operation_due ON idempotency_gateway.operation USING btree (state, due_us) WHERE (due_us IS NOT NULL);
CREATE INDEX operation_end ON idempotency_gateway.operation USING btree (((remember_until_us / 60000000))) WHERE (kind IS NOT NULL);
CREATE INDEX operation_sealed ON idempotency_gateway.operation USING btree (sealed_by) WHERE (sealed_by IS NOT NULL);
CREATE INDEX operation_stopped ON idempotency_gateway.operation USING btree (state, id, route, lease_until_us, carried_us) WHERE (state = ANY (ARRAY['in_doubt'::text, 'dead_letter'::text]));
CREATE INDEX pause_audit_by_time ON idempotency_gateway.pause_audit USING btree (service, at_us);
CREATE INDEX recovery_check ON idempotency_gateway.recovery USING btree (check_us);
CREATE INDEX request_sealed ON idempotency_gateway.request USING btree (key_id);
CREATE INDEX witness_check ON idempotency_gateway.witness USING btree (check_us);

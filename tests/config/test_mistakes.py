"""Each mistake is reported with its place, what was expected, and what to write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway import __version__
from gateway.config import parse
from gateway.core.lifecycle import LEASE_US_MAX
from gateway.core.operation import microseconds
from tests.config.support import (
    ACCEPTING,
    GLOBAL,
    INBOX,
    MINIMAL,
    ROUTE_LINE,
    is_said,
    mistakes,
    read,
    report,
    rows,
    written,
)  # fmt: skip

MARK = "▸"
"""Where a mistake is; the places of the others are not looked at."""
TOKEN = "0123456789abcdef"
KEYS = "{header: NAME}, {headers: [A, B]}, {body: /pointer} or {compose: [...]}"
SCOPES = (
    "{header: NAME, from: [...]}, {api_key: HEADER}, {jwt: {...}}, {forward_auth: {url, principal}}, "
    "{client_certificate: san}, {compose: [...]} or shared"
)
DIGITS = "0f" * 32
HOMES = "homes: [{name: eu, url: 'https://eu.internal:8443'}, {name: us, url: 'http://127.0.0.1:1'}]"
WORDS = {
    "DURATION": "expected a duration such as 300ms, 5s, 2m, 24h or 7d",
    "SIZE": "expected a size such as 64KiB, 1MiB or a number of bytes",
    "ADDRESS": "expected an address such as 127.0.0.1:8080, 0.0.0.0:8080 or [::]:8080",
    "SCOPES": SCOPES,
    "KEYS": KEYS,
    "SOURCES": "expected a list of networks such as [10.0.0.0/8], or any",
    "FIELD": "expected the name of a header",
    "CONNECTION": "this header belongs to the connection or to the gateway, not to the request",
    "OURS": "the gateway writes this header itself",
    "NAME": "expected a name of 1 to 64 letters, digits, '_', '-' and '.'",
    "URL": "expected a URL such as http://127.0.0.1:9000 or https://service.internal",
    "POINTER": "expected a JSON pointer such as /amount or /customer/id, with ~1 for / and ~0 for ~",
    "STATUSES": "expected a status code from 200 to 599, or a class: 2xx, 3xx, 4xx or 5xx",
    "METHOD": "expected a method such as POST or PATCH",
    "PATHS": "expected a path such as /v1/payments, /v1/orders/{id} or /v1/{rest:.*}",
    "SQLITE": "expected sqlite:///PATH, postgresql://USER@HOST/DATABASE or redis://USER@HOST:PORT/DATABASE",
    "REDIS": "expected redis://HOST:PORT/DATABASE, redis+sentinel://HOST,HOST/NAME/DATABASE or redis+cluster://HOST,HOST",
    "MASTER": "the path is the name that the sentinels have for the master, and the number of the database",
    "ENCODE": "percent-encode /, ?, # and @ in a password",
    "ABSOLUTE": "the path is absolute: write all of it",
    "OPTIONS": "the only options are ssl_ca_certs, ssl_certfile, ssl_keyfile",
    "STANDBYS": "only a postgresql:// store has standbys that can be promoted",
    "UNKNOWN": f"unknown key in version {__version__}",
    "SHARED": "required, but missing; it distinguishes services that share a store",
    "FRAMING": "this header describes the connection or the body, not the intent",
    "REDACTABLE": "expected a JSON pointer such as /card/number, or header: and a name, such as header:X-Token",
    "KEPT": "it is not kept: it is listed under strip or redact",
    "INSTEAD": "this is not supported here; expected {header: NAME",
    "WEBHOOKS": "required for keys of webhooks: 410 makes senders give up for good; write 410, 409 or 204",
    "WORKERS": "expected a whole number from 1 to 64, or auto",
    "LOOP": "and would forward to itself; write where the service listens, or let the gateway listen elsewhere",
    "LITERAL": "write $${ for a literal ${",
    "SECRET_KEY": "secrets.fingerprint_key.key",
    "MAKE": "make one with: openssl rand -hex 32",
    "WRONG_KEY": "secrets.encryption[0].key: expected 32 bytes as 64 hexadecimal digits, or as base64; make one with: "
    "openssl rand -hex 32",
    "ENCRYPTED": "requires secrets.encryption, because the requests that it keeps hold credentials; write secrets: "
    '{encryption: [{id: NAME, key: "${NAME}"}]}, with a key from: openssl rand -hex 32',
    "STRANGERS": "accept: strangers could fill the store:",
    "VERIFIED": "verify tokens by {jwt: {...}}, or let a trusted hop name the caller: {header: NAME, from: "
    "[10.0.0.0/8]}; or write identity: unverified, where only callers that you trust reach this route",
    "TIMELESS": "this sender signs no time, so its signatures do not grow old",
    # What is written.
    "HEX": "ab" * 32,
    "TOKEN": TOKEN,
    "KEY": "A" * 43 + "=",
    "ENCRYPTION": f"secrets: {{encryption: [{{id: a, key: '{'A' * 43}='}}",
    "ASK": "url: 'http://127.0.0.1:4180/oauth2/auth?app=shop'",
    "CALLER": "forward_auth: {url: 'http://127.0.0.1:4180/oauth2/auth?app=shop', principal: X-User",
    "ISSUER": "issuer: https://login.example/",
    "JWT": "issuer: https://login.example/, audience: api, keys: discover, claims: [sub]",
    "TOP": f"keys: {{secret: {'s' * 32}}}, claims: [sub]",
    "ONE": "issuer: a, audience: b, keys: /k, claims: [sub]",
    "ROLES": "roles: {operator: [support]}",
    "PROXY": "{from: [10.0.0.0/8], name: X-Forwarded-User, roles: {operator: [support]}}",
    "HOOK": "name: ledger, kind: webhook",
    "SIGNED": f'secrets: [{{id: a, key: "whsec_{DIGITS}"}}]',
    "LEDGER": '{name: ledger, kind: webhook, url: "https://ledger.test/hooks", '
    f'secrets: [{{id: a, key: "whsec_{DIGITS}"}}]}}',
    "FEED": 'name: feed, kind: redis_stream, url: "redis://feed:6379/1"',
    "BUS": 'name: log, kind: kafka, servers: ["b:9093"], topic: "o.{type}"',
    "TLS": "tls: true, ca: /ca.pem",
    "DIGITS": DIGITS,
    "HOMES": HOMES,
    "SECRETS": f"secrets: [{{id: a, key: '{'k' * 24}'}}]",
    "OWN": f"signing_secrets: [{{id: own, key: {'A' * 43}=}}]",
    "TIMED": "hmac: {header: X-S, signed: '{timestamp}{body}', id: X-E, timestamp: X-T}",
}

OF_A_ROUTE = r"""
in_flight: {wait: ▸5} => in_flight.wait: <DURATION>, found '5'; write 5s
in_flight: {wait: ▸[5s]} => in_flight.wait: <DURATION>, found a list
in_flight: {wait: ▸1h} => in_flight.wait: expected a duration from 0s to 10m, found '1h'
in_flight: {wait: ▸22:22} => in_flight.wait: <DURATION>, found '22:22'
in_flight: {max_wait: 30s, wait: ▸40s} => in_flight.wait: wait must be at most max_wait; 40s is longer than 30s
in_flight: {status: ▸410} => in_flight.status: expected 409 or 429, found '410'
in_flight: ▸5s => in_flight: expected a mapping with wait, max_wait, status, max_waiters, found '5s'
in_flight:▸ => in_flight: nothing is written here; indent its keys below it, or leave it out
status_header:▸ => status_header: nothing is written here; leave it out, or quote a word such as 'null'
recovery: {probe: {path: /a, done: [{status: [200]}], headers: ▸word}} => recovery.probe.headers: expected a mapping of
    names to values
recovery: {probe: {path: /a, done: [{status: [200]}], headers: {Authorization: ▸"Bearer hunter2\n"}}} =>
    recovery.probe.headers.Authorization: expected one line, without white space at its ends
▸in_flite: {wait: 5s} => in_flite: <UNKNOWN>; did you mean in_flight?
status_header: ▸yes => status_header: expected true or false, found 'yes'
recovery: ▸retry => recovery: expected hold, resend or {probe: {path, done, ...}}, found 'retry'
recovery: {probe: {path: ▸'/a?x={who}', done: [{status: [200]}]}} => recovery.probe.path: there is no {who}; known here:
    key, operation_id
errors: ▸stipe => errors: expected problem or stripe, found 'stipe'; did you mean stripe?
operation: ▸a b => operation: <NAME>, found 'a b'
retention: {remember: 7d, replay: ▸8d} => retention.replay: replay must be at most remember; 8d is longer than 7d
retention: {expired_status: ▸404} => retention.expired_status: expected 410, 409 or 204, found '404'
body: {max_bytes: ▸1MB} => body.max_bytes: <SIZE>, found '1MB'; write 1MiB
body: {max_bytes: 1KiB, spool_over: ▸2KiB} => body.spool_over: spool_over must be at most max_bytes; 2KiB is more than
    1KiB
response: {keep: [▸Date]} => response.keep[0]: expected Set-Cookie or WWW-Authenticate; others are always stored
response: {keep: [▸set-cookie], strip: [Set-Cookie]} => response.keep[0]: this header is listed under strip too
response: {strip: [a, ▸A]} => response.strip[1]: this is listed already
response: {strip: ▸a} => response.strip: expected a list, found 'a'; write [a]
response: {strip: [▸a b]} => response.strip[0]: <FIELD>, found 'a b'
fingerprint: {ignore: [▸/a~2]} => fingerprint.ignore[0]: <POINTER>, found '/a~2'
fingerprint: {ignore: ▸[/a], only: [/b]} => fingerprint.ignore: ignore and only cannot be used together
fingerprint: {body: raw, only: ▸[/b]} => fingerprint.only: only is for JSON bodies, but body is raw
fingerprint: {explain: ▸true} => fingerprint.explain: explain requires secrets.fingerprint_key, so that a stolen table
    cannot be used to guess members
repeats: {action: refuse, within: ▸8d} => repeats.within: within must be at most retention.remember (7d): what is
    forgotten cannot be named
upstream: {response_timeout: 10m, answer_within: ▸20m} => upstream.answer_within: answer_within must be at most
    response_timeout; 20m is longer than 10m
upstream: {tls: ▸{ca: /ca.pem}} => upstream.tls: tls needs an https URL
upstream: {url: 'https://a', tls: ▸{cert: /c.pem}} => upstream.tls: cert and key must be given together
key: ▸Idempotency-Key => key: expected <KEYS>, found 'Idempotency-Key'
key: {header: A, ▸body: /a} => key.body: only one of header, headers, body or compose can be used
key: {header: ▸Transfer-Encoding} => key.header: <CONNECTION>, found 'Transfer-Encoding'
key: {header: ▸Idempotency_Status} => key.header: <CONNECTION>, found 'Idempotency_Status'
key: {header: ▸Host} => key.header: <FRAMING>, found 'Host'
key: {header: ▸Cookie} => key.header: a credential is not a key: it stays the same over many requests, found 'Cookie'
key: {header: ▸Idempotency_Key} => key.header: services may confuse '_' with '-' in the name of a header, found
    'Idempotency_Key'; write Idempotency-Key
scope: {▸basic_auth: {}} => scope.basic_auth: this is not supported here; expected <SCOPES>
scope: ▸global => scope: expected <SCOPES>, found 'global'
scope: {header: X, from: ▸all} => scope.from: <SOURCES>, found 'all'
scope: {header: X, from: [▸10.0.0.1/8]} => scope.from[0]: expected a network such as 10.0.0.0/8 or fd00::/8, found
    '10.0.0.1/8'; write 10.0.0.0/8
scope: ▸{header: X} => scope.from: required, but missing; the networks of the hops that may set it, or `any` if only
    such hops can reach the gateway
scope: {header: ▸Authorization, from: any} => scope.header: this header holds a credential: write {api_key:
    Authorization}, found 'Authorization'
scope: ▸{api_key: idempotency-key} => scope: the header that holds the key cannot name the caller
scope: {compose: [{api_key: A}, ▸{api_key: a}]} => scope.compose[1]: this is listed already
outcome: ▸{} => outcome.preset: required, but missing; what each status means; there is no default, because this is a
    decision about money
outcome: {preset: %} => outcome.%
| ▸payments | preset: payments requires secrets.fingerprint_key, so that a stolen table cannot be used to guess bodies
| standard, final: [409, 4xx], retryable: [500, ▸409] | retryable[1]: 409 is listed already, under final
| standard, final: [▸101] | final[0]: <STATUSES>, found '101'
match: {path: ▸v1} => match.path: <PATHS>, found 'v1'; a path begins with /
match: {path: /a, methods: ▸[]} => match.methods: expected a list of at least 1, found 0
match: {path: /a, methods: [▸GET]} => match.methods[0]: <METHOD>, found 'GET'; a safe method has no effect to protect
match: {path: /a, methods: [▸post]} => match.methods[0]: <METHOD>, found 'post'; write POST
match: {path: /a, methods: [PUT, ▸PUT]} => match.methods[1]: this is listed already
response: {%} => response.%
| redact: [card] | redact[0]: <REDACTABLE>, found 'card'
| redact: ['header:Connection'] | redact[0]: <CONNECTION>, found 'header:Connection'
| redact: ['header:A', 'header: a'] | redact[1]: this is listed already
| redact: ['header:A'], strip: [a] | redact[0]: this header is listed under strip, so it is not stored at all
| redact: [/a], max_stored_bytes: 0 | redact: no body is stored, because max_stored_bytes is 0
| replay: fetch, reference: /id | replay: fetch: location needs reference: location; or write a path such as
    /v1/payments/{reference}
| replay: fetch, fetch: "/a/{reference}" | fetch: a path with {reference} needs reference: a JSON pointer such as /id
| reference: /id, fetch: "/a/{reference}" | fetch: this needs replay: fetch
| replay: fetch, max_stored_bytes: 1KiB | max_stored_bytes: nothing is stored with replay: fetch; leave this out
| replay: fetch, redact: ['header:X-A'] | redact: nothing is stored with replay: fetch; leave this out
| replay: fetch, version: v3 | version: a fetched response is in the version that its own request asks for
| on_version_change: gone | on_version_change: gone needs version: which version a response is in
| reference: location, strip: [location] | reference: <KEPT>
| reference: /card/id, redact: [/card] | reference: <KEPT>
| reference: /id, replay: fetch, fetch: "/a/../{reference}" | fetch: expected location, or a path such as
    /v1/payments/{reference}, found '/a/../{reference}'
| reference: /id, replay: fetch, fetch: "/a/{reference}/{id}" | fetch: a brace is not closed or not opened, found
    '/a/{reference}/{id}'; write {reference}
outcome: {preset: standard, when: [{status: [2xx], where: {/a: [b, c]}, is: in_doubt}, {status: [200], where: {/a: [c],
    /d: [e]}, is: final}]} => outcome.when[1]: when[0] matches every response that this does
fingerprint: {only: [/a], defaults: {/b: 1}} => fingerprint.defaults.…: /b is not compared: it is not listed under only
fingerprint: {defaults: {/a: 1, /a/b: 1}} => fingerprint.defaults.…: /a/b is within another value that has a default
fingerprint: {body: raw, defaults: {/a: 1}} => fingerprint.defaults: defaults is for JSON bodies, but body is raw
key: {header: webhook-id} + retention: ▸{replay: 1h} => retention.expired_status: <WEBHOOKS>
key: {header: Svix-Id} + retention: {replay: 1h} => retention.expired_status: <WEBHOOKS>
key: {header: webhook-id} + retention: {expired_status: 410} =>
response: {version: {header: API-Version}} + fingerprint: {headers: [▸api-version]} => fingerprint.headers[0]:
    response.version names this header: if it is compared, another version is another request (422)
outcome: {preset: standard, when: [{status: [409], where: {/a: [b]}, is: final}]} + recovery: resend =>
    outcome.when[0].status: with recovery: resend, these are always in doubt: an earlier attempt may still be running
scope: {cookie: sid} => scope.cookie: <INSTEAD>…cookies change…
key: {query: key} => key.query: <INSTEAD>…the query ends up in logs…
upstream: {response_timeout: ▸2s} + ^upstream: {url: 'http://a', answer_within: 5s} => upstream.response_timeout:
    answer_within must be at most response_timeout; 5s is longer than 2s
recovery: {probe: {path: /a, done: [{status: [200]}], settle: 1m}} + ^upstream: {url: 'http://a', answer_within: 5m} =>
    recovery.probe.settle: settle must be at least response_timeout and 30s for TCP; 1m is shorter than 330s
fingerprint: {%} => fingerprint.%
| headers: [▸idempotency-key] | headers[0]: this header may change from one retry to the next, found 'idempotency-key'
| ignore: [/a], defaults: {/a/b: 1} | defaults.…: /a/b is not compared: it is listed under ignore
outcome: {preset: standard, when: [%]} => outcome.when%
| {status: [200], is: in_doubt} | [0].where: required, but missing; for whole statuses, write in_doubt: [...]
| {status: [204], where: {/a: [b]}, is: in_doubt} | [0].status: responses with this status have no body
match: {path: /a, %} => match.%
| methods: [▸XYZ] | methods[0]: <METHOD>, found 'XYZ'; the HTTP parser refuses it; possible are ACL, …, POST, …
| host: ▸'a:80' | host: expected a host name such as api.example.com, without a port, found 'a:80'
"""

OF_THE_FILE = r"""
^listen: ▸8080 => listen: <ADDRESS>, found '8080'; write 127.0.0.1:8080
^listen: ▸':8080' => listen: <ADDRESS>, found ':8080'; write 0.0.0.0:8080 for every interface
^listen: ▸::1:80 => listen: <ADDRESS>, found '::1:80'
^listen: ▸a:65536 => listen: <ADDRESS>, found 'a:65536'
^listen: {address: a:80, tls: ▸{cert: /a}} => listen.tls.key: required, but missing; the private key, as a PEM file
^listen: {address: a:80, tls: {cert: ▸a, key: /b}} => listen.tls.cert: expected an absolute path such as
    /etc/idempotency-gateway/tls.pem, found 'a'
^status: {listen: ▸0.0.0.0:8080} => status.listen: listen and status.listen both use port 8080
^secrets: {fingerprint_key: ▸hunter2} => secrets.fingerprint_key: expected {id: NAME, key: SECRET}, or a list of them
    with the current one first
^secrets: {fingerprint_key: {id: a, key: ▸hunter2}} => secrets.fingerprint_key.key: expected a secret of at least 32
    bytes; <MAKE>
^workers: ▸all => workers: <WORKERS>, found 'all'
^secrets: {fingerprint_key: [{id: a, key: ssssssssssssssssssssssssssssssss}, {id: ▸a, key:
    tttttttttttttttttttttttttttttttt}]} => secrets.fingerprint_key[1].id: another key has this id already
^secrets: {identity_key: {id: a, key: ▸ssssssssssssssssssssssssssssssss}} => secrets.identity_key.key: expected 32 bytes
    as 64 hexadecimal digits, or as base64; <MAKE>
^secrets: {identity_key: {id: a, key: ▸<HEX>}, fingerprint_key: {id: a, key: <HEX>}} => secrets.identity_key.key:
    fingerprint_key has this secret already; make one for each use
^upstream: {url: ▸'127.0.0.1:9000'} => upstream.url: <URL>, found '127.0.0.1:9000'
^upstream: {url: ▸'http://a/v1'} => upstream.url: <URL>, found 'http://a/v1'; without a path or query: paths are never
    rewritten
^upstream: {url: ▸'http://u:hunter2@a'} => upstream.url: <URL>; credentials do not belong in this URL
^upstream: {url: ▸'http://a:port'} => upstream.url: <URL>
^upstream: {url: ▸'http://a_b c'} => upstream.url: <URL>, found 'http://a_b c'
^store: {durable: ▸'%'} => store.durable: %
| redis://u:hun/ter2@h/0 | expected redis://HOST:PORT/DATABASE or redis+sentinel://HOST,HOST/NAME/DATABASE; <ENCODE>
| redis+cluster://u:hunter2@h,i | <SQLITE>; a Redis Cluster keeps no operations alone: name one server, or sentinels
    (redis+sentinel://), or use PostgreSQL, which a cluster may stand before as store.fast
| mysql://u:hunter2@h/d | <SQLITE>
| sqlite://operations.db | <SQLITE>; the path is absolute and the store is a file
| sqlite:///./a.db | <SQLITE>; <ABSOLUTE>
| sqlite:///:memory: | <SQLITE>; the store is a file
| postgresql://u:hun/ter2@h/d | <SQLITE>; <ENCODE>
| postgresql://u:hun@ter2@h/d | <SQLITE>; <ENCODE>
| postgresql:///d | <SQLITE>; <ENCODE>
| postgresql://u@h/d?sslmode=verify | <SQLITE>; sslmode is disable, allow, prefer, require, verify-ca or verify-full
| postgresql://u@a,b,c,d,e,f,g,h,i/d | <SQLITE>; at most 8 hosts
| postgresql://u@a,b/d?target_session_attrs=prefer-standby | <SQLITE>; leave out target_session_attrs and
    load_balance_hosts: of several hosts, the primary is used
^store: {durable: ▸'postgresql://u:hunter2@[h/d'} => store.durable: <SQLITE>; <ENCODE>
^store: % => store.%
| {durable: sqlite:///a, fast: ▸'redis+tls://h:6379'} | fast: <REDIS>; rediss:// is redis:// with TLS
| {durable: sqlite:///a, fast: ▸'redis://h,i'} | fast: <REDIS>; redis:// names one host
| {durable: sqlite:///a, fast: ▸'redis+cluster://h,i/1'} | fast: <REDIS>; a cluster has one database: write no number
| {durable: sqlite:///a, fast: ▸'redis+sentinel://h,i'} | fast: <REDIS>; <MASTER>
| {durable: sqlite:///a, fast: ▸'redis+cluster://h?sentinel_password=hunter2'} | fast: <REDIS>; <OPTIONS>
| {durable: sqlite:///a, fast: ▸'redis://:hun/ter2@h'} | fast: <REDIS>; <ENCODE>
| {durable: sqlite:///a, fast: ▸'redis://:hunter2@h/name'} | fast: <REDIS>; the path is the number of the database
| {durable: sqlite:///a/b, durability: external} + ^service: shop | durability: only a postgresql:// store has a server
^store: {durable: %} + ^service: shop => store.%
| sqlite:///a/b, promotion: refuse | promotion: <STANDBYS>
| sqlite:///a/b, dialect: portable | dialect: only a postgresql:// store has a dialect
| 'postgresql://u@h/d?pgbouncer=true', dialect: portable | dialect: portable needs sessions of its own: give the
    server's address without ?pgbouncer=true
| postgresql://u@h/d, dialect: portable, promotion: refuse | promotion: the engine itself keeps a portable store through
    a promotion
| sqlite:///a/b, replicas: 1 | replicas: only a durable redis:// store has replicas to be waited for
| redis+sentinel://s/name | replicas: required, but missing: how many replicas of a master may be promoted, so that all
    are waited for
| redis://r, fast: redis://r | fast: a durable Redis needs no fast one before it: leave this out
| redis://r, synchronous: require | synchronous: <STANDBYS>
| postgresql://u@h/d, dialect: portable, connections: 3 | connections: a worker with a portable store has five
^▸quotas: {} => quotas: <UNKNOWN>; known here: service, listen, …
^store: {durable: sqlite:///a, lease: ▸1s} => store.lease: expected a duration from 3s to 10m, found '1s'
^store: {durable: postgresql://gateway@db/gateway} => service: <SHARED>
^store: {durable: sqlite:///a.db, fast: redis://h} => service: <SHARED>
^upstream: {url: 'http://a', tls: ▸{ca: /ca.pem}} => upstream.tls: tls needs an https URL
^upstream: {url: 'http://a', tls: {ca: /ca.pem}} + upstream: {url: 'https://b'} =>
^upstream: {url: 'http://10.0.0.5:9000'} + ^listen: 0.0.0.0:9000 =>
upstream: {url: ▸'http://localhost:8080'} => upstream.url: the gateway itself listens on 127.0.0.1:8080 <LOOP>
^secrets: {fingerprint_key: {id: a, key: ▸"${NOT_SET}"}} => <SECRET_KEY>: the environment variable NOT_SET is not set
^secrets: {fingerprint_key: {id: a, key: ▸"a ${OPEN"}} => <SECRET_KEY>: ${ is not closed; <LITERAL>
^secrets: {fingerprint_key: {id: a, key: ▸"${a-b}"}} => <SECRET_KEY>: expected ${NAME} or ${file:/path}; <LITERAL>
^secrets: {fingerprint_key: {id: a, key: ▸"${file:a}"}} => <SECRET_KEY>: expected ${file:/path} with an absolute path
^secrets: {fingerprint_key: {id: a, key: ▸"${file:/nowhere/x}"}} => <SECRET_KEY>: cannot read /nowhere/x: No such file
    or directory
^secrets: {fingerprint_key: {id: a, key: ▸"${file:/dev/zero}"}} => <SECRET_KEY>: /dev/zero is not a file
^admin: {listen: ▸127.0.0.1:8080, token: <TOKEN>} => admin.listen: listen and admin.listen both use port 8080
^admin: {listen: 127.0.0.1:8080} =>
"""

OF_CALLERS = r"""
scope: {forward_auth: {url: 'http://127.0.0.1:8080/auth', principal: X-User}} => scope.forward_auth.url: the gateway
    itself listens on 127.0.0.1:8080 and would…
authorize: {forward_auth: {url: 'http://localhost:8080/'}} => authorize.forward_auth.url: the gateway itself listens on…
scope: {forward_auth: {url: 'http://127.0.0.1:8082/', principal: X-User}} + ^admin: {listen: '127.0.0.1:8082', token:
    s3cret-s3cret-s3cret} => scope.forward_auth.url: the gateway itself listens on 127.0.0.1:8082 and would ask…
authorize: {forward_auth: {url: 'http://a/', copy: [x-mail]}} + scope: {<CALLER>, copy: [X-Mail]}} =>
    authorize.forward_auth.copy: x-mail is copied from another service too…
scope: {forward_auth: {%}} => scope.%
| url: 'ftp://a/', principal: X-User | forward_auth.url: expected a URL such as http://127.0.0.1:4180/oauth2/auth…
| url: 'https://u:s3cret@a/', principal: X-User | forward_auth.url: expected a URL such as…
| url: 'http://a/ b', principal: X-User | forward_auth.url: expected a URL such as…
| <ASK>, principal: Connection | forward_auth.principal: <CONNECTION>…
| <ASK>, principal: Idempotency-Status | forward_auth.principal: <CONNECTION>…
| <ASK>, principal: X-Forwarded-User | forward_auth.principal: <OURS>…
| <ASK>, principal: X_User | forward_auth.principal: services may confuse '_' with '-' in the name of a header…
| <ASK>, principal: Content-Type | forward_auth.principal: this header describes the response…
| <ASK>, principal: Idempotency-Key | forward_auth: Idempotency-Key holds the key or names the caller…
| <ASK>, principal: Authorization | forward_auth.principal: this is listed under headers too…
scope: {<CALLER>, copy: [Set-Cookie]}} => scope.forward_auth.copy[0]: this header is for browsers…
scope: {<CALLER>, copy: [Cookie]}} => scope.forward_auth.copy[0]: this is listed under headers too…
scope: {<CALLER>, headers: [Content-Length]}} => scope.forward_auth.headers[0]: the service is asked without the body…
scope: {<CALLER>, ca: /ca.pem}} => scope.forward_auth.ca: ca needs an https URL…
authorize: {<CALLER>}} => authorize.forward_auth.principal: unknown key in version…
scope: {client_certificate: cn} => …client_certificate: expected subject, san or…
scope: {client_certificate: san} => scope: callers are asked for certificates only where listen.tls.client_ca says
    whose…
^listen: {address: '127.0.0.1:1', tls: {cert: /c, key: /k, client_certificate: required}} =>
    listen.tls.client_certificate: certificates of callers need client_ca…
scope: {jwt: {%}} => scope.jwt.%
| <ISSUER>, keys: discover, claims: [sub] | audience: required, but missing…
| <ISSUER>, audience: api, keys: discover | claims: required, but missing…
| <ISSUER>, audience: api, keys: discover, claims: [sub, jti] | claims[1]: jti differs from token to token…
| <JWT>, algorithms: [none] | algorithms[0]: expected RS256, …
| <JWT>, algorithms: [HS256] | algorithms[0]: HS256 is for a shared secret…
| <JWT>, algorithms: [ES256, ES256] | algorithms[1]: this is listed already…
| <ISSUER>, audience: api, <TOP> | algorithms: required with a secret: write [HS256]…
| <ISSUER>, audience: api, <TOP>, algorithms: [RS256] | algorithms[0]: RS256 needs public keys…
| <ISSUER>, audience: api, keys: {secret: swordfish}, claims: [sub], algorithms: [HS256] | keys.secret: expected a
    secret of at least 32…
| <ISSUER>, audience: api, <TOP>, algorithms: [HS512] | algorithms[0]: HS512 needs a secret of at least 64…
| issuer: http://login.example, audience: api, keys: discover, claims: [sub] | issuer: discover needs an issuer with an
    https…
| <ISSUER>, audience: api, keys: http://login.example/keys, claims: [sub] | keys: expected discover, the https URL…
| <ISSUER>, audience: api, keys: https://u:swordfish@login.example/, claims: [sub] | keys: expected discover…
| <ISSUER>, audience: api, keys: /k.pem, claims: [sub], ca: /ca.pem | ca: has no effect…
| <ISSUER>, audience: api, <TOP>, algorithms: [HS256], ca: /ca.pem | ca: has no effect…
^admin: {sign_in: {secret: <TOKEN>}} => admin.sign_in: say who names people: proxy or jwt…
^admin: {sign_in: {%}} => admin.sign_in.%
| proxy: <PROXY> | secret: required…
| secret: short, proxy: <PROXY> | secret: expected a secret of at least 16 visible ASCII…
| secret: <TOKEN>, proxy: {name: X-User, <ROLES>} | proxy.from: required…
| secret: <TOKEN>, proxy: {from: [], name: X-User, <ROLES>} | proxy.from: expected a list of at least 1…
| secret: <TOKEN>, proxy: {from: ['::/0'], name: X-User, <ROLES>} | proxy.from[0]: this trusts everybody…
| secret: <TOKEN>, proxy: {from: [10.0.0.1], name: X-User, roles: {viewer: []}} | proxy.roles: nobody has a role…
| secret: <TOKEN>, proxy: {from: [10.0.0.1], name: Authorization, <ROLES>} | proxy.name: this header holds a credential…
| secret: <TOKEN>, proxy: {from: [10.0.0.1], name: X-User, groups: x-user, <ROLES>} | proxy.groups: this header names
    the person already…
| secret: <TOKEN>, jwt: {issuer: https://login.test, audience: console, keys: discover, claims: [email], header: Cookie,
    groups: groups, <ROLES>} | jwt.header: this header is the browser's…
| secret: <TOKEN>, jwt: {issuer: https://login.test, keys: discover, claims: [email], header: X-Token, groups: groups,
    <ROLES>} | jwt.audience: required…
scope: {jwt: [{<ONE>}, {<ONE>}]} => scope.jwt[1].issuer: this issuer is listed already…
scope: {compose: [{jwt: {<ONE>}}, {api_key: Authorization}]} => scope.compose[1]: this is listed already…
"""

OF_EVENTS = r"""
^events: {sinks: [<LEDGER>, <LEDGER>]} => …events.sinks[1].name: another sink has this name already…
^events: {sinks: [{<HOOK>, url: "https://ledger.test/hooks", secrets: [{id: a, key: "whsec_AAAA"}]}]} => …expected a
    secret of 24 to 64 bytes…
^events: {sinks: [{<HOOK>, url: "http://ledger.test/hooks", <SIGNED>}]} => …events leave the gateway over TLS alone…
^events: {sinks: [{<HOOK>, url: "https://ledger.test:8443/hooks", <SIGNED>}]} => …egress.ports does not name port 8443…
^events: {sinks: [{<HOOK>, url: "https://[::ffff:10.0.0.1]/hooks", <SIGNED>}]} => …is not a public address…
^events: {sinks: [{<HOOK>, url: "https://ledger.test/hooks", <SIGNED>, routes: [nope]}]} => …there is no route of this
    name…
^events: {sinks: [{<FEED>, max_length: 5, max_age: 1h, stream: operations}]} => …only one of max_length and max_age…
^events: {sinks: [{name: feed, kind: rabbit, url: "redis://feed:6379/1", stream: operations}]} => …kind: webhook,
    redis_stream, nats, kafka or stdout…
^events: {sinks: [{<BUS>, <TLS>, mechanism: PLAIN, idempotence: false, password: p}]} => …user and password go together…
^events: {sinks: [{<BUS>, ca: /ca.pem, mechanism: SCRAM-SHA-256, idempotence: false, user: u, password: p}]} => …needs
    tls: true…
^events: {sinks: [{<BUS>, mechanism: PLAIN, idempotence: false, user: u, password: p}]} => …PLAIN shows the password…
^events: {sinks: [{name: log, kind: kafka, servers: ["b"], topic: "o.{type}", <TLS>, mechanism: PLAIN, idempotence:
    false, user: u, password: p}]} => …a host and port such as kafka:9092…
^events: {sinks: [<LEDGER>], types: [operation.sung]} => …expected operation.completed…
^regions: {here: ap, key: '<DIGITS>', <HOMES>} => …regions.here: expected one of the names under homes: eu, us…
^regions: {here: eu, key: '<DIGITS>', homes: [{name: eu, url: 'https://a'}, {name: %}]} => …regions.homes[1].%
| eu, url: 'https://b' | name: another region has this name already…
| us, url: 'https://a:443' | url: another region has this url already…
| us, url: 'http://us.internal' | url: expected https: callers' credentials cross this connection…
^regions: {here: eu, key: '<DIGITS>', homes: [{name: eu, url: 'https://a/x'}, {name: us, url: 'https://b'}]} => …without
    a path…
^regions: {here: eu, key: 'short', <HOMES>} => …regions.key: expected 32 bytes as 64 hexadecimal digits, or as base64…
^events: {sinks: [{<FEED>, stream: operations}]} + ^service: a + ^store: {durable: sqlite:///a, fast: redis://feed/1} =>
    …the database of store.fast…
^events: {sinks: [{<FEED>, stream: operations, shares_fast: true}]} + ^service: a + ^store: {durable: sqlite:///a, fast:
    redis://feed/1} =>
^events: {sinks: [{<FEED>, stream: operations}]} + ^service: a + ^store: {durable: sqlite:///a, fast:
    'redis+cluster://other,feed'} =>
^events: {sinks: [{name: feed, kind: redis_stream, url: "redis://feed:6379/0", stream: operations}]} + ^service: a +
    ^store: {durable: sqlite:///a, fast: 'redis+cluster://other,feed'} => …the database of store.fast…
^events: {sinks: [{name: feed, kind: redis_stream, url: "redis+cluster://feed:6379", stream: operations}]} => …expected
    redis://HOST:PORT/DATABASE or rediss://HOST:PORT/DATABASE…
scope: {client_certificate: san} + ^listen: {address: '127.0.0.1:1', tls: {cert: /c, key: /k, client_ca: /ca}} +
    ^regions: {here: eu, key: '<DIGITS>', <HOMES>} => …a certificate is verified where its caller connects…
^events: {sinks: [{<HOOK>, url: "%", <SIGNED>}]} => …%
| https://169.254.169.254/hooks | 169.254.169.254 is not a public address…
| https://me:swordfish@ledger.test/hooks | credentials do not belong in this URL…
"""

OF_ACCEPTING = r"""
scope: shared => <STRANGERS> a shared scope names no caller; <VERIFIED>
scope: {api_key: X-Api-Key} => <STRANGERS> the service verifies an API key when the request is delivered, not before it
    is stored; <VERIFIED>
scope: {header: X-Tenant, from: any} => <STRANGERS> with `from: any`, every client can name itself; <VERIFIED>
scope: {compose: [{api_key: X-A}, {header: X-Tenant, from: any}]} => <STRANGERS> the service verifies an API key when
    the request is delivered, not before it is stored; <VERIFIED>
accept: {mode: always} + order: {by: /account} => order: order needs a key in every request: one without passes through,
    and those that wait; write key: {..., required: true}
accept: {max_bytes: 2KiB} + body: {max_bytes: 1KiB} => accept.max_bytes: max_bytes must be at most body.max_bytes; 2KiB
    is more than 1KiB
accept: {headers: {idempotency-key: x}} => accept.headers.idempotency-key: the service would get another key than the
    caller's
retention: {replay: 1h} => retention.replay: accept requires retention.replay of at least 24h: its callers come back for
    the response; 1h is shorter
delivery: {deliver_within: 8d} => delivery.deliver_within: delivery.deliver_within must be at most retention.remember;
    8d is longer than 7d; write retention: {remember: 8d}, or deliver earlier
^delivery: {deliver_within: 8d} => accept: delivery.deliver_within must be at most retention.remember; 8d is longer than
    7d; write retention: {remember: 8d}, or deliver earlier
match: {path: '/{kind}/{id}'} => match.path: this matches /_operations, where callers ask what became of an accepted
    request; write another operations: {path: ...}, or narrow the route
^operations: {path: /a//b} => operations.path: expected a path such as /_operations, found '/a//b'; of letters, digits,
    '-', '_' and '~', without a slash at its end
^public_url: ftp://shop => public_url: expected a URL such as https://api.example.com, found 'ftp://shop'
^delivery: {breaker: {open: 2m, max_open: 1m}} => delivery.breaker.open: open must be at most max_open; 2m is longer
    than 1m
^<ENCRYPTION>, {id: a, key: '<KEY>'}]} => secrets.encryption[1].id: another key has this id already
^<ENCRYPTION>, {id: b, key: '<KEY>'}]} => secrets.encryption[1].key: another key of this list has this secret already;
    make one for each id
scope: shared + accept: {identity: unverified} =>
scope: {compose: [{api_key: X-A}, {header: X-Tenant, from: [10.0.0.0/8]}]} =>
match: {path: '/v1/{rest:.*}'} =>
^secrets: {} => accept: accept <ENCRYPTED>
^secrets: {encryption: [{id: a, key: 'c2hvcnQ='}]} => <WRONG_KEY>
key: {header: Idempotency-Key, required: true} + order: {by: /account} => order: order is for requests that are all
    accepted: one that is not would pass those that wait; write accept: {mode: always}
key: {header: Idempotency-Key, required: true} + accept: {mode: always} + order: {by: /account} + store_unavailable:
    forward => store_unavailable: …
scope: {api_key: X-Key} + authorize: {forward_auth: {<ASK>}} =>
scope: {<CALLER>}} =>
"""

OF_AN_INBOX = r"""
inbox: {preset: stripe, <SECRETS>} + retention: {remember: 32d} => retention.remember: remember must be at least 33d:
    the sender may send events again for so long; 32d is shorter
inbox: {preset: hmac, <SECRETS>, <TIMED>, tolerance: 24h} + retention: {remember: 47h} => retention.remember: remember
    must be at least twice inbox.tolerance: for so long a captured message passes for a new one; 47h is shorter
inbox: {preset: stripe, <SECRETS>} + delivery: {deliver_within: 36d} => delivery.deliver_within: delivery.deliver_within
    must be at most retention.remember; 36d is longer than 35d; write retention: {remember: 36d}, or deliver earlier
inbox: {preset: stripe, <SECRETS>, sign_again: never} + recovery: resend => inbox.sign_again: with resend, a service
    that checks the time would refuse what it may have done before; let the gateway sign again, or accept older
    signatures here and there: tolerance: 1h
inbox: {preset: stripe, <SECRETS>} + store_unavailable: forward => store_unavailable: an inbox acknowledges nothing that
    is not stored, so it cannot forward without the store
inbox: {preset: standard_webhooks, secrets: [{id: a, key: 'whsk_<KEY>'}]} => inbox.secrets[0].key: this is the sender's
    private key; a receiver needs the public one, whpk_...
inbox: {preset: stripe, secrets: [{id: a, key: kkkkkkkkkkkkkkkkkkkkkkkk}, {id: a, key: kkkkkkkkkkkkkkkkkkkkkkkk}]} =>
    inbox.secrets[1].id: another secret has this id already
inbox: {preset: github, <SECRETS>, as: standard_webhooks} => inbox: as: standard_webhooks needs signing_secrets: [{id:
    NAME, key: whsec_...}]
inbox: {preset: github, <SECRETS>, <OWN>} => inbox.signing_secrets: these secrets are for as: standard_webhooks
inbox: {preset: stripe, <SECRETS>, as: standard_webhooks, <OWN>, sign_again: late} => inbox.sign_again: the gateway
    signs every delivery; leave this out
inbox: {preset: github, <SECRETS>, tolerance: 1m} => inbox.tolerance: <TIMELESS>
inbox: {preset: cloudevents, <SECRETS>, sign_again: late} => inbox.sign_again: <TIMELESS>
inbox: {preset: hmac, <SECRETS>} => inbox: hmac is required: {header: NAME, id: NAME} and how the sender signs
inbox: {preset: %} => inbox.%
| hmac, <SECRETS>, hmac: {header: X-S} | hmac: id is required: the header or the value in the body that names an event
| hmac, <SECRETS>, hmac: {header: X-S, id: /id, signed: '{id}.{body}'} | hmac.signed: {id} stands for a header; an id in
    the body is signed with {body}
| hmac, <SECRETS>, hmac: {header: X-S, signed: '{timestamp}{body}', id: X-E, timestamp: X-T, about: [X-Topic, x-t]} |
    hmac.about[1]: this header differs when the sender sends the event again
| hmac, <SECRETS>, hmac: {header: X-S, id: /id, signed: '{url}{body}'} | hmac.signed: expected what is signed, such as
    {body} or {timestamp}.{body}, found '{url}{body}'; a brace opens {id}, {timestamp} or {body}
| stripe, <SECRETS>, hmac: {header: X-Sign, id: X-Event} | hmac: the preset knows how its sender signs; leave this out
| stripe, <SECRETS>, cloudevents: {} | cloudevents: these settings are for the preset cloudevents, not stripe
| stripe, secrets: [{id: a, key: 'kkkkkkkkkkkkkkkkkkkkkkk'}] | secrets[0].key: a secret has at least 24 bytes
| stripe, secrets: [{id: a, key: 'kkkkkkkkkkkkkkkkkkkkkkkk', until: 2026-12-01}] | secrets[0].until: expected a time
    such as 2026-12-01T00:00:00Z, found '2026-12-01'; with its offset from UTC, which is Z for none
inbox: {preset: stripe, <SECRETS>, sign_again: never, tolerance: 1h} + recovery: resend =>
inbox: {preset: github, <SECRETS>} + recovery: resend =>
inbox: {preset: hmac, <SECRETS>, hmac: {header: X-Sign, id: X-Event}} + retention: {remember: 24h} =>
inbox: {preset: stripe, <SECRETS>} + match: {path: /_operations/1} =>
inbox: {preset: stripe, <SECRETS>} + ^secrets: {} => inbox: inbox <ENCRYPTED>
inbox: {preset: stripe, <SECRETS>} + repeats: {action: refuse} => repeats: an event has an id of its own…
inbox: {preset: stripe, <SECRETS>} + % => %
| key: {header: X-Event} | key: the preset of an inbox says where the key is; leave this out
| accept: {mode: prefer} | accept.mode: an inbox accepts every event that its sender signed; leave this out
| authorize: {forward_auth: {<ASK>}} | authorize: the sender of an event is known by its signature…
"""

BASES = {
    OF_A_ROUTE: MINIMAL,
    OF_THE_FILE: MINIMAL,
    OF_CALLERS: MINIMAL,
    OF_EVENTS: MINIMAL,
    OF_ACCEPTING: ACCEPTING,
    OF_AN_INBOX: INBOX,
}
MISTAKES = [(base, *row) for table, base in BASES.items() for row in rows(table, WORDS)]


@pytest.mark.parametrize(("base", "keys", "said"), MISTAKES, ids=[case[1] for case in MISTAKES])
def test_a_mistake(base: str, keys: str, said: str) -> None:
    """It is reported alone, at the mark, with what to write and without a secret; a row that says nothing is right."""
    before, mark, after = written(*keys.split(" + "), base=base).partition(MARK)
    if not said:
        assert parse(before + after).routes
        return
    (line,) = report(before + after)
    place, _, found = line.partition(": ")
    assert is_said(found.replace("routes[0].", "", 1), said), found
    assert not mark or place == f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
    assert not re.search("hunter2|s3cr[e3]t|swordfish|0f0f0f|kkkkkk", found)


def test_a_time_to_settle_in_which_the_request_may_still_arrive() -> None:
    """A probe's "never happened" counts only when nothing can bring the request to the service any more."""
    probe = "recovery: {probe: {path: /a, done: [{status: [200]}], settle: %s}}"
    upstream = "upstream: {response_timeout: 1m, answer_within: 1m}"
    message = "settle must be at least response_timeout and 30s for TCP; 89s is shorter than 90s"
    assert mistakes(written(probe % "89s", upstream)) == [f"routes[0].recovery.probe.settle: {message}"]
    assert read(written(probe % "90s", upstream)).routes


@pytest.mark.parametrize("where", ["upstream: {key: none}", "^upstream: {url: 'http://a', key: none}"])
def test_resend_to_an_upstream_that_gets_no_key(where: str) -> None:
    """What is sent again must be recognised there, so the two are refused together, wherever each is written."""
    message = "resend needs an upstream that deduplicates on what is forwarded, and upstream.key is none"
    assert mistakes(written("recovery: resend", where)) == [f"routes[0].recovery: {message}"]


LOOPS = """
127.0.0.1:9000 => http://127.0.0.1:9000
127.0.0.1:9000 => http://localhost:9000
0.0.0.0:9000 => http://127.0.0.1:9000
[::]:9000 => http://localhost:9000
[::1]:443 => https://[::1]
0.0.0.0:9000 => http://[::1]:9000
gateway.internal:80 => http://gateway.internal
"""


@pytest.mark.parametrize(("listen", "url"), rows(LOOPS, {}))
def test_an_upstream_that_is_the_gateway_itself(listen: str, url: str) -> None:
    text = written(f"^upstream: {{url: '{url}'}}", f"^listen: '{listen}'")
    assert mistakes(text) == [f"upstream.url: the gateway itself listens on {listen} {WORDS['LOOP']}"]


def test_the_longest_lease() -> None:
    """What may be configured is what every store takes for the longest that there is."""
    text = written("^store: {durable: sqlite:///a, lease: 10m}")
    assert microseconds(read(text).store.lease) == LEASE_US_MAX
    assert report(text.replace("10m", "601s"))


def test_a_key_that_is_written_twice() -> None:
    assert report("log: {level: info}\nlog: {level: info}\n" + MINIMAL) == [
        "2:1: log: the key is written twice, first on line 1"
    ]


def test_a_report_of_thousands_of_mistakes_is_cut() -> None:
    assert report("routes: [" + "x," * 1000 + "]")[-1].endswith("and 802 more")


def test_names_of_routes() -> None:
    """Two routes of one name are a mistake; two of one operation are not."""
    again = MINIMAL + "\n".join(MINIMAL.splitlines()[3:])
    assert report(again) == ["9:11: routes[1].name: another route has this name already"]
    assert len(read(again.replace("name: pay", "name: other\n    operation: pay", 1)).routes) == 2


def test_missing_everything() -> None:
    """Each required key that is missing is named with what it is for."""
    assert report("routes: [{}]") == [
        "1:1: store: required, but missing; "
        "where operations are stored: {durable: sqlite:///PATH} or {durable: postgresql://...}",
        "1:1: upstream: required, but missing; the service behind the gateway: {url: http://127.0.0.1:9000}",
        f"1:10: routes[0].key: required, but missing; where the key is: {KEYS}",
        "1:10: routes[0].match: required, but missing; "
        "which requests the route protects: {path}, and optionally methods and host",
        "1:10: routes[0].name: required, but missing; the name of the route in logs and metrics",
        "1:10: routes[0].outcome: required, but missing; "
        "what the statuses of the service mean: {preset: standard}, payments or success_only",
        f"1:10: routes[0].scope: required, but missing; whose key it is: {SCOPES}",
    ]


def test_one_report() -> None:
    """Mistakes of every kind are reported together, in the order of the file."""
    text = (
        GLOBAL.replace("9000", "9000, anwser_within: 5s")
        + "log: {level: '${LEVEL}'}\nservice: a\nservice: b\n"
        + written("in_flight: {wait: 1m, max_wait: 30s}").removeprefix(GLOBAL).replace("standard", "payments")
    )
    assert [line.rpartition(": ")[0] for line in report(text)] == [
        "1:40: upstream.anwser_within",
        "3:14: log.level",
        "5:1: service",
        f"{ROUTE_LINE + 2}:23: routes[0].outcome.preset",
        f"{ROUTE_LINE + 3}:23: routes[0].in_flight.wait",
    ]


NOT_ALONE = {
    "accept": ("accept: {identity: unverified}", "routes[0].accept"),
    "repeats": ("repeats: {action: refuse}", "routes[0].repeats.action"),
    "payments": ("outcome: {preset: payments}", "routes[0].outcome.preset"),
    "observe": ("mode: observe", "routes[0].mode"),
    "events": ("^events: {sinks: [{name: out, kind: stdout}]}", "events.sinks"),
}


@pytest.mark.parametrize("name", NOT_ALONE)
def test_what_a_durable_redis_does_not_keep(name: str) -> None:
    """What is over several records, or must not be in a memory, is refused with what to use instead."""
    setting, path = NOT_ALONE[name]
    found = mistakes(written(setting, "^store: {durable: 'redis://u@h/0'}", "^service: shop"))
    assert [line for line in found if line.startswith(f"{path}: ") and "a durable Redis" in line], found


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        pytest.param("accept: {mode: always} + order: {by: /account}", "order: one store keeps an order", id="order"),
        pytest.param("repeats: {action: refuse}", "repeats.action: one store finds a repeat", id="repeats"),
    ],
)
def test_no_promise_over_keys_that_have_different_homes(keys: str, said: str) -> None:
    """What one store keeps over the keys of a route is refused where several stores have them."""
    text = written("key: {header: Idempotency-Key, required: true}", *keys.split(" + "), base=ACCEPTING)
    assert read(text)
    (found,) = mistakes(f"{text}regions: {{here: eu, key: '{DIGITS}', {HOMES}}}\n")
    assert said in found


def test_a_header_that_another_route_reads() -> None:
    """It is dropped on every path, so none can read it."""
    for path in ("/pay", "/{rest:.*}", "/other"):
        other = f"""
  - name: other
    match: {{methods: [PUT], path: "{path}"}}
    key: {{header: Idempotency-Key}}
    scope: {{header: x-user, from: any}}
    outcome: {{preset: standard}}
"""
        (found,) = mistakes(written(f"scope: {{{WORDS['CALLER']}}}}}") + other)
        assert "X-User holds the key or names the caller on other, and is dropped everywhere" in found


# -- what may be a secret ----------------------------------------------------------------------------------------------

SHORT = "expected a secret of at least 16 visible ASCII characters"


@pytest.mark.parametrize(
    ("secret", "hint"),
    [
        # It can be guessed, or no header field could carry it.
        (TOKEN[1:], WORDS["MAKE"]),
        (f"{TOKEN} x", WORDS["MAKE"]),
        ("x" * 1025, WORDS["MAKE"]),
        # What is wrong is the variable, the file, or how it is written.
        ("${EMPTY}", "the environment variable EMPTY is empty"),
        ("$TOKEN", "only ${NAME} is replaced, with its braces"),
        ("${file:FILE}", "FILE is empty"),
        # A value of a variable is a secret, and braces are not what it lacks.
        ("${TOKEN}", WORDS["MAKE"]),
    ],
)
def test_a_token_that_is_none(secret: str, hint: str, tmp_path: Path) -> None:
    """It is a mistake, which does not repeat it."""
    file = tmp_path / "secret"
    file.write_text("\n")
    text = written(f'^admin: {{token: "{secret.replace("FILE", str(file))}"}}')
    said = report(text, {"EMPTY": "", "TOKEN": "$short"})
    assert said == [f"1:16: admin.token: {SHORT}; {hint.replace('FILE', str(file))}"]


@pytest.mark.parametrize("key", ["scope: {'s3cret value': 1}", f"^admin: {TOKEN}", f"^admin: {{{TOKEN}: a}}"])
def test_what_may_be_a_secret_is_not_named(key: str) -> None:
    """A value that slipped into the place of a section, or of a key, is not shown."""
    assert not re.search(f"s3cret|{TOKEN}", "".join(report(written(key))))


def test_tokens_of_several() -> None:
    """Each has a name of its own, a secret of its own and a role; `token` is a name where `admin.token` is written."""
    entry = f"{{name: vera, token: {TOKEN}, role: viewer}}"
    assert read(written(f"^admin: {{tokens: [{entry}]}}")).admin.is_on
    assert mistakes(written(f"^admin: {{tokens: [{entry}, {entry}]}}")) == [
        "admin.tokens[1].name: another token has this name already",
        "admin.tokens[1].token: another entry has this secret; make one for each",
    ]
    own = entry.replace("vera", "token").replace(TOKEN, f"{TOKEN}x")
    assert mistakes(written(f"^admin: {{token: {TOKEN}, tokens: [{own}]}}")) == [
        "admin.tokens[0].name: another token has this name already"
    ]
